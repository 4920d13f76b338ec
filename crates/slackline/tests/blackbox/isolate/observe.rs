//! A controller that only observes, and one that is told to act.

use super::{Bench, signal};

#[test]
fn a_reload_begins_and_ends_the_acting() {
    let Some(bench) = Bench::new("observe") else {
        return;
    };
    let hang_up = |pid: u32| signal(pid.into(), rustix::process::Signal::HUP);
    bench.config("observe = true", "");
    let mut child = bench.start();
    let status = bench.pass(2);
    assert_eq!(status["observe"], true);
    assert!(status["watchdog_pid"].is_null(), "{status}");
    assert!(bench.groups().is_empty(), "{:?}", bench.groups());
    bench.config("", "");
    hang_up(child.id());
    let status = bench.until("batch work", Bench::is_on);
    assert!(status["watchdog_pid"].is_u64(), "{status}");
    // Back to observing: everything is put back while the controller runs on.
    bench.config("observe = true", "");
    hang_up(child.id());
    bench.until("observing", |status| status["observe"] == true);
    bench.assert_restored();
    let status = bench.pass(2);
    assert_eq!(status["pid"], child.id());
    assert!(status["watchdog_pid"].is_null(), "{status}");
    signal(child.id().into(), rustix::process::Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
}
