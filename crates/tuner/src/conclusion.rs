//! What the runs of a verification show: about the objective, about each constraint, and about what
//! a better objective was paid with.
//!
//! Every statement is an interval over runs at one confidence. An interval that does not settle a
//! question leaves the question *not decidable*, and the verification goes on, within its limit.

use paired_stats::{
    Interval, Pair, confidence_of_each_look, mean_interval, ratio_interval, ratio_interval_of_runs,
};

use crate::evaluation::{Block, EvaluationRules, objective_of_blocks};
use crate::report::{ArmResult, Finding};
pub use crate::spec::Guard;
use crate::spec::{CheckedSpec, Comparison, ConstraintLimit, Goal, MetricConstraint};
use crate::tail::too_few_requests;
pub use crate::verdict::{ConstraintResult, ConstraintVerdict, GuardResult, GuardVerdict};

/// More memory than on the control is of no interest below this: one page more or less is 1 % of a
/// small process.
const MEMORY_LEAST_BYTES: f64 = 1_048_576.0;

/// The confidence of a verification's intervals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Confidence {
    /// Of all looks together: what is said.
    of_all: f64,
    /// Of the interval at one look.
    of_each: f64,
}

impl Confidence {
    /// Several candidates share the error rate (Bonferroni): the best of them is chosen by the same
    /// runs.
    pub(crate) fn of(spec: &CheckedSpec, candidates: usize, is_candidate: bool) -> Self {
        let rules = &spec.written().verification;
        let shared = if is_candidate { candidates.max(1) } else { 1 };
        let of_all = 1.0 - (1.0 - rules.confidence) / shared as f64;
        // An arm that is only compared has one look: it is not measured further.
        let looks = if is_candidate { rules.looks() } else { 1 };
        Self {
            of_all,
            of_each: confidence_of_each_look(of_all, looks),
        }
    }

    fn stated(self, interval: Interval) -> Interval {
        Interval {
            confidence: self.of_all,
            ..interval
        }
    }
}

/// Fills in everything that follows from the blocks of an arm.
pub(crate) fn summarise(
    spec: &CheckedSpec,
    mut arm: ArmResult,
    confidence: Confidence,
) -> ArmResult {
    ratios(spec, &mut arm, confidence);
    let runs = &arm.runs_blocks;
    let constraints = spec.constraints.iter();
    arm.constraints = constraints
        .map(|constraint| constraint_result(constraint, runs, confidence))
        .collect();
    let broken = arm.constraints.iter();
    let broken = broken.filter(|it| it.verdict == ConstraintVerdict::Broken);
    arm.violated = broken.map(|it| it.constraint.clone()).collect();
    arm.guards = Guard::ALL
        .map(|guard| guard_result(spec, guard, runs, confidence))
        .into();
    arm.runs = runs.len();
    arm.blocks = runs.iter().map(Vec::len).sum();
    arm.few_requests = few_requests(spec, &arm);
    arm
}

/// What the requests of an arm's blocks are too few for, among all that is said of the arm.
fn few_requests(spec: &CheckedSpec, arm: &ArmResult) -> Option<String> {
    let guards = arm.guards.iter().filter_map(|it| it.metric.as_deref());
    let metrics = arm.means.keys().map(String::as_str).chain(guards);
    let blocks: Vec<&Block> = arm.runs_blocks.iter().flatten().collect();
    too_few_requests(spec.written(), metrics, &blocks)
}

/// The means and ratios of every metric that is asked for.
fn ratios(spec: &CheckedSpec, arm: &mut ArmResult, confidence: Confidence) {
    let mut metrics = vec![spec.objective().metric.clone()];
    let constraints = spec.constraints.iter();
    metrics.extend(constraints.map(|constraint| constraint.metric.clone()));
    metrics.extend(spec.written().verification.report.iter().cloned());
    ratios_of(&metrics, arm, confidence);
    if spec.objective().std_weight > 0.0 {
        // One value a run: mean + k·std has none for a block.
        let runs = arm.runs_blocks.iter();
        let of_runs: Vec<Pair> = runs
            .map(|blocks| {
                let pairs = EvaluationRules::pairs(blocks, &spec.objective().metric);
                objective_of_blocks(spec.objective(), &pairs)
            })
            .collect();
        let interval = ratio_interval(&of_runs, confidence.of_each);
        insert(
            arm,
            spec.objective().name(),
            interval,
            of_runs.len(),
            confidence,
        );
    }
}

