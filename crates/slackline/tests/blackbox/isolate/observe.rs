//! A controller that only observes, and one that is told to act.

use std::path::Path;
use std::process::{Child, Command};

use serde_json::Value;

use super::{Bench, Group, signal};
use crate::toy::{Ended, kill};

/// Work that burns a CPU, for a minute of CPU time at most.
fn busy() -> Child {
    let script = "ulimit -t 60; while :; do :; done";
    Command::new("sh").args(["-c", script]).spawn().unwrap()
}

/// It has used CPU time, and it would have a budget.
fn would_run(status: &Value) -> bool {
    let group = &status["groups"][0];
    group["cpu_s"].as_f64() > Some(0.0) && group["observed_settings"]["quota"].is_string()
}

fn explains(status: &Value, words: &str) -> bool {
    let sentence = status["explanation"].as_str();
    sentence.is_some_and(|sentence| sentence.contains(words))
}

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

/// Nothing of it was ever in force, and nothing says so. On a host with cgroup v1 the group is in
/// the hierarchy of cpu alone.
#[test]
fn a_group_that_is_only_observed_keeps_its_settings_and_is_counted() {
    let Some(bench) = Bench::new("seen") else {
        return;
    };
    let Some(work) = Group::new("seen") else {
        return;
    };
    let mut busy = busy();
    let id = busy.id().to_string();
    std::fs::write(work.path.join("cgroup.procs"), id).unwrap();
    bench.config_of(
        &format!("pid = {}", bench.service.id()),
        &format!("cgroup = \"{}\"", work.name),
        "observe = true",
    );
    let file = bench.toy.path("isolate.toml").display().to_string();
    let check = |arguments: &[&str]| {
        let arguments = [&["isolate", "check", &file][..], arguments].concat();
        Ended::of(bench.toy.slackline(&arguments))
            .with_code(0)
            .stdout
    };
    let cpuacct = Path::new("/sys/fs/cgroup/cpuacct");
    let is_missing = cpuacct.is_dir() && !cpuacct.join(&work.name).is_dir();
    let said = check(&[]);
    assert_eq!(
        said.contains("is missing in the hierarchy cpuacct"),
        is_missing,
        "{said}"
    );
    assert!(
        said.contains("cpu.idle") && !said.contains("weight"),
        "{said}"
    );
    assert!(check(&["--all"]).contains("weight"));
    let mut child = bench.start();
    let status = bench.until("a budget", would_run);
    assert!(
        explains(&status, "best-effort work would have "),
        "{status}"
    );
    assert!(
        status["groups"][0]["settings"]
            .as_object()
            .unwrap()
            .is_empty()
    );
    let recent = status["recent"].as_array().unwrap();
    let is_observed = |line: &Value| line.as_str().unwrap().ends_with(" (observed)");
    assert!(recent.iter().all(is_observed), "{status}");
    // Harm is not the harm of a level that was never in force, and the service is not alone.
    bench.latency("50 5000");
    let status = bench.until("harm", |status| {
        explains(status, "would be off (violation)")
    });
    assert!(!status.to_string().contains("too large"), "{status}");
    let shown = Ended::of(bench.toy.slackline(&["isolate", "status"])).with_code(0);
    assert!(shown.stdout.contains("would be"), "{}", shown.stdout);
    assert!(!shown.stdout.contains("settings"), "{}", shown.stdout);
    let idle = std::fs::read_to_string(work.path.join("cpu.idle")).unwrap();
    assert_eq!(idle.trim(), "0");
    signal(child.id().into(), rustix::process::Signal::TERM);
    child.wait().unwrap();
    kill([&mut busy]);
}

#[test]
fn a_command_is_not_started_while_observing_and_that_is_said_with_what_to_do() {
    let Some(bench) = Bench::new("unstarted") else {
        return;
    };
    bench.config("observe = true", "");
    let said = format!("The command of group {} is not started while", bench.name);
    let file = bench.toy.path("isolate.toml").display().to_string();
    let check = Ended::of(bench.toy.slackline(&["isolate", "check", &file])).with_code(0);
    assert!(check.stdout.contains(&said), "{}", check.stdout);
    let child = bench.start();
    let status = bench.until("a sentence", |status| {
        explains(status, "no best-effort group")
    });
    assert!(status["notes"].to_string().contains(&said), "{status}");
    let shown = Ended::of(bench.toy.slackline(&["isolate", "status"])).with_code(0);
    assert!(shown.stdout.contains(&said), "{}", shown.stdout);
    signal(child.id().into(), rustix::process::Signal::TERM);
    let ended = Ended::from(child.wait_with_output().unwrap());
    assert!(ended.stderr.contains(&said), "{}", ended.stderr);
}

#[test]
fn work_that_is_named_by_its_pid_is_observed_where_it_is() {
    let Some(bench) = Bench::new("pid") else {
        return;
    };
    let mut busy = busy();
    bench.config_of(
        &format!("pid = {}", bench.service.id()),
        &format!("name = \"{}\"\npid = {}", bench.name, busy.id()),
        "observe = true",
    );
    let mut child = bench.start();
    let status = bench.until("a budget", would_run);
    assert!(status["groups"][0]["group"].is_null(), "{status}");
    assert!(bench.groups().is_empty(), "{:?}", bench.groups());
    kill([&mut busy]);
    bench.until("its end", |status| {
        status["groups"][0]["is_running"] == false
    });
    signal(child.id().into(), rustix::process::Signal::TERM);
    child.wait().unwrap();
}
