//! Records of taken branches say the same as counting. They are made by stepping a real run, since
//! not every machine has a processor that keeps them.
#![allow(
    unsafe_code,
    reason = "a process of its own is stepped, which only system calls can do"
)]

use std::collections::BTreeMap;

use code_layout::{BasicBlock, Branches, Function, FunctionCounts, Terminator};
use iced_x86::{Decoder, DecoderOptions};

use crate::process::Program;

const NOWHERE: *mut libc::c_void = std::ptr::null_mut();

/// The instructions that `run` executes, by the file's addresses (and whatever lies elsewhere).
fn trace(program: &Program, seed: u64) -> Vec<u64> {
    let address = program.symbol(c"run");
    // SAFETY: the child calls nothing that takes a lock: it is traced, stops, computes, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: `run` takes one 64-bit argument and returns one; nothing is left to clean up in
        // the child.
        unsafe {
            let run: extern "C" fn(u64) -> u64 = std::mem::transmute(address);
            libc::ptrace(libc::PTRACE_TRACEME, 0, NOWHERE, NOWHERE);
            libc::raise(libc::SIGSTOP);
            run(seed);
            libc::_exit(0);
        }
    }
    let mut trace: Vec<u64> = Vec::new();
    loop {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(waited, child);
        if libc::WIFEXITED(status) {
            assert_eq!(libc::WEXITSTATUS(status), 0);
            return trace;
        }
        assert!(libc::WIFSTOPPED(status), "{status:x}");
        // SAFETY: registers are plain data, for which all zeros is a value.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        // SAFETY: the child is stopped and traced by this thread; `registers` outlives the calls.
        unsafe {
            libc::ptrace(libc::PTRACE_GETREGS, child, NOWHERE, &raw mut registers);
            libc::ptrace(libc::PTRACE_SINGLESTEP, child, NOWHERE, NOWHERE);
        }
        // What lies elsewhere, below it too, is somewhere in user code.
        let at = registers.rip.wrapping_sub(program.bias) & (u64::MAX >> 1);
        // A repeated instruction stops each time.
        if trace.last() != Some(&at) {
            trace.push(at);
        }
    }
}

/// Where the instruction at an address of the file ends.
fn end_of(program: &Program, at: u64) -> Option<u64> {
    let bytes = program
        .image
        .read(at, 15)
        .or_else(|| program.image.read(at, 1))?;
    let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
    Some(decoder.decode().next_ip())
}

fn offset(function: &Function, vaddr: u64) -> u32 {
    u32::try_from(vaddr - function.start).expect("a small program")
}

/// The block that ends with this step's call, to come back to the next one.
fn call_at_an_end(
    functions: &[Function],
    before: u64,
    now: u64,
) -> Option<(&Function, &BasicBlock)> {
    let mut functions = functions.iter();
    let function = functions.find(|one| (one.start..one.end).contains(&before))?;
    let block = &function.blocks[function.block_of(before)?];
    let is_call = block.last == before && block.exit == Terminator::FallThrough && block.end != now;
    (is_call && function.block_at(block.end).is_some()).then_some((function, block))
}

/// How often what ran, by looking at each step.
fn exact(functions: &[Function], trace: &[u64]) -> BTreeMap<u64, FunctionCounts> {
    let mut counts: BTreeMap<u64, FunctionCounts> = BTreeMap::new();
    let mut edges: BTreeMap<(u64, u32, u32), u64> = BTreeMap::new();
    for steps in trace.windows(2) {
        let &[before, now] = steps else { continue };
        if let Some((function, block)) = call_at_an_end(functions, before, now) {
            let edge = (
                function.start,
                offset(function, block.start),
                offset(function, block.end),
            );
            *edges.entry(edge).or_default() += 1;
        }
        let Some(function) = functions
            .iter()
            .find(|one| (one.start..one.end).contains(&now))
        else {
            continue;
        };
        let Some(id) = function.block_at(now) else {
            continue;
        };
        let known = counts.entry(function.start).or_default();
        *known.blocks.entry(offset(function, now)).or_default() += 1;
        let from = function.block_of(before).map(|id| &function.blocks[id]);
        let from =
            from.filter(|from| from.last == before && function.successors(from).contains(&now));
        match from {
            Some(from) => {
                let edge = (
                    function.start,
                    offset(function, from.start),
                    offset(function, now),
                );
                *edges.entry(edge).or_default() += 1;
            }
            None if id == 0 => known.entries += 1,
            None => {}
        }
    }
    for ((start, from, to), count) in edges {
        let known = counts.entry(start).or_default();
        known.edges.push(code_layout::Edge { from, to, count });
    }
    counts
}

#[test]
fn recorded_branches_say_the_same_as_each_step() {
    let program = Program::new("mixed.c", &["-O2"]);
    let functions = program.functions();
    let trace = trace(&program, 3);
    let is_ours = |at: u64| program.image.function_at(at).is_some();
    let mut records: Vec<(u64, u64)> = trace
        .windows(2)
        .filter(|steps| is_ours(steps[0]) || is_ours(steps[1]))
        .filter(|steps| end_of(&program, steps[0]) != Some(steps[1]))
        .map(|steps| (steps[0], steps[1]))
        .collect();
    assert!(records.len() > 1000, "{} of {}", records.len(), trace.len());
    records.reverse();
    let mut whole = Branches::default();
    // The way back from the kernel is recorded as well, and cuts nothing.
    let from_kernel = (u64::MAX << 20, functions[0].start);
    whole.add(records.iter().flat_map(|record| [*record, from_kernel]));
    let exact = exact(&functions, &trace);
    assert!(exact.len() > 5);
    assert_eq!(whole.counts(&functions), exact);

    // A processor keeps the last 32 at a time: what lies between two stacks is not seen, the rest
    // in proportion.
    let mut stacks = Branches::default();
    for stack in records.chunks(32) {
        stacks.add(stack.iter().copied());
    }
    let sampled = stacks.counts(&functions);
    let sum = |counts: &BTreeMap<u64, FunctionCounts>| -> u64 {
        counts.values().flat_map(|one| one.blocks.values()).sum()
    };
    let (all, seen) = (sum(&exact), sum(&sampled));
    assert!(seen < all && seen * 32 > all * 28, "{seen} of {all}");
}

#[test]
fn records_that_make_no_sense_count_nothing() {
    let program = Program::new("mixed.c", &["-O2"]);
    let functions = program.functions();
    let starts: Vec<u64> = functions.iter().map(|function| function.start).collect();
    let mut branches = Branches::default();
    // Backwards, from one function into another, out of everything, into the middle of
    // instructions.
    branches.add([
        (starts[1] + 1, starts[0] + 3),
        (starts[0], u64::MAX),
        (0, starts[2] + 1),
    ]);
    branches.add([
        (starts[0], 7),
        (u64::MAX, starts[0] + 9),
        (starts[2], starts[1]),
    ]);
    assert_eq!(branches.counts(&functions), BTreeMap::new());
    let shifted = branches.within(&(starts[0]..starts[0] + 16), starts[0]);
    assert!(shifted.taken.keys().all(|(_, to)| *to < 16));
}
