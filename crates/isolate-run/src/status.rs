//! How things stand, for `status`, the live view, the metrics, and the record.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use isolation::{Policy, Reason};
use serde::{Deserialize, Serialize};

use crate::error::IsolateError;

/// A state is old after so many steps, and not before so many seconds: a row comes once a second.
const OLD_AFTER_STEPS: f64 = 5.0;
const OLD_AFTER_S: f64 = 5.0;
/// A file that can be written and cannot in turns is not reported each time.
const TELL_EVERY: Duration = Duration::from_secs(60);

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
    /// Requests that the figure stands on; `None` while it does not run.
    pub requests: Option<u64>,
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
    /// How long ago that was when the state was read. A recording has no such figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_s: Option<f64>,
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
    /// Why the run is not recorded at the moment, where it is to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recording_trouble: Option<String>,
}

impl IsolationStatus {
    /// How old the state is, in seconds, if it is too old to be that of now: the controller stands
    /// still, or cannot write it.
    #[must_use]
    pub fn too_old_s(&self) -> Option<f64> {
        let most_s = (OLD_AFTER_STEPS * self.step_s).max(OLD_AFTER_S);
        self.age_s.filter(|age_s| *age_s > most_s)
    }

    /// Seconds since the state was written; `None` where that is not a time of the past.
    fn seconds_since(&self, now: jiff::Timestamp) -> Option<f64> {
        let written: jiff::Timestamp = self.time.parse().ok()?;
        let age_s = now.duration_since(written).as_secs_f64();
        (age_s >= 0.0).then_some(age_s)
    }
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("isolate-status.json")
}

/// The file with the status for other processes.
#[derive(Debug, Default)]
pub(crate) struct StatusFile {
    /// What the user was last told of it, and when.
    is_told_missing: bool,
    told: Option<Instant>,
}

impl StatusFile {
    /// Writes the status. It is not kept over a power cut. Returns what the user is told: that the
    /// file cannot be written, or can be again.
    pub(crate) fn write(
        &mut self,
        state_dir: &Path,
        status: &IsolationStatus,
        now: Instant,
    ) -> Option<String> {
        let path = path(state_dir);
        let written = write(&path, status);
        let is_soon = |told: Instant| now.saturating_duration_since(told) < TELL_EVERY;
        if written.is_err() == self.is_told_missing || self.told.is_some_and(is_soon) {
            return None;
        }
        self.is_told_missing = written.is_err();
        self.told = Some(now);
        Some(match written {
            Ok(()) => "the status can be written again".to_owned(),
            Err(error) => format!(
                "the status cannot be written: {}: {error}; isolate goes on, and `isolate status` shows an old state or none",
                path.display()
            ),
        })
    }
}

fn write(path: &Path, status: &IsolationStatus) -> std::io::Result<()> {
    let next = path.with_extension("next");
    let written = serde_json::to_vec(status)
        .map_err(std::io::Error::from)
        .and_then(|text| std::fs::write(&next, text))
        .and_then(|()| std::fs::rename(&next, path));
    if written.is_err() {
        // A half of it takes room on a full disk.
        let _ = std::fs::remove_file(&next);
    }
    written
}

/// Whether a status can be written: a file of its size is written beside it, and removed.
///
/// # Errors
///
/// [`IsolateError::File`] names the status.
pub(crate) fn check_writable(
    state_dir: &Path,
    status: &IsolationStatus,
) -> Result<(), IsolateError> {
    let path = path(state_dir);
    let text = serde_json::to_vec(status).unwrap_or_default();
    let beside = path.with_extension("check");
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state_dir);
    let written = made.and_then(|()| std::fs::write(&beside, text));
    let removed = std::fs::remove_file(&beside);
    written
        .and(removed)
        .map_err(|error| IsolateError::file(&path, error))
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
        Err(error) => return Err(host::HostError::read(&path, &error).into()),
    };
    let mut status: IsolationStatus = serde_json::from_slice(&bytes)
        .map_err(|error| IsolateError::record(&path, error.line(), &error))?;
    // A killed controller leaves its file.
    let lives = host::start_time(&host::Roots::default(), status.pid).is_ok();
    status.age_s = status.seconds_since(jiff::Timestamp::now());
    Ok(lives.then_some(status))
}

#[cfg(test)]
pub(crate) mod tests;
