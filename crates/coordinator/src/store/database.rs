//! SQLite and PostgreSQL behind one narrow door: statements with `$1, $2, …` in the order of their
//! first appearance (which both understand), four kinds of values, and the lock that admits one
//! coordinator to a store.
//!
//! Synchronous on purpose: one thread measures, and nothing is done before its row is committed, so
//! there is nothing to wait for meanwhile.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fs::File;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use rusqlite::types::{ToSqlOutput, ValueRef};

use crate::error::Error;

/// Key of PostgreSQL's advisory lock, in the database's own name space: "slacklin" in ASCII.
const LOCK_KEY: i64 = 0x736c_6163_6b6c_696e;

/// How long a statement waits for somebody who holds SQLite's own lock, such as a backup.
const BUSY_WAIT: Duration = Duration::from_secs(5);

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A file.
    Sqlite(PathBuf),
    /// `postgresql://user@host/database`, or any other connection string of libpq. Without TLS: use
    /// a local socket, loopback or a tunnel.
    Postgres(String),
}

impl Location {
    /// A URL of PostgreSQL, or else a file.
    pub fn parse(text: &str) -> Self {
        if text.starts_with("postgresql://") || text.starts_with("postgres://") {
            Self::Postgres(text.to_owned())
        } else {
            Self::Sqlite(PathBuf::from(text))
        }
    }
}

impl std::fmt::Display for Location {
    /// Without a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sqlite(path) => path.display().fmt(f),
            // A password may stand before the host or among the parameters (libpq, "Connection
            // URIs").
            Self::Postgres(url) => f.write_str(&http_client::redact(url)),
        }
    }
}

/// A value in a row or a statement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    Null,
    Int(i64),
    Real(f64),
    Text(String),
}

impl Cell {
    pub(crate) fn int(&self) -> Option<i64> {
        match self {
            Self::Int(value) => Some(*value),
            _ => None,
        }
    }

    pub(crate) fn real(&self) -> Option<f64> {
        match self {
            Self::Real(value) => Some(*value),
            Self::Int(value) => Some(*value as f64),
            _ => None,
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(value) => Some(value),
            _ => None,
        }
    }
}

impl From<i64> for Cell {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}
impl From<usize> for Cell {
    fn from(value: usize) -> Self {
        Self::Int(i64::try_from(value).unwrap_or(i64::MAX))
    }
}
impl From<f64> for Cell {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}
impl From<&str> for Cell {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}
impl From<String> for Cell {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}
impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl rusqlite::ToSql for Cell {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Int(value) => ValueRef::Integer(*value),
            Self::Real(value) => ValueRef::Real(*value),
            Self::Text(value) => ValueRef::Text(value.as_bytes()),
        }))
    }
}

type Boxed = Box<dyn std::error::Error + Sync + Send>;

