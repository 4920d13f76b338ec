//! libFuzzer on the target `frames`.
#![no_main]

fuzz::guided!(fuzz::frames::TARGET);
