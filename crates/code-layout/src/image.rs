//! An ELF file as the rest needs it: segments, functions, slots, relocations, vtables.

use std::collections::BTreeSet;
use std::fmt;

use crate::elf::{Elf, Value};
use crate::error::{Error, Skip};
use crate::flow::Function;
use crate::lsda::Lsda;
use crate::profile::BuildId;
use crate::sweep::Taken;
use crate::unwind::{self, Frame, Unwind};
use crate::{runtimes, sweep, vtable};

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
pub struct Image {
    pub(crate) elf: Elf,
    build_id: Option<BuildId>,
    eh_frame: unwind::Section,
    frames: Vec<Frame>,
    functions: Vec<FunctionRange>,
    got_slots: Vec<GotSlot>,
    vtables: Vec<Vtable>,
    /// Addresses inside functions, not at their start, that something outside the function refers
    /// to, in order.
    pub(crate) inner_targets: Vec<u64>,
    /// Those of them that somebody holds as a number, in order.
    pub(crate) taken: Vec<Taken>,
    /// Starts of functions that jump on to one whose caller's address matters.
    pub(crate) caller_sensitive: BTreeSet<u64>,
    /// Addresses that cannot be written and that something refers to, in order.
    read_only: Vec<u64>,
}

/// The build-id of a file, without reading the rest of it; `None` where it has none, or is no
/// x86-64 program.
#[must_use]
pub fn build_id(bytes: Vec<u8>) -> Option<BuildId> {
    Elf::parse(bytes).ok()?.build_id.map(BuildId)
}

/// Whether a file defines a function of one of these names; false where it is no x86-64 program.
#[must_use]
pub fn defines(bytes: Vec<u8>, functions: &[&str]) -> bool {
    Elf::parse(bytes).is_ok_and(|elf| functions.iter().any(|function| elf.defines(function)))
}

/// Whether a library handles exceptions by an unwinder of its own: quick, where [`Image::parse`]
/// reads all code. False where it is no x86-64 program.
#[must_use]
pub fn unwinds_by_itself(bytes: Vec<u8>) -> bool {
    let has_tables = |elf: &Elf| {
        let frames = unwinding(elf).map(|(_, frames)| frames).unwrap_or_default();
        frames.iter().any(|frame| frame.range.lsda.is_some())
    };
    Elf::parse(bytes).is_ok_and(|elf| elf.has_own_unwinder(false) && has_tables(&elf))
}

/// Whether anything in a file's headers speaks against laying it out again: quick, where
/// [`Image::parse`] reads all code.
///
/// # Errors
/// As [`Image::parse`]; what that finds later is not found here.
pub fn preflight(bytes: Vec<u8>) -> Result<(), Error> {
    let elf = Elf::parse(bytes)?;
    runtimes::decline_packed(&elf)?;
    let found = unwinding(&elf);
    if found.is_err() {
        // What made the file says more than what it lacks.
        runtimes::decline(&elf)?;
    }
    found.map(drop)
}

/// The functions of a file, by its unwind information.
fn unwinding(elf: &Elf) -> Result<(unwind::Section, Vec<Frame>), Error> {
    let eh_frame = unwind::Section::find(elf)?;
    if elf.is_static() {
        return Err(Error::Static);
    }
    let frames = eh_frame.frames(elf)?;
    if frames.is_empty() {
        return Err(Error::NoEhFrame);
    }
    Ok((eh_frame, frames))
}

