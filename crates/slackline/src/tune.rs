//! `slackline tune`: the experiment from its file to its verified end.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use bayes_opt::Configuration;
use host::RestoreReport;
use tuner::TunerError;
use tuner::experiment;
use tuner::ledger::{Ledger, LedgerEvent, PlannedArm, ResumeState};
use tuner::live::Live;
use tuner::process::Interrupt;
use tuner::report::{Finding, Report};
use tuner::spec::{CheckedSpec, Spec};

use crate::done::CommandOutcome;
use crate::output::message;
use crate::progress::Progress;
use crate::{apply, promotions, restore, table};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The specification (TOML, or JSON with the ending .json).
    spec: PathBuf,
    /// Write the whole report to this file as JSON. `-` prints it instead of the tables.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Leave the winner in force if it is shown to be better, holds every constraint and makes no
    /// guard worse. The guards are throughput, p99 latency, errors and memory.
    #[arg(long)]
    promote: bool,
    /// Seed of the search. Replaces the specification's.
    #[arg(long)]
    seed: Option<u64>,
    /// Number of evaluations. Replaces the specification's.
    #[arg(long, value_name = "N")]
    evaluations: Option<usize>,
    /// Continue an interrupted tune of the same experiment from its report. Evaluations in the
    /// report are not measured again. `--json FILE` keeps such a report in `FILE.partial` while it
    /// runs.
    #[arg(long, value_name = "REPORT", conflicts_with = "only")]
    resume: Option<PathBuf>,
    /// Do not search: only verify this configuration against the control, which is the unchanged
    /// configuration. Parameters that you leave out keep the control's values.
    #[arg(long, value_name = "'a=1 b=2'")]
    only: Option<String>,
}

pub(crate) fn run(arguments: &Arguments, state_dir: &Path) -> anyhow::Result<CommandOutcome> {
    let mut spec = tuner::spec::context(&host::Roots::default()).load(&arguments.spec)?;
    anyhow::ensure!(
        spec.continuous.is_none(),
        "mode = \"continuous\" goes on after its promotion, which needs `slackline serve`: `slackline experiments create`"
    );
    if let Some(seed) = arguments.seed {
        spec.set_seed(seed);
    }
    if let Some(evaluations) = arguments.evaluations {
        anyhow::ensure!(evaluations > 0, "--evaluations must be above 0");
        spec.set_evaluations(evaluations);
    }
    let kept = kept(arguments, &spec)?;
    table::warn(&spec);
    let promoted_before = promotions::warn_of_measured(&spec, state_dir);
    let interrupt = Interrupt::on_signals().context("signals cannot be caught")?;
    let mut live = Live::new(&spec, state_dir, interrupt.clone())?;
    live.give_way();
    let left_over = live.left_over();
    if !left_over.is_empty() {
        return Err(tuner::TunerError::LeftOver(left_over.join(", ")).into());
    }
    crate::output::ensure_writable(&[arguments.json.as_deref()])?;
    let mut ledger = TuneLedger {
        kept: Some(kept),
        progress: Progress::new(&spec),
        partial: arguments.json.as_deref().and_then(partial_of),
        report: Report {
            promoted_before: promoted_before.clone(),
            ..experiment::begin(&spec)
        },
    };
    let (mut report, failed) = experiment::run_to_end(&spec, &mut live, &mut ledger);
    report.promoted_before = promoted_before;
    ledger.progress.finish();
    if interrupt.signal().is_some() && !spec.target().apply.is_empty() {
        message(&format!(
            "Stopping: the service gets its own configuration back. Each apply step may take at most {} s.",
            tuner::reapply::Reapply::STEP_MAX.as_secs()
        ));
    }
    let restored = live.restore();
    if let Ok(restored) = &restored {
        for line in restore::lines(restored, false) {
            message(&line);
        }
    }
    let is_restored = restored.as_ref().is_ok_and(RestoreReport::is_complete);
    let promoted = if arguments.promote && is_restored && failed.is_none() {
        promote(&spec, &mut live, &mut report)
    } else {
        Ok(())
    };
    let published = crate::output::publish(
        arguments.json.as_deref(),
        &report,
        &table::results(&report),
        "The whole report",
    );
    if published.is_ok()
        && let Some(partial) = &ledger.partial
    {
        let _ = std::fs::remove_file(partial);
    }
    if !is_restored {
        if let Err(error) = published {
            message(&format!("slackline: {error:#}"));
        }
        if let Err(error) = restored {
            message(&format!("slackline: {error}"));
        }
        let text = "Not everything could be restored: run `slackline restore`.";
        message(&crate::state_dir::with_state_dir(text, state_dir));
        return Ok(CommandOutcome::RestoreFailed);
    }
    if let Some(error) = failed {
        message("Everything is restored.");
        return Err(error.into());
    }
    promoted?;
    published?;
    Ok(match (report.interrupted, report.finding) {
        (Some(signal), _) => {
            message(&format!(
                "Stopped by signal {signal}. Everything is restored."
            ));
            CommandOutcome::Signal(signal)
        }
        (None, Finding::Improvement) => CommandOutcome::Positive,
        (None, _) => CommandOutcome::Negative,
    })
}

