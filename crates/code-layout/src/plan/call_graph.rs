//! The order of functions: callers before what they call most, after G. Ottoni and B. Maher,
//! "Optimizing Function Placement for Large-Scale Data-Center Applications" (CGO 2017), there
//! called C3.

use std::collections::BTreeMap;

/// Section 4 of the paper: clusters do not grow past a page, or what is called moves away all the
/// same.
const CLUSTER_BYTES_MAX: u64 = 4096;

/// A function as a number, with its size in bytes and how often its instructions ran.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node {
    pub(crate) bytes: u64,
    pub(crate) weight: u64,
}

/// The functions' order. Calls are (caller, callee) with how often.
#[must_use]
#[expect(
    clippy::cast_precision_loss,
    reason = "a density needs no more than 53 bits"
)]
pub(crate) fn order(nodes: &[Node], calls: &BTreeMap<(usize, usize), u64>) -> Vec<usize> {
    let mut best_caller: Vec<Option<(u64, usize)>> = vec![None; nodes.len()];
    for (&(caller, callee), &count) in calls {
        let best = &mut best_caller[callee];
        if caller != callee && best.is_none_or(|(most, _)| count > most) {
            *best = Some((count, caller));
        }
    }
    let mut cluster_of: Vec<usize> = (0..nodes.len()).collect();
    let mut clusters: Vec<Vec<usize>> = (0..nodes.len()).map(|node| vec![node]).collect();
    let bytes = |cluster: &[usize]| cluster.iter().map(|&node| nodes[node].bytes).sum::<u64>();
    let weight = |cluster: &[usize]| cluster.iter().map(|&node| nodes[node].weight).sum::<u64>();
    let mut hottest: Vec<usize> = (0..nodes.len()).collect();
    hottest.sort_by_key(|&node| (std::cmp::Reverse(nodes[node].weight), node));
    for node in hottest {
        let Some((_, caller)) = best_caller[node] else {
            continue;
        };
        let (from, to) = (cluster_of[node], cluster_of[caller]);
        // Only a cluster that begins with the callee can follow the caller's.
        if from == to
            || clusters[from][0] != node
            || bytes(&clusters[from]) + bytes(&clusters[to]) > CLUSTER_BYTES_MAX
        {
            continue;
        }
        let moved = std::mem::take(&mut clusters[from]);
        for &each in &moved {
            cluster_of[each] = to;
        }
        clusters[to].extend(moved);
    }
    let density = |cluster: &[usize]| weight(cluster) as f64 / bytes(cluster).max(1) as f64;
    clusters.retain(|cluster| !cluster.is_empty());
    clusters.sort_by(|one, two| {
        density(two)
            .total_cmp(&density(one))
            .then(one[0].cmp(&two[0]))
    });
    clusters.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_follows_its_most_frequent_caller() {
        let node = |weight| Node { bytes: 100, weight };
        let nodes = [node(10), node(1000), node(900), node(1)];
        let calls = BTreeMap::from([((1, 2), 900), ((0, 2), 10), ((3, 0), 1)]);
        assert_eq!(order(&nodes, &calls), [1, 2, 3, 0]);
    }

    #[test]
    fn a_cluster_does_not_outgrow_a_page() {
        let node = |weight| Node {
            bytes: 3000,
            weight,
        };
        let calls = BTreeMap::from([((0, 1), 50)]);
        assert_eq!(order(&[node(1), node(50)], &calls), [1, 0]);
    }
}
