//! Why a file cannot be laid out again, and why a function or a piece of one stays where it is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Why nothing can be done with a file, or with a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The first bytes are not those of an ELF file.
    #[error("not an ELF file")]
    NotElf,
    /// A 32-bit file.
    #[error("a 32-bit ELF file: only x86-64 is understood")]
    Not64Bit,
    /// Another machine's code; the number is ELF's `e_machine`.
    #[error("an ELF file for {name} (machine {machine}): only x86-64 is understood")]
    Machine {
        /// `e_machine`.
        machine: u16,
        /// Its name, where it is a usual one.
        name: &'static str,
    },
    /// Neither an executable nor a shared object (an object file, a core dump).
    #[error("ELF type {kind}: neither an executable nor a shared object")]
    NotLoadable {
        /// `e_type`.
        kind: u16,
    },
    /// Packed: the code in the file is not the code that runs.
    #[error("packed by {packer}: the code in the file is not the code that runs")]
    Packed {
        /// The packer's name.
        packer: &'static str,
    },
    /// Linked statically: which functions remember their caller's address (`setjmp`, `dlopen`) is
    /// not known.
    #[error(
        "statically linked: without dynamic symbols, functions that remember their caller's address (setjmp) cannot be told from others"
    )]
    Static,
    /// Nothing says where functions begin and end, nor how their frames are unwound.
    #[error("no .eh_frame: where functions begin and end, and how frames unwind, is not known")]
    NoEhFrame,
    /// A language whose runtime walks the stack by tables of its own, which know nothing of moved
    /// code.
    #[error("built by {name}: {why}")]
    Runtime {
        /// The language or compiler.
        name: &'static str,
        /// What would go wrong.
        why: &'static str,
    },
    /// The file contradicts itself, or ends too early.
    #[error("malformed ELF file: {what}")]
    Malformed {
        /// What is wrong.
        what: String,
    },
    /// The new code would be out of reach of the old: a displacement has 32 bits.
    #[error(
        "code cache at {cache:#x} is out of reach of {target:#x}: at most 2 GiB may lie between"
    )]
    OutOfReach {
        /// Where the cache was to be.
        cache: u64,
        /// What it must reach.
        target: u64,
    },
    /// The code does not fit.
    #[error("{needed} bytes of code do not fit into a code cache of {room} bytes")]
    TooLarge {
        /// Bytes emitted.
        needed: u64,
        /// Bytes there are.
        room: u64,
    },
    /// A plan with counters was emitted without a place for them.
    #[error("the plan has counters, but the placement names no place for them")]
    Counters,
    /// What was emitted is not what was meant: a defect of this crate, found by [`crate::check`].
    #[error("emitted code at {address:#x} is wrong: {what}")]
    Wrong {
        /// Address in the code cache.
        address: u64,
        /// What is wrong there.
        what: String,
    },
}

/// Why a function, a patch or a piece of code stays as it is. Always a loss of speed, never an
/// error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Skip {
    /// Function: its unwind information overlaps another's, or is not understood.
    UnwindInfo,
    /// Function: a signal trampoline, which unwinders and debuggers recognise by its bytes.
    SignalFrame,
    /// Function: a stub of the procedure linkage table.
    PltStub,
    /// Function: the process's entry point, which runs once.
    EntryPoint,
    /// Function: its bytes are not in the file, or its first instruction cannot be decoded.
    Undecodable,
    /// Function: instructions overlap (a jump into the middle of another instruction).
    OverlappingCode,
    /// Function: holds a restartable sequence, which the kernel knows by its address.
    RestartableSequence,
    /// Function: its language-specific data cannot be written again.
    ExceptionTable,
    /// Function: nothing of it can be emitted.
    NothingToEmit,
    /// Function: far longer than any compiler's output; left alone to bound the work.
    TooLong,
    /// Entry not patched: fewer than 5 bytes long.
    EntryTooShort,
    /// Entry not patched: a branch or a return leads into its first 5 bytes.
    EntryBranchTarget,
    /// Entry not patched: a jump that is not understood could lead into its first 5 bytes.
    EntryUnknownTarget,
    /// Jump: through a register, no table recognised; copied, continues in old code.
    IndirectJump,
    /// Block: a hardware transaction's begin.
    Transaction,
    /// Block: `loop` or `jrcxz`, which only exist with a short displacement.
    ShortBranch,
    /// Block: a call that remembers its caller's address (`setjmp`, `dlopen`, `vfork` and their
    /// kind).
    CallerSensitive,
    /// Block: calls its own middle to learn its address.
    CallsItself,
    /// Function or block: an address in it is held somewhere, perhaps to be compared with where a
    /// thread is.
    AddressTaken,
    /// Vtable slot or call site: out of reach, or not as expected.
    PatchSite,
}

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::UnwindInfo => {
                "unwind information that overlaps another function's, or is not understood"
            }
            Self::SignalFrame => "a signal trampoline, which unwinders know by its bytes",
            Self::PltStub => "a stub of the procedure linkage table",
            Self::EntryPoint => "the process's entry point, which runs once",
            Self::Undecodable => "bytes that are not in the file, or no instructions",
            Self::OverlappingCode => "instructions that overlap",
            Self::RestartableSequence => {
                "a restartable sequence, which the kernel knows by its address"
            }
            Self::ExceptionTable => "an exception table that cannot be written again",
            Self::NothingToEmit => "nothing of it can be moved",
            Self::TooLong => "far longer than any compiler's output",
            Self::EntryTooShort => "an entry of fewer than 5 bytes",
            Self::EntryBranchTarget => "an entry that a branch or a return leads into",
            Self::EntryUnknownTarget => {
                "an entry that a jump which is not understood could lead into"
            }
            Self::IndirectJump => {
                "a jump through a register without a known table, which goes on in old code"
            }
            Self::Transaction => "a hardware transaction's begin",
            Self::ShortBranch => "a loop or jrcxz, which reaches 127 bytes only",
            Self::CallerSensitive => {
                "a call that remembers its caller's address (setjmp, dlopen, vfork and their kind)"
            }
            Self::CallsItself => "a call of its own middle, to learn its address",
            Self::AddressTaken => {
                "an address inside that is held somewhere, perhaps to be compared with where a thread is"
            }
            Self::PatchSite => {
                "a vtable slot or call site that is out of reach, or not as expected"
            }
        })
    }
}

/// How many were skipped, by reason.
pub type Skipped = BTreeMap<Skip, u64>;
