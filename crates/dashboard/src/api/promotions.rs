//! What is in force on this host: by experiments of this server, and by commands.

use axum::extract::State;
use axum::{Extension, Json};
use bayes_opt::Configuration;
use coordinator::store::{ExperimentRow, Store};
use coordinator::{Coordinator, Error};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use tuner::live::Changes;
use tuner::promotions::PromotionRecord;
use tuner::spec::ExperimentMode;

use crate::app::{Here, Who};
use crate::audit::Entry;
use crate::readers;
use crate::reply::{Reply, blocking};
use crate::role::Role;

/// Every promotion in force on this host.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Promotions")]
pub(crate) struct InForce {
    /// Promotions by experiments of this server. A rollback of the experiment undoes one.
    experiments: Vec<OfExperiment>,
    /// Experiments whose rollback could not restore everything.
    not_restored: Vec<NotRestored>,
    /// Promotions by `slackline tune --promote` and `slackline apply` with the server's state
    /// directory, and by experiments that the database has lost. `slackline promotions undo` undoes
    /// one.
    commands: Vec<OfCommand>,
}

/// An experiment whose rollback could not restore everything.
#[derive(Serialize, JsonSchema)]
struct NotRestored {
    /// Number of the experiment.
    id: i64,
    /// Name of the experiment.
    name: String,
    /// The knobs and files that could not be restored, with the reasons.
    what: Vec<String>,
}

/// A promotion by an experiment of this server.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PromotionByExperiment")]
struct OfExperiment {
    /// Number of the experiment.
    id: i64,
    /// Name of the experiment.
    name: String,
    /// When the promotion was, in UTC.
    #[schemars(with = "String")]
    at: Timestamp,
    /// `false`: the promotion was interrupted, so it is not known what it has changed.
    is_complete: bool,
    /// The configuration in force. `null` if the promotion was interrupted.
    configuration: Option<Configuration>,
    /// Who promoted the configuration. Missing for a token with the role read.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    #[serde(flatten)]
    done: Changes,
}

/// Who promotes in continuous mode.
pub(crate) const ITSELF: &str = "the experiment itself";

/// As many entries of the audit log are looked through for who promoted.
pub(crate) const ENTRIES_MAX: usize = 5000;

/// The configuration that an experiment has put in force.
pub(crate) fn configuration(
    store: &Store,
    row: &ExperimentRow,
) -> Result<Option<Configuration>, Error> {
    let is_known = row.promotion.as_ref().is_some_and(|it| it.is_complete);
    Ok(match row.spec.mode {
        _ if !is_known => None,
        ExperimentMode::Continuous => {
            let state = store.continuous(row.id)?;
            state
                .and_then(|state| state.promoted)
                .map(|it| it.configuration)
        }
        ExperimentMode::Once => row.report.winner().map(|arm| arm.configuration.clone()),
    })
}

/// Who promoted what an experiment has in force, by the entries of the audit log, newest first.
pub(crate) fn promoted_by(entries: &[Entry], row: &ExperimentRow) -> Option<String> {
    if row.spec.mode == ExperimentMode::Continuous {
        return Some(ITSELF.to_owned());
    }
    let mut promotions = entries.iter().filter(|it| {
        it.refusal.is_none() && it.action == "promote" && it.experiment == Some(row.id)
    });
    promotions.next().and_then(|entry| entry.who.clone())
}

/// A promotion by a command, or by an experiment that the database has lost.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PromotionByCommand")]
pub(crate) struct OfCommand {
    /// Number of the promotion, for `slackline promotions undo`.
    pub(crate) number: usize,
    /// Name of the experiment.
    pub(crate) experiment: String,
    /// The number that the lost experiment had in the database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lost: Option<i64>,
    /// When the promotion was, in UTC.
    #[schemars(with = "String")]
    pub(crate) at: Timestamp,
    /// The knobs and files that are in force, each with its value.
    pub(crate) changed: Vec<String>,
}

impl From<PromotionRecord> for OfCommand {
    fn from(record: PromotionRecord) -> Self {
        Self {
            number: record.number,
            lost: record.served.as_ref().map(|by| by.experiment),
            changed: record.changed(),
            experiment: record.experiment,
            at: record.at,
        }
    }
}

/// What somebody of that role sees of what commands have promoted.
pub(crate) fn commands(role: Role, all: Vec<OfCommand>) -> Vec<OfCommand> {
    let all = all.into_iter().map(|it| OfCommand {
        experiment: readers::line(role, &it.experiment),
        changed: readers::lines(role, it.changed),
        ..it
    });
    all.collect()
}

/// What commands, and experiments that the database has lost, have promoted with the server's state
/// directory and is in force now.
pub(crate) fn of_commands(coordinator: &Coordinator) -> Result<Vec<OfCommand>, Error> {
    let roots = host::Roots::default();
    let records = tuner::promotions::list(coordinator.state_dir())?.into_iter();
    let of_commands = records.filter(|it| it.served.is_none() && it.is_in_force(&roots));
    let in_force = of_commands.chain(coordinator.unknown_promotions()?);
    Ok(in_force.map(OfCommand::from).collect())
}

pub(crate) async fn promotions(State(app): Here, Extension(visitor): Who) -> Reply<InForce> {
    blocking(move || {
        let coordinator = &app.coordinator;
        let audit = app.audit.last(ENTRIES_MAX, None);
        let audit = audit.map_err(|error| Error::Unavailable(error.to_string()))?;
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
            let row = store.experiment(summary.id)?;
            let configuration = configuration(store, &row)?;
            let by = promoted_by(&audit.entries, &row).filter(|_| visitor.role == Role::Write);
            experiments.extend(row.promotion.map(|it| OfExperiment {
                configuration,
                by,
                id: summary.id,
                name: summary.name,
                at: it.at,
                is_complete: it.is_complete,
                done: it.done,
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
