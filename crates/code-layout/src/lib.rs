//! The machine code of an x86-64 ELF file laid out again: hot blocks in the order in which they
//! run.
//!
//! Bytes and counts come in, code and patches come out; the crate touches no process, reads no
//! file and no clock. README.md beside this crate shows the calls from end to end.
//!
//! What keeps it correct: instruction bytes are copied and only displacements and branches are
//! changed; only blocks that are understood are emitted; every other way out of them leads to the
//! same block in the old code, which stays intact. Registers, flags and the stack hold the same
//! values in new code as in old at corresponding instructions ([`AddressMap`]). [`check`] shows it
//! for what was emitted.
#![forbid(unsafe_code)]

mod analysis;
mod branches;
mod check;
mod elf;
mod emit;
mod error;
mod footprint;
mod plan;
mod profile;

pub use analysis::flow::{BasicBlock, BlockId, Call, Function, Terminator};
pub use analysis::image::Image;
pub use analysis::jump_table::JumpTable;
pub use analysis::vtable::Vtable;
pub use branches::Branches;
pub use check::check;
pub use elf::LoadSegment;
pub use elf::binary::{FunctionId, GotSlot, build_id, defines, preflight, unwinds_by_itself};
pub use elf::build_id::BuildId;
pub use elf::unwind::FunctionRange;
pub use emit::emit;
pub use emit::emitted::{
    CallSites, CounterArea, Emitted, Patch, PatchKind, PatchSelection, Placement,
};
pub use emit::lookup::Lookup;
pub use emit::map::{AddressMap, InstructionMapping};
pub use emit::symbols::symbol_file;
pub use error::{Error, Skip, Skipped};
pub use footprint::{Footprint, footprints};
pub use plan::{LayoutOrder, LayoutPlan};
pub use profile::{Edge, FunctionCounts, Profile};
