//! Layouts announced in the manifest, and forgotten.

use std::collections::BTreeMap;

use super::PatchedProcess;
use crate::RelayoutError;
use crate::patch::manifest::{AppliedPatch, Generation, Region};
use crate::patch::patching::originals;
use crate::patch::region;
use crate::patch::unwinder::Unwinder;
use crate::process::Object;
use crate::process::maps::PAGE;

impl PatchedProcess {
    /// Announces a layout: its patches, whose old bytes must be what the process holds while no
    /// layout is in force. What crosses a page, overlaps another patch or does not hold the old
    /// bytes is left out; how many were is the second number. The first is the generation's. All
    /// code is in `regions` by now.
    ///
    /// # Errors
    /// [`HostError::Journal`](host::HostError::Journal), [`RelayoutError::Memory`].
    pub fn announce(
        &mut self,
        patches: Vec<AppliedPatch>,
        regions: &[Region],
    ) -> Result<(u32, usize), RelayoutError> {
        let wanted = patches.len();
        let numbers = self.announce_all(vec![patches], regions)?;
        let number = numbers.first().copied().unwrap_or(0);
        let kept = self.manifest.generation(number)?.patches.len();
        Ok((number, wanted - kept))
    }

    /// Announces several layouts at once, so that the disk is waited for once. Their numbers.
    ///
    /// # Errors
    /// As [`PatchedProcess::announce`].
    pub fn announce_all(
        &mut self,
        layouts: Vec<Vec<AppliedPatch>>,
        regions: &[Region],
    ) -> Result<Vec<u32>, RelayoutError> {
        let _lock = self.lock()?;
        let objects = self.process.objects()?;
        if self.has_unwinder {
            let known = self.manifest.unwinder.take();
            self.manifest.unwinder = Unwinder::find(&self.process, &objects, known.as_ref())?;
        }
        for region in regions {
            let known = self.manifest.region(region.address)?;
            known.lookups.clone_from(&region.lookups);
        }
        for region in regions.iter().filter(|region| region.is_code) {
            region::set_complete(&self.process.memory, region)?;
        }
        let mut numbers = Vec::new();
        for patches in layouts {
            let patches = self.applicable(patches)?;
            let number = self.manifest.next_number();
            self.note_objects(&objects, &patches);
            self.manifest.generations.push(Generation {
                number,
                patches,
                regions: regions.iter().map(|region| region.address).collect(),
            });
            numbers.push(number);
        }
        self.save()?;
        Ok(numbers)
    }

    /// The patches that can be made.
    fn applicable(
        &self,
        mut patches: Vec<AppliedPatch>,
    ) -> Result<Vec<AppliedPatch>, RelayoutError> {
        let originals = originals(&self.manifest);
        let mut kept: Vec<AppliedPatch> = Vec::with_capacity(patches.len());
        patches.sort_by_key(|patch| patch.address);
        for patch in patches {
            let is_apart = kept.last().is_none_or(|last| last.end() <= patch.address);
            let page = |address: u64| address / PAGE as u64;
            let is_one_page = page(patch.address) == page(patch.end() - 1);
            // The nearest known one to the left decides: originals do not overlap each other.
            let is_known = originals.get(&patch.address) == Some(&patch.old.0);
            let is_free = || {
                let before = originals.range(..patch.end()).next_back();
                before.is_none_or(|(start, old)| start + old.len() as u64 <= patch.address)
            };
            if !(is_apart && is_one_page && (is_known || is_free())) {
                continue;
            }
            let found = self.process.memory.read(patch.address, patch.old.0.len())?;
            if is_known || found == patch.old.0 {
                kept.push(patch);
            }
        }
        Ok(kept)
    }

    /// Puts down which files the patches are in.
    fn note_objects(&mut self, objects: &[Object], patches: &[AppliedPatch]) {
        for object in objects {
            let known = object.loaded();
            let first = patches.partition_point(|patch| patch.address < known.start);
            let is_patched = patches
                .get(first)
                .is_some_and(|patch| patch.address < known.end);
            if is_patched && !self.manifest.objects.contains(&known) {
                self.manifest.objects.push(known);
            }
        }
    }

    /// Forgets layouts that are not in force, but for those of which some place of the family still
    /// holds what they put there.
    ///
    /// # Errors
    /// [`HostError::Journal`](host::HostError::Journal), [`RelayoutError::Gone`].
    pub fn forget(&mut self, numbers: &[u32]) -> Result<(), RelayoutError> {
        let _lock = self.lock()?;
        self.gather();
        let mut gone = Vec::new();
        for number in numbers {
            if *number != self.manifest.generation && !self.is_somewhere(*number)? {
                gone.push(*number);
            }
        }
        let generations = &mut self.manifest.generations;
        generations.retain(|generation| !gone.contains(&generation.number));
        self.save()
    }

    /// Whether some place still holds what a layout that is not in force put there.
    fn is_somewhere(&self, number: u32) -> Result<bool, RelayoutError> {
        let in_force = self.manifest.generation(self.manifest.generation);
        let in_force: BTreeMap<u64, &AppliedPatch> = in_force
            .iter()
            .flat_map(|generation| &generation.patches)
            .map(|patch| (patch.address, patch))
            .collect();
        for patch in &self.manifest.generation(number)?.patches {
            let same = |known: &&AppliedPatch| known.new == patch.new;
            if in_force.get(&patch.address).is_some_and(same) {
                continue;
            }
            for process in self.family() {
                match process.memory.read(patch.address, patch.new.0.len()) {
                    Ok(found) if found == patch.new.0 => return Ok(true),
                    Ok(_) | Err(RelayoutError::Memory { .. }) => {}
                    Err(RelayoutError::Gone { pid }) if pid != self.process.pid => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(false)
    }
}
