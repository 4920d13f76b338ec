//! Writing what is wanted at the patched places of a process, while it is stopped and nobody is in
//! the middle of one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::patch::chain::Chain;
use crate::patch::manifest::{AppliedPatch, LoadedObject, Manifest};
use crate::process::Process;
use crate::process::handlers::continuations;
use crate::process::maps::{Mapping, PAGE};
use crate::process::sharing::all_stopped;
use crate::process::stop::{Pause, Stopped};
use crate::{ProcessMemory, RelayoutError};

/// How often a stop is tried again when a thread is about to run the inside of a patch: it has left
/// after some instructions, unless it waits there.
const TRIES: usize = 40;

/// What a thread is given to leave the inside of a patch.
const TRY_AGAIN: Duration = Duration::from_micros(300);

/// The first byte of a jump with 32 bits of displacement, and a breakpoint.
const JUMP: u8 = 0xe9;
const BREAKPOINT: u8 = 0xcc;

/// What a rollback, or a switch, came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switched {
    /// How long a process stood still, at most.
    pub pause: Pause,
    /// How many processes run in the layout now.
    pub processes: usize,
    /// Patches whose place holds what neither the file nor we put there: left alone.
    pub changed_by_others: Vec<u64>,
    /// Patches that were left out because a thread waits inside them.
    pub occupied: Vec<u64>,
    /// Members of the family that stay as they are, and why.
    pub left_out: Vec<(u32, String)>,
    /// Patched files that the process has closed since (`dlclose`): nothing of theirs is left to
    /// change.
    pub closed: BTreeSet<String>,
}

impl Switched {
    /// Whether every place of every process holds what was wanted.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.changed_by_others.is_empty() && self.occupied.is_empty() && self.left_out.is_empty()
    }

    pub(crate) fn add(&mut self, other: Self) {
        if other.pause.us > self.pause.us {
            self.pause = other.pause;
        }
        self.processes += 1;
        self.changed_by_others.extend(other.changed_by_others);
        self.occupied.extend(other.occupied);
        self.closed.extend(other.closed);
    }
}

/// One place of a process that is patched in some layout.
pub(crate) struct Place<'a> {
    address: u64,
    wanted: &'a [u8],
    original: &'a [u8],
    /// Everything that we may have put there, and the original.
    known: Vec<Vec<u8>>,
}

impl<'a> Place<'a> {
    fn new(patch: &'a AppliedPatch, wanted: &'a [u8], mut known: Vec<Vec<u8>>) -> Self {
        known.push(patch.old.0.clone());
        Self {
            address: patch.address,
            wanted,
            original: &patch.old.0,
            known,
        }
    }

    /// Where something of ours begins at a place that holds `found`, of which the original is
    /// wanted: behind the breakpoint of somebody else, who puts the file's byte in its place when
    /// it goes, also where a jump of ours was before, as the kernel does with a uprobe
    /// (kernel/events/uprobes.c). `None` where it is not ours.
    fn ours(&self, found: &[u8]) -> Option<usize> {
        if self.known.iter().any(|known| known == found) {
            return Some(0);
        }
        let is_jump = |known: &&Vec<u8>| known.first() == Some(&JUMP) || *known == self.original;
        let is_rest = |known: &Vec<u8>| known.get(1..) == found.get(1..);
        if self.wanted != self.original || !self.known.iter().filter(is_jump).any(is_rest) {
            return None;
        }
        match found.first() {
            Some(&BREAKPOINT) => Some(1),
            first => (first == self.original.first()).then_some(0),
        }
    }

    /// Whether it is in that file.
    pub(crate) fn is_in(&self, object: &LoadedObject) -> bool {
        object.contains(self.address)
    }
}

/// What is to change.
struct Change<'a> {
    address: u64,
    wanted: &'a [u8],
    forbidden: Range<u64>,
}

pub(crate) fn originals(manifest: &Manifest) -> BTreeMap<u64, Vec<u8>> {
    let patches = manifest
        .generations
        .iter()
        .flat_map(|generation| &generation.patches);
    patches
        .map(|patch| (patch.address, patch.old.0.clone()))
        .collect()
}

/// Every place of every layout, with what is wanted there.
pub(crate) fn places<'a>(manifest: &'a Manifest, wanted: &'a [AppliedPatch]) -> Vec<Place<'a>> {
    let mut places: BTreeMap<u64, Place<'a>> = BTreeMap::new();
    let patches = manifest
        .generations
        .iter()
        .flat_map(|generation| &generation.patches);
    for patch in patches {
        let place = places
            .entry(patch.address)
            .or_insert_with(|| Place::new(patch, &patch.old.0, Vec::new()));
        place.known.push(patch.new.0.clone());
    }
    for patch in wanted {
        if let Some(place) = places.get_mut(&patch.address) {
            place.wanted = &patch.new.0;
        }
    }
    places.into_values().collect()
}

