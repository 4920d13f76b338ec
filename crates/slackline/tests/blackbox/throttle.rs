//! `slackline throttle watch` from outside, on a real control group with a real quota.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use host::{CgroupVersion, CpuQuota, Hierarchies, HostError, Journal, Knob, Roots};
use serde_json::Value;

use crate::eventually::found_within;
use crate::toy::{Ended, Toy, kill, skip};

/// A group with a fifth of a core, in every hierarchy, made and removed through an undo journal of
/// its own.
pub(crate) struct Group {
    pub(crate) name: String,
    journal: Journal,
    children: Vec<Child>,
    _state: tempfile::TempDir,
}

/// The largest share of the CPUs that a group can have.
fn first_of_all(roots: &Roots, group: &str) -> Result<(Knob, String), HostError> {
    let (file, most) = match Hierarchies::of(roots).require("cpu")?.0 {
        CgroupVersion::V1 => ("cpu.shares", "262144"),
        CgroupVersion::V2 => ("cpu.weight", "10000"),
    };
    let knob = Knob::Cgroup {
        group: group.to_owned(),
        file: file.to_owned(),
    };
    Ok((knob, most.to_owned()))
}

impl Group {
    /// `None`, with the reason printed, where this process may not make one.
    pub(crate) fn new() -> Option<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self::named(format!("slackline-test-{}-{number}", std::process::id()))
    }

    /// The same below this one.
    pub(crate) fn below(&self) -> Option<Self> {
        Self::named(format!("{}/below.service", self.name))
    }

    /// Takes its quota from it.
    fn lift_quota(&mut self) {
        let unlimited = CpuQuota {
            period_us: 100_000,
            quota_us: None,
            burst_us: None,
        };
        let roots = Roots::default();
        for (knob, value) in unlimited.writes(&roots, &self.name).unwrap() {
            self.journal.write(&roots, &knob, &value).unwrap();
        }
    }

    fn named(name: String) -> Option<Self> {
        let roots = Roots::default();
        let state = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(state.path()).unwrap();
        let quota = CpuQuota {
            period_us: 100_000,
            quota_us: Some(20_000),
            burst_us: None,
        };
        let made = journal.make_cgroup(&roots, &name).and_then(|()| {
            let writes = quota.writes(&roots, &name)?.into_iter();
            // Whatever else wants the CPUs, the quota alone holds the group up.
            let mut writes = writes.chain([first_of_all(&roots, &name)?]);
            writes.try_for_each(|(knob, value)| journal.write(&roots, &knob, &value))
        });
        if let Err(error) = made {
            let _ = journal.restore(&roots, false);
            skip(&error);
            return None;
        }
        Some(Self {
            name,
            journal,
            children: Vec::new(),
            _state: state,
        })
    }

    /// A shell that spins inside the group.
    pub(crate) fn spin(&mut self) {
        self.run("while :; do :; done");
    }

    /// A shell script inside the group.
    pub(crate) fn run(&mut self, script: &str) {
        let files = host::cgroup::procs_files(&Roots::default(), &self.name).unwrap();
        let enter: String = files
            .iter()
            .map(|file| format!("echo $$ > {}; ", file.display()))
            .collect();
        let child = Command::new("sh")
            .args(["-c", &format!("{enter} {script}")])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        self.children.push(child);
        // Until then it is in our own group.
        for file in files {
            let is_in = || {
                std::fs::read_to_string(&file)
                    .unwrap()
                    .lines()
                    .any(|line| line == pid.to_string())
            };
            while !is_in() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        kill(&mut self.children);
        let _ = self.journal.restore(&Roots::default(), false);
    }
}

