//! libFuzzer on the target `rings`.
#![no_main]

fuzz::guided!(fuzz::rings::TARGET);
