//! A function that finds how moved code is unwound, with the interface of libgcc's
//! `_Unwind_Find_FDE` (libgcc/unwind-dw2-fde.h in GCC): an address goes in, the frame description
//! entry that covers it comes out, and the start of its function. It takes no lock and no memory,
//! so it can be called wherever code may throw, also in a child that was forked while other threads
//! were looking. What it does not know it asks the next one for.

use std::ops::Range;

use gimli::{BaseAddresses, CieOrFde, EhFrame, EndianSlice, LittleEndian, UnwindSection};
use serde::{Deserialize, Serialize};

/// Where such a function lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lookup {
    /// Its runtime address.
    pub entry: u64,
    /// Runtime address of the 8 bytes, aligned, that hold the address of the function that it goes
    /// on in: `_Unwind_Find_FDE` itself, or another of this kind. Zero as emitted.
    pub next: u64,
}

/// `dwarf_fde *find(void *pc, struct dwarf_eh_bases *bases)`. The operands to fill in are zero.
const CODE: &[u8] = &[
    0xf3, 0x0f, 0x1e, 0xfa, // endbr64
    0x48, 0x8d, 0x15, 0, 0, 0, 0, // lea rdx, [rip + BASE]
    0x48, 0x89, 0xf8, // mov rax, rdi
    0x48, 0x29, 0xd0, // sub rax, rdx
    0x48, 0x3d, 0, 0, 0, 0, // cmp rax, LENGTH
    0x73, 0x5f, // jae next
    0x4c, 0x8d, 0x05, 0, 0, 0, 0, // lea r8, [rip + TABLE]
    0x31, 0xc9, // xor ecx, ecx
    0x41, 0xb9, 0, 0, 0, 0, // mov r9d, COUNT
    // again: the number of entries that begin at or below eax is in ecx ..= r9d
    0x44, 0x39, 0xc9, // cmp ecx, r9d
    0x73, 0x1c, // jae done
    0x46, 0x8d, 0x14, 0x09, // lea r10d, [rcx + r9]
    0x41, 0xd1, 0xea, // shr r10d, 1
    0x4f, 0x8d, 0x1c, 0x52, // lea r11, [r10 + r10 * 2]
    0x43, 0x39, 0x04, 0x98, // cmp [r8 + r11 * 4], eax
    0x77, 0x06, // ja lower
    0x41, 0x8d, 0x4a, 0x01, // lea ecx, [r10 + 1]
    0xeb, 0xe4, // jmp again
    0x45, 0x89, 0xd1, // lower: mov r9d, r10d
    0xeb, 0xdf, // jmp again
    0x83, 0xe9, 0x01, // done: sub ecx, 1
    0x72, 0x2a, // jb next
    0x4c, 0x8d, 0x1c, 0x49, // lea r11, [rcx + rcx * 2]
    0x4f, 0x8d, 0x04, 0x98, // lea r8, [r8 + r11 * 4]
    0x41, 0x39, 0x40, 0x04, // cmp [r8 + 4], eax
    0x76, 0x1c, // jbe next
    0x41, 0x8b, 0x08, // mov ecx, [r8]
    0x48, 0x01, 0xd1, // add rcx, rdx
    0x41, 0x8b, 0x40, 0x08, // mov eax, [r8 + 8]
    0x48, 0x01, 0xd0, // add rax, rdx
    0x45, 0x31, 0xc9, // xor r9d, r9d
    0x4c, 0x89, 0x0e, // mov [rsi], r9 (tbase)
    0x4c, 0x89, 0x4e, 0x08, // mov [rsi + 8], r9 (dbase)
    0x48, 0x89, 0x4e, 0x10, // mov [rsi + 16], rcx (func)
    0xc3, // ret
    0xff, 0x25, 0, 0, 0, 0, // next: jmp [rip + NEXT]
];

/// Where in [`CODE`] the operands are, each of 4 bytes.
const BASE: usize = 7;
const LENGTH: usize = 19;
const TABLE: usize = 28;
const COUNT: usize = 36;
const NEXT: usize = 122;

