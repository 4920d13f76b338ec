//! The live line on standard error: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal as _;
use std::time::Duration;

use bayes_opt::Configuration;
use indicatif::{ProgressBar, ProgressStyle};
use tuner::evaluation::Measurement;
use tuner::ledger::Event;
use tuner::report::{difference, score_text};
use tuner::spec::{CheckedSpec, ObjectiveSpec};

use crate::message;

pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    objective: ObjectiveSpec,
    control: Configuration,
    headline: String,
    best: Option<(f64, usize)>,
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
            objective: spec.objective.clone(),
            control: spec.space.default_configuration(),
            headline: String::new(),
            best: None,
        }
    }

    pub(crate) fn show(&mut self, event: &Event<'_>) {
        match event {
            Event::Started {
                number,
                of,
                configuration,
            } => {
                let changed = difference(configuration, &self.control);
                self.headline = format!("evaluation {number}/{of} {changed}");
                self.update("");
            }
            Event::Block { done, of, .. } => self.update(&format!("block {done}/{of}")),
            Event::Verifying { arm, run, of } => {
                self.headline = format!("verifying {arm}, run {run}/{of}");
                if self.bar.is_none() {
                    message(&self.headline);
                }
                self.update("");
            }
            Event::Planned(_) | Event::Verified(_) => {}
            Event::Ended(record) => {
                let score = record
                    .measurement
                    .as_ref()
                    .map(|measurement| measurement.score);
                if record.outcome == tuner::evaluation::Outcome::Completed
                    && let Some(score) = score
                    && self.best.is_none_or(|(best, _)| score < best)
                {
                    self.best = Some((score, record.number));
                }
                let result = score.map_or_else(String::new, |score| {
                    format!(" {}", score_text(score, &self.objective))
                });
                let broken = record.measurement.iter().flat_map(Measurement::broken);
                let broken = broken.map(|constraint| format!("not {constraint}"));
                let why: Vec<String> = record.reason.iter().cloned().chain(broken).collect();
                let why = match why.is_empty() {
                    true => String::new(),
                    false => format!(": {}", why.join(", ")),
                };
                self.line(&format!(
                    "{:>4} {}{result} {}{why}",
                    record.number,
                    record.outcome,
                    difference(&record.configuration, &self.control)
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
            bar.set_message(format!("{detail} {}{best}", self.headline));
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
