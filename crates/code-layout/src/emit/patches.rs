//! The bytes of the old program that lead into the new code.

use std::collections::{BTreeSet, HashMap};

use crate::analysis::image::Image;
use crate::elf::binary::ENTRY_BYTES;
use crate::emit::emitted::{CallSites, Patch, PatchKind, Placement};
use crate::error::{Skip, Skipped};
use crate::plan::LayoutPlan;

/// New code at an old function's start, and where a table's entries lead now.
pub(crate) struct Links<'a> {
    pub(crate) image: &'a Image,
    pub(crate) plan: &'a LayoutPlan,
    pub(crate) placement: &'a Placement,
    /// Old start of a block to runtime address of its copy.
    pub(crate) entries: HashMap<u64, u64>,
    pub(crate) exits: BTreeSet<u64>,
    /// (function's index, table's index, where each entry leads now), of tables with a copy.
    pub(crate) tables: Vec<(usize, usize, Vec<u64>)>,
}

/// All patches that the placement asks for, in order of address.
pub(crate) fn make(links: &Links<'_>, skipped: &mut Skipped) -> Vec<Patch> {
    let selection = links.placement.patches;
    let mut patches = Vec::new();
    if selection.entries {
        patches.extend(entries(links, skipped));
    }
    let entries = patches.clone();
    let under_entry = |site: u64| {
        let after = entries.partition_point(|patch| patch.vaddr <= site);
        let before = after.checked_sub(1).map(|index| &entries[index]);
        let inside = before.is_some_and(|patch| site < patch.vaddr + ENTRY_BYTES);
        inside
            || entries
                .get(after)
                .is_some_and(|patch| patch.vaddr < site + ENTRY_BYTES)
    };
    let mut sites: Vec<(u64, u64)> = match selection.call_sites {
        CallSites::None => Vec::new(),
        CallSites::Moved => links
            .plan
            .functions()
            .flat_map(|function| function.calls.iter().map(|call| (call.site, call.target)))
            .collect(),
    };
    sites.retain(|&(site, target)| {
        links.entries.contains_key(&target)
            && links.image.function_from(target).is_some()
            && !under_entry(site)
    });
    for (site, target) in sites {
        match call_site(links, site, target) {
            Some(patch) => patches.push(patch),
            None => *skipped.entry(Skip::PatchSite).or_default() += 1,
        }
    }
    if selection.vtables {
        patches.extend(vtable_slots(links));
    }
    if selection.jump_tables {
        patches.extend(jump_tables(links));
    }
    agreed(patches)
}

/// In order, each once. Bytes that two want otherwise stay as they are: they lead to the old code,
/// which is whole.
fn agreed(mut patches: Vec<Patch>) -> Vec<Patch> {
    patches.sort_by(|one, other| (one.vaddr, &one.new).cmp(&(other.vaddr, &other.new)));
    patches.dedup_by(|one, other| one.vaddr == other.vaddr && one.new == other.new);
    let mut found: Vec<(Patch, bool)> = Vec::new();
    let mut end = 0;
    for patch in patches {
        let is_alone = patch.vaddr >= end;
        if !is_alone && let Some((_, before_is_alone)) = found.last_mut() {
            *before_is_alone = false;
        }
        end = end.max(patch.vaddr + patch.new.len() as u64);
        found.push((patch, is_alone));
    }
    found
        .into_iter()
        .filter_map(|(patch, is_alone)| is_alone.then_some(patch))
        .collect()
}

fn entries(links: &Links<'_>, skipped: &mut Skipped) -> Vec<Patch> {
    let mut patches = Vec::new();
    for planned in &links.plan.functions {
        let function = &planned.function;
        let start = function.start;
        let skip = match (function.entry, links.entries.get(&start)) {
            (Err(skip), _) => Some(skip),
            // New code that goes on under the patch would find half a jump.
            _ if links
                .exits
                .range(start + 1..start + ENTRY_BYTES)
                .next()
                .is_some() =>
            {
                Some(Skip::EntryBranchTarget)
            }
            (Ok(()), None) => Some(Skip::NothingToEmit),
            (Ok(()), Some(&new)) => {
                let old = links.image.read(start, ENTRY_BYTES);
                match (old, displacement(links, start, new)) {
                    (Some(old), Some(displacement)) => {
                        let mut bytes = vec![0xe9];
                        bytes.extend_from_slice(&displacement);
                        patches.push(Patch {
                            vaddr: start,
                            old: old.to_vec(),
                            new: bytes,
                            kind: PatchKind::Entry,
                        });
                        None
                    }
                    _ => Some(Skip::PatchSite),
                }
            }
        };
        if let Some(skip) = skip {
            *skipped.entry(skip).or_default() += 1;
        }
    }
    patches.sort_by_key(|patch| patch.vaddr);
    patches
}