impl ToSql for Cell {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut postgres::types::private::BytesMut,
    ) -> Result<IsNull, Boxed> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Int(value) => value.to_sql(ty, out),
            Self::Real(value) => value.to_sql(ty, out),
            Self::Text(value) => value.to_sql(ty, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Cell {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Boxed> {
        Ok(match *ty {
            Type::INT8 => Self::Int(i64::from_sql(ty, raw)?),
            Type::FLOAT8 => Self::Real(f64::from_sql(ty, raw)?),
            _ => Self::Text(String::from_sql(ty, raw)?),
        })
    }

    fn from_sql_null(_: &Type) -> Result<Self, Boxed> {
        Ok(Self::Null)
    }

    fn accepts(ty: &Type) -> bool {
        matches!(*ty, Type::INT8 | Type::FLOAT8 | Type::TEXT)
    }
}

/// An open connection, which holds the lock once it has been taken.
pub(crate) enum Database {
    Sqlite {
        connection: rusqlite::Connection,
        path: PathBuf,
        /// The files that the connection writes to. One that is moved away or replaced is written
        /// to all the same, and lost.
        files: OpenFiles,
        /// The file whose lock is ours.
        lock: Option<File>,
    },
    Postgres {
        client: postgres::Client,
        name: String,
    },
}

impl Database {
    /// Opens it; makes the file where there is none.
    pub(crate) fn open(location: &Location) -> Result<Self, Error> {
        match location {
            Location::Sqlite(path) => {
                // SQLite does not say why a file cannot be opened. Its own files take the mode of
                // this one.
                open_private(path)
                    .map_err(|error| Error::Unavailable(format!("{}: {error}", path.display())))?;
                for suffix in ["-wal", "-shm"] {
                    make_private(&with_suffix(path, suffix));
                }
                let failed = |error: rusqlite::Error| sqlite_error(path, &error);
                let connection = rusqlite::Connection::open(path).map_err(failed)?;
                connection.busy_timeout(BUSY_WAIT).map_err(failed)?;
                use_wal(&connection).map_err(failed)?;
                // FULL: what was committed is there after a power cut as well.
                connection
                    .execute_batch("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;")
                    .map_err(failed)?;
                Ok(Self::Sqlite {
                    connection,
                    path: path.clone(),
                    files: OpenFiles::of(path),
                    lock: None,
                })
            }
            Location::Postgres(url) => {
                let name = location.to_string();
                let client = postgres::Client::connect(url, postgres::NoTls)
                    .map_err(|error| postgres_error(&name, &error))?;
                Ok(Self::Postgres { client, name })
            }
        }
    }

    /// The process that has the lock, where the kernel names it.
    pub(crate) fn lock_holder(&self) -> Option<u32> {
        match self {
            Self::Sqlite { path, .. } => {
                host::lock_holder(&File::open(with_suffix(path, ".lock")).ok()?)
            }
            Self::Postgres { .. } => None,
        }
    }

    /// Takes the lock that admits one coordinator; `false` where another one has it. The kernel or
    /// the server frees it when its holder is gone.
    pub(crate) fn try_lock(&mut self) -> Result<bool, Error> {
        match self {
            Self::Sqlite { path, lock, .. } => {
                if lock.is_some() {
                    return Ok(true);
                }
                let file = with_suffix(path, ".lock");
                let failed = |error: std::io::Error| {
                    Error::Unavailable(format!("{}: {error}", file.display()))
                };
                let opened = open_private(&file).map_err(failed)?;
                match rustix::fs::flock(
                    &opened,
                    rustix::fs::FlockOperation::NonBlockingLockExclusive,
                ) {
                    Ok(()) => {
                        *lock = Some(opened);
                        Ok(true)
                    }
                    Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
                    Err(error) => Err(failed(error.into())),
                }
            }
            Self::Postgres { .. } => {
                let rows = self.query(
                    "SELECT CASE WHEN pg_try_advisory_lock($1) THEN 1::BIGINT ELSE 0::BIGINT END",
                    &[LOCK_KEY.into()],
                )?;
                Ok(rows.first().and_then(|row| row[0].int()) == Some(1))
            }
        }
    }

    /// Gives the lock back.
    pub(crate) fn unlock(&mut self) -> Result<(), Error> {
        match self {
            Self::Sqlite { lock, .. } => {
                *lock = None;
                Ok(())
            }
            Self::Postgres { .. } => self
                .query(
                    "SELECT CASE WHEN pg_advisory_unlock($1) THEN 1::BIGINT ELSE 0::BIGINT END",
                    &[LOCK_KEY.into()],
                )
                .map(drop),
        }
    }

    /// Whether there is a table of that name.
    pub(crate) fn has_table(&mut self, name: &str) -> Result<bool, Error> {
        let asked = match self {
            Self::Sqlite { .. } => {
                "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = $1"
            }
            Self::Postgres { .. } => {
                "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = current_schema() AND table_name = $1"
            }
        };
        let rows = self.query(asked, &[name.into()])?;
        Ok(rows.first().and_then(|row| row[0].int()) > Some(0))
    }

    /// An error if what is written now would be lost, because a file of the database is not where
    /// it was any more.
    pub(crate) fn check_in_place(&mut self) -> Result<(), Error> {
        match self {
            Self::Sqlite { files, path, .. } => files.check(path),
            Self::Postgres { .. } => Ok(()),
        }
    }

    /// The server has gone away: a new connection is needed.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::Sqlite { .. } => false,
            Self::Postgres { client, .. } => client.is_closed(),
        }
    }

    /// Runs one statement and returns how many rows it changed.
    pub(crate) fn execute(&mut self, sql: &str, cells: &[Cell]) -> Result<u64, Error> {
        match self {
            Self::Sqlite {
                connection, path, ..
            } => connection
                .prepare_cached(sql)
                .and_then(|mut statement| statement.execute(rusqlite::params_from_iter(cells)))
                .map(|rows| rows as u64)
                .map_err(|error| sqlite_error(path, &error)),
            Self::Postgres { client, name } => client
                .execute(sql, &borrowed(cells))
                .map_err(|error| postgres_error(name, &error)),
        }
    }

    /// Begins a transaction whose statements all see the same state, whatever others commit.
    /// SQLite's always do (sqlite.org/isolation.html), PostgreSQL's at this level.
    pub(crate) fn begin_reading(&mut self) -> Result<(), Error> {
        self.batch(match self {
            Self::Sqlite { .. } => "BEGIN",
            Self::Postgres { .. } => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        })
    }

    /// Runs several statements without values.
    pub(crate) fn batch(&mut self, sql: &str) -> Result<(), Error> {
        match self {
            Self::Sqlite {
                connection, path, ..
            } => connection
                .execute_batch(sql)
                .map_err(|error| sqlite_error(path, &error)),
            Self::Postgres { client, name } => client
                .batch_execute(sql)
                .map_err(|error| postgres_error(name, &error)),
        }
    }

    /// The rows of one statement.
    pub(crate) fn query(&mut self, sql: &str, cells: &[Cell]) -> Result<Vec<Vec<Cell>>, Error> {
        match self {
            Self::Sqlite {
                connection, path, ..
            } => {
                let read = || -> rusqlite::Result<Vec<Vec<Cell>>> {
                    let mut statement = connection.prepare_cached(sql)?;
                    let columns = statement.column_count();
                    let mut rows = statement.query(rusqlite::params_from_iter(cells))?;
                    let mut found = Vec::new();
                    while let Some(row) = rows.next()? {
                        let cell = |index| row.get_ref(index).map(of_sqlite);
                        found.push((0..columns).map(cell).collect::<rusqlite::Result<_>>()?);
                    }
                    Ok(found)
                };
                read().map_err(|error| sqlite_error(path, &error))
            }
            Self::Postgres { client, name } => {
                let rows = client
                    .query(sql, &borrowed(cells))
                    .map_err(|error| postgres_error(name, &error))?;
                rows.iter()
                    .map(|row| (0..row.len()).map(|index| row.try_get(index)).collect())
                    .collect::<Result<_, _>>()
                    .map_err(|error| postgres_error(name, &error))
            }
        }
    }
}

