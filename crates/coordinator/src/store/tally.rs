//! Evaluations in numbers.

use super::database::Cell;
use super::{Store, name_of, usize_of};
use crate::error::Error;

/// Evaluations in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Those that are measured now.
    pub running: usize,
    /// Those that ended.
    pub ended: usize,
    /// How long those that ended took, together.
    pub measured_s: f64,
    /// How long one took on average, once one has ended.
    pub mean_s: Option<f64>,
    /// When the first one began, in milliseconds since 1970.
    pub first_ms: Option<i64>,
    /// When the last one began.
    pub last_ms: Option<i64>,
}

impl Store {
    /// How many evaluations of each experiment, by its number and name, had each outcome.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn outcomes(&self) -> Result<Vec<(i64, String, String, usize)>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT e.id, e.name, v.outcome, COUNT(*) FROM evaluations v JOIN experiments e ON e.id = v.experiment \
                 GROUP BY e.id, e.name, v.outcome ORDER BY e.id, v.outcome",
                &[],
            )
        })?;
        let text = |cell: &Cell| cell.text().unwrap_or_default().to_owned();
        let counted = rows.iter().map(|row| {
            let id = row[0].int().unwrap_or(0);
            (id, name_of(&row[1]), text(&row[2]), usize_of(&row[3]))
        });
        Ok(counted.collect())
    }

    /// How many evaluations of an experiment there are, and how long they take.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn tally(&self, id: i64) -> Result<Tally, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT outcome, COUNT(*), SUM(duration_s), MIN(NULLIF(started_ms, 0)), MAX(NULLIF(started_ms, 0)) FROM evaluations \
                 WHERE experiment = $1 GROUP BY outcome",
                &[id.into()],
            )
        })?;
        let mut tally = Tally::default();
        for row in &rows {
            let count = usize_of(&row[1]);
            if row[0].text() == Some("running") {
                tally.running = count;
            } else {
                tally.ended += count;
                tally.measured_s += row[2].real().unwrap_or(0.0);
            }
            let first = [tally.first_ms, row[3].int()];
            tally.first_ms = first.into_iter().flatten().min();
            tally.last_ms = tally.last_ms.max(row[4].int());
        }
        tally.mean_s = (tally.ended > 0).then(|| tally.measured_s / tally.ended as f64);
        Ok(tally)
    }

    /// Whether some evaluation was measured to its end, or until it was stopped early.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn has_measured(&self, id: i64) -> Result<bool, Error> {
        let some = self.read(|database| {
            database.query(
                "SELECT number FROM evaluations WHERE experiment = $1 AND measurement IS NOT NULL LIMIT 1",
                &[id.into()],
            )
        })?;
        Ok(!some.is_empty())
    }
}