impl Image {
    /// Reads a file's bytes.
    ///
    /// # Errors
    /// It is no such file, or one that cannot be laid out again: see [`Error`].
    pub fn parse(bytes: Vec<u8>) -> Result<Self, Error> {
        let elf = Elf::parse(bytes)?;
        runtimes::decline(&elf)?;
        let (eh_frame, mut frames) = unwinding(&elf)?;
        mark_special(&elf, &mut frames);
        let functions: Vec<FunctionRange> = frames.iter().map(|frame| frame.range).collect();
        let got_slots = elf
            .slots
            .iter()
            .filter_map(|&(vaddr, symbol)| {
                let symbol = elf.symbol(symbol)?.0.to_owned();
                Some(GotSlot { vaddr, symbol })
            })
            .collect();
        let mut image = Self {
            build_id: elf.build_id.clone().map(BuildId),
            eh_frame,
            frames,
            functions,
            got_slots,
            vtables: Vec::new(),
            inner_targets: Vec::new(),
            taken: Vec::new(),
            caller_sensitive: BTreeSet::new(),
            read_only: Vec::new(),
            elf,
        };
        let found = sweep::sweep(&image);
        image.inner_targets = found.inner_targets;
        image.taken = found.taken;
        image.caller_sensitive = found.caller_sensitive;
        image.read_only = found.read_only;
        image.vtables = vtable::find(&image);
        Ok(image)
    }

    /// The linker's build-id, if the file has one.
    #[must_use]
    pub fn build_id(&self) -> Option<&BuildId> {
        self.build_id.as_ref()
    }

    /// False: it is loaded where it says, with a load bias of 0, and its code cache must lie below
    /// 2 GiB.
    #[must_use]
    pub fn is_position_independent(&self) -> bool {
        self.elf.position_independent
    }

    /// What is loaded, in order of address.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.elf.segments
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

    /// The function that starts at `vaddr`.
    #[must_use]
    pub fn function_from(&self, vaddr: u64) -> Option<FunctionId> {
        self.function_at(vaddr)
            .filter(|id| self.range(*id).start == vaddr)
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
        self.elf.name(self.range(id).start)
    }

    /// Whether it, the program or a library, has an unwinder of its own (`-static-libgcc`).
    #[must_use]
    pub fn has_own_unwinder(&self, is_program: bool) -> bool {
        self.elf.has_own_unwinder(is_program)
    }

    /// Slots through which code reaches other objects, in order of address. What they hold in a
    /// process goes into [`crate::Placement::got`].
    #[must_use]
    pub fn got_slots(&self) -> &[GotSlot] {
        &self.got_slots
    }

    /// The table (`DT_PLTGOT`) whose second word, filled by the dynamic linker, tells it whose stub
    /// asks for a function; a stub pushes that word and a number on top of the return address.
    #[must_use]
    pub fn linkage_table(&self) -> Option<u64> {
        self.elf.linkage_table()
    }

    /// The slot that a stub of the procedure linkage table at `vaddr` jumps through.
    #[must_use]
    pub fn plt_slot(&self, vaddr: u64) -> Option<u64> {
        if !self.elf.is_executable(vaddr)
            || self
                .function_at(vaddr)
                .is_some_and(|id| self.frame(id).skip != Some(Skip::PltStub))
        {
            return None;
        }
        plt_slot(&self.elf, vaddr).filter(|slot| self.got_symbol(*slot).is_some())
    }

    /// Whether an address lies in the file's own linkage stubs.
    pub(crate) fn is_own_stub(&self, vaddr: u64) -> bool {
        self.elf.is_executable(vaddr)
            && self
                .function_at(vaddr)
                .is_none_or(|id| self.frame(id).skip == Some(Skip::PltStub))
    }

    /// The symbol whose address a slot holds.
    pub(crate) fn got_symbol(&self, slot: u64) -> Option<&str> {
        let index = self
            .got_slots
            .binary_search_by_key(&slot, |slot| slot.vaddr)
            .ok()?;
        Some(&self.got_slots[index].symbol)
    }

    /// Tables of virtual functions, recognised by offset-to-top and type information.
    #[must_use]
    pub fn vtables(&self) -> &[Vtable] {
        &self.vtables
    }

    /// Where what begins at `vaddr` surely has ended: something refers to the bytes there for
    /// themselves.
    pub(crate) fn next_referred(&self, vaddr: u64) -> u64 {
        let after = self.read_only.partition_point(|at| *at <= vaddr);
        self.read_only.get(after).copied().unwrap_or(u64::MAX)
    }

