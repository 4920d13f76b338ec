//! An ELF file with its functions and the slots that calls go through, before any of its code is
//! read.

use crate::elf::build_id::BuildId;
use crate::elf::runtimes;
use crate::elf::unwind::{self, Frame, FunctionRange};
use crate::elf::{Elf, Value};
use crate::error::{Error, Skip};

/// What a patched entry needs: a jump with 32 bits of displacement.
pub(crate) const ENTRY_BYTES: u64 = 5;

/// Index of a function in [`crate::Image::functions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u32);

/// A slot that the dynamic linker fills with another object's address; calls go through it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GotSlot {
    /// Where it lies (vaddr).
    pub vaddr: u64,
    /// The symbol that it is filled with.
    pub symbol: String,
}

/// A file whose headers and unwind information are understood.
pub(crate) struct Binary {
    pub(crate) elf: Elf,
    pub(crate) build_id: Option<BuildId>,
    pub(crate) eh_frame: unwind::Section,
    frames: Vec<Frame>,
    pub(crate) functions: Vec<FunctionRange>,
    pub(crate) got_slots: Vec<GotSlot>,
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

/// Whether a library handles exceptions by an unwinder of its own: quick, where
/// [`crate::Image::parse`] reads all code. False where it is no x86-64 program.
#[must_use]
pub fn unwinds_by_itself(bytes: Vec<u8>) -> bool {
    let has_tables = |elf: &Elf| {
        let frames = unwinding(elf).map(|(_, frames)| frames).unwrap_or_default();
        frames.iter().any(|frame| frame.range.lsda.is_some())
    };
    Elf::parse(bytes).is_ok_and(|elf| elf.has_own_unwinder(false) && has_tables(&elf))
}

/// Whether anything in a file's headers speaks against laying it out again: quick, where
/// [`crate::Image::parse`] reads all code.
///
/// # Errors
/// As [`crate::Image::parse`]; what that finds later is not found here.
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

impl Binary {
    pub(crate) fn parse(bytes: Vec<u8>) -> Result<Self, Error> {
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
        Ok(Self {
            build_id: elf.build_id.clone().map(BuildId),
            eh_frame,
            frames,
            functions,
            got_slots,
            elf,
        })
    }

    /// The function whose range holds `vaddr`.
    pub(crate) fn function_at(&self, vaddr: u64) -> Option<FunctionId> {
        let after = self.functions.partition_point(|range| range.start <= vaddr);
        let index = after.checked_sub(1)?;
        let id = FunctionId(u32::try_from(index).ok()?);
        (vaddr < self.functions[index].end).then_some(id)
    }

    /// The function that starts at `vaddr`.
    pub(crate) fn function_from(&self, vaddr: u64) -> Option<FunctionId> {
        self.function_at(vaddr)
            .filter(|id| self.range(*id).start == vaddr)
    }

    /// One function's range.
    pub(crate) fn range(&self, id: FunctionId) -> FunctionRange {
        self.functions[id.0 as usize]
    }

    /// The slot that a stub of the procedure linkage table at `vaddr` jumps through.
    pub(crate) fn plt_slot(&self, vaddr: u64) -> Option<u64> {
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

    pub(crate) fn frame(&self, id: FunctionId) -> &Frame {
        &self.frames[id.0 as usize]
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