/// Writes what is wanted where something else of ours is, while the process is stopped and no
/// thread is about to run the inside of a changed place; before it, where the unwinder is led.
pub(crate) fn write_image(
    process: &Process,
    others: &[u32],
    maps: &[Mapping],
    chain: &Chain<'_>,
    places: &[Place<'_>],
) -> Result<Switched, RelayoutError> {
    let (pid, memory) = (process.pid, &process.memory);
    let mut switched = Switched::default();
    // Before the stop, while nobody else writes there: what is to change, and in which pages.
    let mut changes: Vec<Change<'_>> = Vec::new();
    let mut last_page = u64::MAX;
    for place in places {
        let found = match memory.read(place.address, place.wanted.len()) {
            Ok(found) => found,
            // Unmapped: the library was closed.
            Err(RelayoutError::Memory { .. }) => continue,
            Err(error) => return Err(error),
        };
        if found == place.wanted {
            continue;
        }
        let Some(from) = place.ours(&found) else {
            switched.changed_by_others.push(place.address);
            continue;
        };
        if found[from..] == place.wanted[from..] {
            continue;
        }
        // The first write to a page copies it: not while the process waits. The same byte again
        // changes nothing.
        if place.address / PAGE as u64 != last_page {
            last_page = place.address / PAGE as u64;
            memory.write(place.address, &found[..1])?;
        }
        changes.push(Change {
            address: place.address + from as u64,
            wanted: &place.wanted[from..],
            // What begins at its first byte is right in either layout.
            forbidden: place.address + 1..place.address + place.wanted.len() as u64,
        });
    }
    let mut is_asked = false;
    for attempt in 0..TRIES {
        if changes.is_empty() && chain.is_laid() {
            break;
        }
        let runs = runs(&changes, memory)?;
        let (inside, pause) = all_stopped(process, others, maps, &[], &mut |process, more| {
            let inside = occupied(process, maps, &changes, more)?;
            is_asked = chain.is_asked_for(process)?;
            if inside.is_empty() && !is_asked {
                chain.lay(process.memory)?;
                for (address, bytes) in &runs {
                    process.memory.write(*address, bytes)?;
                }
            }
            Ok(inside)
        })?;
        if pause.us > switched.pause.us {
            switched.pause = pause;
        }
        if inside.is_empty() && !is_asked {
            return Ok(switched);
        }
        // Half-way: where somebody waits for long is left out.
        if attempt == TRIES / 2 {
            changes.retain(|change| !inside.contains(&change.address));
            switched.occupied.extend(inside);
        }
        std::thread::sleep(TRY_AGAIN);
    }
    if changes.is_empty() && chain.is_laid() {
        return Ok(switched);
    }
    Err(RelayoutError::Refused {
        pid,
        call: match is_asked {
            true => "be switched: the dynamic linker looks for its unwinder's function; try again",
            false => "be switched: a thread stays inside a place that is to be patched",
        },
        source: std::io::Error::from_raw_os_error(libc::EBUSY),
    })
}

/// The changes that a thread is in the middle of, or somebody who goes on at one of these further
/// places.
fn occupied(
    process: &Stopped<'_>,
    maps: &[Mapping],
    changes: &[Change<'_>],
    more: &[u64],
) -> Result<Vec<u64>, RelayoutError> {
    let mut inside = Vec::new();
    let own = continuations(process, maps)?.into_iter();
    for address in own.map(|(_, address)| address).chain(more.iter().copied()) {
        // Changes are in order of address and do not overlap.
        let after = changes.partition_point(|change| change.address <= address);
        let change = after.checked_sub(1).and_then(|index| changes.get(index));
        inside.extend(
            change
                .filter(|change| change.forbidden.contains(&address))
                .map(|change| change.address),
        );
    }
    Ok(inside)
}

/// One write a page, from its first changed byte to its last: what lies between is written as it
/// is.
fn runs(
    changes: &[Change<'_>],
    memory: &ProcessMemory,
) -> Result<Vec<(u64, Vec<u8>)>, RelayoutError> {
    let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
    for Change {
        address, wanted, ..
    } in changes
    {
        let end = address + wanted.len() as u64;
        match runs.last_mut() {
            Some((start, bytes)) if *start / PAGE as u64 == address / PAGE as u64 => {
                let behind = *start + bytes.len() as u64;
                let between = memory.read(behind, usize::try_from(end - behind).unwrap_or(0))?;
                bytes.extend_from_slice(&between);
                let at = usize::try_from(address - *start).unwrap_or(0);
                bytes[at..at + wanted.len()].copy_from_slice(wanted);
            }
            _ => runs.push((*address, wanted.to_vec())),
        }
    }
    Ok(runs)
}
