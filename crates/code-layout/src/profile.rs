//! How often what ran: samples per address, and counts per block and edge, as offsets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::analysis::image::Image;
use crate::elf::binary::FunctionId;
use crate::elf::build_id::BuildId;

/// What ran how often in one file. All addresses are the file's own (`vaddr`), so a profile holds
/// for every process that runs the file, wherever it is loaded.
///
/// ```
/// let mut profile = code_layout::Profile::default();
/// profile.add_sample(0x1234, 1);
/// let text = serde_json::to_string(&profile)?;
/// assert_eq!(serde_json::from_str::<code_layout::Profile>(&text)?, profile);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// The file that the addresses belong to.
    pub build_id: BuildId,
    /// Samples by address of the instruction.
    pub samples: BTreeMap<u64, u64>,
    /// Counts by address of the function's start.
    pub functions: BTreeMap<u64, FunctionCounts>,
}

/// Counts of one function: exact, or in proportion where branches were recorded now and then.
/// Offsets are from its start, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCounts {
    /// How often the function was entered at its start.
    pub entries: u64,
    /// How often each block ran, by the block's offset. Blocks that never ran may be missing.
    pub blocks: BTreeMap<u32, u64>,
    /// How often each edge between two blocks was taken, in order of (from, to).
    pub edges: Vec<Edge>,
}

/// An edge of a function's control-flow graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Edge {
    /// Offset of the block that it leaves.
    pub from: u32,
    /// Offset of the block that it enters.
    pub to: u32,
    /// How often.
    pub count: u64,
}

impl Profile {
    /// Counts a sample at an instruction's address.
    pub fn add_sample(&mut self, vaddr: u64, count: u64) {
        let samples = self.samples.entry(vaddr).or_default();
        *samples = samples.saturating_add(count);
    }

    /// Takes over another profile of the same file: samples are added, counts of a function
    /// replaced.
    pub fn merge(&mut self, other: &Self) {
        for (vaddr, count) in &other.samples {
            self.add_sample(*vaddr, *count);
        }
        for (start, counts) in &other.functions {
            self.functions.insert(*start, counts.clone());
        }
    }

    /// Samples by function, of those addresses that lie in one.
    #[must_use]
    pub fn by_function(&self, image: &Image) -> BTreeMap<FunctionId, u64> {
        let mut counts = BTreeMap::new();
        for (vaddr, count) in &self.samples {
            if let Some(id) = image.function_at(*vaddr) {
                *counts.entry(id).or_default() += count;
            }
        }
        counts
    }

    /// The functions with the most samples, most first, until they hold `share` (0 to 1) of all
    /// samples that lie in functions, and at most `count`.
    #[must_use]
    pub fn hottest(&self, image: &Image, share: f64, count: usize) -> Vec<FunctionId> {
        let mut functions: Vec<_> = self.by_function(image).into_iter().collect();
        functions.sort_by_key(|&(id, samples)| (std::cmp::Reverse(samples), id));
        let all = functions.iter().map(|(_, samples)| samples).sum::<u64>();
        let mut before = 0;
        functions
            .into_iter()
            .take_while(|(_, samples)| {
                let wanted = ratio(before, all.max(1)) < share;
                before += samples;
                wanted
            })
            .take(count)
            .map(|(id, _)| id)
            .collect()
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a share needs no more than 53 bits"
)]
fn ratio(part: u64, all: u64) -> f64 {
    part as f64 / all as f64
}
