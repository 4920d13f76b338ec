//! Recordings that cannot be begun, written or read.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{Bench, signal};
use crate::toy::{Ended, Toy, skip};

/// A file system of 64 KiB, mounted until the end of a test.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn new(at: &'a Path) -> Option<Self> {
        std::fs::create_dir(at).unwrap();
        let words = ["-t", "tmpfs", "-o", "size=64k", "none"];
        let mounted = Command::new("mount").args(words).arg(at).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            skip(&"no right to mount a tmpfs");
            return None;
        }
        Some(Self(at))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

/// A controller that records into this directory.
fn recording(bench: &Bench, out: &Path) -> Child {
    let child = bench
        .run(&["--out", &out.display().to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    bench.will_end(&child);
    child
}

/// Waits until the recording pauses for this reason. The controller goes on all the same; it says
/// so once, and at its end everything is restored.
fn goes_on_without(bench: &Bench, child: Child, why: &str) {
    let pauses = |status: &Value| {
        let trouble = status["recording_trouble"].as_str();
        trouble.is_some_and(|text| text.contains(why))
    };
    let before = bench.until("a pause", pauses);
    assert_eq!(before["pid"], child.id());
    let shown = Ended::of(bench.toy.slackline(&["isolate", "status"])).with_code(0);
    let said = "Note: the recording has paused since";
    assert!(shown.stdout.contains(said), "{}", shown.stdout);
    // It still switches batch work off.
    bench.latency("50 5000");
    bench.until("an end of batch work", Bench::is_off);
    signal(child.id().into(), rustix::process::Signal::TERM);
    let ended = Ended::from(child.wait_with_output().unwrap()).with_code(143);
    let count = ended.stderr.matches("the recording has paused").count();
    assert_eq!(count, 1, "{}", ended.stderr);
    bench.assert_restored();
}

#[test]
fn a_recording_whose_directory_is_removed_does_not_end_the_controller() {
    let Some(bench) = Bench::new("removed") else {
        return;
    };
    let out = bench.toy.path("run");
    let child = recording(&bench, &out);
    bench.until("batch work", Bench::is_on);
    std::fs::remove_dir_all(&out).unwrap();
    goes_on_without(&bench, child, "has been removed");
}

#[test]
fn a_disk_that_fills_does_not_end_the_controller_and_what_is_recorded_can_be_read() {
    let Some(bench) = Bench::new("full") else {
        return;
    };
    let at = bench.toy.path("disk");
    let Some(_disk) = SmallDisk::new(&at) else {
        return;
    };
    let out = at.join("run");
    let child = recording(&bench, &out);
    bench.until("batch work", Bench::is_on);
    // The rest of the disk.
    let _ = std::fs::write(at.join("rest"), [0; 1 << 16]);
    goes_on_without(&bench, child, "No space left on device");
    let (out, page) = (out.display().to_string(), bench.toy.path("page.html"));
    let page = page.display().to_string();
    Ended::of(
        bench
            .toy
            .slackline(&["isolate", "report", &out, "--html", &page]),
    )
    .with_code(0);
}

#[test]
fn the_recording_of_another_run_is_not_replaced_and_a_reload_goes_on_with_its_own() {
    let Some(bench) = Bench::new("there") else {
        return;
    };
    let out = bench.toy.path("run");
    let file = out.join("run.jsonl");
    let words = ["--out", &out.display().to_string(), "--duration-s", "1"];
    // A run that does not begin leaves no recording in the way of the next one.
    bench.config_of("unit = \"nobody.service\"", "command = [\"true\"]", "");
    Ended::of(bench.run(&words)).with_code(2);
    assert!(!file.exists());
    bench.config("", "");
    let mut child = recording(&bench, &out);
    bench.until("batch work", Bench::is_on);
    let lines = || std::fs::read_to_string(&file).unwrap().lines().count();
    let before = lines();
    signal(child.id().into(), rustix::process::Signal::HUP);
    bench.pass(2);
    assert!(lines() > before);
    signal(child.id().into(), rustix::process::Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    bench.assert_restored();
    let recorded = std::fs::read(&file).unwrap();
    Ended::of(bench.run(&words))
        .with_code(2)
        .saying(&["run.jsonl is the recording of another run: name another directory"]);
    assert_eq!(std::fs::read(&file).unwrap(), recorded);
}

#[test]
fn a_recording_without_a_row_has_no_page_and_a_damaged_line_is_named_once() {
    let toy = Toy::new();
    let (out, page) = (toy.path("run"), toy.path("page.html"));
    std::fs::create_dir(&out).unwrap();
    let words = [out.display().to_string(), page.display().to_string()];
    for (text, said) in [
        ("", "run.jsonl has no row: "),
        ("{\"note\":{\"at_s\":1.0,\"text\":\"x\"}}\n", "has no row: "),
        ("garbage\n", "run.jsonl:1: expected value\n"),
    ] {
        std::fs::write(out.join("run.jsonl"), text).unwrap();
        Ended::of(toy.slackline(&["isolate", "report", &words[0], "--html", &words[1]]))
            .with_code(2)
            .saying(&[said]);
        assert!(!page.exists(), "{text}");
    }
}
