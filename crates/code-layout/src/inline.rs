//! Calls that are emitted as what they call, so that neither the call nor the return is a taken branch.
//!
//! In place of `call f`, the address behind the old call is pushed, and the blocks of `f` that ran follow; in place of its `ret`,
//! the stack pointer goes back over that address. So inside the copy all registers and the whole stack are what they are
//! in `f` when old code has called it: whatever leaves the copy goes on in `f` itself and returns into old code, and
//! an unwinder that comes by the pushed address finds the old caller.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Range;

use crate::flow::{Block, Exit, Function};
use crate::image::{FunctionId, Image};
use crate::plan::Flow;

/// Calls that are less than this share of all counted ones stay calls.
const SHARE_MIN: f64 = 0.002;

/// What is called from several places is copied into those only if it is short.
const COPY_BYTES_MAX: u64 = 64;

/// From the one place that calls it most often (this share of all its calls), if it is not longer than this.
const DOMINANT_SHARE: f64 = 0.6;
const DOMINANT_BYTES_MAX: u64 = 512;

/// All that is copied into one function.
const BYTES_MAX: u64 = 8192;

/// A near call with 32 bits of displacement.
const CALL_BYTES: u64 = 5;

/// A function that may be copied into its callers, with its flow.
pub(crate) struct Candidate<'a> {
    pub(crate) function: &'a Function,
    pub(crate) flow: &'a Flow,
    entries: u64,
    /// Whether it may be copied.
    is_fit: bool,
    /// Of the blocks that ran.
    bytes: u64,
    /// Direct calls that ran: (site, callee), with how often.
    calls: Vec<(u64, u64, u64)>,
}

impl<'a> Candidate<'a> {
    pub(crate) fn new(image: &Image, function: &'a Function, flow: &'a Flow) -> Self {
        let hot = || hot_blocks(function, flow);
        let calls = function.calls.iter().filter_map(|call| {
            let block = function.block_of(call.site)?;
            // A jump out of the function is in the list too.
            let is_call = image.read(call.site, CALL_BYTES)?.first() == Some(&0xe8);
            let (holder, count) = (&function.blocks[block], flow.blocks[block]);
            let is_emitted = count > 0 && holder.stays.is_none() && !holder.landing_pad;
            (is_call && is_emitted).then_some((call.site, call.target, count))
        });
        let has_frame_of_its_own = image.range(function.id).lsda.is_some()
            || image
                .unwind(function.id)
                .is_ok_and(|unwind| unwind.personality.is_some());
        let is_plain = |block: &Block| {
            block.stays.is_none()
                && !block.landing_pad
                && match block.exit {
                    Exit::Table(_) => false,
                    Exit::End => is_return(image, block),
                    _ => true,
                }
        };
        let entry = function.block_at(function.start);
        Self {
            function,
            flow,
            entries: entry.map_or(0, |entry| flow.blocks[entry]),
            is_fit: !has_frame_of_its_own
                && entry.is_some_and(|entry| flow.blocks[entry] > 0)
                && hot().all(is_plain),
            bytes: hot().map(|block| block.end - block.start).sum(),
            calls: calls.collect(),
        }
    }

    /// How many direct calls it did.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.iter().map(|(_, _, count)| count).sum()
    }
}

fn hot_blocks<'a>(function: &'a Function, flow: &'a Flow) -> impl Iterator<Item = &'a Block> {
    let counts = function.blocks.iter().zip(&flow.blocks);
    counts
        .filter(|(_, count)| **count > 0)
        .map(|(block, _)| block)
}

/// `ret`, with or without a prefix, that takes nothing else off the stack.
fn is_return(image: &Image, block: &Block) -> bool {
    let bytes = image.read(block.last, block.end - block.last);
    matches!(bytes, Some([0xc3] | [0xf2 | 0xf3, 0xc3]))
}

/// A function with what was copied into it.
#[derive(Debug, Clone)]
pub(crate) struct WithCopies {
    /// Its blocks and theirs.
    pub(crate) function: Function,
    /// Whose they are.
    pub(crate) copied: Vec<(FunctionId, Range<u64>)>,
}

/// What it is made of, by address.
struct Body {
    blocks: BTreeMap<u64, (Block, u64)>,
    edges: BTreeMap<(u64, u64), u64>,
    copied: Vec<(FunctionId, Range<u64>)>,
    copied_bytes: u64,
}