#[test]
fn two_spinners_in_a_fifth_of_a_core_are_throttled() {
    let Some(mut group) = Group::new() else {
        return;
    };
    group.spin();
    group.spin();
    let toy = Toy::new();
    let arguments = [
        "throttle",
        "watch",
        "--cgroup",
        &group.name,
        "--duration-s",
        "3",
        "--json",
        "-",
    ];
    let ended = Ended::of(toy.slackline(&arguments)).with_code(0);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(report["limit"]["quota_us"], 20_000);
    assert_eq!(
        report["verdict"]["cause"]["cause"], "quota_below_use",
        "{}",
        report["verdict"]
    );
    assert!(
        report["counters"]["throttled_periods"].as_u64() > Some(10),
        "{}",
        report["counters"]
    );
    let used = 1e6 * report["counters"]["cpu_s"].as_f64().unwrap()
        / report["observed"]["duration_us"].as_f64().unwrap();
    assert!((0.15..0.3).contains(&used), "{used}");
    assert_eq!(report["observed"]["names"]["sh"]["threads"], 2);
    // As text, and by a process instead of the group's name.
    let pid = group.children[0].id().to_string();
    let text =
        Ended::of(toy.slackline(&["throttle", "watch", "--pid", &pid, "--duration-s", "0.5"]));
    let text = text.with_code(0).stdout;
    for part in [
        "The quota is too small",
        "0.20 cores in periods of 100 ms, no burst",
        "← quota",
        "sh ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Of a quota that two groups share, one uses nearly all.
#[test]
fn a_quota_above_the_group_is_judged_by_all_who_use_it() {
    let Some(slice) = Group::new() else {
        return;
    };
    let (Some(mut hog), Some(mut victim)) = (
        Group::named(format!("{}/hog", slice.name)),
        Group::named(format!("{}/victim", slice.name)),
    ) else {
        return;
    };
    hog.lift_quota();
    victim.lift_quota();
    hog.spin();
    victim.run("while :; do sleep 0.2; done");
    let toy = Toy::new();
    let cause = |group: &Group| {
        let mut command = toy.slackline(&["throttle", "watch", "--cgroup", &group.name]);
        command.args(["--duration-s", "2", "--json", "-"]);
        let report: Value = serde_json::from_str(&Ended::of(command).with_code(0).stdout).unwrap();
        report["verdict"]["cause"].clone()
    };
    let siblings = serde_json::json!({ "cause": "siblings", "group": slice.name });
    assert_eq!(cause(&victim), siblings);
    assert_eq!(cause(&hog)["cause"], "quota_below_use");
    // What is advised by one group's jobs alone would shrink it for both.
    Ended::of(toy.slackline(&["throttle", "advise", "--cgroup", &victim.name]))
        .with_code(2)
        .saying(&[&format!(
            "for advice on that group, give --cgroup {}",
            slice.name
        )]);
}

#[test]
fn the_counters_are_of_the_time_of_the_watch() {
    let Some(mut group) = Group::new() else {
        return;
    };
    group.spin();
    let toy = Toy::new();
    for duration_s in [0.1, 0.3, 1.0] {
        let watch = || {
            let mut command = toy.slackline(&["throttle", "watch", "--cgroup", &group.name]);
            command.args(["--duration-s", &duration_s.to_string(), "--json", "-"]);
            let ended = Ended::of(command).with_code(0);
            let report: Value = serde_json::from_str(&ended.stdout).unwrap();
            // As many quotas of 20 ms as periods of 100 ms began in it, and what a CPU still had in
            // hand. (The tracepoints of some kernels miss switches, and tell less.)
            let counted_s = report["counters"]["cpu_s"].as_f64().unwrap();
            let watched_s = report["observed"]["duration_us"].as_f64().unwrap() / 1e6;
            let most_s = 0.02 * (watched_s / 0.1 + 1.0) + 0.01;
            let is_counted = (0.5 * duration_s * 0.2..most_s).contains(&counted_s);
            match is_counted && watched_s < duration_s + 0.05 {
                true => Ok(()),
                false => Err(format!(
                    "{duration_s} s: {counted_s} s in {watched_s} s, at most {most_s}"
                )),
            }
        };
        // A busy machine holds up a watch, and not every one.
        found_within(60, watch);
    }
}

#[test]
fn a_group_or_process_that_is_not_there_is_named() {
    let toy = Toy::new();
    let ended = Ended::of(toy.slackline(&["throttle", "watch", "--cgroup", "no/such-group"]));
    ended
        .with_code(2)
        .saying(&["no control group", "no/such-group"]);
    // As another controller has it.
    let path = "/sys/fs/cgroup/memory/no-such-group";
    let ended = Ended::of(toy.slackline(&["throttle", "watch", "--cgroup", path]));
    ended
        .with_code(2)
        .saying(&[path, "name the group from the root of that on"]);
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let pid = gone.id().to_string();
    let ended = Ended::of(toy.slackline(&["throttle", "watch", "--pid", &pid]));
    ended
        .with_code(2)
        .saying(&[&format!("process {pid} does not exist")]);
    let ended = Ended::of(toy.slackline(&["throttle", "watch", "--unit", "no-such.service"]));
    ended
        .with_code(2)
        .saying(&["no-such.service", "is the unit active?"]);
    let ended = Ended::of(toy.slackline(&["throttle", "watch", "--container", "0123456789ab"]));
    ended
        .with_code(2)
        .saying(&["container 0123456789ab", "does it run on this host?"]);
    let ended = Ended::of(toy.slackline(&["throttle", "watch"]));
    ended.with_code(2).saying(&["--pid", "--cgroup"]);
    let ended = Ended::of(toy.slackline(&["throttle", "watch", "--live", "--pid", "1"]));
    ended.with_code(2).saying(&["--live needs a terminal"]);
    for option in ["--cgroup", "--unit", "--container"] {
        let ended = Ended::of(toy.slackline(&["throttle", "watch", option, ""]));
        ended
            .with_code(2)
            .saying(&[option, "is a variable not set?"]);
    }
}

/// As of systemd on the host and of one in a container.
#[test]
fn of_units_of_one_name_none_is_guessed() {
    let (Some(first), Some(second)) = (Group::new(), Group::new()) else {
        return;
    };
    let (Some(_below_first), Some(_below_second)) = (first.below(), second.below()) else {
        return;
    };
    let toy = Toy::new();
    let ended = Ended::of(toy.slackline(&["throttle", "watch", "--unit", "below"]));
    ended
        .with_code(2)
        .saying(&["several control groups are named below.service", "--cgroup"]);
}

#[test]
fn without_a_quota_there_is_nothing_to_throttle() {
    let pid = std::process::id();
    let roots = host::Roots::default();
    let group = host::group_of(&roots, pid).unwrap();
    if host::tightest_quota(&roots, &group).unwrap().is_some() {
        println!("SKIP: the tests themselves run under a quota");
        return;
    }
    let toy = Toy::new();
    let arguments = [
        "throttle",
        "watch",
        "--pid",
        &pid.to_string(),
        "--duration-s",
        "0.3",
    ];
    let text = Ended::of(toy.slackline(&arguments)).with_code(0).stdout;
    assert!(text.starts_with("Nothing to throttle"), "{text}");
}

#[test]
fn a_group_or_process_that_goes_while_it_is_watched_is_said_to_be_gone() {
    let Some(mut group) = Group::new() else {
        return;
    };
    group.spin();
    let toy = Toy::new();
    let pid = group.children[0].id().to_string();
    let mut watches = [["--cgroup", &group.name], ["--pid", &pid]].map(|whom| {
        let mut command = toy.slackline(&["throttle", "watch", "--duration-s", "8"]);
        command
            .args(whom)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Some(command.spawn().unwrap())
    });
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let name = group.name.clone();
    drop(group);
    let mut ended = |which: usize| {
        let child = watches[which].take().unwrap();
        Ended::from(child.wait_with_output().unwrap()).with_code(0)
    };
    let by_name = ended(0).saying(&[&format!("control group {name} vanished after")]);
    assert!(by_name.stdout.contains("sh "), "{}", by_name.stdout);
    ended(1).saying(&["vanished after", &format!("Process {pid} ended meanwhile")]);
}

#[test]
fn without_the_privilege_it_is_named() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    if !rustix::process::geteuid().is_root() {
        skip(&"only root can become somebody else");
        return;
    }
    // Where nobody can reach it.
    let open = tempfile::tempdir().unwrap();
    std::fs::set_permissions(open.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let binary = open.path().join("slackline");
    std::fs::copy(assert_cmd::cargo::cargo_bin!("slackline"), &binary).unwrap();
    let mut command = Command::new(binary);
    command
        .args(["throttle", "watch", "--pid", "1", "--duration-s", "0.2"])
        .current_dir("/")
        .uid(65534)
        .gid(65534);
    Ended::of(command).with_code(3).saying(&["CAP_SYS_ADMIN"]);
}

#[test]
#[ignore = "so many wake-ups disturb the tests that run beside it: cargo test -p slackline -- --ignored"]
fn ten_thousand_threads_are_watched() {
    const THREADS: usize = 10_000;
    let gate = std::sync::Arc::new(std::sync::Barrier::new(THREADS + 1));
    let mut threads = Vec::new();
    for _ in 0..THREADS {
        let gate = std::sync::Arc::clone(&gate);
        let builder = std::thread::Builder::new()
            .name("many".into())
            .stack_size(16 << 10);
        match builder.spawn(move || gate.wait()) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                // The rest of the threads wait for ever, until the tests end.
                skip(&format!("{} threads, and no more: {error}", threads.len()));
                return;
            }
        }
    }
    let toy = Toy::new();
    let pid = std::process::id().to_string();
    let arguments = [
        "throttle",
        "watch",
        "--pid",
        &pid,
        "--duration-s",
        "0.5",
        "--json",
        "-",
    ];
    let ended = Ended::of(toy.slackline(&arguments)).with_code(0);
    gate.wait();
    for thread in threads {
        thread.join().unwrap();
    }
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let many = report["observed"]["names"]["many"]["threads"].as_u64();
    assert!(many >= Some(THREADS as u64), "{many:?}");
}
