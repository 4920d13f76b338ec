//! `slackline isolate` on this host: a `sleep` is the service, a file holds its latency, and a
//! shell loop is the batch work.

mod fixed;
mod kills;
mod observe;
mod others;
mod own;
mod page;
mod recording;
mod sources;
mod standing;
mod view;

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::eventually::{eventually, found_within};
use crate::toy::{Ended, Toy, kill, skip};

/// The controller writes how it stands once a second of its own. What is waited for has to come
/// within so many of these rows, however long a busy machine takes for them.
const ROWS_MAX: usize = 60;
/// A controller that lives and writes no row for so long hangs.
const HANGS_AFTER: Duration = Duration::from_secs(120);
/// Each look starts a process.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A service whose latency a file holds.
struct Bench {
    toy: Toy,
    service: Child,
    name: String,
    /// The controllers that were started.
    controllers: RefCell<Vec<u32>>,
}

impl Bench {
    /// `None` where the host lets nobody make control groups.
    fn new(name: &str) -> Option<Self> {
        let toy = Toy::new();
        let probe = Ended::of(toy.slackline(&["isolate", "selftest", "--json"]));
        if probe.code == 3 || probe.stdout.is_empty() {
            skip(&probe.stderr);
            return None;
        }
        assert_eq!(probe.code, 0, "an actuator fails: {}", probe.stdout);
        let service = Command::new("sleep").arg("1000").spawn().unwrap();
        let bench = Self {
            toy,
            service,
            name: format!("test-{name}-{}", std::process::id()),
            controllers: RefCell::default(),
        };
        bench.latency("1.0 5000");
        bench.config("", "");
        Some(bench)
    }

