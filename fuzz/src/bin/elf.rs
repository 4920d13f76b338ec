//! libFuzzer on the target `elf`.
#![no_main]

fuzz::guided!(fuzz::elf::TARGET);
