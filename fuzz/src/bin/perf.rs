//! libFuzzer on the target `perf`.
#![no_main]

fuzz::guided!(fuzz::perf::TARGET);
