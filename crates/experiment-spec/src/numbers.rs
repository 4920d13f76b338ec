//! The ranges of the numbers of a specification: counts, times and shares.

use std::ops::RangeInclusive;

use bayes_opt::readable;

use super::Spec;
use super::locate::Source;
use crate::error::SpecError;

/// The most evaluations at once: what is asked while so many are unknown is hardly better than
/// chance.
const AT_ONCE_MAX: usize = 1000;

/// The most blocks of an evaluation, or runs of a verification: a year, at seconds for each.
const COUNT_MAX: usize = 1_000_000;

/// Why an evaluation has two blocks at the least.
const ONE_BLOCK: &str = "one block has no interval";

/// How often the runs of a verification are looked at, at the most: each look costs confidence.
const LOOKS_MAX: usize = 10;

/// The most standard deviations that count as much as the mean: beyond it nothing else counts.
const STD_WEIGHT_MAX: f64 = 1e6;

/// The longest time that any key may name: 30 days. (A limit there must be: clocks and `Duration`
/// do not take every number.)
const TIME_MAX_S: f64 = 30.0 * 86_400.0;

/// The shortest time, besides none at all: a millisecond.
const TIME_MIN_S: f64 = 0.001;

/// Limits of a budget in minutes: 0.6 seconds, and 19 years.
const WALL_TIME_MIN: RangeInclusive<f64> = 0.01..=1e7;

/// A budget's limit in minutes, where it is one.
///
/// # Errors
/// What it has to be, in words.
pub fn check_wall_time(minutes: f64) -> Result<(), String> {
    let (least, most) = (WALL_TIME_MIN.start(), WALL_TIME_MIN.end());
    let why = format!(
        "must be a number of minutes from {least} (0.6 seconds) to {most} (19 years), not {}",
        readable(minutes)
    );
    WALL_TIME_MIN.contains(&minutes).then_some(()).ok_or(why)
}

/// The most evaluations that an experiment may have: its pages and its model must stay usable.
pub const EVALUATIONS_MAX: usize = 100_000;

/// Numbers of evaluations.
pub(super) fn check_counts(spec: &Spec, source: &Source) -> Result<(), SpecError> {
    let within = |key: &str, count: usize, most: usize, why: &str| match count <= most {
        true => Ok(()),
        false => Err(source.error(key, format!("{count} must be at most {most}{why}"))),
    };
    let evaluations = spec.budget.evaluations;
    within("budget.evaluations", evaluations, EVALUATIONS_MAX, "")?;
    let why = ", the number of evaluations (budget.evaluations)";
    within("verification.top", spec.verification.top, evaluations, why)?;
    let initial = spec.search.initial_random.unwrap_or(0);
    within("search.initial_random", initial, EVALUATIONS_MAX, "")
}

/// The ranges of single numbers.
pub(super) fn check_numbers(spec: &Spec, source: &Source) -> Result<(), SpecError> {
    let evaluation = &spec.evaluation;
    time(source, "evaluation.warm_up_s", evaluation.warm_up_s, true)?;
    time(
        source,
        "evaluation.warm_up_at_most_s",
        evaluation.warm_up_at_most_s,
        false,
    )?;
    time(source, "evaluation.settle_s", evaluation.settle_s, true)?;
    time(source, "evaluation.block_s", evaluation.block_s, false)?;
    count(source, "evaluation.blocks", evaluation.blocks, ONE_BLOCK)?;
    if !(evaluation.abort_alpha > 0.0 && evaluation.abort_alpha < 0.5) {
        return Err(source.error("evaluation.abort_alpha", "must be between 0 and 0.5"));
    }
    if spec.budget.evaluations == 0 {
        return Err(source.error("budget.evaluations", "must be above 0"));
    }
    if let Some(workers) = &spec.workers
        && !(1..=AT_ONCE_MAX).contains(&workers.at_once)
    {
        return Err(source.error(
            "workers.at_once",
            format!("must be between 1 and {AT_ONCE_MAX}"),
        ));
    }
    if let Some(minutes) = spec.budget.wall_time_min {
        let checked = check_wall_time(minutes);
        checked.map_err(|why| source.error("budget.wall_time_min", why))?;
    }
    check_verification(spec, source)?;
    if let Some(objective) = &spec.objective {
        positive(source, "objective.std_weight", objective.std_weight, true)?;
        if objective.std_weight > STD_WEIGHT_MAX {
            let why = format!("must be at most {STD_WEIGHT_MAX}");
            return Err(source.error("objective.std_weight", why));
        }
    }
    check_target(spec, source)
}

