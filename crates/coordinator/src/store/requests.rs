//! Requests that may be sent again: each is carried out once.

use super::database::{Cell, Database};
use super::now_ms;
use crate::error::Error;

/// A request that makes one experiment, or enqueues one configuration, however often it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Once {
    /// The sender's key, unique among all senders.
    pub key: String,
    /// What was asked: another request must not have the same key.
    pub fingerprint: String,
}

/// A key is remembered for a day.
const ONCE_MS: i64 = 86_400_000;

/// The experiment that a request has made or changed already, inside a transaction. A key outlives
/// its experiment: a request that is sent again after a deletion must not carry out anything.
pub(super) fn made_before(database: &mut Database, once: &Once) -> Result<Option<i64>, Error> {
    database.execute(
        "DELETE FROM requests WHERE created_ms < $1",
        &[(now_ms() - ONCE_MS).into()],
    )?;
    let rows = database.query(
        "SELECT r.fingerprint, r.experiment, e.id FROM requests r \
         LEFT JOIN experiments e ON e.id = r.experiment WHERE r.key = $1",
        &[once.key.as_str().into()],
    )?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    if row[0].text() != Some(&once.fingerprint) {
        return Err(Error::Invalid(
            "this Idempotency-Key came with another request: use a new key".into(),
        ));
    }
    let id = row[1].int();
    match (id, row[2].int()) {
        (Some(id), None) => Err(Error::Gone(format!(
            "this request created or changed experiment {id}, which was deleted since: to send the request again, use a new \
             Idempotency-Key"
        ))),
        _ => Ok(id),
    }
}

/// Remembers that a request has made or changed an experiment, inside a transaction.
pub(super) fn remember(database: &mut Database, once: &Once, id: i64) -> Result<(), Error> {
    let cells: [Cell; 4] = [
        once.key.as_str().into(),
        once.fingerprint.as_str().into(),
        id.into(),
        now_ms().into(),
    ];
    let insert =
        "INSERT INTO requests (key, fingerprint, experiment, created_ms) VALUES ($1, $2, $3, $4)";
    database.execute(insert, &cells).map(drop)
}
