//! Emitted code as an ELF file for debuggers: names and unwind information at the addresses where
//! they are. `gdb` reads neither what a process's own unwinder finds nor `perf`'s maps, but
//! `add-symbol-file` takes this.

use std::ops::Range;

use object::Endianness;
use object::elf;
use object::write::elf::{FileHeader, SectionHeader, Sym, Writer};

use crate::emit::emitted::Emitted;
use crate::error::Error;

/// The file. `names` has each emitted function's runtime range.
///
/// # Errors
/// [`Error::TooLarge`]: more than an ELF file holds.
pub fn symbol_file(emitted: &Emitted, names: &[(Range<u64>, String)]) -> Result<Vec<u8>, Error> {
    let too_large = |_| Error::TooLarge {
        needed: emitted.bytes.len() as u64,
        room: u64::from(u32::MAX),
    };
    let frames = &emitted.bytes[emitted.eh_frame.clone()];
    let mut bytes = Vec::new();
    let mut writer = Writer::new(Endianness::Little, true, &mut bytes);
    // Sizes and places first.
    writer.reserve_file_header();
    let frames_at = writer.reserve(frames.len() as u64, 8);
    writer.reserve_null_section_index();
    let (code_name, code_index) = (
        writer.add_section_name(b".text"),
        writer.reserve_section_index(),
    );
    let frames_name = writer.add_section_name(b".eh_frame");
    writer.reserve_section_index();
    writer.reserve_symtab_section_index();
    writer.reserve_strtab_section_index();
    writer.reserve_shstrtab_section_index();
    writer.reserve_null_symbol_index();
    let mut strings = Vec::with_capacity(names.len());
    for (_, name) in names {
        strings.push(writer.add_string(name.as_bytes()));
        writer.reserve_symbol_index(Some(code_index));
    }
    writer.reserve_symtab();
    writer.reserve_strtab().map_err(too_large)?;
    writer.reserve_shstrtab().map_err(too_large)?;
    writer.reserve_section_headers();
    // Then everything, in the same order.
    writer
        .write_file_header(&FileHeader {
            os_abi: elf::ELFOSABI_NONE,
            abi_version: 0,
            e_type: elf::ET_EXEC,
            e_machine: elf::EM_X86_64,
            e_entry: 0,
            e_flags: elf::FileFlags::default(),
        })
        .map_err(too_large)?;
    writer.pad_until(frames_at);
    writer.write(frames);
    writer.write_null_symbol();
    for ((range, _), string) in names.iter().zip(strings) {
        let st_name = writer.string_offset(Some(string));
        writer.write_symbol(&Sym {
            section: Some(code_index.0),
            st_name,
            st_info: elf::SymbolInfo::new(elf::STB_GLOBAL, elf::STT_FUNC),
            st_other: elf::SymbolOther::default(),
            st_shndx: elf::SHN_UNDEF,
            st_value: range.start,
            st_size: range.end - range.start,
        });
    }
    writer.write_strtab();
    writer.write_shstrtab();
    writer.write_null_section_header();
    let section = |name, kind, flags: elf::SectionFlags, at: &Range<usize>, offset| SectionHeader {
        sh_name: name,
        sh_type: kind,
        sh_flags: flags,
        sh_addr: emitted.address + at.start as u64,
        sh_offset: offset,
        sh_size: at.len() as u64,
        sh_link: 0,
        sh_info: 0,
        sh_addralign: 1,
        sh_entsize: 0,
    };
    // The code itself is read from the process.
    let name = writer.section_name_offset(Some(code_name));
    let flags = elf::SHF_ALLOC | elf::SHF_EXECINSTR;
    writer.write_section_header(&section(
        name,
        elf::SHT_NOBITS,
        flags,
        &emitted.code,
        frames_at,
    ));
    let name = writer.section_name_offset(Some(frames_name));
    let frames = section(
        name,
        elf::SHT_PROGBITS,
        elf::SHF_ALLOC,
        &emitted.eh_frame,
        frames_at,
    );
    writer.write_section_header(&frames);
    writer.write_symtab_section_header(1);
    writer.write_strtab_section_header();
    writer.write_shstrtab_section_header();
    Ok(bytes)
}
