//! How experiments come to be: of a specification, or of what was measured elsewhere; each request
//! makes one, however often it is sent.

use bayes_opt::Observation;
use tuner::ledger::{PlannedArm, VerificationRun};
use tuner::report::{EvaluationRecord, Report};
use tuner::spec::Spec;

use super::database::Database;
use super::evaluations::import;
use super::queue::end_of_queue;
use super::requests::{Once, made_before, remember};
use super::row::{State, insert_run, set};
use super::{Store, now_ms, to_json};
use crate::error::Error;

/// What makes an experiment.
#[derive(Clone, Debug)]
pub struct NewExperiment {
    /// Its name.
    pub name: String,
    /// Where relative paths of its specification count from.
    pub dir: String,
    /// The specification as its author wrote it.
    pub source: String,
    /// The specification with the control's values written out.
    pub spec: Spec,
    /// What an earlier experiment measured.
    pub prior: Vec<Observation>,
    /// That experiment.
    pub parent: Option<i64>,
    /// Its report so far, without evaluations.
    pub report: Report,
    /// What it starts as: queued, or paused; an imported one is over.
    pub state: State,
    /// A request that may be sent again makes one experiment.
    pub once: Option<Once>,
}

/// What was measured elsewhere, of an experiment that is over.
#[derive(Clone, Debug)]
pub(crate) struct Elsewhere {
    /// Its evaluations, with their blocks.
    pub(crate) evaluations: Vec<EvaluationRecord>,
    /// What ended it, if it failed.
    pub(crate) error: Option<String>,
    /// What a person has written about it.
    pub(crate) note: Option<String>,
    /// The arms of its verification.
    pub(crate) plan: Vec<PlannedArm>,
    /// Their runs.
    pub(crate) runs: Vec<VerificationRun>,
}

fn made_already(database: &mut Database, new: &NewExperiment) -> Result<Option<i64>, Error> {
    match &new.once {
        Some(once) => made_before(database, once),
        None => Ok(None),
    }
}

/// Makes an experiment and returns its number, inside a transaction.
fn create(database: &mut Database, new: &NewExperiment) -> Result<i64, Error> {
    let rows = database.query(
        "UPDATE counters SET value = value + 1 WHERE name = 'experiments' RETURNING value",
        &[],
    )?;
    let id = rows.first().and_then(|row| row[0].int());
    let id = id.ok_or_else(|| Error::Corrupt("the counter of experiments is gone".into()))?;
    if let Some(once) = &new.once {
        remember(database, once, id)?;
    }
    let prior = (!new.prior.is_empty())
        .then(|| to_json(&new.prior))
        .transpose()?;
    let queued_ms = end_of_queue(database)?;
    database.execute(
        "INSERT INTO experiments (id, name, state, dir, source, spec, prior, parent, created_ms, queued_ms, \
         verification, report, on_workers) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 1, $11, $12)",
        &[
            id.into(),
            new.name.clone().into(),
            new.state.name().into(),
            new.dir.clone().into(),
            new.source.clone().into(),
            to_json(&new.spec)?.into(),
            prior.into(),
            new.parent.into(),
            now_ms().into(),
            queued_ms.into(),
            to_json(&new.report)?.into(),
            i64::from(new.spec.workers.is_some()).into(),
        ],
    )?;
    Ok(id)
}

impl Store {
    /// The experiment that a request has made or changed already.
    pub(crate) fn made(&self, once: Option<&Once>) -> Result<Option<i64>, Error> {
        match once {
            Some(once) => self.change(|database| made_before(database, once)),
            None => Ok(None),
        }
    }

    /// Makes an experiment and returns its number.
    pub(crate) fn create(&self, new: &NewExperiment) -> Result<i64, Error> {
        self.change(|database| match made_already(database, new)? {
            Some(id) => Ok(id),
            None => create(database, new),
        })
    }

    /// Makes an experiment of what was measured elsewhere, whole or not at all, and returns its
    /// number.
    pub(crate) fn take_in(&self, new: &NewExperiment, measured: &Elsewhere) -> Result<i64, Error> {
        let message = measured.error.as_deref().map(http_client::redact);
        let note = measured.note.as_deref().map(http_client::redact);
        self.change(|database| {
            if let Some(id) = made_already(database, new)? {
                return Ok(id);
            }
            let id = create(database, new)?;
            import(database, id, &measured.evaluations)?;
            set(database, id, "message", message.into())?;
            set(database, id, "note", note.into())?;
            if !measured.plan.is_empty() {
                set(database, id, "plan", to_json(&measured.plan)?.into())?;
                for run in &measured.runs {
                    insert_run(database, id, run)?;
                }
            }
            Ok(id)
        })
    }
}
