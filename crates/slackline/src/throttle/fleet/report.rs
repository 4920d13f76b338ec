//! What was found in a fleet.

use std::collections::BTreeMap;

use serde::Serialize;
use throttle::fleet::Fleet;

/// Everything that was found.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) prometheus: String,
    pub(super) window_s: u32,
    pub(super) at: Option<String>,
    #[serde(flatten)]
    pub(super) fleet: Fleet,
    /// Of throttled services: the shard that is throttled most.
    pub(super) worst: BTreeMap<String, Shard>,
    /// Metrics of which there is nothing, and what is therefore not judged.
    pub(super) missing: Vec<&'static str>,
    pub(super) queries: usize,
    pub(super) queries_took_s: f64,
}

/// Where to look.
#[derive(Serialize)]
pub(super) struct Shard {
    pub(super) instance: String,
    pub(super) group: String,
    pub(super) throttled_share: f64,
}
