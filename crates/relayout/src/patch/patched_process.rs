//! The code cache of a process and its family: memory of ours in it, the patches that lead there,
//! and the way back.
//!
//! Every step is announced in the manifest first. Each patch lies within one page and is right
//! whatever other patches are in force, so a switch that is cut short anywhere leaves a process
//! that runs, partly in one layout and partly in another.

mod layouts;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::patch::calls::{find_stub, take_out_stub};
use crate::patch::chain::Chain;
use crate::patch::family;
use crate::patch::manifest::{AppliedPatch, LoadedObject, Manifest, ManifestStore, Region};
use crate::patch::patching::{Switched, places, write_image};
use crate::patch::reclaim;
use crate::patch::region::{self, write_header};
use crate::patch::unwinder::Unwinder;
use crate::process::maps::{self, Mapping, PAGE};
use crate::process::sharing;
use crate::process::{Object, Process};
use crate::{Declined, RelayoutError};

/// A process that we write into, with those that were forked from it.
#[derive(Debug)]
pub struct PatchedProcess {
    /// The process; where it has ended, one of those that were forked from it.
    pub process: Process,
    /// What is on disk about it.
    pub manifest: Manifest,
    /// The rest of its family, as far as seen.
    members: Vec<Process>,
    /// Whether an unwinder is to be led to the code that is announced.
    pub(crate) has_unwinder: bool,
    store: ManifestStore,
    /// Which version of the manifest's file this is.
    read: Option<(u64, i64, i64)>,
}

impl PatchedProcess {
    /// Reads what is on disk about the process, or begins. What an earlier program of the same
    /// process left in others is rolled back.
    ///
    /// # Errors
    /// [`RelayoutError::Manifest`], those of rolling back.
    pub fn open(store: &ManifestStore, process: Process) -> Result<Self, RelayoutError> {
        let mut known = store.load(process.pid, process.start_time)?;
        if let Some(earlier) = known.take_if(|known| !known.is_of(&process))
            && let Some(mut earlier) = Self::of(store, earlier)?
        {
            earlier.rollback()?;
        }
        let manifest = known.unwrap_or_else(|| Manifest::new(store, &process));
        Ok(Self::new(store, process, manifest))
    }

    /// That of a manifest; `None` where no process of the family lives, or each of them runs
    /// another program now.
    ///
    /// # Errors
    /// [`Declined::NotPermitted`], [`RelayoutError::Host`].
    pub fn of(store: &ManifestStore, manifest: Manifest) -> Result<Option<Self>, RelayoutError> {
        let mut members = family::members(&manifest);
        let leader = match Process::open(manifest.pid) {
            Err(error) if error.is_missing_privilege() => return Err(error),
            leader => leader.ok().filter(|process| manifest.is_of(process)),
        };
        let process = match leader {
            Some(leader) => leader,
            None if members.is_empty() => {
                manifest.remove()?;
                return Ok(None);
            }
            None => members.remove(0),
        };
        Ok(Some(Self::new(store, process, manifest)))
    }

    fn new(store: &ManifestStore, process: Process, manifest: Manifest) -> Self {
        Self {
            process,
            manifest,
            members: Vec::new(),
            has_unwinder: false,
            store: store.clone(),
            read: None,
        }
    }

    /// Writes the manifest; on return it is on disk.
    fn save(&mut self) -> Result<(), RelayoutError> {
        self.manifest.save()?;
        self.read = self.manifest.version_on_disk();
        Ok(())
    }

    /// Reads the manifest again: somebody else may have rolled back or switched since.
    fn lock(&mut self) -> Result<host::Lock, RelayoutError> {
        let lock = self.store.lock()?;
        let version = self.manifest.version_on_disk();
        let (pid, start_time) = (self.manifest.pid, self.manifest.start_time);
        if version.is_some() && version == self.read {
            self.manifest.load_generation();
        } else if let Some(known) = self.store.load(pid, start_time)? {
            self.manifest = known;
            self.read = version;
        } else {
            self.manifest.generations.clear();
            self.manifest.regions.clear();
            self.manifest.objects.clear();
            self.manifest.unwinder = None;
            self.manifest.stub = None;
            self.manifest.generation = 0;
        }
        Ok(lock)
    }

    /// Whether somebody else has rolled back or switched since is known from now on.
    ///
    /// # Errors
    /// [`HostError::Journal`](host::HostError::Journal).
    pub(crate) fn refresh(&mut self) -> Result<(), RelayoutError> {
        self.lock().map(drop)
    }

    /// Looks who belongs to the family now.
    pub(crate) fn gather(&mut self) {
        self.members = family::members(&self.manifest);
        let own = self.process.pid;
        self.members.retain(|member| member.pid != own);
    }