/// What a jump or call of 5 bytes at `vaddr` holds to lead to a runtime address.
fn displacement(links: &Links<'_>, vaddr: u64, to: u64) -> Option<[u8; 4]> {
    let end = links.placement.load_bias.wrapping_add(vaddr + ENTRY_BYTES);
    let distance = to.wrapping_sub(end).cast_signed();
    i32::try_from(distance).ok().map(i32::to_le_bytes)
}

fn call_site(links: &Links<'_>, site: u64, target: u64) -> Option<Patch> {
    let old = links.image.read(site, ENTRY_BYTES)?;
    if !matches!(old[0], 0xe8 | 0xe9) {
        return None;
    }
    let mut new = vec![old[0]];
    new.extend_from_slice(&displacement(links, site, *links.entries.get(&target)?)?);
    Some(Patch {
        vaddr: site,
        old: old.to_vec(),
        new,
        kind: PatchKind::CallSite,
    })
}

fn vtable_slots(links: &Links<'_>) -> Vec<Patch> {
    let bias = links.placement.load_bias;
    links
        .image
        .vtables()
        .iter()
        .flat_map(|vtable| &vtable.slots)
        .filter_map(|(slot, target)| {
            let new = links.entries.get(target)?;
            Some(Patch {
                vaddr: *slot,
                old: bias.wrapping_add(*target).to_le_bytes().to_vec(),
                new: new.to_le_bytes().to_vec(),
                kind: PatchKind::VtableSlot,
            })
        })
        .collect()
}

/// The slots that surely are their table's own. What bounds the index may allow more than the
/// compiler wrote: a mask of 3 bits before a switch of 6 cases without a default. What lies behind
/// is another table's, or anybody's.
fn jump_tables(links: &Links<'_>) -> Vec<Patch> {
    let bias = links.placement.load_bias;
    let bases: BTreeSet<u64> = links
        .plan
        .functions()
        .flat_map(|function| function.tables.iter().map(|table| table.address))
        .collect();
    let mut patches = Vec::new();
    for (function, table, addresses) in &links.tables {
        let table = &links.plan.functions[*function].function.tables[*table];
        let width = u64::from(table.entry_bytes);
        let base = bias.wrapping_add(table.address);
        let next = bases.range(table.address + 1..).next();
        let end = links
            .image
            .next_referred(table.address)
            .min(next.copied().unwrap_or(u64::MAX));
        let stored = |to: u64| {
            let value = if width == 4 {
                to.wrapping_sub(base)
            } else {
                to
            };
            value.to_le_bytes()[..table.entry_bytes.into()].to_vec()
        };
        for ((slot, old), new) in (table.address..)
            .step_by(table.entry_bytes.into())
            .take_while(|slot| slot + width <= end)
            .zip(&table.targets)
            .zip(addresses)
        {
            let (old, new) = (stored(bias.wrapping_add(*old)), stored(*new));
            if old != new {
                patches.push(Patch {
                    vaddr: slot,
                    old,
                    new,
                    kind: PatchKind::JumpTable,
                });
            }
        }
    }
    patches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_patches_want_otherwise_is_left() {
        let patch = |vaddr, new: &[u8]| Patch {
            vaddr,
            old: vec![0; new.len()],
            new: new.to_vec(),
            kind: PatchKind::JumpTable,
        };
        let (alone, shared) = (patch(8, &[1; 4]), patch(32, &[4; 4]));
        let patches = agreed(vec![
            shared.clone(),
            patch(12, &[1; 8]),
            patch(12, &[2; 4]),
            patch(16, &[3; 4]),
            alone.clone(),
            patch(24, &[1; 4]),
            patch(24, &[2; 4]),
            patch(24, &[1; 4]),
            shared.clone(),
        ]);
        assert_eq!(patches, [alone, shared]);
    }
}