/// Which files a connection has open: by device and inode, which a file keeps when it is moved.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles(BTreeMap<PathBuf, (u64, u64)>);

impl OpenFiles {
    /// The database's file. SQLite makes the two beside it when it first needs them, and has them
    /// until it closes the database.
    fn of(path: &Path) -> Self {
        let mut files = Self::default();
        let _ = files.check(path);
        files
    }

    fn check(&mut self, path: &Path) -> Result<(), Error> {
        for suffix in ["", "-wal", "-shm"] {
            let file = with_suffix(path, suffix);
            let now = std::fs::metadata(&file).map(|now| (now.dev(), now.ino()));
            let what = match (now, self.0.get(&file)) {
                (Ok(now), None) => {
                    self.0.insert(file, now);
                    continue;
                }
                (Ok(now), Some(then)) if now == *then => continue,
                (Err(_), None) => continue,
                (Ok(_), Some(_)) => "was replaced",
                (Err(error), Some(_)) if error.kind() == std::io::ErrorKind::NotFound => {
                    "was moved away or removed"
                }
                // Nobody can tell.
                (Err(_), Some(_)) => continue,
            };
            return Err(Error::Unavailable(format!(
                "{} {what}. The server stops writing, because the writes would be lost. Put the file back, or restart the server to \
                 use the file that is there now",
                file.display()
            )));
        }
        Ok(())
    }
}

