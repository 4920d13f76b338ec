//! `mode = "continuous"` and its section: what is watched after a promotion, and when something may
//! be changed.

use jiff::tz::TimeZone;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::check_url;
use super::locate::Source;
use super::{ObjectiveScale, ObjectiveSpec, Spec, TargetSpec};
use crate::continuous::{Hours, Rules};
use crate::error::SpecError;
use crate::metrics::Known;

/// Whether an experiment ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// With its verification.
    #[default]
    Once,
    /// Never: its winner is promoted and watched.
    Continuous,
}

impl Mode {
    pub(super) fn is_once(&self) -> bool {
        *self == Self::Once
    }
}

/// How a continuous experiment continues after its promotion.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ContinuousSpec {
    /// Share of the time in which the service runs the control's configuration, for comparison. The
    /// comparisons are rounds of `evaluation.blocks` pairs of blocks, and the share decides how
    /// often there is a round.
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
    /// less on the time of day than the workload does, and with fewer parts a change is found
    /// sooner.
    pub gain_seasons: usize,
    /// `true`: Saturdays and Sundays are compared with Saturdays and Sundays only. `false` finds a
    /// change sooner. Use `false` only if the load is the same on all days, because other loads
    /// then raise false alarms.
    pub weekends: bool,
    /// The largest rate of false alarms, of all drift tests together, per day.
    pub false_alarms_per_day: f64,
    /// Number of bad rounds in a row after which the promotion is rolled back. A round is bad if it
    /// breaks a constraint, or if only the promoted configuration cannot be measured. After the
    /// first bad round the next rounds follow at once.
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
    /// While this alert fires, there is no search and no promotion. Rounds and rollbacks go on.
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

/// Seconds of a day.
const DAY_S: f64 = 86_400.0;

pub(super) fn check_continuous(
    spec: &Spec,
    source: &Source,
    target: &TargetSpec,
    objective: &ObjectiveSpec,
    known: &Known,
) -> Result<Option<Rules>, SpecError> {
    if spec.mode == Mode::Once {
        return match spec.continuous {
            Some(_) => Err(source.error("continuous", "needs mode = \"continuous\"")),
            None => Ok(None),
        };
    }
    if spec.workers.is_some() {
        return Err(source.error(
            "workers",
            "continuous watches the service of this host: leave the section out, or mode",
        ));
    }
    let given = spec.continuous.clone().unwrap_or_default();
    let error = |key: &str, message: &str| Err(source.error(&format!("continuous.{key}"), message));
    let is_knob = |parameter: &super::ParameterSpec| {
        parameter.sysctl.is_some()
            || parameter.block_queue.is_some()
            || parameter.cgroup.is_some()
            || parameter.file.is_some()
    };
    if target.start.is_some() && !spec.parameters.iter().all(is_knob) {
        return Err(source.error(
            "mode",
            "continuous needs something that stays changed: kernel knobs only, or a service that runs by itself (leave out target.start, and use files and apply)",
        ));
    }
    if objective.scale != ObjectiveScale::Ratio {
        return Err(source.error(
            "objective.scale",
            "mode = \"continuous\" compares with the control: use ratio",
        ));
    }
    if !(given.control_share > 0.0 && given.control_share <= 0.5) {
        return error("control_share", "must be above 0 and at most 0.5");
    }
    if !(1..=1440).contains(&given.seasons) {
        return error("seasons", "must be from 1 to 1440");
    }
    if !(1..=1440).contains(&given.gain_seasons) {
        return error("gain_seasons", "must be from 1 to 1440");
    }
    if !(given.false_alarms_per_day > 0.0 && given.false_alarms_per_day <= 24.0) {
        return error("false_alarms_per_day", "must be above 0 and at most 24");
    }
    if !(1..=100).contains(&given.slo_rounds) {
        return error("slo_rounds", "must be from 1 to 100");
    }
    if given.changes_per_day == 0 {
        return error(
            "changes_per_day",
            "must be above 0: without a change there is nothing to tune",
        );
    }
    for (index, metric) in given.metrics.iter().enumerate() {
        known
            .check(metric)
            .map_err(|message| source.error(&format!("continuous.metrics[{index}]"), message))?;
    }
    let mut hours = Vec::new();
    for (index, text) in given.hours.iter().enumerate() {
        hours.push(
            Hours::parse(text)
                .map_err(|message| source.error(&format!("continuous.hours[{index}]"), message))?,
        );
    }
    if given.time_zone.is_none() && !hours.is_empty() {
        return error(
            "hours",
            "needs time_zone, such as \"Europe/Berlin\" or \"UTC\"",
        );
    }
    let time_zone = given.zone().map_err(|error| {
        let name = given.time_zone.as_deref().unwrap_or_default();
        source.error("continuous.time_zone", format!("{name:?}: {error}"))
    })?;
    if let Some(alert) = &given.alert {
        check_url("continuous.alert.prometheus", &alert.prometheus, source)?;
        if alert.query.trim().is_empty() {
            return error("alert.query", "is empty");
        }
    }
    let evaluation = &spec.evaluation;
    let on_control_s =
        evaluation.longest_warm_up_s() + evaluation.block_s * evaluation.blocks as f64;
    let round_every_s = on_control_s / given.control_share;
    if round_every_s > DAY_S {
        return error(
            "control_share",
            "with evaluation.blocks and block_s as they are there would be less than one round a day",
        );
    }
    let metrics = match given.metrics.is_empty() {
        true => vec![objective.metric.clone()],
        false => given.metrics,
    };
    Ok(Some(Rules {
        objective: objective.clone(),
        round_every_s,
        // Every series has its share of the false alarms.
        run_length: (metrics.len() + 1) as f64 * DAY_S / round_every_s / given.false_alarms_per_day,
        metrics,
        seasons: given.seasons,
        gain_seasons: given.gain_seasons,
        weekends: given.weekends,
        slo_rounds: given.slo_rounds,
        changes_per_day: given.changes_per_day,
        hours,
        time_zone,
        alert: given.alert,
    }))
}
