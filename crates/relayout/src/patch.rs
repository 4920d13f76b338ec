//! What is written into a process, and taken out of it again.
//!
//! [`patched_process`] is the code cache and its patches, [`manifest`] the record that undoes them.
//! [`calls`] maps memory in the process, [`region`] describes that memory, `patching` writes the
//! patches, [`scan`] and `reclaim` give memory back. [`unwinder`] and `chain` lead the unwinder to
//! moved code, [`moved`] translates addresses, [`family`] does it all to the processes that were
//! forked.

mod calls;
mod chain;
mod family;
pub mod manifest;
pub(crate) mod moved;
pub(crate) mod patched_process;
pub(crate) mod patching;
mod reclaim;
pub(crate) mod region;
mod scan;
pub(crate) mod unwinder;
