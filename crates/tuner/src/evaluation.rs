//! One configuration measured once: a pure state machine that blocks go into and an outcome comes
//! out of. It reads no clock and does no I/O.

use std::collections::BTreeMap;

use bayes_opt::MeasuredValue;
use paired_stats::{Pair, SequentialTest, SequentialVerdict, abba};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Fault;
use crate::metrics::{SideMetrics, lookup};
use crate::spec::{
    CheckedSpec, Comparison, EvaluationSpec, MetricConstraint, ObjectiveScale, ObjectiveSpec,
};

/// A pair of blocks: a slice of time in which the candidate and the control were compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Block {
    /// Seconds from the start of the experiment.
    pub start_s: f64,
    /// Which side was measured first, or `parallel`.
    pub order: SideOrder,
    /// The control's metrics.
    pub control: SideMetrics,
    /// The candidate's metrics.
    pub experiment: SideMetrics,
}

/// The order of the two sides of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Order")]
pub enum SideOrder {
    /// The control, then the candidate.
    ControlFirst,
    /// The candidate, then the control.
    ExperimentFirst,
    /// Both at once.
    Parallel,
}

impl SideOrder {
    /// The order of this block, if the sides are measured one after the other.
    pub(crate) fn in_turns(block: usize) -> Self {
        abba(block, [Self::ControlFirst, Self::ExperimentFirst])[0]
    }
}

/// Why an evaluation was killed that its user had enough of.
pub const BY_USER: &str = "a user killed it";

/// How an evaluation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Measured to its end, every constraint held.
    Completed,
    /// Measured, and a constraint did not hold.
    Violated,
    /// The service did not survive the configuration.
    Crashed,
    /// Ended early: shown to be worse than the best so far, or its load took several times as long
    /// as the control's.
    Aborted,
    /// Stopped by its user.
    Killed,
    /// The measurement failed. This says nothing about the configuration.
    Failed,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Completed => "completed",
            Self::Violated => "violated",
            Self::Crashed => "crashed",
            Self::Aborted => "aborted",
            Self::Killed => "killed",
            Self::Failed => "failed",
        })
    }
}

/// What an evaluation measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measurement {
    /// The number that the search minimises. For `scale = "ratio"`: the natural logarithm of the
    /// objective's ratio to the control. For `scale = "absolute"`: the objective itself. When
    /// maximising, the number is negated.
    pub score: f64,
    /// The variance of `score`.
    pub score_variance: f64,
    /// The objective's ratio to the control: 0.9 is 10 % less. Missing for an absolute objective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// By how much each constraint is exceeded, on average over the blocks. At 0 or below the
    /// constraint holds. For a constraint that compares with the control: the natural logarithm of
    /// the ratio to the limit. For other constraints: a share of the limit, or the metric's own
    /// value if the limit is 0.
    pub excess: BTreeMap<String, f64>,
    /// The variance of each number in `excess`.
    pub excess_variance: BTreeMap<String, f64>,
}

impl Measurement {
    /// The objective and constraints as the optimiser takes them.
    pub fn observed(&self) -> bayes_opt::ObservedOutcome {
        bayes_opt::ObservedOutcome::Completed {
            objective: MeasuredValue {
                value: self.score,
                variance: Some(self.score_variance),
            },
            constraints: self
                .excess
                .iter()
                .map(|(name, value)| {
                    let variance = self.excess_variance.get(name).copied();
                    (
                        name.clone(),
                        MeasuredValue {
                            value: *value,
                            variance,
                        },
                    )
                })
                .collect(),
        }
    }

    /// Some constraint is broken by more than noise: the mean excess is above 0 by
    /// [`VIOLATION_DEVIATIONS`] of its standard error. (What always measures the same, such as a
    /// count of errors, has no noise.) A tail latency that is the same as the control's otherwise
    /// breaks "no worse than the control" in every second evaluation.
    pub fn violates(&self) -> bool {
        self.broken().next().is_some()
    }

