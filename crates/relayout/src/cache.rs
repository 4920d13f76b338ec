//! The code cache of one process: memory of ours in it, the patches that lead there, and the way back.
//!
//! Every step is announced in the manifest first. Each patch lies within one page and is right whatever other patches are
//! in force, so a switch that is cut short anywhere leaves a process that runs, partly in one layout and partly in
//! another.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::inject::{self, call_stub, syscall_stub};
use crate::manifest::{Bytes, Generation, Manifest, Patch, Region, Store, Unwinding};
use crate::maps::{self, Mapping};
use crate::patching::{Place, originals, places, write_image};
use crate::process::Process;
use crate::scan::{PAGE, Search};
use crate::stop::{Pause, Stopped, one_stopped, stopped};
use crate::{Declined, Memory, RelayoutError, cave, ptrace};

/// What the first bytes of every region are. The stub for calls follows.
const MARK: &[u8; 16] = b"slackline cache\0";

/// Where in a region the stub for calls is.
const CALL_STUB: u64 = 64;

/// What a region has before the caller's part.
pub const HEADER_BYTES: u64 = 256;

const SYS_MMAP: u64 = libc::SYS_mmap as u64;
const SYS_MUNMAP: u64 = libc::SYS_munmap as u64;

/// A process that we write into.
#[derive(Debug)]
pub struct CodeCache {
    /// The process.
    pub process: Process,
    /// What is on disk about it.
    pub manifest: Manifest,
    store: Store,
    /// Which version of the manifest's file this is.
    read: Option<(u64, i64, i64)>,
}

/// What a rollback, or a switch, came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switched {
    /// How long the process stood still.
    pub pause: Pause,
    /// Patches whose place holds what neither the file nor we put there: left alone.
    pub changed_by_others: Vec<u64>,
    /// Patches that were left out because a thread waits inside them.
    pub occupied: Vec<u64>,
}

impl CodeCache {
    /// Reads what is on disk about the process, or begins.
    ///
    /// # Errors
    /// [`RelayoutError::Manifest`].
    pub fn open(store: &Store, process: Process) -> Result<Self, RelayoutError> {
        let known = store.load(process.pid, process.start_time)?;
        let manifest = known.unwrap_or_else(|| {
            Manifest::new(
                store,
                process.pid,
                process.start_time,
                &process.exe,
                process.exe_inode,
            )
        });
        Ok(Self {
            process,
            manifest,
            store: store.clone(),
            read: None,
        })
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
        if version.is_some() && version == self.read {
            self.manifest.load_generation();
        } else if let Some(known) = self.store.load(self.process.pid, self.process.start_time)? {
            self.manifest = known;
            self.read = version;
        } else {
            self.manifest.generations.clear();
            self.manifest.regions.clear();
            self.manifest.stub = None;
            self.manifest.generation = 0;
        }
        Ok(lock)
    }

    /// Maps memory (readable and executable, or readable and writable) that reaches all of `near` with 32 bits. The
    /// caller's part begins [`HEADER_BYTES`] behind the region's address. Stops one thread for some microseconds.
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
        let pid = self.process.pid;
        let address = maps::room(&maps, near, bytes).ok_or_else(|| RelayoutError::Declined {
            pid,
            reason: Declined::NoRoom {
                path: self.process.exe.clone(),
                wanted_bytes: bytes,
            },
        })?;
        let region = Region {
            address,
            bytes,
            is_code,
            mark: Bytes(MARK.to_vec()),
            unwinding: Vec::new(),
        };
        self.manifest.regions.push(region.clone());
        let access = if is_code {
            libc::PROT_EXEC
        } else {
            libc::PROT_WRITE
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let arguments = [
            address,
            bytes,
            u64::try_from(libc::PROT_READ | access).unwrap_or(0),
            u64::try_from(flags).unwrap_or(0),
            u64::MAX,
            0,
        ];
        let result = self.syscall(&maps, SYS_MMAP, arguments)?;
        if result.cast_unsigned() != address {
            self.manifest.regions.retain(|known| *known != region);
            self.save()?;
            return Err(RelayoutError::Refused {
                pid,
                call: "map memory for the code cache",
                source: std::io::Error::from_raw_os_error(
                    i32::try_from(-result).unwrap_or(libc::ENOMEM),
                ),
            });
        }
        self.process.memory.write(address, MARK)?;
        if is_code {
            self.process
                .memory
                .write(address + CALL_STUB, &call_stub())?;
        }
        Ok(region)
    }

