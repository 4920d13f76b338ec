//! On the running host, where the privilege is there: a sysctl, a group with a quota and a process
//! in it, a JVM.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use host::{CgroupReader, CpuQuota, HsPerf, Journal, Knob, Machine, RestoreOutcome, Roots};

fn is_missing(name: &str, what: &str) -> bool {
    let is_missing = !host::probe(&Roots::default())
        .iter()
        .any(|probe| probe.name == name && probe.is_available());
    if is_missing {
        println!("SKIP: {what}: this host lacks {name}");
    }
    is_missing
}

#[test]
fn a_sysctl_is_written_refused_and_restored() {
    if is_missing("sysctls", "writing vm.page-cluster")
        || is_missing("privilege", "writing vm.page-cluster")
    {
        return;
    }
    // Of all sysctls one that hardly anything depends on: how many pages are read ahead from swap.
    let (roots, knob) = (Roots::default(), Knob::Sysctl("vm.page-cluster".into()));
    let state = tempfile::tempdir().unwrap();
    let first = knob.read(&roots).unwrap().unwrap();
    let other = if first == "2" { "1" } else { "2" };
    let mut journal = Journal::open(state.path()).unwrap();
    journal.write(&roots, &knob, other).unwrap();
    let refused = journal.write(&roots, &knob, "100000").unwrap_err();
    assert_eq!(refused.errno(), Some(22), "{refused}");
    assert_eq!(knob.read(&roots).unwrap().as_deref(), Some(other));
    let report = journal.restore(&roots, false).unwrap();
    assert_eq!(report.items[0].outcome, RestoreOutcome::Restored);
    assert_eq!(knob.read(&roots).unwrap(), Some(first));
}

#[test]
fn a_group_throttles_a_process_and_is_removed() {
    if is_missing("cgroup cpu controller", "making a group") {
        return;
    }
    let roots = Roots::default();
    let group = format!("slackline-test-{}", std::process::id());
    let state = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(state.path()).unwrap();
    journal.make_cgroup(&roots, &group).unwrap();
    let quota = CpuQuota {
        period_us: 20_000,
        quota_us: Some(5_000),
        // Where this kernel has it.
        burst_us: CpuQuota::read(&roots, &group)
            .unwrap()
            .burst_us
            .map(|_| 1_000),
    };
    for (knob, value) in quota.writes(&roots, &group).unwrap() {
        journal.write(&roots, &knob, &value).unwrap();
    }
    assert_eq!(CpuQuota::read(&roots, &group).unwrap(), quota);
    let words = host::cgroup::enter_command(&host::cgroup::procs_files(&roots, &group).unwrap());
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .args(["sh", "-c", "while :; do :; done"])
        .spawn()
        .unwrap();
    journal
        .process(child.id(), host::start_time(&roots, child.id()).unwrap())
        .unwrap();
    let mut reader = CgroupReader::open(&roots, &group).unwrap();
    sleep(Duration::from_millis(600));
    let sample = reader.sample().unwrap();
    assert!(
        sample.throttled_periods > 0 && sample.periods >= sample.throttled_periods,
        "{sample:?}"
    );
    assert!(
        sample.throttled_s > 0.0 && sample.cpu.unwrap().total_s() > 0.0,
        "{sample:?}"
    );
    // Without a child of ours to reap, a restore after a crash has init do it; here it is done
    // beside.
    let reaper = std::thread::spawn(move || child.wait());
    let report = journal.restore(&roots, false).unwrap();
    reaper.join().unwrap().unwrap();
    assert!(
        report.is_complete() && report.changed_by_others().count() == 0,
        "{report:?}"
    );
    assert!(CgroupReader::open(&roots, &group).is_err());
}

/// Between a parent and a child that allow one share only, of v1 neither the period nor the quota
/// can go back alone.
#[test]
fn a_quota_between_others_comes_back() {
    if is_missing("cgroup cpu controller", "making a group") {
        return;
    }
    let roots = Roots::default();
    let parent = format!("slackline-between-{}", std::process::id());
    let groups = [
        parent.clone(),
        format!("{parent}/group"),
        format!("{parent}/group/child"),
    ];
    let state = tempfile::tempdir().unwrap();
    // The groups are another journal's: one that removes them has no values to put back.
    let mut makes = Journal::open(&state.path().join("makes")).unwrap();
    makes.make_cgroup(&roots, &groups[2]).unwrap();
    let half = CpuQuota {
        period_us: 100_000,
        quota_us: Some(50_000),
        burst_us: None,
    };
    let short = CpuQuota {
        period_us: 20_000,
        quota_us: Some(10_000),
        burst_us: None,
    };
    for group in &groups {
        for (knob, value) in half.writes(&roots, group).unwrap() {
            makes.write(&roots, &knob, &value).unwrap();
        }
    }
    let state_dir = state.path().join("state");
    let mut journal = Journal::open(&state_dir).unwrap();
    for (knob, value) in short.writes(&roots, &groups[1]).unwrap() {
        journal.write(&roots, &knob, &value).unwrap();
    }
    drop(journal);
    let report = Journal::open(&state_dir).unwrap().restore(&roots, false);
    let found = CpuQuota::read(&roots, &groups[1]).unwrap();
    assert!(makes.restore(&roots, false).unwrap().is_complete());
    let report = report.unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert_eq!((found.period_us, found.quota_us), (100_000, Some(50_000)));
}

