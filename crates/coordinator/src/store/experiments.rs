//! Experiments: how their rows change, and lists of them.

use std::collections::BTreeMap;

use tuner::ledger::{PlannedArm, VerificationRun};
use tuner::report::Report;
use tuner::spec::{BudgetSpec, ExperimentMode, Spec};

use super::database::{Cell, Database};
use super::entries::happened;
use super::promotion::Promotion;
use super::queue::end_of_queue;
use super::row::{
    ExperimentRow, ExperimentSummary, State, UserRequest, find, insert_run, set, state, unfinished,
    wish,
};
use super::{Store, json, name_of, to_json, usize_of, waiting};
use crate::error::Error;

/// Writes down what of an experiment is in force, inside a transaction. Whoever waits for the end
/// of its promotion is told of that.
pub(super) fn put_promotion(
    database: &mut Database,
    id: i64,
    promotion: Option<&Promotion>,
) -> Result<(), Error> {
    if promotion.is_none_or(|it| !it.left.is_empty()) {
        waiting::not_in_force(database, id)?;
    }
    let promotion = promotion.map(to_json).transpose()?;
    set(database, id, "promotion", promotion.into())
}

fn lose(database: &mut Database, id: i64, why: Option<&str>) -> Result<(), Error> {
    database.execute(
        "UPDATE evaluations SET outcome = 'failed', failure = 'lost', reason = $1 \
         WHERE experiment = $2 AND outcome = 'running'",
        &[why.into(), id.into()],
    )?;
    Ok(())
}