    /// The constraints that are, as the specification has them.
    pub fn broken(&self) -> impl Iterator<Item = &str> {
        let names = self.excess.keys().filter(|name| self.breaks(name));
        names.map(String::as_str)
    }

    /// As [`violates`](Self::violates), of one constraint.
    pub(crate) fn breaks(&self, name: &str) -> bool {
        let variance = self.excess_variance.get(name).copied().unwrap_or(0.0);
        let excess = self.excess.get(name).copied().unwrap_or(0.0);
        excess > VIOLATION_DEVIATIONS * variance.max(0.0).sqrt()
    }
}

/// Standard errors above 0 at which an excess counts as a violation: one-sided 90 % with four
/// blocks (Student's t), 95 % with many. A label for the reader; the model takes the excess with
/// its variance.
pub const VIOLATION_DEVIATIONS: f64 = 1.64;

/// What to do after a block.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Measure another.
    Continue,
    /// Enough.
    Stop,
}

/// What is compared, and when it is enough.
#[derive(Clone, Debug)]
pub struct EvaluationRules {
    objective: ObjectiveSpec,
    constraints: Vec<MetricConstraint>,
    minimum: BTreeMap<String, f64>,
    evaluation: EvaluationSpec,
    needed: Vec<String>,
}

impl EvaluationRules {
    /// The rules of a search.
    pub fn of(spec: &CheckedSpec) -> Self {
        Self {
            objective: spec.objective().clone(),
            constraints: spec.constraints.clone(),
            minimum: spec.workload().minimum.clone(),
            evaluation: spec.written().evaluation.clone(),
            needed: spec.written().verification.report.clone(),
        }
    }

    /// The rules of a verification: as many blocks as it asks for, and never an early end.
    pub fn of_verification(spec: &CheckedSpec) -> Self {
        let mut rules = Self::of(spec);
        rules.evaluation.early_abort = false;
        rules.evaluation.blocks = spec
            .written()
            .verification
            .blocks
            .unwrap_or(rules.evaluation.blocks);
        rules
    }

    /// The rules of a round of `mode = "continuous"`: an evaluation's, without an early end.
    pub(crate) fn of_round(spec: &CheckedSpec) -> Self {
        let mut rules = Self::of(spec);
        rules.evaluation.early_abort = false;
        rules
    }

    /// The pairs of a metric over blocks that have it.
    pub fn pairs(blocks: &[Block], metric: &str) -> Vec<Pair> {
        blocks
            .iter()
            .filter_map(|block| {
                Some(Pair {
                    control: lookup(&block.control, metric)?,
                    experiment: lookup(&block.experiment, metric)?,
                })
            })
            .collect()
    }
}

/// An evaluation under way.
#[derive(Debug)]
pub struct Evaluation {
    rules: EvaluationRules,
    blocks: Vec<Block>,
    worse: Option<SequentialTest>,
    violations: Vec<Option<SequentialTest>>,
    stopped: Option<Outcome>,
}

impl Evaluation {
    /// Starts one. `incumbent` is the score that a configuration must not be shown to be worse
    /// than: the best known posterior mean plus its standard deviation, so that an evaluation as
    /// good as the incumbent is aborted with probability `abort_alpha` at the most.
    pub fn new(rules: EvaluationRules, incumbent: Option<f64>) -> Self {
        let early = &rules.evaluation;
        let test = |limit: f64| {
            let (alpha, least) = (early.abort_alpha, early.abort_min_blocks);
            SequentialTest::new(limit, alpha, least, early.blocks)
        };
        // The test looks at blocks one by one; a mean plus a share of their spread has no value for
        // one block.
        let is_testable = early.early_abort && rules.objective.std_weight == 0.0;
        let worse = incumbent.filter(|_| is_testable).map(test);
        let violations = rules
            .constraints
            .iter()
            .map(|_| early.early_abort.then(|| test(0.0)))
            .collect();
        Self {
            worse,
            violations,
            rules,
            blocks: Vec::new(),
            stopped: None,
        }
    }

