//! What `isolate` must not take for batch work, and what it has to end as its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{Bench, Group, signal};
use crate::eventually::eventually;
use crate::toy::{Ended, kill, skip, through};

/// Nothing is set whatever is named, should a refusal fail.
const NO_POLICY: &str = "name = \"none\"";

fn end(child: Child) -> Ended {
    signal(child.id().into(), rustix::process::Signal::TERM);
    Ended::from(child.wait_with_output().unwrap()).with_code(143)
}

fn check(bench: &Bench) -> Ended {
    let file = bench.toy.path("isolate.toml").display().to_string();
    Ended::of(bench.toy.slackline(&["isolate", "check", &file]))
}

/// `run`, also observing, and `check` say these of the configuration.
fn assert_refused(bench: &Bench, said: &[&str]) {
    for more in [
        &["--duration-s", "1"][..],
        &["--duration-s", "1", "--observe"],
    ] {
        Ended::of(bench.run(more)).with_code(2).saying(said);
    }
    let checked = check(bench);
    let text = checked.stdout + &checked.stderr;
    assert!([1, 2].contains(&checked.code), "{text}");
    for said in said {
        assert!(text.contains(said), "{said:?} is not in: {text}");
    }
}

/// The processes with exactly this command line.
fn running(bench: &Bench, command: &str) -> usize {
    let processes = bench.toy.processes();
    let is_it = |process: &&String| {
        let words = process.split_once(": ").map(|(_, words)| words.trim());
        words == Some(command)
    };
    processes.iter().filter(is_it).count()
}

#[test]
fn a_process_that_has_to_go_on_is_refused_by_line_and_key() {
    let Some(bench) = Bench::new("needed") else {
        return;
    };
    let Some(service) = Group::new("needed-service") else {
        return;
    };
    let mut first = service.sleeper();
    let mut second = service.sleeper();
    let by_group = format!("cgroup = \"{}\"", service.name);
    let kernel = std::fs::read_to_string("/proc/2/comm").unwrap_or_default();
    let mut cases = vec![
        (0, "must be the id of a process".to_owned()),
        (4_194_303, "process 4194303 does not exist".to_owned()),
        (1, "this is the first process of this host".to_owned()),
        // The controller is started by this test.
        (std::process::id(), format!("(pid {})", std::process::id())),
        (
            second.id(),
            format!("this is process {} of service web", second.id()),
        ),
    ];
    if kernel.trim() == "kthreadd" {
        cases.push((2, "process 2 is a thread of the kernel".to_owned()));
    }
    for (pid, said) in cases {
        bench.config_of(&by_group, &format!("pid = {pid}"), NO_POLICY);
        assert_refused(&bench, &["isolate.toml:7: best_effort[0].pid: ", &said]);
    }
    let by_pid = format!("pid = {}", first.id());
    bench.config_of(&by_pid, &by_pid, NO_POLICY);
    assert_refused(
        &bench,
        &["isolate.toml:7: best_effort[0].pid: service.pid already names"],
    );
    kill([&mut first, &mut second]);
}