    /// The process first, then those that were forked from it, as they were seen last.
    pub fn family(&self) -> impl Iterator<Item = &Process> {
        std::iter::once(&self.process).chain(&self.members)
    }

    /// The pids of the family now.
    pub fn pids(&mut self) -> Vec<u32> {
        self.gather();
        self.family().map(|process| process.pid).collect()
    }

    /// Looks for the process's unwinder among its objects: exceptions pass through all code that is
    /// announced from now on.
    ///
    /// # Errors
    /// [`RelayoutError::Declined`] where it has one that cannot be led there.
    pub(crate) fn find_unwinder(&mut self, objects: &[Object]) -> Result<(), RelayoutError> {
        let known = self.manifest.unwinder.as_ref();
        let found = Unwinder::find(&self.process, objects, known)?;
        self.has_unwinder = found.is_some();
        Ok(())
    }

    /// Maps memory (readable and executable, or readable and writable) that reaches all of `near`
    /// with 32 bits. The caller's part begins [`HEADER_BYTES`](crate::HEADER_BYTES) behind the
    /// region's address. Stops one thread for some microseconds. The family gets it when a layout
    /// that needs it is put in force.
    ///
    /// # Errors
    /// [`Declined::NoRoom`], [`RelayoutError::Refused`], and those of stopping.
    pub fn map(
        &mut self,
        near: (u64, u64),
        bytes: u64,
        is_code: bool,
    ) -> Result<Region, RelayoutError> {
        let _lock = self.lock()?;
        let bytes = bytes.next_multiple_of(PAGE as u64);
        let maps = self.process.maps()?;
        self.gather();
        let mut taken = maps.clone();
        for member in &self.members {
            taken.extend(member.maps().unwrap_or_default());
        }
        taken.sort_by_key(|map| map.start);
        let address = maps::room(&taken, near, bytes).ok_or_else(|| RelayoutError::Declined {
            pid: self.process.pid,
            reason: Declined::NoRoom {
                path: self.process.exe.clone(),
                wanted_bytes: bytes,
            },
        })?;
        // What was announced there and never mapped, by one who was killed.
        let is_apart = |known: &Region| known.end() <= address || address + bytes <= known.address;
        self.manifest.regions.retain(is_apart);
        let region = Region {
            address,
            bytes,
            is_code,
            mark: region::mark(&self.manifest),
            lookups: Vec::new(),
        };
        self.manifest.regions.push(region.clone());
        let stub = self.announce_stub(&maps)?;
        if let Err(error) = family::map(&self.process, &region, &stub) {
            if matches!(error, RelayoutError::Refused { .. }) {
                self.manifest.regions.retain(|known| *known != region);
                self.save()?;
            }
            return Err(error);
        }
        write_header(&self.process.memory, &region)?;
        Ok(region)
    }

    /// Announces a stub in the text, and with it whatever else was put down in the manifest and who
    /// is written into.
    pub(crate) fn announce_stub(
        &mut self,
        maps: &[Mapping],
    ) -> Result<AppliedPatch, RelayoutError> {
        let stub = find_stub(&self.process, &self.manifest, maps)?;
        self.manifest.stub = Some(stub.clone());
        self.save()?;
        Ok(stub)
    }

    /// Puts a layout in force in the whole family; 0 is the original one.
    ///
    /// # Errors
    /// [`RelayoutError::NoGeneration`], those of stopping, [`RelayoutError::Memory`]. What speaks
    /// against a process that was forked from this one is in [`Switched::left_out`].
    pub fn switch(&mut self, number: u32) -> Result<Switched, RelayoutError> {
        let _lock = self.lock()?;
        self.switch_locked(number)
    }

    fn switch_locked(&mut self, number: u32) -> Result<Switched, RelayoutError> {
        let mut switched = Switched::default();
        let mut done: BTreeSet<(u32, u64)> = BTreeSet::new();
        // Whoever is forked from a process that was switched has the layout; whoever was forked
        // before is found by looking again.
        loop {
            self.gather();
            let names = self.family().map(Process::id);
            if names.filter(|name| !done.contains(name)).count() == 0 {
                break;
            }
            let sharers = sharing::among(self.family());
            if number != 0 {
                for (pid, others) in &sharers {
                    let error = sharing::shared(*pid, others[0]);
                    if *pid == self.process.pid {
                        return Err(error);
                    }
                    switched.left_out.push((*pid, error.to_string()));
                }
                self.join(number, &mut switched.left_out)?;
            }
            for process in self.family() {
                if !done.insert(process.id())
                    || switched.left_out.iter().any(|(pid, _)| *pid == process.pid)
                {
                    continue;
                }
                let others = sharers.get(&process.pid).map_or(&[][..], Vec::as_slice);
                match self.write(process, number, others) {
                    Ok(one) => switched.add(one),
                    Err(error) if process.pid == self.process.pid => return Err(error),
                    Err(RelayoutError::Gone { .. }) => {}
                    Err(error) => switched.left_out.push((process.pid, error.to_string())),
                }
            }
        }
        if self.manifest.generation != number {
            self.manifest.generation = number;
            self.manifest.save_generation()?;
        }
        Ok(switched)
    }