/// Shows progress, and keeps what has been measured so far on disk.
struct TuneLedger {
    /// What an earlier run has measured, until it is asked for.
    kept: Option<ResumeState>,
    progress: Progress,
    /// Where the report so far is kept.
    partial: Option<PathBuf>,
    report: Report,
}

impl Ledger for TuneLedger {
    fn kept(&mut self) -> Result<ResumeState, TunerError> {
        let kept = self.kept.take().unwrap_or_default();
        self.report.evaluations.clone_from(&kept.evaluations);
        self.progress.resume(&kept);
        Ok(kept)
    }

    fn note(&mut self, event: &LedgerEvent<'_>) -> Result<(), TunerError> {
        self.progress.show(event);
        if let LedgerEvent::Ended { record, .. } = event {
            self.report.evaluations.push((*record).clone());
            self.write_partial();
        }
        Ok(())
    }
}

impl TuneLedger {
    /// A report that cannot be written now is no reason to end an experiment: its end says so.
    fn write_partial(&self) {
        if let Some(partial) = &self.partial
            && let Ok(json) = serde_json::to_vec_pretty(&self.report)
        {
            let _ = host::replace_synced(partial, &json);
        }
    }
}

/// Where the report so far is kept beside the report.
fn partial_of(json: &Path) -> Option<PathBuf> {
    let name = json.file_name()?.to_string_lossy();
    (name != "-").then(|| json.with_file_name(format!("{name}.partial")))
}

/// What need not be measured, or not searched for.
fn kept(arguments: &Arguments, spec: &CheckedSpec) -> anyhow::Result<ResumeState> {
    if let Some(text) = &arguments.only {
        let configuration = spec.configuration(text);
        let configuration = configuration.map_err(|error| anyhow::anyhow!("--only: {error}"))?;
        anyhow::ensure!(
            configuration != spec.space.default_configuration(),
            "--only: this is the control's configuration: there is nothing to compare"
        );
        // A verification that has a plan needs no search.
        return Ok(ResumeState {
            plan: Some(vec![PlannedArm::candidate(1, configuration)]),
            ..ResumeState::default()
        });
    }
    let Some(path) = &arguments.resume else {
        return Ok(ResumeState::default());
    };
    let report = apply::read(path)?;
    if let Some(why) = difference(&report, spec) {
        anyhow::bail!("--resume: {} {why}", path.display());
    }
    let mut kept = report.kept();
    if kept.evaluations.len() < spec.written().budget.evaluations {
        // The search goes on, and what it finds is verified anew.
        kept.plan = None;
        kept.runs.clear();
    }
    message(&format!(
        "Resumed: {} evaluations and {} verification runs are not measured again.",
        kept.evaluations.len(),
        kept.runs.len()
    ));
    Ok(kept)
}

