//! One function's blocks and where each goes on.

use iced_x86::FlowControl;

use crate::analysis::address_taken;
use crate::analysis::image::Image;
use crate::analysis::instruction::Kind;
use crate::analysis::jump_table::JumpTable;
use crate::analysis::tables;
use crate::analysis::walk::Disassembly;
use crate::elf::binary::{ENTRY_BYTES, FunctionId};
use crate::elf::lsda::Lsda;
use crate::elf::unwind::Unwind;
use crate::error::{Skip, Skipped};

/// Index of a block in [`Function::blocks`].
pub type BlockId = usize;

/// A function, decoded: blocks in order of their address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Which one of the image.
    pub id: FunctionId,
    /// Address of its first instruction (vaddr).
    pub start: u64,
    /// Address behind its last byte (vaddr).
    pub end: u64,
    /// All blocks that were reached, in order of their start; the entry is the one at `start`.
    pub blocks: Vec<BasicBlock>,
    /// Direct calls, and direct jumps out of the function, in order of their address.
    pub calls: Vec<Call>,
    /// Jump tables that were recognised and verified.
    pub tables: Vec<JumpTable>,
    /// Whether a jump may be written over its first 5 bytes, or why not.
    pub entry: Result<(), Skip>,
    /// What stays in old code, by reason.
    pub skipped: Skipped,
}

/// Instructions that run one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BasicBlock {
    /// Address of the first instruction (vaddr).
    pub start: u64,
    /// Address behind the last one (vaddr).
    pub end: u64,
    /// Address of the last instruction (vaddr).
    pub last: u64,
    /// How many instructions.
    pub instructions: u32,
    /// Where it goes on.
    pub exit: Terminator,
    /// Why it stays in old code, if it does.
    pub stays: Option<Skip>,
    /// Something outside the function leads here: its callers, its cold part, an address taken.
    pub root: bool,
    /// Only reached by an exception (a landing pad, or behind one); never runs in new code.
    pub landing_pad: bool,
}

/// A direct call, or a jump out of the function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The instruction (vaddr).
    pub site: u64,
    /// Where it leads (vaddr).
    pub target: u64,
}

/// How a block ends. Targets are vaddrs; one that no block of the function starts at lies outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Terminator {
    /// Goes on at `end` without a branch.
    FallThrough,
    /// A direct jump.
    Jump(u64),
    /// A conditional jump; otherwise goes on at `end`.
    Branch(u64),
    /// A jump through [`Function::tables`] of this index.
    Table(usize),
    /// A jump through a register or memory, to where is not known (a tail call, mostly).
    Indirect,
    /// Returns.
    End,
    /// Traps (`ud2`, `hlt`), and does not go on unless a signal handler says so.
    Trap,
}

impl Function {
    /// The block that starts at `vaddr`.
    #[must_use]
    pub fn block_at(&self, vaddr: u64) -> Option<BlockId> {
        self.blocks
            .binary_search_by_key(&vaddr, |block| block.start)
            .ok()
    }

    /// The block that holds the instruction at `vaddr`.
    #[must_use]
    pub fn block_of(&self, vaddr: u64) -> Option<BlockId> {
        let after = self.blocks.partition_point(|block| block.start <= vaddr);
        let index = after.checked_sub(1)?;
        (vaddr < self.blocks[index].end).then_some(index)
    }

    /// How far an address of the function is from its start, in bytes.
    #[must_use]
    pub fn offset(&self, vaddr: u64) -> u32 {
        // `FUNCTION_BYTES_MAX` bounds it.
        u32::try_from(vaddr - self.start).unwrap_or(u32::MAX)
    }

    /// Where a block may go on, as vaddrs; without what calls return to, which is in the block.
    #[must_use]
    pub fn successors(&self, block: &BasicBlock) -> Vec<u64> {
        match &block.exit {
            Terminator::FallThrough => vec![block.end],
            Terminator::Jump(target) => vec![*target],
            Terminator::Branch(target) => vec![*target, block.end],
            Terminator::Table(table) => {
                let mut targets = self.tables[*table].targets.clone();
                targets.sort_unstable();
                targets.dedup();
                targets
            }
            Terminator::Indirect | Terminator::End | Terminator::Trap => Vec::new(),
        }
    }
}

