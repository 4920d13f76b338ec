//! The machine code of an x86-64 ELF file laid out again: hot blocks in the order in which they run.
//!
//! Bytes and counts come in, code and patches come out; the crate touches no process, reads no
//! file and no clock. README.md beside this crate shows the calls from end to end.
//!
//! What keeps it correct: instruction bytes are copied and only displacements and branches are
//! changed; only blocks that are understood are emitted; every other way out of them leads to the same
//! block in the old code, which stays intact. Registers, flags and the stack hold the same values in new
//! code as in old at corresponding instructions ([`AddressMap`]). [`check`] shows it for what was emitted.
#![forbid(unsafe_code)]

mod emit;
mod error;
mod flow;
mod image;
mod map;
mod plan;
mod profile;

pub use emit::{
    CallSites, CounterAddressing, CounterArea, Emitted, Patch, PatchKind, PatchSelection,
    Placement, check, emit,
};
pub use error::{Error, Skip, Skipped};
pub use flow::{Block, BlockId, Exit, Function, JumpTable};
pub use image::{FunctionId, FunctionRange, GotSlot, Image, Segment, Vtable};
pub use map::{AddressMap, Mapping};
pub use plan::{Order, Plan};
pub use profile::{BuildId, Edge, FunctionCounts, Profile};
