//! What an experiment leaves: every evaluation with its blocks, the verification, and one sentence.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bayes_opt::Configuration;
use paired_stats::Interval;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::begun::{self, Begun};
use crate::error::Crash;
use crate::evaluation::{Block, Measurement, Outcome};
pub use crate::figures::{change, confidence_percent, difference, percent, significant};
use crate::promoted_templates::template_fingerprints;
use crate::spec::{CheckedSpec, MetricConstraint, ObjectiveScale, ObjectiveSpec, Spec};
use crate::verdict::{ConstraintResult, ConstraintVerdict, GuardResult, GuardVerdict};

/// The report of an experiment, as `--json` writes it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Name of the experiment.
    pub name: String,
    /// When the experiment began, in UTC.
    #[schemars(with = "String")]
    pub started: jiff::Timestamp,
    /// How long the experiment took, in seconds.
    pub duration_s: f64,
    /// Slackline's own CPU time, divided by the time that the evaluations took: 0.01 is 1 % of one
    /// core.
    pub own_cpu_cores: f64,
    /// Version of Slackline.
    pub version: String,
    /// The machine.
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub machine: host::Machine,
    /// The specification.
    pub spec: Spec,
    /// The directory of the specification. Its relative paths start there.
    #[serde(default)]
    pub dir: PathBuf,
    /// Parameters that this host does not have.
    pub skipped: Vec<String>,
    /// The control's configuration.
    pub control: Configuration,
    /// Every evaluation, in order.
    pub evaluations: Vec<EvaluationRecord>,
    /// What the model recommends, before verification.
    pub recommended: Option<Recommended>,
    /// The arms of the verification, winner first. Empty if there was no verification.
    pub verification: Vec<ArmResult>,
    /// What the verification has shown, as one word.
    pub finding: Finding,
    /// What the verification has shown, as one sentence.
    pub sentence: String,
    /// The number of the signal that ended the experiment early.
    pub interrupted: Option<i32>,
    /// It was paused, to be resumed.
    #[serde(skip)]
    pub paused: bool,
    /// `true`: the report was imported. Its first evaluations come from the imported file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub imported: bool,
    /// `true`: the report was imported, and its result has been verified on this host since then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub verified_here: bool,
    /// The state of the experiment in `slackline serve` when it was exported: `done`, `stopped`,
    /// `failed` or another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The error that ended the experiment early.
    #[serde(default)]
    pub error: Option<String>,
    /// Measured knobs and files that an earlier promotion had set on this host when the experiment
    /// began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub promoted_before: Vec<String>,
    /// The values that the promotion put in force. Empty without a promotion.
    pub promoted: Vec<String>,
    /// The exact settings of the winner, ready to apply.
    pub settings: Vec<String>,
    /// The fingerprint of each template, as it was during the verification.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub templates: BTreeMap<String, String>,
    /// A note that a person has written about the experiment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// One evaluation.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EvaluationRecord {
    /// Number of the evaluation, from 1.
    pub number: usize,
    /// The configuration.
    pub configuration: Configuration,
    /// How the evaluation ended.
    pub outcome: Outcome,
    /// Why the evaluation ended so, if there is more to say.
    pub reason: Option<String>,
    /// What was measured.
    pub measurement: Option<Measurement>,
    /// Why the evaluation `failed`, if it did. `harness`: the control, the load or a metric failed.
    /// `unmeasured`: the candidate could not be measured, but the control could. `lost`: the
    /// measurement was ended from outside, and is repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// How the service failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crash: Option<Crash>,
    /// The pairs of blocks.
    pub blocks: Vec<Block>,
    /// How long the evaluation took, in seconds.
    pub duration_s: f64,
    /// Slackline's own CPU time during the evaluation, in seconds.
    pub own_cpu_s: f64,
    /// The worker that measured both sides. Missing if this host measured them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The last lines that the service printed. A report has them only for an evaluation that
    /// measured nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// A note that a person has written about the evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// How the evaluation began, if the control ran since an earlier evaluation, or if the end of
    /// the warm-up was detected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<Begun>,
}

