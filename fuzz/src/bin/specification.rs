//! libFuzzer on the target `specification`.
#![no_main]

fuzz::guided!(fuzz::specification::TARGET);