    /// Takes a block and says whether to go on.
    ///
    /// # Errors
    /// A metric that the rules need is missing, or the control was loaded too little: the harness's
    /// fault.
    pub fn push(&mut self, block: Block) -> Result<Step, Fault> {
        for (name, least) in &self.rules.minimum {
            let value = needed(&block.control, name, "control")?;
            if value < *least {
                return Err(Fault::Harness(format!(
                    "the workload is too slow to load the target: {name} is {value} on the control, below the minimum of {least}"
                )));
            }
        }
        let score = self.block_score(&block)?;
        for name in &self.rules.needed {
            needed(&block.control, name, "control")?;
            needed(&block.experiment, name, "experiment")?;
        }
        if let Some(test) = &mut self.worse
            && test.push(score) == SequentialVerdict::Worse
        {
            self.stopped = Some(Outcome::Aborted);
        }
        for (constraint, test) in self.rules.constraints.iter().zip(&mut self.violations) {
            let excess = constraint.excess(
                needed(&block.control, &constraint.metric, "control")?,
                needed(&block.experiment, &constraint.metric, "experiment")?,
            );
            if let Some(test) = test
                && test.push(excess) == SequentialVerdict::Worse
            {
                self.stopped = Some(Outcome::Violated);
            }
        }
        self.blocks.push(block);
        if self.stopped.is_some() || self.blocks.len() >= self.rules.evaluation.blocks {
            Ok(Step::Stop)
        } else {
            Ok(Step::Continue)
        }
    }

    /// The blocks so far.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// How many blocks there will be, unless it is stopped early.
    pub fn planned_blocks(&self) -> usize {
        self.rules.evaluation.blocks
    }

    /// The outcome, the measurement, and the blocks.
    ///
    /// # Errors
    /// Fewer than two blocks, or values without a logarithm: the harness's fault.
    pub fn finish(self) -> Result<(Outcome, Measurement, Vec<Block>), Fault> {
        if self.blocks.len() < 2 {
            return Err(Fault::Harness("fewer than two blocks were measured".into()));
        }
        let (score, score_variance) = self.score()?;
        let mut measurement = Measurement {
            score,
            score_variance,
            ratio: (self.rules.objective.scale == ObjectiveScale::Ratio)
                .then(|| (self.rules.objective.goal.sign() * score).exp()),
            excess: BTreeMap::new(),
            excess_variance: BTreeMap::new(),
        };
        for constraint in &self.rules.constraints {
            let each: Vec<f64> = EvaluationRules::pairs(&self.blocks, &constraint.metric)
                .iter()
                .map(|pair| constraint.excess(pair.control, pair.experiment))
                .collect();
            let (mean, variance) = mean_and_variance(&each);
            // "= 0" that holds in most blocks does not hold, and there is no noise about it.
            let (value, variance) = if constraint.comparison == Comparison::Equal {
                (each.iter().copied().fold(mean, f64::max), 0.0)
            } else {
                (mean, variance)
            };
            measurement.excess.insert(constraint.text.clone(), value);
            measurement
                .excess_variance
                .insert(constraint.text.clone(), variance);
        }
        let outcome = match self.stopped {
            Some(Outcome::Aborted) if measurement.violates() => Outcome::Violated,
            Some(outcome) => outcome,
            None if measurement.violates() => Outcome::Violated,
            None => Outcome::Completed,
        };
        Ok((outcome, measurement, self.blocks))
    }

