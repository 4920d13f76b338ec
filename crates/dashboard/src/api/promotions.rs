//! What is in force on this host: by experiments of this server, and by commands.

use axum::Json;
use axum::extract::State;
use coordinator::{Coordinator, Error};
use jiff::Timestamp;
use serde::Serialize;
use tuner::promotions::PromotionRecord;

use super::Here;
use crate::reply::{Reply, blocking};

/// Every promotion in force on this host.
#[derive(Serialize)]
pub(crate) struct InForce {
    /// Those of this server. A rollback of the experiment takes one back.
    experiments: Vec<OfExperiment>,
    /// Those whose rollback could not restore everything.
    not_restored: Vec<NotRestored>,
    /// Those of `slackline tune --promote` and `slackline apply` with the server's state directory.
    /// `slackline promotions undo` takes one back.
    commands: Vec<OfCommand>,
}

#[derive(Serialize)]
struct NotRestored {
    id: i64,
    name: String,
    /// The knobs and files, with the reasons.
    what: Vec<String>,
}

#[derive(Serialize)]
struct OfExperiment {
    id: i64,
    name: String,
    at: Timestamp,
    /// False: it was interrupted, and what it has changed is not known.
    is_complete: bool,
    changed: Vec<String>,
}

/// A promotion that a command has made.
#[derive(Serialize)]
pub(crate) struct OfCommand {
    pub(crate) number: usize,
    /// The experiment's name.
    pub(crate) experiment: String,
    pub(crate) at: Timestamp,
    pub(crate) changed: Vec<String>,
}

impl From<PromotionRecord> for OfCommand {
    fn from(record: PromotionRecord) -> Self {
        Self {
            number: record.number,
            changed: record.changed(),
            experiment: record.experiment,
            at: record.at,
        }
    }
}

/// What commands have promoted with the server's state directory and is in force now.
pub(crate) fn of_commands(coordinator: &Coordinator) -> Result<Vec<OfCommand>, Error> {
    let roots = host::Roots::default();
    let records = tuner::promotions::list(coordinator.state_dir())?.into_iter();
    let in_force = records.filter(|record| record.is_in_force(&roots));
    Ok(in_force.map(OfCommand::from).collect())
}

pub(crate) async fn promotions(State(app): Here) -> Reply<InForce> {
    blocking(move || {
        let coordinator = &app.coordinator;
        let store = coordinator.store();
        let mut experiments = Vec::new();
        let mut not_restored = Vec::new();
        for summary in store.experiments()? {
            if !summary.not_restored.is_empty() {
                not_restored.push(NotRestored {
                    id: summary.id,
                    name: summary.name,
                    what: summary.not_restored,
                });
                continue;
            }
            if !summary.promoted || coordinator.is_rollback_untold(summary.id) {
                continue;
            }
            let promotion = store.experiment(summary.id)?.promotion;
            experiments.extend(promotion.map(|it| OfExperiment {
                id: summary.id,
                name: summary.name,
                at: it.at,
                is_complete: it.is_complete,
                changed: it.changed,
            }));
        }
        Ok(InForce {
            experiments,
            not_restored,
            commands: of_commands(coordinator)?,
        })
    })
    .await
    .map(Json)
}
