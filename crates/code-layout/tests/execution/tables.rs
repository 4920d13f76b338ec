//! Tables whose end does not show: the bound allows more entries than the compiler wrote, or
//! another table follows.

use code_layout::{
    Emitted, Error, Function, JumpTable, LayoutOrder, LayoutPlan, Patch, PatchKind, PatchSelection,
    Placement, Profile, check, emit,
};

use crate::process::Program;
use crate::same_in_every_order;

/// What the compiler wrote for each switch.
const CASES: usize = 6;
/// What three bits allow.
const READ: usize = 8;
const BIAS: u64 = 0x5555_5555_0000;

fn switches(program: &Program) -> [Function; 2] {
    [c"masked", c"compared"].map(|name| program.function(name))
}

fn emitted(program: &Program, functions: &[Function]) -> (LayoutPlan, Placement, Emitted) {
    let plan = LayoutPlan::new(
        functions.to_vec(),
        &Profile::default(),
        LayoutOrder::Random(3),
    );
    let placement = Placement {
        load_bias: BIAS,
        cache_address: BIAS + (1 << 24),
        cache_bytes: 1 << 20,
        patches: PatchSelection::ALL,
        ..Placement::default()
    };
    let emitted = emit(&program.image, &plan, &placement).expect("emitted");
    (plan, placement, emitted)
}

/// With another table right behind it, whose slots it seems to go on with.
fn is_read_too_long(table: &JumpTable, others: &[&JumpTable]) -> bool {
    let end = table.address + 4 * CASES as u64;
    table.targets.len() == READ && others.iter().any(|other| other.address == end)
}

/// What a slot of a table holds that leads to a runtime address.
fn stored(table: &JumpTable, to: u64) -> Vec<u8> {
    let distance = to.wrapping_sub(BIAS + table.address);
    distance.to_le_bytes()[..4].to_vec()
}

fn is_slot(patch: &&Patch) -> bool {
    patch.kind == PatchKind::JumpTable
}

#[test]
fn a_table_that_is_read_too_long_leaves_the_one_behind_it_alone() {
    let program = Program::new("masked.c", &["-O2"]);
    let functions = switches(&program);
    let tables: Vec<&JumpTable> = functions.iter().flat_map(|each| &each.tables).collect();
    // By a mask, and by an earlier comparison with another number.
    for function in &functions {
        let mut own = function.tables.iter();
        assert!(
            own.any(|table| is_read_too_long(table, &tables)),
            "{function:?}"
        );
    }
    // In the last two the other function's tables stay as they are.
    for functions in [&functions[..], &functions[..1], &functions[1..]] {
        let (plan, placement, emitted) = emitted(&program, functions);
        check(&program.image, &plan, &placement, &emitted).expect("right");
        let mut slots = emitted.patches.iter().filter(is_slot);
        let mut own: Vec<&JumpTable> = functions.iter().flat_map(|each| &each.tables).collect();
        own.sort_by_key(|table| table.address);
        for table in own {
            for (index, target) in table.targets[..CASES].iter().enumerate() {
                let patch = slots.next().expect("a patch of each slot");
                assert_eq!(patch.vaddr, table.address + 4 * index as u64);
                let copy = emitted.map.to_new(*target).expect("a copy");
                assert_eq!(patch.new, stored(table, copy), "{patch:x?} of {table:x?}");
            }
        }
        assert_eq!(slots.next(), None);
    }
    same_in_every_order(&program);
}

#[test]
fn a_wrong_patch_of_a_table_is_found() {
    let program = Program::new("masked.c", &["-O2"]);
    let functions = switches(&program);
    let tables: Vec<&JumpTable> = functions.iter().flat_map(|each| &each.tables).collect();
    let (plan, placement, right) = emitted(&program, &functions);
    let first = right.patches.iter().position(|patch| is_slot(&patch));
    let first = first.expect("a slot");
    let refused = |change: &dyn Fn(&mut Vec<Patch>)| {
        let mut wrong = right.clone();
        change(&mut wrong.patches);
        let checked = check(&program.image, &plan, &placement, &wrong);
        assert!(matches!(checked, Err(Error::Wrong { .. })), "{checked:?}");
    };
    // Where another slot leads; from where another one led; twice; and as if the table before went
    // on here.
    refused(&|patches| patches[first + 1].new = patches[first].new.clone());
    refused(&|patches| patches[first + 1].old = patches[first].old.clone());
    refused(&|patches| patches.insert(first, patches[first].clone()));
    let long = tables
        .iter()
        .find(|table| is_read_too_long(table, &tables))
        .expect("one");
    refused(&|patches| {
        let behind = long.address + 4 * CASES as u64;
        let index = patches.iter().position(|patch| patch.vaddr == behind);
        let patch = &mut patches[index.expect("its slot")];
        let copy = right.map.to_new(long.targets[CASES]).expect("a copy");
        patch.new = stored(long, copy);
    });
}

#[test]
fn functions_behind_virtual_ones_keep_their_addresses() {
    let program = Program::new("behind_vtable.cc", &["-O2", "-s"]);
    let table = program.call(c"table", 0) - program.bias;
    let mut vtables = program.image.vtables().iter();
    let ends = |slots: &[(u64, u64)]| slots.last().is_some_and(|&(slot, _)| slot + 8 == table);
    assert!(vtables.any(|vtable| vtable.slots.len() == 2 && ends(&vtable.slots)));
    same_in_every_order(&program);
}
