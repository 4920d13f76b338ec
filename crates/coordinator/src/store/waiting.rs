//! What experiments wait for, in words, and the end of a wait for a rollback.

use std::collections::BTreeMap;

use tuner::spec::TargetSpec;

use super::database::Database;
use super::experiments::{State, Summary};
use crate::error::Error;
use crate::promotion::shared_service;

/// Says of each queued experiment for which one it waits, and what lets it run where that one never
/// ends.
pub(super) fn say_what_waits(all: &mut [Summary], targets: &BTreeMap<i64, TargetSpec>) {
    let mut running = all.iter().filter(|it| it.state == State::Running);
    let measured = running.find(|it| !it.on_workers);
    let measured = measured.map(|it| (it.id, it.always_on, it.promoted));
    let Some((id, is_endless, is_promoted)) = measured else {
        return;
    };
    for waiting in all
        .iter_mut()
        .filter(|it| it.state == State::Queued && !it.on_workers)
    {
        let (one, other) = (targets.get(&waiting.id), targets.get(&id));
        let is_shared = one
            .zip(other)
            .and_then(|(one, other)| shared_service(one, other));
        waiting.waits = Some(match (is_endless, is_promoted && is_shared.is_some()) {
            (false, _) => format!("waits for experiment {id}"),
            (true, true) => endless(
                id,
                &format!("roll experiment {id} back: the rollback also pauses experiment {id}"),
            ),
            (true, false) => endless(id, &format!("pause experiment {id}")),
        });
    }
}

fn endless(id: i64, what: &str) -> String {
    format!(
        "waits for experiment {id}, which is in continuous mode and never ends. To let this experiment run, {what}"
    )
}

/// Why an experiment is not measured while another one's configuration is in force.
pub(crate) fn for_rollback(id: i64, shared: &str) -> String {
    format!(
        "{} ({shared}). Roll back experiment {id}, then resume this experiment",
        in_force(id)
    )
}

fn in_force(id: i64) -> String {
    format!("the configuration of experiment {id} is in force on this host")
}

/// Tells those that wait for a rollback of this experiment that it has happened, inside a
/// transaction.
pub(super) fn not_in_force(database: &mut Database, id: i64) -> Result<(), Error> {
    let begin = in_force(id);
    let message = format!(
        "the configuration of experiment {id} is not in force any more: resume this experiment"
    );
    database.execute(
        &format!(
            "UPDATE experiments SET message = $1 WHERE state = 'paused' AND substr(message, 1, {}) = $2",
            begin.len()
        ),
        &[message.as_str().into(), begin.as_str().into()],
    )?;
    Ok(())
}