impl EvaluationRecord {
    /// It ended by itself, and not by a signal to the whole experiment.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.outcome != Outcome::Killed
    }

    /// Why it ended so, where that needs words: its reason, and each constraint that it broke, with
    /// how far.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        let broken = self.broken().into_iter().map(|(constraint, by)| match by {
            Some(by) => format!("{constraint} is broken by {by}"),
            None => format!("{constraint} is broken"),
        });
        let all: Vec<String> = self.reason.clone().into_iter().chain(broken).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// The constraints that a violated evaluation broke, as its specification has them, and how
    /// far. One that was ended early broke at least the one with the largest excess.
    #[must_use]
    pub fn broken(&self) -> Vec<(&str, Option<String>)> {
        let measurement = self.measurement.as_ref();
        let Some(measurement) = measurement.filter(|_| self.outcome == Outcome::Violated) else {
            return Vec::new();
        };
        let mut names: Vec<&str> = measurement.broken().collect();
        if names.is_empty() {
            let excess = measurement.excess.iter();
            let largest = excess.max_by(|(_, a), (_, b)| a.total_cmp(b));
            names.extend(largest.map(|(name, _)| name.as_str()));
        }
        let how_far = |name: &str| {
            let excess = measurement
                .excess
                .get(name)
                .filter(|excess| **excess > 0.0)?;
            Some(MetricConstraint::parse(name).ok()?.excess_text(*excess))
        };
        names
            .into_iter()
            .map(|name| (name, how_far(name)))
            .collect()
    }
}

/// Why an evaluation says nothing about its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Failure {
    /// The control, the workload or a metric failed.
    Harness,
    /// The candidate's side could not be measured while the control's could.
    Unmeasured,
    /// The process that measured the evaluation was ended. The evaluation is repeated, and counts
    /// neither as an attempt nor against the budget.
    Lost,
}

/// The JSON Schema of a report. Fields that a version does not know may be there.
#[must_use]
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Report).to_value()
}

/// The model's recommendation.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Recommended {
    /// The configuration.
    pub configuration: Configuration,
    /// Posterior mean of the score. See `score` of a measurement.
    pub mean: f64,
    /// Posterior standard deviation of the score.
    pub sd: f64,
}

/// One arm of the verification.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ArmResult {
    /// `candidate 1`, or the name in the specification.
    pub name: String,
    /// `true`: the search found this arm. `false`: the arm comes from the specification.
    #[serde(default)]
    pub is_candidate: bool,
    /// The candidate whose capacity this arm measures, with a load that waits for answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_of: Option<String>,
    /// The configuration of the arm.
    pub configuration: Configuration,
    /// The ratio to the control, of the objective and of every reported metric.
    pub ratios: BTreeMap<String, Interval>,
    /// Metrics whose ratio has no interval, with the reason.
    pub without_interval: BTreeMap<String, String>,
    /// For each metric, two numbers: the mean on the control and the mean on this arm.
    pub means: BTreeMap<String, (f64, f64)>,
    /// Constraints that are shown to be broken.
    pub violated: Vec<String>,
    /// Each constraint, with its interval.
    #[serde(default)]
    pub constraints: Vec<ConstraintResult>,
    /// The guards: metrics that every verification compares with the control.
    #[serde(default)]
    pub guards: Vec<GuardResult>,
    /// For each metric, the smallest ratio to the control, above 1, that four of five such
    /// verifications would show. An effect that is not shown may be as large as this.
    #[serde(default)]
    pub detectable: BTreeMap<String, f64>,
    /// Runs that gave no result, with the reason.
    pub faults: Vec<String>,
    /// Runs that were measured although a side was never steady, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsteady: Vec<String>,
    /// Percentiles that were computed from too few requests in a block, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub few_requests: Option<String>,
    /// Number of runs that gave a result.
    pub runs: usize,
    /// Number of pairs of blocks in these runs.
    pub blocks: usize,
    /// The pairs of blocks of each run.
    pub runs_blocks: Vec<Vec<Block>>,
}

