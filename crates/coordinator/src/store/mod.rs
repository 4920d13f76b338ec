//! Experiments on disk: every change of an experiment or an evaluation is a committed row before it
//! is acted on.
//!
//! ```
//! use coordinator::store::{Location, Store};
//! # let dir = tempfile::tempdir()?;
//! let store = Store::open(&Location::parse(&dir.path().join("slackline.db").display().to_string()))?;
//! assert!(store.try_lock()?);
//! assert!(store.experiments()?.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod assignments;
mod continuous;
mod creation;
mod database;
mod entries;
mod evaluations;
mod experiments;
mod promotion;
mod queue;
mod recovery;
mod requests;
mod row;
mod schema;
mod tally;
#[cfg(test)]
mod tests;
mod waiting;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

pub use assignments::Assigned;
pub use continuous::{ContinuousStanding, Moment};
pub(crate) use creation::Elsewhere;
pub use creation::NewExperiment;
pub use database::Location;
use database::{Cell, Database};
pub use evaluations::{ChartPoint, EvaluationRow, RunningEvaluation};
pub use promotion::Promotion;
pub use requests::Once;
pub use row::{ExperimentRow, ExperimentSummary, State, UserRequest};
pub(crate) use row::{refused, unfinished};
pub use tally::Tally;
use tuner::spec::Masks;
pub(crate) use waiting::for_rollback;

use crate::error::Error;
use crate::lock::lock;

/// An open store.
pub struct Store {
    location: Location,
    database: Mutex<Database>,
    /// The lock was taken, so a new connection must take it again.
    is_locked: AtomicBool,
    /// Counts changes, for whoever shows them.
    revision: AtomicU64,
}

impl Store {
    /// Opens it, brings its tables to the present version.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Corrupt`]; [`Error::Conflict`] for a store of a later
    /// version.
    pub fn open(location: &Location) -> Result<Self, Error> {
        let mut database = Database::open(location)?;
        schema::prepare(&mut database)?;
        Ok(Self {
            location: location.clone(),
            database: Mutex::new(database),
            is_locked: AtomicBool::new(false),
            revision: AtomicU64::new(0),
        })
    }

    /// Where it is.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Takes the lock that admits one coordinator to a store; `false` while another one has it.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn try_lock(&self) -> Result<bool, Error> {
        let is_ours = self.connection()?.try_lock()?;
        self.is_locked.store(is_ours, Ordering::Relaxed);
        Ok(is_ours)
    }

    /// The process that has the lock, where the kernel of this host names it.
    pub(crate) fn lock_holder(&self) -> Option<u32> {
        self.connection().ok()?.lock_holder()
    }

    /// An error if what is written now would be lost: the database's file was moved away or
    /// replaced.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn check_in_place(&self) -> Result<(), Error> {
        self.connection()?.check_in_place()
    }

    /// Grows with every change.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed)
    }

    /// Something changed that is not in the store, such as the progress of a verification.
    pub(crate) fn touch(&self) {
        self.revision.fetch_add(1, Ordering::Relaxed);
    }

    /// The connection; a new one where the server had closed it.
    fn connection(&self) -> Result<MutexGuard<'_, Database>, Error> {
        let mut database = lock(&self.database);
        if database.is_closed() {
            let mut fresh = Database::open(&self.location)?;
            // The lock went with the connection; whoever has taken it since is the coordinator now.
            if self.is_locked.load(Ordering::Relaxed) && !fresh.try_lock()? {
                return Err(Error::Superseded);
            }
            *database = fresh;
        }
        Ok(database)
    }

    /// Reads in one transaction, whose statements all see the same state.
    fn read<T>(&self, work: impl FnOnce(&mut Database) -> Result<T, Error>) -> Result<T, Error> {
        let mut database = self.connection()?;
        database.begin_reading()?;
        let read = work(&mut database);
        let ended = database.batch("ROLLBACK");
        let read = read?;
        ended.map(|()| read)
    }

    /// Changes in one transaction: whole or not at all. An error of the commit itself leaves it
    /// open which; whoever gets it reads what is there before going on.
    fn change<T>(&self, work: impl FnOnce(&mut Database) -> Result<T, Error>) -> Result<T, Error> {
        let mut database = self.connection()?;
        database.check_in_place()?;
        database.batch("BEGIN")?;
        let changed = work(&mut database).and_then(|done| database.batch("COMMIT").map(|()| done));
        if changed.is_err() {
            // Where the connection is gone, so is the transaction.
            let _ = database.batch("ROLLBACK");
        }
        drop(database);
        self.touch();
        changed
    }
}

/// JSON of a column.
fn json<T: serde::de::DeserializeOwned>(cell: &Cell) -> Result<T, Error> {
    let text = cell.text().unwrap_or("null");
    serde_json::from_str(text).map_err(|error| {
        Error::Corrupt(format!(
            "a column holds {:?}: {error}",
            text.chars().take(80).collect::<String>()
        ))
    })
}

/// JSON for a column.
fn to_json(value: &impl serde::Serialize) -> Result<String, Error> {
    serde_json::to_string(value)
        .map_err(|error| Error::Invalid(format!("cannot be written as JSON: {error}")))
}

/// Milliseconds since 1970, now.
pub(crate) fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// The name of an experiment, which whoever may look reads. An earlier Slackline kept it as it was
/// given.
fn name_of(cell: &Cell) -> String {
    Masks::ForReaders.line(cell.text().unwrap_or_default())
}

fn usize_of(cell: &Cell) -> usize {
    cell.int()
        .and_then(|value| usize::try_from(value).ok())
        .unwrap_or(0)
}
