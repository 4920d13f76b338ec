//! An ELF file as the rest needs it: segments, functions, slots, relocations, vtables.

use crate::error::{Error, Skip};
use crate::flow::Function;
use crate::profile::BuildId;

/// Index of a function in [`Image::functions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u32);

/// A loaded part of the file (`PT_LOAD`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Where it is loaded, before the load bias.
    pub vaddr: u64,
    /// Bytes in memory.
    pub memory_bytes: u64,
    /// Where it lies in the file.
    pub file_offset: u64,
    /// Bytes in the file.
    pub file_bytes: u64,
    /// Whether it is executable.
    pub executable: bool,
    /// Whether it is writable.
    pub writable: bool,
}

/// What one frame description entry of `.eh_frame` covers: a function, or its cold part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionRange {
    /// First byte (vaddr).
    pub start: u64,
    /// Behind the last byte (vaddr).
    pub end: u64,
    /// Its exception table (language-specific data area), if it has one (vaddr).
    pub lsda: Option<u64>,
}

/// A slot that the dynamic linker fills with another object's address; calls go through it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GotSlot {
    /// Where it lies (vaddr).
    pub vaddr: u64,
    /// The symbol that it is filled with.
    pub symbol: String,
}

/// A table of virtual functions: behind offset-to-top and type information, slots of pointers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vtable {
    /// (slot, function's start), both vaddrs; only slots that hold a function's start.
    pub slots: Vec<(u64, u64)>,
}

/// An x86-64 ELF file: executable or shared object, position-independent or not, stripped or not.
#[derive(Debug)]
pub struct Image {
    bytes: Vec<u8>,
    build_id: Option<BuildId>,
    position_independent: bool,
    segments: Vec<Segment>,
    functions: Vec<FunctionRange>,
    got_slots: Vec<GotSlot>,
    vtables: Vec<Vtable>,
}

impl Image {
    /// Reads a file's bytes.
    ///
    /// # Errors
    /// It is no such file, or one that cannot be laid out again: see [`Error`].
    pub fn parse(bytes: Vec<u8>) -> Result<Self, Error> {
        let _ = bytes;
        Err(Error::NotElf)
    }

    /// The linker's build-id, if the file has one.
    #[must_use]
    pub fn build_id(&self) -> Option<&BuildId> {
        self.build_id.as_ref()
    }

    /// False: it is loaded where it says, with a load bias of 0, and its code cache must lie below 2 GiB.
    #[must_use]
    pub fn is_position_independent(&self) -> bool {
        self.position_independent
    }

    /// What is loaded, in order of address.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// All functions that `.eh_frame` describes, in order of their start.
    #[must_use]
    pub fn functions(&self) -> &[FunctionRange] {
        &self.functions
    }

    /// The function whose range holds `vaddr`.
    #[must_use]
    pub fn function_at(&self, vaddr: u64) -> Option<FunctionId> {
        let after = self.functions.partition_point(|range| range.start <= vaddr);
        let index = after.checked_sub(1)?;
        let id = FunctionId(u32::try_from(index).ok()?);
        (vaddr < self.functions[index].end).then_some(id)
    }

    /// One function's range.
    ///
    /// # Panics
    /// The id is another image's.
    #[must_use]
    pub fn range(&self, id: FunctionId) -> FunctionRange {
        self.functions[id.0 as usize]
    }

    /// A function's name, if the file has a symbol for its start (mangled, without its version).
    #[must_use]
    pub fn name(&self, id: FunctionId) -> Option<&str> {
        let _ = id;
        None
    }

    /// Slots through which code calls other objects, in order of address. What they hold in a process goes
    /// into [`crate::Placement::got`].
    #[must_use]
    pub fn got_slots(&self) -> &[GotSlot] {
        &self.got_slots
    }

    /// Tables of virtual functions, recognised by offset-to-top and type information.
    #[must_use]
    pub fn vtables(&self) -> &[Vtable] {
        &self.vtables
    }

    /// `len` bytes at `vaddr` as the file has them (before relocation), if one segment holds them all.
    #[must_use]
    pub fn read(&self, vaddr: u64, len: u64) -> Option<&[u8]> {
        let _ = (vaddr, len, &self.bytes);
        None
    }

    /// Decodes one function.
    ///
    /// # Errors
    /// Why it cannot be moved.
    pub fn analyse(&self, id: FunctionId) -> Result<Function, Skip> {
        let _ = id;
        Err(Skip::Undecodable)
    }
}
