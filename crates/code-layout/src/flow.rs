//! One function's blocks and where each goes on.

use crate::error::{Skip, Skipped};
use crate::image::FunctionId;

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
    pub blocks: Vec<Block>,
    /// Jump tables that were recognised and verified.
    pub tables: Vec<JumpTable>,
    /// Whether a jump may be written over its first 5 bytes, or why not.
    pub entry: Result<(), Skip>,
    /// What stays in old code, by reason.
    pub skipped: Skipped,
}

/// Instructions that run one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Address of the first instruction (vaddr).
    pub start: u64,
    /// Address behind the last one (vaddr).
    pub end: u64,
    /// Address of the last instruction (vaddr).
    pub last: u64,
    /// How many instructions.
    pub instructions: u32,
    /// Where it goes on.
    pub exit: Exit,
    /// Why it stays in old code, if it does.
    pub stays: Option<Skip>,
    /// Only reached by an exception (a landing pad, or behind one); never runs in new code.
    pub landing_pad: bool,
}

/// How a block ends. Targets are vaddrs; one that no block of the function starts at lies outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
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
    /// Returns, or ends the program (`ret`, `ud2`, `hlt`).
    End,
}

/// A jump table whose entries were all found to be code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JumpTable {
    /// Where it lies (vaddr).
    pub address: u64,
    /// Bytes an entry: 4 relative to the table's address, 8 absolute.
    pub entry_bytes: u8,
    /// Where each entry leads (vaddr). May have more than the program uses, never fewer.
    pub targets: Vec<u64>,
    /// The instruction that reads the entry (vaddr).
    pub load: u64,
    /// The jump (vaddr), which may be the same instruction.
    pub jump: u64,
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

    /// Where a block may go on, as vaddrs; without what calls return to, which is in the block.
    #[must_use]
    pub fn successors(&self, block: &Block) -> Vec<u64> {
        match &block.exit {
            Exit::FallThrough => vec![block.end],
            Exit::Jump(target) => vec![*target],
            Exit::Branch(target) => vec![*target, block.end],
            Exit::Table(table) => {
                let mut targets = self.tables[*table].targets.clone();
                targets.sort_unstable();
                targets.dedup();
                targets
            }
            Exit::Indirect | Exit::End => Vec::new(),
        }
    }
}