/// The means and ratios of these metrics.
fn ratios_of(metrics: &[String], arm: &mut ArmResult, confidence: Confidence) {
    for metric in metrics {
        let pairs = of_runs(&arm.runs_blocks, metric);
        let flat: Vec<&Pair> = pairs.iter().flatten().collect();
        if flat.is_empty() {
            continue;
        }
        let n = flat.len() as f64;
        let mean = (
            flat.iter().map(|pair| pair.control).sum::<f64>() / n,
            flat.iter().map(|pair| pair.experiment).sum::<f64>() / n,
        );
        arm.means.insert(metric.clone(), mean);
        if mean == (0.0, 0.0) {
            // Nothing on either side, such as no errors: there is no ratio, and none is missed.
            continue;
        }
        let interval = ratio_interval_of_runs(&pairs, confidence.of_each);
        insert(arm, metric.clone(), interval, pairs.len(), confidence);
    }
}

fn insert(
    arm: &mut ArmResult,
    name: String,
    interval: Result<Interval, paired_stats::StatsError>,
    runs: usize,
    confidence: Confidence,
) {
    match interval {
        Ok(interval) => {
            if let Some(detectable) = interval.ln().detectable(runs, confidence.of_each) {
                arm.detectable.insert(name.clone(), detectable.exp());
            }
            arm.ratios.insert(name, confidence.stated(interval));
        }
        Err(error) => {
            arm.without_interval.insert(name, error.to_string());
        }
    }
}

fn of_runs(runs: &[Vec<Block>], metric: &str) -> Vec<Vec<Pair>> {
    runs.iter()
        .map(|blocks| EvaluationRules::pairs(blocks, metric))
        .collect()
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = values.len() as f64;
    values.sum::<f64>() / n
}

/// Whether a constraint holds: by the interval, over runs, of how far it is exceeded.
fn constraint_result(
    constraint: &MetricConstraint,
    runs: &[Vec<Block>],
    confidence: Confidence,
) -> ConstraintResult {
    let pairs: Vec<Vec<Pair>> = of_runs(runs, &constraint.metric)
        .into_iter()
        .filter(|pairs| !pairs.is_empty())
        .collect();
    let excess_of = |side: fn(&Pair) -> (f64, f64)| -> Vec<f64> {
        let of_run = |pairs: &Vec<Pair>| {
            mean(pairs.iter().map(|pair| {
                let (control, experiment) = side(pair);
                constraint.excess(control, experiment)
            }))
        };
        pairs.iter().map(of_run).collect()
    };
    let excess = excess_of(|pair| (pair.control, pair.experiment));
    let (verdict, interval) = decide(constraint.comparison, &excess, confidence);
    let is_ratio = matches!(constraint.limit, ConstraintLimit::TimesControl(_));
    let of_control = excess_of(|pair| (pair.control, pair.control));
    let (control, _) = decide(constraint.comparison, &of_control, confidence);
    ConstraintResult {
        constraint: constraint.text.clone(),
        verdict,
        observed: interval.map(|interval| observed(constraint, interval)),
        is_ratio,
        control_breaks: !is_ratio && control == ConstraintVerdict::Broken,
    }
}

fn decide(
    comparison: Comparison,
    excess: &[f64],
    confidence: Confidence,
) -> (ConstraintVerdict, Option<Interval>) {
    if comparison == Comparison::Equal {
        // "= 0" that does not hold in one block does not hold, and there is no noise about it.
        let verdict = match excess {
            [] => ConstraintVerdict::NotDecidable,
            excess if excess.iter().all(|excess| *excess == 0.0) => ConstraintVerdict::Held,
            _ => ConstraintVerdict::Broken,
        };
        return (verdict, None);
    }
    let Ok(interval) = mean_interval(excess, confidence.of_each) else {
        return (ConstraintVerdict::NotDecidable, None);
    };
    let verdict = if interval.high <= 0.0 {
        ConstraintVerdict::Held
    } else if interval.low > 0.0 {
        ConstraintVerdict::Broken
    } else {
        ConstraintVerdict::NotDecidable
    };
    (verdict, Some(confidence.stated(interval)))
}

