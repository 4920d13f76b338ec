//! The queue of experiments, and each experiment's queue of configurations to try by hand.

use bayes_opt::Configuration;

use super::creation::{Once, made_before, remember};
use super::database::Database;
use super::experiments::find;
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

impl Store {
    /// Puts a configuration at the end of those to be tried; one of a request that is sent again is
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

    /// The configurations to be tried, first one first.
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