fn check_verification(spec: &Spec, source: &Source) -> Result<(), SpecError> {
    let verification = &spec.verification;
    if verification.top == 0 {
        return Err(source.error(
            "verification.top",
            "must be above 0: nothing is promoted unverified",
        ));
    }
    count(
        source,
        "verification.runs",
        verification.runs,
        "one fresh run has no interval",
    )?;
    if let Some(runs) = verification.max_runs
        && !(verification.runs..=LOOKS_MAX.saturating_mul(verification.runs)).contains(&runs)
    {
        let why = format!("must be between `runs` and {LOOKS_MAX} times `runs`");
        return Err(source.error("verification.max_runs", why));
    }
    if !(0.0..1.0).contains(&verification.smallest_effect) {
        let why = "must be at least 0 and below 1 (0.01 is 1 %)";
        return Err(source.error("verification.smallest_effect", why));
    }
    if let Some(blocks) = verification.blocks {
        count(source, "verification.blocks", blocks, ONE_BLOCK)?;
    }
    if !(verification.confidence > 0.5 && verification.confidence < 1.0) {
        return Err(source.error("verification.confidence", "must be between 0.5 and 1"));
    }
    Ok(())
}

/// Of the service and of its load.
fn check_target(spec: &Spec, source: &Source) -> Result<(), SpecError> {
    if let Some(target) = &spec.target {
        time(source, "target.stop.grace_s", target.stop.grace_s, true)?;
        if let Some(ready) = &target.ready {
            time(source, "target.ready.timeout_s", ready.timeout_s, false)?;
        }
    }
    if let Some(workload) = &spec.workload {
        time(source, "workload.grace_s", workload.grace_s, true)?;
        if let Some(http) = &workload.http {
            time(source, "workload.http.timeout_s", http.timeout_s, false)?;
        }
        for (metric, least) in &workload.minimum {
            if !least.is_finite() {
                return Err(source.error(
                    &format!("workload.minimum.{metric}"),
                    format!("{least} is not a finite number"),
                ));
            }
        }
    }
    Ok(())
}

/// A finite number above 0, or 0 where that may be.
fn positive(source: &Source, key: &str, value: f64, zero: bool) -> Result<(), SpecError> {
    if value.is_finite() && (value > 0.0 || (zero && value == 0.0)) {
        Ok(())
    } else {
        let least = if zero { "0 or more" } else { "above 0" };
        Err(source.error(key, format!("{} must be {least}", readable(value))))
    }
}

/// A time in seconds, or none where that may be.
fn time(source: &Source, key: &str, value: f64, zero: bool) -> Result<(), SpecError> {
    positive(source, key, value, zero)?;
    if value > TIME_MAX_S {
        return Err(source.error(
            key,
            format!("must be at most {TIME_MAX_S}, which is 30 days"),
        ));
    }
    if value > 0.0 && value < TIME_MIN_S {
        let none = if zero { "0, or " } else { "" };
        let least = format!("{none}at least {TIME_MIN_S}, which is a millisecond");
        return Err(source.error(key, format!("{} must be {least}", readable(value))));
    }
    Ok(())
}

/// A number of blocks or runs; `why` says why one is too few.
fn count(source: &Source, key: &str, value: usize, why: &str) -> Result<(), SpecError> {
    match value {
        ..2 => Err(source.error(key, format!("at least 2: {why}"))),
        2..=COUNT_MAX => Ok(()),
        _ => Err(source.error(key, format!("must be at most {COUNT_MAX}"))),
    }
}