/// How a change comes to have another sign than the difference of the means.
pub const AGAINST_MEANS: &str = "A change compares each pair of blocks and averages these ratios, so a few extreme blocks weigh less \
     than in the means. Here the means say the opposite of the change: look at the blocks.";

/// In place of the fingerprint of a template that was not the same all the time.
pub(crate) const SEVERAL: &str = "several";

/// What an experiment has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// The winner is shown to be better than the control, every constraint is held, and no guard is
    /// shown to be worse.
    Improvement,
    /// The same as an improvement, but a guard is shown to be worse, and the specification does not
    /// allow this.
    Paid,
    /// The winner is better, but whether every constraint is held could not be decided.
    Undecided,
    /// No difference to the control is shown, or no configuration looked better than the control.
    NoDifference,
    /// The winner is shown to be worse than the control.
    Worse,
    /// The winner is better, but a constraint is broken, or a run failed.
    ConstraintViolated,
    /// The experiment ended before anything could be shown.
    Unfinished,
}

/// A score as a reader takes it: the objective's change against the control, or its value. (The
/// search minimises scores, so that of an objective to maximise is negated.)
pub fn score_text(score: f64, objective: &ObjectiveSpec) -> String {
    let score = objective.goal.sign() * score;
    match objective.scale {
        ObjectiveScale::Ratio => format!("{} %", percent(score.exp())),
        ObjectiveScale::Absolute => significant(score),
    }
}

/// Why the winner, this evaluation, has another rank than the first, where it has.
///
/// ```
/// assert_eq!(tuner::report::winner_rank(7, 1), None);
/// ```
#[must_use]
pub fn winner_rank(evaluation: usize, rank: usize) -> Option<String> {
    (rank > 1).then(|| {
        format!(
            "The verified winner is evaluation {evaluation}, which has rank {rank}. The measurements of the search decide the \
             ranks. The model decides what is verified, and the fresh runs of the verification decide the winner."
        )
    })
}

impl Finding {
    /// The objective is shown to be better, and nothing that the specification forbids is shown.
    #[must_use]
    pub fn is_better(self) -> bool {
        matches!(self, Self::Improvement | Self::Paid | Self::Undecided)
    }

    /// What stands above the settings that a report offers.
    #[must_use]
    pub fn settings_heading(self) -> &'static str {
        match self {
            Self::Improvement => "The winner's settings",
            Self::Paid => "The candidate's settings. A guard became worse with them, as said above",
            _ => "The candidate's settings. Not every constraint is decided for them",
        }
    }
}

impl ArmResult {
    /// Whether the plain means of a metric say the opposite of its change.
    #[must_use]
    pub fn is_against_means(&self, metric: &str) -> bool {
        match (self.ratios.get(metric), self.means.get(metric)) {
            (Some(change), Some((control, arm))) => (change.estimate - 1.0) * (arm - control) < 0.0,
            _ => false,
        }
    }

    /// Whether a constraint is shown to be broken.
    #[must_use]
    pub fn breaks_a_constraint(&self) -> bool {
        let mut constraints = self.constraints.iter();
        constraints.any(|it| it.verdict == ConstraintVerdict::Broken)
    }

    /// The guards that are shown worse although the specification does not give them up.
    pub fn paid(&self) -> impl Iterator<Item = &GuardResult> {
        let guards = self.guards.iter();
        guards.filter(|it| it.verdict == GuardVerdict::Worse && !it.is_allowed)
    }
}

impl Report {
    /// The best of the verified candidates.
    pub fn winner(&self) -> Option<&ArmResult> {
        self.verification.iter().find(|arm| arm.is_candidate)
    }

    /// The report without its evaluations and blocks, for a store that keeps these in other tables.
    #[must_use]
    pub fn without_blocks(mut self) -> Self {
        self.evaluations.clear();
        for arm in &mut self.verification {
            arm.runs_blocks.clear();
        }
        self
    }

    /// Where an experiment comes from stays so, whatever it has measured since.
    pub fn keep_origin(&mut self, earlier: &Self) {
        self.imported = earlier.imported;
        self.verified_here = self.imported && self.finding != Finding::Unfinished;
    }

