//! Leading a process's unwinder to moved code. libgcc asks its own function `_Unwind_Find_FDE` how
//! a frame is unwound, and calls it through pointers that the dynamic linker fills, as other
//! objects may have one of that name. In place of it those pointers lead to the functions that
//! moved code brings along ([`code_layout::Lookup`]), from one to the next, and at last to where
//! they led before.
//!
//! `__register_frame` is the documented way, but once it was called every search takes a lock
//! (libgcc before 13), which a child that is forked meanwhile finds locked for ever, or the
//! registration takes memory (from 13 on; libgcc/unwind-dw2-fde.c in GCC).
//!
//! [`crate::patch::chain`] writes those pointers.

use code_layout::{FunctionId, Image};
use serde::{Deserialize, Serialize};

use crate::RelayoutError;
use crate::process::maps::{self, LoadedObject, Mapping};
use crate::process::{Object, Process};

/// The function that libgcc calls.
pub(crate) const FIND: &str = "_Unwind_Find_FDE";

/// The functions that unwind (Itanium C++ ABI, "Exception Handling", 1.3; the last two are GCC's).
const UNWINDS: [&str; 5] = [
    "_Unwind_RaiseException",
    "_Unwind_ForcedUnwind",
    "_Unwind_Resume",
    "_Unwind_Resume_or_Rethrow",
    "_Unwind_Backtrace",
];

/// The first byte of a call with 32 bits of displacement, and its length.
const CALL: u8 = 0xe8;
const CALL_BYTES: usize = 5;

/// The unwinder of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unwinder {
    /// libgcc, where it is loaded.
    pub object: LoadedObject,
    /// Where its pointers to the function are that it calls. Before the first call of all they lead
    /// to the dynamic linker.
    pub slots: Vec<u64>,
    /// That function.
    pub find: u64,
    /// The addresses behind the calls.
    pub returns: Vec<u64>,
    /// The dynamic linker's code that is asked for the function before the first call; 0 where all
    /// is asked for at the start.
    pub linker: u64,
    /// What is pushed for it, two words below such an address.
    pub link_map: u64,
}

impl Unwinder {
    /// That of a process, as `known` or as it is found; `None` where it has none.
    ///
    /// # Errors
    /// [`RelayoutError::Declined`] where it cannot be led; as [`Process::image`].
    pub(crate) fn find(
        process: &Process,
        objects: &[Object],
        known: Option<&Self>,
    ) -> Result<Option<Self>, RelayoutError> {
        let is_libgcc = |object: &&Object| {
            let name = object.path.rsplit('/').next().unwrap_or_default();
            name.starts_with("libgcc_s.so")
        };
        let mut found = objects.iter().filter(is_libgcc);
        let Some(object) = found.next() else {
            return Ok(None);
        };
        let is_there = |known: &&Self| {
            let mut mappings = objects.iter().map(|object| &object.mappings);
            mappings.any(|mappings| known.object.is_in(mappings))
        };
        if let Some(known) = known.filter(is_there) {
            return Ok(Some(known.clone()));
        }
        if let Some(other) = found.next() {
            let why = "it is not the only libgcc that is loaded (dlmopen)";
            return Err(process.unfit(&other.path, why));
        }
        if is_another_called(process, objects, object)? {
            return Ok(None);
        }
        let unfit = |why: String| Err(process.unfit(&object.path, why));
        let image = process.image(object)?;
        let memory = &process.memory;
        let is_find = |id: &FunctionId| image.name(*id) == Some(FIND);
        let found = object
            .load_bias(&image)
            .zip(image.function_ids().find(is_find));
        let Some((bias, id)) = found else {
            return unfit(format!("it has no {FIND} that could be led to moved code"));
        };
        let named = image.got_slots().iter().filter(|slot| slot.symbol == FIND);
        let slots: Vec<u64> = named.map(|slot| slot.vaddr.wrapping_add(bias)).collect();
        if slots.is_empty() {
            return unfit(format!(
                "it calls its {FIND} directly, so that cannot be led to moved code"
            ));
        }
        let linkage = |word: u64| match image.linkage_table() {
            Some(table) => memory.word(table.wrapping_add(bias) + 8 * word),
            None => Ok(0),
        };
        let is_slot = |vaddr: u64| slots.contains(&vaddr.wrapping_add(bias));
        let mut unwinder = Self {
            object: object.loaded(),
            find: image.range(id).start.wrapping_add(bias),
            returns: calls_through(&image, is_slot)
                .iter()
                .map(|at| at.wrapping_add(bias))
                .collect(),
            link_map: linkage(1)?,
            linker: linkage(2)?,
            slots: Vec::new(),
        };
        let maps = process.maps()?;
        for slot in &slots {
            let value = memory.word(*slot)?;
            if !maps::at(&maps, value).is_some_and(Mapping::is_file_code) {
                return unfit(led_by_others(*slot));
            }
            let defines = |other: &&Object| {
                let file = || process.file(other).unwrap_or_default();
                other.path != object.path && code_layout::defines(file(), &[FIND])
            };
            if !unwinder.object.contains(value) {
                unwinder.find = value;
            } else if unwinder.is_unbound(value)
                && let Some(other) = objects.iter().find(defines)
            {
                return unfit(format!(
                    "{} has a {FIND} as well: which of them it will call is not known",
                    other.path
                ));
            }
        }
        unwinder.slots = slots;
        Ok(Some(unwinder))
    }