/// The metric itself, from how far its constraint is exceeded.
fn observed(constraint: &MetricConstraint, excess: Interval) -> Interval {
    let above = match constraint.comparison {
        Comparison::AtLeast => Interval {
            low: -excess.high,
            estimate: -excess.estimate,
            high: -excess.low,
            ..excess
        },
        _ => excess,
    };
    let value = |above: f64| match constraint.limit {
        ConstraintLimit::TimesControl(factor) => factor * above.exp(),
        ConstraintLimit::Absolute(0.0) => above,
        ConstraintLimit::Absolute(limit) => limit + above * limit.abs(),
    };
    Interval {
        low: value(above.low),
        estimate: value(above.estimate),
        high: value(above.high),
        ..above
    }
}

fn guard_result(
    spec: &CheckedSpec,
    guard: Guard,
    runs: &[Vec<Block>],
    confidence: Confidence,
) -> GuardResult {
    let constraints = spec.constraints.iter().map(|it| it.metric.as_str());
    let mut specified = constraints.chain([spec.objective().metric.as_str()]);
    let mut result = GuardResult {
        guard,
        metric: None,
        verdict: GuardVerdict::NotMeasured,
        change: None,
        is_allowed: spec.written().verification.allow_worse.contains(&guard),
        at_saturation: false,
    };
    if specified.any(|metric| guard.metrics().contains(&metric)) {
        result.verdict = GuardVerdict::Specified;
        return result;
    }
    let found = guard.metrics().iter().find_map(|metric| {
        let pairs = of_runs(runs, metric);
        let is_there = !pairs.is_empty() && pairs.iter().all(|run| !run.is_empty());
        // What is only derived from the time that a load took is no rate that its generator has
        // measured.
        let mut blocks = runs.iter().flatten();
        let is_own = guard == Guard::Errors || blocks.all(|it| it.control.contains_key(*metric));
        (is_there && is_own).then_some((*metric, pairs))
    });
    let Some((metric, pairs)) = found else {
        return result;
    };
    result.metric = Some(metric.to_owned());
    let smallest = spec.written().verification.smallest_effect;
    let (interval, is_worse) = if guard == Guard::Errors {
        let differences: Vec<f64> = pairs
            .iter()
            .map(|run| mean(run.iter().map(|pair| pair.experiment - pair.control)))
            .collect();
        let interval = mean_interval(&differences, confidence.of_each);
        let is_worse = interval.as_ref().is_ok_and(|interval| interval.low > 0.0);
        (interval, is_worse)
    } else {
        let interval = ratio_interval_of_runs(&pairs, confidence.of_each);
        let goal = match guard {
            Guard::Throughput => Goal::Maximise,
            _ => Goal::Minimise,
        };
        let difference = |run: &Vec<Pair>| mean(run.iter().map(|it| it.experiment - it.control));
        let more = mean(pairs.iter().map(difference));
        let is_much = guard != Guard::Memory || more >= MEMORY_LEAST_BYTES;
        let is_worse = interval.as_ref().is_ok_and(|interval| {
            let (_, worse) = sides(interval, goal);
            worse && is_much && interval.estimate.ln().abs() >= smallest.ln_1p()
        });
        (interval, is_worse)
    };
    let Ok(interval) = interval else {
        return result;
    };
    result.change = Some(confidence.stated(interval));
    result.verdict = match is_worse {
        true => GuardVerdict::Worse,
        false => GuardVerdict::NotWorse,
    };
    result
}

