//! Counts of blocks and edges from the branches that a processor recorded as it took them.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::analysis::flow::{Function, Terminator};
use crate::profile::{Edge, FunctionCounts};

/// Taken branches, and the straight runs of code between them.
///
/// ```
/// let mut branches = code_layout::Branches::default();
/// // A stack of records, the latest first: 0x120 jumped to 0x200; before that, 0x15 jumped to 0x100.
/// branches.add([(0x120, 0x200), (0x15, 0x100)]);
/// assert_eq!(branches.straight[&(0x100, 0x120)], 1);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Branches {
    /// How often, by the branch instruction's address and its target's.
    pub taken: BTreeMap<(u64, u64), u64>,
    /// How often, from a branch's target to the next branch that was taken, both included.
    pub straight: BTreeMap<(u64, u64), u64>,
}

impl Branches {
    /// Takes in one stack of records, (from, to), the latest first. The way into the kernel is not
    /// recorded where only user code is, but the way back is: what runs is not cut there.
    pub fn add(&mut self, latest_first: impl IntoIterator<Item = (u64, u64)>) {
        let mut next: Option<u64> = None;
        let of_user = |(from, _): &(u64, u64)| from >> 63 == 0;
        for (from, to) in latest_first.into_iter().filter(of_user) {
            *self.taken.entry((from, to)).or_default() += 1;
            if let Some(next) = next {
                *self.straight.entry((to, next)).or_default() += 1;
            }
            next = Some(from);
        }
    }

    /// What concerns the code at some addresses, seen from `bias`.
    #[must_use]
    pub fn within(&self, range: &Range<u64>, bias: u64) -> Self {
        let within = |of: &BTreeMap<(u64, u64), u64>, is_wanted: &dyn Fn(u64, u64) -> bool| {
            let wanted = of.iter().filter(|((one, two), _)| is_wanted(*one, *two));
            wanted
                .map(|((one, two), count)| {
                    ((one.wrapping_sub(bias), two.wrapping_sub(bias)), *count)
                })
                .collect()
        };
        let has = |address| range.contains(&address);
        Self {
            taken: within(&self.taken, &|_, to| has(to)),
            straight: within(&self.straight, &|first, last| has(first) && has(last)),
        }
    }

    /// What was counted of some functions, by their start. Those of which nothing was recorded are
    /// missing.
    #[must_use]
    pub fn counts(&self, functions: &[Function]) -> BTreeMap<u64, FunctionCounts> {
        let mut targets: BTreeMap<u64, u64> = BTreeMap::new();
        for ((_, to), count) in &self.taken {
            *targets.entry(*to).or_default() += count;
        }
        let counts = functions.iter().map(|function| {
            let entered = targets.get(&function.start).copied().unwrap_or(0);
            (function.start, self.counts_of(function, entered))
        });
        counts
            .filter(|(_, counts)| !counts.blocks.is_empty())
            .collect()
    }

    /// `entered`: how often a branch led to the function's start.
    fn counts_of(&self, function: &Function, entered: u64) -> FunctionCounts {
        let code = (function.start, 0)..(function.end, 0);
        let mut blocks: BTreeMap<u32, u64> = BTreeMap::new();
        let mut edges: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for (&(first, last), count) in self.straight.range(code.clone()) {
            let Some(mut id) = function.block_of(first).filter(|_| last < function.end) else {
                continue;
            };
            // A run begins within a block where a call comes back.
            while let Some(block) = function.blocks.get(id).filter(|block| block.start <= last) {
                let start = function.offset(block.start);
                if first <= block.start {
                    *blocks.entry(start).or_default() += count;
                }
                let goes_on = matches!(block.exit, Terminator::FallThrough | Terminator::Branch(_));
                if last < block.end || !goes_on || function.block_at(block.end).is_none() {
                    break;
                }
                let end = function.offset(block.end);
                *edges.entry((start, end)).or_default() += count;
                id += 1;
            }
        }
        let mut back_to_start = 0;
        for (&(from, to), count) in self.taken.range(code) {
            let Some(block) = function.block_of(from).map(|id| &function.blocks[id]) else {
                continue;
            };
            let is_exit = block.last == from && function.successors(block).contains(&to);
            if !is_exit || function.block_at(to).is_none() {
                continue;
            }
            let edge = (function.offset(block.start), function.offset(to));
            *edges.entry(edge).or_default() += count;
            if to == function.start {
                back_to_start += count;
            }
        }
        // A call is where a run ends and the next begins.
        for block in function
            .blocks
            .iter()
            .filter(|block| block.exit == Terminator::FallThrough)
        {
            let (start, end) = (function.offset(block.start), function.offset(block.end));
            if let (Some(left), Some(entered)) = (blocks.get(&start), blocks.get(&end)) {
                edges.insert((start, end), *left.min(entered));
            }
        }
        let edges = edges.into_iter();
        FunctionCounts {
            entries: entered.saturating_sub(back_to_start),
            blocks,
            edges: edges
                .map(|((from, to), count)| Edge { from, to, count })
                .collect(),
        }
    }
}