    /// A system call by one thread, through a stub in the process's own text that is there for that long only. Saves the
    /// manifest.
    fn syscall(
        &mut self,
        maps: &[Mapping],
        number: u64,
        arguments: [u64; 6],
    ) -> Result<i64, RelayoutError> {
        let cave = self.dig(maps)?;
        let threads = threads_by_chance(self.process.pid)?;
        let memory = &self.process.memory;
        let done = memory.write(cave.address, &cave.new.0).and_then(|()| {
            one_stopped(self.process.pid, memory, &threads, |process| {
                let thread = process.threads[0];
                inject::syscall(process, thread, cave.address, number, arguments)
            })
        });
        self.fill(&cave, done).map(|(result, _)| result)
    }

    /// Announces a stub in the text.
    fn dig(&mut self, maps: &[Mapping]) -> Result<Patch, RelayoutError> {
        // After a crash the stub of the call that it cut short may still be there.
        if let Some(known) = self.manifest.stub.clone() {
            self.save()?;
            return Ok(known);
        }
        let memory = &self.process.memory;
        let address = cave::find(memory, maps)?.ok_or_else(|| RelayoutError::Declined {
            pid: self.process.pid,
            reason: Declined::Program {
                path: self.process.exe.clone(),
                why: "no object of it has 128 unused bytes behind its code".into(),
            },
        })?;
        let new = syscall_stub();
        let old = memory.read(address, new.len())?;
        let cave = Patch {
            address,
            old: Bytes(old),
            new: Bytes(new),
        };
        self.manifest.stub = Some(cave.clone());
        self.save()?;
        Ok(cave)
    }

    /// Takes the stub out of the text again, unless the call may still be under way.
    fn fill<T>(
        &mut self,
        cave: &Patch,
        done: Result<T, RelayoutError>,
    ) -> Result<T, RelayoutError> {
        let done = done?;
        self.process.memory.write(cave.address, &cave.old.0)?;
        self.manifest.stub = None;
        self.save()?;
        Ok(done)
    }

    /// Announces a layout: its patches, whose old bytes must be what the process holds while no layout is in force. What
    /// crosses a page, overlaps another patch or does not hold the old bytes is left out; how many were is the second
    /// number. The first is the generation's.
    ///
    /// # Errors
    /// [`HostError::Journal`](host::HostError::Journal), [`RelayoutError::Memory`].
    pub fn announce(
        &mut self,
        patches: Vec<Patch>,
        region: Option<&Region>,
    ) -> Result<(u32, usize), RelayoutError> {
        let _lock = self.lock()?;
        let originals = originals(&self.manifest);
        let mut kept: Vec<Patch> = Vec::with_capacity(patches.len());
        let wanted = patches.len();
        let mut patches = patches;
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
        let number = self.manifest.next_number();
        let left_out = wanted - kept.len();
        let region = region.and_then(|region| {
            let same = |known: &Region| known.address == region.address;
            self.manifest.regions.iter().position(same)
        });
        self.manifest.generations.push(Generation {
            number,
            patches: kept,
            region,
        });
        self.save()?;
        Ok((number, left_out))
    }

