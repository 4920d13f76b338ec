//! Whether the arithmetic flags hold something that is still to be read: a counter must not clobber
//! them.

use std::collections::BTreeMap;

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, Register, RflagsBits};

use crate::analysis::flow::{BasicBlock, Function, Terminator};
use crate::analysis::image::Image;

/// What `inc` changes: all arithmetic flags but the carry.
const CHANGED: u32 =
    RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::PF;

/// How far into a called function it is looked for a use of its caller's flags.
const CALLEE_INSTRUCTIONS_MAX: usize = 16;

/// Which flags of [`CHANGED`] are still to be read at the start of each block.
#[derive(Debug, Clone)]
pub(crate) struct LiveFlags {
    starts: BTreeMap<u64, u32>,
}

impl LiveFlags {
    pub(crate) fn new(image: &Image, function: &Function) -> Self {
        let mut starts: BTreeMap<u64, u32> = function
            .blocks
            .iter()
            .map(|block| (block.start, 0))
            .collect();
        let effects: Vec<(u32, u32)> = function
            .blocks
            .iter()
            .map(|block| effect(image, block))
            .collect();
        // Backwards until nothing changes; flags only become live.
        loop {
            let mut changed = false;
            for (block, &(read, set)) in function.blocks.iter().zip(&effects).rev() {
                let behind = live_behind(function, block, &starts);
                let live = read | behind & !set;
                let known = starts.entry(block.start).or_default();
                if *known | live != *known {
                    *known |= live;
                    changed = true;
                }
            }
            if !changed {
                return Self { starts };
            }
        }
    }

    /// Whether an `inc` at a block's start would change what is still to be read. Unknown code
    /// reads all.
    pub(crate) fn at(&self, vaddr: u64) -> bool {
        self.starts.get(&vaddr).is_none_or(|live| *live != 0)
    }
}

fn live_behind(function: &Function, block: &BasicBlock, starts: &BTreeMap<u64, u32>) -> u32 {
    match block.exit {
        // By the calling convention nothing; hand-written code may have its own.
        Terminator::Indirect | Terminator::End | Terminator::Trap => CHANGED,
        _ => function
            .successors(block)
            .iter()
            .map(|to| starts.get(to).copied().unwrap_or(CHANGED))
            .fold(0, |all, live| all | live),
    }
}

/// Flags that a block reads before it sets them, and those that it surely sets.
fn effect(image: &Image, block: &BasicBlock) -> (u32, u32) {
    let bytes = image
        .read(block.start, block.end - block.start)
        .unwrap_or_default();
    let (mut read, mut set) = (0, 0);
    for instruction in Decoder::with_ip(64, bytes, block.start, DecoderOptions::NONE) {
        read |= instruction.rflags_read() & CHANGED & !set;
        if instruction.is_call_near() {
            // A called function leaves other flags behind, but may look at those it gets.
            if reads_on_entry(image, instruction.near_branch_target()) {
                read |= CHANGED & !set;
            }
            set = CHANGED;
        } else if instruction.is_call_near_indirect() {
            set = CHANGED;
        } else if surely_sets(&instruction) {
            set |= instruction.rflags_modified() & CHANGED;
        }
    }
    (read, set)
}

/// A shift by 0 and a repeated comparison of nothing leave flags as they were.
fn surely_sets(instruction: &Instruction) -> bool {
    let by_register = matches!(
        instruction.mnemonic(),
        Mnemonic::Shl
            | Mnemonic::Sal
            | Mnemonic::Shr
            | Mnemonic::Sar
            | Mnemonic::Rol
            | Mnemonic::Ror
            | Mnemonic::Rcl
            | Mnemonic::Rcr
            | Mnemonic::Shld
            | Mnemonic::Shrd
    ) && (0..instruction.op_count())
        .any(|operand| instruction.op_register(operand) == Register::CL);
    !by_register && !instruction.has_rep_prefix() && !instruction.has_repne_prefix()
}

fn reads_on_entry(image: &Image, target: u64) -> bool {
    // Another object's function: a stub's jump, behind which the convention holds.
    if image.function_from(target).is_none() {
        return image.plt_slot(target).is_none();
    }
    let bytes = image.binary.elf.from(target).unwrap_or_default();
    let mut set = 0;
    for instruction in Decoder::with_ip(64, bytes, target, DecoderOptions::NONE)
        .into_iter()
        .take(CALLEE_INSTRUCTIONS_MAX)
    {
        if instruction.rflags_read() & CHANGED & !set != 0 {
            return true;
        }
        if surely_sets(&instruction) {
            set |= instruction.rflags_modified() & CHANGED;
        }
        if set == CHANGED || instruction.flow_control() != iced_x86::FlowControl::Next {
            return false;
        }
    }
    false
}
