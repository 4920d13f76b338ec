//! A knob's file that is mounted itself, as containers have their configuration: a rename over it
//! is refused, so it is written in place. In a mount namespace of the test's own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use host::{Journal, Knob, Roots};

/// Set where the test runs in its namespace: the directory.
const INSIDE: &str = "SLACKLINE_BIND_MOUNT_INSIDE";

#[test]
fn a_file_that_is_mounted_is_written_in_place_and_restored() {
    if let Some(dir) = std::env::var_os(INSIDE).map(PathBuf::from) {
        let (file, source) = (dir.join("limit"), dir.join("source"));
        let (roots, knob) = (Roots::default(), Knob::File(file.clone()));
        let mut journal = Journal::open(&dir.join("state")).unwrap();
        journal.write(&roots, &knob, "7").unwrap();
        for path in [&file, &source] {
            assert_eq!(fs::read_to_string(path).unwrap(), "7\n");
        }
        drop(journal);
        let mut journal = Journal::open(&dir.join("state")).unwrap();
        assert!(journal.restore(&roots, false).unwrap().is_complete());
        assert_eq!(fs::read_to_string(&source).unwrap(), "5\n");
        assert!(!dir.join(".limit.slackline").exists());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    for name in ["limit", "source"] {
        fs::write(dir.path().join(name), "5\n").unwrap();
    }
    let script = format!("mount --bind {at}/source {at}/limit || exit 77; exec \"$@\"");
    let run = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("a_file_that_is_mounted_is_written_in_place_and_restored")
        .env(INSIDE, dir.path())
        .output();
    let skip = |why: &dyn std::fmt::Display| {
        assert!(
            std::env::var_os("SLACKLINE_CI").is_none(),
            "SKIP in CI: {why}"
        );
        println!("SKIP: {why}");
    };
    let output = match run {
        Ok(output) => output,
        Err(error) => return skip(&error),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || said.contains("unshare failed") {
        return skip(&said);
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{said}");
    assert!(printed.contains("1 passed"), "{printed}");
}
