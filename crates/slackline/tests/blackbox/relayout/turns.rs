//! What one Slackline leaves to the next: half done work, verified layouts, processes that another
//! one is at work on, and a disk that is full.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use relayout::{ManifestStore, Process, ProcessState, RelayoutStatus};
use serde_json::Value;

use super::faults::{Program, as_str, is_root};
use crate::eventually::eventually;
use crate::toy::{Ended, Toy};

fn lay_out(toy: &Toy, program: &Program) {
    program.lay_out(toy);
    assert!(is_laid_out(program));
}

fn is_laid_out(program: &Program) -> bool {
    let process = Process::open(program.pid).unwrap();
    let objects = process.objects().unwrap();
    objects.iter().any(|object| {
        let file = process.file(object).unwrap();
        process.text_difference(object, &file).unwrap().is_some()
    })
}

/// As it would be where that process, if any, drives it.
fn put_down(toy: &Toy, program: &Program, state: ProcessState, by: Option<u32>) {
    let start_time = |pid| host::start_time(&host::Roots::default(), pid).unwrap();
    let store = ManifestStore::open(&toy.path("state")).unwrap();
    let mut status = RelayoutStatus::new(program.pid, start_time(program.pid), "program");
    status.state = state;
    status.by = by.map(|pid| (pid, start_time(pid)));
    status.save(&store).unwrap();
}

#[test]
fn a_restore_undoes_what_was_left_half_done_and_keeps_what_was_verified() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    let mut program = Program::start(&["plain"]);
    for (state, stays) in [
        (ProcessState::Verifying, false),
        (ProcessState::Optimized, true),
        (ProcessState::Reoptimizing, false),
    ] {
        lay_out(&toy, &program);
        put_down(&toy, &program, state, None);
        let restored = toy.restore().with_code(0);
        let said = match stays {
            true => "left alone, as it was shown to be better",
            false => "restored to the original bytes",
        };
        assert!(restored.stdout.contains(said), "{}", restored.stdout);
        assert_eq!(is_laid_out(&program), stays, "{state}");
        if stays {
            let pid = program.pid.to_string();
            Ended::of(toy.slackline(&["relayout", "switch", &pid, "0"])).with_code(0);
            let status = Ended::of(toy.slackline(&["relayout", "status"])).stdout;
            assert!(status.contains("in its original layout"), "{status}");
            program.roll_back(&toy);
        }
    }
    program.assert_as_before();
    lay_out(&toy, &program);
    put_down(&toy, &program, ProcessState::Optimized, None);
    program.quit();
    let restored = toy.restore().with_code(0);
    assert!(restored.stdout.contains("gone"), "{}", restored.stdout);
    toy.restore().with_code(0).saying(&["Nothing to restore"]);
}

#[test]
fn a_process_that_another_slackline_is_at_work_on_is_left_to_it() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    let mut program = Program::start(&["plain"]);
    lay_out(&toy, &program);
    let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
    put_down(&toy, &program, ProcessState::Verifying, Some(other.id()));
    let at_work = format!("slackline {} is working on", other.id());
    Ended::of(toy.slackline(&as_str(&program.start_arguments())))
        .with_code(2)
        .saying(&[&at_work]);
    let restored = toy.restore().with_code(0);
    assert!(restored.stdout.contains(&at_work), "{}", restored.stdout);
    assert!(is_laid_out(&program));
    other.kill().unwrap();
    other.wait().unwrap();
    let status = Ended::of(toy.slackline(&["relayout", "status"])).with_code(0);
    assert!(
        status.stdout.contains("slackline --state-dir"),
        "{}",
        status.stdout
    );
    let restored = toy.restore().with_code(0);
    assert!(
        restored.stdout.contains("restored to"),
        "{}",
        restored.stdout
    );
    program.assert_as_before();
    program.quit();
}