#[test]
fn a_group_that_holds_the_controller_is_refused_and_left_alone() {
    let Some(bench) = Bench::new("holds") else {
        return;
    };
    let Some(work) = Group::new("holds") else {
        return;
    };
    let service = format!("pid = {}", bench.service.id());
    let of_group = format!("cgroup = \"{}\"", work.name);
    bench.config_of(&service, &of_group, NO_POLICY);
    // A shell in the group becomes the controller.
    let procs = work.path.join("cgroup.procs");
    let enter = format!("echo $$ > {}; exec \"$@\"", procs.display());
    let said = "isolate.toml:7: best_effort[0].cgroup: control group ";
    let inside = through(
        &["sh", "-c", &enter, "sh"],
        &bench.run(&["--duration-s", "1"]),
    );
    Ended::of(inside)
        .with_code(2)
        .saying(&[said, "holds slackline itself", "systemd unit"]);
    let file = bench.toy.path("isolate.toml").display().to_string();
    let checked = bench.toy.slackline(&["isolate", "check", &file]);
    let checked = Ended::of(through(&["sh", "-c", &enter, "sh"], &checked)).with_code(1);
    assert!(checked.stdout.contains(said), "{}", checked.stdout);
    // It comes in later, and goes again.
    let mut busy = work.sleeper();
    let fixed = "name = \"static\"\nstatic = { weight = 50 }";
    bench.config_of(&service, &of_group, fixed);
    let child = bench.start();
    let is_set = |status: &Value| status["groups"][0]["settings"]["weight"] == "weight 50";
    bench.until("a weight", is_set);
    let weight = || {
        let files = ["cpu.weight", "cpu.shares"];
        let mut texts = files.map(|file| std::fs::read_to_string(work.path.join(file)).ok());
        texts.iter_mut().find_map(Option::take).unwrap()
    };
    assert!(
        ["50\n", "512\n"].contains(&weight().as_str()),
        "{}",
        weight()
    );
    std::fs::write(&procs, child.id().to_string()).unwrap();
    bench.until("a group that is left alone", |status| {
        let group = &status["groups"][0];
        group["is_running"] == false && group["settings"]["weight"].is_null()
    });
    assert!(
        ["100\n", "1024\n"].contains(&weight().as_str()),
        "{}",
        weight()
    );
    let outside = work.path.parent().unwrap().join("cgroup.procs");
    std::fs::write(outside, child.id().to_string()).unwrap();
    bench.until("the weight again", is_set);
    let name = work.name.rsplit('/').next().unwrap();
    end(child).saying(&[
        &format!("best-effort group {name} is left alone: control group "),
        &format!("best-effort group {name} is steered again"),
    ]);
    assert!(
        ["100\n", "1024\n"].contains(&weight().as_str()),
        "{}",
        weight()
    );
    kill([&mut busy]);
}

#[test]
fn a_reload_that_names_what_must_not_be_named_keeps_the_old_configuration() {
    let Some(bench) = Bench::new("keeps") else {
        return;
    };
    let child = bench.start();
    bench.until("batch work", Bench::is_on);
    let service = format!("pid = {}", bench.service.id());
    let itself = format!("pid = {}", child.id());
    bench.config_of(&service, &itself, "");
    signal(child.id().into(), rustix::process::Signal::HUP);
    assert!(Bench::is_on(&bench.pass(4)));
    end(child).saying(&[
        "the old configuration stays in force: ",
        "isolate.toml:7: best_effort[0].pid: this is slackline itself",
    ]);
    bench.assert_restored();
}

#[test]
fn a_group_under_two_names_is_refused_and_each_name_has_a_group() {
    let Some(bench) = Bench::new("names") else {
        return;
    };
    let Some(work) = Group::new("names") else {
        return;
    };
    let service = format!("pid = {}", bench.service.id());
    let (name, path) = (&work.name, work.path.display());
    let first = format!("cgroup = \"{name}\"");
    for second in [format!("/{name}/"), format!("{path}/")] {
        let both = format!("{first}\n[[best_effort]]\nname = \"b\"\ncgroup = \"{second}\"");
        bench.config_of(&service, &both, NO_POLICY);
        assert_refused(
            &bench,
            &["isolate.toml:10: best_effort[1].cgroup: best_effort[0].cgroup "],
        );
    }
    let service_by_group = format!("cgroup = \"{name}\"");
    bench.config_of(&service_by_group, &first, NO_POLICY);
    assert_refused(
        &bench,
        &["isolate.toml:7: best_effort[0].cgroup: service.cgroup already names"],
    );
    // Names that differ in what a directory cannot have.
    let command = "command = [\"sleep\", \"1000\"]";
    let named = |name: &str| format!("name = \"{} {name}\"\n{command}", bench.name);
    let both = format!("{}\n[[best_effort]]\n{}", named("a b"), named("a/b"));
    bench.config_of(&service, &both, NO_POLICY);
    let child = bench.start();
    let status = bench.until("both", |status| {
        (0..2).all(|index| status["groups"][index]["is_running"] == true)
    });
    let group = |index: usize| {
        let group = status["groups"][index]["group"].as_str();
        group.unwrap().to_owned()
    };
    assert_ne!(group(0), group(1));
    end(child);
    let left = |group: &str| work.path.parent().unwrap().join(group).exists();
    assert!(!left(&group(0)) && !left(&group(1)), "{status}");
}

