//! What experiments wait for, in words, and the end of a wait for a rollback.

use std::collections::BTreeMap;

use tuner::spec::TargetSpec;

use super::database::Database;
use super::experiments::{State, Summary};
use crate::error::Error;
use crate::promotion::shared_service;

/// Says of each queued experiment that it waits for one that never ends, and what lets it run.
pub(super) fn say_what_waits(all: &mut [Summary], targets: &BTreeMap<i64, TargetSpec>) {
    let mut running = all.iter().filter(|it| it.state == State::Running);
    let endless = running.find(|it| it.always_on && !it.on_workers);
    let Some((id, is_promoted)) = endless.map(|it| (it.id, it.promoted)) else {
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
        let what = match is_promoted && is_shared.is_some() {
            true => format!("roll experiment {id} back: the rollback also pauses experiment {id}"),
            false => format!("pause experiment {id}"),
        };
        waiting.waits = Some(format!(
            "waits for experiment {id}, which is in continuous mode and never ends. To let this experiment run, {what}"
        ));
    }
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
