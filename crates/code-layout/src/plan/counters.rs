//! Which edges get a counter, and how all counts follow from theirs: the edges outside a spanning
//! tree suffice (D. E. Knuth and F. R. Stevenson, "Optimal measurement points for program frequency
//! counts", BIT 13, 1973), and the heavier the tree, the cheaper the counting.

use crate::analysis::flow::{BlockId, Function, Terminator};

/// An edge of a function's flow, with the outside as one more place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlowEdge {
    /// `None`: entered from outside.
    pub(crate) from: Option<BlockId>,
    /// `None`: leaves the function, or what is emitted of it.
    pub(crate) to: Option<BlockId>,
    /// Where it leads in the old code (vaddr), where that is known.
    pub(crate) target: Option<u64>,
    /// Taken by a branch, not by falling through.
    pub(crate) taken: bool,
    /// The counter's number within the function's.
    pub(crate) counter: Option<usize>,
}

/// All edges of a function of which the blocks with `emitted` are emitted; `roots` are entered from
/// outside.
pub(crate) fn edges(function: &Function, emitted: &[bool], roots: &[BlockId]) -> Vec<FlowEdge> {
    let mut edges: Vec<FlowEdge> = roots
        .iter()
        .map(|&root| FlowEdge {
            from: None,
            to: Some(root),
            target: Some(function.blocks[root].start),
            taken: true,
            counter: None,
        })
        .collect();
    let inside = |vaddr: u64| function.block_at(vaddr).filter(|&block| emitted[block]);
    for (id, block) in function
        .blocks
        .iter()
        .enumerate()
        .filter(|&(id, _)| emitted[id])
    {
        let edge = |target: u64, taken| FlowEdge {
            from: Some(id),
            to: inside(target),
            target: Some(target),
            taken,
            counter: None,
        };
        match &block.exit {
            Terminator::FallThrough | Terminator::Trap => edges.push(edge(block.end, false)),
            Terminator::Jump(target) => edges.push(edge(*target, false)),
            Terminator::Branch(target) => {
                edges.push(edge(*target, true));
                edges.push(edge(block.end, false));
            }
            Terminator::Table(_) => {
                edges.extend(
                    function
                        .successors(block)
                        .into_iter()
                        .map(|to| edge(to, true)),
                );
            }
            Terminator::Indirect | Terminator::End => edges.push(FlowEdge {
                from: Some(id),
                to: None,
                target: None,
                taken: false,
                counter: None,
            }),
        }
    }
    edges
}

/// Numbers the edges outside a heaviest spanning tree; returns how many there are.
pub(crate) fn place(
    edges: &mut [FlowEdge],
    blocks: usize,
    weight: impl Fn(&FlowEdge) -> u64,
) -> usize {
    let outside = blocks;
    let mut parents: Vec<usize> = (0..=blocks).collect();
    fn root(parents: &mut [usize], mut node: usize) -> usize {
        while parents[node] != node {
            parents[node] = parents[parents[node]];
            node = parents[node];
        }
        node
    }
    let mut heaviest: Vec<usize> = (0..edges.len()).collect();
    heaviest.sort_by_key(|&edge| std::cmp::Reverse(weight(&edges[edge])));
    let mut counters = 0;
    for index in heaviest {
        let edge = &mut edges[index];
        let from = root(&mut parents, edge.from.unwrap_or(outside));
        let to = root(&mut parents, edge.to.unwrap_or(outside));
        if from == to {
            edge.counter = Some(counters);
            counters += 1;
        } else {
            parents[from] = to;
        }
    }
    counters
}

/// The count of every edge from the counters' values: what flows into a place flows out of it.
/// Where values contradict that, no count falls below 0.
pub(crate) fn solve(edges: &[FlowEdge], blocks: usize, values: &[u64]) -> Vec<u64> {
    let outside = blocks;
    let mut counts: Vec<Option<u64>> = edges
        .iter()
        .map(|edge| {
            edge.counter
                .map(|counter| values.get(counter).copied().unwrap_or(0))
        })
        .collect();
    let mut incident: Vec<Vec<usize>> = vec![Vec::new(); blocks + 1];
    for (index, edge) in edges.iter().enumerate() {
        let (from, to) = (edge.from.unwrap_or(outside), edge.to.unwrap_or(outside));
        if from != to {
            incident[from].push(index);
            incident[to].push(index);
        }
    }
    let unknown = |counts: &[Option<u64>], node: usize| {
        let mut open = incident[node]
            .iter()
            .copied()
            .filter(|&edge| counts[edge].is_none());
        let first = open.next();
        if open.next().is_none() { first } else { None }
    };
    let mut work: Vec<usize> = (0..=blocks).collect();
    while let Some(node) = work.pop() {
        let Some(index) = unknown(&counts, node) else {
            continue;
        };
        let (mut into, mut out) = (0i128, 0i128);
        for &edge in &incident[node] {
            let count = i128::from(counts[edge].unwrap_or(0));
            if edges[edge].to.unwrap_or(outside) == node {
                into += count;
            } else {
                out += count;
            }
        }
        let edge = &edges[index];
        let enters = edge.to.unwrap_or(outside) == node;
        let missing = if enters { out - into } else { into - out };
        counts[index] = Some(u64::try_from(missing.max(0)).unwrap_or(u64::MAX));
        work.push(if enters { edge.from } else { edge.to }.unwrap_or(outside));
    }
    counts.into_iter().map(|count| count.unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn edge(from: Option<usize>, to: Option<usize>) -> FlowEdge {
        FlowEdge {
            from,
            to,
            target: None,
            taken: false,
            counter: None,
        }
    }

    proptest! {
        /// Random walks from outside to outside: their true counts come back from the counters
        /// alone.
        #[test]
        fn all_counts_follow_from_those_outside_the_tree(
            blocks in 1usize..12,
            more in prop::collection::vec((0usize..12, 0usize..12), 0..20),
            weights in prop::collection::vec(0u64..100, 64),
            steps in prop::collection::vec(0usize..64, 0..400),
        ) {
            let mut edges: Vec<FlowEdge> = vec![edge(None, Some(0))];
            edges.extend((0..blocks).map(|block| edge(Some(block), None)));
            edges.extend((1..blocks).map(|block| edge(Some(block - 1), Some(block))));
            edges.extend(more.iter().map(|&(from, to)| edge(Some(from % blocks), Some(to % blocks))));
            let weighed = edges.clone();
            let counters = place(&mut edges, blocks, |edge| {
                weights[weighed.iter().position(|each| each == edge).unwrap_or(0) % weights.len()]
            });
            prop_assert_eq!(counters, edges.len() - blocks);
            let mut truth = vec![0u64; edges.len()];
            let mut at = None;
            for step in steps {
                let leaving: Vec<usize> = (0..edges.len()).filter(|&each| edges[each].from == at).collect();
                let taken = leaving[step % leaving.len()];
                truth[taken] += 1;
                at = edges[taken].to;
            }
            // Home.
            if let Some(block) = at {
                truth[1 + block] += 1;
            }
            let mut values = vec![0; counters];
            for (edge, count) in edges.iter().zip(&truth) {
                if let Some(counter) = edge.counter {
                    values[counter] = *count;
                }
            }
            prop_assert_eq!(solve(&edges, blocks, &values), truth);
        }
    }
}
