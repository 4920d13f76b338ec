//! An experiment as the interface shows it.

use std::sync::Arc;

use axum::Json;
use bayes_opt::Configuration;
use coordinator::store::{ExperimentRow, ExperimentSummary, Moment, Store};
use coordinator::{Coordinator, Error, Progress};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tuner::spec::{Masks, Spec};

use super::path::id;
use crate::app::App;
use crate::reply::{Refusal, Reply, blocking};

/// An experiment without its evaluations and runs.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Experiment")]
pub(crate) struct Shown {
    #[serde(flatten)]
    pub(super) summary: ExperimentSummary,
    /// The directory on the server's host where relative paths of the specification start.
    dir: String,
    /// The text of the specification.
    source: String,
    /// The specification. A parameter's default is the control's value.
    #[schemars(with = "Spec")]
    spec: Value,
    /// The time limit for measuring, in minutes.
    wall_time_min: Option<f64>,
    /// A remark on a fork that shares no parameter with the other experiment.
    #[serde(skip_serializing_if = "Option::is_none")]
    remark: Option<&'static str>,
    /// For a fork: the number of the other experiment's evaluations from which the search starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    carried: Option<usize>,
    /// A note that a person has written about the experiment.
    note: Option<String>,
    /// The control's configuration.
    control: Configuration,
    /// What the model recommends, before verification.
    recommended: Option<tuner::report::Recommended>,
    /// What the verification has shown, as one word.
    finding: tuner::report::Finding,
    /// Why the verified winner does not have rank 1, if so. The measurements of the search decide
    /// the ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    winner_rank: Option<String>,
    /// The exact settings of the winner, ready to apply.
    settings: Vec<String>,
    /// The promotion that is in force, or the rest that its rollback could not restore.
    promotion: Option<coordinator::store::Promotion>,
    /// The enqueued configurations, in the order in which they will be measured.
    queue: Vec<Configuration>,
    /// The progress, if this experiment is being measured.
    progress: Option<Progress>,
    /// The state in `mode = "continuous"`.
    continuous: Option<tuner::continuous::ContinuousView>,
    /// The last entries of the experiment's history, newest first.
    entries: Vec<tuner::continuous::HistoryEntry>,
}

/// As many of the last entries of a continuous experiment are shown.
pub(crate) const ENTRIES: usize = 30;

/// How a continuous experiment stood at a moment; `None` as well for one whose specification does
/// not fit this host any more.
pub(crate) fn continuous(
    coordinator: &Coordinator,
    moment: &Moment,
) -> Result<Option<tuner::continuous::ContinuousView>, Error> {
    match coordinator.continuous(moment) {
        Err(Error::Spec(_)) => Ok(None),
        view => view,
    }
}

/// The summary of one experiment.
pub(crate) fn summary(coordinator: &Coordinator, id: i64) -> Result<ExperimentSummary, Error> {
    let all = coordinator.store().experiments()?.into_iter();
    let mut found = all.filter(|summary| summary.id == id);
    found
        .next()
        .ok_or_else(|| Error::NotFound(format!("experiment {id}")))
}

/// Why the verified winner is not the first of the table, where it is not.
///
/// # Errors
/// What the store says.
pub(crate) fn winner_rank(store: &Store, row: &ExperimentRow) -> Result<Option<String>, Error> {
    let winner = row
        .report
        .winner()
        .filter(|_| row.report.finding.is_better());
    let Some(winner) = winner else {
        return Ok(None);
    };
    let best = store.best_of(row.id, &[&winner.configuration])?;
    let best = best.into_iter().flatten().next();
    Ok(best.and_then(|(number, rank)| tuner::report::winner_rank(number, rank)))
}

pub(super) fn shown(coordinator: &Coordinator, id: i64) -> Result<Shown, Error> {
    // The state first: what is read after it is at least as new, so that an end is not shown with
    // what came before it.
    let summary = summary(coordinator, id)?;
    let moment = coordinator.store().moment(id, ENTRIES)?;
    let continuous = continuous(coordinator, &moment)?;
    let row = moment.row;
    let winner_rank = winner_rank(coordinator.store(), &row)?;
    Ok(Shown {
        summary,
        winner_rank,
        wall_time_min: row.budget().wall_time_min,
        remark: row.carries_nothing_over(),
        carried: row.parent.map(|_| row.carried_over()),
        note: row.note,
        dir: row.dir,
        source: Masks::ForWriters.text(&row.source),
        spec: Masks::ForWriters.spec(&row.spec),
        control: row.report.control,
        recommended: row.report.recommended,
        finding: row.report.finding,
        settings: row.report.settings,
        promotion: row
            .promotion
            .filter(|_| !coordinator.is_rollback_untold(id)),
        queue: coordinator.store().queue(id)?,
        continuous,
        entries: moment.entries,
        progress: coordinator
            .progress()
            .filter(|progress| progress.experiment == id),
    })
}

/// Does something to an experiment, and answers with what it is then.
pub(super) async fn act(
    app: Arc<App>,
    text: &str,
    action: impl FnOnce(&Coordinator, i64) -> Result<(), Error> + Send + 'static,
) -> Reply<Shown> {
    let ((), shown) = act_with(app, text, action).await?;
    Ok(Json(shown))
}

/// As [`act`], with what the action gives.
pub(super) async fn act_with<T: Send + 'static>(
    app: Arc<App>,
    text: &str,
    action: impl FnOnce(&Coordinator, i64) -> Result<T, Error> + Send + 'static,
) -> Result<(T, Shown), Refusal> {
    let id = id(text)?;
    blocking(move || Ok((action(&app.coordinator, id)?, shown(&app.coordinator, id)?))).await
}
