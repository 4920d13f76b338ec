//! What the bench keeps in its JSON file: rows of samples.

use serde::{Deserialize, Serialize};

/// What one load came to.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(super) struct Sample {
    pub(super) requests_per_s: f64,
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    pub(super) failed: u64,
    pub(super) dropped: u64,
    /// Share of an open loop's requests that the client itself was late with.
    #[serde(default)]
    pub(super) late_share: f64,
    /// What the hypervisor took of the two CPUs during the load, in milliseconds of CPU time.
    #[serde(default)]
    pub(super) stolen_ms: f64,
    /// Of a search: loads that counted, and loads that were discarded as disturbed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) searched: Option<(u32, u32)>,
}

/// The rounds of one row. `None`: the load failed three times, or no rate held the objective.
pub(super) type Rounds = Vec<Option<Sample>>;

/// One row: a server under one load, all rounds.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Row {
    pub(super) part: String,
    pub(super) load: String,
    pub(super) server: String,
    pub(super) rounds: Rounds,
    /// What holding the connections came to, in the part `million`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) held: Option<Held>,
}

/// What holding the connections came to.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(super) struct Held {
    /// Connections that were opened.
    pub(super) connections: u64,
    /// What opening them took, in seconds.
    pub(super) opened_s: f64,
    /// How long they were held, in seconds.
    pub(super) held_s: f64,
    /// Connections that ended meanwhile.
    pub(super) lost: u64,
    /// Connections that answered a last request, each of them once.
    pub(super) answered: u64,
    /// Most memory of the server while it had all connections, less that before the first one, in
    /// bytes for each connection.
    pub(super) server_bytes_each: f64,
    /// The same of the client.
    pub(super) client_bytes_each: f64,
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} connections, opened in {:.1} s and held for {:.0} s; {} lost; {} answered a last \
             request; memory of each: server {:.0} bytes, client {:.0} bytes",
            self.connections,
            self.opened_s,
            self.held_s,
            self.lost,
            self.answered,
            self.server_bytes_each,
            self.client_bytes_each
        )
    }
}
