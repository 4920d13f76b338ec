//! What can be told of `mode = "continuous"` before anything is started.

use super::continuous::{ContinuousSpec, ExperimentMode};
use super::form::check_url;
use super::locate::Source;
use super::{ObjectiveScale, ObjectiveSpec, ParameterSpec, Spec, TargetSpec};
use crate::error::SpecError;
use crate::hours::Hours;
use crate::metrics::Known;
use crate::rules::ContinuousRules;

/// Seconds of a day.
const DAY_S: f64 = 86_400.0;

pub(super) fn check_continuous(
    spec: &Spec,
    source: &Source,
    target: &TargetSpec,
    objective: &ObjectiveSpec,
    known: &Known,
) -> Result<Option<ContinuousRules>, SpecError> {
    if spec.mode == ExperimentMode::Once {
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
    let is_knob = |parameter: &ParameterSpec| {
        parameter.sysctl.is_some()
            || parameter.block_queue.is_some()
            || parameter.cgroup.is_some()
            || parameter.file.is_some()
    };
    if target.start.is_some() && !spec.parameters.iter().all(is_knob) {
        return Err(source.error(
            "mode",
            "continuous needs a service that keeps running after a promotion: use only parameters of sysctl, block_queue, cgroup and file, or a service that Slackline does not start (leave out target.start, and use files and apply)",
        ));
    }
    if objective.scale != ObjectiveScale::Ratio {
        return Err(source.error(
            "objective.scale",
            "mode = \"continuous\" compares with the control: use ratio",
        ));
    }
    check_ranges(&given, source)?;
    for (index, metric) in given.metrics.iter().enumerate() {
        known
            .check(metric)
            .map_err(|message| source.error(&format!("continuous.metrics[{index}]"), message))?;
    }
    let hours = hours_of(&given, source)?;
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
            "with these evaluation.blocks and evaluation.block_s there would be less than one round a day: raise continuous.control_share, or measure shorter rounds",
        );
    }
    let metrics = match given.metrics.is_empty() {
        true => vec![objective.metric.clone()],
        false => given.metrics,
    };
    Ok(Some(ContinuousRules {
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

/// The numbers of the section are in their ranges.
fn check_ranges(given: &ContinuousSpec, source: &Source) -> Result<(), SpecError> {
    let error = |key: &str, message: &str| Err(source.error(&format!("continuous.{key}"), message));
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
    Ok(())
}

fn hours_of(given: &ContinuousSpec, source: &Source) -> Result<Vec<Hours>, SpecError> {
    let texts = given.hours.iter().enumerate();
    texts
        .map(|(index, text)| {
            Hours::parse(text)
                .map_err(|message| source.error(&format!("continuous.hours[{index}]"), message))
        })
        .collect()
}
