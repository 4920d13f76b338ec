//! How much load a service takes within its objective, before and after a change.

use std::collections::BTreeMap;

use host::Roots;
use load::{Bottleneck, LoadPlan, ServiceOnHost};
use paired_stats::{Interval, Pair, StatsError, abba, mean_interval, ratio_interval};
use serde::Serialize;
use throttle::capacity::{CapacitySearch, Trial};
use tuner::parse::Format;
use tuner::process::Interrupt;

use crate::error::{PlanError, ThrottleError};
use crate::report::WatchReport;
use crate::say::Say;
use crate::shell::shell;
use crate::target::{ServiceTarget, group_of};
use crate::watch::observe;

/// How often a rate is tried at which the generator was held up.
const ATTEMPTS: usize = 5;
/// The share of the requests that may be above a 99th percentile.
const LATE_SHARE: f64 = 0.01;
/// Of every interval.
const CONFIDENCE: f64 = 0.95;
/// The share of the lower capacity at which both sides are watched: both hold there, one only just.
const WATCH_AT: f64 = 0.9;

/// Makes the plan of the run of this number (of a search, from 0) at this rate (requests a second).
pub type PlanAtRate<'a> = dyn Fn(f64, u64) -> Result<LoadPlan, PlanError> + Sync + 'a;

/// What makes the load.
pub enum LoadSource<'a> {
    /// The generator of the crate `load`.
    Http(Box<PlanAtRate<'a>>),
    /// Another generator: a shell command with `{rate}` and `{duration_s}`.
    Command {
        /// The command.
        command: String,
        /// How its report is read.
        format: Format,
    },
}

/// What is tried, and how.
pub struct LoadtestOptions<'a> {
    /// What makes the load.
    pub load: LoadSource<'a>,
    /// Limit for the 99th percentile of latency, in milliseconds.
    pub slo_p99_ms: f64,
    /// Largest share of requests that may fail.
    pub errors_max: f64,
    /// The first rate, in requests a second.
    pub start: f64,
    /// Length of one run at one rate, in seconds.
    pub step_s: f64,
    /// Relative precision of a capacity.
    pub tolerance: f64,
    /// Independent searches for each side.
    pub runs: usize,
    /// Shell command that puts the service into its state before the change.
    pub before: Option<String>,
    /// Shell command that makes the change.
    pub after: Option<String>,
    /// The service, where it runs on this host.
    pub service: Option<ServiceTarget>,
}

/// What one side took.
#[derive(Serialize)]
pub struct LoadtestSide {
    /// `before`, `after`, or `service` where there is one side only.
    pub name: &'static str,
    /// One for each search.
    pub capacities_per_s: Vec<f64>,
    /// Of the searches' mean.
    pub capacity_per_s: Option<Interval>,
    /// All runs, in order of time.
    pub trials: Vec<Trial>,
    /// Under the same load as the other side.
    pub watch: Option<WatchReport>,
}

/// What was found.
#[derive(Serialize)]
pub struct LoadtestReport {
    /// Limit for the 99th percentile of latency, in milliseconds.
    pub slo_p99_ms: f64,
    /// Largest share of requests that may fail.
    pub errors_max: f64,
    /// Length of one run, in seconds.
    pub step_s: f64,
    /// Relative precision of a capacity.
    pub tolerance: f64,
    /// Before and after the change; one where there is no change.
    pub sides: Vec<LoadtestSide>,
    /// Capacity after the change over that before.
    pub ratio: Option<Interval>,
    /// The load under which the sides were watched.
    pub watched_at_per_s: Option<f64>,
}

/// How it ended.
pub struct LoadtestEnd {
    /// What was found.
    pub report: Result<LoadtestReport, ThrottleError>,
    /// Whether the service could be put back into its state before the change.
    pub put_back: Result<(), ThrottleError>,
}

