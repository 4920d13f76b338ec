//! What a process may still do after the seccomp filter of [`dataplane::sandbox`].
//!
//! A filter cannot be taken off again, so each test starts its own program once more and looks at
//! what that process may do.

#![expect(clippy::unwrap_used, reason = "test code: a panic is a failure")]
#![expect(clippy::print_stdout, reason = "a skipped test says why")]

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::path::Path;
use std::process::Command;

use dataplane::sandbox::{Opens, SandboxError, restrict_system_calls};

/// Set in the process that gets the filter: a directory with a file `settings`.
const DIRECTORY: &str = "SLACKLINE_TEST_SANDBOX";
/// The exit code of a process whose kernel has no seccomp.
const NO_SECCOMP: i32 = 77;

/// Runs `act` in a process of its own, which `test` names, with a directory. An answer other than
/// an empty one is what is wrong.
fn in_a_process(test: &str, act: impl FnOnce(&Path) -> String) {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        let wrong = act(Path::new(&directory));
        println!("{wrong}");
        std::process::exit(i32::from(!wrong.is_empty()));
    }
    let directory = std::env::temp_dir().join(format!("slackline-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("settings"), "idle_timeout_s = 7\n").unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(DIRECTORY, &directory)
        .output()
        .unwrap();
    let kept = std::fs::read_to_string(directory.join("settings"));
    let names = std::fs::read_dir(&directory).unwrap().count();
    std::fs::remove_dir_all(&directory).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    match output.status.code() {
        Some(NO_SECCOMP) => println!("SKIP: {text}"),
        Some(0) => {}
        _ => panic!("{text} {output:?}"),
    }
    assert_eq!(kept.unwrap(), "idle_timeout_s = 7\n");
    assert_eq!(names, 1, "a file was made");
}

fn restrict(opens: Opens) {
    match restrict_system_calls(&[], opens) {
        Ok(()) => {}
        Err(SandboxError::Filter(why)) if why.contains("seccomp") => {
            println!("{why}");
            std::process::exit(NO_SECCOMP);
        }
        Err(error) => panic!("{error}"),
    }
}

/// What opening a file by each of several ways gives, as `errno`, where that is not `EPERM`.
fn ways_to_write(directory: &Path) -> Vec<String> {
    let options = || OpenOptions::new();
    let file = directory.join("settings");
    let new = directory.join("new");
    let attempts = [
        ("write", options().write(true).open(&file)),
        (
            "read and write",
            options().read(true).write(true).open(&file),
        ),
        ("append", options().append(true).open(&file)),
        ("create", options().write(true).create(true).open(&new)),
        ("truncate", options().write(true).truncate(true).open(&file)),
        (
            "read and truncate",
            open(&file, libc::O_RDONLY | libc::O_TRUNC),
        ),
        (
            "read and create",
            open(&new, libc::O_RDONLY | libc::O_CREAT),
        ),
        ("temporary", open(directory, libc::O_RDWR | libc::O_TMPFILE)),
    ];
    attempts
        .into_iter()
        .filter_map(|(way, outcome)| match outcome {
            Ok(_) => Some(format!("{way}: allowed")),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => None,
            Err(error) => Some(format!("{way}: {error}")),
        })
        .collect()
}

/// Opens a file with flags that the standard library refuses.
fn open(path: &Path, flags: libc::c_int) -> std::io::Result<File> {
    let flags = rustix::fs::OFlags::from_bits_retain(u32::try_from(flags).unwrap());
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    Ok(File::from(rustix::fs::open(path, flags, mode)?))
}

#[test]
fn files_are_opened_for_reading_alone() {
    in_a_process("files_are_opened_for_reading_alone", |directory| {
        restrict(Opens::ForReading);
        let mut wrong = ways_to_write(directory);
        let mut text = String::new();
        match File::open(directory.join("settings")) {
            Ok(mut file) => drop(file.read_to_string(&mut text)),
            Err(error) => wrong.push(format!("read: {error}")),
        }
        if text != "idle_timeout_s = 7\n" {
            wrong.push(format!("read {text:?}"));
        }
        wrong.join(", ")
    });
}

#[test]
fn without_settings_no_file_is_opened() {
    in_a_process("without_settings_no_file_is_opened", |directory| {
        restrict(Opens::Nothing);
        let mut wrong = ways_to_write(directory);
        let read = File::open(directory.join("settings"));
        match read.map_err(|error| error.raw_os_error()) {
            Err(Some(libc::EPERM)) => {}
            other => wrong.push(format!("read: {other:?}")),
        }
        wrong.join(", ")
    });
}
