//! What experiments wait for, in words, and the end of a wait for a rollback.

use std::collections::BTreeMap;

use tuner::spec::TargetSpec;

use super::database::Database;
use super::row::{ExperimentSummary, State};
use crate::error::Error;
use crate::shared_service::shared_service;

/// What ends the wait for a paused queue.
const RESUME_QUEUE: &str = "until the queue is resumed: `slackline experiments resume-queue`";

/// Says of each queued experiment for which one it waits, and what lets it run where that one never
/// ends. A paused queue holds every experiment but those that watch what they have promoted.
pub(super) fn say_what_waits(
    all: &mut [ExperimentSummary],
    targets: &BTreeMap<i64, TargetSpec>,
    is_queue_paused: bool,
) {
    let held = |it: &&mut ExperimentSummary| is_queue_paused && !(it.always_on && it.promoted);
    for waiting in all.iter_mut().filter(held) {
        let what = match waiting.state {
            State::Queued => "waits",
            State::Running => "finishes its present evaluation, then waits",
            _ => continue,
        };
        waiting.waits = Some(format!("{what} {RESUME_QUEUE}"));
        // What it waited for before does not let it go on now.
        waiting.message = None;
    }
    let mut running = all.iter().filter(|it| it.state == State::Running);
    let measured = running.find(|it| !it.on_workers);
    let measured = measured.map(|it| (it.id, it.always_on, it.promoted));
    let Some((id, is_endless, is_promoted)) = measured else {
        return;
    };
    for waiting in all
        .iter_mut()
        .filter(|it| it.state == State::Queued && !it.on_workers && it.waits.is_none())
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

#[cfg(test)]
mod tests {
    use tuner::spec::ExperimentMode;

    use super::super::tests::{new_experiment, on_both};
    use super::super::{Promotion, State, Store};

    /// A server that is started again begins nothing while the queue is paused, and nothing says
    /// otherwise.
    #[test]
    fn what_a_paused_queue_holds_is_promised_nothing_after_a_restart() {
        on_both(|location| {
            let store = Store::open(location).unwrap();
            let [cut_off, running] = [(); 2].map(|()| store.create(&new_experiment()).unwrap());
            let mut watching = new_experiment();
            watching.spec.mode = ExperimentMode::Continuous;
            let watching = store.create(&watching).unwrap();
            let promotion = Promotion {
                is_complete: true,
                done: tuner::live::Changes {
                    changed: vec!["x = 1".into()],
                    ..tuner::live::Changes::default()
                },
                left: Vec::new(),
                at: jiff::Timestamp::now(),
            };
            store.set_promotion(watching, Some(&promotion)).unwrap();
            let promise = || Some("goes on after the server's next start".to_owned());
            store
                .transition(cut_off, |_| Ok((State::Queued, None, promise())))
                .unwrap();
            store
                .transition(running, |_| Ok((State::Running, None, None)))
                .unwrap();
            let stands = |id| {
                let all = store.experiments().unwrap();
                let it = all.into_iter().find(|it| it.id == id).unwrap();
                (it.message, it.waits)
            };
            assert_eq!(stands(cut_off).0, promise());
            store.set_queue_paused(true).unwrap();
            let until = "until the queue is resumed: `slackline experiments resume-queue`";
            assert_eq!(stands(cut_off), (None, Some(format!("waits {until}"))));
            assert_eq!(
                stands(running).1,
                Some(format!(
                    "finishes its present evaluation, then waits {until}"
                ))
            );
            // Its rounds go on.
            assert_eq!(
                stands(watching).1,
                Some(format!("waits for experiment {running}"))
            );
            store
                .transition(watching, |_| Ok((State::Running, None, None)))
                .unwrap();
            let told = store.recover().unwrap().join("\n");
            let of = |id: i64| {
                let mut lines = told.lines();
                let begin = format!("experiment {id} ");
                lines.find(|it| it.starts_with(&begin)).unwrap().to_owned()
            };
            assert!(
                of(running).ends_with("it waits until the queue is resumed"),
                "{told}"
            );
            assert!(of(watching).ends_with("it goes on"), "{told}");
            assert_eq!(stands(running), (None, Some(format!("waits {until}"))));
            // The server has started: what was to come then is over.
            store.set_queue_paused(false).unwrap();
            assert_eq!(stands(cut_off), (None, None));
        });
    }
}
