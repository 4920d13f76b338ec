//! Writing into a real process: a small C program, whose function `answer` is patched by hand to
//! lead into the code cache.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "test code: a panic is a failure, and helpers outside #[test] functions may have it too"
)]

mod calls;
mod coroutines;
#[path = "../../../host/tests/support/eventually.rs"]
mod eventually;
mod family;
mod handlers;
mod kill;
mod layout;
mod pause;
mod phases;
mod postgres;
mod sharing;
mod talk;
mod target;

use eventually::eventually;
use relayout::{Declined, ManifestStore, PatchedProcess, Process, RelayoutError};
use target::{Target, two};

/// There and back, each with a queued signal.
const SWITCHES: u64 = 200;

/// A cache in the target with `answer` patched to give 2 as generation 1.
fn installed(target: &Target, store: &ManifestStore) -> PatchedProcess {
    let process = Process::open(target.pid()).unwrap();
    process.preflight().unwrap();
    let mut cache = PatchedProcess::open(store, process).unwrap();
    two(&mut cache, target.answer);
    cache
}

#[test]
fn a_function_is_switched_back_and_forth_under_load_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let mut target = Target::start(3, 6);
    let mut cache = installed(&target, &store);
    assert!(!target.is_text_changed(), "announcing changes nothing");
    let mut worst_us = 0;
    for round in 0..SWITCHES / 2 {
        target.signal();
        let switched = cache.switch(1).unwrap();
        assert_eq!(switched.changed_by_others, [0; 0]);
        if round == 0 {
            assert!(target.is_text_changed());
            target.assert_answers(1, 2);
        }
        worst_us = worst_us.max(switched.pause.us);
        target.signal();
        worst_us = worst_us.max(cache.switch(0).unwrap().pause.us);
    }
    println!("{SWITCHES} switches of 10 threads: worst pause {worst_us} µs");
    target.assert_answers(2, 1);
    // Every queued signal arrived.
    assert_eq!(target.counts().signals, SWITCHES);
    cache.switch(1).unwrap();
    let (switched, kept) = cache.rollback().unwrap();
    assert!(switched.changed_by_others.is_empty());
    assert_eq!(kept.bytes, 0, "{kept:?}");
    assert!(!target.is_text_changed());
    assert!(!target.has_cache(), "the memory is given back");
    assert_eq!(store.all().unwrap(), []);
    target.quit();
}

#[test]
fn workers_of_io_uring_are_neither_stopped_nor_asked_for_anything() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let target = Target::with(1, 0, &["io_uring"]);
    let tasks = || std::fs::read_dir(format!("/proc/{}/task", target.pid())).unwrap();
    let is_worker = |task: std::io::Result<std::fs::DirEntry>| {
        let name = std::fs::read_to_string(task.unwrap().path().join("comm"));
        name.unwrap().starts_with("iou-wrk")
    };
    // It names itself, some time after it was asked for.
    let is_there = || tasks().map(is_worker).filter(|is| *is).count() == 1;
    eventually(10, is_there, || "no worker");
    let mut cache = installed(&target, &store);
    for _ in 0..20 {
        // Of the three threads two run code of the process.
        assert_eq!(cache.switch(1).unwrap().pause.threads, 2);
        assert_eq!(cache.switch(0).unwrap().pause.threads, 2);
    }
    there_and_back(cache, target);
}

/// A process goes into the layout and back, and nothing of ours is left.
fn there_and_back(mut cache: PatchedProcess, mut target: Target) {
    cache.switch(1).unwrap();
    target.assert_answers(1, 2);
    let (_, kept) = cache.rollback().unwrap();
    assert_eq!(kept.bytes, 0, "{kept:?}");
    target.assert_answers(2, 1);
    target.quit();
}

#[test]
fn whose_system_calls_go_to_a_handler_is_asked_for_none() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let mut target = Target::with(0, 0, &["dispatched"]);
    let process = Process::open(target.pid()).unwrap();
    let error = process.check_dispatch().unwrap_err().to_string();
    assert!(error.contains("handler of its own"), "{error}");
    let mut cache = PatchedProcess::open(&store, process).unwrap();
    let mapped = cache.map((target.answer, target.answer), 4096, true);
    let error = mapped.unwrap_err().to_string();
    assert!(error.contains("handler of its own"), "{error}");
    let stub = cache.manifest.stub.clone().unwrap();
    let found = cache.process.memory.read(stub.address, stub.old.0.len());
    assert_eq!(found.unwrap(), stub.old.0, "nothing is left");
    target.counts();
    target.quit();
    let target = Target::with(1, 1, &["dispatched"]);
    let cache = installed(&target, &store);
    there_and_back(cache, target);
}

#[test]
fn what_somebody_else_wrote_is_left_alone_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let target = Target::start(0, 2);
    let mut cache = installed(&target, &store);
    cache.switch(1).unwrap();
    let breakpoint = [0xb8, 0x02, 0, 0, 0];
    cache
        .process
        .memory
        .write(target.answer, &breakpoint)
        .unwrap();
    let (switched, _) = cache.rollback().unwrap();
    assert_eq!(switched.changed_by_others, [target.answer]);
    let found = cache.process.memory.read(target.answer, 5).unwrap();
    assert_eq!(found, breakpoint);
    target.quit();
}

/// What the kernel writes for a uprobe, and when it goes (kernel/events/uprobes.c): the file's
/// first byte, whatever was there.
#[test]
fn what_a_uprobe_leaves_of_a_jump_is_undone() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let target = Target::start(0, 2);
    let mut cache = installed(&target, &store);
    let (probe, file) = ([0xcc], [0xb8]);
    cache.switch(1).unwrap();
    let write =
        |cache: &PatchedProcess, byte| cache.process.memory.write(target.answer, byte).unwrap();
    write(&cache, &probe);
    let switched = cache.switch(0).unwrap();
    assert_eq!(switched.changed_by_others, [0; 0]);
    let found = cache.process.memory.read(target.answer, 5).unwrap();
    assert_eq!(found, [0xcc, 1, 0, 0, 0]);
    write(&cache, &file);
    assert!(!target.is_text_changed());
    cache.switch(1).unwrap();
    write(&cache, &probe);
    write(&cache, &file);
    let (switched, _) = cache.rollback().unwrap();
    assert_eq!(switched.changed_by_others, [0; 0]);
    assert!(!target.is_text_changed());
    target.quit();
}

#[test]
fn a_process_in_a_debugger_or_stopped_is_declined_and_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let target = Target::start(1, 1);
    target.stop();
    let error = Process::open(target.pid())
        .unwrap()
        .preflight()
        .unwrap_err();
    assert!(
        matches!(
            &error,
            RelayoutError::Declined {
                reason: Declined::Stopped,
                ..
            }
        ),
        "{error}"
    );
    // A rollback must work nevertheless: only the memory stays until it goes on.
    target.go_on();
    let mut cache = installed(&target, &store);
    cache.switch(1).unwrap();
    target.stop();
    let (_, kept) = cache.rollback().unwrap();
    assert!(!target.is_text_changed());
    assert!(kept.bytes > 0);
    assert!(target.is_stopped(), "still stopped by its user");
    target.go_on();
    let (_, kept) = cache.rollback().unwrap();
    assert_eq!(kept.bytes, 0, "{kept:?}");
    target.quit();
}

#[test]
fn who_is_not_there_is_named() {
    let error = Process::open(u32::MAX).unwrap_err();
    assert!(error.to_string().contains("4294967295"), "{error}");
    // A kernel thread.
    let error = Process::open(2).unwrap_err();
    assert!(matches!(&error, RelayoutError::Declined { .. }), "{error}");
}