#[test]
fn a_running_process_is_moved_and_moved_back() {
    if is_missing("cgroup cpu controller", "moving a process") {
        return;
    }
    let roots = Roots::default();
    let group = format!("slackline-move-{}", std::process::id());
    let state = tempfile::tempdir().unwrap();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let cgroups = || std::fs::read_to_string(format!("/proc/{}/cgroup", child.id())).unwrap();
    let first = cgroups();
    let mut journal = Journal::open(state.path()).unwrap();
    journal.make_cgroup(&roots, &group).unwrap();
    journal.attach(&roots, &group, child.id()).unwrap();
    assert!(cgroups().contains(&group));
    assert!(journal.restore(&roots, false).unwrap().is_complete());
    assert_eq!(cgroups(), first);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Allocates 200 MiB, then says so and waits.
const ALLOCATE: &str = "public class Allocate { static volatile Object o; public static void main(String[] a) throws \
    Exception { System.in.read(); for (int i = 0; i < 200 * 1024; i++) { o = new byte[1024 - 16]; if (i % 4096 == 0) \
    Thread.sleep(10); } Thread.sleep(200); System.out.println(1); System.in.read(); } }";

#[test]
fn a_jvm_tells_what_it_allocates() {
    use std::io::{BufRead, BufReader, Write};
    if Command::new("java").arg("-version").output().is_err() {
        println!("SKIP: there is no java to run");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("Allocate.java");
    std::fs::write(&source, ALLOCATE).unwrap();
    let mut child = Command::new("java")
        .args(["-XX:+UsePerfData", "-Xmx64m", "-XX:+UseSerialGC"])
        .arg(&source)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let roots = Roots::default();
    // The source launcher compiles first, which allocates too.
    let mut perf = (0..200).find_map(|_| {
        sleep(Duration::from_millis(50));
        HsPerf::open(child.id(), &roots).ok()
    });
    sleep(Duration::from_secs(4));
    let result = perf.as_mut().map(|perf| {
        let before = perf.sample().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"\n").unwrap();
        input.flush().unwrap();
        let output = child.stdout.take().unwrap();
        let done = std::thread::spawn(move || BufReader::new(output).lines().next());
        while !done.is_finished() {
            sleep(Duration::from_millis(20));
            perf.sample().unwrap();
        }
        (before, perf.sample().unwrap())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let (before, after) = result.expect("the JVM publishes its counters");
    let mib = (after.allocated_bytes - before.allocated_bytes) >> 20;
    println!(
        "allocated {mib} MiB of 200, {} collections",
        after.gc_cycles - before.gc_cycles
    );
    assert!((180..=230).contains(&mib), "{mib} MiB instead of 200");
    assert!(after.gc_cycles > before.gc_cycles && after.gc_time_s > before.gc_time_s);
}

#[test]
fn this_machine_is_described() {
    let machine = Machine::describe(&Roots::default());
    assert!(
        !machine.kernel.is_empty() && machine.cpus > 0 && machine.memory_bytes > 0,
        "{machine:?}"
    );
    println!("{machine:#?}");
    for probe in host::probe(&Roots::default()) {
        println!("{probe:?}");
    }
}

#[test]
fn what_is_in_an_own_group_ends_with_it_whatever_session_it_is_in() {
    if is_missing("cgroup cpu controller", "making a group") {
        return;
    }
    let roots = Roots::default();
    let group = format!("slackline-test-members-{}", std::process::id());
    let state = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(state.path()).unwrap();
    journal.make_cgroup(&roots, &group).unwrap();
    journal.own_members(&group).unwrap();
    let procs = host::cgroup::procs_files(&roots, &group).unwrap();
    let words = host::cgroup::enter_command(&procs);
    // Nobody waits for either of the two, and the second one ignores SIGTERM.
    let script = "setsid sleep 1000 & trap '' TERM; setsid sleep 1000 & exit 0";
    let status = Command::new(&words[0])
        .args(&words[1..])
        .args(["sh", "-c", script])
        .status()
        .unwrap();
    assert!(status.success());
    let members = host::GroupMembers::of(&roots, &group);
    let names = || {
        let pids = members.pids().unwrap().into_iter();
        let names = pids.filter_map(|pid| Some(host::kinship(&roots, pid)?.name));
        names.collect::<Vec<String>>()
    };
    for _ in 0..500 {
        if names() == ["sleep", "sleep"] {
            break;
        }
        sleep(Duration::from_millis(20));
    }
    assert_eq!(names(), ["sleep", "sleep"]);
    // A killed run: another one reads the journal.
    drop(journal);
    let mut journal = Journal::open(state.path()).unwrap();
    let planned = journal.restore(&roots, true).unwrap();
    let said = planned.items.iter().map(|item| item.subject.as_str());
    let said: Vec<&str> = said.filter(|text| text.starts_with("processes")).collect();
    assert_eq!(said, [format!("processes in cgroup {group}")]);
    assert_eq!(names().len(), 2);
    let report = journal.restore(&roots, false).unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert!(names().is_empty(), "{:?}", names());
    assert!(journal.is_empty());
    assert!(host::cgroup::procs_files(&roots, &group).is_err());
}
