//! The evaluations of an experiment in columns, and what the model makes of them.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use bayes_opt::Configuration;
use coordinator::Error;
use coordinator::store::{EvaluationRow, ExperimentRow};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tuner::spec::{Goal, ObjectiveScale};

use super::Here;
use crate::explain::{Explanation, Pair};
use crate::reply::{Reply, blocking};
use crate::web::Params;

/// The evaluations of an experiment in columns, for plots: ten thousand of them are half a megabyte.
#[derive(Serialize)]
pub(crate) struct Points {
    objective: String,
    /// `ratio`: the score is the logarithm of the ratio to the control; `absolute`: the value itself.
    scale: ObjectiveScale,
    /// The score of a maximised objective is negated.
    goal: Goal,
    control: Configuration,
    number: Vec<usize>,
    outcome: Vec<String>,
    score: Vec<Option<f64>>,
    /// The standard error of the score.
    score_se: Vec<Option<f64>>,
    parameters: BTreeMap<String, Vec<Value>>,
}

fn points_of(row: &ExperimentRow, rows: &[EvaluationRow]) -> Result<Points, Error> {
    let objective = row.spec.objective.clone();
    let objective =
        objective.ok_or_else(|| Error::Invalid("the specification has no objective".into()))?;
    let ended: Vec<&EvaluationRow> = rows.iter().filter(|row| !row.is_running).collect();
    let measured = |of: fn(&tuner::evaluation::Measurement) -> f64| {
        let each = ended
            .iter()
            .map(|row| row.record.measurement.as_ref().map(of));
        each.map(|value| value.map(|value| (value * 1e7).round() / 1e7))
            .collect()
    };
    let names = row.report.control.0.keys();
    Ok(Points {
        objective: objective.name(),
        scale: objective.scale,
        goal: objective.goal,
        control: row.report.control.clone(),
        number: ended.iter().map(|row| row.record.number).collect(),
        outcome: ended
            .iter()
            .map(|row| row.record.outcome.to_string())
            .collect(),
        score: measured(|measurement| measurement.score),
        score_se: measured(|measurement| measurement.score_variance.max(0.0).sqrt()),
        parameters: names
            .map(|name| {
                let value = |row: &&EvaluationRow| json!(row.record.configuration.get(name));
                (name.clone(), ended.iter().map(value).collect())
            })
            .collect(),
    })
}

pub(crate) async fn points(State(app): Here, Path(id): Path<String>) -> Reply<Points> {
    let id = super::id(&id)?;
    blocking(move || {
        let row = app.coordinator.store().experiment(id)?;
        points_of(&row, &app.coordinator.store().evaluations(id, 1)?)
    })
    .await
    .map(Json)
}

pub(crate) async fn model(State(app): Here, Path(id): Path<String>) -> Reply<Explanation> {
    let id = super::id(&id)?;
    blocking(move || {
        app.models
            .explain(&app.coordinator, id)
            .map(|explanation| (*explanation).clone())
    })
    .await
    .map(Json)
}

/// Two parameters.
#[derive(Deserialize)]
pub(crate) struct PairQuery {
    #[serde(default)]
    x: String,
    #[serde(default)]
    y: String,
}

pub(crate) async fn model_pair(
    State(app): Here,
    Path(id): Path<String>,
    Params(query): Params<PairQuery>,
) -> Reply<Pair> {
    let id = super::id(&id)?;
    blocking(move || app.models.pair(&app.coordinator, id, &query.x, &query.y))
        .await
        .map(Json)
}
