//! Leading a process's unwinder to moved code. libgcc asks its own function `_Unwind_Find_FDE` how a frame is unwound, and
//! calls it through pointers that the dynamic linker fills, as other objects may have one of that name. In place of it
//! those pointers lead to the functions that moved code brings along ([`code_layout::Lookup`]), from one to the next, and
//! at last to where they led before.
//!
//! `__register_frame` is the documented way, but once it was called every search takes a lock (libgcc before 13), which a
//! child that is forked meanwhile finds locked for ever, or the registration takes memory (from 13 on;
//! libgcc/unwind-dw2-fde.c in GCC).
//!
//! All pointers are right at every moment in which the process runs, so a kill at any time leaves one that unwinds.

use std::ops::Range;

use code_layout::{FunctionId, Image};
use serde::{Deserialize, Serialize};

use crate::loaded::all_functions;
use crate::manifest::{LoadedObject, Manifest, Region};
use crate::maps::Mapping;
use crate::process::{Object, Process};
use crate::region::{is_complete, is_ours};
use crate::scan::Search;
use crate::stop::Stopped;
use crate::{Memory, RelayoutError};

/// The function that libgcc calls.
const FIND: &str = "_Unwind_Find_FDE";

/// The first byte of a call with 32 bits of displacement, and its length.
const CALL: u8 = 0xe8;
const CALL_BYTES: usize = 5;

/// The unwinder of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unwinder {
    /// libgcc, where it is loaded.
    pub object: LoadedObject,
    /// Its pointers to the function that it calls.
    pub slots: Vec<Slot>,
    /// That function.
    pub find: u64,
    /// The addresses behind the calls, by which a thread is known that is in one.
    pub returns: Vec<u64>,
}

/// A pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Where it is.
    pub address: u64,
    /// What it was at first: the function, or, before the first call, code that has the dynamic linker look for it.
    pub first: u64,
}

impl Unwinder {
    /// That of a process; `None` where it has no libgcc, or one that cannot be led.
    pub(crate) fn find(
        process: &Process,
        objects: &[Object],
        known: Option<&Self>,
    ) -> Result<Option<Self>, RelayoutError> {
        let is_libgcc = |object: &&Object| {
            let name = object.path.rsplit('/').next().unwrap_or_default();
            name.starts_with("libgcc_s.so")
        };
        let Some(object) = objects.iter().find(is_libgcc) else {
            return Ok(None);
        };
        let loaded = object.loaded();
        if let Some(known) = known.filter(|known| known.object == loaded) {
            return Ok(Some(known.clone()));
        }
        let image = process.image(object)?;
        let Some(bias) = object.load_bias(&image) else {
            return Ok(None);
        };
        let is_find = |id: &FunctionId| image.name(*id) == Some(FIND);
        let Some(id) = all_functions(&image).into_iter().find(is_find) else {
            return Ok(None);
        };
        let mut find = image.range(id).start.wrapping_add(bias);
        let maps = process.maps()?;
        let mut slots = Vec::new();
        let named = image.got_slots().iter().filter(|slot| slot.symbol == FIND);
        for slot in named {
            let address = slot.vaddr.wrapping_add(bias);
            let first = process.memory.word(address)?;
            let is_file = |map: &Mapping| map.inode != 0 && map.is_executable;
            if !maps.iter().any(|map| is_file(map) && map.contains(first)) {
                // Somebody else leads it already.
                return Ok(None);
            }
            if !loaded.contains(first) {
                find = first;
            }
            slots.push(Slot { address, first });
        }
        if slots.is_empty() {
            return Ok(None);
        }
        let returns = calls_through(&image, &|slot| {
            let address = slot.wrapping_add(bias);
            slots.iter().any(|slot| slot.address == address)
        });
        Ok(Some(Self {
            object: loaded,
            slots,
            find,
            returns: returns.iter().map(|at| at.wrapping_add(bias)).collect(),
        }))
    }