    /// Whether the dynamic linker has not yet been asked for the function, or is being asked.
    pub(crate) fn is_unbound(&self, value: u64) -> bool {
        self.object.contains(value) && value != self.find
    }

    /// Whether a thread with these words on its stack, from the stack pointer on, has called the
    /// function and may be on its way through the dynamic linker.
    pub(crate) fn is_asked_by(&self, words: &[u64]) -> bool {
        words.iter().enumerate().any(|(at, word)| {
            // At first nothing is pushed yet, or only the function's number.
            let is_pushed = |at: usize| words[at] == self.link_map;
            self.returns.contains(word) && at.checked_sub(2).is_none_or(is_pushed)
        })
    }
}

/// Whether frames may be unwound by another object than libgcc, as libunwind has functions of the
/// same names, and looks for frames by itself.
fn is_another_called(
    process: &Process,
    objects: &[Object],
    libgcc: &Object,
) -> Result<bool, RelayoutError> {
    let others = || objects.iter().filter(|other| other.path != libgcc.path);
    let has_some = |other: &Object| {
        let file = process.file(other).unwrap_or_default();
        code_layout::defines(file, &UNWINDS)
    };
    if !others().any(has_some) {
        return Ok(false);
    }
    let loaded = libgcc.loaded();
    for object in others() {
        // What cannot be read is not laid out again either, but it may unwind what is.
        let Ok(image) = process.image(object) else {
            return Ok(true);
        };
        let Some(bias) = object.load_bias(&image) else {
            return Ok(true);
        };
        let slots = image.got_slots().iter();
        for slot in slots.filter(|slot| UNWINDS.contains(&slot.symbol.as_str())) {
            // One that the dynamic linker has not been asked for yet leads nowhere that is known.
            if !loaded.contains(process.memory.word(slot.vaddr.wrapping_add(bias))?) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

pub(crate) fn led_by_others(slot: u64) -> String {
    format!("its pointer to {FIND} at {slot:#x} was changed by somebody else")
}

/// The addresses behind all bytes that may be a call of a stub that jumps through such a slot.
fn calls_through(image: &Image, is_such: impl Fn(u64) -> bool) -> Vec<u64> {
    let mut behind = Vec::new();
    for segment in image.segments().iter().filter(|segment| segment.executable) {
        let bytes = image.read(segment.vaddr, segment.file_bytes);
        for (offset, call) in bytes.unwrap_or_default().windows(CALL_BYTES).enumerate() {
            let [CALL, displacement @ ..] = call else {
                continue;
            };
            let displacement = displacement.try_into().map_or(0, i32::from_le_bytes);
            let end = segment.vaddr + (offset + CALL_BYTES) as u64;
            let target = end.wrapping_add_signed(displacement.into());
            if image.plt_slot(target).is_some_and(&is_such) {
                behind.push(end);
            }
        }
    }
    behind
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_on_its_way_through_the_dynamic_linker_is_known_by_what_is_pushed() {
        let unwinder = Unwinder {
            object: LoadedObject {
                start: 0x1000,
                end: 0x2000,
                path: String::new(),
                inode: 1,
            },
            slots: vec![0x1f00],
            find: 0x1800,
            returns: vec![0x1234, 0x1334],
            linker: 0x9000,
            link_map: 0xaaaa,
        };
        let (back, number) = (0x1334, 7);
        for (words, asks) in [
            // In the stub; and with one word pushed; and in the dynamic linker.
            (vec![back, 1, 2], true),
            (vec![number, back, 1], true),
            (vec![5, 6, 0xaaaa, number, back, 1], true),
            // In the function itself.
            (vec![5, 6, 8, number, back, 1], false),
            (vec![5, 0xaaaa, number, 0x1335], false),
            (vec![], false),
        ] {
            assert_eq!(unwinder.is_asked_by(&words), asks, "{words:x?}");
        }
        assert!(unwinder.is_unbound(0x1016) && !unwinder.is_unbound(0x1800));
        assert!(!unwinder.is_unbound(0x3000));
    }
}