    /// Lets what `earlier`, the report of the session before, has verified stand where this one
    /// verified nothing to its end. Where an experiment comes from stays so.
    pub fn keep_verified(&mut self, earlier: &Self) {
        self.keep_origin(earlier);
        if self.finding != Finding::Unfinished || earlier.finding == Finding::Unfinished {
            return;
        }
        self.recommended.clone_from(&earlier.recommended);
        self.verification.clone_from(&earlier.verification);
        self.templates.clone_from(&earlier.templates);
        self.settings.clone_from(&earlier.settings);
        self.sentence.clone_from(&earlier.sentence);
        self.finding = earlier.finding;
        self.verified_here = earlier.verified_here;
    }

    /// Why what was verified cannot be put in force: a template is not what it was then.
    #[must_use]
    pub fn changed_template(&self, spec: &CheckedSpec) -> Option<String> {
        let now = template_fingerprints(spec);
        let mut measured = self.templates.iter();
        let (template, print) =
            measured.find(|(template, print)| now.get(*template) != Some(*print))?;
        let path = spec.dir.join(template);
        let path = path.display();
        Some(match print == SEVERAL {
            true => format!(
                "the template {path} was changed while the verification was measured: verify the experiment again"
            ),
            false => format!(
                "the template {path} was changed after it was measured, so what it gives now is not what was verified: restore \
                 it, or verify the experiment again"
            ),
        })
    }

    /// Why the verified winner is not the first in the order of the evaluations, where it is not.
    #[must_use]
    pub fn winner_rank(&self) -> Option<String> {
        let winner = self.winner().filter(|_| self.finding.is_better())?;
        let ranked = self.ranked();
        let mut ranked = (1..).zip(ranked);
        let (rank, record) = ranked.find(|(_, it)| it.configuration == winner.configuration)?;
        winner_rank(record.number, rank)
    }

    /// Since when the control of the search ran, and why it was started again, in words; empty
    /// where each evaluation started it.
    #[must_use]
    pub fn control_runs(&self) -> Vec<String> {
        let evaluations = self.evaluations.iter();
        begun::control_runs(evaluations.filter_map(|it| Some((it.number, it.begun.as_ref()?))))
    }

    /// The evaluations, best first: those with a result by score, the violated after the feasible,
    /// the others at the end.
    pub fn ranked(&self) -> Vec<&EvaluationRecord> {
        let mut ranked: Vec<&EvaluationRecord> = self.evaluations.iter().collect();
        let class = |record: &EvaluationRecord| match record.outcome {
            Outcome::Completed => 0,
            Outcome::Aborted => 1,
            Outcome::Violated => 2,
            Outcome::Crashed => 3,
            Outcome::Killed => 4,
            Outcome::Failed => 5,
        };
        let score = |record: &EvaluationRecord| {
            record
                .measurement
                .as_ref()
                .map_or(f64::INFINITY, |measurement| measurement.score)
        };
        ranked.sort_by(|a, b| class(a).cmp(&class(b)).then(score(a).total_cmp(&score(b))));
        ranked
    }
}

#[cfg(test)]
mod tests {
    use host::Roots;

    use super::{ArmResult, Finding, Report};
    use crate::assignment::EvaluationResult;
    use crate::evaluation::{Measurement, Outcome};
    use crate::ledger::PlannedArm;
    use crate::spec::CheckedSpec;

    #[test]
    fn a_violated_evaluation_names_what_it_broke_and_how_far() {
        let of = |outcome, reason: Option<&str>, excess: &[(&str, f64)]| {
            let excess = excess.iter().map(|(name, it)| ((*name).to_owned(), *it));
            let measurement = Measurement {
                score: 0.0,
                score_variance: 0.0,
                ratio: None,
                excess: excess.collect(),
                excess_variance: [("rate >= control".to_owned(), 1.0)].into(),
            };
            let measured = EvaluationResult {
                outcome,
                reason: reason.map(str::to_owned),
                measurement: Some(measurement),
                ..EvaluationResult::failed(String::new())
            };
            measured
                .record(1, bayes_opt::Configuration::default())
                .why()
        };
        let excess = [
            ("p99 <= 200", 0.25),
            ("rate >= control", 0.1),
            ("errors = 0", -1.0),
        ];
        assert_eq!(
            of(Outcome::Violated, None, &excess).unwrap(),
            "p99 <= 200 is broken by 25.00 %"
        );
        // Ended early by one that noise may still explain.
        assert_eq!(
            of(Outcome::Violated, Some("not steady"), &excess[1..]).unwrap(),
            "not steady; rate >= control is broken by 9.516 %"
        );
        assert_eq!(of(Outcome::Completed, None, &excess[1..]), None);
        assert_eq!(of(Outcome::Aborted, Some("slow"), &excess).unwrap(), "slow");
    }

