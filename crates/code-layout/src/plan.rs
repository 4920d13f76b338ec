//! What is to be emitted, in which order, with or without counters.
//!
//! `call_graph` orders the functions, `ext_tsp` the blocks of one. [`counters`] says which edges
//! are counted.

mod call_graph;
pub(crate) mod counters;
mod ext_tsp;

use std::collections::{BTreeMap, BTreeSet};

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::analysis::flow::{BlockId, Function, Terminator};
use crate::analysis::image::Image;
use crate::elf::binary::ENTRY_BYTES;
use crate::error::{Skip, Skipped};
use crate::plan::counters::FlowEdge;
use crate::profile::{Edge, FunctionCounts, Profile};

/// How blocks and functions are put in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutOrder {
    /// By the profile: blocks by ext-TSP, functions by the call graph; blocks that did not run are
    /// left out.
    Profiled,
    /// Functions one after the other, all their blocks as they were.
    Original,
    /// Functions and all their blocks shuffled under this seed: a stress test, slow on purpose.
    Random(u64),
}

/// Functions, and which blocks of each in which order. [`crate::emit`] turns it into code.
#[derive(Debug, Clone)]
pub struct LayoutPlan {
    pub(crate) functions: Vec<PlannedFunction>,
    pub(crate) counters: usize,
    pub(crate) skipped: Skipped,
}

/// A place in a function's new code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece {
    Block(BlockId),
    /// The counter of the edge of this index.
    Counter(usize),
}

#[derive(Debug, Clone)]
pub(crate) struct PlannedFunction {
    pub(crate) function: Function,
    pub(crate) order: Vec<Piece>,
    /// The flow that counters measure; empty without counting.
    pub(crate) edges: Vec<FlowEdge>,
    /// Index of its first counter.
    pub(crate) first_counter: usize,
}

impl PlannedFunction {
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.order.iter().filter_map(|piece| match piece {
            Piece::Block(block) => Some(*block),
            Piece::Counter(_) => None,
        })
    }
}

impl LayoutPlan {
    /// A layout by a profile, or by none.
    #[must_use]
    pub fn new(functions: Vec<Function>, profile: &Profile, order: LayoutOrder) -> Self {
        let mut skipped = Skipped::new();
        let mut planned = Vec::new();
        let mut weights = Vec::new();
        let mut random = match order {
            LayoutOrder::Random(seed) => Some(ChaCha8Rng::seed_from_u64(seed)),
            LayoutOrder::Profiled | LayoutOrder::Original => None,
        };
        for function in functions {
            for (skip, count) in &function.skipped {
                *skipped.entry(*skip).or_default() += count;
            }
            let flow = Flow::of(&function, profile);
            let mut blocks = match order {
                LayoutOrder::Profiled => profiled_order(&function, &flow),
                LayoutOrder::Original | LayoutOrder::Random(_) => emittable(&function).collect(),
            };
            if let Some(random) = &mut random {
                blocks.shuffle(random);
            }
            if blocks.is_empty() {
                *skipped.entry(Skip::NothingToEmit).or_default() += 1;
                continue;
            }
            weights.push(flow);
            planned.push(PlannedFunction {
                function,
                order: blocks.into_iter().map(Piece::Block).collect(),
                edges: Vec::new(),
                first_counter: 0,
            });
        }
        let functions = match (order, random) {
            (LayoutOrder::Profiled, _) => by_call_graph(planned, &weights),
            (_, Some(mut random)) => {
                planned.shuffle(&mut random);
                planned
            }
            (_, None) => planned,
        };
        Self {
            functions,
            counters: 0,
            skipped,
        }
    }

