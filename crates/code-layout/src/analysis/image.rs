//! An ELF file as the rest needs it: segments, functions, slots, relocations, vtables.

use std::fmt;

use crate::analysis::caller_sensitive::{is_caller_sensitive, is_caller_sensitive_slot};
use crate::analysis::sweep::Sweep;
use crate::analysis::vtable::{self, Vtable};
use crate::elf::LoadSegment;
use crate::elf::binary::{Binary, FunctionId, GotSlot};
use crate::elf::build_id::BuildId;
use crate::elf::lsda::Lsda;
use crate::elf::unwind::{Frame, FunctionRange, Unwind};
use crate::error::{Error, Skip};

/// An x86-64 ELF file: executable or shared object, position-independent or not, stripped or not.
pub struct Image {
    pub(crate) binary: Binary,
    /// What leads into the middle of functions.
    pub(crate) sweep: Sweep,
    vtables: Vec<Vtable>,
}

impl Image {
    /// Reads a file's bytes.
    ///
    /// # Errors
    /// It is no such file, or one that cannot be laid out again: see [`Error`].
    pub fn parse(bytes: Vec<u8>) -> Result<Self, Error> {
        let binary = Binary::parse(bytes)?;
        let sweep = Sweep::of(&binary);
        let vtables = vtable::find(&binary, &sweep);
        Ok(Self {
            binary,
            sweep,
            vtables,
        })
    }

    /// The linker's build-id, if the file has one.
    #[must_use]
    pub fn build_id(&self) -> Option<&BuildId> {
        self.binary.build_id.as_ref()
    }

    /// False: it is loaded where it says, with a load bias of 0, and its code cache must lie below
    /// 2 GiB.
    #[must_use]
    pub fn is_position_independent(&self) -> bool {
        self.binary.elf.position_independent
    }

    /// What is loaded, in order of address.
    #[must_use]
    pub fn segments(&self) -> &[LoadSegment] {
        &self.binary.elf.segments
    }

    /// All functions that `.eh_frame` describes, in order of their start.
    #[must_use]
    pub fn functions(&self) -> &[FunctionRange] {
        &self.binary.functions
    }

    /// The ids of all functions, in order of their start.
    pub fn function_ids(&self) -> impl Iterator<Item = FunctionId> {
        let starts = self.functions().iter().map(|range| range.start);
        starts.filter_map(|start| self.function_at(start))
    }

    /// The function whose range holds `vaddr`.
    #[must_use]
    pub fn function_at(&self, vaddr: u64) -> Option<FunctionId> {
        self.binary.function_at(vaddr)
    }

    /// The function that starts at `vaddr`.
    #[must_use]
    pub fn function_from(&self, vaddr: u64) -> Option<FunctionId> {
        self.binary.function_from(vaddr)
    }

    /// One function's range.
    ///
    /// # Panics
    /// The id is another image's.
    #[must_use]
    pub fn range(&self, id: FunctionId) -> FunctionRange {
        self.binary.range(id)
    }

    /// A function's name, if the file has a symbol for its start (mangled, without its version).
    #[must_use]
    pub fn name(&self, id: FunctionId) -> Option<&str> {
        self.binary.elf.name(self.range(id).start)
    }

    /// Whether it, the program or a library, has an unwinder of its own (`-static-libgcc`).
    #[must_use]
    pub fn has_own_unwinder(&self, is_program: bool) -> bool {
        self.binary.elf.has_own_unwinder(is_program)
    }

    /// Slots through which code reaches other objects, in order of address. What they hold in a
    /// process goes into [`crate::Placement::got`].
    #[must_use]
    pub fn got_slots(&self) -> &[GotSlot] {
        &self.binary.got_slots
    }

    /// The table (`DT_PLTGOT`) whose second word, filled by the dynamic linker, tells it whose stub
    /// asks for a function; a stub pushes that word and a number on top of the return address.
    #[must_use]
    pub fn linkage_table(&self) -> Option<u64> {
        self.binary.elf.linkage_table()
    }

    /// The slot that a stub of the procedure linkage table at `vaddr` jumps through.
    #[must_use]
    pub fn plt_slot(&self, vaddr: u64) -> Option<u64> {
        self.binary.plt_slot(vaddr)
    }

    /// Whether an address lies in the file's own linkage stubs.
    pub(crate) fn is_own_stub(&self, vaddr: u64) -> bool {
        self.binary.is_own_stub(vaddr)
    }

    /// Tables of virtual functions, recognised by offset-to-top and type information.
    #[must_use]
    pub fn vtables(&self) -> &[Vtable] {
        &self.vtables
    }

    /// Where what begins at `vaddr` surely has ended: something refers to the bytes there for
    /// themselves.
    pub(crate) fn next_referred(&self, vaddr: u64) -> u64 {
        self.sweep.next_referred(vaddr)
    }

    /// `len` bytes at `vaddr` as the file has them (before relocation), if one segment holds them
    /// all.
    #[must_use]
    pub fn read(&self, vaddr: u64, len: u64) -> Option<&[u8]> {
        self.binary.elf.read(vaddr, len)
    }

    /// Whether a call through a slot is one of a function whose caller's address matters.
    pub(crate) fn is_caller_sensitive_slot(&self, slot: u64) -> bool {
        is_caller_sensitive_slot(&self.binary, slot)
    }

    /// Whether a direct call's target is such a function, or jumps on to one.
    pub(crate) fn is_caller_sensitive(&self, target: u64) -> bool {
        is_caller_sensitive(&self.binary, target) || self.sweep.caller_sensitive.contains(&target)
    }

    pub(crate) fn frame(&self, id: FunctionId) -> &Frame {
        self.binary.frame(id)
    }

    pub(crate) fn unwind(&self, id: FunctionId) -> Result<Unwind, Skip> {
        let binary = &self.binary;
        binary.eh_frame.unwind(&binary.elf, binary.frame(id))
    }

    pub(crate) fn lsda(&self, range: FunctionRange) -> Result<Option<Lsda>, Skip> {
        let Some(at) = range.lsda else {
            return Ok(None);
        };
        Lsda::parse(&self.binary.elf, at, range.start)
            .filter(Lsda::is_emittable)
            .map(Some)
            .ok_or(Skip::ExceptionTable)
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Image")
            .field("build_id", &self.binary.build_id)
            .field("bytes", &self.binary.elf.bytes.len())
            .field("functions", &self.binary.functions.len())
            .finish_non_exhaustive()
    }
}
