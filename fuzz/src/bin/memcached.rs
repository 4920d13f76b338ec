//! libFuzzer on the target `memcached`.
#![no_main]

fuzz::guided!(fuzz::memcached::TARGET);
