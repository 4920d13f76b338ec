//! Benchmarks of the pure parts of Slackline, by criterion. `cargo xtask bench micro` runs them.
