//! Tests of commands, their logs and what they leave behind.

use super::*;
use crate::log_end::{FAILED_BYTES, MEASURED_BYTES};

#[test]
fn the_last_200_lines_of_a_log_are_kept_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("service.err");
    assert_eq!(end_of_file(&path, FAILED_BYTES), None);
    std::fs::write(&path, "\n").unwrap();
    assert_eq!(end_of_file(&path, FAILED_BYTES), None);
    let lines: Vec<String> = (1..=300).map(|line| format!("line {line}\0")).collect();
    std::fs::write(&path, lines.join("\n")).unwrap();
    let kept = end_of_file(&path, FAILED_BYTES).unwrap();
    assert_eq!(kept.lines().count(), 200);
    assert!(kept.starts_with("line 101\u{fffd}\n"), "{kept}");
    // Long lines are fewer, and each is whole.
    let long: Vec<String> = (1..=300).map(|_| "y".repeat(999)).collect();
    std::fs::write(&path, long.join("\n")).unwrap();
    let kept = end_of_file(&path, FAILED_BYTES).unwrap();
    assert!(kept.len() <= 64 << 10 && kept.lines().count() > 60);
    assert!(kept.lines().all(|line| line.len() == 999));
    let kept = end_of_file(&path, MEASURED_BYTES).unwrap();
    assert_eq!(kept.lines().count(), 8, "{}", kept.len());
}

/// A shell script of an instance in `dir`.
fn script(dir: &Path, text: &str) -> Launch {
    std::fs::create_dir_all(dir.join("control")).unwrap();
    Launch {
        argv: ["sh", "-c", text].map(str::to_owned).to_vec(),
        dir: dir.to_owned(),
        log: dir.join("control/log"),
        ..Launch::default()
    }
}

#[test]
fn a_flood_is_an_error_and_the_ends_of_a_log_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let flood = script(dir.path(), "head -c 68000000 /dev/zero; echo; echo the end");
    let run = |launch: &Launch| launch.run(KILL_WAIT * 60, &Interrupt::default(), || Ok(()));
    assert_eq!(
        run(&flood),
        Err(RunError::Status("sh printed more than 64 MiB".into()))
    );
    let long = script(dir.path(), "seq 100000; echo the end; exit 1");
    let error = run(&long).unwrap_err().to_string();
    assert_eq!(
        error,
        "sh ended with exit status 1 and printed: 1 | 2 | 3 | … | 99997 | 99998 | 99999 | 100000 | the end. \
         It was run as: sh -c 'seq 100000; echo the end; exit 1'"
    );
}

#[test]
fn what_a_command_left_in_the_background_is_found_and_ended() {
    let dir = tempfile::tempdir().unwrap();
    let leaves = script(
        dir.path(),
        "sleep 1000 >/dev/null 2>&1 & setsid sleep 1000 >/dev/null 2>&1 & exit 0",
    );
    leaves
        .run(KILL_WAIT * 60, &Interrupt::default(), || Ok(()))
        .unwrap();
    end_orphans(&dir.path().join("another"), None);
    assert!(!orphans(dir.path()).is_empty());
    end_orphans(dir.path(), None);
    let left = orphans(dir.path()).into_iter();
    assert_eq!(left.filter(|pid| runs(*pid)).count(), 0);
}

#[test]
fn what_left_the_process_group_and_its_environment_ends_with_the_first_process() {
    let dir = tempfile::tempdir().unwrap();
    let service = script(
        dir.path(),
        "setsid env -i sleep 1000 & echo $! > pid; mv pid left; sleep 1000",
    );
    let mut child = service.spawn().unwrap();
    let left = dir.path().join("left");
    while !left.exists() {
        std::thread::sleep(POLL);
    }
    let left = std::fs::read_to_string(left).unwrap();
    let left: u32 = left.trim().parse().unwrap();
    assert!(runs(left));
    end_group(&mut child, Signal::TERM, Duration::ZERO);
    assert!(!runs(left));
}

#[test]
fn a_link_that_somebody_put_in_the_place_of_a_log_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let says = script(dir.path(), "echo said");
    let other = dir.path().join("other");
    std::fs::write(&other, "of somebody else").unwrap();
    for stream in ["out", "err"] {
        std::os::unix::fs::symlink(&other, says.log_file(stream)).unwrap();
    }
    let said = says.run(KILL_WAIT * 60, &Interrupt::default(), || Ok(()));
    assert_eq!(said, Ok("said\n".to_owned()));
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "of somebody else");
}
