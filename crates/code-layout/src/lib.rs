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

mod address_taken;
mod assemble;
mod binary;
mod bounds;
mod branches;
mod build_id;
mod call_graph;
mod caller_sensitive;
mod check;
mod constants;
mod counters;
mod elf;
mod emit;
mod emitted;
mod error;
mod ext_tsp;
mod flags;
mod flow;
mod footprint;
mod frames;
mod image;
mod instruction;
mod jump_table;
mod link;
mod lookup;
mod lsda;
mod map;
mod operands;
mod patches;
mod plan;
mod profile;
mod runtimes;
mod sweep;
mod symbols;
mod tables;
mod unwind;
mod vtable;
mod walk;

pub use binary::{FunctionId, GotSlot, build_id, defines, preflight, unwinds_by_itself};
pub use branches::Branches;
pub use build_id::BuildId;
pub use check::check;
pub use elf::LoadSegment;
pub use emit::emit;
pub use emitted::{
    CallSites, CounterAddressing, CounterArea, Emitted, Patch, PatchKind, PatchSelection, Placement,
};
pub use error::{Error, Skip, Skipped};
pub use flow::{BasicBlock, BlockId, Call, Function, Terminator};
pub use footprint::{Footprint, footprints};
pub use image::Image;
pub use jump_table::JumpTable;
pub use lookup::Lookup;
pub use map::{AddressMap, InstructionMapping};
pub use plan::{LayoutOrder, LayoutPlan};
pub use profile::{Edge, FunctionCounts, Profile};
pub use symbols::symbol_file;
pub use unwind::FunctionRange;
pub use vtable::Vtable;
