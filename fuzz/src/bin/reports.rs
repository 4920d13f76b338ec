//! libFuzzer on the target `reports`.
#![no_main]

fuzz::guided!(fuzz::reports::TARGET);
