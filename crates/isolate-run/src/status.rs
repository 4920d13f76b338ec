//! How things stand, for `status`, the live view, the metrics, and the record.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use isolation::{Policy, Reason};
use serde::{Deserialize, Serialize};

use crate::error::IsolateError;

/// A service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Its name.
    pub name: String,
    /// Where its latency is read.
    pub source: String,
    /// Whether it runs.
    pub is_running: bool,
    /// The percentile that counts, 0 to 100.
    pub percentile: f64,
    /// The objective.
    pub objective_ms: f64,
    /// The tail over the objective's window.
    pub latency_ms: Option<f64>,
    /// The tail since the last row.
    pub fresh_ms: Option<f64>,
    /// (objective − latency) / objective.
    pub slack: Option<f64>,
    /// Requests that the figure stands on.
    pub requests: u64,
    /// Load.
    pub requests_per_s: Option<f64>,
    /// Why there is no figure.
    pub no_data: Option<String>,
    /// CPU time per second; `None` while it is not known.
    pub cpu_cores: Option<f64>,
    /// Its CPU quota.
    pub quota_cores: Option<f64>,
    /// Seconds that its threads waited for a CPU per second that they ran.
    pub waiting_share: Option<f64>,
    /// Share of the time in which a thread of it stood still for memory or a disk.
    #[serde(default)]
    pub stalled_share: Option<f64>,
    /// The settings in force by actuator, in words. Empty while only observing.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// While only observing: the settings that would be in force.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub observed_settings: BTreeMap<String, String>,
}

/// A best-effort group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Its name.
    pub name: String,
    /// Its control group.
    pub group: Option<String>,
    /// Whether it has processes.
    pub is_running: bool,
    /// CPU time per second; `None` while it is not known.
    pub cpu_cores: Option<f64>,
    /// CPU time since the start, in seconds.
    #[serde(default)]
    pub cpu_s: f64,
    /// Units of work so far, where it says.
    pub progress: Option<f64>,
    /// The settings in force by actuator, in words. Empty while only observing.
    pub settings: BTreeMap<String, String>,
    /// While only observing: the settings that would be in force.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub observed_settings: BTreeMap<String, String>,
    /// Why the last one was made.
    pub reason: Option<Reason>,
}

/// How everything stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IsolationStatus {
    /// When, as RFC 3339 has it.
    pub time: String,
    /// Seconds since the start.
    pub at_s: f64,
    /// The controller's process.
    pub pid: u32,
    /// The watchdog's process; `None` while only observing.
    pub watchdog_pid: Option<u32>,
    /// The policy.
    pub policy: Policy,
    /// Decisions are written down and not carried out.
    pub observe: bool,
    /// What the controller is at, in one sentence.
    pub explanation: String,
    /// The services.
    pub services: Vec<ServiceStatus>,
    /// The best-effort groups.
    pub groups: Vec<GroupStatus>,
    /// The settings of the machine in force by actuator, in words. Empty while only observing.
    #[serde(default)]
    pub machine_settings: BTreeMap<String, String>,
    /// While only observing: the settings of the machine that would be in force.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub observed_machine_settings: BTreeMap<String, String>,
    /// Cores of the machine.
    pub cores: f64,
    /// Cores in use, by all.
    pub busy_cores: f64,
    /// CPU time of the controller itself, in cores.
    pub own_cores: f64,
    /// Time between two steps.
    pub step_s: f64,
    /// Decisions by reason since the start.
    pub decisions: BTreeMap<String, u64>,
    /// Decisions that could not be carried out, by what became of them.
    pub troubles: BTreeMap<String, u64>,
    /// The last decisions, newest last, in words.
    pub recent: Vec<String>,
    /// Settings that somebody else writes.
    pub yielded: Vec<String>,
    /// What the configuration asks for and this host lacks, and what has no effect, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("isolate-status.json")
}

/// Writes the status for other processes. It is not kept over a power cut.
pub(crate) fn write(state_dir: &Path, status: &IsolationStatus) {
    let text = serde_json::to_vec(status).unwrap_or_default();
    let next = path(state_dir).with_extension("next");
    // A full disk takes the status away, not the controller.
    let _ = std::fs::write(&next, text).and_then(|()| std::fs::rename(&next, path(state_dir)));
}

/// The controller has ended.
pub(crate) fn remove(state_dir: &Path) {
    let _ = std::fs::remove_file(path(state_dir));
}

/// The status of the controller that runs with this state directory; `None` where none runs.
///
/// # Errors
///
/// The file is there and cannot be read.
pub fn read(state_dir: &Path) -> Result<Option<IsolationStatus>, IsolateError> {
    let path = path(state_dir);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(IsolateError::file(&path, error)),
    };
    let status: IsolationStatus =
        serde_json::from_slice(&bytes).map_err(|error| IsolateError::Record {
            path,
            line: error.line(),
            why: error.to_string(),
        })?;
    // A killed controller leaves its file.
    let lives = host::start_time(&host::Roots::default(), status.pid).is_ok();
    Ok(lives.then_some(status))
}
