//! How tests wait for what happens in another thread or process. The tests of other crates use it
//! too.

#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::fmt::Display;
use std::time::{Duration, Instant};

/// The time between two looks.
const POLL: Duration = Duration::from_millis(10);

/// Waits until this holds. After `limit_s` seconds the test fails with `what` it saw then.
#[track_caller]
pub(crate) fn eventually<What: Display>(
    limit_s: u64,
    mut is_so: impl FnMut() -> bool,
    what: impl Fn() -> What,
) {
    found_within(limit_s, || is_so().then_some(()).ok_or_else(&what));
}

/// Looks until there is something. After `limit_s` seconds the test fails with what the last look
/// saw instead.
#[track_caller]
pub(crate) fn found_within<T, What: Display>(
    limit_s: u64,
    mut look: impl FnMut() -> Result<T, What>,
) -> T {
    let end = Instant::now() + Duration::from_secs(limit_s);
    loop {
        match look() {
            Ok(found) => return found,
            Err(what) => assert!(Instant::now() < end, "not within {limit_s} s: {what}"),
        }
        std::thread::sleep(POLL);
    }
}
