//! What workers on other hosts are measuring: one row for each evaluation or run of a verification
//! that is not in this process. The row goes in the transaction that writes the result, so a result
//! is taken once, whoever sends it how often.

use tuner::assignment::EvaluationResult;
use tuner::evaluation::Outcome;
use tuner::experiment::BY_USER;
use tuner::ledger::PlannedArm;
use tuner::protocol::Ticket;
use tuner::report::{EvaluationRecord, Failure};

use super::database::{Cell, Database};
use super::evaluations::{RunningEvaluation, begin, find_evaluation, insert_block, write_end};
use super::{Store, now_ms, to_json, usize_of};
use crate::error::Error;

/// Something that a worker measures, or will.
#[derive(Clone, Debug, PartialEq)]
pub struct Assigned {
    /// The ticket.
    pub ticket: Ticket,
    /// How often it has been claimed.
    pub attempt: i64,
    /// Who claimed it last.
    pub worker: Option<String>,
    /// The score that it must not be shown to be worse than.
    pub incumbent: Option<f64>,
}

const KEY: &str = "experiment = $1 AND verification = $2 AND arm = $3 AND number = $4";

fn key(ticket: Ticket) -> [Cell; 4] {
    [
        ticket.experiment.into(),
        ticket.verification.into(),
        ticket.arm.into(),
        ticket.number.into(),
    ]
}

fn assign(database: &mut Database, ticket: Ticket, incumbent: Option<f64>) -> Result<(), Error> {
    let mut cells = key(ticket).to_vec();
    cells.extend([incumbent.into(), now_ms().into()]);
    database.execute(
        "INSERT INTO assignments (experiment, verification, arm, number, attempt, incumbent, created_ms) \
         VALUES ($1, $2, $3, $4, 0, $5, $6)",
        &cells,
    )?;
    Ok(())
}

/// An evaluation ends without having said anything of its configuration.
fn lose(database: &mut Database, id: i64, number: usize, reason: &str) -> Result<(), Error> {
    let mut record = find_evaluation(database, id, number)?.record;
    record.outcome = Outcome::Failed;
    record.failure = Some(Failure::Lost);
    record.reason = Some(reason.to_owned());
    write_end(database, id, &record)
}