#[test]
fn a_group_that_is_not_there_yet_is_said_and_so_is_its_coming() {
    let Some(bench) = Bench::new("absent") else {
        return;
    };
    let Some(work) = Group::new("absent") else {
        return;
    };
    std::fs::remove_dir(&work.path).unwrap();
    let service = format!("pid = {}", bench.service.id());
    bench.config_of(&service, &format!("cgroup = \"{}\"", work.name), "");
    let child = bench.start();
    bench.pass(3);
    std::fs::create_dir(&work.path).unwrap();
    let mut busy = work.sleeper();
    bench.until("a budget", Bench::is_on);
    let ended = end(child);
    for said in ["is not there: ", "is there now: control group "] {
        let lines = ended.stderr.lines().filter(|line| line.contains(said));
        assert_eq!(lines.count(), 1, "{}", ended.stderr);
    }
    kill([&mut busy]);
}

#[test]
fn what_a_command_leaves_ends_before_it_is_started_again_and_at_the_end() {
    let Some(bench) = Bench::new("daemons") else {
        return;
    };
    let service = format!("pid = {}", bench.service.id());
    let marks = bench.toy.path("marks");
    let script = format!("echo x >> {}; setsid sleep 7771 & exit 0", marks.display());
    let work = format!(
        "name = \"{}\"\ncommand = [\"sh\", \"-c\", \"{script}\"]",
        bench.name
    );
    bench.config_of(&service, &work, NO_POLICY);
    let child = bench.start();
    let starts = || {
        let text = std::fs::read_to_string(&marks).unwrap_or_default();
        text.lines().count()
    };
    let again = || {
        assert!(running(&bench, "sleep 7771") < 2, "they pile up");
        starts() >= 3
    };
    eventually(120, again, || format!("{} starts", starts()));
    let ended = end(child);
    let said = format!(
        "best-effort group {}: its command has ended and left processes",
        bench.name
    );
    let lines = ended.stderr.lines().filter(|line| line.contains(&said));
    assert_eq!(lines.count(), 1, "{}", ended.stderr);
    assert!(!ended.stderr.contains("COULD NOT"), "{}", ended.stderr);
    assert_eq!(running(&bench, "sleep 7771"), 0);
    bench.assert_restored();
}

#[test]
fn what_a_command_of_a_killed_controller_left_is_ended_with_its_group() {
    let Some(bench) = Bench::new("orphans") else {
        return;
    };
    let service = format!("pid = {}", bench.service.id());
    // One of the two ignores SIGTERM.
    let script = "setsid sleep 7772 & trap '' TERM; setsid sleep 7773 & exit 0";
    let work = format!(
        "name = \"{}\"\ncommand = [\"sh\", \"-c\", \"{script}\"]",
        bench.name
    );
    bench.config_of(&service, &work, NO_POLICY);
    let both = |wanted: usize| {
        let count = || ["sleep 7772", "sleep 7773"].map(|it| running(&bench, it));
        let are_so = || count() == [wanted; 2];
        eventually(120, are_so, || format!("{:?} run", count()));
    };
    // The watchdog ends them.
    let mut child = bench.start();
    both(1);
    kill([&mut child]);
    both(0);
    bench.assert_restored();
    // Without a watchdog, `restore` does, and says so.
    let mut child = bench.start();
    both(1);
    let status = bench.until("a watchdog", |status| status["watchdog_pid"].is_u64());
    let watchdog = status["watchdog_pid"].as_u64().unwrap();
    signal(watchdog, rustix::process::Signal::KILL);
    kill([&mut child]);
    let restored = Ended::of(bench.toy.slackline(&["restore"])).with_code(0);
    let said = format!(
        "processes in cgroup slackline-isolate-{}: ended",
        bench.name
    );
    assert!(restored.stdout.contains(&said), "{}", restored.stdout);
    both(0);
    bench.assert_restored();
}

