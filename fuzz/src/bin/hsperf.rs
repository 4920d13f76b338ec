//! libFuzzer on the target `hsperf`.
#![no_main]

fuzz::guided!(fuzz::hsperf::TARGET);