    /// The functions as they are, with exact counters on as few and as cold edges as suffice.
    /// `profile` (of samples, or an earlier one) tells which edges are cold; an empty one will do.
    #[must_use]
    pub fn counting(functions: Vec<Function>, profile: &Profile) -> Self {
        let mut plan = Self::new(functions, profile, LayoutOrder::Original);
        for planned in &mut plan.functions {
            let function = &planned.function;
            let mut emitted = vec![false; function.blocks.len()];
            for block in planned.blocks() {
                emitted[block] = true;
            }
            // Entered at its start; anywhere else only from code that is not emitted along with it.
            let roots: Vec<BlockId> = (0..function.blocks.len())
                .filter(|&block| emitted[block] && function.blocks[block].root)
                .collect();
            let mut edges = counters::edges(function, &emitted, &roots);
            let flow = Flow::of(function, profile);
            let count = counters::place(&mut edges, function.blocks.len(), |edge| {
                weight(&flow, edge)
            });
            planned.first_counter = plan.counters;
            plan.counters += count;
            planned.order = with_counters(function, &planned.order, &edges);
            planned.edges = edges;
        }
        plan
    }

    /// How many counters of 8 bytes the code needs; 0 without counting.
    #[must_use]
    pub fn counters(&self) -> usize {
        self.counters
    }

    /// The counts of all blocks and edges from the counters' values, by conservation of flow.
    /// Values that contradict each other (threads raced, an exception left a block) give a count
    /// near the truth.
    #[must_use]
    pub fn profile(&self, image: &Image, counters: &[u64]) -> Profile {
        let mut profile = Profile {
            build_id: image.build_id().cloned().unwrap_or_default(),
            ..Profile::default()
        };
        for planned in self
            .functions
            .iter()
            .filter(|planned| !planned.edges.is_empty())
        {
            let values = counters.get(planned.first_counter..).unwrap_or_default();
            profile
                .functions
                .insert(planned.function.start, count(planned, values));
        }
        profile
    }

    /// The functions that are in it.
    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        self.functions.iter().map(|planned| &planned.function)
    }
}

fn emittable(function: &Function) -> impl Iterator<Item = BlockId> {
    (0..function.blocks.len()).filter(|&id| {
        let block = &function.blocks[id];
        block.stays.is_none() && !block.landing_pad
    })
}

/// The counts of one function's blocks and edges.
fn count(planned: &PlannedFunction, values: &[u64]) -> FunctionCounts {
    let function = &planned.function;
    let counts = counters::solve(&planned.edges, function.blocks.len(), values);
    let offset = |block: BlockId| function.offset(function.blocks[block].start);
    let mut out = FunctionCounts::default();
    let mut into: BTreeMap<u32, u64> = BTreeMap::new();
    let mut leaving: BTreeMap<u32, u64> = BTreeMap::new();
    let mut edges: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for (edge, &count) in planned.edges.iter().zip(&counts) {
        match (edge.from.map(offset), edge.to.map(offset)) {
            (None, Some(0)) => out.entries += count,
            (Some(from), Some(to)) => *edges.entry((from, to)).or_default() += count,
            _ => {}
        }
        if let Some(from) = edge.from.map(offset) {
            *leaving.entry(from).or_default() += count;
        }
        if let Some(to) = edge.to.map(offset) {
            *into.entry(to).or_default() += count;
        }
    }
    // Where a call did not come back, more entered a block than left it.
    for (block, count) in into.into_iter().chain(leaving) {
        let known = out.blocks.entry(block).or_default();
        *known = (*known).max(count);
    }
    out.blocks.retain(|_, count| *count > 0);
    out.edges = edges
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|((from, to), count)| Edge { from, to, count })
        .collect();
    out
}

