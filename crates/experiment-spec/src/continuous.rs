//! `mode = "continuous"` and its section: what is watched after a promotion, and when something may
//! be changed.

use jiff::tz::TimeZone;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether an experiment ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Mode")]
pub enum ExperimentMode {
    /// With its verification.
    #[default]
    Once,
    /// Never: its winner is promoted and watched.
    Continuous,
}

impl ExperimentMode {
    pub(super) fn is_once(&self) -> bool {
        *self == Self::Once
    }
}

/// How a continuous experiment continues after its promotion.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ContinuousSpec {
    /// Share of the time in which the service runs the control's configuration, for comparison. The
    /// comparisons are rounds, and each round has `evaluation.blocks` pairs of blocks. So the share
    /// decides how often there is a round.
    pub control_share: f64,
    /// Metrics of the control that show whether the workload has changed. By default the
    /// objective's metric.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<String>,
    /// Number of equal parts of a day. The workload is compared only with the workload in the same
    /// part of earlier days, so that the daily rhythm raises no alarm. Choose a number for which
    /// the load hardly changes within one part. 1 means that the load does not depend on the time
    /// of day.
    pub seasons: usize,
    /// Number of equal parts of a day, for comparing the gain over the control. The gain depends
    /// less on the time of day than the workload does. With fewer parts, a change is found sooner.
    pub gain_seasons: usize,
    /// `true`: Saturdays and Sundays are compared with Saturdays and Sundays only. `false` finds a
    /// change sooner. Use `false` only if the load is the same on all days. Otherwise each weekend
    /// may raise a false alarm.
    pub weekends: bool,
    /// The largest rate of false alarms, of all drift tests together, per day.
    pub false_alarms_per_day: f64,
    /// Number of bad rounds in a row after which the promotion is rolled back. A round is bad if it
    /// breaks a constraint, or if only the promoted configuration cannot be measured. After a bad
    /// round the next round follows at once.
    pub slo_rounds: usize,
    /// The largest number of promotions in a day of `time_zone`. After the last one there is no
    /// search for the rest of the day. Rollbacks do not count.
    pub changes_per_day: usize,
    /// Times at which the experiment may search and promote, such as `["09:00-17:00"]`. By default
    /// at any time. Rounds and rollbacks happen at any time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hours: Vec<String>,
    /// The time zone of `hours`, of `seasons` and of the days of `changes_per_day`, such as
    /// `"Europe/Berlin"`. By default UTC. Required with `hours`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// While this alert fires, there is no search and no promotion. Rounds and rollbacks still
    /// happen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alert: Option<AlertSpec>,
}

impl Default for ContinuousSpec {
    fn default() -> Self {
        Self {
            control_share: 0.02,
            metrics: Vec::new(),
            seasons: 96,
            gain_seasons: 8,
            weekends: true,
            false_alarms_per_day: 0.03,
            slo_rounds: 3,
            changes_per_day: 1,
            hours: Vec::new(),
            time_zone: None,
            alert: None,
        }
    }
}

impl ContinuousSpec {
    /// That of days and hours; UTC where none is given.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn zone(&self) -> Result<TimeZone, jiff::Error> {
        self.time_zone
            .as_deref()
            .map_or(Ok(TimeZone::UTC), TimeZone::get)
    }
}

/// An alert: an instant query to Prometheus. The alert fires while the query has a result. If the
/// server does not answer, the alert counts as firing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlertSpec {
    /// Base URL of a Prometheus server.
    pub prometheus: String,
    /// The query: `ALERTS{alertstate="firing",severity="page"}`.
    pub query: String,
}