/// Has a database write ahead. SQLite does not wait for another connection that does so at the same
/// moment (`SQLITE_BUSY`, "the busy handler is not invoked").
fn use_wal(connection: &rusqlite::Connection) -> rusqlite::Result<()> {
    let begun = Instant::now();
    loop {
        let used = connection.execute_batch("PRAGMA journal_mode = WAL;");
        let is_busy = used.as_ref().is_err_and(|error| {
            error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
        });
        if !is_busy || begun.elapsed() > BUSY_WAIT {
            return used;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(suffix);
    name.into()
}

/// Opens a file, or makes it; only its owner may read it then.
fn open_private(path: &Path) -> std::io::Result<File> {
    let file = File::options()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)?;
    make_private(path);
    Ok(file)
}

/// A file of an earlier version could be read by others. Where it is another user's, its owner
/// decides.
fn make_private(path: &Path) {
    let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600));
}

fn borrowed(cells: &[Cell]) -> Vec<&(dyn ToSql + Sync)> {
    cells
        .iter()
        .map(|cell| cell as &(dyn ToSql + Sync))
        .collect()
}

fn of_sqlite(value: ValueRef<'_>) -> Cell {
    match value {
        ValueRef::Null => Cell::Null,
        ValueRef::Integer(value) => Cell::Int(value),
        ValueRef::Real(value) => Cell::Real(value),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            Cell::Text(String::from_utf8_lossy(bytes).into_owned())
        }
    }
}

fn sqlite_error(path: &Path, error: &rusqlite::Error) -> Error {
    let message = format!("{}: {error}", path.display());
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseCorrupt | rusqlite::ErrorCode::NotADatabase) => {
            Error::Corrupt(format!(
                "{message}: move the file away and start again. `sqlite3 OLD .recover | sqlite3 NEW` may save what is in it"
            ))
        }
        _ => Error::Unavailable(message),
    }
}

fn postgres_error(name: &str, error: &postgres::Error) -> Error {
    // The client's own text stops at "db error"; the server's is in the source.
    let source = error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string);
    Error::Unavailable(format!("{name}: {source}"))
}

#[cfg(test)]
mod tests {
    use super::{Database, Location};

    #[test]
    fn a_file_that_cannot_be_opened_is_said_why_and_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("absent/slackline.db");
        let Err(error) = Database::open(&Location::Sqlite(path.clone())) else {
            panic!("it was opened");
        };
        assert_eq!(
            error.to_string(),
            format!(
                "the store cannot be used: {}: No such file or directory (os error 2)",
                path.display()
            )
        );
    }

    #[test]
    fn a_store_is_named_without_its_password() {
        for (url, name) in [
            ("postgres://me:secret@h/d", "postgres://…@h/d"),
            // What is not escaped as it should be is no less secret.
            ("postgres://me:sec@ret@h/d", "postgres://…@h/d"),
            (
                "postgresql://h/d?password=sec@ret",
                "postgresql://h/d?password=…",
            ),
            (
                "postgresql:///d?host=/run&password=secret&user=me",
                "postgresql:///d?host=/run&password=…&user=me",
            ),
            (
                "postgresql://h/d?password=secret",
                "postgresql://h/d?password=…",
            ),
            ("postgresql://h/d", "postgresql://h/d"),
        ] {
            assert_eq!(Location::parse(url).to_string(), name);
        }
    }
}