/// An entry of the table, from the base: first byte covered, first byte behind, frame description
/// entry.
const ENTRY_BYTES: usize = 12;

/// Offsets in the emitted bytes, before the table is filled.
#[derive(Debug)]
pub(crate) struct Place {
    code: usize,
    next: usize,
    table: usize,
    count: usize,
}

/// Makes room for the function at the end of `bytes`, and for a table of `count` entries.
pub(crate) fn reserve(bytes: &mut Vec<u8>, count: usize) -> Place {
    let code = bytes.len().next_multiple_of(16);
    let next = (code + CODE.len()).next_multiple_of(8);
    let table = next + 8;
    bytes.resize(table + count * ENTRY_BYTES, 0);
    Place {
        code,
        next,
        table,
        count,
    }
}

impl Place {
    /// The bytes that are code.
    pub(crate) fn code(&self) -> Range<usize> {
        self.code..self.code + CODE.len()
    }

    /// Writes function and table for the frames in `eh_frame`, which describe code among `bytes`,
    /// whose first one is at `address`. `None` where these are not as many frames as there is room
    /// for.
    pub(crate) fn fill(
        &self,
        bytes: &mut [u8],
        address: u64,
        eh_frame: Range<usize>,
    ) -> Option<Lookup> {
        let mut entries = Vec::with_capacity(self.count);
        let section = EhFrame::new(bytes.get(eh_frame.clone())?, LittleEndian);
        for (range, offset) in frames(&section)? {
            let from_base = |at: u64| u32::try_from(at.wrapping_sub(address)).ok();
            entries.push([
                from_base(range.start)?,
                from_base(range.end)?,
                u32::try_from(eh_frame.start + offset).ok()?,
            ]);
        }
        entries.sort_unstable();
        if entries.len() != self.count {
            return None;
        }
        let table = entries.iter().flatten().flat_map(|word| word.to_le_bytes());
        for (byte, value) in bytes.get_mut(self.table..)?.iter_mut().zip(table) {
            *byte = value;
        }
        let code = bytes.get_mut(self.code())?;
        code.copy_from_slice(CODE);
        let mut put = |field: usize, value: i32| {
            code[field..field + 4].copy_from_slice(&value.to_le_bytes());
        };
        // From behind the field, where these instructions end.
        let distance = |field: usize, to: usize| {
            i32::try_from(to.cast_signed() - (self.code + field + 4).cast_signed()).ok()
        };
        put(BASE, distance(BASE, 0)?);
        put(TABLE, distance(TABLE, self.table)?);
        put(NEXT, distance(NEXT, self.next)?);
        put(COUNT, i32::try_from(self.count).ok()?);
        put(LENGTH, i32::try_from(self.code().end).ok()?);
        Some(Lookup {
            entry: address + self.code as u64,
            next: address + self.next as u64,
        })
    }
}

/// What each frame description entry covers, and its offset.
fn frames(section: &EhFrame<EndianSlice<'_, LittleEndian>>) -> Option<Vec<(Range<u64>, usize)>> {
    // All addresses in it are absolute.
    let bases = BaseAddresses::default();
    let mut frames = Vec::new();
    let mut entries = section.entries(&bases);
    while let Some(entry) = entries.next().ok()? {
        if let CieOrFde::Fde(partial) = entry {
            let fde = partial.parse(EhFrame::cie_from_offset).ok()?;
            let range = fde.initial_address()..fde.end_address();
            frames.push((range, fde.offset()));
        }
    }
    Some(frames)
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;

    #[test]
    fn operands_are_where_the_constants_say() {
        let mut decoder = Decoder::with_ip(64, CODE, 0, DecoderOptions::NONE);
        let mut fields = Vec::new();
        while decoder.can_decode() {
            let instruction = decoder.decode();
            assert!(!instruction.is_invalid());
            let end = usize::try_from(instruction.next_ip()).unwrap();
            if CODE[end - 4..end] == [0; 4] && instruction.len() >= 5 {
                fields.push(end - 4);
            }
        }
        assert_eq!(fields, [BASE, LENGTH, TABLE, COUNT, NEXT]);
    }
}
