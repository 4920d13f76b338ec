//! What `mode = "continuous"` keeps: its state, its rounds, and what happened.

use tuner::continuous::{Entry, Round, State};

use super::experiments::{Promotion, find};
use super::{Store, json, to_json};
use crate::error::Error;

impl Store {
    /// The state of a continuous experiment, once it has one.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn continuous(&self, id: i64) -> Result<Option<State>, Error> {
        let rows = self.read(|database| {
            find(database, id)?;
            database.query(
                "SELECT continuous FROM experiments WHERE id = $1",
                &[id.into()],
            )
        })?;
        rows.first().map_or(Ok(None), |row| json(&row[0]))
    }

    /// Every round, in order.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn rounds(&self, id: i64) -> Result<Vec<Round>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT round FROM rounds WHERE experiment = $1 ORDER BY number",
                &[id.into()],
            )
        })?;
        rows.iter().map(|row| json(&row[0])).collect()
    }

    /// What happened last, newest first.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn entries(&self, id: i64, take: usize) -> Result<Vec<Entry>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT entry FROM entries WHERE experiment = $1 ORDER BY number DESC LIMIT $2",
                &[id.into(), take.into()],
            )
        })?;
        rows.iter().map(|row| json(&row[0])).collect()
    }

    /// One step of a continuous experiment, whole or not at all. `promotion` is what of it is in force, where that changes.
    pub(crate) fn keep_continuous(
        &self,
        id: i64,
        state: &State,
        round: Option<&Round>,
        entries: &[Entry],
        promotion: Option<Option<&Promotion>>,
    ) -> Result<(), Error> {
        let state = to_json(state)?;
        self.change(|database| {
            database.execute(
                "UPDATE experiments SET continuous = $1 WHERE id = $2",
                &[state.as_str().into(), id.into()],
            )?;
            if let Some(round) = round {
                database.execute(
                    "INSERT INTO rounds (experiment, number, round) VALUES ($1, $2, $3)",
                    &[id.into(), round.number.into(), to_json(round)?.into()],
                )?;
            }
            for entry in entries {
                database.execute(
                    "INSERT INTO entries (experiment, number, entry) \
                     SELECT $1, COALESCE(MAX(number), 0) + 1, $2 FROM entries WHERE experiment = $3",
                    &[id.into(), to_json(entry)?.into(), id.into()],
                )?;
            }
            if let Some(promotion) = promotion {
                database.execute(
                    "UPDATE experiments SET promotion = $1 WHERE id = $2",
                    &[promotion.map(to_json).transpose()?.into(), id.into()],
                )?;
            }
            Ok(())
        })
    }
}
