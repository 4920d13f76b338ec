//! The live line on standard error: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal as _;
use std::time::Duration;

use bayes_opt::Configuration;
use indicatif::{ProgressBar, ProgressStyle};
use tuner::evaluation::Outcome;
use tuner::ledger::{LedgerEvent, ResumeState};
use tuner::report::{EvaluationRecord, difference, score_text};
use tuner::spec::{CheckedSpec, ObjectiveSpec, Pairing};

use crate::output::message;
use crate::{style, table};

pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    objective: ObjectiveSpec,
    control: Configuration,
    headline: String,
    best: Option<(f64, usize)>,
    eta: Eta,
}

/// When the experiment will be over, by how long its evaluations have taken.
struct Eta {
    /// How long an evaluation is planned to take, without starting and ending the service.
    planned_s: f64,
    /// A run of the verification over an evaluation, as planned.
    run_share: f64,
    /// Runs of the verification that every arm has, and of all arms.
    runs_of_arm: usize,
    runs: usize,
    evaluations: usize,
    /// Evaluations that ended, and the time that they took.
    ended: usize,
    took_s: f64,
    /// Runs that are still to come, once the verification has begun.
    runs_left: Option<usize>,
}

impl Eta {
    fn of(spec: &CheckedSpec) -> Self {
        let evaluation = &spec.written().evaluation;
        let sides = match spec.target().pairing {
            Pairing::Alternating => 2.0,
            Pairing::Parallel => 1.0,
        };
        let of_blocks = |blocks: usize| {
            sides
                * (evaluation.warm_up_s
                    + blocks as f64 * (evaluation.block_s + evaluation.settle_s))
        };
        let verification = &spec.written().verification;
        let blocks = verification.blocks.unwrap_or(evaluation.blocks);
        let planned_s = of_blocks(evaluation.blocks);
        Self {
            planned_s,
            run_share: of_blocks(blocks) / planned_s,
            runs_of_arm: verification.runs,
            runs: verification.runs
                * (verification.top
                    + verification.arms.len()
                    + usize::from(spec.compares_capacity())),
            evaluations: spec.written().budget.evaluations,
            ended: 0,
            took_s: 0.0,
            runs_left: None,
        }
    }

    /// "12 min left"; at the start nothing.
    fn text(&self) -> String {
        let each_s = match self.ended {
            0 => self.planned_s,
            ended => self.took_s / ended as f64,
        };
        let evaluations = match self.runs_left {
            Some(_) => 0,
            None => self.evaluations.saturating_sub(self.ended),
        };
        let runs = self.runs_left.unwrap_or(self.runs) as f64 * self.run_share;
        let left_s = each_s * (evaluations as f64 + runs);
        let minutes = (left_s / 60.0).round();
        match minutes {
            0.0 => "under a minute left".to_owned(),
            minutes if minutes < 120.0 => format!("about {minutes:.0} min left"),
            minutes => format!("about {:.1} h left", minutes / 60.0),
        }
    }
}

impl Progress {
    pub(crate) fn new(spec: &CheckedSpec) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}") {
                bar.set_style(style);
            }
            // Redrawing costs CPU on the machine being measured: twice a second is enough.
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        Self {
            bar,
            objective: spec.objective().clone(),
            control: spec.space.default_configuration(),
            headline: String::new(),
            best: None,
            eta: Eta::of(spec),
        }
    }

    /// Takes in what an earlier run has measured.
    pub(crate) fn resume(&mut self, kept: &ResumeState) {
        for record in &kept.evaluations {
            self.take(record);
        }
    }

    fn take(&mut self, record: &EvaluationRecord) {
        self.eta.ended += 1;
        self.eta.took_s += record.duration_s;
        let score = record.measurement.as_ref().map(|it| it.score);
        if record.outcome == Outcome::Completed
            && let Some(score) = score
            && self.best.is_none_or(|(best, _)| score < best)
        {
            self.best = Some((score, record.number));
        }
    }

    pub(crate) fn show(&mut self, event: &LedgerEvent<'_>) {
        match event {
            LedgerEvent::Started {
                number,
                of,
                configuration,
            } => {
                let changed = difference(configuration, &self.control);
                self.headline = format!("evaluation {number}/{of} {changed}");
                self.update("");
            }
            LedgerEvent::Block { done, of, .. } => self.update(&format!("block {done}/{of}")),
            LedgerEvent::Verifying { arm, run, of } => {
                self.headline = format!("verifying {arm}, run {run}/{of}");
                let runs_left = self.eta.runs_left.filter(|left| *left > 0);
                self.eta.runs_left = Some(runs_left.unwrap_or(of + 1 - run));
                if self.bar.is_none() {
                    message(&format!("{} ({})", self.headline, self.eta.text()));
                }
                self.update("");
            }
            LedgerEvent::Planned(plan) => {
                self.eta.runs_left = Some(plan.len() * self.eta.runs_of_arm);
            }
            LedgerEvent::Verified(_) => {
                self.eta.runs_left = self.eta.runs_left.map(|left| left.saturating_sub(1));
            }
            LedgerEvent::Ended { record, .. } => {
                self.take(record);
                let score = record.measurement.as_ref().map(|it| it.score);
                let result = score.map_or_else(String::new, |score| {
                    format!(" {}", score_text(score, &self.objective))
                });
                let why = record
                    .why()
                    .map_or_else(String::new, |why| format!(": {why}"));
                let outcome = record.outcome.to_string();
                self.line(&format!(
                    "{:>4} {}{result} {}{why}; {}",
                    record.number,
                    style::paint_message(&outcome, table::colour_of(record.outcome)),
                    difference(&record.configuration, &self.control),
                    self.eta.text(),
                ));
            }
        }
    }

    fn update(&self, detail: &str) {
        if let Some(bar) = &self.bar {
            let best = self.best.map_or_else(String::new, |(score, number)| {
                format!(
                    ", best so far {} (evaluation {number})",
                    score_text(score, &self.objective)
                )
            });
            let left = self.eta.text();
            bar.set_message(format!("{left}, {detail} {}{best}", self.headline));
        }
    }

    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => message(text),
        }
    }

    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_goes_by_what_the_evaluations_took() {
        let mut eta = Eta {
            planned_s: 60.0,
            run_share: 0.5,
            runs_of_arm: 3,
            runs: 6,
            evaluations: 20,
            ended: 0,
            took_s: 0.0,
            runs_left: None,
        };
        // As planned: 20 evaluations of a minute, 6 runs of half a minute.
        assert_eq!(eta.text(), "about 23 min left");
        // Each took 10 minutes: 18 and 6 halves are left.
        (eta.ended, eta.took_s) = (2, 1200.0);
        assert_eq!(eta.text(), "about 3.5 h left");
        // The verification has begun, so no evaluation follows.
        eta.runs_left = Some(2);
        assert_eq!(eta.text(), "about 10 min left");
        eta.runs_left = Some(0);
        assert_eq!(eta.text(), "under a minute left");
    }
}
