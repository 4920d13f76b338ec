//! libFuzzer on the target `unwind`.
#![no_main]

fuzz::guided!(fuzz::unwind::TARGET);