    /// The score of one block: what the early abort looks at.
    fn block_score(&self, block: &Block) -> Result<f64, Fault> {
        let metric = &self.rules.objective.metric;
        let control = needed(&block.control, metric, "control")?;
        let experiment = needed(&block.experiment, metric, "experiment")?;
        let sign = self.rules.objective.goal.sign();
        match self.rules.objective.scale {
            ObjectiveScale::Absolute => Ok(sign * experiment),
            ObjectiveScale::Ratio if control > 0.0 && experiment > 0.0 => {
                Ok(sign * (experiment / control).ln())
            }
            ObjectiveScale::Ratio => {
                let message = format!(
                    "{metric} has no ratio to control: {experiment} against {control}; use scale = \"absolute\""
                );
                // The control has its part of it.
                let is_one_sided = control > 0.0;
                Err(if is_one_sided {
                    Fault::Unmeasured(message)
                } else {
                    Fault::Harness(message)
                })
            }
        }
    }

    fn score(&self) -> Result<(f64, f64), Fault> {
        if self.rules.objective.std_weight == 0.0 {
            let scores = self
                .blocks
                .iter()
                .map(|block| self.block_score(block))
                .collect::<Result<Vec<f64>, Fault>>()?;
            return Ok(mean_and_variance(&scores));
        }
        // mean + k·std has no per-block value: the variance is that of the jackknife over blocks
        // (Efron & Stein 1981).
        let pairs = EvaluationRules::pairs(&self.blocks, &self.rules.objective.metric);
        let whole = self.spread_score(&pairs);
        let n = pairs.len() as f64;
        let without: Vec<f64> = (0..pairs.len())
            .map(|left_out| {
                let mut rest = pairs.clone();
                rest.remove(left_out);
                self.spread_score(&rest)
            })
            .collect();
        let mean = without.iter().sum::<f64>() / n;
        let variance = without
            .iter()
            .map(|score| (score - mean).powi(2))
            .sum::<f64>()
            * (n - 1.0)
            / n;
        if whole.is_finite() && variance.is_finite() {
            Ok((whole, variance))
        } else {
            Err(Fault::Harness(format!(
                "mean + std of {} has no ratio to control",
                self.rules.objective.metric
            )))
        }
    }

    /// `mean + k·std` (`mean − k·std` when maximising) of the experiment against the control.
    fn spread_score(&self, pairs: &[Pair]) -> f64 {
        let Pair {
            control,
            experiment,
        } = objective_of_blocks(&self.rules.objective, pairs);
        let sign = self.rules.objective.goal.sign();
        match self.rules.objective.scale {
            ObjectiveScale::Absolute => sign * experiment,
            ObjectiveScale::Ratio => sign * (experiment / control).ln(),
        }
    }
}

/// The objective over several blocks, of each side: the mean, or `mean + k·std`.
#[must_use]
pub fn objective_of_blocks(objective: &ObjectiveSpec, pairs: &[Pair]) -> Pair {
    let sign = objective.goal.sign();
    let spread = |values: Vec<f64>| {
        let n = values.len() as f64;
        let (mean, variance_of_mean) = mean_and_variance(&values);
        mean + sign * objective.std_weight * (variance_of_mean * n).sqrt()
    };
    Pair {
        control: spread(pairs.iter().map(|pair| pair.control).collect()),
        experiment: spread(pairs.iter().map(|pair| pair.experiment).collect()),
    }
}

fn needed(metrics: &SideMetrics, name: &str, side: &str) -> Result<f64, Fault> {
    let fault = match side {
        "experiment" => Fault::Unmeasured,
        _ => Fault::Harness,
    };
    lookup(metrics, name)
        .filter(|value| value.is_finite())
        .ok_or_else(|| {
            let divisor = match name {
                name if name.ends_with("_per_request") => "requests",
                _ => "duration_s",
            };
            if let Some(counted) = metrics.get(divisor).filter(|it| **it <= 0.0)
                && !metrics.contains_key(name)
            {
                return fault(format!(
                    "the {side} has no metric {name}, as its {divisor} are {counted}"
                ));
            }
            fault(format!(
                "the {side} has no metric {name}; the block gave {}",
                metrics.keys().cloned().collect::<Vec<_>>().join(", ")
            ))
        })
}

/// The mean and the variance of that mean.
fn mean_and_variance(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / (n - 1.0).max(1.0);
    (mean, variance / n)
}