    /// Forgets a layout that is not in force, unless some place of the process still holds what it put there.
    ///
    /// # Errors
    /// [`HostError::Journal`](host::HostError::Journal), [`RelayoutError::Gone`].
    pub fn forget(&mut self, number: u32) -> Result<(), RelayoutError> {
        let _lock = self.lock()?;
        if self.manifest.generation == number {
            return Ok(());
        }
        let in_force = self.manifest.generation(self.manifest.generation);
        let in_force: BTreeMap<u64, &Patch> = in_force
            .iter()
            .flat_map(|generation| &generation.patches)
            .map(|patch| (patch.address, patch))
            .collect();
        for patch in &self.manifest.generation(number)?.patches {
            if in_force
                .get(&patch.address)
                .is_some_and(|known| known.new == patch.new)
            {
                continue;
            }
            match self.process.memory.read(patch.address, patch.new.0.len()) {
                Ok(found) if found == patch.new.0 => return Ok(()),
                Ok(_) | Err(RelayoutError::Memory { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.manifest
            .generations
            .retain(|generation| generation.number != number);
        self.save()
    }

    /// Puts a layout in force; 0 is the original one.
    ///
    /// # Errors
    /// [`RelayoutError::NoGeneration`], those of stopping, [`RelayoutError::Memory`].
    pub fn switch(&mut self, number: u32) -> Result<Switched, RelayoutError> {
        let _lock = self.lock()?;
        self.switch_locked(number)
    }

    fn switch_locked(&mut self, number: u32) -> Result<Switched, RelayoutError> {
        let wanted: &[Patch] = match number {
            0 => &[],
            number => &self.manifest.generation(number)?.patches,
        };
        let switched = write_image(
            self.process.pid,
            &self.process.memory,
            &places(&self.manifest, wanted),
        )?;
        if self.manifest.generation != number {
            self.manifest.generation = number;
            self.manifest.save_generation()?;
        }
        Ok(switched)
    }

    /// Tells the process's unwinder of the frames in a region.
    ///
    /// # Errors
    /// Those of stopping; [`RelayoutError::Gone`].
    pub fn register_frames(
        &mut self,
        region: &Region,
        frames: u64,
        register: u64,
        deregister: u64,
    ) -> Result<(), RelayoutError> {
        let _lock = self.lock()?;
        let unwinding = Unwinding {
            frames,
            deregister,
            is_told: false,
        };
        let same = |known: &&mut Region| known.address == region.address;
        if let Some(known) = self.manifest.regions.iter_mut().find(same) {
            known.unwinding.push(unwinding);
        }
        self.save()?;
        call(&self.process, region, register, frames)?;
        self.set_told(region, true)
    }

    /// Back to the original bytes, here and in the processes that were forked from this one since; then gives back the
    /// memory that nothing leads into any more. What must stay is remembered, and tried again by the next call.
    ///
    /// # Errors
    /// Those of stopping, [`RelayoutError::Memory`].
    pub fn rollback(&mut self) -> Result<(Switched, Kept), RelayoutError> {
        let _lock = self.lock()?;
        let switched = self.switch_locked(0)?;
        if let Some(stub) = self.manifest.stub.clone() {
            write_image(
                self.process.pid,
                &self.process.memory,
                &[Place::of_stub(&stub)],
            )?;
            self.manifest.stub = None;
        }
        // Where a thread waits inside a place it is still ours: that stays on record.
        let kept = self.reclaim_locked(switched.occupied.is_empty())?;
        Ok((switched, kept))
    }

    /// Gives back the memory of layouts that were forgotten.
    ///
    /// # Errors
    /// As [`CodeCache::rollback`].
    pub fn reclaim(&mut self) -> Result<Kept, RelayoutError> {
        let _lock = self.lock()?;
        self.reclaim_locked(false)
    }

    fn reclaim_locked(&mut self, is_rollback: bool) -> Result<Kept, RelayoutError> {
        let mut kept = Kept::default();
        let used: Vec<usize> = match is_rollback {
            true => Vec::new(),
            false => self
                .manifest
                .generations
                .iter()
                .filter_map(|known| known.region)
                .collect(),
        };
        let regions = self.manifest.regions.clone();
        let mut is_freed = vec![false; regions.len()];
        // Counters go after all code that may count in them.
        let mut order: Vec<usize> = (0..regions.len()).collect();
        order.sort_by_key(|index| !regions[*index].is_code);
        for index in order {
            let region = regions[index].clone();
            if used.contains(&index) {
                continue;
            }
            if !region.is_code && kept.bytes > 0 {
                kept.bytes += region.bytes;
                continue;
            }
            let maps = self.process.maps()?;
            if !is_ours(&self.process.memory, &maps, &region) {
                is_freed[index] = true;
                continue;
            }
            match self.unmap(&region) {
                Ok(true) => is_freed[index] = true,
                Ok(false) => {
                    kept.bytes += region.bytes;
                }
                Err(RelayoutError::Gone { pid }) => return Err(RelayoutError::Gone { pid }),
                Err(error) => {
                    kept.bytes += region.bytes;
                    kept.why = Some(error.to_string());
                }
            }
        }
        if is_rollback {
            self.manifest.generations.clear();
        }
        // Indices of regions in generations must stay right.
        let new_index: Vec<Option<usize>> = is_freed
            .iter()
            .scan(0, |next, freed| {
                Some(match freed {
                    true => None,
                    false => {
                        *next += 1;
                        Some(*next - 1)
                    }
                })
            })
            .collect();
        for generation in &mut self.manifest.generations {
            generation.region = generation.region.and_then(|index| new_index[index]);
        }
        let freed = is_freed.iter();
        self.manifest.regions = std::mem::take(&mut self.manifest.regions)
            .into_iter()
            .zip(freed)
            .filter_map(|(region, freed)| (!freed).then_some(region))
            .collect();
        self.manifest.generation = if is_rollback {
            0
        } else {
            self.manifest.generation
        };
        if self.manifest.regions.is_empty() && self.manifest.generations.is_empty() {
            self.manifest.remove()?;
        } else {
            self.save()?;
        }
        Ok(kept)
    }

    /// Unmaps a region that nothing leads into; false where something may.
    fn unmap(&mut self, region: &Region) -> Result<bool, RelayoutError> {
        let range = region.address..region.address + region.bytes;
        let range = std::slice::from_ref(&range);
        if !region.unwinding.is_empty() && self.is_reached(range)? {
            return Ok(false);
        }
        // The frames are the unwinder's data: only after it has let go of them may they go.
        for unwinding in region.unwinding.iter().rev() {
            if !unwinding.is_told {
                return Ok(false);
            }
            self.set_told(region, false)?;
            let process = &self.process;
            let forgot = call(process, region, unwinding.deregister, unwinding.frames);
            if matches!(forgot, Err(RelayoutError::Refused { .. })) {
                // It was not even asked.
                self.set_told(region, true)?;
            }
            forgot?;
            if let Some(known) = self.known(region) {
                known.unwinding.pop();
            }
            self.save()?;
        }
        let maps = self.process.maps()?;
        // First the stacks, then the rest while the process runs, then the stacks again: what is nowhere the first time
        // can only have been in the rest, where words stay in their place.
        if region.is_code {
            if self.is_reached(range)? {
                return Ok(false);
            }
            let (guard, stacks) = self.guard_and_stacks()?;
            let mut search = Search::new(range);
            search.set_guard(guard);
            let (memory, pid) = (&self.process.memory, self.process.pid);
            let found = search.everywhere(memory, pid, &maps, &stacks)?;
            if found != Some(false) {
                return Ok(false);
            }
        }
        let cave = self.dig(&maps)?;
        let pid = self.process.pid;
        let (address, bytes) = (region.address, region.bytes);
        let done = stopped(pid, &self.process.memory, |process| {
            let is_reached = region.is_code && reaches(process, range, &maps)?;
            if process.is_group_stopped || is_reached {
                return Ok(None);
            }
            process.memory.write(cave.address, &cave.new.0)?;
            let arguments = [address, bytes, 0, 0, 0, 0];
            let mut done = Err(RelayoutError::Gone { pid });
            for thread in &process.threads {
                done = inject::syscall(process, *thread, cave.address, SYS_MUNMAP, arguments);
                // Its stack has no room: another's has.
                if !matches!(done, Err(RelayoutError::Memory { .. })) {
                    break;
                }
            }
            done.map(Some)
        });
        let (result, _) = self.fill(&cave, done)?;
        Ok(result == Some(0))
    }

    fn known(&mut self, region: &Region) -> Option<&mut Region> {
        let mut regions = self.manifest.regions.iter_mut();
        regions.find(|known| known.address == region.address)
    }

    /// Puts on record whether the unwinder knows of the last frames of a region.
    fn set_told(&mut self, region: &Region, is_told: bool) -> Result<(), RelayoutError> {
        let last = self
            .known(region)
            .and_then(|known| known.unwinding.last_mut());
        if let Some(unwinding) = last {
            unwinding.is_told = is_told;
        }
        self.save()
    }

    /// The pointer guard, which all threads share, and each thread's stack pointer.
    fn guard_and_stacks(&self) -> Result<(Option<u64>, Vec<u64>), RelayoutError> {
        let registers = stopped(self.process.pid, &self.process.memory, |process| {
            let threads = process.threads.iter();
            threads
                .map(|thread| ptrace::registers(*thread))
                .collect::<Result<Vec<_>, _>>()
        });
        let (registers, _) = registers?;
        let guard = registers.first().and_then(|registers| {
            let at = registers.fs_base + crate::scan::GUARD_OFFSET;
            self.process.memory.word(at).ok()
        });
        Ok((
            guard,
            registers.iter().map(|registers| registers.rsp).collect(),
        ))
    }

    fn is_reached(&self, ranges: &[Range<u64>]) -> Result<bool, RelayoutError> {
        let maps = self.process.maps()?;
        stopped(self.process.pid, &self.process.memory, |process| {
            reaches(process, ranges, &maps)
        })
        .map(|(is_reached, _)| is_reached)
    }
}

/// Whether a stopped process has an address in one of the ranges in a register or on a stack.
fn reaches(
    process: &Stopped<'_>,
    ranges: &[Range<u64>],
    maps: &[Mapping],
) -> Result<bool, RelayoutError> {
    let mut search = Search::new(ranges);
    for thread in &process.threads {
        if search.thread(process, *thread, maps)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Memory that could not be given back yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// How much.
    pub bytes: u64,
    /// What went wrong, where it is not that something may still return into it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Whether the region is mapped and carries our mark; what was announced and never mapped does not.
fn is_ours(memory: &Memory, maps: &[Mapping], region: &Region) -> bool {
    let covers = |map: &&Mapping| {
        map.start <= region.address
            && map.end >= region.address + region.bytes
            && map.is_anonymous()
    };
    let Some(map) = maps.iter().find(covers) else {
        return false;
    };
    let mark = memory
        .read(region.address, region.mark.0.len())
        .unwrap_or_default();
    // Killed between mapping and marking it is executable, private, and all zero: nobody else has such memory there.
    mark == region.mark.0 || (map.is_executable && mark.iter().all(|byte| *byte == 0))
}

/// The threads of a process, in the order in which they are worth trying: those that sleep in a system call stop at once
/// and have nothing better to do.
fn threads_by_chance(pid: u32) -> Result<Vec<u32>, RelayoutError> {
    let mut threads = host::thread_ids(&host::Roots::default(), pid)?;
    threads.sort_by_cached_key(|thread| {
        crate::stop::status_field(pid, *thread, "State").is_none_or(|state| !state.starts_with('S'))
    });
    Ok(threads)
}

/// System calls that threads sleep in and that no allocator and no unwinder makes: a thread inside one of them holds none
/// of their locks.
const WAITING_CALLS: [i64; 18] = [
    libc::SYS_read,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigsuspend,
    libc::SYS_pause,
    libc::SYS_wait4,
];

/// How long a thread in a safe place is waited for.
const SAFE_PLACE_TRIES: usize = 200;

/// Calls a function of the process with one argument, by a thread that is known to be outside the allocator.
fn call(
    process: &Process,
    region: &Region,
    function: u64,
    argument: u64,
) -> Result<(), RelayoutError> {
    let pid = process.pid;
    let waits = |thread: &u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/syscall"));
        let number = text
            .ok()
            .and_then(|text| text.split(' ').next()?.parse().ok());
        number.is_some_and(|number: i64| WAITING_CALLS.contains(&number))
    };
    for _ in 0..SAFE_PLACE_TRIES {
        let mut threads = threads_by_chance(pid)?;
        threads.retain(waits);
        for thread in threads {
            let called = one_stopped(pid, &process.memory, &[thread], |process| {
                let now = ptrace::registers(thread)?;
                let call_now = now.orig_rax.cast_signed();
                if !WAITING_CALLS.contains(&call_now) {
                    return Ok(false);
                }
                inject::call(
                    process,
                    thread,
                    region.address + CALL_STUB,
                    function,
                    argument,
                )?;
                Ok(true)
            });
            match called {
                Ok((true, _)) => return Ok(()),
                Ok((false, _)) | Err(RelayoutError::Memory { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(RelayoutError::Refused {
        pid,
        call: "tell its unwinder of the moved code: no thread of it waits where the allocator is not in use",
        source: std::io::Error::from_raw_os_error(libc::EBUSY),
    })
}