    /// Writes a layout into one process, and so into others that run in its memory.
    fn write(
        &self,
        process: &Process,
        number: u32,
        others: &[u32],
    ) -> Result<Switched, RelayoutError> {
        let wanted: &[AppliedPatch] = match number {
            0 => &[],
            number => &self.manifest.generation(number)?.patches,
        };
        // Where a thread that is still in it goes on afterwards may be the inside of a place.
        if let Some(stub) = &self.manifest.stub {
            take_out_stub(process, stub)?;
        }
        let maps = process.maps()?;
        let chain = match number {
            0 => Chain::default(),
            number => self.lead(process, &maps, number)?,
        };
        let closed = closed(&maps, &self.manifest.objects);
        let mut places = places(&self.manifest, wanted);
        places.retain(|place| !closed.iter().any(|object| place.is_in(object)));
        let mut switched = write_image(process, others, &maps, &chain, &places)?;
        let paths = closed.into_iter().map(|object| object.path.clone());
        switched.closed = paths.collect();
        Ok(switched)
    }

    /// How a process's unwinder is led to all code of ours, a layout's above all.
    fn lead(
        &self,
        process: &Process,
        maps: &[Mapping],
        number: u32,
    ) -> Result<Chain<'_>, RelayoutError> {
        let chain = Chain::to_all(process, maps, &self.manifest)?;
        let wanted = &self.manifest.generation(number)?.regions;
        let mut regions = self.manifest.regions.iter();
        let is_missed = |region: &Region| {
            let is_wanted = wanted.contains(&region.address) && !region.lookups.is_empty();
            is_wanted && !chain.leads_to(region)
        };
        match &self.manifest.unwinder {
            Some(unwinder) if regions.any(is_missed) => Err(process.unfit(
                &unwinder.object.path,
                "it is not loaded where it was, so exceptions would not find moved code",
            )),
            _ => Ok(chain),
        }
    }

    /// Gives the members of the family what they need for a layout. Who cannot have it is added to
    /// `left_out`.
    fn join(
        &mut self,
        number: u32,
        left_out: &mut Vec<(u32, String)>,
    ) -> Result<(), RelayoutError> {
        let wanted = &self.manifest.generation(number)?.regions;
        let regions = self.manifest.regions.iter();
        let regions: Vec<Region> = regions
            .filter(|region| wanted.contains(&region.address))
            .cloned()
            .collect();
        let is_new = |member: &&Process| {
            let is_left_out = left_out.iter().any(|(pid, _)| *pid == member.pid);
            !is_left_out && !family::has_all(member, &regions).unwrap_or(true)
        };
        let lacking: Vec<(u32, u64)> = self
            .members
            .iter()
            .filter(is_new)
            .map(Process::id)
            .collect();
        if !lacking.is_empty() {
            let alive: Vec<(u32, u64)> = self.members.iter().map(Process::id).collect();
            self.manifest.members = alive;
            let maps = self.process.maps()?;
            let stub = self.announce_stub(&maps)?;
            for member in &self.members {
                if !lacking.contains(&member.id()) {
                    continue;
                }
                let (leader, unwinder) = (&self.process.memory, self.manifest.unwinder.as_ref());
                match family::join(leader, member, &regions, unwinder, &stub) {
                    Ok(()) | Err(RelayoutError::Gone { .. }) => {}
                    Err(error) => left_out.push((member.pid, error.to_string())),
                }
            }
        }
        Ok(())
    }

    /// Back to the original bytes, here and in the processes that were forked from this one; then
    /// gives back the memory that nothing leads into any more. What must stay is remembered, and
    /// tried again by the next call.
    ///
    /// # Errors
    /// Those of stopping, [`RelayoutError::Memory`].
    pub fn rollback(&mut self) -> Result<(Switched, UnreleasedMemory), RelayoutError> {
        let _lock = self.lock()?;
        let mut switched = self.switch_locked(0)?;
        // Where a thread waits inside a place it is still ours: that stays on record.
        let is_whole = switched.occupied.is_empty() && switched.left_out.is_empty();
        let kept = self.reclaim_locked(is_whole)?;
        if is_whole {
            // What was forked while the memory was given back.
            self.gather();
            self.take_out_stub(&mut switched)?;
        }
        for process in self.family() {
            crate::patch::moved::remove_perf_map(process);
        }
        if kept.bytes == 0 && is_whole {
            self.manifest.remove()?;
        }
        Ok((switched, kept))
    }

    /// Takes the stub out of the text of every process.
    fn take_out_stub(&mut self, switched: &mut Switched) -> Result<(), RelayoutError> {
        let Some(stub) = &self.manifest.stub else {
            return Ok(());
        };
        for process in self.family() {
            match take_out_stub(process, stub) {
                Ok(()) => {}
                Err(error) if process.pid == self.process.pid => return Err(error),
                Err(RelayoutError::Gone { .. }) => {}
                Err(error) => switched.left_out.push((process.pid, error.to_string())),
            }
        }
        Ok(())
    }

    /// Gives back the memory of layouts that were forgotten.
    ///
    /// # Errors
    /// As [`PatchedProcess::rollback`].
    pub fn reclaim(&mut self) -> Result<UnreleasedMemory, RelayoutError> {
        let _lock = self.lock()?;
        self.reclaim_locked(false)
    }

    fn reclaim_locked(&mut self, is_rollback: bool) -> Result<UnreleasedMemory, RelayoutError> {
        let mut kept = UnreleasedMemory::default();
        let generations = self.manifest.generations.iter();
        let used: BTreeSet<u64> = match is_rollback {
            true => BTreeSet::new(),
            false => generations
                .flat_map(|known| known.regions.clone())
                .collect(),
        };
        if is_rollback {
            self.manifest.generations.clear();
        }
        let mut regions = self.manifest.regions.clone();
        regions.retain(|region| !used.contains(&region.address));
        // Counters go after all code that may count in them.
        regions.sort_by_key(|region| !region.is_code);
        let mut freed = BTreeSet::new();
        for region in regions {
            if !region.is_code && kept.bytes > 0 {
                kept.bytes += region.bytes;
                continue;
            }
            match self.free(&region) {
                Ok(true) => {
                    freed.insert(region.address);
                }
                Ok(false) => kept.bytes += region.bytes,
                Err(RelayoutError::Gone { pid }) => return Err(RelayoutError::Gone { pid }),
                Err(error) => {
                    kept.bytes += region.bytes;
                    kept.why = Some(error.to_string());
                }
            }
        }
        let regions = &mut self.manifest.regions;
        regions.retain(|region| !freed.contains(&region.address));
        if is_rollback {
            self.manifest.generation = 0;
        }
        // At a rollback the stub is still to be taken out of what was forked meanwhile.
        if !is_rollback && self.manifest.regions.is_empty() && self.manifest.generations.is_empty()
        {
            let mut switched = Switched::default();
            self.gather();
            self.take_out_stub(&mut switched)?;
            if switched.is_whole() {
                self.manifest.remove()?;
                return Ok(kept);
            }
        }
        match self.save() {
            // A full disk is no reason to leave a process as it is: what stays on record is taken
            // back once more by the next.
            Err(error) if is_rollback => kept.why = Some(error.to_string()),
            saved => saved?,
        }
        Ok(kept)
    }

    /// Unmaps a region in every process of the family; false where something may still lead into
    /// it.
    fn free(&mut self, region: &Region) -> Result<bool, RelayoutError> {
        let mut done: BTreeSet<(u32, u64)> = BTreeSet::new();
        let mut is_free = true;
        loop {
            self.gather();
            let names: Vec<(u32, u64)> = self.family().map(Process::id).collect();
            if names.iter().all(|name| done.contains(name)) {
                return Ok(is_free);
            }
            // What runs in it elsewhere is not looked through.
            if let Some((pid, others)) = sharing::among(self.family()).first_key_value() {
                return Err(sharing::shared(*pid, others[0]));
            }
            let maps = self.process.maps()?;
            let stub = self.announce_stub(&maps)?;
            for process in self.family() {
                if !done.insert(process.id()) {
                    continue;
                }
                match reclaim::unmap(process, &self.manifest, region, &stub) {
                    Ok(is_unmapped) => is_free &= is_unmapped,
                    Err(RelayoutError::Gone { pid }) if pid != self.process.pid => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

/// The objects that are not where they were any more.
fn closed<'a>(maps: &[Mapping], objects: &'a [LoadedObject]) -> Vec<&'a LoadedObject> {
    let closed = objects.iter().filter(|object| !object.is_in(maps));
    closed.collect()
}

/// Memory that could not be given back yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreleasedMemory {
    /// How much.
    pub bytes: u64,
    /// What went wrong, where it is not that a thread may still return into the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}
