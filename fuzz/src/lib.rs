//! Targets for fuzzing: each gives any bytes to a parser, and says what must hold whatever they
//! are.
//!
//! The same targets are run in two ways. The tests of this crate run each of them on its seeds and
//! on mutated seeds for a few seconds, from a fixed number on. `cargo xtask fuzz NAME` builds a
//! program of libFuzzer for each, whose mutations are guided by coverage.
//!
//! A new target is a module with a `TARGET`, an entry in [`TARGETS`], and a program in `src/bin`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a target that finds something wrong panics: that is its answer"
)]

mod bytes;
pub mod elf;
pub mod frames;
pub mod hsperf;
pub mod lsda;
pub mod memcached;
mod memory;
pub mod mutation;
pub mod nbd;
pub mod nvme;
mod objects;
pub mod perf;
pub mod reports;
pub mod rings;
mod seeds;
pub mod specification;
mod target;
pub mod unwind;

pub use seeds::repository;
pub use target::Target;

/// All targets.
pub const TARGETS: &[Target] = &[
    elf::TARGET,
    unwind::TARGET,
    lsda::TARGET,
    hsperf::TARGET,
    perf::TARGET,
    reports::TARGET,
    specification::TARGET,
    nbd::TARGET,
    nvme::TARGET,
    frames::TARGET,
    memcached::TARGET,
    rings::TARGET,
];

/// The program of libFuzzer for one target. It writes the seeds into the folder that
/// `SLACKLINE_FUZZ_SEEDS` names before it reads them.
#[cfg(feature = "guided")]
#[macro_export]
macro_rules! guided {
    ($target:expr) => {
        libfuzzer_sys::fuzz_target!(
            init: {
                if let Some(folder) = std::env::var_os("SLACKLINE_FUZZ_SEEDS") {
                    $target.write_seeds(folder.as_ref()).expect("seeds are written");
                }
            },
            |data: &[u8]| {
                $target.check(data);
            }
        );
    };
}