    /// The specification of an experiment with one parameter, and its report before anything is
    /// measured.
    fn begun() -> (CheckedSpec, Report) {
        let text = r#"{
            "parameters": [{ "name": "x", "type": "int", "low": 1, "high": 9, "default": 5 }],
            "target": { "start": ["true"] },
            "workload": { "command": ["true"], "parse": "wrk" },
            "objective": { "metric": "latency_p99_us" } }"#;
        let spec = crate::spec::context(&Roots::default())
            .check(text.into(), "x.json".as_ref())
            .unwrap();
        let report = crate::experiment::begin(&spec);
        (spec, report)
    }

    #[test]
    fn a_winner_that_is_not_the_first_of_the_table_says_why() {
        let (_, mut report) = begun();
        let at = |x: i64| bayes_opt::Configuration([("x".to_owned(), x.into())].into());
        for (number, x, score) in [(1, 5, 0.0), (2, 3, -0.2), (3, 8, -0.5), (4, 3, -0.1)] {
            let measurement = Measurement {
                score,
                score_variance: 0.0,
                ratio: None,
                excess: [].into(),
                excess_variance: [].into(),
            };
            let measured = EvaluationResult {
                outcome: Outcome::Completed,
                measurement: Some(measurement),
                ..EvaluationResult::failed(String::new())
            };
            report.evaluations.push(measured.record(number, at(x)));
        }
        let verified = |x: i64| ArmResult::of(&PlannedArm::candidate(1, at(x)));
        report.verification = vec![verified(3)];
        assert_eq!(report.winner_rank(), None, "nothing is shown yet");
        report.finding = Finding::Improvement;
        let why = report.winner_rank().unwrap();
        assert!(
            why.starts_with("The verified winner is evaluation 2, which has rank 2. "),
            "{why}"
        );
        report.verification = vec![verified(8)];
        assert_eq!(report.winner_rank(), None);
    }

    #[test]
    fn where_no_evaluation_gave_a_result_the_last_reason_is_said() {
        let (spec, mut report) = begun();
        let reason = "the order is not signed with a key that it knows";
        for number in 1..3 {
            let record = EvaluationResult::failed(reason.into());
            let configuration = spec.space.default_configuration();
            report
                .evaluations
                .push(record.record(number, configuration));
        }
        assert!(report.say("latency_p99_us").ends_with(reason));
        report.evaluations.clear();
        assert!(
            report
                .say("latency_p99_us")
                .ends_with("nothing can be said.")
        );
    }

    #[test]
    fn what_was_taken_in_stays_so_and_is_verified_here_once_a_verification_ends() {
        let (spec, _) = begun();
        let sat = |finding, earlier: Option<&Report>| {
            let mut report = crate::experiment::begin(&spec);
            report.finding = finding;
            match earlier {
                Some(earlier) => report.keep_verified(earlier),
                None => report.imported = true,
            }
            report
        };
        for taken_in in [Finding::Improvement, Finding::Unfinished] {
            let taken_in = sat(taken_in, None);
            let paused = sat(Finding::Unfinished, Some(&taken_in));
            assert!(paused.imported && !paused.verified_here);
            assert_eq!(paused.finding, taken_in.finding);
            let verified = sat(Finding::NoDifference, Some(&paused));
            assert!(verified.imported && verified.verified_here);
            let resumed = sat(Finding::Unfinished, Some(&verified));
            assert!(resumed.imported && resumed.verified_here);
        }
    }
}