/// Longer than any compiler's output: mariadbd's longest has 0.2 MB.
const FUNCTION_BYTES_MAX: u64 = 4 << 20;

impl Image {
    /// Decodes one function.
    ///
    /// # Errors
    /// Why it cannot be moved.
    pub fn analyse(&self, id: FunctionId) -> Result<Function, Skip> {
        analyse(self, id)
    }
}

fn analyse(image: &Image, id: FunctionId) -> Result<Function, Skip> {
    if let Some(skip) = image.frame(id).skip {
        return Err(skip);
    }
    let range = image.range(id);
    if range.end - range.start > FUNCTION_BYTES_MAX {
        return Err(Skip::TooLong);
    }
    let unwind = image.unwind(id)?;
    let lsda = image.lsda(range)?;
    let inside = |vaddr: &u64| (range.start..range.end).contains(vaddr);
    let first = image
        .sweep
        .inner_targets
        .partition_point(|at| *at < range.start);
    let referred: Vec<u64> = image.sweep.inner_targets[first..]
        .iter()
        .copied()
        .take_while(|at| inside(at))
        .collect();
    let pads: Vec<u64> = lsda.iter().flat_map(Lsda::pads).filter(inside).collect();

    let mut walk = Disassembly::new(image, range);
    walk.root(range.start);
    for pad in &pads {
        walk.root(*pad);
    }
    for at in &referred {
        walk.root_if_code(*at);
    }
    let tables = tables::resolve(&mut walk);
    walk.check_overlaps()?;
    let kept = address_taken::kept(&walk, id, &tables)?;
    let mut skipped = Skipped::new();
    let mut blocks = build_blocks(&walk, &tables, &mut skipped);
    let (mut kept, mut kept_to) = (kept.into_iter().peekable(), 0);
    for block in &mut blocks {
        while let Some(range) = kept.next_if(|range| range.start <= block.start) {
            kept_to = kept_to.max(range.end);
        }
        if block.stays.is_none() && block.start < kept_to {
            block.stays = Some(Skip::AddressTaken);
            *skipped.entry(Skip::AddressTaken).or_default() += 1;
        }
    }
    if blocks
        .first()
        .is_none_or(|block| block.start != range.start)
    {
        return Err(Skip::Undecodable);
    }
    let unknown_jumps: Vec<u64> = walk
        .indirect_jumps()
        .filter(|jump| !tables.iter().any(|table| table.jump == *jump))
        .filter(|jump| !tables::is_pointer_jump(&walk, *jump))
        .collect();
    if !unknown_jumps.is_empty() {
        skipped.insert(Skip::IndirectJump, unknown_jumps.len() as u64);
    }
    let entry = check_entry(&walk, &unwind, &referred, &unknown_jumps);
    let mut function = Function {
        id,
        start: range.start,
        end: range.end,
        blocks: Vec::new(),
        calls: calls(&walk),
        tables,
        entry,
        skipped,
    };
    std::mem::swap(&mut function.blocks, &mut blocks);
    mark_landing_pads(&mut function, &referred);
    if function.blocks.iter().all(|block| block.stays.is_some()) {
        return Err(Skip::NothingToEmit);
    }
    Ok(function)
}

