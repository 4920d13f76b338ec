//! What was found in a fleet.

use std::collections::BTreeMap;

use serde::Serialize;
use throttle::fleet::Fleet;

/// Everything that was found.
#[derive(Serialize)]
pub struct FleetReport {
    /// The server.
    pub prometheus: String,
    /// How much time was judged, in seconds.
    pub window_s: u32,
    /// Its end, where it is not now.
    pub at: Option<String>,
    #[serde(flatten)]
    /// The services.
    pub fleet: Fleet,
    /// Of throttled services: the shard that is throttled most.
    pub worst: BTreeMap<String, WorstShard>,
    /// Metrics of which there is nothing, and what is therefore not judged.
    pub missing: Vec<&'static str>,
    /// How many queries were asked.
    pub queries: usize,
    /// How long the server took for them, in seconds.
    pub queries_took_s: f64,
}

/// Where to look.
#[derive(Serialize)]
pub struct WorstShard {
    /// The agent.
    pub instance: String,
    /// The control group there.
    pub group: String,
    /// Share of the periods that were throttled.
    pub throttled_share: f64,
}
