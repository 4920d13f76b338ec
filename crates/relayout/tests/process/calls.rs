//! A thread that is made to do a system call goes on as if it had not been.

use std::process::Command;

use relayout::{ManifestStore, PatchedProcess, Process};

use crate::talk::{Program, compile};

/// Has a program's only thread, which never sleeps, do some system calls.
fn called(source: &str) -> Program {
    let name = format!("{source}-{}", std::process::id());
    let path = compile("cc", source, &name, &["-O1"]);
    let mut program = Program::run(&mut Command::new(path));
    let answer = program.address();
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let mut cache = PatchedProcess::open(&store, Process::open(program.pid()).unwrap()).unwrap();
    for _ in 0..10 {
        std::thread::sleep(std::time::Duration::from_millis(5));
        cache.map((answer, answer), 4096, true).unwrap();
    }
    cache.rollback().unwrap();
    program
}

#[test]
fn what_lies_below_a_small_stack_stays_as_it_is() {
    assert_eq!(called("tight.c").numbers::<u32>("c"), [0]);
}

#[test]
fn a_restartable_sequence_is_aborted() {
    let [broken, aborts] = called("rseq.c").numbers::<u32>("c")[..] else {
        panic!("it has ended");
    };
    assert_eq!(broken, 0);
    assert!(aborts > 0);
}
