//! What a restart makes of experiments and evaluations that ran.

use tuner::experiment::BY_USER;
use tuner::spec::{ExperimentMode, Spec};

use super::database::{Cell, Database};
use super::queue::is_queue_paused;
use super::row::State;
use super::{Store, json, name_of};
use crate::error::Error;

impl Store {
    /// After a restart: what ran here is not running any more (what workers measure is).
    /// Evaluations are `lost`, or killed where that was wanted; experiments wait for their turn, or
    /// are what they were to become.
    pub(crate) fn recover(&self) -> Result<Vec<String>, Error> {
        self.change(|database| {
            let recovered = to_recover(database)?;
            database.execute(
                "UPDATE evaluations SET outcome = 'killed', reason = $1 \
                   WHERE outcome = 'running' AND is_to_be_killed = 1 \
                   AND experiment IN (SELECT id FROM experiments WHERE on_workers = 0)",
                &[BY_USER.into()],
            )?;
            database.batch(
                "UPDATE evaluations SET outcome = 'failed', failure = 'lost', \
                   reason = 'the coordinator ended while it was measured' WHERE outcome = 'running' \
                   AND experiment IN (SELECT id FROM experiments WHERE on_workers = 0);
                 UPDATE experiments SET state = 'stopped', wish = NULL \
                   WHERE state = 'running' AND wish = 'stop' AND on_workers = 0;
                 UPDATE experiments SET state = 'paused', wish = NULL \
                   WHERE state = 'running' AND wish = 'pause' AND on_workers = 0;",
            )?;
            // Before all others: what was begun is ended.
            database.execute(
                "UPDATE experiments SET state = $1, queued_ms = 0 WHERE state = 'running' AND on_workers = 0",
                &[State::Queued.name().into()],
            )?;
            // What they waited for has happened, or is found out again.
            database.execute(
                "UPDATE experiments SET message = NULL WHERE state = $1 AND on_workers = 0",
                &[State::Queued.name().into()],
            )?;
            Ok(recovered)
        })
    }
}

/// What ran when the last coordinator ended, and what becomes of it, in words.
fn to_recover(database: &mut Database) -> Result<Vec<String>, Error> {
    let is_paused = is_queue_paused(database)?;
    let running = database.query(
        "SELECT id, name, wish, spec, promotion FROM experiments WHERE state = 'running' AND on_workers = 0 ORDER BY id",
        &[],
    )?;
    let lost = database.query(
        "SELECT experiment, number FROM evaluations WHERE outcome = 'running' \
         AND experiment IN (SELECT id FROM experiments WHERE on_workers = 0) ORDER BY experiment, number",
        &[],
    )?;
    // A paused queue does not hold what watches its promotion.
    let is_watched = |row: &[Cell]| {
        let spec = json::<Spec>(&row[3]);
        spec.is_ok_and(|spec| spec.mode == ExperimentMode::Continuous) && row[4].text().is_some()
    };
    let each = running.iter().map(|row| {
        let id = row[0].int().unwrap_or(0);
        let then = match row[2].text() {
            Some("stop") => "it is stopped, as a user wished",
            Some("pause") => "it is paused, as a user wished",
            _ if is_paused && !is_watched(row) => "it waits until the queue is resumed",
            _ => "it goes on",
        };
        let evaluation = lost.iter().find(|row| row[0].int() == Some(id));
        let evaluation = evaluation.and_then(|row| row[1].int());
        let evaluation = evaluation.map_or_else(String::new, |number| {
            format!("; evaluation {number} was interrupted")
        });
        let name = name_of(&row[1]);
        format!(
            "experiment {id} ({name}) was running when the last server ended: {then}{evaluation}"
        )
    });
    Ok(each.collect())
}
