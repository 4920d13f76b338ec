//! Addresses inside a function that somebody holds as numbers. A signal handler may compare them
//! with where a thread is: one of a load that may fault, two between which a thread may be
//! cancelled. So what is there runs in old code.

use std::collections::HashSet;
use std::ops::Range;

use crate::analysis::jump_table::JumpTable;
use crate::analysis::sweep::AddressHolder;
use crate::analysis::walk::Disassembly;
use crate::elf::binary::FunctionId;
use crate::error::Skip;

/// Where the blocks begin that stay for this, in order. The entries of the function's own jump
/// tables are only jumped to.
///
/// # Errors
/// All of it stays. What other code does with the address is not known: with another one, which may
/// be the function's start or end, it makes a range.
pub(crate) fn kept(
    walk: &Disassembly<'_>,
    id: FunctionId,
    tables: &[JumpTable],
) -> Result<Vec<Range<u64>>, Skip> {
    let (image, range) = (walk.image, walk.range);
    let entries: HashSet<u64> = tables
        .iter()
        .filter(|table| table.entry_bytes == 8)
        .flat_map(|table| (table.address..).step_by(8).take(table.targets.len()))
        .collect();
    let first = image
        .sweep
        .taken
        .partition_point(|taken| taken.target <= range.start);
    let mut kept = Vec::new();
    let inside = image.sweep.taken[first..]
        .iter()
        .take_while(|taken| taken.target < range.end)
        // Else a mere number.
        .filter(|taken| walk.at(taken.target).is_some());
    for taken in inside {
        let at = taken.target;
        match taken.holder {
            AddressHolder::Code(owner) if owner != Some(id) => return Err(Skip::AddressTaken),
            AddressHolder::Data(slot) if entries.contains(&slot) => continue,
            AddressHolder::Code(_) => {}
            AddressHolder::Data(slot) => {
                // Beside another, it may be an end of a range.
                let [before, after] = [slot.wrapping_sub(8), slot.wrapping_add(8)]
                    .map(|at| image.binary.elf.pointer_at(at));
                if before == Some(range.start) {
                    return Err(Skip::AddressTaken);
                }
                kept.extend(
                    before
                        .filter(|&from| range.start < from && from < at)
                        .map(|from| from..at),
                );
                kept.extend(
                    after
                        .filter(|&to| at < to && to <= range.end)
                        .map(|to| at..to),
                );
            }
        }
        kept.push(at..at + 1);
    }
    kept.sort_unstable_by_key(|range| range.start);
    Ok(kept)
}
