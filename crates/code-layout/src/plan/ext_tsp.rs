//! The order of blocks within a function: the ext-TSP score and its greedy merging of chains, after
//! A. Newell and S. Pupyrev, "Improved Basic Block Reordering" (IEEE Transactions on Computers,
//! 2020).

use std::collections::BTreeMap;

/// Section 3, table 2 of the paper: what a jump is worth against a fall-through of 1, and how far
/// (bytes).
const FORWARD_WEIGHT: f64 = 0.1;
const FORWARD_BYTES: f64 = 1024.0;
const BACKWARD_WEIGHT: f64 = 0.1;
const BACKWARD_BYTES: f64 = 640.0;
/// Longer chains are not split when another is merged in (section 4: 128 keeps it linear in
/// practice).
const SPLIT_BLOCKS_MAX: usize = 128;
/// Gains below this are rounding.
const GAIN_MIN: f64 = 1e-6;

/// A function's hot blocks as numbers from 0; 0 is the entry.
#[derive(Debug, Clone, Default)]
pub(crate) struct Graph {
    /// Bytes of each block.
    pub(crate) sizes: Vec<u32>,
    /// How often each ran.
    pub(crate) counts: Vec<u64>,
    /// (from, to, how often).
    pub(crate) edges: Vec<(usize, usize, u64)>,
}

/// The score of an order; greater is better.
#[cfg(test)]
pub(crate) fn score(graph: &Graph, order: &[usize]) -> f64 {
    let mut starts = vec![None; graph.sizes.len()];
    let mut at = 0.0;
    for &block in order {
        starts[block] = Some(at);
        at += f64::from(graph.sizes[block]);
    }
    graph
        .edges
        .iter()
        .filter_map(|&(from, to, count)| {
            let end = starts[from]? + f64::from(graph.sizes[from]);
            Some(edge_score(end, starts[to]?, count))
        })
        .sum()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a score needs no more than 53 bits"
)]
#[expect(clippy::float_cmp, reason = "sums of whole numbers, exact")]
fn edge_score(end: f64, start: f64, count: u64) -> f64 {
    let count = count as f64;
    if end == start {
        count
    } else if start > end && start - end <= FORWARD_BYTES {
        count * FORWARD_WEIGHT * (1.0 - (start - end) / FORWARD_BYTES)
    } else if start < end && end - start <= BACKWARD_BYTES {
        count * BACKWARD_WEIGHT * (1.0 - (end - start) / BACKWARD_BYTES)
    } else {
        0.0
    }
}

/// Puts blocks in order, the entry first.
#[must_use]
pub(crate) fn order(graph: &Graph) -> Vec<usize> {
    let mut merging = Merging::new(graph);
    while merging.merge_best() {}
    merging.finish()
}

struct Merging<'a> {
    graph: &'a Graph,
    /// Chains; an empty one was merged into another.
    chains: Vec<Vec<usize>>,
    /// Each chain's own score.
    scores: Vec<f64>,
    chain_of: Vec<usize>,
    /// Edges that leave a block, and those that enter it.
    out: Vec<Vec<(usize, u64)>>,
    into: Vec<Vec<(usize, u64)>>,
    /// The best way to merge two chains that an edge joins: gain and the merged chain.
    gains: BTreeMap<(usize, usize), (f64, Shape)>,
    /// Scratch: each block's start in the chain being scored.
    starts: Vec<f64>,
}

/// How chain b goes into chain a, which may be split.
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// a b
    Append,
    /// b a
    Prepend,
    /// a1 b a2
    Insert(usize),
    /// a2 a1 b
    SwapAppend(usize),
    /// b a2 a1
    PrependSwap(usize),
}

impl<'a> Merging<'a> {
    fn new(graph: &'a Graph) -> Self {
        let blocks = graph.sizes.len();
        let mut merging = Self {
            graph,
            chains: (0..blocks).map(|block| vec![block]).collect(),
            scores: vec![0.0; blocks],
            chain_of: (0..blocks).collect(),
            out: vec![Vec::new(); blocks],
            into: vec![Vec::new(); blocks],
            gains: BTreeMap::new(),
            starts: vec![0.0; blocks],
        };
        for &(from, to, count) in &graph.edges {
            if from != to && count > 0 {
                merging.out[from].push((to, count));
                merging.into[to].push((from, count));
            }
        }
        for &(from, to, count) in &graph.edges {
            if from != to && count > 0 {
                merging.evaluate(from, to);
            }
        }
        merging
    }

    fn evaluate(&mut self, one: usize, two: usize) {
        for (a, b) in [(one, two), (two, one)] {
            let mut best: Option<(f64, Shape)> = None;
            let splits = self.chains[a].len();
            let mut shapes = vec![Shape::Append, Shape::Prepend];
            if splits <= SPLIT_BLOCKS_MAX {
                for split in 1..splits {
                    shapes.extend([
                        Shape::Insert(split),
                        Shape::SwapAppend(split),
                        Shape::PrependSwap(split),
                    ]);
                }
            }
            for shape in shapes {
                let merged = self.merged(a, b, shape);
                // The entry comes first.
                if merged[0] != 0 && (self.chain_of[0] == a || self.chain_of[0] == b) {
                    continue;
                }
                let gain = self.merged_score(&merged, a, b) - self.scores[a] - self.scores[b];
                if gain > GAIN_MIN && best.is_none_or(|(most, _)| gain > most) {
                    best = Some((gain, shape));
                }
            }
            match best {
                Some(best) => self.gains.insert((a, b), best),
                None => self.gains.remove(&(a, b)),
            };
        }
    }

