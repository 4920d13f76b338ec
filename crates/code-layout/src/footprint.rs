//! How much memory the code that ran touches, and how many of its conditional branches were taken:
//! before and after.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::analysis::flow::Terminator;
use crate::emit::emitted::Emitted;
use crate::plan::{LayoutPlan, PlannedFunction};
use crate::profile::Profile;

/// A cache line of x86-64, in bytes.
const LINE_BYTES: u64 = 64;

/// A page of x86-64, in bytes.
const PAGE_BYTES: u64 = 4096;

/// What the code that ran, by a profile, takes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footprint {
    /// Its size, in bytes.
    pub bytes: u64,
    /// Cache lines of 64 bytes that it touches.
    pub lines: u64,
    /// Bytes of it in each page of 4 KiB that it touches, by the page's number.
    pub pages: BTreeMap<u64, u64>,
    /// How many conditional branches ran.
    pub branches: u64,
    /// How many of them were taken.
    pub taken: u64,
}

impl Footprint {
    /// The share of conditional branches that were taken; `None` where none ran.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "a share needs no more than 53 bits"
    )]
    pub fn taken_share(&self) -> Option<f64> {
        (self.branches > 0).then(|| self.taken as f64 / self.branches as f64)
    }

    /// Adds another object's.
    pub fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.lines += other.lines;
        for (page, bytes) in &other.pages {
            *self.pages.entry(*page).or_default() += bytes;
        }
        self.branches += other.branches;
        self.taken += other.taken;
    }

    fn cover(&mut self, lines: &mut BTreeSet<u64>, start: u64, end: u64) {
        self.bytes += end - start;
        if start < end {
            lines.extend(start / LINE_BYTES..=(end - 1) / LINE_BYTES);
        }
        let mut at = start;
        while at < end {
            let next = (at / PAGE_BYTES + 1) * PAGE_BYTES;
            *self.pages.entry(at / PAGE_BYTES).or_default() += next.min(end) - at;
            at = next;
        }
    }
}

/// Of the functions of a plan: where they lie in the file (pages of vaddrs), and where they were
/// emitted (pages of runtime addresses).
#[must_use]
pub fn footprints(
    plan: &LayoutPlan,
    emitted: &Emitted,
    profile: &Profile,
) -> (Footprint, Footprint) {
    let (mut before, mut after) = (Footprint::default(), Footprint::default());
    let mut lines = BTreeSet::new();
    let mut hot: Vec<(u64, u64)> = Vec::new();
    for planned in &plan.functions {
        let function = &planned.function;
        let Some(counts) = profile.functions.get(&function.start) else {
            continue;
        };
        for block in &function.blocks {
            if counts.blocks.contains_key(&function.offset(block.start)) {
                before.cover(&mut lines, block.start, block.end);
                hot.push((block.start, block.end));
            }
        }
        let (branches, taken, taken_after) = branches(planned, &counts.edges);
        before.branches += branches;
        after.branches += branches;
        before.taken += taken;
        after.taken += taken_after;
    }
    before.lines = lines.len() as u64;
    lines.clear();
    hot.sort_unstable();
    for one in emitted.map.instructions() {
        let index = hot.partition_point(|(start, _)| *start <= one.origin);
        let is_hot = index > 0 && one.origin < hot[index - 1].1;
        if is_hot {
            after.cover(&mut lines, one.new, one.new + u64::from(one.len));
        }
    }
    after.lines = lines.len() as u64;
    (before, after)
}

/// How many conditional branches of a function ran, how many were taken, and how many are taken in
/// the plan's order.
fn branches(planned: &PlannedFunction, edges: &[crate::profile::Edge]) -> (u64, u64, u64) {
    let function = &planned.function;
    let count = |from: u64, to: u64| {
        let (from, to) = (
            function.offset(from),
            function.block_at(to).map(|_| function.offset(to)),
        );
        let found = edges
            .iter()
            .find(|edge| edge.from == from && Some(edge.to) == to);
        found.map_or(0, |edge| edge.count)
    };
    let order: Vec<usize> = planned.blocks().collect();
    let (mut all, mut taken, mut taken_after) = (0, 0, 0);
    for (index, id) in order.iter().enumerate() {
        let block = &function.blocks[*id];
        let Terminator::Branch(target) = block.exit else {
            continue;
        };
        let (to_target, to_next) = (count(block.start, target), count(block.start, block.end));
        all += to_target + to_next;
        taken += to_target;
        let follows = order
            .get(index + 1)
            .map(|next| function.blocks[*next].start);
        // What follows is fallen into: the branch is turned round where that was its target.
        taken_after += match follows == Some(target) {
            true => to_next,
            false => to_target,
        };
    }
    (all, taken, taken_after)
}