/// Searches the capacity of each side, and puts the service back.
///
/// # Errors
/// The service cannot be put into its state before the change, or there is no such service.
pub fn loadtest(
    options: &LoadtestOptions<'_>,
    interrupt: &Interrupt,
    say: Say<'_>,
) -> Result<LoadtestEnd, ThrottleError> {
    if let Err(error) = put(options, 0) {
        // Where it fails, there is nothing to put back yet.
        let stopped = |signal| ThrottleError::Stopped { signal };
        return Err(interrupt.signal().map_or(error, stopped));
    }
    if let Some(service) = &options.service {
        // Not earlier: where --before starts the service, there is no group until now. Not later:
        // searches take hours.
        group_of(&Roots::default(), service)?;
    }
    let report = measure(options, interrupt, say);
    Ok(LoadtestEnd {
        report,
        // Also after an error or a signal: the service is left as it was found.
        put_back: put(options, 0),
    })
}

fn measure(
    options: &LoadtestOptions<'_>,
    interrupt: &Interrupt,
    say: Say<'_>,
) -> Result<LoadtestReport, ThrottleError> {
    let mut sides = vec![LoadtestSide::new("before")];
    if options.after.is_some() {
        sides.push(LoadtestSide::new("after"));
    } else {
        sides[0].name = "service";
    }
    for run in 0..options.runs {
        let order: Vec<usize> = (0..sides.len()).collect();
        for index in abba(run, order) {
            // The first search finds the service as it was put before all of them.
            if run > 0 || index > 0 {
                put(options, index)?;
            }
            search(options, &mut sides[index], run, interrupt, say)?;
        }
    }
    for side in &mut sides {
        let interval = interval_of(&side.capacities_per_s)?;
        side.capacity_per_s = Some(widened(interval, options.tolerance / 2.0));
    }
    let ratio = match sides.as_slice() {
        [before, after] => Some(widened(ratio_of(before, after)?, options.tolerance)),
        _ => None,
    };
    let watched_at_per_s = match &options.service {
        Some(service) => Some(watch_sides(options, service, &mut sides, interrupt, say)?),
        None => None,
    };
    Ok(LoadtestReport {
        slo_p99_ms: options.slo_p99_ms,
        errors_max: options.errors_max,
        step_s: options.step_s,
        tolerance: options.tolerance,
        sides,
        ratio,
        watched_at_per_s,
    })
}

/// One search on the side as it is now.
fn search(
    options: &LoadtestOptions<'_>,
    side: &mut LoadtestSide,
    run: usize,
    interrupt: &Interrupt,
    say: Say<'_>,
) -> Result<(), ThrottleError> {
    // Each search has a grid of rates of its own, so that what the grid rounds off varies like any
    // other error.
    let offset = 2_f64.powf(run as f64 / options.runs as f64);
    let mut search = CapacitySearch::new(options.start * offset, options.tolerance);
    while let Some(per_s) = search.next() {
        let (outcome, held) = undisturbed(options, per_s, &search, interrupt, say)?;
        say(&format!(
            "{}, search {}/{}: {per_s:.1}/s {} ({})",
            side.name,
            run + 1,
            options.runs,
            if held { "holds" } else { "fails" },
            outcome.figures(),
        ));
        search.take(held);
    }
    side.trials.extend_from_slice(search.trials());
    let Some(capacity) = search.capacity() else {
        let last = search.trials().last().map_or(0.0, |trial| trial.per_s);
        return Err(ThrottleError::NoCapacity {
            side: side.name,
            last_per_s: last,
        });
    };
    side.capacities_per_s.push(capacity);
    Ok(())
}

/// Watches each side under the same load, and says which load that is.
fn watch_sides(
    options: &LoadtestOptions<'_>,
    service: &ServiceTarget,
    sides: &mut [LoadtestSide],
    interrupt: &Interrupt,
    say: Say<'_>,
) -> Result<f64, ThrottleError> {
    let capacity_of = |side: &LoadtestSide| {
        side.capacity_per_s
            .map_or(f64::INFINITY, |capacity| capacity.estimate)
    };
    let lower = sides.iter().map(capacity_of).fold(f64::INFINITY, f64::min);
    let per_s = WATCH_AT * lower;
    for (index, side) in sides.iter_mut().enumerate() {
        put(options, index)?;
        let seen = std::thread::scope(|scope| {
            let loading = scope.spawn(|| trial(options, per_s, 0, false, interrupt, say));
            let seen = observe(service, None, options.step_s, interrupt, say);
            loading
                .join()
                .map_err(|_| ThrottleError::GeneratorPanicked)??;
            seen
        })?;
        side.watch = Some(seen);
    }
    Ok(per_s)
}

