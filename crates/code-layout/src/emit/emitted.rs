//! What is emitted, where it is to lie, and which patches lead into it.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::emit::lookup::Lookup;
use crate::emit::map::AddressMap;
use crate::error::Skipped;

/// Where the file and the code cache lie in the process.
#[derive(Debug, Clone, Default)]
pub struct Placement {
    /// Runtime address minus vaddr; 0 for an executable that is not position-independent.
    pub load_bias: u64,
    /// Runtime address of the code cache, page-aligned.
    pub cache_address: u64,
    /// Its size in bytes: more is an error.
    pub cache_bytes: u64,
    /// What slots of [`crate::Image::got_slots`] hold: slot's vaddr to runtime address. Calls
    /// through a slot that is here are made direct; leave out what is not resolved yet. May be
    /// empty.
    pub got: BTreeMap<u64, u64>,
    /// Where the counters are; needed if the plan has any.
    pub counters: Option<CounterArea>,
    /// Which patches to make.
    pub patches: PatchSelection,
}

/// Where a counting plan's counters are: [`crate::LayoutPlan::counters`] times 8 bytes, zeroed,
/// writable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterArea {
    /// Runtime address of the first counter. The area lies within 2 GiB of the code cache. Threads
    /// on several CPUs slow each other down and lose counts.
    pub address: u64,
}

/// Which patches lead from the old code into the new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatchSelection {
    /// A jump at the entry of each emitted function.
    pub entries: bool,
    /// Direct calls in old code.
    pub call_sites: CallSites,
    /// Slots of vtables.
    pub vtables: bool,
    /// Entries of jump tables that old code goes on using: brings a loop that runs for ever into
    /// new code.
    pub jump_tables: bool,
}

/// Which direct calls in old code lead to new code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallSites {
    /// None.
    #[default]
    None,
    /// Those in the old code of functions that were emitted.
    Moved,
}

impl PatchSelection {
    /// Everything that there is.
    pub const ALL: Self = Self {
        entries: true,
        call_sites: CallSites::Moved,
        vtables: true,
        jump_tables: true,
    };
}

impl Default for PatchSelection {
    /// Entries only.
    fn default() -> Self {
        Self {
            entries: true,
            call_sites: CallSites::None,
            vtables: false,
            jump_tables: false,
        }
    }
}

/// What a patch overwrites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PatchKind {
    /// A function's first 5 bytes.
    Entry,
    /// A direct call or jump of 5 bytes; only its displacement changes.
    CallSite,
    /// 8 bytes of a vtable.
    VtableSlot,
    /// 4 or 8 bytes of a jump table.
    JumpTable,
}

/// Bytes to overwrite. No thread may be about to run an instruction that begins strictly inside
/// them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    /// Where (vaddr).
    pub vaddr: u64,
    /// What is there now, in the running process: another value means that somebody else changed
    /// it.
    pub old: Vec<u8>,
    /// What is to be there; as long as `old`.
    pub new: Vec<u8>,
    /// What it is.
    pub kind: PatchKind,
}

/// The result. All of `bytes` goes to `address`, readable and executable.
#[derive(Debug, Clone)]
pub struct Emitted {
    /// Runtime address of the first byte: the cache's.
    pub address: u64,
    /// Code, jump tables, exception tables, unwind information and what finds it.
    pub bytes: Vec<u8>,
    /// Which of the bytes are code.
    pub code: Range<usize>,
    /// Which are `.eh_frame` data, with its terminator.
    pub eh_frame: Range<usize>,
    /// Finds an instruction's entry there; exceptions pass through the code once the process's
    /// unwinder asks it.
    pub lookup: Lookup,
    /// Each emitted function: its vaddr, and its runtime range in the code cache.
    pub functions: Vec<(u64, Range<u64>)>,
    /// What leads into the code, in order of address; write all after the code.
    pub patches: Vec<Patch>,
    /// Old and new addresses.
    pub map: AddressMap,
    /// What was left, by reason.
    pub skipped: Skipped,
}