/// Why the measurements of a report say nothing of this experiment.
fn difference(report: &Report, spec: &CheckedSpec) -> Option<String> {
    type Part = fn(&Spec) -> serde_json::Result<serde_json::Value>;
    let parts: [(&str, Part); 6] = [
        ("parameters", |it| serde_json::to_value(&it.parameters)),
        ("target", |it| serde_json::to_value(&it.target)),
        ("workload", |it| serde_json::to_value(&it.workload)),
        ("objective", |it| serde_json::to_value(&it.objective)),
        ("constraints", |it| serde_json::to_value(&it.constraints)),
        ("metrics", |it| serde_json::to_value(&it.metrics)),
    ];
    let part = |of: Part, spec: &Spec| of(spec).unwrap_or_default();
    let other = parts
        .into_iter()
        .find(|(_, of)| part(*of, &report.spec) != part(*of, spec.written()));
    if let Some((name, _)) = other {
        return Some(format!("is of another experiment: `{name}` differs"));
    }
    let now = spec.space.default_configuration();
    if report.control == now {
        return None;
    }
    // Such as a knob that an experiment's promotion has set since, or that was set back.
    let differs = |it: &Configuration, other: &Configuration| {
        let values = it.0.clone().into_iter();
        let differing = values.filter(|(name, value)| other.get(name) != Some(value));
        Configuration(differing.collect())
    };
    Some(format!(
        "was measured against a control with {}, and the control is {} now. Set these values back, or start anew without \
         --resume",
        differs(&report.control, &now),
        differs(&now, &report.control)
    ))
}

fn promote(spec: &CheckedSpec, live: &mut Live<'_>, report: &mut Report) -> anyhow::Result<()> {
    let winner = report.winner().map(|arm| arm.configuration.clone());
    match winner {
        Some(winner) if report.finding == Finding::Improvement && report.interrupted.is_none() => {
            if let Some(why) = report.changed_template(spec) {
                anyhow::bail!("nothing is promoted: {why}");
            }
            report.promoted = promotions::put_in_force(live, &winner)?.done.sentences();
            if report.promoted.is_empty() && spec.target().start.is_some() {
                message(
                    "Nothing is promoted: Slackline started the service for the experiment only. Put the settings below into the configuration of your own service.",
                );
            }
        }
        _ => message(&format!("Not promoted: {}.", not_promoted(report.finding))),
    }
    Ok(())
}

/// Why nothing is promoted.
fn not_promoted(finding: Finding) -> &'static str {
    match finding {
        Finding::Paid => {
            "a guard became worse, as the report says; `verification.allow_worse` accepts this"
        }
        Finding::Undecided => {
            "a constraint could not be decided; more `verification.max_runs` may decide it, and `verification.accept_undecided` promotes in any case"
        }
        Finding::ConstraintViolated => "a constraint is broken, or a run failed",
        _ => "an improvement was not shown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(default: u32, command: &str) -> CheckedSpec {
        let text = format!(
            r#"
parameters = [
  {{ name = "n", type = "int", low = 1, high = 90, default = {default} }},
  {{ name = "m", type = "int", low = 1, high = 9, default = 5 }},
]
target = {{ start = ["sleep", "9"] }}
workload = {{ command = ["{command}"], json = {{ requests = "requests" }} }}
objective = {{ metric = "cpu_s_per_request" }}
"#
        );
        let roots = host::Roots::default();
        let context = tuner::spec::context(&roots);
        context.check(text, "x.toml".as_ref()).unwrap()
    }

    #[test]
    fn what_differs_from_the_resumed_experiment_is_named() {
        let report = experiment::begin(&spec(60, "true"));
        assert_eq!(difference(&report, &spec(60, "true")), None);
        let why = difference(&report, &spec(60, "false")).unwrap();
        assert_eq!(why, "is of another experiment: `workload` differs");
    }

    #[test]
    fn a_control_that_has_changed_since_is_named_with_both_values() {
        let spec = spec(60, "true");
        let mut report = experiment::begin(&spec);
        report.control.0.insert("n".into(), 10_i64.into());
        let why = difference(&report, &spec).unwrap();
        let words = "was measured against a control with n=10, and the control is n=60 now.";
        assert!(why.starts_with(words), "{why}");
    }
}
