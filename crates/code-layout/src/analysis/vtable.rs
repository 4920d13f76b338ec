//! Tables of virtual functions, found by their shape in the Itanium C++ ABI (2.5): offset-to-top, a
//! pointer to type information, then function pointers. What follows may be a constant table of
//! functions: where that begins is known by what refers to it.

use std::collections::HashSet;

use crate::analysis::sweep::Sweep;
use crate::elf::Value;
use crate::elf::binary::Binary;

/// Offsets to top are small and negative; beyond this, it is something else.
const OFFSET_TO_TOP_MIN: i64 = -(1 << 24);

/// A table of virtual functions: behind offset-to-top and type information, slots of pointers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vtable {
    /// (slot, function's start), both vaddrs; only slots that hold a function's start.
    pub slots: Vec<(u64, u64)>,
}

pub(crate) fn find(binary: &Binary, sweep: &Sweep) -> Vec<Vtable> {
    let elf = &binary.elf;
    // A type information's first word points at one of the ABI library's own vtables.
    let type_infos: HashSet<u64> = elf
        .relocations
        .iter()
        .filter_map(|&(slot, value)| match value {
            Value::Symbol(index, _) => elf
                .symbol(index)
                .is_some_and(|(name, _)| name.starts_with("_ZTVN10__cxxabiv1"))
                .then_some(slot),
            Value::Relative(_) => None,
        })
        .collect();
    if type_infos.is_empty() {
        return Vec::new();
    }
    let function = |value| {
        let target = elf.target(value)?;
        binary.function_from(target).map(|_| target)
    };
    let mut vtables = Vec::new();
    for (index, &(slot, value)) in elf.relocations.iter().enumerate() {
        let Some(type_info) = elf.target(value) else {
            continue;
        };
        let Some(top) = slot.checked_sub(8) else {
            continue;
        };
        let top_is_offset = elf.relocation_at(top).is_none()
            && elf.u64_at(top).is_some_and(|value| {
                let offset = value.cast_signed();
                offset % 8 == 0 && (OFFSET_TO_TOP_MIN..=0).contains(&offset)
            });
        if !type_infos.contains(&type_info)
            || !top_is_offset
            || !elf.is_read_only(top, slot.saturating_add(8))
        {
            continue;
        }
        let mut slots = Vec::new();
        let rest = elf.relocations[index + 1..].iter();
        // Objects refer to its first slot. At another one that something refers to begins what is
        // not of it.
        let end = sweep.next_referred(slot.saturating_add(8));
        for (at, &(slot, value)) in (slot + 8..).step_by(8).zip(rest) {
            if at != slot || slot >= end || !elf.is_read_only(slot, slot.saturating_add(8)) {
                break;
            }
            match (function(value), value) {
                (Some(target), _) => slots.push((slot, target)),
                // A function of another object (a pure virtual's stub, an inherited one).
                (None, Value::Symbol(..)) if !type_infos.contains(&slot) => {}
                (None, _) => break,
            }
        }
        if !slots.is_empty() {
            vtables.push(Vtable { slots });
        }
    }
    vtables
}
