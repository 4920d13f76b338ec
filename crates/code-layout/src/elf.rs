//! The parts of an ELF file that loading it needs: segments, dynamic section, relocations, symbols.
//!
//! Section headers are only used for names; a file without them is understood all the same.
//!
//! [`binary`] is such a file with its functions, [`unwind`] and [`lsda`] are its unwind information
//! and its exception tables. [`build_id`] names the file, [`runtimes`] says which files are
//! declined.

pub(crate) mod binary;
pub(crate) mod build_id;
pub(crate) mod lsda;
mod runtimes;
pub(crate) mod unwind;

use std::collections::BTreeMap;
use std::ops::Range;

use object::LittleEndian;
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};

use crate::error::Error;

const ENDIAN: LittleEndian = LittleEndian;

/// More than any real file has; bounds the work on a malformed one.
const DYNAMIC_ENTRIES_MAX: u64 = 1024;

/// A loaded part of the file (`PT_LOAD`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadSegment {
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

/// What one relocation makes the dynamic linker write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    /// The load bias plus this.
    Relative(u64),
    /// Symbol of this index, plus this.
    Symbol(u32, i64),
}

/// A file's headers and relocations, with the bytes.
pub(crate) struct Elf {
    pub(crate) bytes: Vec<u8>,
    pub(crate) segments: Vec<LoadSegment>,
    pub(crate) position_independent: bool,
    pub(crate) entry: u64,
    pub(crate) build_id: Option<Vec<u8>>,
    pub(crate) eh_frame_hdr: Option<(u64, u64)>,
    /// Read-only once relocated (`PT_GNU_RELRO`).
    pub(crate) relro: Option<(u64, u64)>,
    /// Sections by name: address and size.
    pub(crate) sections: BTreeMap<String, (u64, u64)>,
    /// (slot, value), in order of slot.
    pub(crate) relocations: Vec<(u64, Value)>,
    /// (slot, symbol), in order, of those that calls go through (`GLOB_DAT`, `JUMP_SLOT`).
    pub(crate) slots: Vec<(u64, u32)>,
    has_interpreter: bool,
    dynamic: BTreeMap<u64, u64>,
    /// Functions' names: (address, offset into the file of the name).
    names: Vec<(u64, u32)>,
    /// What the file's symbols name: (address, `STT_FUNC` and the like), in order.
    symbols: Vec<(u64, u8)>,
}

/// It is a file for these CPUs.
fn check_machine(bytes: &[u8]) -> Result<(), Error> {
    if bytes.len() < 20 || bytes[..4] != elf::ELFMAG {
        return Err(Error::NotElf);
    }
    if bytes[4] != elf::ELFCLASS64.0 {
        return Err(Error::Not64Bit);
    }
    let machine = u16::from_le_bytes([bytes[18], bytes[19]]);
    if machine != elf::EM_X86_64.0 {
        let name = match machine {
            183 => "aarch64",
            243 => "RISC-V",
            21 => "64-bit PowerPC",
            22 => "s390",
            258 => "LoongArch",
            _ => "another architecture",
        };
        return Err(Error::Machine { machine, name });
    }
    Ok(())
}

/// `None` of one that lies outside the file or memory.
fn segment_of(program: &ProgramHeader64<LittleEndian>, file_len: u64) -> Option<LoadSegment> {
    let vaddr = program.p_vaddr(ENDIAN);
    let memory_bytes = program.p_memsz(ENDIAN);
    let file_offset = program.p_offset(ENDIAN);
    let file_bytes = program.p_filesz(ENDIAN);
    let in_file = file_offset
        .checked_add(file_bytes)
        .is_some_and(|end| end <= file_len);
    // User addresses have 47 bits.
    let in_memory = vaddr
        .checked_add(memory_bytes)
        .is_some_and(|end| end < 1 << 47);
    if !in_file || !in_memory || file_bytes > memory_bytes {
        return None;
    }
    let flags = program.p_flags(ENDIAN);
    Some(LoadSegment {
        vaddr,
        memory_bytes,
        file_offset,
        file_bytes,
        executable: flags.0 & elf::PF_X.0 != 0,
        writable: flags.0 & elf::PF_W.0 != 0,
    })
}