/// Copies what is called often and short enough into the function of this number; `None` where there is nothing such.
pub(crate) fn inline(
    all: &[Candidate<'_>],
    number: usize,
    by_start: &BTreeMap<u64, usize>,
    calls: u64,
) -> Option<(WithCopies, Flow)> {
    let root = &all[number];
    let mut body = Body {
        blocks: BTreeMap::new(),
        edges: BTreeMap::new(),
        copied: Vec::new(),
        copied_bytes: 0,
    };
    body.add(root, 1.0, None);
    // The most frequent call first.
    let mut waiting: BinaryHeap<(u64, u64, u64)> = BinaryHeap::new();
    let sites = |of: &Candidate<'_>, scale: f64| {
        let scaled = |count| scaled(count, scale);
        let calls = of.calls.iter();
        let calls: Vec<_> = calls
            .map(|&(site, target, count)| (scaled(count), site, target))
            .collect();
        calls
    };
    waiting.extend(sites(root, 1.0));
    while let Some((count, site, target)) = waiting.pop() {
        if (count as f64) < SHARE_MIN * calls as f64 {
            break;
        }
        let Some(callee) = by_start.get(&target).map(|&index| &all[index]) else {
            continue;
        };
        let share = count as f64 / callee.entries.max(1) as f64;
        let longest = if share >= DOMINANT_SHARE {
            DOMINANT_BYTES_MAX
        } else {
            COPY_BYTES_MAX
        };
        if !callee.is_fit
            || callee.bytes > longest
            || body.copied_bytes + callee.bytes > BYTES_MAX
            || target == root.function.start
            || body.copied.iter().any(|(id, _)| *id == callee.function.id)
        {
            continue;
        }
        let back = body.split(site, target, count);
        body.copied_bytes += callee.bytes;
        let range = target..callee.function.end;
        body.copied.push((callee.function.id, range));
        body.add(callee, share, Some(back));
        waiting.extend(sites(callee, share));
    }
    (!body.copied.is_empty()).then(|| body.finish(root.function))
}

fn scaled(count: u64, scale: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count times a share is a count"
    )]
    let scaled = (count as f64 * scale) as u64;
    scaled
}

impl Body {
    /// Adds a function's blocks: all of the root's, and those of a callee that ran, which return to `back`.
    fn add(&mut self, of: &Candidate<'_>, scale: f64, back: Option<u64>) {
        let function = of.function;
        for (block, &count) in function.blocks.iter().zip(&of.flow.blocks) {
            if back.is_some() && count == 0 {
                continue;
            }
            let mut block = block.clone();
            let count = scaled(count, scale).max(u64::from(count > 0));
            if let Some(back) = back {
                block.root = false;
                if block.exit == Exit::End {
                    block.exit = Exit::Back(back);
                    self.edges.insert((block.start, back), count);
                }
            }
            self.blocks.insert(block.start, (block, count));
        }
        for (&(from, to), &count) in &of.flow.edges {
            let start = |block: usize| function.blocks[block].start;
            self.edges
                .insert((start(from), start(to)), scaled(count, scale));
        }
    }

    /// Ends the block that holds a call behind that; returns where it goes on.
    fn split(&mut self, site: u64, target: u64, count: u64) -> u64 {
        let back = site + CALL_BYTES;
        let holder = self.blocks.range_mut(..=site).next_back();
        let Some((&start, (block, executed))) = holder else {
            return back;
        };
        let leaving: Vec<_> = self
            .edges
            .range((start, 0)..=(start, u64::MAX))
            .map(|(&(_, to), &count)| (to, count))
            .collect();
        let rest = (back < block.end).then(|| Block {
            start: back,
            root: false,
            ..block.clone()
        });
        let executed = *executed;
        block.last = site;
        block.end = back;
        block.exit = Exit::Inlined(target);
        for (to, count) in leaving {
            self.edges.remove(&(start, to));
            if rest.is_some() {
                self.edges.insert((back, to), count);
            }
        }
        if let Some(rest) = rest {
            self.blocks.insert(back, (rest, executed));
        }
        self.edges.insert((start, target), count);
        back
    }

    fn finish(self, root: &Function) -> (WithCopies, Flow) {
        let number: BTreeMap<u64, usize> = self.blocks.keys().copied().zip(0..).collect();
        let (blocks, counts) = self.blocks.into_values().unzip();
        let edges = self
            .edges
            .into_iter()
            .filter_map(|((from, to), count)| {
                Some(((*number.get(&from)?, *number.get(&to)?), count))
            })
            .collect();
        let function = Function {
            blocks,
            ..root.clone()
        };
        let flow = Flow {
            blocks: counts,
            edges,
            needed: BTreeSet::new(),
        };
        let copied = self.copied;
        (WithCopies { function, copied }, flow)
    }
}