    /// `len` bytes at `vaddr` as the file has them (before relocation), if one segment holds them
    /// all.
    #[must_use]
    pub fn read(&self, vaddr: u64, len: u64) -> Option<&[u8]> {
        self.elf.read(vaddr, len)
    }

    /// Decodes one function.
    ///
    /// # Errors
    /// Why it cannot be moved.
    pub fn analyse(&self, id: FunctionId) -> Result<Function, Skip> {
        crate::flow::analyse(self, id)
    }

    pub(crate) fn frame(&self, id: FunctionId) -> &Frame {
        &self.frames[id.0 as usize]
    }

    pub(crate) fn unwind(&self, id: FunctionId) -> Result<Unwind, Skip> {
        self.eh_frame.unwind(&self.elf, self.frame(id))
    }

    pub(crate) fn lsda(&self, range: FunctionRange) -> Result<Option<Lsda>, Skip> {
        let Some(at) = range.lsda else {
            return Ok(None);
        };
        Lsda::parse(&self.elf, at, range.start)
            .filter(Lsda::is_emittable)
            .map(Some)
            .ok_or(Skip::ExceptionTable)
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Image")
            .field("build_id", &self.build_id)
            .field("bytes", &self.elf.bytes.len())
            .field("functions", &self.functions.len())
            .finish_non_exhaustive()
    }
}

/// The slot of a stub: `jmp *slot(%rip)`, behind an `endbr64` or not, with a `bnd` prefix or not.
fn plt_slot(elf: &Elf, vaddr: u64) -> Option<u64> {
    let bytes = elf.from(vaddr)?;
    let mut at = 0;
    if bytes.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) {
        at += 4;
    }
    if bytes.get(at) == Some(&0xf2) {
        at += 1;
    }
    if bytes.get(at..at + 2)? != [0xff, 0x25] {
        return None;
    }
    let displacement = i32::from_le_bytes(bytes.get(at + 2..at + 6)?.try_into().ok()?);
    (vaddr + at as u64 + 6).checked_add_signed(displacement.into())
}

/// Marks what must not be moved for what it is.
fn mark_special(elf: &Elf, frames: &mut [Frame]) {
    let plt: Vec<(u64, u64)> = elf
        .sections
        .iter()
        .filter(|(name, _)| name.starts_with(".plt"))
        .map(|(_, section)| *section)
        .collect();
    let critical = critical_sections(elf);
    for frame in frames {
        let FunctionRange { start, end, .. } = frame.range;
        let skip = if plt
            .iter()
            .any(|&(at, size)| at <= start && start < at.saturating_add(size))
            || plt_slot(elf, start).is_some_and(|slot| elf.relocation_at(slot).is_some())
        {
            Skip::PltStub
        } else if (start..end).contains(&elf.entry) {
            Skip::EntryPoint
        } else if critical.iter().any(|&(from, to)| from < end && start < to) {
            Skip::RestartableSequence
        } else {
            continue;
        };
        frame.skip = Some(skip);
    }
}

/// Restartable sequences: 32-byte descriptors of version, flags, start, length and abort address
/// (linux/rseq.h), in a section of this name by convention of librseq and tcmalloc.
fn critical_sections(elf: &Elf) -> Vec<(u64, u64)> {
    let Some(&(at, size)) = elf.sections.get("__rseq_cs") else {
        return Vec::new();
    };
    let pointer = |slot: u64| match elf.relocation_at(slot) {
        Some(Value::Relative(addend)) => Some(addend),
        _ => elf.u64_at(slot),
    };
    let mut found = Vec::new();
    for entry in (0..size.min(1 << 20) / 32).filter_map(|index| at.checked_add(32 * index)) {
        let (Some(start), Some(len), Some(abort)) = (
            entry.checked_add(8).and_then(pointer),
            entry.checked_add(16).and_then(|at| elf.u64_at(at)),
            entry.checked_add(24).and_then(pointer),
        ) else {
            continue;
        };
        found.push((start, start.saturating_add(len)));
        found.push((abort, abort.saturating_add(1)));
    }
    found
}