/// Counters go where they cost least: behind the block that falls into them, or out of the way.
fn with_counters(function: &Function, order: &[Piece], edges: &[FlowEdge]) -> Vec<Piece> {
    let counted = || {
        edges
            .iter()
            .zip(0..)
            .filter(|(edge, _)| edge.counter.is_some())
    };
    let mut entered: BTreeMap<BlockId, Piece> = BTreeMap::new();
    let mut behind: BTreeMap<BlockId, Piece> = BTreeMap::new();
    for (edge, index) in counted() {
        match (edge.from, edge.to) {
            (None, Some(to)) => entered.insert(to, Piece::Counter(index)),
            // A counter in front of a return stands in the block itself.
            (Some(from), _) if !edge.taken && edge.target.is_some() => {
                behind.insert(from, Piece::Counter(index))
            }
            _ => None,
        };
    }
    let mut pieces = Vec::new();
    let mut aside = Vec::new();
    let mut falls_into_next = false;
    for &piece in order {
        let Piece::Block(id) = piece else { continue };
        let place = if falls_into_next {
            &mut aside
        } else {
            &mut pieces
        };
        place.extend(entered.get(&id));
        pieces.push(piece);
        let exit = &function.blocks[id].exit;
        pieces.extend(behind.get(&id));
        falls_into_next = matches!(
            exit,
            Terminator::FallThrough | Terminator::Branch(_) | Terminator::Trap
        );
    }
    pieces.extend(aside);
    let taken = counted().filter(|(edge, _)| edge.from.is_some() && edge.taken);
    pieces.extend(taken.map(|(_, index)| Piece::Counter(index)));
    pieces
}

/// How dear a counter on an edge would be.
fn weight(flow: &Flow, edge: &FlowEdge) -> u64 {
    let measured = match (edge.from, edge.to) {
        (Some(from), Some(to)) => flow.edges.get(&(from, to)).copied().unwrap_or(0),
        (Some(block), None) | (None, Some(block)) => flow.blocks[block],
        (None, None) => 0,
    };
    // Without counts: branches back make loops, and code that falls through was thought likely.
    let guess = match (edge.from, edge.to) {
        (Some(from), Some(to)) if to <= from => 100,
        // No place for a counter but in front of the return, where flags must be kept.
        (Some(_), None) if edge.target.is_none() => 60,
        (None, Some(_)) => 40,
        (Some(_), None) => 1,
        _ if edge.taken => 5,
        _ => 10,
    };
    measured.saturating_mul(1000).saturating_add(guess)
}

/// How often blocks and edges of one function ran, as exactly as is known.
struct Flow {
    /// By block.
    blocks: Vec<u64>,
    edges: BTreeMap<(BlockId, BlockId), u64>,
    /// Blocks that must be emitted though nothing is known to have run there.
    needed: BTreeSet<BlockId>,
}

impl Flow {
    fn of(function: &Function, profile: &Profile) -> Self {
        match profile.functions.get(&function.start) {
            Some(counts) => Self::counted(function, counts),
            None => Self::sampled(function, profile),
        }
    }

    fn counted(function: &Function, counts: &FunctionCounts) -> Self {
        let block = |offset: u32| function.block_at(function.start + u64::from(offset));
        let mut blocks = vec![0; function.blocks.len()];
        for (&offset, &count) in &counts.blocks {
            if let Some(block) = block(offset) {
                blocks[block] = count;
            }
        }
        let edges = counts
            .edges
            .iter()
            .filter_map(|edge| Some(((block(edge.from)?, block(edge.to)?), edge.count)))
            .collect();
        Self {
            blocks,
            edges,
            needed: BTreeSet::new(),
        }
    }