/// Puts the service into the state of a side.
fn put(options: &LoadtestOptions<'_>, side: usize) -> Result<(), ThrottleError> {
    let command = if side == 0 {
        &options.before
    } else {
        &options.after
    };
    let option = if side == 0 { "--before" } else { "--after" };
    command
        .as_deref()
        .map_or(Ok(()), |command| shell(option, command).map(drop))
}

struct Outcome {
    /// Infinite where the generator gave up.
    p99_ms: f64,
    /// Without what the complaint is about.
    p99_at_least_ms: f64,
    error_share: f64,
    complaint: Option<String>,
    /// The complaint is about the generator itself, so that it would be the same once more.
    is_own_limit: bool,
    /// That no request succeeded, and why.
    failure: Option<String>,
}

impl Outcome {
    /// Of a generator that does not get through any more.
    fn given_up() -> Self {
        Self {
            p99_ms: f64::INFINITY,
            p99_at_least_ms: f64::INFINITY,
            error_share: 1.0,
            complaint: None,
            is_own_limit: false,
            failure: None,
        }
    }

    fn figures(&self) -> String {
        match self.p99_ms.is_finite() {
            true => {
                let failure = self.failure.iter().map(|failure| format!(", {failure}"));
                format!(
                    "p99 {:.1} ms, {:.2} % errors{}",
                    self.p99_ms,
                    100.0 * self.error_share,
                    failure.collect::<String>()
                )
            }
            // Of pgbench it is only known that it is above the objective.
            false if self.error_share < 1.0 => format!(
                "p99 above the objective, {:.2} % errors",
                100.0 * self.error_share
            ),
            false => "the generator gave up".to_owned(),
        }
    }
}

/// A run at one rate, and whether it held. One that failed while the generator was held up, and
/// might not have otherwise, says nothing of the service: it is repeated, and given up after
/// [`ATTEMPTS`].
fn undisturbed(
    options: &LoadtestOptions<'_>,
    per_s: f64,
    search: &CapacitySearch,
    interrupt: &Interrupt,
    say: Say<'_>,
) -> Result<(Outcome, bool), ThrottleError> {
    let before = search.trials();
    let has_held_less = before.iter().any(|trial| trial.held && trial.per_s < per_s);
    let mut attempt = 1;
    loop {
        let outcome = trial(options, per_s, before.len(), has_held_less, interrupt, say)?;
        let held =
            outcome.p99_ms <= options.slo_p99_ms && outcome.error_share <= options.errors_max;
        let is_open = !held && outcome.p99_at_least_ms <= options.slo_p99_ms;
        match &outcome.complaint {
            Some(complaint) if is_open && outcome.is_own_limit => {
                let held = before.iter().filter(|trial| trial.held);
                let held = held.map(|trial| trial.per_s).fold(0.0, f64::max);
                return Err(ThrottleError::GeneratorLimit {
                    held_per_s: held,
                    per_s,
                    complaint: complaint.clone(),
                });
            }
            Some(complaint) if is_open && attempt < ATTEMPTS => {
                say(&format!("at {per_s:.1}/s {complaint}. Once more."));
                attempt += 1;
            }
            Some(complaint) if is_open => {
                return Err(ThrottleError::Disturbed {
                    per_s,
                    attempts: ATTEMPTS,
                    complaint: complaint.clone(),
                });
            }
            _ => return Ok((outcome, held)),
        }
    }
}