#[test]
fn a_start_undoes_what_was_left_half_done_and_keeps_what_was_verified() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    for (state, code, stays) in [
        (ProcessState::Verifying, 1, false),
        (ProcessState::Optimized, 0, true),
    ] {
        let mut program = Program::start(&["plain"]);
        lay_out(&toy, &program);
        put_down(&toy, &program, state, None);
        program.say("i");
        let ended = Ended::of(toy.slackline(&as_str(&program.start_arguments()))).with_code(code);
        let printed: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(printed["processes"][0]["generation"], u32::from(stays));
        assert_eq!(is_laid_out(&program), stays, "{state}");
        if stays {
            program.roll_back(&toy);
        }
        program.quit();
    }
}

#[test]
fn a_start_that_could_not_undo_what_nobody_verified_says_so_and_ends_with_4() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    let mut program = Program::start(&["plain"]);
    lay_out(&toy, &program);
    put_down(&toy, &program, ProcessState::Verifying, None);
    program.say("t");
    let ended = Ended::of(toy.slackline(&as_str(&program.start_arguments()))).with_code(4);
    let printed: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(printed["processes"][0]["generation"], 1, "{printed}");
    assert!(is_laid_out(&program));
    program.quit();
}

#[test]
fn a_watch_leaves_an_idle_process_alone_whatever_was_kept_of_it() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    let mut program = Program::start(&["plain"]);
    // So that there is a profile, by which it could be laid out.
    lay_out(&toy, &program);
    program.roll_back(&toy);
    program.say("i");
    let pid = program.pid.to_string();
    let mut start = toy.slackline(&["relayout", "start", "--pid", &pid, "--every-s", "1"]);
    start.stdout(Stdio::null()).stderr(Stdio::piped());
    let watch = start.spawn().unwrap();
    let status = || Ended::of(toy.slackline(&["relayout", "status"])).stdout;
    eventually(60, || status().contains("idle: it uses"), status);
    assert!(!is_laid_out(&program));
    Ended::of(toy.slackline(&["relayout", "stop"])).with_code(0);
    let ended = watch.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(128 + 15));
    assert!(!is_laid_out(&program));
    program.quit();
}

#[test]
fn a_stop_ends_everybody_who_watches() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    let watch = |name: &str| {
        let mut start = toy.slackline(&["relayout", "start", "--exe", name]);
        start.stdout(Stdio::null()).stderr(Stdio::piped());
        start.spawn().unwrap()
    };
    let watchers = [watch("no-such-program"), watch("nor-such-a-one")];
    let files = || {
        let entries = fs::read_dir(toy.path("state/relayout"));
        let names = entries.into_iter().flatten().flatten();
        names
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("watcher"))
            .count()
    };
    eventually(20, || files() == 2, || "they do not begin");
    Ended::of(toy.slackline(&["relayout", "stop"]))
        .with_code(0)
        .saying(&["Stopped"]);
    for watcher in watchers {
        let ended = watcher.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(128 + 15));
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(said.starts_with("Watching every no"), "{said}");
    }
    Ended::of(toy.slackline(&["relayout", "stop"]))
        .with_code(0)
        .saying(&["Nobody watches"]);
}

/// A file system of some megabytes, gone with it.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn at(path: PathBuf) -> Self {
        fs::create_dir_all(&path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]);
        assert!(mount.arg(&path).status().unwrap().success());
        Self(path)
    }

    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("filler")).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_keeps_no_process_from_its_original_code() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    let disk = SmallDisk::at(toy.path("state"));
    let mut program = Program::start(&["plain"]);
    lay_out(&toy, &program);
    disk.fill();
    let restored = toy.restore().with_code(0);
    assert!(
        restored.stdout.contains("restored to the original bytes"),
        "{}",
        restored.stdout
    );
    program.roll_back_the_rest(&toy);
    program.assert_as_before();
    fs::remove_file(disk.path().join("filler")).unwrap();
    toy.restore().with_code(0);
    program.quit();
}