    /// Whether the dynamic linker has not yet been asked for the function, or is being asked.
    fn is_unbound(&self, value: u64) -> bool {
        self.object.contains(value) && value != self.find
    }
}

/// The addresses behind all bytes that may be a call of a stub that jumps through such a slot.
fn calls_through(image: &Image, is_such: &dyn Fn(u64) -> bool) -> Vec<u64> {
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
            if image.plt_slot(target).is_some_and(is_such) {
                behind.push(end);
            }
        }
    }
    behind
}

/// What is to be written so that a process's unwinder finds what its regions hold.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// (address, word), in an order in which each is right as soon as it is there.
    words: Vec<(u64, u64)>,
    /// The addresses that a thread has on its stack while the dynamic linker looks for the function for it, and is going to
    /// write what it finds; empty where that cannot be.
    asking: Vec<Range<u64>>,
    maps: Vec<Mapping>,
}

impl Chain {
    /// That of all complete code of ours in a process, `without` one region.
    ///
    /// # Errors
    /// [`RelayoutError::Refused`] where somebody else has led the unwinder elsewhere.
    pub(crate) fn new(
        process: &Process,
        manifest: &Manifest,
        without: Option<&Region>,
    ) -> Result<Self, RelayoutError> {
        let Some(unwinder) = &manifest.unwinder else {
            return Ok(Self::default());
        };
        let (memory, maps) = (&process.memory, process.maps()?);
        if !unwinder.object.is_in(&maps) {
            return Ok(Self::default());
        }
        let is_wanted = |region: &&Region| {
            let is_there = !region.lookups.is_empty() && is_ours(memory, &maps, region);
            let is_other = without.is_none_or(|without| without.address != region.address);
            is_there && is_other && is_complete(memory, region)
        };
        let wanted = manifest.regions.iter().filter(is_wanted);
        let all = manifest.regions.iter().flat_map(|region| &region.lookups);
        let is_known = |value: u64, slot: &Slot| {
            unwinder.is_unbound(value)
                || [slot.first, unwinder.find].contains(&value)
                || all.clone().any(|lookup| lookup.entry == value)
        };
        let mut words = Vec::new();
        let mut head = None;
        for lookup in wanted.flat_map(|region| &region.lookups) {
            words.push((lookup.next, head.unwrap_or(unwinder.find)));
            head = Some(lookup.entry);
        }
        let mut asking = Vec::new();
        for slot in &unwinder.slots {
            let value = memory.word(slot.address)?;
            if !is_known(value, slot) {
                if head.is_none() {
                    continue;
                }
                return Err(RelayoutError::Refused {
                    pid: process.pid,
                    call: "have its unwinder led to moved code: somebody else leads it",
                    source: std::io::Error::from_raw_os_error(libc::EBUSY),
                });
            }
            if unwinder.is_unbound(value) && head.is_some() {
                asking = unwinder.returns.iter().map(|at| *at..at + 1).collect();
            }
            words.push((slot.address, head.unwrap_or(slot.first)));
        }
        words.retain(|(address, word)| memory.word(*address).ok() != Some(*word));
        Ok(Self {
            words,
            asking,
            maps,
        })
    }

    /// Whether all is as it should be.
    pub(crate) fn is_laid(&self) -> bool {
        self.words.is_empty()
    }

    /// Whether the dynamic linker may be about to write what we are.
    pub(crate) fn is_asked_for(&self, process: &Stopped<'_>) -> Result<bool, RelayoutError> {
        if self.asking.is_empty() {
            return Ok(false);
        }
        let mut search = Search::new(&self.asking);
        for thread in &process.threads {
            if search.thread(process, *thread, &self.maps)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes it, while the process is stopped.
    pub(crate) fn lay(&self, memory: &Memory) -> Result<(), RelayoutError> {
        for (address, word) in &self.words {
            memory.write(*address, &word.to_le_bytes())?;
        }
        Ok(())
    }
}
