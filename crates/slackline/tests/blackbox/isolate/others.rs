//! Others who write the settings of the batch work, or make its group anew.

use std::process::Child;

use serde_json::Value;

use super::{Bench, Group, signal};
use crate::eventually::eventually;
use crate::toy::{Ended, kill, skip};

/// The bench, with a group of its own for the batch work, in which a process is.
fn bench(name: &str, policy: &str) -> Option<(Bench, Group, Child)> {
    let bench = Bench::new(name)?;
    let work = Group::new(name)?;
    let service = format!("pid = {}", bench.service.id());
    bench.config_of(&service, &format!("cgroup = \"{}\"", work.name), policy);
    let busy = work.sleeper();
    Some((bench, work, busy))
}

/// Sets a third of a core, as somebody else.
fn set_quota(work: &Group) {
    let v1 = work.path.join("cpu.cfs_quota_us");
    let written = match v1.is_file() {
        true => std::fs::write(v1, "33000"),
        false => std::fs::write(work.path.join("cpu.max"), "33000 100000"),
    };
    written.unwrap();
}

fn setting<'a>(status: &'a Value, actuator: &str) -> &'a str {
    let words = &status["groups"][0]["settings"][actuator];
    words.as_str().unwrap_or_default()
}

fn end(mut child: Child, mut busy: Child) {
    signal(child.id().into(), rustix::process::Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    kill([&mut busy]);
}

#[test]
fn a_fixed_quota_that_somebody_else_changes_is_said_at_once() {
    let fixed = "name = \"static\"\nstatic = { quota_cores = 0.5 }";
    let Some((bench, work, busy)) = bench("foreign-quota", fixed) else {
        return;
    };
    let child = bench.start();
    let is_set = |status: &Value| setting(status, "quota") == "quota 0.50 cores";
    bench.until("a quota", is_set);
    set_quota(&work);
    let is_theirs =
        |status: &Value| setting(status, "quota") == "quota 0.33 cores (set by somebody else)";
    let status = bench.until("a yield", is_theirs);
    assert_eq!(status["troubles"]["yielded"], 1);
    let why = status["yielded"][0].as_str().unwrap();
    assert!(why.contains("was changed by someone else"), "{why}");
    let shown = Ended::of(bench.toy.slackline(&["isolate", "status"])).with_code(0);
    for said in ["No longer set: cgroup", "quota 0.33 cores (set by"] {
        assert!(shown.stdout.contains(said), "{}", shown.stdout);
    }
    // Once for all of it.
    let status = bench.pass(3);
    assert_eq!(status["troubles"]["yielded"], 1);
    end(child, busy);
    let left = ["cpu.cfs_quota_us", "cpu.max"].iter().find_map(|file| {
        let text = std::fs::read_to_string(work.path.join(file)).ok()?;
        Some(text.trim().to_owned())
    });
    assert!(left.unwrap().starts_with("33000"));
}

#[test]
fn without_cpu_idle_batch_work_gets_no_more() {
    let Some((bench, work, mut busy)) = bench("foreign-idle", "name = \"slackline\"") else {
        return;
    };
    let idle = work.path.join("cpu.idle");
    if !idle.is_file() {
        kill([&mut busy]);
        skip(&"groups have no cpu.idle");
        return;
    }
    let child = bench.start();
    bench.until("batch work", Bench::is_on);
    std::fs::write(&idle, "0").unwrap();
    let is_theirs = |status: &Value| {
        setting(status, "cpu_idle") == "not cpu.idle (set by somebody else)"
            && !setting(status, "quota").contains("no quota")
    };
    let status = bench.until("a yield", is_theirs);
    let explained = status["explanation"].as_str().unwrap();
    let said = format!("somebody else writes cpu_idle of group {}", work.name);
    assert!(explained.contains(&said), "{explained}");
    // The first budget is a tenth of the machine. There it stays, or becomes less.
    let first = 0.1 * status["cores"].as_f64().unwrap();
    for _ in 0..4 {
        let status = bench.pass(2);
        let quota = setting(&status, "quota");
        let cores = quota.split(' ').nth(1).unwrap().parse::<f64>().unwrap();
        assert!(cores <= first + 0.01, "{status}");
    }
    end(child, busy);
    assert_eq!(std::fs::read_to_string(&idle).unwrap().trim(), "0");
}

#[test]
fn a_group_that_is_made_anew_at_once_gets_its_settings_again() {
    let fixed = "name = \"static\"\nstatic = { quota_cores = 0.5, weight = 50 }";
    let Some((bench, work, mut busy)) = bench("anew", fixed) else {
        return;
    };
    let child = bench.start();
    let is_set = |status: &Value| setting(status, "quota") == "quota 0.50 cores";
    bench.until("a quota", is_set);
    kill([&mut busy]);
    let is_removed = || std::fs::remove_dir(&work.path).is_ok();
    eventually(10, is_removed, || "the group cannot be removed");
    std::fs::create_dir(&work.path).unwrap();
    let busy = work.sleeper();
    let has_quota = || {
        let texts = ["cpu.cfs_quota_us", "cpu.max"]
            .map(|file| std::fs::read_to_string(work.path.join(file)).unwrap_or_default());
        texts.iter().any(|text| text.starts_with("50000"))
    };
    eventually(60, has_quota, || "the new group has no quota");
    let status = bench.pass(3);
    assert!(is_set(&status), "{status}");
    assert_eq!(status["yielded"], serde_json::json!([]), "{status}");
    end(child, busy);
    assert!(!has_quota());
}