/// One run at one rate; each of a search has arrivals of its own. A command may give up, where it
/// is said to have got through at a lower rate: sysbench does when more is due than it can hold.
/// Where nobody is reached the address is wrong, or the service is gone.
fn trial(
    options: &LoadtestOptions<'_>,
    per_s: f64,
    number: usize,
    may_give_up: bool,
    interrupt: &Interrupt,
    say: Say<'_>,
) -> Result<Outcome, ThrottleError> {
    match &options.load {
        LoadSource::Http(plan) => of_generator(options, plan, per_s, number, interrupt),
        LoadSource::Command { command, format } => {
            let filled = filled(command, *format, per_s, options.step_s);
            let output = match shell("--command", &filled) {
                Err(error) if may_give_up && interrupt.signal().is_none() => {
                    say(&error.to_string());
                    return Ok(Outcome::given_up());
                }
                output => output?,
            };
            not_stopped(interrupt)?;
            of_output(*format, &output, options.slo_p99_ms)
        }
    }
}

fn not_stopped(interrupt: &Interrupt) -> Result<(), ThrottleError> {
    match interrupt.signal() {
        Some(signal) => Err(ThrottleError::Stopped { signal }),
        None => Ok(()),
    }
}

/// A run of the generator of the crate `load`.
fn of_generator(
    options: &LoadtestOptions<'_>,
    plan: &PlanAtRate<'_>,
    per_s: f64,
    number: usize,
    interrupt: &Interrupt,
) -> Result<Outcome, ThrottleError> {
    let plan = LoadPlan {
        service: match &options.service {
            Some(service) => ServiceOnHost::Group(group_of(&Roots::default(), service)?),
            None => ServiceOnHost::Unknown,
        },
        ..plan(per_s, number as u64).map_err(ThrottleError::Plan)?
    };
    let report = load::run(&plan, &|| interrupt.signal().is_some())?;
    not_stopped(interrupt)?;
    // Of nothing, no share fails.
    if report.due == 0 {
        return Err(ThrottleError::NothingDue {
            per_s,
            step_s: options.step_s,
        });
    }
    if let Some(failure) = report.failure().filter(|_| report.reached_nobody()) {
        return Err(ThrottleError::NobodyReached { per_s, failure });
    }
    Ok(Outcome {
        p99_ms: report.latency.latency_p99_us / 1000.0,
        p99_at_least_ms: report.latency_p99_at_least_us() / 1000.0,
        error_share: report.errors as f64 / report.due.max(1) as f64,
        complaint: report.complaint(),
        is_own_limit: matches!(
            report.bottleneck,
            Some(Bottleneck::Generator | Bottleneck::GeneratorAndService)
        ),
        failure: report.failure(),
    })
}

/// The command of another generator.
fn filled(command: &str, format: Format, per_s: f64, step_s: f64) -> String {
    // sysbench takes no fractions.
    let decimals = if format == Format::Sysbench { 0 } else { 3 };
    command
        .replace("{rate}", &format!("{per_s:.decimals$}"))
        .replace("{duration_s}", &format!("{step_s}"))
}

/// What another generator printed.
fn of_output(format: Format, output: &str, slo_p99_ms: f64) -> Result<Outcome, ThrottleError> {
    let metrics = tuner::parse::parse(&format, output).map_err(ThrottleError::Output)?;
    let p99_ms = p99_ms(format, &metrics, slo_p99_ms)?;
    let requests = metrics.get("requests").copied().unwrap_or(0.0);
    let errors = metrics.get("errors").copied().unwrap_or(0.0);
    Ok(Outcome {
        p99_ms,
        p99_at_least_ms: p99_ms,
        error_share: errors / (requests + errors).max(1.0),
        complaint: None,
        is_own_limit: false,
        failure: None,
    })
}

