//! Which address in the code cache stands for which in the file, and back.

/// One emitted instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstructionMapping {
    /// Its runtime address in the code cache.
    pub new: u64,
    /// Its length in bytes.
    pub len: u8,
    /// The instruction of the file that it stands for: before both, registers, flags and stack hold
    /// the same values. `None`: there is none (inside a counter, or between a jump table's load and
    /// its jump); a thread there has to go on for some instructions.
    pub old: Option<u64>,
    /// False: glue (a jump to where the old code would have fallen through, a counter), not a copy.
    pub copied: bool,
    /// The old instruction that it stands for, or before which it stands, whatever registers hold.
    pub(crate) origin: u64,
}

/// Emitted instructions, in order of their new address.
#[derive(Debug, Clone, Default)]
pub struct AddressMap {
    pub(crate) by_new: Vec<InstructionMapping>,
    /// (old, new) of each copied instruction, in order of the old address.
    pub(crate) by_old: Vec<(u64, u64)>,
}

impl AddressMap {
    /// All emitted instructions, in order of their new address.
    #[must_use]
    pub fn instructions(&self) -> &[InstructionMapping] {
        &self.by_new
    }

    /// The instruction that begins at a runtime address of the code cache.
    #[must_use]
    pub fn at(&self, new: u64) -> Option<&InstructionMapping> {
        let index = self
            .by_new
            .binary_search_by_key(&new, |mapping| mapping.new);
        index.ok().map(|index| &self.by_new[index])
    }

    /// Where in the old code (vaddr) a thread that is about to run `new` may go on instead.
    #[must_use]
    pub fn to_old(&self, new: u64) -> Option<u64> {
        self.at(new).and_then(|mapping| mapping.old)
    }

    /// Where in the code cache a thread that is about to run the old instruction at `vaddr` may go
    /// on.
    #[must_use]
    pub fn to_new(&self, vaddr: u64) -> Option<u64> {
        let index = self.by_old.binary_search_by_key(&vaddr, |&(old, _)| old);
        index.ok().map(|index| self.by_old[index].1)
    }
}
