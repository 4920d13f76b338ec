//! A second of a run, for tests.

use std::collections::BTreeMap;

use isolate_run::{GroupStatus, IsolationStatus, ServiceStatus};
use isolation::Policy;

/// A service with a p99.
pub(super) fn service(objective_ms: f64, latency_ms: f64) -> ServiceStatus {
    ServiceStatus {
        name: "web".to_owned(),
        source: "the wire".to_owned(),
        is_running: true,
        percentile: 99.0,
        objective_ms,
        latency_ms: Some(latency_ms),
        fresh_ms: None,
        slack: None,
        requests: Some(1000),
        requests_per_s: Some(200.0),
        no_data: None,
        cpu_cores: Some(0.037),
        quota_cores: None,
        waiting_share: None,
        stalled_share: None,
        settings: BTreeMap::new(),
        observed_settings: BTreeMap::new(),
    }
}

/// A second with one service and one group.
pub(super) fn row(at_s: f64, observe: bool, service: ServiceStatus) -> IsolationStatus {
    IsolationStatus {
        time: String::new(),
        age_s: None,
        recording_trouble: None,
        at_s,
        pid: 1,
        watchdog_pid: None,
        policy: Policy::Slackline,
        observe,
        explanation: String::new(),
        services: vec![service],
        groups: vec![GroupStatus {
            name: "batch".to_owned(),
            group: None,
            is_running: true,
            cpu_cores: Some(0.5),
            cpu_s: at_s,
            progress: None,
            settings: BTreeMap::new(),
            observed_settings: BTreeMap::new(),
            reason: None,
        }],
        machine_settings: BTreeMap::new(),
        observed_machine_settings: BTreeMap::new(),
        cores: 2.0,
        busy_cores: 2.0,
        own_cores: 0.0,
        step_s: 0.25,
        decisions: BTreeMap::new(),
        troubles: BTreeMap::new(),
        recent: Vec::new(),
        yielded: Vec::new(),
        notes: Vec::new(),
    }
}
