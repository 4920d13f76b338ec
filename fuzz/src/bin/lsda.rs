//! libFuzzer on the target `lsda`.
#![no_main]

fuzz::guided!(fuzz::lsda::TARGET);
