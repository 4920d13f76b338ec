//! A jump table as it was found.

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
