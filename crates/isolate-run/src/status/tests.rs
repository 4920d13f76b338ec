//! The status, written and read by others.

use super::*;

/// A status of this process without services and groups.
pub(crate) fn status() -> IsolationStatus {
    let text = format!(
        r#"{{ "time": "{}", "at_s": 1.0, "pid": {}, "watchdog_pid": null, "policy": "slackline",
            "observe": false, "explanation": "", "services": [], "groups": [], "cores": 2.0,
            "busy_cores": 0.0, "own_cores": 0.0, "step_s": 0.25, "decisions": {{}},
            "troubles": {{}}, "recent": [], "yielded": [] }}"#,
        jiff::Timestamp::now(),
        std::process::id()
    );
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_state_that_is_older_than_five_steps_and_five_seconds_is_not_that_of_now() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = StatusFile::default();
    let mut written = status();
    let mut read_again = |ago_s: i64, step_s: f64| {
        let then = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(ago_s);
        written.time = then.to_string();
        written.step_s = step_s;
        assert_eq!(file.write(dir.path(), &written, Instant::now()), None);
        read(dir.path()).unwrap().unwrap()
    };
    for (ago_s, step_s, is_old) in [
        (0, 0.25, false),
        (4, 0.25, false),
        (7, 0.25, true),
        (7, 2.0, false),
        (12, 2.0, true),
    ] {
        let found = read_again(ago_s, step_s);
        let age_s = found.age_s.unwrap();
        assert!(age_s >= ago_s as f64 - 0.001, "{age_s}");
        assert_eq!(found.too_old_s().is_some(), is_old, "{ago_s} s, {step_s} s");
    }
    // A clock that was set back says nothing.
    assert_eq!(read_again(-100, 0.25).age_s, None);
}

#[test]
fn a_status_that_cannot_be_written_is_said_once_and_so_is_its_return() {
    let dir = tempfile::tempdir().unwrap();
    let state_dir = dir.path().join("state");
    let mut file = StatusFile::default();
    let began = Instant::now();
    let said = file.write(&state_dir, &status(), began).unwrap();
    assert!(said.starts_with("the status cannot be written: "), "{said}");
    assert!(said.contains("isolate-status.json: No such file"), "{said}");
    assert_eq!(file.write(&state_dir, &status(), began), None);
    std::fs::create_dir(&state_dir).unwrap();
    // The file is there at once, and that is said at its time.
    assert_eq!(file.write(&state_dir, &status(), began), None);
    assert!(read(&state_dir).unwrap().is_some());
    let said = file.write(&state_dir, &status(), began + TELL_EVERY);
    assert_eq!(said.as_deref(), Some("the status can be written again"));
    assert_eq!(
        file.write(&state_dir, &status(), began + 2 * TELL_EVERY),
        None
    );
}

#[test]
fn a_damaged_status_is_named_once() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(path(dir.path()), "garbage").unwrap();
    let error = read(dir.path()).unwrap_err().to_string();
    let wanted = "isolate-status.json:1: expected value";
    assert!(error.ends_with(wanted), "{error}");
}
