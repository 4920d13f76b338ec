//! Another process that runs in the same memory, and is none of the threads.

use std::process::Command;

use relayout::{ManifestStore, PatchedProcess, Process, ProfilingOptions, Session};

use crate::talk::{Program, compile};
use crate::target::two;

fn started(name: &str) -> Program {
    let name = format!("sharing-{}-{name}", std::process::id());
    let path = compile("cc", "sharing.c", &name, &["-O1"]);
    Program::run(&mut Command::new(path))
}

/// Both go on.
fn assert_go_on(program: &mut Program) {
    let before = program.numbers::<u64>("c");
    std::thread::sleep(std::time::Duration::from_millis(50));
    let after = program.numbers::<u64>("c");
    assert!(
        before[0] < after[0] && before[1] < after[1],
        "{before:?} {after:?}"
    );
}

#[test]
fn a_process_that_shares_its_memory_is_declined() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let mut program = started("declined");
    program.address();
    Session::open(&store, program.pid(), ProfilingOptions::default()).unwrap();
    program.numbers::<u64>("s");
    let error = Session::open(&store, program.pid(), ProfilingOptions::default()).unwrap_err();
    assert!(error.to_string().contains("runs in its memory"), "{error}");
    assert_go_on(&mut program);
}

#[test]
fn code_goes_back_under_a_process_that_shares_it_and_its_memory_when_that_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let mut program = started("rollback");
    let answer = program.address();
    let mut cache = PatchedProcess::open(&store, Process::open(program.pid()).unwrap()).unwrap();
    let number = two(&mut cache, answer);
    cache.switch(number).unwrap();
    program.numbers::<u64>("s");
    assert_go_on(&mut program);
    cache.switch(0).unwrap();
    let error = cache.switch(number).unwrap_err().to_string();
    assert!(error.contains("runs in its memory"), "{error}");
    let (switched, kept) = cache.rollback().unwrap();
    assert!(switched.is_whole(), "{switched:?}");
    assert!(kept.bytes > 0, "{kept:?}");
    assert!(kept.why.unwrap().contains("runs in its memory"));
    assert!(!program.is_text_changed());
    assert_go_on(&mut program);
    program.numbers::<u64>("e");
    let (_, kept) = cache.rollback().unwrap();
    assert_eq!(kept.bytes, 0, "{kept:?}");
}

#[test]
fn a_child_of_vfork_is_no_reason() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let mut program = started("vfork");
    program.address();
    program.numbers::<u64>("v");
    std::thread::sleep(std::time::Duration::from_millis(50));
    Session::open(&store, program.pid(), ProfilingOptions::default()).unwrap();
}