impl Store {
    /// Every experiment, newest first. Of its evaluations those are counted that
    /// `tuner::experiment::TuningSearch::counted` has.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn experiments(&self) -> Result<Vec<ExperimentSummary>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT e.id, e.name, e.state, e.wish, e.message, e.created_ms, e.budget, e.spec, e.report, e.parent, \
                 e.promotion, e.plan, \
                 (SELECT COUNT(*) FROM evaluations v WHERE v.experiment = e.id AND v.outcome <> 'running' \
                  AND COALESCE(v.failure, '') <> 'lost' \
                  AND NOT (v.failure IS NOT NULL AND v.host IS NOT NULL AND EXISTS (SELECT 1 FROM evaluations o \
                   WHERE o.experiment = e.id AND o.score IS NOT NULL AND o.host <> v.host))), \
                 (SELECT MIN(score) FROM evaluations v WHERE v.experiment = e.id AND v.outcome = 'completed') \
                 FROM experiments e ORDER BY e.id DESC",
                &[],
            )
        })?;
        let mut targets = BTreeMap::new();
        let all = rows
            .iter()
            .map(|cells| {
                let budget: Option<BudgetSpec> = json(&cells[6])?;
                let spec: Spec = json(&cells[7])?;
                let report: Report = json(&cells[8])?;
                let promotion: Option<Promotion> = json(&cells[10])?;
                let id = cells[0].int().unwrap_or(0);
                targets.extend(spec.target.map(|target| (id, target)));
                let state = state(&cells[2])?;
                // A verification that has begun is no wish any more.
                let is_begun = state == State::Running && cells[11].text().is_some();
                Ok(ExperimentSummary {
                    id,
                    name: name_of(&cells[1]),
                    state,
                    wish: wish(&cells[3])?.filter(|it| !(is_begun && *it == UserRequest::Verify)),
                    message: cells[4].text().map(str::to_owned),
                    created_ms: cells[5].int().unwrap_or(0),
                    evaluations: usize_of(&cells[12]),
                    always_on: spec.mode == ExperimentMode::Continuous,
                    on_workers: spec.workers.is_some(),
                    waits: None,
                    budget: budget.unwrap_or(spec.budget).evaluations,
                    best_score: cells[13].real(),
                    imported: report.imported,
                    sentence: report.sentence,
                    parent: cells[9].int(),
                    promoted: promotion.as_ref().is_some_and(|it| it.left.is_empty()),
                    not_restored: promotion
                        .filter(|it| !it.left.is_empty())
                        .map_or_else(Vec::new, |it| it.done.changed),
                })
            })
            .collect::<Result<Vec<_>, Error>>();
        let mut all = all?;
        waiting::say_what_waits(&mut all, &targets, self.is_queue_paused()?);
        Ok(all)
    }

    /// One experiment.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn experiment(&self, id: i64) -> Result<ExperimentRow, Error> {
        self.read(|database| find(database, id))
    }

    /// When an experiment was made; `None` where there is none of that number.
    pub(crate) fn made_ms(&self, id: i64) -> Result<Option<i64>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT created_ms FROM experiments WHERE id = $1",
                &[id.into()],
            )
        })?;
        Ok(rows.first().and_then(|row| row[0].int()))
    }

    /// The experiment whose turn it is on this host, if any waits.
    pub(crate) fn next_in_queue(&self) -> Result<Option<i64>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT id FROM experiments WHERE state = 'queued' AND on_workers = 0 ORDER BY queued_ms, id LIMIT 1",
                &[],
            )
        })?;
        Ok(rows.first().and_then(|row| row[0].int()))
    }

    /// Changes the state of an experiment, if `decide` allows it in the present one: the new state,
    /// the wish that goes with it, and a message.
    pub(crate) fn transition(
        &self,
        id: i64,
        decide: impl FnOnce(
            &ExperimentRow,
        ) -> Result<(State, Option<UserRequest>, Option<String>), Error>,
    ) -> Result<(), Error> {
        self.change(|database| {
            let row = find(database, id)?;
            let (state, wish, message) = decide(&row)?;
            let joins = state == State::Queued && row.state != State::Queued;
            let queued_ms = joins.then(|| end_of_queue(database)).transpose()?;
            database.execute(
                "UPDATE experiments SET state = $1, wish = $2, message = $3, queued_ms = COALESCE($4, queued_ms) \
                 WHERE id = $5",
                &[
                    state.name().into(),
                    wish.map(UserRequest::name).into(),
                    message.into(),
                    queued_ms.into(),
                    id.into(),
                ],
            )?;
            Ok(())
        })
    }

    /// The end of a session: its report and the state that it leaves. An error may have ended it in
    /// the middle of an evaluation, which is lost then.
    pub(crate) fn session_ended(
        &self,
        id: i64,
        state: State,
        message: Option<&str>,
        report: &Report,
    ) -> Result<(), Error> {
        let sentence = report.sentence.as_str();
        let report = to_json(report)?;
        let message = message.map(http_client::redact);
        let message = message.as_deref();
        let said = match state {
            State::Done => Some(sentence),
            State::Failed => message,
            // Who has stopped or paused it is in the audit log.
            _ => None,
        };
        self.change(|database| {
            if let Some(said) = said {
                happened(database, id, state.name(), said)?;
            }
            database.execute(
                "UPDATE experiments SET state = $1, wish = NULL, message = $2, report = $3 WHERE id = $4",
                &[state.name().into(), message.into(), report.as_str().into(), id.into()],
            )?;
            lose(database, id, message)
        })
    }

    /// The end of a search in the middle of an evaluation, while its experiment goes on.
    pub(crate) fn lose(&self, id: i64, why: &str) -> Result<(), Error> {
        self.change(|database| lose(database, id, Some(why)))
    }

    /// Why an experiment waits, if it does.
    pub(crate) fn say(&self, id: i64, message: Option<&str>) -> Result<(), Error> {
        let message = message.map(http_client::redact);
        self.change(|database| set(database, id, "message", message.into()))
    }

    /// The report so far, of an experiment that goes on.
    pub(crate) fn set_report(&self, id: i64, report: &Report) -> Result<(), Error> {
        let report = to_json(report)?;
        self.change(|database| set(database, id, "report", report.into()))
    }

    /// Another budget, made of what the experiment has.
    pub(crate) fn set_budget(
        &self,
        id: i64,
        change: impl FnOnce(&ExperimentRow) -> BudgetSpec,
    ) -> Result<(), Error> {
        self.change(|database| {
            let budget = change(&find(database, id)?);
            set(database, id, "budget", to_json(&budget)?.into())
        })
    }

    /// What a person has written about an experiment; `None` takes it away.
    pub(crate) fn note(&self, id: i64, note: Option<&str>) -> Result<(), Error> {
        let note = note.map(http_client::redact);
        self.change(|database| {
            find(database, id)?;
            set(database, id, "note", note.into())
        })
    }

    /// What of an experiment is in force on the host.
    pub(crate) fn set_promotion(
        &self,
        id: i64,
        promotion: Option<&Promotion>,
    ) -> Result<(), Error> {
        self.change(|database| put_promotion(database, id, promotion))
    }

    /// Writes down that a promotion has begun, if `decide` allows it in the present state: whoever
    /// resumes the experiment from now on finds it promoted.
    pub(crate) fn begin_promotion(
        &self,
        id: i64,
        promotion: &Promotion,
        decide: impl FnOnce(&ExperimentRow) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let promotion = to_json(promotion)?;
        self.change(|database| {
            decide(&find(database, id)?)?;
            set(database, id, "promotion", promotion.into())
        })
    }

    /// Forgets what a rollback could not restore, and returns it.
    pub(crate) fn forget_rest(&self, id: i64) -> Result<Vec<String>, Error> {
        self.change(|database| {
            let row = find(database, id)?;
            let rest = row.unfinished_rollback().ok_or_else(|| {
                Error::Conflict(format!(
                    "experiment {id} has nothing to forget: its rollbacks restored everything, or there was none"
                ))
            })?;
            set(database, id, "promotion", Cell::Null)?;
            Ok(rest.done.changed.clone())
        })
    }

    /// What rollbacks could not restore, by the experiments' numbers.
    pub(crate) fn left(&self) -> Result<Vec<(i64, Vec<String>)>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT id, promotion FROM experiments WHERE promotion IS NOT NULL ORDER BY id",
                &[],
            )
        })?;
        let mut all = Vec::new();
        for cells in &rows {
            let promotion: Promotion = json(&cells[1])?;
            if !promotion.left.is_empty() {
                all.push((cells[0].int().unwrap_or(0), promotion.left));
            }
        }
        Ok(all)
    }

    /// Forgets the plan of the verification: the next one is planned and measured anew; the runs of
    /// the last one stay.
    pub(crate) fn new_verification(&self, id: i64) -> Result<(), Error> {
        self.change(|database| {
            database.execute(
                "UPDATE experiments SET plan = NULL, verification = verification + 1 \
                 WHERE id = $1 AND plan IS NOT NULL",
                &[id.into()],
            )?;
            Ok(())
        })
    }

    /// The arms of the present verification.
    pub(crate) fn set_plan(&self, id: i64, plan: &[PlannedArm]) -> Result<(), Error> {
        let names: Vec<&str> = plan.iter().map(|arm| arm.name.as_str()).collect();
        let names = names.join(", ");
        let plan = to_json(&plan)?;
        self.change(|database| {
            let text = format!("The verification of {names} begins.");
            happened(database, id, "verification", &text)?;
            set(database, id, "plan", plan.into())
        })
    }

    /// A run of the present verification.
    pub(crate) fn add_run(&self, id: i64, run: &VerificationRun) -> Result<(), Error> {
        self.change(|database| insert_run(database, id, run))
    }

    /// The runs of the present verification.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn runs(&self, id: i64) -> Result<Vec<VerificationRun>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT r.measured FROM runs r JOIN experiments e ON e.id = r.experiment \
                 AND e.verification = r.verification WHERE e.id = $1 ORDER BY r.run, r.arm",
                &[id.into()],
            )
        })?;
        rows.iter().map(|row| json(&row[0])).collect()
    }

    /// The newest verification that has runs, and its runs.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Corrupt`].
    pub(crate) fn last_runs(&self, id: i64) -> Result<Option<(i64, Vec<VerificationRun>)>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT verification, measured FROM runs WHERE experiment = $1 AND verification = \
                 (SELECT MAX(verification) FROM runs WHERE experiment = $2) ORDER BY run, arm",
                &[id.into(), id.into()],
            )
        })?;
        let Some(number) = rows.first().and_then(|row| row[0].int()) else {
            return Ok(None);
        };
        let runs: Result<_, Error> = rows.iter().map(|row| json(&row[1])).collect();
        Ok(Some((number, runs?)))
    }

    /// Deletes an experiment that does not run, with all that it measured.
    pub(crate) fn delete(&self, id: i64) -> Result<(), Error> {
        self.change(|database| {
            let row = find(database, id)?;
            if row.state == State::Running {
                return Err(Error::Conflict(format!(
                    "experiment {id} is running: stop it first"
                )));
            }
            if row.in_force().is_some() {
                return Err(Error::Conflict(format!(
                    "the winner of experiment {id} is in force on this host: roll back experiment {id} first"
                )));
            }
            if let Some(rest) = row.unfinished_rollback() {
                return Err(Error::Conflict(unfinished(id, &rest.left)));
            }
            database.execute("DELETE FROM experiments WHERE id = $1", &[id.into()])?;
            Ok(())
        })
    }
}
