//! The queue of experiments, and each experiment's enqueued configurations.

use bayes_opt::Configuration;

use super::database::Database;
use super::requests::{Once, made_before, remember};
use super::row::{State, find};
use super::{Store, json, now_ms, to_json};
use crate::error::Error;

/// The place behind all that wait, inside a transaction: the time, and later than the last one's
/// whatever the clock says, so that a clock that was set back lets nobody overtake.
pub(super) fn end_of_queue(database: &mut Database) -> Result<i64, Error> {
    let rows = database.query(
        "SELECT MAX(queued_ms) FROM experiments WHERE state = 'queued'",
        &[],
    )?;
    let last = rows.first().and_then(|row| row[0].int());
    Ok(last.map_or_else(now_ms, |last| now_ms().max(last.saturating_add(1))))
}

/// Whether nothing new is begun, inside a transaction.
pub(super) fn is_queue_paused(database: &mut Database) -> Result<bool, Error> {
    let rows = database.query(
        "SELECT value FROM counters WHERE name = 'queue_is_paused'",
        &[],
    )?;
    Ok(rows.first().and_then(|row| row[0].int()) == Some(1))
}

impl State {
    /// What to do so that the experiment `id` measures what is enqueued; `None` where it does so by
    /// itself. `is_used_up`: its budget allows no further evaluation.
    #[must_use]
    pub fn until_enqueued(self, id: i64, is_used_up: bool) -> Option<String> {
        let is_active = matches!(self, Self::Queued | Self::Running);
        let state = self.with_verb();
        Some(match (is_active, is_used_up) {
            (true, false) => return None,
            (true, true) => {
                format!("experiment {id} has used up its budget: raise its budget")
            }
            (false, true) => {
                format!("experiment {id} {state}: raise its budget, then resume it")
            }
            (false, false) => format!("experiment {id} {state}: resume it"),
        })
    }
}

impl Store {
    /// Whether nothing new is begun until
    /// [`Coordinator::resume_queue`](crate::Coordinator::resume_queue).
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn is_queue_paused(&self) -> Result<bool, Error> {
        self.read(is_queue_paused)
    }

    pub(crate) fn set_queue_paused(&self, is_paused: bool) -> Result<(), Error> {
        self.change(|database| {
            database.execute(
                "UPDATE counters SET value = $1 WHERE name = 'queue_is_paused'",
                &[i64::from(is_paused).into()],
            )?;
            Ok(())
        })
    }

    /// Puts a configuration behind those that are enqueued; one of a request that is sent again is
    /// there already, or has been taken.
    pub(crate) fn enqueue(
        &self,
        id: i64,
        configuration: &Configuration,
        once: Option<&Once>,
    ) -> Result<(), Error> {
        let configuration = to_json(configuration)?;
        self.change(|database| {
            find(database, id)?;
            if let Some(once) = once {
                if made_before(database, once)?.is_some() {
                    return Ok(());
                }
                remember(database, once, id)?;
            }
            database.execute(
                "INSERT INTO queue (experiment, position, configuration) \
                 SELECT $1, COALESCE(MAX(position), 0) + 1, $2 FROM queue WHERE experiment = $3",
                &[id.into(), configuration.as_str().into(), id.into()],
            )?;
            Ok(())
        })
    }

    /// The enqueued configurations, first one first.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn queue(&self, id: i64) -> Result<Vec<Configuration>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT configuration FROM queue WHERE experiment = $1 ORDER BY position",
                &[id.into()],
            )
        })?;
        rows.iter().map(|row| json(&row[0])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::State;

    #[test]
    fn what_is_to_be_done_depends_on_the_state_and_the_budget() {
        for (state, is_used_up, expected) in [
            (State::Queued, false, None),
            (State::Running, false, None),
            (
                State::Running,
                true,
                Some("experiment 1 has used up its budget: raise its budget"),
            ),
            (
                State::Done,
                true,
                Some("experiment 1 is done: raise its budget, then resume it"),
            ),
            (
                State::Failed,
                false,
                Some("experiment 1 has failed: resume it"),
            ),
        ] {
            let said = state.until_enqueued(1, is_used_up);
            assert_eq!(said.as_deref(), expected, "{state}");
        }
    }
}