    fn merged(&self, a: usize, b: usize, shape: Shape) -> Vec<usize> {
        let (a, b) = (self.chains[a].as_slice(), self.chains[b].as_slice());
        match shape {
            Shape::Append => [a, b].concat(),
            Shape::Prepend => [b, a].concat(),
            Shape::Insert(at) => [&a[..at], b, &a[at..]].concat(),
            Shape::SwapAppend(at) => [&a[at..], &a[..at], b].concat(),
            Shape::PrependSwap(at) => [b, &a[at..], &a[..at]].concat(),
        }
    }

    /// The score of a chain made of the chains `a` and `b`.
    fn merged_score(&mut self, merged: &[usize], a: usize, b: usize) -> f64 {
        let mut at = 0.0;
        for &block in merged {
            self.starts[block] = at;
            at += f64::from(self.graph.sizes[block]);
        }
        let mut sum = 0.0;
        for &from in merged {
            let end = self.starts[from] + f64::from(self.graph.sizes[from]);
            for &(to, count) in &self.out[from] {
                let chain = self.chain_of[to];
                if chain == a || chain == b {
                    sum += edge_score(end, self.starts[to], count);
                }
            }
        }
        sum
    }

    /// Merges the two chains that gain most; false if none gains.
    fn merge_best(&mut self) -> bool {
        let best = self
            .gains
            .iter()
            .max_by(|(_, (one, _)), (_, (two, _))| one.total_cmp(two));
        let Some((&(a, b), &(gain, shape))) = best else {
            return false;
        };
        let merged = self.merged(a, b, shape);
        for &block in &merged {
            self.chain_of[block] = a;
        }
        self.scores[a] += self.scores[b] + gain;
        self.chains[a] = merged;
        self.chains[b] = Vec::new();
        self.gains
            .retain(|&(one, two), _| one != a && two != a && one != b && two != b);
        let mut others: Vec<usize> = self.chains[a]
            .iter()
            .flat_map(|&block| self.out[block].iter().chain(&self.into[block]))
            .map(|&(block, _)| self.chain_of[block])
            .filter(|&chain| chain != a)
            .collect();
        others.sort_unstable();
        others.dedup();
        for other in others {
            self.evaluate(a, other);
        }
        true
    }

    /// All chains one after the other: the entry's first, then by how often their bytes ran.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a density needs no more than 53 bits"
    )]
    fn finish(self) -> Vec<usize> {
        let density = |chain: &[usize]| {
            let count: u64 = chain.iter().map(|&block| self.graph.counts[block]).sum();
            let bytes: u32 = chain.iter().map(|&block| self.graph.sizes[block]).sum();
            count as f64 / f64::from(bytes.max(1))
        };
        let mut chains: Vec<&Vec<usize>> = self
            .chains
            .iter()
            .filter(|chain| !chain.is_empty())
            .collect();
        chains.sort_by(|one, two| {
            let entry = |chain: &[usize]| chain.contains(&0);
            entry(two)
                .cmp(&entry(one))
                .then(density(two).total_cmp(&density(one)))
                .then(one[0].cmp(&two[0]))
        });
        chains.into_iter().flatten().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn graph(sizes: &[u32], edges: &[(usize, usize, u64)]) -> Graph {
        let mut counts = vec![0; sizes.len()];
        for &(_, to, count) in edges {
            counts[to] += count;
        }
        Graph {
            sizes: sizes.to_vec(),
            counts,
            edges: edges.to_vec(),
        }
    }

    #[test]
    fn the_hot_side_of_a_branch_falls_through() {
        // 0 branches to 2 nearly always; 1 is the rare side; both end in 3.
        let graph = graph(&[16; 4], &[(0, 1, 5), (0, 2, 95), (1, 3, 5), (2, 3, 95)]);
        assert_eq!(order(&graph), [0, 2, 3, 1]);
    }

    #[test]
    fn a_loop_is_rotated_so_that_its_branch_back_is_the_only_one() {
        // 0 → 1; 1 → 2 → 1 is hot, 1 → 3 leaves.
        let graph = graph(
            &[8, 8, 8, 8],
            &[(0, 1, 1), (1, 2, 1000), (2, 1, 1000), (1, 3, 1)],
        );
        let order = order(&graph);
        let best = [[0, 1, 2, 3], [0, 2, 1, 3]]
            .iter()
            .map(|order| score(&graph, order))
            .fold(0.0, f64::max);
        assert!(score(&graph, &order) >= best - 1e-9, "{order:?}");
    }

    proptest! {
        #[test]
        fn every_block_stands_once_the_entry_first_and_no_worse_than_as_it_was(
            sizes in prop::collection::vec(1u32..200, 1..24),
            edges in prop::collection::vec((0usize..24, 0usize..24, 0u64..1000), 0..60),
        ) {
            let blocks = sizes.len();
            let edges: Vec<_> = edges.into_iter().map(|(from, to, count)| (from % blocks, to % blocks, count)).collect();
            let graph = graph(&sizes, &edges);
            let order = order(&graph);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..blocks).collect::<Vec<_>>());
            prop_assert_eq!(order[0], 0);
        }
    }
}
