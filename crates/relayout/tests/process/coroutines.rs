//! Coroutines that were suspended within moved code: its memory stays until they have returned
//! through it, wherever their stacks lie.

use std::process::Command;

use relayout::manifest::Bytes;
use relayout::{AppliedPatch, HEADER_BYTES, ManifestStore, PatchedProcess, Process};

use crate::talk::{Program, compile};

/// Announces a generation in which `answer` calls `function` before it gives 2.
fn calling(cache: &mut PatchedProcess, answer: u64, function: u64) -> u32 {
    let region = cache.map((answer, answer), 4096, true).unwrap();
    let at = region.address + HEADER_BYTES;
    // sub rsp, 8; mov rax, function
    let mut code = vec![0x48, 0x83, 0xec, 0x08, 0x48, 0xb8];
    code.extend(function.to_le_bytes());
    // call rax; mov eax, 2; add rsp, 8; ret
    code.extend([0xff, 0xd0, 0xb8, 2, 0, 0, 0, 0x48, 0x83, 0xc4, 0x08, 0xc3]);
    cache.process.memory.write(at, &code).unwrap();
    let distance = i32::try_from(at.cast_signed() - (answer + 5).cast_signed()).unwrap();
    let mut jump = vec![0xe9];
    jump.extend(distance.to_le_bytes());
    let patch = AppliedPatch {
        address: answer,
        old: Bytes(vec![0xb8, 1, 0, 0, 0]),
        new: Bytes(jump),
    };
    cache.announce(vec![patch], &[region]).unwrap().0
}

fn a_coroutine_returns_through_moved_code(place: &str) {
    let name = format!("coroutines-{}-{place}", std::process::id());
    let path = compile("cc", "coroutines.c", &name, &["-O1"]);
    let mut program = Program::run(Command::new(path).arg(place));
    let (answer, function) = (program.address(), program.address());
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let mut cache = PatchedProcess::open(&store, Process::open(program.pid()).unwrap()).unwrap();
    let number = calling(&mut cache, answer, function);
    assert_eq!(program.numbers::<u32>("s"), [1]);
    cache.switch(number).unwrap();
    assert_eq!(program.numbers::<u32>("s"), [0], "suspended in moved code");
    let (_, kept) = cache.rollback().unwrap();
    assert!(!program.is_text_changed());
    assert!(kept.bytes > 0 && kept.why.is_none(), "{kept:?}");
    assert_eq!(program.numbers::<u32>("s"), [2], "back through moved code");
    assert_eq!(program.numbers::<u32>("s"), [1]);
    let (_, kept) = cache.rollback().unwrap();
    assert_eq!(kept.bytes, 0, "{kept:?}");
    assert_eq!(program.numbers::<u32>("s"), [1]);
}

#[test]
fn stacks_in_the_heap_are_searched_below_the_one_that_is_run_on() {
    a_coroutine_returns_through_moved_code("heap");
}

#[test]
fn stacks_in_one_mapping_are_searched_below_the_one_that_is_run_on() {
    a_coroutine_returns_through_moved_code("mapping");
}

#[test]
fn the_first_stack_is_searched_below_an_array_that_is_run_on() {
    a_coroutine_returns_through_moved_code("array");
}

#[test]
fn the_stack_of_a_thread_is_searched_below_an_array_that_is_run_on() {
    a_coroutine_returns_through_moved_code("thread");
}