#[test]
fn a_process_is_adopted_with_its_children_and_a_later_one_is_not() {
    let Some(bench) = Bench::new("adopted") else {
        return;
    };
    let service = format!("pid = {}", bench.service.id());
    let mut busy = Command::new("sh")
        .args(["-c", "sleep 1001 & sleep 1002; sleep 1003"])
        .spawn()
        .unwrap();
    let id = busy.id();
    bench.config_of(&service, &format!("pid = {id}"), "");
    let child = bench.start();
    let status = bench.until("a budget", Bench::is_on);
    let group = status["groups"][0]["group"].as_str().unwrap();
    let is_in = |pid: u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        text.contains(&format!("/{group}\n"))
    };
    assert!(is_in(id));
    // Its children outlive it, and are steered on.
    kill([&mut busy]);
    bench.pass(4);
    assert!(Bench::is_on(&bench.pass(1)));
    for sleep in ["sleep 1001", "sleep 1002"] {
        end_process(sleep, group);
    }
    bench.until("the end of all", |status| {
        status["groups"][0]["is_running"] == false
    });
    bench.pass(3);
    let said = format!("process {id} has ended");
    end(child).saying(&[&said]);
}

/// Ends the process with this command line in a group.
fn end_process(command: &str, group: &str) {
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let read =
            |file: &str| std::fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        let words = read("cmdline").replace('\0', " ");
        let is_it = words.trim() == command && read("cgroup").contains(group);
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if let Some(pid) = pid.filter(|_| is_it) {
            signal(pid, rustix::process::Signal::TERM);
        }
    }
}

#[test]
fn one_controller_acts_on_a_machine_whatever_its_state_directory() {
    let (Some(one), Some(other)) = (Bench::new("one"), Bench::new("other")) else {
        return;
    };
    let run = |arguments: &[&str]| {
        let mut command = other.run(arguments);
        command.env("SLACKLINE_RUN_DIR", one.toy.path("machine"));
        Ended::of(command)
    };
    let child = one.start();
    one.until("batch work", Bench::is_on);
    let lock = one.toy.path("machine/isolate/lock").display().to_string();
    run(&["--duration-s", "1"]).with_code(2).saying(&[
        "another slackline is at work",
        &lock,
        &child.id().to_string(),
    ]);
    assert!(other.groups().is_empty(), "{:?}", other.groups());
    run(&["--duration-s", "1", "--observe"]).with_code(0);
    end(child);
    one.assert_restored();
    run(&["--duration-s", "1"]).with_code(0);
    other.assert_restored();
}

/// A file system of 64 KiB that is full, until this is dropped.
struct Full(PathBuf);

impl Full {
    fn mount(directory: &Path) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
            .arg(directory);
        let mounted = mount.stderr(Stdio::null()).status();
        if !mounted.is_ok_and(|status| status.success()) {
            skip(&"mounting a tmpfs needs root");
            return None;
        }
        let full = Self(directory.to_owned());
        let _ = std::fs::write(directory.join("filler"), vec![0; 128 << 10]);
        Some(full)
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_state_directory_that_cannot_be_written_ends_the_run_at_its_start() {
    let Some(bench) = Bench::new("full") else {
        return;
    };
    let Some(full) = Full::mount(&bench.toy.path("state")) else {
        return;
    };
    for (more, said) in [
        (None, "journal.jsonl"),
        (Some("--observe"), "isolate-status.json"),
    ] {
        let arguments: Vec<&str> = ["--duration-s", "1"].into_iter().chain(more).collect();
        Ended::of(bench.run(&arguments))
            .with_code(2)
            .saying(&[said, "No space left on device"]);
    }
    assert!(bench.groups().is_empty(), "{:?}", bench.groups());
    drop(full);
    let child = bench.start();
    end(child);
    bench.assert_restored();
}

#[test]
fn a_journal_that_cannot_be_written_later_does_not_end_the_run() {
    let Some(bench) = Bench::new("filled") else {
        return;
    };
    let state = bench.toy.path("state");
    let Some(full) = Full::mount(&state) else {
        return;
    };
    let filler = state.join("filler");
    std::fs::remove_file(&filler).unwrap();
    let mut child = bench.start();
    bench.until("batch work", Bench::is_on);
    // Every byte is taken: then the command ends, and another one needs a record of its group.
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[0; 64]).is_ok() {}
    for group in bench.groups() {
        let text = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        for pid in text.lines().filter_map(|line| line.parse().ok()) {
            signal(pid, rustix::process::Signal::KILL);
        }
    }
    std::thread::sleep(std::time::Duration::from_secs(8));
    assert!(child.try_wait().unwrap().is_none(), "the controller ended");
    drop(file);
    std::fs::remove_file(&filler).unwrap();
    bench.until("batch work again", Bench::is_on);
    end(child);
    bench.assert_restored();
    drop(full);
}
