//! A table that its reader's bound does not fit: what lies behind it is another's.

use std::path::Path;
use std::process::Command;

use relayout::ProfilingOptions;

use super::faults::{Program, compile, in_a_hurry, is_root};
use crate::toy::Toy;

#[test]
fn a_table_that_seems_longer_than_it_is_takes_nothing_from_the_one_behind_it() {
    if !is_root() {
        return;
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR"));
    let executable = compile(
        &format!("relayout-tables-{}", std::process::id()),
        &crates.join("tests/blackbox/relayout/tables.c"),
        &[
            "-O2",
            "-pthread",
            "-I",
            crates
                .join("../code-layout/tests/programs")
                .to_str()
                .unwrap(),
        ],
    );
    let toy = Toy::new();
    let mut program = Program::run(&mut Command::new(&executable));
    program.assert_as_before();
    // By profile, and in some random orders: which of two tables is patched first depends on it.
    for random in [None, Some(6), Some(7), Some(8), Some(9)] {
        let options = ProfilingOptions {
            random,
            ..in_a_hurry()
        };
        program.lay_out_by(&toy, options);
        // The call that was going on when the tables were changed, and whole ones.
        program.wait_for_rounds(5);
        program.roll_back(&toy);
        program.assert_as_before();
    }
    program.quit();
}
