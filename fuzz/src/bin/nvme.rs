//! libFuzzer on the target `nvme`.
#![no_main]

fuzz::guided!(fuzz::nvme::TARGET);
