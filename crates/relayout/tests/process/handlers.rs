//! Code that a signal interrupted in the middle of what is to be patched: the handler returns
//! there.

use std::process::Command;

use relayout::{ManifestStore, PatchedProcess, Process};

use crate::talk::{Program, compile};
use crate::target::two_instead_of;

fn a_handler_returns_to_what_it_interrupted(more: &[&str]) {
    let name = format!("handler-{}-{}", std::process::id(), more.len());
    let path = compile("cc", "handler.c", &name, &["-O1"]);
    let mut program = Program::run(Command::new(path).args(more));
    let answer = program.address();
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let mut cache = PatchedProcess::open(&store, Process::open(program.pid()).unwrap()).unwrap();
    let number = two_instead_of([0xcc, 0x90, 0x90, 0x90, 0x90], &mut cache, answer);
    program.say("t");
    assert_eq!(program.line(), "in");
    // It would go on in the middle of the jump.
    assert_eq!(cache.switch(number).unwrap().occupied, [answer]);
    assert!(!program.is_text_changed());
    program.say("b");
    assert_eq!(program.line(), "1");
    // It has left; what it was interrupted by may still lie on its stack, below all that lives.
    assert!(cache.switch(number).unwrap().occupied.is_empty());
    program.say("t");
    assert_eq!(program.line(), "2");
    let (switched, kept) = cache.rollback().unwrap();
    assert!(switched.occupied.is_empty());
    assert_eq!(kept.bytes, 0, "{kept:?}");
    program.say("t");
    assert_eq!(program.line(), "in");
    program.say("b");
    assert_eq!(program.line(), "1");
}

#[test]
fn a_place_that_a_signal_handler_returns_into_is_left_out_until_it_has() {
    a_handler_returns_to_what_it_interrupted(&[]);
}

#[test]
fn also_where_the_handler_is_interrupted_by_one_with_a_stack_of_its_own() {
    a_handler_returns_to_what_it_interrupted(&["nested"]);
}
