//! `gdb` goes through moved code, by what `explain` says that it has to be told.

use std::path::Path;
use std::process::Command;

use relayout::{Process, ProfilingOptions};

use super::faults::{Program, compile, is_root};
use crate::toy::{Ended, Toy};

/// The addresses and functions of a backtrace of the first thread, innermost first.
fn backtrace(words: &[&str]) -> Vec<(u64, String)> {
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch"]).args(words).args(["-ex", "bt"]);
    let ended = Ended::of(gdb).with_code(0);
    let frames = ended.stdout.lines().filter(|line| line.starts_with('#'));
    frames
        .map(|line| {
            let (address, function) = line.split_once(" in ").unwrap_or_else(|| panic!("{line}"));
            let address = address.split_once("0x").unwrap().1;
            let function = function.split_once(" (").unwrap().0;
            (
                u64::from_str_radix(address, 16).unwrap(),
                function.to_owned(),
            )
        })
        .collect()
}

#[test]
fn a_debugger_goes_through_moved_code_with_the_right_names() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blackbox/relayout/program.c");
    let path = compile("relayout-debugged", &source, &["-O1", "-pthread"]);
    let program = Program::run(Command::new(&path).arg("main"));
    let pid = program.pid.to_string();
    // Not in a hurry: on a busy machine few of its functions would be seen.
    program.lay_out_by(&toy, ProfilingOptions::default());
    let process = Process::open(program.pid).unwrap();
    let script = toy
        .path("state/relayout")
        .join(format!("{pid}-{}.gdb", process.start_time));
    let script = script.to_str().unwrap();
    let cache: Vec<_> = process.maps().unwrap();
    let is_moved = |address: u64| {
        let map = cache.iter().find(|map| map.contains(address));
        map.is_some_and(|map| map.is_anonymous() && map.is_executable)
    };
    let mut moved = 0;
    for attempt in 0..40 {
        if attempt >= 5 && moved > 0 {
            break;
        }
        let frames = backtrace(&["-p", &pid, "-x", script]);
        let (address, function) = &frames[0];
        moved += usize::from(is_moved(*address));
        // Each of its functions calls none, and is called by one that main calls for ever.
        let is_leaf = function.starts_with('f') || function.starts_with("round_of");
        assert!(
            is_leaf && function.contains("relayout") == is_moved(*address),
            "{frames:x?}"
        );
        let outer: Vec<&str> = frames.iter().map(|(_, name)| name.as_str()).collect();
        assert!(outer.ends_with(&["work", "main"]), "{outer:?}");
        assert!((3..=4).contains(&outer.len()), "{outer:?}");
    }
    assert!(moved > 0, "it was never stopped in moved code");
    program.roll_back(&toy);
    assert!(!Path::new(script).exists());
    let frames = backtrace(&["-p", &pid]);
    assert_eq!(frames.last().unwrap().1, "main");
}
