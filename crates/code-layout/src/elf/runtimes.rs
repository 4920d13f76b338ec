//! Files that are declined for what made them: packers, and languages whose runtime finds its way
//! on the stack by tables of return addresses that know nothing of moved code.

use memchr::memmem;

use crate::elf::Elf;
use crate::error::Error;

struct Runtime {
    name: &'static str,
    why: &'static str,
    sections: &'static [&'static str],
    /// Text that its runtime library holds and nothing else does.
    marker: &'static [u8],
}

const RUNTIMES: &[Runtime] = &[
    Runtime {
        name: "Go",
        why: "its runtime unwinds and grows stacks by tables of its own (pclntab), which know nothing of moved code",
        sections: &[".gopclntab", ".go.buildinfo"],
        marker: b"\xff Go buildinf:",
    },
    Runtime {
        name: "OCaml",
        why: "its garbage collector looks return addresses up in frame tables, which know nothing of moved code",
        sections: &[],
        marker: b"OCAMLRUNPARAM\0",
    },
    Runtime {
        name: "GHC (Haskell)",
        why: "its runtime reads info tables that lie before the code",
        sections: &[],
        marker: b"GHCRTS\0",
    },
    Runtime {
        name: "GraalVM native-image",
        why: "its garbage collector looks return addresses up in code information of its own",
        sections: &[".svm_heap"],
        marker: b"",
    },
    Runtime {
        name: ".NET native AOT",
        why: "its runtime unwinds and collects garbage by tables of its own",
        sections: &["__managedcode", ".managed"],
        marker: b"",
    },
];

/// # Errors
/// [`Error::Packed`].
pub(crate) fn decline_packed(elf: &Elf) -> Result<(), Error> {
    // UPX strips the section headers and leaves its mark behind the program headers.
    match elf.sections.is_empty()
        && memmem::find(&elf.bytes[..elf.bytes.len().min(1024)], b"UPX!").is_some()
    {
        true => Err(Error::Packed { packer: "UPX" }),
        false => Ok(()),
    }
}

/// # Errors
/// The file is one of these.
pub(crate) fn decline(elf: &Elf) -> Result<(), Error> {
    decline_packed(elf)?;
    for runtime in RUNTIMES {
        let by_section = runtime
            .sections
            .iter()
            .any(|name| elf.sections.contains_key(*name));
        if by_section
            || !runtime.marker.is_empty() && memmem::find(&elf.bytes, runtime.marker).is_some()
        {
            return Err(Error::Runtime {
                name: runtime.name,
                why: runtime.why,
            });
        }
    }
    Ok(())
}
