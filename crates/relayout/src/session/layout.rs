//! How a process is profiled and laid out, and what a layout consists of.

use std::path::PathBuf;
use std::time::Duration;

use code_layout::{Footprint, Skipped};
use serde::{Deserialize, Serialize};

use crate::comparison::Gain;

/// How a process is profiled and laid out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfilingOptions {
    /// Samples a CPU and second for choosing functions. On a virtual machine each may take 50 µs: a
    /// tenth of the throughput at 2,000.
    pub samples_per_s: u64,
    /// How long they are taken.
    pub sampling: Duration,
    /// Functions are counted that hold this share of the samples in user code.
    pub share: f64,
    /// And no more than so many in an object.
    pub functions_max: usize,
    /// Functions with together this share of the samples are counted at a time: counting slows them
    /// about three times, and throughput is to stay above four fifths.
    pub counted_share: f64,
    /// For how long.
    pub counting: Duration,
    /// How long nothing is counted after each group.
    pub resting: Duration,
    /// Libraries with less than this share of the samples stay as they are; above 1, all of them.
    pub object_share: f64,
    /// The stress test: every movable function, with samples or without, its blocks in random order
    /// under this seed.
    pub random: Option<u64>,
}

impl Default for ProfilingOptions {
    fn default() -> Self {
        Self {
            samples_per_s: 1000,
            sampling: Duration::from_secs(5),
            share: 0.995,
            functions_max: 4000,
            counted_share: 0.05,
            counting: Duration::from_millis(100),
            resting: Duration::from_millis(100),
            object_share: 0.05,
            random: None,
        }
    }
}

/// What a layout consists of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LayoutSummary {
    /// Its generation.
    pub generation: u32,
    /// Functions that were moved.
    pub functions: usize,
    /// Bytes of code emitted.
    pub code_bytes: u64,
    /// Memory mapped for it.
    pub mapped_bytes: u64,
    /// Places patched.
    pub patches: usize,
    /// Patches left out: they cross a page or overlap, or the process does not hold what the file
    /// does.
    pub patches_left_out: usize,
    /// Functions and places left as they are, by reason.
    pub skipped: Skipped,
    /// Where the code that ran lay.
    pub before: Footprint,
    /// Where it lies now.
    pub after: Footprint,
    /// The functions with the most samples.
    pub top: Vec<TopFunction>,
    /// Whether the process's unwinder finds moved code.
    pub is_unwinder_led: bool,
    /// Processes that run in it: this one and those that it forked.
    pub processes: usize,
    /// Those that it could not be given to, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<(u32, String)>,
    /// The profile from an earlier process that it was made by; none where it was made by what ran
    /// in this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptProfile>,
}

/// A profile that an earlier process of the same program left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptProfile {
    /// Its file.
    pub file: PathBuf,
    /// When it was measured, in RFC 3339; unknown of those that earlier versions kept.
    pub made: Option<String>,
    /// What a layout by it was shown to gain then.
    pub gain: Option<Gain>,
}

/// A function that much of the time went to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopFunction {
    /// Its name, or its file and address there.
    pub name: String,
    /// Its share of the samples in all objects, 0 to 1.
    pub share: f64,
    /// Its size, in bytes.
    pub bytes: u64,
    /// Of the blocks that ran.
    pub hot_bytes: u64,
    /// Whether it was moved.
    pub is_moved: bool,
}

/// So many of them are kept.
pub(crate) const TOP: usize = 10;