impl Elf {
    pub(crate) fn parse(bytes: Vec<u8>) -> Result<Self, Error> {
        check_machine(&bytes)?;
        let malformed = |what: &str| Error::Malformed { what: what.into() };
        let data = bytes.as_slice();
        let header = FileHeader64::<LittleEndian>::parse(data)
            .map_err(|error| malformed(&error.to_string()))?;
        let kind = header.e_type.get(ENDIAN);
        if kind != elf::ET_EXEC && kind != elf::ET_DYN {
            return Err(Error::NotLoadable { kind: kind.0 });
        }
        let program_headers = header
            .program_headers(ENDIAN, data)
            .map_err(|error| malformed(&error.to_string()))?;
        let mut segments = Vec::new();
        let mut eh_frame_hdr = None;
        let mut relro = None;
        let mut dynamic_at = None;
        let mut build_id = None;
        let mut has_interpreter = false;
        for program in program_headers {
            let vaddr = program.p_vaddr(ENDIAN);
            let memory_bytes = program.p_memsz(ENDIAN);
            match program.p_type(ENDIAN) {
                elf::PT_LOAD => {
                    let segment = segment_of(program, data.len() as u64);
                    segments.push(
                        segment.ok_or_else(|| {
                            malformed("a segment lies outside the file or memory")
                        })?,
                    );
                }
                elf::PT_GNU_EH_FRAME => eh_frame_hdr = Some((vaddr, memory_bytes)),
                elf::PT_GNU_RELRO => relro = Some((vaddr, vaddr.saturating_add(memory_bytes))),
                elf::PT_DYNAMIC => dynamic_at = Some(vaddr),
                elf::PT_INTERP => has_interpreter = true,
                elf::PT_NOTE if build_id.is_none() => {
                    build_id = program
                        .notes(ENDIAN, data)
                        .ok()
                        .flatten()
                        .and_then(find_build_id);
                }
                _ => {}
            }
        }
        segments.sort_by_key(|segment| segment.vaddr);
        if segments
            .windows(2)
            .any(|pair| pair[0].vaddr + pair[0].memory_bytes > pair[1].vaddr)
        {
            return Err(malformed("segments overlap"));
        }
        let (sections, names, symbols) = sections_and_names(header, data);
        let (entry, position_independent) = (header.e_entry.get(ENDIAN), kind == elf::ET_DYN);
        let mut elf = Self {
            bytes,
            segments,
            position_independent,
            entry,
            build_id,
            eh_frame_hdr,
            relro,
            sections,
            relocations: Vec::new(),
            slots: Vec::new(),
            has_interpreter,
            dynamic: BTreeMap::new(),
            names,
            symbols,
        };
        if let Some(at) = dynamic_at {
            elf.read_dynamic(at);
        }
        elf.read_relocations();
        Ok(elf)
    }

    /// Bytes of a segment from `vaddr` on, as far as the file has them.
    pub(crate) fn from(&self, vaddr: u64) -> Option<&[u8]> {
        let after = self
            .segments
            .partition_point(|segment| segment.vaddr <= vaddr);
        let segment = &self.segments[after.checked_sub(1)?];
        let inside = vaddr - segment.vaddr;
        if inside >= segment.file_bytes {
            return None;
        }
        let start = usize::try_from(segment.file_offset + inside).ok()?;
        let end = usize::try_from(segment.file_offset + segment.file_bytes).ok()?;
        self.bytes.get(start..end)
    }

    pub(crate) fn read(&self, vaddr: u64, len: u64) -> Option<&[u8]> {
        self.from(vaddr)?.get(..usize::try_from(len).ok()?)
    }

