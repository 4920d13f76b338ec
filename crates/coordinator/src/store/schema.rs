//! The tables, and how an older store becomes a present one.
//!
//! Columns are `BIGINT`, `DOUBLE PRECISION` and `TEXT`, which SQLite and PostgreSQL both have;
//! structure that is only read as a whole is JSON in a `TEXT`. Times are milliseconds since 1970,
//! for people to look at: no decision rests on them.

use std::time::{Duration, Instant};

use super::database::Database;
use crate::error::Error;

/// What workers on other hosts measure: version 3 of the schema.
const ASSIGNMENTS: &str = "
ALTER TABLE experiments ADD COLUMN on_workers BIGINT NOT NULL DEFAULT 0;
ALTER TABLE evaluations ADD COLUMN host TEXT;
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
";

/// One step a version; what has been released is never edited, only followed by another.
const MIGRATIONS: &[&str] = &[
    "
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
    promotion TEXT
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
CREATE TABLE counters (
    name TEXT PRIMARY KEY,
    value BIGINT NOT NULL
);
INSERT INTO counters (name, value) VALUES ('experiments', 0);
",
    "
ALTER TABLE experiments ADD COLUMN continuous TEXT;
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
",
    ASSIGNMENTS,
    "
ALTER TABLE evaluations ADD COLUMN output TEXT;
CREATE TABLE requests (
    key TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    experiment BIGINT NOT NULL,
    created_ms BIGINT NOT NULL
);
INSERT INTO counters (name, value) VALUES ('queue_is_paused', 0);
",
    // How an evaluation crashed.
    "ALTER TABLE evaluations ADD COLUMN crash TEXT;",
    // What people write.
    "
ALTER TABLE experiments ADD COLUMN note TEXT;
ALTER TABLE evaluations ADD COLUMN note TEXT;
",
    // Which control an evaluation had, and how it warmed up.
    "ALTER TABLE evaluations ADD COLUMN begun TEXT;",
];

/// How long a store of an earlier version is waited for while a coordinator has it.
const LOCKED_MAX: Duration = Duration::from_secs(30);
/// How soon its lock is tried again.
const LOOK: Duration = Duration::from_millis(20);

/// Brings the store to the present version. Whoever does so has the store's lock, so that of two
/// that start at once one waits for the other, and none changes the tables of one that runs.
pub(super) fn migrate(database: &mut Database) -> Result<(), Error> {
    let present = present();
    let begun = Instant::now();
    loop {
        let found = version(database)?;
        if found == present {
            return Ok(());
        }
        if found > present {
            return Err(Error::Conflict(format!(
                "the store is of version {found}, made by a later Slackline; this one knows versions up to {present}"
            )));
        }
        if database.try_lock()? {
            let migrated = steps(database);
            database.unlock()?;
            return migrated;
        }
        if begun.elapsed() > LOCKED_MAX {
            return Err(Error::Conflict(format!(
                "the store is of version {found}, and an earlier Slackline uses it: end that one first; this one brings \
                 the store to version {present}"
            )));
        }
        std::thread::sleep(LOOK);
    }
}

/// The version that this Slackline knows.
pub(super) fn present() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// The version of the store; 0 where it has no tables yet.
fn version(database: &mut Database) -> Result<i64, Error> {
    if !database.has_table("schema_version")? {
        return Ok(0);
    }
    let rows = database.query("SELECT version FROM schema_version", &[])?;
    Ok(rows.first().and_then(|row| row[0].int()).unwrap_or(0))
}

/// Every step that the store has not had yet, each whole or not at all.
fn steps(database: &mut Database) -> Result<(), Error> {
    database.batch("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)")?;
    // Another one may have been here in between.
    let found = version(database)?;
    for (version, step) in (1_i64..).zip(MIGRATIONS) {
        if version <= found {
            continue;
        }
        database.batch(&format!(
            "BEGIN; {step} DELETE FROM schema_version; INSERT INTO schema_version (version) VALUES ({version}); COMMIT;"
        ))?;
    }
    Ok(())
}

/// For tests: the store says that it is of another version.
#[cfg(test)]
pub(super) fn pretend(database: &mut Database, version: i64) -> Result<(), Error> {
    database
        .execute("UPDATE schema_version SET version = $1", &[version.into()])
        .map(drop)
}
