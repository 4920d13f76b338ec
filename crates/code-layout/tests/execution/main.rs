//! Moved code does what the old code does: real programs, compiled here, run in every order.

// The code is executed.
#![cfg(target_arch = "x86_64")]
#![allow(
    clippy::expect_used,
    reason = "a test that cannot go on ends there and says why"
)]

mod branches;
mod fixed;
mod process;
mod random;
mod sqlite;
mod tables;
mod taken;

use code_layout::{CallSites, Function, LayoutOrder, LayoutPlan, PatchSelection, Profile};
use process::{Counters, Program};

const SEEDS: u64 = 20;

fn counts(program: &Program, functions: Vec<Function>, hint: &Profile) -> Profile {
    let plan = LayoutPlan::counting(functions, hint);
    let counters = Counters::near(program.bias, plan.counters());
    let installed = program.install(&plan, PatchSelection::default(), Some(counters.area()));
    program.results(SEEDS);
    drop(installed);
    plan.profile(&program.image, &counters.read())
}

/// All layouts of all functions give the same results.
fn same_in_every_order(program: &Program) {
    let expected = program.results(SEEDS);
    let functions = program.functions();
    assert!(!functions.is_empty());
    let empty = Profile::default();
    for (order, patches) in [
        (LayoutOrder::Original, PatchSelection::ALL),
        (LayoutOrder::Random(1), PatchSelection::default()),
        (LayoutOrder::Random(2), PatchSelection::ALL),
    ] {
        let plan = LayoutPlan::new(functions.clone(), &empty, order);
        let installed = program.install(&plan, patches, None);
        assert!(!installed.emitted.patches.is_empty());
        assert_eq!(program.results(SEEDS), expected, "{order:?}");
    }
    let counted = counts(program, functions.clone(), &empty);
    let again = counts(program, functions.clone(), &counted);
    // With counters on other edges, the same counts.
    for (start, one) in &counted.functions {
        let two = &again.functions[start];
        if !may_throw(program, *start) {
            assert_eq!(one, two, "{start:#x}");
        }
    }
    let plan = LayoutPlan::new(functions, &counted, LayoutOrder::Profiled);
    let installed = program.install(&plan, PatchSelection::ALL, None);
    assert_eq!(program.results(SEEDS), expected);
    drop(installed);
    assert_eq!(program.results(SEEDS), expected);
}

/// A call that does not come back leaves a block in its middle, and counts are only near the truth.
fn may_throw(program: &Program, start: u64) -> bool {
    let id = program.image.function_from(start).expect("a function");
    program
        .image
        .name(id)
        .is_none_or(|name| name.contains("jumps") || name.contains("leave"))
        || program.image.range(id).lsda.is_some()
}

#[test]
fn c_in_every_order() {
    for level in ["-O0", "-O1", "-O2", "-O3", "-Os"] {
        same_in_every_order(&Program::new("mixed.c", &[level]));
    }
}

#[test]
fn c_lazily_bound_with_no_stubs_and_with_frame_pointers() {
    same_in_every_order(&Program::new(
        "mixed.c",
        &["-O2", "-Wl,-z,lazy", "-fcf-protection"],
    ));
    same_in_every_order(&Program::new(
        "mixed.c",
        &["-O2", "-fno-plt", "-fno-omit-frame-pointer"],
    ));
}

#[test]
fn exceptions_in_every_order() {
    for flags in [
        ["-O0", "-std=c++14"],
        ["-O2", "-std=c++14"],
        ["-O3", "-std=c++20"],
        ["-Os", "-std=c++17"],
    ] {
        same_in_every_order(&Program::new("exceptions.cc", &flags));
    }
}

#[test]
fn the_emitted_lookup_finds_the_frames_that_libgcc_finds() {
    let program = Program::new("exceptions.cc", &["-O2"]);
    let functions = program.functions();
    for count in [1, 2, functions.len()] {
        let chosen = functions[..count].to_vec();
        let plan = LayoutPlan::new(chosen, &Profile::default(), LayoutOrder::Random(1));
        let installed = program.install(&plan, PatchSelection::default(), None);
        let emitted = &installed.emitted;
        let end = emitted.address + emitted.bytes.len() as u64;
        let mut found = std::collections::BTreeSet::new();
        // Beside the code, and in this program's own, it asks libgcc.
        let own = the_emitted_lookup_finds_the_frames_that_libgcc_finds as fn() as usize as u64;
        for pc in (emitted.address - 9..end + 9).chain([own, 0, u64::MAX]) {
            let [ours, libgccs] = installed.frames_of(pc);
            assert_eq!(ours, libgccs, "{pc:#x} of {:#x}", emitted.address);
            found.insert(ours.0);
        }
        // One of each function, the lookup's, this program's, and none.
        assert_eq!(found.len(), emitted.functions.len() + 3);
    }
}