    pub(crate) fn u64_at(&self, vaddr: u64) -> Option<u64> {
        let bytes = self.read(vaddr, 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    pub(crate) fn i32_at(&self, vaddr: u64) -> Option<i32> {
        let bytes = self.read(vaddr, 4)?;
        Some(i32::from_le_bytes(bytes.try_into().ok()?))
    }

    pub(crate) fn is_executable(&self, vaddr: u64) -> bool {
        self.segments.iter().any(|segment| {
            segment.executable
                && vaddr >= segment.vaddr
                && vaddr - segment.vaddr < segment.file_bytes
        })
    }

    /// Whether the program itself cannot write there.
    pub(crate) fn is_read_only(&self, start: u64, end: u64) -> bool {
        let inside = |(from, to): (u64, u64)| start >= from && end <= to;
        self.relro.is_some_and(inside)
            || self.segments.iter().any(|segment| {
                !segment.writable && inside((segment.vaddr, segment.vaddr + segment.memory_bytes))
            })
    }

    pub(crate) fn relocation_at(&self, slot: u64) -> Option<Value> {
        let index = self
            .relocations
            .binary_search_by_key(&slot, |&(at, _)| at)
            .ok()?;
        Some(self.relocations[index].1)
    }

    /// What a slot holds once it is relocated, if that lies in this file.
    pub(crate) fn target(&self, value: Value) -> Option<u64> {
        match value {
            Value::Relative(target) => Some(target),
            Value::Symbol(symbol, addend) => self.symbol(symbol)?.1?.checked_add_signed(addend),
        }
    }

    /// The pointer that 8 bytes of data hold.
    pub(crate) fn pointer_at(&self, slot: u64) -> Option<u64> {
        match self.relocation_at(slot) {
            Some(value) => self.target(value),
            None if self.position_independent => None,
            None => self.u64_at(slot),
        }
    }

    /// A dynamic symbol's name and, if this file defines it, its address.
    pub(crate) fn symbol(&self, index: u32) -> Option<(&str, Option<u64>)> {
        let table = *self.dynamic.get(&5)?;
        let at = self.dynamic.get(&6)?.checked_add(24 * u64::from(index))?;
        let entry = self.read(at, 24)?;
        let word = |range: Range<usize>| little_endian(&entry[range]);
        let name = c_string(self.from(table.checked_add(word(0..4))?)?)?;
        let defined = word(6..8) != 0;
        Some((name, defined.then(|| word(8..16))))
    }

    /// `DT_PLTGOT`.
    pub(crate) fn linkage_table(&self) -> Option<u64> {
        self.dynamic.get(&3).copied()
    }

    /// Whether it defines a function of that name.
    pub(crate) fn defines(&self, function: &str) -> bool {
        let mut names = self.names.iter();
        names.any(|&(_, offset)| {
            let name = self.bytes.get(offset as usize..).and_then(c_string);
            name == Some(function)
        })
    }

    /// Whether it has an unwinder of its own, as `-static-libgcc` links one in: then it asks for
    /// the loaded objects, or, a program, answers that itself, and asks no libgcc for unwinding.
    pub(crate) fn has_own_unwinder(&self, is_program: bool) -> bool {
        let finds = ["dl_iterate_phdr", "_dl_find_object"];
        let calls = |wanted: &dyn Fn(&str) -> bool| {
            let mut symbols = self.slots.iter().filter_map(|slot| self.symbol(slot.1));
            symbols.any(|(symbol, _)| wanted(symbol))
        };
        let answers = || is_program && finds.iter().any(|find| self.defines(find));
        (calls(&|symbol| finds.contains(&symbol)) || answers())
            && !calls(&|symbol| symbol.starts_with("_Unwind_"))
    }

    /// Linked statically: no dynamic section, or one of a position-independent executable without
    /// an interpreter.
    pub(crate) fn is_static(&self) -> bool {
        // DT_FLAGS_1, DF_1_PIE: an executable, not a shared object.
        let executable = self
            .dynamic
            .get(&0x6fff_fffb)
            .is_some_and(|flags| flags & 0x0800_0000 != 0);
        !self.has_interpreter && (!self.position_independent || executable)
    }

    /// What names say is code: functions, and what has no type.
    pub(crate) fn named_code(&self) -> impl Iterator<Item = u64> {
        let code = self.symbols.iter().filter(|&&(_, kind)| kind != 1);
        code.map(|&(at, _)| at)
    }

    /// What names say is data: objects, and what has no type.
    pub(crate) fn named_data(&self) -> impl Iterator<Item = u64> {
        let data = self.symbols.iter().filter(|&&(_, kind)| kind < 2);
        data.map(|&(at, _)| at)
    }

    /// All names of the function that starts at `vaddr`.
    pub(crate) fn names(&self, vaddr: u64) -> impl Iterator<Item = &str> {
        let index = self.names.partition_point(|&(at, _)| at < vaddr);
        self.names[index..]
            .iter()
            .take_while(move |&&(at, _)| at == vaddr)
            .filter_map(|&(_, offset)| c_string(self.bytes.get(offset as usize..)?))
    }

    /// The first name of the function that starts at `vaddr`.
    pub(crate) fn name(&self, vaddr: u64) -> Option<&str> {
        self.names(vaddr).next()
    }

    fn read_dynamic(&mut self, at: u64) {
        for index in 0..DYNAMIC_ENTRIES_MAX {
            let Some(entry) = at.checked_add(index * 16) else {
                break;
            };
            let (Some(tag), Some(value)) = (
                self.u64_at(entry),
                entry.checked_add(8).and_then(|at| self.u64_at(at)),
            ) else {
                break;
            };
            if tag == 0 {
                break;
            }
            self.dynamic.insert(tag, value);
        }
    }

    fn read_relocations(&mut self) {
        let mut found = Vec::new();
        let mut slots = Vec::new();
        let tag = |tag: u64| self.dynamic.get(&tag).copied();
        // DT_RELA, DT_RELASZ; DT_JMPREL, DT_PLTRELSZ: always RELA on this machine.
        for (at, size) in [(tag(7), tag(8)), (tag(23), tag(2))] {
            let (Some(at), Some(size)) = (at, size) else {
                continue;
            };
            let Some(table) = self.read(at, size) else {
                continue;
            };
            for entry in table.chunks_exact(24) {
                let word = |range: Range<usize>| little_endian(&entry[range]);
                let (slot, kind, symbol, addend) =
                    (word(0..8), word(8..12), word(12..16), word(16..24));
                let symbol = u32::try_from(symbol).unwrap_or(0);
                match kind {
                    8 => found.push((slot, Value::Relative(addend))),
                    1 => found.push((slot, Value::Symbol(symbol, addend.cast_signed()))),
                    6 | 7 => {
                        slots.push((slot, symbol));
                        found.push((slot, Value::Symbol(symbol, 0)));
                    }
                    _ => {}
                }
            }
        }
        // DT_RELR, DT_RELRSZ: an even word is an address; an odd one a bitmap of the 63 words
        // behind it.
        if let (Some(at), Some(size)) = (tag(36), tag(35))
            && let Some(table) = self.read(at, size)
        {
            let mut next = 0u64;
            let mut add = |slot: u64| {
                if let Some(addend) = self.u64_at(slot) {
                    found.push((slot, Value::Relative(addend)));
                }
            };
            for entry in table.chunks_exact(8) {
                let word = little_endian(entry);
                if word & 1 == 0 {
                    add(word);
                    next = word.wrapping_add(8);
                } else {
                    for bit in (1..64).filter(|bit| word >> bit & 1 == 1) {
                        add(next.wrapping_add(8 * (bit - 1)));
                    }
                    next = next.wrapping_add(63 * 8);
                }
            }
        }
        found.sort_by_key(|&(slot, _)| slot);
        found.dedup_by_key(|&mut (slot, _)| slot);
        self.relocations = found;
        slots.sort_unstable();
        slots.dedup_by_key(|&mut (slot, _)| slot);
        self.slots = slots;
    }
}

fn find_build_id(
    mut notes: object::read::elf::NoteIterator<'_, FileHeader64<LittleEndian>>,
) -> Option<Vec<u8>> {
    while let Ok(Some(note)) = notes.next() {
        if note.name() == b"GNU" && note.n_type(ENDIAN) == elf::NT_GNU_BUILD_ID {
            return Some(note.desc().to_vec());
        }
    }
    None
}

type SectionsAndNames = (
    BTreeMap<String, (u64, u64)>,
    Vec<(u64, u32)>,
    Vec<(u64, u8)>,
);

/// What the section headers say; nothing where they are missing or damaged.
fn sections_and_names(header: &FileHeader64<LittleEndian>, data: &[u8]) -> SectionsAndNames {
    let mut sections = BTreeMap::new();
    let mut names = Vec::new();
    let mut named = Vec::new();
    let Ok(table) = header.sections(ENDIAN, data) else {
        return (sections, names, named);
    };
    for section in table.iter() {
        let Ok(name) = table.section_name(ENDIAN, section) else {
            continue;
        };
        sections.insert(
            String::from_utf8_lossy(name).into_owned(),
            (section.sh_addr(ENDIAN), section.sh_size(ENDIAN)),
        );
        let kind = section.sh_type(ENDIAN);
        if kind != elf::SHT_SYMTAB && kind != elf::SHT_DYNSYM {
            continue;
        }
        let strings = usize::try_from(section.sh_link(ENDIAN))
            .ok()
            .and_then(|link| table.section(object::SectionIndex(link)).ok())
            .map(|strings| strings.sh_offset(ENDIAN));
        let (Some(strings), Ok(symbols)) = (
            strings,
            section.data_as_array::<elf::Sym64<LittleEndian>, _>(ENDIAN, data),
        ) else {
            continue;
        };
        for symbol in symbols {
            let kind = symbol.st_info.0 & 15;
            // Objects, functions, and what is exported without a type; defined here, and not
            // absolute.
            let known = matches!(kind, 1 | 2 | 10) || kind == 0 && symbol.st_info.0 >> 4 != 0;
            if known && (1..0xff00).contains(&symbol.st_shndx.get(ENDIAN).0) {
                named.push((symbol.st_value.get(ENDIAN), kind));
            }
            // STT_FUNC, or STT_GNU_IFUNC, defined here.
            let at = strings.checked_add(u64::from(symbol.st_name.get(ENDIAN)));
            if matches!(kind, 2 | 10)
                && symbol.st_shndx.get(ENDIAN).0 != 0
                && let Some(Ok(at)) = at.map(u32::try_from)
            {
                names.push((symbol.st_value.get(ENDIAN), at));
            }
        }
    }
    names.sort_unstable();
    names.dedup();
    named.sort_unstable();
    named.dedup();
    (sections, names, named)
}

fn c_string(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().take(4096).position(|byte| *byte == 0)?;
    std::str::from_utf8(&bytes[..end]).ok()
}

/// The number that at most 8 bytes hold.
pub(crate) fn little_endian(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |all, byte| all << 8 | u64::from(*byte))
}
