//! The pointers that lead a process's unwinder to moved code: from one region's lookup to the next,
//! and at last to the function of libgcc.
//!
//! All pointers are right at every moment in which the process runs, so a kill at any time leaves
//! one that unwinds.

use std::collections::BTreeSet;

use code_layout::Lookup;
use host::Roots;

use crate::patch::manifest::{Manifest, Region};
use crate::patch::region::{is_complete, is_ours};
use crate::patch::unwinder::{Unwinder, led_by_others};
use crate::process::Process;
use crate::process::inject::going_on;
use crate::process::maps::{self, Mapping};
use crate::process::ptrace;
use crate::process::stop::Stopped;
use crate::{ProcessMemory, RelayoutError};

/// What is to be written so that a process's unwinder finds what regions hold.
#[derive(Debug, Default)]
pub(crate) struct Chain<'a> {
    /// (address, word), in an order in which each is right as soon as it is there.
    words: Vec<(u64, u64)>,
    /// The regions that it leads to, by address.
    regions: BTreeSet<u64>,
    /// Where the dynamic linker may be about to write as well.
    asked: Option<&'a Unwinder>,
}

impl<'a> Chain<'a> {
    /// To all complete code of ours in a process.
    ///
    /// # Errors
    /// [`RelayoutError::Declined`] where somebody else leads the unwinder.
    pub(crate) fn to_all(
        process: &Process,
        maps: &[Mapping],
        manifest: &'a Manifest,
    ) -> Result<Self, RelayoutError> {
        let Some(unwinder) = unwinder_in(maps, manifest) else {
            return Ok(Self::default());
        };
        let regions = manifest.regions.iter();
        let (mut chain, head) = Self::through(process, maps, unwinder, regions);
        let Some(head) = head else {
            return Ok(Self::default());
        };
        for slot in &unwinder.slots {
            let value = process.memory.word(*slot)?;
            if !entries(manifest).any(|entry| entry == value) {
                if value != unwinder.find && !unwinder.is_unbound(value) {
                    let why = led_by_others(*slot);
                    return Err(process.unfit(&unwinder.object.path, why));
                }
                chain.asked = (unwinder.linker != 0).then_some(unwinder);
            }
            chain.words.push((*slot, head));
        }
        chain.only_changes(&process.memory);
        Ok(chain)
    }

    /// Past a region that is to be given back.
    pub(crate) fn past(
        process: &Process,
        maps: &[Mapping],
        manifest: &'a Manifest,
        region: &Region,
    ) -> Result<Self, RelayoutError> {
        let Some(unwinder) = unwinder_in(maps, manifest) else {
            return Ok(Self::default());
        };
        let others = manifest.regions.iter();
        let others = others.filter(|other| other.address != region.address);
        let (mut chain, head) = Self::through(process, maps, unwinder, others);
        for slot in &unwinder.slots {
            let value = process.memory.word(*slot)?;
            if entries(manifest).any(|entry| entry == value) {
                chain.words.push((*slot, head.unwrap_or(unwinder.find)));
            }
        }
        chain.only_changes(&process.memory);
        Ok(chain)
    }

    /// From the last region to the first, and on to the function of libgcc; and where that begins.
    fn through<'r>(
        process: &Process,
        maps: &[Mapping],
        unwinder: &Unwinder,
        regions: impl Iterator<Item = &'r Region>,
    ) -> (Self, Option<u64>) {
        let memory = &process.memory;
        let (mut chain, mut head) = (Self::default(), None);
        for region in regions.filter(|region| !region.lookups.is_empty()) {
            if !is_ours(memory, maps, region) || !is_complete(memory, region) {
                continue;
            }
            chain.regions.insert(region.address);
            for Lookup { entry, next } in &region.lookups {
                chain.words.push((*next, head.unwrap_or(unwinder.find)));
                head = Some(*entry);
            }
        }
        (chain, head)
    }

    fn only_changes(&mut self, memory: &ProcessMemory) {
        let is_there = |(address, word): &(u64, u64)| memory.word(*address).ok() == Some(*word);
        self.words.retain(|word| !is_there(word));
    }

    /// Whether it leads to that region.
    pub(crate) fn leads_to(&self, region: &Region) -> bool {
        self.regions.contains(&region.address)
    }

    /// Whether all is as it should be.
    pub(crate) fn is_laid(&self) -> bool {
        self.words.is_empty()
    }

    /// Whether a thread waits for the dynamic linker, which is going to write what it finds where
    /// we are.
    pub(crate) fn is_asked_for(&self, process: &Stopped<'_>) -> Result<bool, RelayoutError> {
        let Some(unwinder) = self.asked else {
            return Ok(false);
        };
        let memory = process.memory;
        let maps = maps::read(&Roots::default(), process.pid)?;
        let linker = maps::at(&maps, unwinder.linker);
        let mut is_unbound = false;
        for slot in &unwinder.slots {
            is_unbound |= unwinder.is_unbound(memory.word(*slot)?);
        }
        for thread in &process.threads {
            let now = going_on(ptrace::registers(*thread)?);
            // Once somebody has found it, what a stack holds may be left from then.
            let is_there = is_unbound
                || linker.is_some_and(|linker| linker.contains(now.rip))
                || unwinder.object.contains(now.rip);
            if !is_there {
                continue;
            }
            let Some(stack) = maps::at(&maps, now.rsp) else {
                return Ok(true);
            };
            let bytes = usize::try_from(stack.end - now.rsp).unwrap_or(0);
            let bytes = memory.read(now.rsp, bytes)?;
            let words = bytes.chunks_exact(8);
            let words: Vec<u64> = words
                .filter_map(|word| word.try_into().ok().map(u64::from_le_bytes))
                .collect();
            if unwinder.is_asked_by(&words) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes it, while the process is stopped.
    pub(crate) fn lay(&self, memory: &ProcessMemory) -> Result<(), RelayoutError> {
        for (address, word) in &self.words {
            memory.write(*address, &word.to_le_bytes())?;
        }
        Ok(())
    }
}

/// The unwinder of a process, where it is still loaded.
pub(crate) fn unwinder_in<'a>(maps: &[Mapping], manifest: &'a Manifest) -> Option<&'a Unwinder> {
    let unwinder = manifest.unwinder.as_ref();
    unwinder.filter(|unwinder| unwinder.object.is_in(maps))
}

/// Where the lookups of all regions begin.
fn entries(manifest: &Manifest) -> impl Iterator<Item = u64> {
    let lookups = manifest.regions.iter().flat_map(|region| &region.lookups);
    lookups.map(|lookup| lookup.entry)
}