    /// What the source prints from now on: milliseconds and requests.
    fn latency(&self, text: &str) {
        let next = self.toy.path("latency.next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, self.toy.path("latency")).unwrap();
    }

    /// Writes the configuration: one group that burns CPU, and more.
    fn config(&self, policy: &str, more: &str) {
        let work = format!(
            "name = \"{}\"\ncommand = [\"sh\", \"-c\", \"while :; do :; done\"]\n{more}",
            self.name
        );
        self.config_of(&format!("pid = {}", self.service.id()), &work, policy);
    }

    /// Writes the configuration: the service by this key, and this work.
    fn config_of(&self, service: &str, work: &str, policy: &str) {
        let source = format!(
            "command = [\"cat\", \"{}\"]",
            self.toy.path("latency").display()
        );
        self.config_with_source(service, &source, work, policy);
    }

    fn config_with_source(&self, service: &str, source: &str, work: &str, policy: &str) {
        let text = format!(
            "[service]\nname = \"web\"\n{service}\nobjective = {{ p99_ms = 5, window_s = 1 }}\n\
             latency = {{ {source} }}\n[[best_effort]]\n{work}\n[policy]\nstep_ms = 100\n{policy}\n"
        );
        std::fs::write(self.toy.path("isolate.toml"), text).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Command {
        let mut command = self.toy.slackline(&["isolate", "run"]);
        command.arg(self.toy.path("isolate.toml")).args(arguments);
        command
    }

    /// A controller that has written its first status. The watchdog of a killed one may hold the
    /// lock for a moment after it has restored everything: then another one is started.
    fn start(&self) -> Child {
        let end = Instant::now() + HANGS_AFTER;
        loop {
            let mut child = self
                .run(&[])
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            self.will_end(&child);
            while child.try_wait().unwrap().is_none() {
                if self.status().is_some() {
                    return child;
                }
                assert!(Instant::now() < end, "the first status did not come");
                std::thread::sleep(LOOK_EVERY);
            }
            let ended = Ended::from(child.wait_with_output().unwrap());
            let is_locked = ended.stderr.contains("another slackline is at work");
            assert!(is_locked && Instant::now() < end, "{}", ended.stderr);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A failing test ends this controller before it removes any group: else the controller would
    /// make another one, or freeze one again.
    fn will_end(&self, controller: &Child) {
        self.controllers.borrow_mut().push(controller.id());
    }

    fn status(&self) -> Option<Value> {
        let ended = Ended::of(self.toy.slackline(&["isolate", "status", "--json"]));
        serde_json::from_str(&ended.stdout)
            .ok()
            .filter(|value: &Value| !value.is_null())
    }

    /// The first row of the controller of which this holds. The test fails after [`ROWS_MAX`]
    /// others, or when the controller has ended or hangs.
    fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut rows = Vec::new();
        let mut last = Instant::now();
        loop {
            let status = self.status();
            if let Some(status) = status.as_ref().filter(|status| is_so(status)) {
                return status.clone();
            }
            let at_s = status.as_ref().and_then(|status| status["at_s"].as_f64());
            if at_s.is_some() && rows.last() != Some(&at_s) {
                rows.push(at_s);
                last = Instant::now();
            }
            let seen = || format!("{what} did not come: {status:?}");
            assert!(rows.len() <= ROWS_MAX, "{}", seen());
            assert!(last.elapsed() < HANGS_AFTER, "no more rows; {}", seen());
            assert!(self.has_controller(), "it has ended; {}", seen());
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits until the controller has written so many more rows.
    fn pass(&self, rows: usize) -> Value {
        let seen = RefCell::new(Vec::new());
        self.until("more rows", |status| {
            let at_s = status["at_s"].as_f64();
            let mut seen = seen.borrow_mut();
            if seen.last() != Some(&at_s) {
                seen.push(at_s);
            }
            seen.len() > rows
        })
    }

    /// Whether one of the controllers that were started still runs.
    fn has_controller(&self) -> bool {
        self.controllers.borrow().iter().any(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.is_ok_and(|stat| !stat.contains(") Z "))
        })
    }

    /// Directories of the group that Slackline made, in all hierarchies.
    fn groups(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let tops = std::fs::read_dir("/sys/fs/cgroup")
            .unwrap()
            .flatten()
            .map(|entry| entry.path());
        for top in tops.chain([PathBuf::from("/sys/fs/cgroup")]) {
            let group = top.join(format!("slackline-isolate-{}", self.name));
            if group.is_dir() {
                found.push(group);
            }
        }
        found
    }

    /// The group runs and has a budget. How much of the CPU it then gets with `cpu.idle` is up to
    /// the other programs of the machine.
    fn is_on(status: &Value) -> bool {
        let group = &status["groups"][0];
        group["is_running"] == true
            && group["settings"]["off"].is_null()
            && group["settings"]["quota"].is_string()
    }

    fn is_off(status: &Value) -> bool {
        status["groups"][0]["settings"]["off"] == "off"
    }

    fn has_process(&self, words: &str) -> bool {
        let processes = self.toy.processes();
        processes.iter().any(|process| process.contains(words))
    }

    fn assert_no_process(&self, words: &str) {
        let is_gone = || !self.has_process(words);
        eventually(120, is_gone, || format!("{words} still runs"));
    }

    fn assert_restored(&self) {
        let left = || format!("groups are left: {:?}", self.groups());
        eventually(120, || self.groups().is_empty(), left);
        let left = self.toy.processes();
        let left: Vec<&String> = left
            .iter()
            .filter(|process| process.contains("while :"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

impl Drop for Bench {
    /// A failing test leaves nothing: first the controller ends, then its watchdog or `restore`
    /// thaws and removes groups.
    fn drop(&mut self) {
        for pid in self.controllers.take() {
            kill_if_ours(pid);
        }
        let _ = Ended::of(self.toy.slackline(&["restore"]));
        kill([&mut self.service]);
    }
}

/// A control group of the test's own, in the hierarchy of the cpu controller.
struct Group {
    name: String,
    path: PathBuf,
}

impl Group {
    /// `None` where groups have no CPU quota here.
    fn new(name: &str) -> Option<Self> {
        let v1 = PathBuf::from("/sys/fs/cgroup/cpu");
        let top = if v1.is_dir() {
            v1
        } else {
            PathBuf::from("/sys/fs/cgroup")
        };
        let name = format!("slackline-{name}-{}", std::process::id());
        let group = Self {
            path: top.join(&name),
            name,
        };
        std::fs::create_dir_all(&group.path).unwrap();
        let has_quota = ["cpu.max", "cpu.cfs_quota_us"]
            .iter()
            .any(|file| group.path.join(file).is_file());
        if !has_quota {
            skip(&"the cpu controller is not enabled for groups below the root");
        }
        has_quota.then_some(group)
    }

    /// A process in it.
    fn sleeper(&self) -> Child {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        std::fs::write(self.path.join("cgroup.procs"), child.id().to_string()).unwrap();
        child
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has just been killed is still there for a moment.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.path).is_ok() || !self.path.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Kills a controller that is still a child of this test. One that was waited for is no child any
/// more, so its number may be somebody else's.
fn kill_if_ours(pid: u32) {
    let Some(pid) = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
    else {
        return;
    };
    let wait = |options| rustix::process::waitpid(Some(pid), options);
    if let Ok(None) = wait(rustix::process::WaitOptions::NOHANG) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        let _ = wait(rustix::process::WaitOptions::empty());
    }
}

fn signal(pid: u64, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn a_configuration_that_cannot_be_meant_is_named_with_line_and_key() {
    let toy = Toy::new();
    let path = toy.path("isolate.toml");
    let file = path.display().to_string();
    for (text, code, said) in [
        (
            "[service]\npid = 1\nobjective = { p99_ms = 5 }\n",
            2,
            "isolate.toml:1: service.latency: an objective needs a source",
        ),
        (
            "[service]\nunit = \"nobody.service\"\nobjective = { p99_ms = 5 }\nlatency = { command = [\"true\"] }\n",
            2,
            "isolate.toml:2: service.unit: service nobody.service is not there",
        ),
        (
            "[service]\npid = 4194303\nobjective = { p99_ms = 5 }\nlatency = { command = [\"true\"] }\n",
            2,
            "isolate.toml:2: service.pid: service pid 4194303 is not there: process 4194303 does not exist",
        ),
        (
            "[service]\npid = 1\nobjective = { p99_ms = 5 }\nlatency = { command = [\"no-such-p99\"] }\n",
            2,
            "isolate.toml:4: service.latency.command: service pid 1: there is no program no-such-p99 in PATH",
        ),
        (
            "[service]\npid = 1\nobjective = { p99_ms = 5 }\nlatency = { command = [\"true\"] }\n[[best_effort]]\n\
             command = [\"/etc/passwd\"]\n",
            2,
            "isolate.toml:6: best_effort[0].command: group passwd: /etc/passwd is not executable",
        ),
        (
            "[service]\npid = 1\nobjective = { p99_ms = 5 }\n\
             latency = { wire = { port = 9, pid = 4194303 } }\n",
            2,
            "isolate.toml:4: service.latency.wire.pid: service pid 1: /proc/4194303/ns/net",
        ),
        (
            "[service]\npid = 1\nobjective = { p99_ms = 5 }\nlatency = { command = [\"true\"] }\n[policy]\nname = \"static\"\n\
             static = { quota_cores = 0.001 }\n",
            2,
            "policy.static.quota_cores: the kernel's least quota",
        ),
    ] {
        std::fs::write(&path, text).unwrap();
        Ended::of(toy.slackline(&["isolate", "run", &file]))
            .with_code(code)
            .saying(&[said]);
    }
    let schema = Ended::of(toy.slackline(&["isolate", "schema"])).with_code(0);
    assert!(schema.stdout.contains("best_effort"));
    Ended::of(toy.slackline(&["isolate", "status"]))
        .with_code(1)
        .saying(&["No slackline isolate runs"]);
}

#[test]
fn slack_becomes_batch_work_and_everything_comes_back() {
    let Some(bench) = Bench::new("slack") else {
        return;
    };
    let out = bench.toy.path("run");
    let mut child = bench
        .run(&["--out", &out.display().to_string()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    bench.will_end(&child);
    bench.until("batch work", Bench::is_on);
    // With `cpu.idle` it gets little beside others, but something.
    let is_done = |status: &Value| status["groups"][0]["cpu_s"].as_f64() > Some(0.0);
    bench.until("CPU time of the batch work", is_done);
    // A violation: off within a window, and then said.
    bench.latency("50 5000");
    bench.until("an end of batch work", Bench::is_off);
    bench.latency("1.0 5000");
    // Bad data of a service that is too slow alone must not last for ever: the wait is half a
    // minute at first.
    signal(child.id().into(), rustix::process::Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    bench.assert_restored();
    let page = bench.toy.path("page.html");
    let report = [
        "isolate",
        "report",
        &out.display().to_string(),
        "--html",
        &page.display().to_string(),
    ];
    Ended::of(bench.toy.slackline(&report)).with_code(0);
    let html = std::fs::read_to_string(page).unwrap();
    for text in ["<svg", "Actuator quota", "cpu.idle (start)"] {
        assert!(html.contains(text), "{text}");
    }
    // Batch work that says nothing of its progress is counted by its CPU time.
    let (_, done) = html.split_once("Work done: ").unwrap();
    let (cpu_s, _) = done.split_once(" CPU seconds").unwrap();
    assert!(cpu_s.parse::<f64>().is_ok(), "{cpu_s}");
    // A growth that did harm is reverted, a budget that stood longer is cut.
    let reasons = ["(revert)", "(violation)"];
    assert!(reasons.iter().any(|reason| html.contains(reason)), "{html}");
}

#[test]
fn a_source_that_vanishes_switches_batch_work_off() {
    let Some(bench) = Bench::new("source") else {
        return;
    };
    let mut child = bench.start();
    bench.until("batch work", Bench::is_on);
    std::fs::remove_file(bench.toy.path("latency")).unwrap();
    let status = bench.until("no data", |status| {
        Bench::is_off(status) && status["groups"][0]["reason"] == "no_data"
    });
    assert!(status["services"][0]["no_data"].is_string(), "{status}");
    bench.latency("1.0 5000");
    bench.until("batch work again", Bench::is_on);
    // A service that is gone as well.
    drop(child.stderr.take());
    kill([&mut child]);
    bench.assert_restored();
}

#[test]
fn a_killed_controller_a_killed_watchdog_and_both_leave_nothing() {
    let Some(bench) = Bench::new("kill") else {
        return;
    };
    // The controller: the watchdog restores.
    let mut child = bench.start();
    bench.until("batch work", Bench::is_on);
    kill([&mut child]);
    bench.assert_restored();
    // The watchdog: another one takes its place.
    let mut child = bench.start();
    let first = bench.until("a watchdog", |status| status["watchdog_pid"].is_u64())["watchdog_pid"]
        .as_u64()
        .unwrap();
    signal(first, rustix::process::Signal::KILL);
    let second =
        bench.until("another watchdog", |status| status["watchdog_pid"] != first)["watchdog_pid"]
            .as_u64()
            .unwrap();
    // Both: the next start restores, as `slackline restore` does.
    bench.until("batch work", Bench::is_on);
    signal(second, rustix::process::Signal::KILL);
    kill([&mut child]);
    assert!(!bench.groups().is_empty());
    Ended::of(bench.toy.slackline(&["restore"])).with_code(0);
    bench.assert_restored();
}

#[test]
fn two_controllers_and_two_in_one_group_are_refused() {
    let Some(bench) = Bench::new("two") else {
        return;
    };
    let mut child = bench.start();
    Ended::of(bench.run(&["--duration-s", "1"]))
        .with_code(2)
        .saying(&["another slackline is at work"]);
    // Observing changes nothing, so it may run beside.
    Ended::of(bench.run(&["--duration-s", "1", "--observe"])).with_code(0);
    kill([&mut child]);
    bench.assert_restored();
    let group = format!("slackline-test-{}", std::process::id());
    let top = PathBuf::from("/sys/fs/cgroup/cpu");
    if !top.is_dir() {
        skip(&"no cgroup v1 cpu controller");
        return;
    }
    std::fs::create_dir_all(top.join(&group).join("below")).unwrap();
    let text = format!(
        "[service]\ncgroup = \"{group}\"\nobjective = {{ p99_ms = 5 }}\nlatency = {{ command = [\"true\"] }}\n\
         [[best_effort]]\ncgroup = \"{group}/below\"\n"
    );
    std::fs::write(bench.toy.path("isolate.toml"), text).unwrap();
    let refused = found_within(120, || {
        let refused = Ended::of(bench.run(&[]));
        // The watchdog of the killed controller may hold the lock for a moment.
        match refused.stderr.contains("another slackline is at work") {
            true => Err(refused.stderr),
            false => Ok(refused),
        }
    });
    refused
        .with_code(2)
        .saying(&["use separate control groups"]);
    let check = Ended::of(bench.toy.slackline(&[
        "isolate",
        "check",
        &bench.toy.path("isolate.toml").display().to_string(),
    ]));
    let said = "use separate control groups";
    assert!(check.with_code(1).stdout.contains(said));
    std::fs::remove_dir(top.join(&group).join("below")).unwrap();
    std::fs::remove_dir(top.join(&group)).unwrap();
}

#[test]
fn a_reload_keeps_what_was_learnt_and_a_bad_one_keeps_the_old() {
    let Some(bench) = Bench::new("reload") else {
        return;
    };
    let mut child = bench.start();
    bench.until("batch work", Bench::is_on);
    let before = bench.status().unwrap();
    std::fs::write(bench.toy.path("isolate.toml"), "[service]\n").unwrap();
    signal(child.id().into(), rustix::process::Signal::HUP);
    assert!(Bench::is_on(&bench.pass(3)));
    bench.config("", "progress = { command = \"echo 42\" }\n");
    signal(child.id().into(), rustix::process::Signal::HUP);
    let status = bench.until("progress", |status| status["groups"][0]["progress"] == 42.0);
    assert_eq!(status["pid"], before["pid"]);
    assert!(status["decisions"]["slack"].as_u64() >= before["decisions"]["slack"].as_u64());
    signal(child.id().into(), rustix::process::Signal::TERM);
    child.wait().unwrap();
    bench.assert_restored();
}

#[test]
fn a_service_that_is_too_slow_alone_is_said() {
    let Some(bench) = Bench::new("alone") else {
        return;
    };
    bench.latency("50 5000");
    let mut child = bench.start();
    let says_so = |status: &Value| {
        status["explanation"]
            .as_str()
            .is_some_and(|text| text.contains("while best-effort work was off"))
    };
    let status = bench.until("the sentence", says_so);
    assert!(Bench::is_off(&status));
    signal(child.id().into(), rustix::process::Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    bench.assert_restored();
}

#[test]
fn two_hundred_groups_are_steered() {
    let Some(bench) = Bench::new("many") else {
        return;
    };
    let top = PathBuf::from("/sys/fs/cgroup/cpu");
    if !top.is_dir() {
        skip(&"no cgroup v1 cpu controller");
        return;
    }
    let parent = format!("slackline-many-{}", std::process::id());
    let mut groups = String::new();
    for number in 0..200 {
        std::fs::create_dir_all(top.join(&parent).join(format!("g{number}"))).unwrap();
        groups += &format!("[[best_effort]]\ncgroup = \"{parent}/g{number}\"\n");
    }
    bench.config(
        "name = \"static\"\nstatic = { quota_cores = 2.0, cpu_idle = true }",
        &groups,
    );
    // Groups without a process are not steered: one has one.
    let mut sleeper = Command::new("sleep").arg("1000").spawn().unwrap();
    std::fs::write(
        top.join(&parent).join("g7/cgroup.procs"),
        sleeper.id().to_string(),
    )
    .unwrap();
    let mut child = bench.start();
    let is_set = |status: &Value| status["groups"][8]["settings"]["quota"].is_string();
    let status = bench.until("a quota", is_set);
    assert_eq!(status["groups"].as_array().unwrap().len(), 201);
    assert!(
        status["groups"][9]["settings"]
            .as_object()
            .unwrap()
            .is_empty(),
        "{status}"
    );
    signal(child.id().into(), rustix::process::Signal::TERM);
    child.wait().unwrap();
    let quota = std::fs::read_to_string(top.join(&parent).join("g7/cpu.cfs_quota_us")).unwrap();
    assert_eq!(quota.trim(), "-1");
    kill([&mut sleeper]);
    for number in 0..200 {
        std::fs::remove_dir(top.join(&parent).join(format!("g{number}"))).unwrap();
    }
    std::fs::remove_dir(top.join(&parent)).unwrap();
    bench.assert_restored();
}

#[test]
fn without_the_privilege_the_exit_code_says_so() {
    let Some(bench) = Bench::new("nobody") else {
        return;
    };
    let binary = assert_cmd::cargo::cargo_bin!("slackline");
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(binary)
        .args([
            "--state-dir",
            "/var/lib/slackline-of-nobody",
            "isolate",
            "selftest",
        ]);
    let Ok(output) = command.stdin(Stdio::null()).output() else {
        skip(&"setpriv is missing");
        return;
    };
    let ended = Ended::from(output);
    if ended.stderr.contains("failed to execute") {
        skip(&ended.stderr);
        return;
    }
    ended.with_code(3).saying(&["run as root"]);
    // The state of another user's controller.
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(binary)
        .arg("--state-dir")
        .arg(bench.toy.path("state"))
        .args(["isolate", "status"]);
    Ended::of(command)
        .with_code(3)
        .saying(&["isolate-status.json", "run as root"]);
    drop(bench);
}

#[test]
fn a_simulation_says_that_it_is_one() {
    let toy = Toy::new();
    let path = toy.path("plant.toml");
    std::fs::write(
        &path,
        "duration_s = 600\nload = [0.3]\n[plant]\ncores = 36\n",
    )
    .unwrap();
    let file = path.display().to_string();
    let ended = Ended::of(toy.slackline(&["isolate", "simulate", &file, "--policy", "heracles"]))
        .with_code(0);
    assert!(ended.stdout.starts_with("SIMULATED"), "{}", ended.stdout);
    let ended = Ended::of(toy.slackline(&["isolate", "simulate", &file, "--json"])).with_code(0);
    let all: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(all[0]["is_simulated"], true);
    let ended = Ended::of(toy.slackline(&["isolate", "simulate", &file, "--ceiling"]));
    let said = ended.with_code(0).stdout;
    assert!(
        said.starts_with("SIMULATED") && said.contains("30.0 %"),
        "{said}"
    );
    std::fs::write(&path, "\nduration_s = 0\n").unwrap();
    Ended::of(toy.slackline(&["isolate", "simulate", &file]))
        .with_code(2)
        .saying(&["plant.toml:2: duration_s"]);
}

#[test]
fn a_service_that_restarts_and_a_group_that_vanishes_are_found_again() {
    let Some(bench) = Bench::new("again") else {
        return;
    };
    let (Some(service), Some(work)) = (Group::new("service"), Group::new("work")) else {
        return;
    };
    bench.config_of(
        &format!("cgroup = \"{}\"", service.name),
        &format!("cgroup = \"{}\"", work.name),
        "",
    );
    let (mut first, mut busy) = (service.sleeper(), work.sleeper());
    let mut child = bench.start();
    let is_on = |status: &Value| {
        let group = &status["groups"][0];
        group["settings"]["quota"].is_string() && group["settings"]["off"].is_null()
    };
    bench.until("batch work", is_on);
    kill([&mut first]);
    let status = bench.until("the end of the service", Bench::is_off);
    assert_eq!(status["groups"][0]["reason"], "service_gone");
    let mut second = service.sleeper();
    bench.until("batch work again", is_on);
    kill([&mut busy]);
    std::fs::remove_dir(&work.path).unwrap();
    bench.until("the end of the group", |status| {
        status["groups"][0]["is_running"] == false
    });
    std::fs::create_dir(&work.path).unwrap();
    let mut busy = work.sleeper();
    bench.until("the group again", is_on);
    signal(child.id().into(), rustix::process::Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    kill([&mut second, &mut busy]);
}

#[test]
fn what_the_kernel_refuses_and_what_others_write_is_said_and_left() {
    let Some(bench) = Bench::new("refused") else {
        return;
    };
    let Some(parent) = Group::new("refused") else {
        return;
    };
    let quota = parent.path.join("cpu.cfs_quota_us");
    if !quota.is_file() {
        // Only v1 refuses a quota above that of the parent.
        skip(&"no cgroup v1 cpu controller");
        return;
    }
    std::fs::write(&quota, "20000").unwrap();
    let group = Group {
        name: format!("{}/below", parent.name),
        path: parent.path.join("below"),
    };
    std::fs::create_dir(&group.path).unwrap();
    let mut busy = group.sleeper();
    let service = format!("pid = {}", bench.service.id());
    let work = format!("cgroup = \"{}\"", group.name);
    let fixed = "name = \"static\"\nstatic = { quota_cores = 0.5, weight = 50 }";
    bench.config_of(&service, &work, fixed);
    let mut child = bench.start();
    let status = bench.until("a refusal", |status| status["troubles"]["refused"] == 1);
    let said = status["recent"].to_string();
    assert!(
        said.contains("refused") && said.contains("cpu.cfs_quota_us"),
        "{said}"
    );
    // The other setting is in force all the same.
    assert_eq!(status["groups"][0]["settings"]["weight"], "weight 50");
    let shares = group.path.join("cpu.shares");
    assert_eq!(std::fs::read_to_string(&shares).unwrap().trim(), "512");
    // Somebody else writes it: it stays theirs, also at the end.
    std::fs::write(&shares, "700").unwrap();
    bench.config_of(&service, &work, &fixed.replace("50 }", "60 }"));
    signal(child.id().into(), rustix::process::Signal::HUP);
    let is_yielded = |status: &Value| status["troubles"]["yielded"].as_u64() >= Some(1);
    let status = bench.until("a yield", is_yielded);
    assert!(status["yielded"][0].is_string(), "{status}");
    signal(child.id().into(), rustix::process::Signal::TERM);
    child.wait().unwrap();
    assert_eq!(std::fs::read_to_string(&shares).unwrap().trim(), "700");
    kill([&mut busy]);
}

#[test]
fn batch_work_that_ends_is_started_again() {
    let Some(bench) = Bench::new("ends") else {
        return;
    };
    let marks = bench.toy.path("marks");
    let work = format!(
        "name = \"{}\"\ncommand = [\"sh\", \"-c\", \"echo x >> {}\"]",
        bench.name,
        marks.display()
    );
    bench.config_of(
        &format!("pid = {}", bench.service.id()),
        &work,
        "name = \"none\"",
    );
    let mut child = bench.start();
    let starts = || {
        let text = std::fs::read_to_string(&marks).unwrap_or_default();
        text.lines().count()
    };
    eventually(120, || starts() >= 2, || "it was started once");
    signal(child.id().into(), rustix::process::Signal::TERM);
    child.wait().unwrap();
    bench.assert_restored();
}
