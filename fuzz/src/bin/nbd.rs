//! libFuzzer on the target `nbd`.
#![no_main]

fuzz::guided!(fuzz::nbd::TARGET);
