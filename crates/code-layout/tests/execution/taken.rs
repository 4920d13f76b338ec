//! Addresses inside functions that a program holds, to compare them with where a thread is.

use std::ffi::CStr;

use code_layout::{Function, Skip};

use crate::process::Program;
use crate::same_in_every_order;

fn analysed(program: &Program, name: &CStr) -> Result<Function, Skip> {
    let start = program.symbol(name) - program.bias;
    let id = program.image.function_from(start).expect("a function");
    program.image.analyse(id)
}

/// Whether each block stays for this.
fn staying(function: &Function) -> Vec<bool> {
    let stays = |block: &code_layout::BasicBlock| block.stays == Some(Skip::AddressTaken);
    function.blocks.iter().map(stays).collect()
}

#[test]
fn code_that_a_program_counter_is_compared_with_stays() {
    let program = Program::new("taken.c", &["-O2"]);
    // What leads to the load, the load, what it is replaced by, and the rest.
    let probe = analysed(&program, c"probe").expect("moved");
    assert_eq!(staying(&probe), [false, true, true, false]);
    // Two addresses in data: a part that is entered in its middle.
    let middle = analysed(&program, c"middle").expect("moved");
    assert_eq!(staying(&middle), [false, true, true, true]);
    // A range that begins where the function does: held by other code, by slots that it reads, and
    // by data.
    for name in [c"waits", c"pauses", c"guarded"] {
        assert_eq!(
            analysed(&program, name),
            Err(Skip::AddressTaken),
            "{name:?}"
        );
    }
    same_in_every_order(&program);
}

#[test]
fn what_is_only_jumped_to_is_moved() {
    let program = Program::new("mixed.c", &["-O2"]);
    for name in [c"interpret", c"switch_table"] {
        let function = analysed(&program, name).expect("moved");
        assert!(!function.tables.is_empty(), "{function:?}");
        assert!(!staying(&function).contains(&true), "{function:?}");
    }
}