impl Store {
    /// Experiments that wait for workers, first one first, and those that were being measured when
    /// an earlier coordinator ended.
    pub(crate) fn waiting_for_workers(&self) -> Result<Vec<i64>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT id FROM experiments WHERE on_workers = 1 AND state IN ('queued', 'running') \
                 ORDER BY CASE state WHEN 'running' THEN 0 ELSE 1 END, queued_ms, id",
                &[],
            )
        })?;
        Ok(rows.iter().filter_map(|row| row[0].int()).collect())
    }

    /// An evaluation is given to whichever worker comes.
    pub(crate) fn assign_evaluation(
        &self,
        id: i64,
        running: &RunningEvaluation,
        is_from_queue: bool,
        incumbent: Option<f64>,
    ) -> Result<Ticket, Error> {
        let ticket = Ticket {
            experiment: id,
            verification: 0,
            arm: 0,
            number: running.number,
        };
        self.change(|database| {
            begin(database, id, running, is_from_queue)?;
            assign(database, ticket, incumbent)
        })?;
        Ok(ticket)
    }

    /// Every run of a verification that is not there yet is given to whichever workers come, with
    /// its plan.
    pub(crate) fn assign_verification(
        &self,
        id: i64,
        plan: &[PlannedArm],
        due: &[(usize, usize)],
    ) -> Result<(), Error> {
        let plan_json = to_json(&plan)?;
        self.change(|database| {
            let rows = database.query(
                "UPDATE experiments SET plan = $1 WHERE id = $2 RETURNING verification",
                &[plan_json.as_str().into(), id.into()],
            )?;
            let verification = rows.first().and_then(|row| row[0].int()).unwrap_or(1);
            for (arm, number) in due.iter().copied() {
                let ticket = Ticket {
                    experiment: id,
                    verification,
                    arm,
                    number,
                };
                assign(database, ticket, None)?;
            }
            Ok(())
        })
    }

    /// What workers are measuring of an experiment, or will.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn assignments(&self, id: i64) -> Result<Vec<Assigned>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT verification, arm, number, attempt, worker, incumbent FROM assignments WHERE experiment = $1 \
                 ORDER BY verification, arm, number",
                &[id.into()],
            )
        })?;
        let assigned = |row: &Vec<Cell>| Assigned {
            ticket: Ticket {
                experiment: id,
                verification: row[0].int().unwrap_or(0),
                arm: usize_of(&row[1]),
                number: usize_of(&row[2]),
            },
            attempt: row[3].int().unwrap_or(0),
            worker: row[4].text().map(str::to_owned),
            incumbent: row[5].real(),
        };
        Ok(rows.iter().map(assigned).collect())
    }

    /// A worker has taken it: the number of its attempt, or `None` where nobody needs it any more.
    pub(crate) fn claim(&self, ticket: Ticket, worker: &str) -> Result<Option<i64>, Error> {
        self.change(|database| {
            let mut cells = vec![worker.into()];
            cells.extend(key(ticket));
            let rows = database.query(
                "UPDATE assignments SET attempt = attempt + 1, worker = $1 WHERE experiment = $2 \
                 AND verification = $3 AND arm = $4 AND number = $5 RETURNING attempt",
                &cells,
            )?;
            Ok(rows.first().and_then(|row| row[0].int()))
        })
    }

    /// The present attempt, and who makes it.
    pub(crate) fn attempt(&self, ticket: Ticket) -> Result<Option<(i64, String)>, Error> {
        let rows = self.read(|database| {
            database.query(
                &format!("SELECT attempt, worker FROM assignments WHERE {KEY}"),
                &key(ticket),
            )
        })?;
        Ok(rows.first().and_then(|row| {
            let worker = row[1].text().unwrap_or_default();
            Some((row[0].int()?, worker.to_owned()))
        }))
    }

    /// Takes a result, if it is the present attempt's: whether it was.
    pub(crate) fn finish(
        &self,
        ticket: Ticket,
        attempt: i64,
        measured: EvaluationResult,
    ) -> Result<bool, Error> {
        self.change(|database| {
            let mut cells = key(ticket).to_vec();
            cells.push(attempt.into());
            let taken = database.execute(
                &format!("DELETE FROM assignments WHERE {KEY} AND attempt = $5"),
                &cells,
            )?;
            if taken == 0 {
                return Ok(false);
            }
            let id = ticket.experiment;
            if ticket.verification == 0 {
                let row = find_evaluation(database, id, ticket.number)?;
                let record: EvaluationRecord =
                    measured.record(ticket.number, row.record.configuration);
                write_end(database, id, &record)?;
                for (number, block) in (1..).zip(&record.blocks) {
                    insert_block(database, id, ticket.number, number, block)?;
                }
            } else {
                let run = measured.run(ticket.arm, ticket.number);
                database.execute(
                    "INSERT INTO runs (experiment, verification, arm, run, measured) VALUES ($1, $2, $3, $4, $5)",
                    &[
                        id.into(),
                        ticket.verification.into(),
                        ticket.arm.into(),
                        ticket.number.into(),
                        to_json(&run)?.into(),
                    ],
                )?;
            }
            Ok(true)
        })
    }

    /// Its user does not want an evaluation any more: it ends now, and what its worker brings will
    /// be refused.
    pub(crate) fn withdraw(&self, id: i64, number: usize) -> Result<(), Error> {
        let ticket = Ticket {
            experiment: id,
            verification: 0,
            arm: 0,
            number,
        };
        self.change(|database| {
            let gone = database.execute(
                &format!("DELETE FROM assignments WHERE {KEY}"),
                &key(ticket),
            )?;
            if gone == 0 {
                return Err(Error::Conflict(format!(
                    "evaluation {number} of experiment {id} is not running"
                )));
            }
            let mut record = find_evaluation(database, id, number)?.record;
            record.outcome = Outcome::Killed;
            record.reason = Some(BY_USER.to_owned());
            write_end(database, id, &record)
        })
    }

    /// Everything of an experiment that workers measure, or will, is lost, and measured again
    /// should it go on; runs of a verification are forgotten.
    pub(crate) fn withdraw_all(&self, id: i64, reason: &str) -> Result<(), Error> {
        self.change(|database| {
            let rows = database.query(
                "DELETE FROM assignments WHERE experiment = $1 RETURNING verification, number",
                &[id.into()],
            )?;
            for row in rows.iter().filter(|row| row[0].int() == Some(0)) {
                lose(database, id, usize_of(&row[1]), reason)?;
            }
            Ok(())
        })
    }

    /// What nobody has begun to measure, of the search or of a verification, is lost, and measured
    /// later.
    pub(crate) fn withdraw_unclaimed(&self, id: i64, verification: i64) -> Result<(), Error> {
        self.change(|database| {
            let rows = database.query(
                "DELETE FROM assignments WHERE experiment = $1 AND verification = $2 AND attempt = 0 RETURNING number",
                &[id.into(), verification.into()],
            )?;
            for row in rows.iter().filter(|_| verification == 0) {
                lose(database, id, usize_of(&row[0]), "nobody had begun to measure it")?;
            }
            Ok(())
        })
    }
}