/// The 99th percentile of a report. pgbench prints none: there the number of transactions above its
/// latency limit says on which side of the objective it is, and the limit itself, or infinity,
/// stands for it.
fn p99_ms(
    format: Format,
    metrics: &BTreeMap<String, f64>,
    slo_p99_ms: f64,
) -> Result<f64, ThrottleError> {
    let get = |name: &str| metrics.get(name).copied();
    if let Some(p99_us) = get("latency_p99_us") {
        return Ok(p99_us / 1000.0);
    }
    if let (Some(late), Some(limit_us)) = (get("late"), get("latency_limit_us")) {
        let limit_ms = limit_us / 1000.0;
        // pgbench prints the limit with one decimal.
        if (limit_ms - slo_p99_ms).abs() > 0.05 || limit_ms.is_nan() {
            return Err(ThrottleError::OtherObjective {
                limit_ms,
                slo_p99_ms,
            });
        }
        // Skipped transactions were due and too late already. They are errors, too.
        let skipped = get("errors").unwrap_or(0.0);
        let due = get("requests").unwrap_or(0.0) + skipped;
        let keeps = late + skipped <= LATE_SHARE * due;
        return Ok(if keeps { slo_p99_ms } else { f64::INFINITY });
    }
    let advice = format.p99_advice().unwrap_or("use another tool");
    Err(ThrottleError::NoPercentile { advice })
}

/// A capacity is a scale: its interval is that of the logarithms.
fn interval_of(capacities_per_s: &[f64]) -> Result<Interval, StatsError> {
    let logarithms: Vec<f64> = capacities_per_s
        .iter()
        .map(|capacity| capacity.ln())
        .collect();
    Ok(mean_interval(&logarithms, CONFIDENCE)?.exp())
}

/// With what a search leaves open, for when all searches agree by chance.
fn widened(interval: Interval, open: f64) -> Interval {
    Interval {
        low: interval.low / (1.0 + open),
        high: interval.high * (1.0 + open),
        ..interval
    }
}

/// Searches of the same number ran one after the other: they are pairs.
fn ratio_of(before: &LoadtestSide, after: &LoadtestSide) -> Result<Interval, StatsError> {
    let pairs: Vec<Pair> = before
        .capacities_per_s
        .iter()
        .zip(&after.capacities_per_s)
        .map(|(control, experiment)| Pair {
            control: *control,
            experiment: *experiment,
        })
        .collect();
    ratio_interval(&pairs, CONFIDENCE)
}

impl LoadtestSide {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            capacities_per_s: Vec::new(),
            capacity_per_s: None,
            trials: Vec::new(),
            watch: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PGBENCH: [(&str, f64); 2] = [("requests", 1000.0), ("latency_limit_us", 50_000.0)];

    fn of_pgbench(late: f64, slo_p99_ms: f64) -> Result<f64, ThrottleError> {
        let figures = PGBENCH.into_iter().chain([("late", late)]);
        let metrics = figures.map(|(name, value)| (name.to_owned(), value));
        p99_ms(Format::Pgbench, &metrics.collect(), slo_p99_ms)
    }

    #[test]
    fn a_count_above_the_objective_stands_for_a_percentile() {
        assert_eq!(of_pgbench(10.0, 50.0).unwrap(), 50.0);
        assert_eq!(of_pgbench(11.0, 50.0).unwrap(), f64::INFINITY);
        assert_eq!(
            of_pgbench(10.0, 20.0).unwrap_err().to_string(),
            "the output counts transactions above 50 ms, but the objective is 20 ms: give pgbench -L 20"
        );
    }

    #[test]
    fn a_command_gets_its_rate_and_its_length() {
        let command = "tool -r {rate} -d {duration_s}";
        assert_eq!(
            filled(command, Format::Wrk2, 12.5, 2.5),
            "tool -r 12.500 -d 2.5"
        );
        assert_eq!(
            filled(command, Format::Sysbench, 12.5, 3.0),
            "tool -r 12 -d 3"
        );
    }

    #[test]
    fn an_interval_is_as_wide_as_a_search_is_open() {
        let interval = interval_of(&[100.0, 100.0, 100.0]).unwrap();
        let wide = widened(interval, 0.05);
        assert!((wide.low - 100.0 / 1.05).abs() < 1e-9, "{wide:?}");
        assert!((wide.high - 105.0).abs() < 1e-9, "{wide:?}");
    }
}