    /// From samples: a block's count is its samples by its instructions, an edge's share follows
    /// where it leads. Blocks on the way from the entry to a sampled one are needed too: new code
    /// is entered only at the entry, and what leaves it does not come back before the next call.
    fn sampled(function: &Function, profile: &Profile) -> Self {
        let mut samples = vec![0u64; function.blocks.len()];
        for (&vaddr, &count) in profile.samples.range(function.start..function.end) {
            if let Some(block) = function.block_of(vaddr) {
                samples[block] += count;
            }
        }
        // Scaled, so that long blocks with few samples do not round to none.
        let blocks: Vec<u64> = function
            .blocks
            .iter()
            .zip(&samples)
            .map(|(block, &samples)| {
                samples.saturating_mul(1000) / u64::from(block.instructions.max(1))
            })
            .collect();
        let mut edges = BTreeMap::new();
        let mut before: Vec<Vec<BlockId>> = vec![Vec::new(); blocks.len()];
        for (from, block) in function.blocks.iter().enumerate() {
            let to: Vec<BlockId> = function
                .successors(block)
                .into_iter()
                .filter_map(|target| function.block_at(target))
                .collect();
            let all: u64 = to.iter().map(|&to| blocks[to]).sum();
            for &to in &to {
                before[to].push(from);
                let share =
                    u128::from(blocks[from]) * u128::from(blocks[to]) / u128::from(all.max(1));
                edges.insert((from, to), u64::try_from(share).unwrap_or(u64::MAX));
            }
        }
        let mut needed: BTreeSet<BlockId> = BTreeSet::new();
        let mut work: Vec<BlockId> = (0..blocks.len())
            .filter(|&block| samples[block] > 0)
            .collect();
        while let Some(block) = work.pop() {
            if needed.insert(block) {
                work.extend(before[block].iter().copied());
            }
        }
        Self {
            blocks,
            edges,
            needed,
        }
    }
}

fn profiled_order(function: &Function, flow: &Flow) -> Vec<BlockId> {
    let is_hot = |block: BlockId| flow.blocks[block] > 0 || flow.needed.contains(&block);
    let mut chosen: Vec<BlockId> = emittable(function).filter(|&block| is_hot(block)).collect();
    if chosen.is_empty() {
        return chosen;
    }
    // Old code under the patched entry is gone: what begins there is emitted whether it ran or not.
    let under_patch = emittable(function)
        .filter(|&block| function.blocks[block].start < function.start + ENTRY_BYTES);
    chosen.extend(under_patch);
    chosen.sort_unstable();
    chosen.dedup();
    let number: BTreeMap<BlockId, usize> = chosen.iter().copied().zip(0..).collect();
    let graph = ext_tsp::Graph {
        sizes: chosen
            .iter()
            .map(|&block| {
                let block = &function.blocks[block];
                u32::try_from(block.end - block.start).unwrap_or(u32::MAX)
            })
            .collect(),
        counts: chosen.iter().map(|&block| flow.blocks[block]).collect(),
        edges: flow
            .edges
            .iter()
            .filter_map(|(&(from, to), &count)| {
                Some((*number.get(&from)?, *number.get(&to)?, count))
            })
            .collect(),
    };
    ext_tsp::order(&graph)
        .into_iter()
        .map(|block| chosen[block])
        .collect()
}

fn by_call_graph(planned: Vec<PlannedFunction>, flows: &[Flow]) -> Vec<PlannedFunction> {
    let number: BTreeMap<u64, usize> = planned
        .iter()
        .map(|planned| planned.function.start)
        .zip(0..)
        .collect();
    let mut calls = BTreeMap::new();
    let mut nodes = Vec::new();
    for (caller, (planned, flow)) in planned.iter().zip(flows).enumerate() {
        let function = &planned.function;
        for call in &function.calls {
            if let (Some(&callee), Some(block)) =
                (number.get(&call.target), function.block_of(call.site))
            {
                *calls.entry((caller, callee)).or_default() += flow.blocks[block];
            }
        }
        let of = |id: BlockId| &function.blocks[id];
        nodes.push(call_graph::Node {
            bytes: planned.blocks().map(|id| of(id).end - of(id).start).sum(),
            weight: planned
                .blocks()
                .map(|id| flow.blocks[id].saturating_mul(of(id).instructions.into()))
                .fold(0, u64::saturating_add),
        });
    }
    let mut slots: Vec<Option<PlannedFunction>> = planned.into_iter().map(Some).collect();
    call_graph::order(&nodes, &calls)
        .into_iter()
        .filter_map(|function| slots[function].take())
        .collect()
}
