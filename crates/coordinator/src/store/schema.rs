//! The tables, and how a new store gets them.
//!
//! Columns are `BIGINT`, `DOUBLE PRECISION` and `TEXT`, which SQLite and PostgreSQL both have;
//! structure that is only read as a whole is JSON in a `TEXT`. Times are milliseconds since 1970,
//! for people to look at: no decision rests on them.

use std::time::{Duration, Instant};

use super::database::Database;
use crate::error::Error;

/// The version of [`SCHEMA`]. A released version is never edited, only followed by another.
pub(super) const VERSION: i64 = 7;

const SCHEMA: &str = "
CREATE TABLE experiments (
    id BIGINT PRIMARY KEY,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    wish TEXT,
    dir TEXT NOT NULL,
    source TEXT NOT NULL,
    spec TEXT NOT NULL,
    budget TEXT,
    prior TEXT,
    parent BIGINT,
    created_ms BIGINT NOT NULL,
    queued_ms BIGINT,
    message TEXT,
    verification BIGINT NOT NULL,
    plan TEXT,
    report TEXT NOT NULL,
    promotion TEXT,
    continuous TEXT,
    on_workers BIGINT NOT NULL DEFAULT 0,
    note TEXT
);
CREATE TABLE evaluations (
    experiment BIGINT NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    configuration TEXT NOT NULL,
    outcome TEXT NOT NULL,
    is_to_be_killed BIGINT NOT NULL,
    reason TEXT,
    failure TEXT,
    score DOUBLE PRECISION,
    measurement TEXT,
    started_ms BIGINT NOT NULL,
    duration_s DOUBLE PRECISION,
    own_cpu_s DOUBLE PRECISION,
    host TEXT,
    output TEXT,
    crash TEXT,
    note TEXT,
    begun TEXT,
    PRIMARY KEY (experiment, number)
);
CREATE TABLE blocks (
    experiment BIGINT NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    evaluation BIGINT NOT NULL,
    number BIGINT NOT NULL,
    block TEXT NOT NULL,
    PRIMARY KEY (experiment, evaluation, number)
);
CREATE TABLE runs (
    experiment BIGINT NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    verification BIGINT NOT NULL,
    arm BIGINT NOT NULL,
    run BIGINT NOT NULL,
    measured TEXT NOT NULL,
    PRIMARY KEY (experiment, verification, arm, run)
);
CREATE TABLE queue (
    experiment BIGINT NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    position BIGINT NOT NULL,
    configuration TEXT NOT NULL,
    PRIMARY KEY (experiment, position)
);
CREATE TABLE rounds (
    experiment BIGINT NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    round TEXT NOT NULL,
    PRIMARY KEY (experiment, number)
);
CREATE TABLE entries (
    experiment BIGINT NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    entry TEXT NOT NULL,
    PRIMARY KEY (experiment, number)
);
CREATE TABLE assignments (
    experiment BIGINT NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    verification BIGINT NOT NULL,
    arm BIGINT NOT NULL,
    number BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    worker TEXT,
    incumbent DOUBLE PRECISION,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (experiment, verification, arm, number)
);
CREATE TABLE requests (
    key TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    experiment BIGINT NOT NULL,
    created_ms BIGINT NOT NULL
);
CREATE TABLE counters (
    name TEXT PRIMARY KEY,
    value BIGINT NOT NULL
);
INSERT INTO counters (name, value) VALUES ('experiments', 0);
INSERT INTO counters (name, value) VALUES ('queue_is_paused', 0);
";

/// How long a store without tables is waited for while another process has its lock.
const LOCKED_MAX: Duration = Duration::from_secs(30);
/// How soon its lock is tried again.
const LOOK: Duration = Duration::from_millis(20);

/// Makes the tables of a new store. Whoever does so has the store's lock, so that of two that start
/// at once one waits for the other.
///
/// # Errors
/// The store is of another version, or another process keeps its lock.
pub(super) fn prepare(database: &mut Database) -> Result<(), Error> {
    let begun = Instant::now();
    loop {
        match version(database)? {
            VERSION => return Ok(()),
            0 => {}
            found => {
                let made_by = match found > VERSION {
                    true => "a later Slackline",
                    false => "a Slackline that was never released",
                };
                return Err(Error::Conflict(format!(
                    "the store has version {found}, made by {made_by}, and this Slackline knows only version {VERSION}: \
                     start the Slackline that made the store, or use another store"
                )));
            }
        }
        if database.try_lock()? {
            let made = make(database);
            database.unlock()?;
            return made;
        }
        if begun.elapsed() > LOCKED_MAX {
            return Err(Error::Conflict(
                "the store has no tables yet, and another process has its lock: end that one first"
                    .into(),
            ));
        }
        std::thread::sleep(LOOK);
    }
}

/// The version of the store; 0 where it has no tables yet.
fn version(database: &mut Database) -> Result<i64, Error> {
    if !database.has_table("schema_version")? {
        return Ok(0);
    }
    let rows = database.query("SELECT version FROM schema_version", &[])?;
    Ok(rows.first().and_then(|row| row[0].int()).unwrap_or(0))
}

/// All tables, or none.
fn make(database: &mut Database) -> Result<(), Error> {
    database.batch("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)")?;
    // Another one may have been here in between.
    if version(database)? == VERSION {
        return Ok(());
    }
    database.batch(&format!(
        "BEGIN; {SCHEMA} INSERT INTO schema_version (version) VALUES ({VERSION}); COMMIT;"
    ))
}

/// For tests: the store says that it is of another version.
#[cfg(test)]
pub(super) fn pretend(database: &mut Database, version: i64) -> Result<(), Error> {
    database
        .execute("UPDATE schema_version SET version = $1", &[version.into()])
        .map(drop)
}