fn build_blocks(
    walk: &Disassembly<'_>,
    tables: &[JumpTable],
    skipped: &mut Skipped,
) -> Vec<BasicBlock> {
    let mut blocks: Vec<BasicBlock> = Vec::new();
    let mut open: Option<BasicBlock> = None;
    for instruction in walk.sorted() {
        let (at, next) = (instruction.ip(), instruction.next_ip());
        if walk.is_leader(at) || open.as_ref().is_some_and(|block| block.end != at) {
            blocks.extend(open.take());
        }
        let block = open.get_or_insert(BasicBlock {
            start: at,
            end: next,
            last: at,
            instructions: 0,
            exit: Terminator::FallThrough,
            stays: None,
            root: false,
            landing_pad: false,
        });
        block.last = at;
        block.end = next;
        block.instructions += 1;
        let kind = Kind::of(walk.image, instruction);
        block.exit = match walk.stays(instruction, kind) {
            Kind::Next | Kind::Call(_) => continue,
            Kind::Jump(target) => Terminator::Jump(target),
            Kind::Branch(target) => Terminator::Branch(target),
            Kind::IndirectJump => tables
                .iter()
                .position(|table| table.jump == at)
                .map_or(Terminator::Indirect, Terminator::Table),
            Kind::Return => Terminator::End,
            Kind::Trap => Terminator::Trap,
            Kind::Stays(skip, target) => {
                block.stays = Some(skip);
                *skipped.entry(skip).or_default() += 1;
                target.map_or(Terminator::FallThrough, Terminator::Branch)
            }
        };
        blocks.extend(open.take());
    }
    blocks.extend(open);
    blocks
}

fn calls(walk: &Disassembly<'_>) -> Vec<Call> {
    walk.sorted()
        .filter_map(|instruction| {
            let target = match walk.stays(instruction, Kind::of(walk.image, instruction)) {
                Kind::Call(target) => target,
                Kind::Jump(target) if !(walk.range.start..walk.range.end).contains(&target) => {
                    target
                }
                _ => return None,
            };
            Some(Call {
                site: instruction.ip(),
                target,
            })
        })
        .collect()
}

/// Whether 5 bytes at the entry may become a jump: no thread may come to stand inside them but by
/// running through them.
fn check_entry(
    walk: &Disassembly<'_>,
    unwind: &Unwind,
    referred: &[u64],
    unknown_jumps: &[u64],
) -> Result<(), Skip> {
    let start = walk.range.start;
    let end = start + ENTRY_BYTES;
    if walk.range.end < end {
        return Err(Skip::EntryTooShort);
    }
    let inside = |vaddr: &u64| start < *vaddr && *vaddr < end;
    let led_to = |at: u64| {
        let references = walk.references(at);
        references.root || references.branches > 0
    };
    if referred.iter().any(inside) || walk.leaders().any(|at| inside(&at) && led_to(at)) {
        return Err(Skip::EntryBranchTarget);
    }
    for instruction in walk.sorted().take_while(|each| each.ip() < end) {
        let comes_back = matches!(
            instruction.flow_control(),
            FlowControl::Call | FlowControl::IndirectCall | FlowControl::Interrupt
        );
        if comes_back && inside(&instruction.next_ip()) {
            return Err(Skip::EntryBranchTarget);
        }
        // A jump that is not understood only leads where the stack is as deep as where it comes
        // from.
        let here = instruction.ip();
        let reachable = |jump: &u64| {
            unwind
                .row(*jump)
                .is_none_or(|row| unwind.row(here) == Some(row))
        };
        if inside(&here) && unknown_jumps.iter().any(reachable) {
            return Err(Skip::EntryUnknownTarget);
        }
    }
    Ok(())
}

/// Marks blocks that only exceptions lead to. In new code they never run: landing pads stay in the
/// old.
fn mark_landing_pads(function: &mut Function, referred: &[u64]) {
    let mut reached = vec![false; function.blocks.len()];
    let mut work: Vec<u64> = referred.to_vec();
    work.push(function.start);
    while let Some(at) = work.pop() {
        let Some(block) = function.block_at(at) else {
            continue;
        };
        if !std::mem::replace(&mut reached[block], true) {
            work.extend(function.successors(&function.blocks[block]));
        }
    }
    for (block, reached) in function.blocks.iter_mut().zip(reached) {
        block.landing_pad = !reached;
        block.root = block.start == function.start || referred.binary_search(&block.start).is_ok();
    }
}