#[test]
fn a_table_that_leads_into_a_cold_part() {
    let program = Program::new("parts.s", &[]);
    let parted = program.function(c"parted");
    let outside: Vec<u64> = parted
        .tables
        .iter()
        .flat_map(|table| table.targets.iter().copied())
        .filter(|target| !(parted.start..parted.end).contains(target))
        .collect();
    assert_eq!(outside.len(), 3, "{parted:?}");
    for target in outside {
        let id = program.image.function_at(target).expect("a cold part");
        let cold = program.image.analyse(id).expect("analysed");
        let block = cold.block_at(target).expect("a block");
        assert!(cold.blocks[block].root, "{target:#x} of {cold:?}");
        // `case_3` lies where a jump at the cold part's start would be written.
        assert_eq!(cold.entry, Err(code_layout::Skip::EntryBranchTarget));
    }
    same_in_every_order(&program);
}

#[test]
fn an_entry_within_another_ones_first_bytes_is_not_written_over() {
    let program = Program::new("entries.s", &[]);
    for (name, inner) in [(c"twice_and_on", c"on"), (c"thrice", c"no_type")] {
        let entry = program.function(name).entry;
        assert_eq!(entry, Err(code_layout::Skip::EntryBranchTarget), "{name:?}");
        let plan = LayoutPlan::new(
            program.functions(),
            &Profile::default(),
            LayoutOrder::Original,
        );
        let expected = program.call(inner, 5);
        let _installed = program.install(&plan, PatchSelection::ALL, None);
        assert_eq!(program.call(inner, 5), expected);
    }
    same_in_every_order(&program);
}

#[test]
fn odd_instructions_in_every_order() {
    same_in_every_order(&Program::new("odd.s", &[]));
}

#[test]
fn counts_are_exact() {
    let program = Program::new("mixed.c", &["-O1"]);
    let function = program.function(c"counted");
    let plan = LayoutPlan::counting(vec![function.clone()], &Profile::default());
    let counters = Counters::near(program.bias, plan.counters());
    let installed = program.install(&plan, PatchSelection::default(), Some(counters.area()));
    for _ in 0..5 {
        program.call(c"counted", 300);
    }
    drop(installed);
    let profile = plan.profile(&program.image, &counters.read());
    let counts = &profile.functions[&function.start];
    assert_eq!(counts.entries, 5);
    let of = |count| {
        counts
            .blocks
            .values()
            .filter(|each| **each == count)
            .count()
    };
    assert!(of(5 * 300) >= 1, "{counts:?}");
    assert!(of(5 * 100) >= 1, "{counts:?}");
    assert_eq!(counts.blocks[&0], 5);
}

thread_local! {
    static HOOK: std::cell::RefCell<Option<Box<dyn FnOnce()>>> = const { std::cell::RefCell::new(None) };
}

extern "C" fn hook() {
    if let Some(hook) = HOOK.take() {
        hook();
    }
}

/// A loop that never leaves its function comes into new code through its table of labels.
#[test]
fn a_patched_table_brings_a_running_loop_into_new_code() {
    let program: &'static Program = Box::leak(Box::new(Program::new("mixed.c", &["-O2"])));
    let function = program.function(c"interpret");
    assert!(!function.tables.is_empty(), "{function:?}");
    let plan: &'static LayoutPlan = Box::leak(Box::new(LayoutPlan::counting(
        vec![function],
        &Profile::default(),
    )));
    let counters = Counters::near(program.bias, plan.counters());
    let tables_only = PatchSelection {
        entries: false,
        call_sites: CallSites::None,
        vtables: false,
        jump_tables: true,
    };
    let mut code = vec![0u8, 1, 2, 3, 4];
    code.push(5);
    code.extend([0, 1, 2, 3, 4].repeat(100));
    code.push(6);
    let call = |hooked: bool| {
        let address = program.symbol(c"interpret");
        type Interpret = extern "C" fn(*const u8, u64, extern "C" fn()) -> u64;
        #[allow(unsafe_code, reason = "calls the program")]
        // SAFETY: the program's function has this type.
        let interpret: Interpret = unsafe { std::mem::transmute(address) };
        if hooked {
            let placed = program.place(plan, tables_only, Some(counters.area()));
            HOOK.set(Some(Box::new(move || std::mem::forget(placed.activate()))));
        }
        interpret(code.as_ptr(), 42, hook)
    };
    let expected = call(false);
    assert!(counters.read().iter().all(|count| *count == 0));
    assert_eq!(call(true), expected);
    let counted: u64 = counters.read().iter().sum();
    assert!(counted >= 100, "{counted}: the loop stayed in old code");
}