/// Fills in what follows from the blocks of an arm whose load waited for answers: the ratios, and
/// the throughput as its only guard. Limits of latency are not meant for a saturated service.
pub(crate) fn summarise_capacity(
    spec: &CheckedSpec,
    mut arm: ArmResult,
    confidence: Confidence,
) -> ArmResult {
    let mut guard = guard_result(spec, Guard::Throughput, &arm.runs_blocks, confidence);
    guard.at_saturation = true;
    let metrics = [spec.objective().metric.clone()];
    ratios_of(&metrics, &mut arm, confidence);
    if let Some(metric) = &guard.metric {
        ratios_of(std::slice::from_ref(metric), &mut arm, confidence);
    }
    arm.guards = vec![guard];
    arm.runs = arm.runs_blocks.len();
    arm.blocks = arm.runs_blocks.iter().map(Vec::len).sum();
    arm
}

/// Puts the capacity in the place of the throughput at the load's own rate, which says nothing of
/// what the service can do.
pub(crate) fn add_capacity(candidate: &mut ArmResult, capacity: &ArmResult) {
    let measured = capacity.guards.iter().find(|it| it.change.is_some());
    let own = candidate.guards.iter_mut();
    let mut own = own.filter(|it| it.guard == Guard::Throughput);
    if let (Some(measured), Some(own)) = (measured, own.next()) {
        *own = measured.clone();
    }
}

/// Whether a ratio to the control is shown to be better, and to be worse.
fn sides(interval: &Interval, goal: Goal) -> (bool, bool) {
    match goal {
        Goal::Minimise => (interval.high < 1.0, interval.low > 1.0),
        Goal::Maximise => (interval.low > 1.0, interval.high < 1.0),
    }
}

/// What the runs of an arm show.
pub(crate) fn finding(spec: &CheckedSpec, arm: &ArmResult) -> Finding {
    let Some(interval) = arm.ratios.get(&spec.objective().name()) else {
        return Finding::Unfinished;
    };
    let (better, worse) = sides(interval, spec.objective().goal);
    let mut constraints = arm.constraints.iter();
    let is_open = constraints.any(|it| it.verdict == ConstraintVerdict::NotDecidable);
    if worse {
        Finding::Worse
    } else if !better {
        Finding::NoDifference
    } else if !arm.faults.is_empty() || arm.breaks_a_constraint() {
        Finding::ConstraintViolated
    } else if is_open && !spec.written().verification.accept_undecided {
        Finding::Undecided
    } else if arm.paid().next().is_some() {
        Finding::Paid
    } else {
        Finding::Improvement
    }
}

/// Nothing more is to be learned of an arm: it is shown to be worse or not acceptable, its
/// difference is shown to be smaller than what is of interest, or it is better and every constraint
/// is decided.
pub(crate) fn is_decided(spec: &CheckedSpec, arm: &ArmResult) -> bool {
    match finding(spec, arm) {
        Finding::Improvement | Finding::Paid | Finding::Worse | Finding::ConstraintViolated => true,
        Finding::Undecided | Finding::Unfinished => false,
        Finding::NoDifference => {
            let smallest = 1.0 + spec.written().verification.smallest_effect;
            let interval = arm.ratios.get(&spec.objective().name());
            let is_small =
                interval.is_some_and(|it| it.low >= 1.0 / smallest && it.high <= smallest);
            is_small || !arm.faults.is_empty() || arm.breaks_a_constraint()
        }
    }
}

/// The order of candidates: by what is shown, then by the objective.
pub(crate) fn rank(spec: &CheckedSpec, arm: &ArmResult) -> (usize, f64) {
    let class = match finding(spec, arm) {
        Finding::Improvement => 0,
        Finding::Paid => 1,
        Finding::Undecided => 2,
        Finding::NoDifference => 3,
        Finding::ConstraintViolated => 4,
        Finding::Worse => 5,
        Finding::Unfinished => 6,
    };
    let interval = arm.ratios.get(&spec.objective().name());
    let ratio = interval.map_or(f64::INFINITY, |interval| match spec.objective().goal {
        Goal::Minimise => interval.estimate,
        Goal::Maximise => 1.0 / interval.estimate,
    });
    (class, ratio)
}
