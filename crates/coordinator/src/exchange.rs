//! Experiments that leave a store and enter another: a whole report, as `slackline tune --json`
//! writes it, or a table.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use tuner::ledger::PlannedArm;
use tuner::ledger::VerificationRun;
use tuner::report::{Finding, Report};

use crate::actions::check_source;
use crate::coordinator::Coordinator;
use crate::error::Error;
use crate::foreign;
use crate::store::{Elsewhere, ExperimentRow, NewExperiment, Once, State};

/// A verification that has come to its end, while the next one has no runs yet.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LastVerification {
    /// Number of the verification, from 1.
    pub number: i64,
    /// The names of the arms. The field `arm` of a run is the place of its arm in this list.
    pub arms: Vec<String>,
    /// The runs.
    pub runs: Vec<VerificationRun>,
}

impl Coordinator {
    /// The whole report of an experiment, with every block. Of what services printed it has only
    /// that of evaluations that measured nothing.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Unavailable`].
    pub fn export(&self, id: i64) -> Result<Report, Error> {
        let row = self.store.experiment(id)?;
        let mut rows = self.store.evaluations(id, 1)?;
        self.store.fill_blocks(id, &mut rows)?;
        self.store.fill_outputs(id, &mut rows)?;
        let ended = rows.into_iter().filter(|row| !row.is_running);
        let mut report = self.with_runs(&row)?;
        report.evaluations = ended.map(|row| row.record).collect();
        report.spec = row.spec;
        report.note = row.note;
        report.state = Some(row.state.name().to_owned());
        Ok(report)
    }

    /// The verification that an experiment's report speaks of, where a newer one has no runs yet.
    /// Nothing, where the newer one has some, or the runs are not those of the report.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn last_verification(
        &self,
        row: &ExperimentRow,
    ) -> Result<Option<LastVerification>, Error> {
        let last = self.store.last_runs(row.id)?;
        let Some((number, runs)) = last.filter(|(number, _)| *number != row.verification) else {
            return Ok(None);
        };
        let arms: Vec<String> = row
            .report
            .verification
            .iter()
            .map(|arm| arm.name.clone())
            .collect();
        // A later verification that was cut short has other runs than the report.
        let is_of_report = runs.iter().all(|run| run.arm < arms.len())
            && row
                .report
                .verification
                .iter()
                .enumerate()
                .all(|(place, arm)| {
                    let of_arm = runs
                        .iter()
                        .filter(|run| run.arm == place && run.fault.is_none());
                    of_arm.count() == arm.runs
                });
        Ok((is_of_report && !arms.is_empty()).then_some(LastVerification { number, arms, runs }))
    }

    /// The report of an experiment with the blocks of its verification, without its evaluations.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn with_runs(&self, row: &ExperimentRow) -> Result<Report, Error> {
        let mut report = row.report.clone();
        let runs = self.store.runs(row.id)?;
        for arm in &mut report.verification {
            let plan = row.plan.iter().flatten();
            let place = plan.into_iter().position(|planned| {
                planned.name == arm.name && planned.configuration == arm.configuration
            });
            let of_arm = runs
                .iter()
                .filter(|run| Some(run.arm) == place && run.fault.is_none());
            arm.runs_blocks = of_arm.map(|run| run.blocks.clone()).collect();
            // Those of a later verification, which did not come to its end, are not what the report
            // speaks of.
            if arm.runs_blocks.len() != arm.runs {
                arm.runs_blocks.clear();
            }
        }
        Ok(report)
    }

    /// Takes in a report from elsewhere as an experiment that is over: done, stopped or failed, as
    /// it was there. It can be looked at, forked and exported; to resume it, its specification must
    /// fit this host.
    ///
    /// # Errors
    /// [`Error::Spec`] for one that is absurd or contradicts itself, with the key and its line in
    /// `text`, the JSON that it was read from; [`Error::Unavailable`].
    pub fn import(
        &self,
        report: Report,
        text: Option<&str>,
        once: Option<Once>,
    ) -> Result<i64, Error> {
        if let Some(id) = self.made(once.as_ref())? {
            return Ok(id);
        }
        let control = report.control.clone();
        let mut report = foreign::admitted(report, text)?;
        let mut spec = report.spec.clone();
        spec.name = Some(report.name.clone());
        for parameter in &mut spec.parameters {
            if let Some(value) = control.get(&parameter.name) {
                parameter.pin(value);
            }
        }
        let evaluations = std::mem::take(&mut report.evaluations);
        let plan: Vec<PlannedArm> = report
            .verification
            .iter()
            .map(|arm| arm.planned(BTreeMap::new()))
            .collect();
        let mut runs = Vec::new();
        for (index, arm) in report.verification.iter_mut().enumerate() {
            let measured = std::mem::take(&mut arm.runs_blocks).into_iter();
            runs.extend((1..).zip(measured).map(|(run, blocks)| VerificationRun {
                arm: index,
                run,
                blocks,
                fault: None,
                host: None,
                templates: BTreeMap::new(),
                begun: None,
            }));
        }
        // A directory of another host is seldom one that is here too.
        let theirs = Some(report.dir.as_path()).filter(|dir| dir.is_dir());
        let dir = theirs.unwrap_or(&self.state_dir).display().to_string();
        // What was in force elsewhere is not in force here.
        report.promoted.clear();
        report.imported = true;
        report.verified_here = false;
        let note = report.note.take();
        let state = ended_as(&report);
        let error = report.error.clone().filter(|_| state == State::Failed);
        report.state = None;
        let source = serde_json::to_string_pretty(&spec)
            .map_err(|error| Error::Invalid(error.to_string()))?;
        check_source(&source)?;
        let new = NewExperiment {
            name: report.name.clone(),
            dir,
            source,
            spec,
            prior: Vec::new(),
            parent: None,
            report,
            state,
            once,
        };
        let measured = Elsewhere {
            evaluations,
            error,
            note,
            plan,
            runs,
        };
        self.store.take_in(&new, &measured)
    }
}

/// What an experiment is here that was over elsewhere. One that was not over there has been
/// stopped, as far as this host knows. A report of `tune` has no state: what is in it says how it
/// ended.
fn ended_as(report: &Report) -> State {
    let is_unfinished = report.finding == Finding::Unfinished || report.interrupted.is_some();
    match report.state.as_deref() {
        Some("done") => State::Done,
        Some("failed") => State::Failed,
        Some(_) => State::Stopped,
        None if report.error.is_some() => State::Failed,
        None if is_unfinished => State::Stopped,
        None => State::Done,
    }
}
