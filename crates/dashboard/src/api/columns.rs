//! The evaluations of an experiment in columns, and what the model makes of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use bayes_opt::Configuration;
use coordinator::Error;
use coordinator::store::{ChartPoint, ExperimentRow};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tuner::spec::{Goal, ObjectiveScale};

use crate::app::{Here, Who};
use crate::explain::{Explanation, Pair};
use crate::readers;
use crate::reply::{Refusal, Reply, blocking};
use crate::units::Unit;
use crate::web::{Params, needed_of};

/// The evaluations of an experiment in columns, for plots. Ten thousand evaluations take half a
/// megabyte.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Points {
    /// The objective in words.
    objective: String,
    /// `ratio`: the score is the logarithm of the ratio to the control. `absolute`: the score is
    /// the value itself.
    scale: ObjectiveScale,
    /// The goal. The score of a maximised objective is negated.
    goal: Goal,
    /// The control's configuration.
    control: Configuration,
    /// Number of each evaluation.
    number: Vec<usize>,
    /// How each evaluation ended.
    outcome: Vec<String>,
    /// The score of each evaluation. `null` if nothing was measured.
    score: Vec<Option<f64>>,
    /// The standard error of each score.
    score_se: Vec<Option<f64>>,
    /// When each evaluation began, in milliseconds since 1970. `null` if it was imported.
    began_ms: Vec<Option<i64>>,
    /// How long each evaluation took, in seconds.
    took_s: Vec<f64>,
    /// The worker that measured each evaluation. `null` if this host measured it.
    host: Vec<Option<String>>,
    /// For each parameter, its value in each evaluation. `null` if the evaluation has no value.
    #[schemars(with = "BTreeMap<String, Vec<Option<bayes_opt::Value>>>")]
    parameters: BTreeMap<String, Vec<Value>>,
    /// The values of each parameter that has a list, in the specification's order.
    #[schemars(with = "BTreeMap<String, Vec<bayes_opt::Value>>")]
    values: BTreeMap<String, Vec<Value>>,
    /// The configurations that the verification measured, winner first.
    verified: Vec<Configuration>,
    /// The objective's unit, for axes.
    unit: Unit,
}

fn points_of(row: &ExperimentRow, ended: &[ChartPoint]) -> Result<Points, Error> {
    let objective = row.spec.objective.clone();
    let objective =
        objective.ok_or_else(|| Error::Invalid("the specification has no objective".into()))?;
    let measured = |of: fn((f64, f64)) -> f64| {
        let each = ended.iter().map(|it| it.score.map(of));
        each.map(|value| value.map(|value| (value * 1e7).round() / 1e7))
            .collect()
    };
    let names = row.report.control.0.keys();
    let lists = row.spec.parameters.iter().filter_map(|parameter| {
        let values = parameter.values.as_ref()?.iter().map(|value| json!(value));
        Some((parameter.name.clone(), values.collect()))
    });
    let candidates = row
        .report
        .verification
        .iter()
        .filter(|arm| arm.is_candidate);
    Ok(Points {
        unit: Unit::in_spec(&row.spec, &objective.metric),
        values: lists.collect(),
        verified: candidates.map(|arm| arm.configuration.clone()).collect(),
        objective: objective.name(),
        scale: objective.scale,
        goal: objective.goal,
        control: row.report.control.clone(),
        number: ended.iter().map(|it| it.number).collect(),
        outcome: ended.iter().map(|it| it.outcome.clone()).collect(),
        score: measured(|(score, _)| score),
        score_se: measured(|(_, variance)| variance.max(0.0).sqrt()),
        began_ms: ended.iter().map(|it| it.started_ms).collect(),
        took_s: ended
            .iter()
            .map(|it| (it.duration_s * 1e3).round() / 1e3)
            .collect(),
        host: ended.iter().map(|it| it.host.clone()).collect(),
        parameters: names
            .map(|name| {
                let value =
                    |it: &ChartPoint| it.configuration.get(name).cloned().unwrap_or_default();
                (name.clone(), ended.iter().map(value).collect())
            })
            .collect(),
    })
}

pub(crate) async fn points(State(app): Here, Path(id): Path<String>) -> Reply<Points> {
    let id = super::path::id(&id)?;
    blocking(move || {
        let store = app.coordinator.store();
        points_of(&store.experiment(id)?, &store.points(id)?)
    })
    .await
    .map(Json)
}

pub(crate) async fn model(State(app): Here, Path(id): Path<String>) -> Reply<Explanation> {
    let id = super::path::id(&id)?;
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
    Extension(visitor): Who,
    Path(id): Path<String>,
    Params(query): Params<PairQuery>,
) -> Reply<Pair> {
    let id = super::path::id(&id)?;
    let coordinator = Arc::clone(&app.coordinator);
    let row = blocking(move || coordinator.store().experiment(id)).await?;
    let parameters: Vec<&str> = row.report.control.0.keys().map(String::as_str).collect();
    needed_of("x", &query.x, &parameters)?;
    needed_of("y", &query.y, &parameters)?;
    if query.x == query.y {
        let why = "x and y must be two different parameters";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, why));
    }
    blocking(move || {
        let mut pair = app.models.pair(&app.coordinator, id, &query.x, &query.y)?;
        // The answer does not name what these are values of.
        pair.x = readers::values(visitor.role, &query.x, pair.x)?;
        pair.y = readers::values(visitor.role, &query.y, pair.y)?;
        Ok(pair)
    })
    .await
    .map(Json)
}

/// The newest rounds of a continuous experiment in columns.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Rounds {
    /// The objective's goal.
    goal: Goal,
    /// When each round ended, in milliseconds since 1970.
    at_ms: Vec<i64>,
    /// The logarithm of the ratio to the control. Below 0 is better. `null` for a round that could
    /// not be measured.
    gain: Vec<Option<f64>>,
    /// The standard deviation of each gain.
    gain_sd: Vec<Option<f64>>,
    /// `true`: the round compared the promoted configuration with the control. `false`: the round
    /// compared the control with itself.
    of_promoted: Vec<bool>,
    /// `true`: the round broke a constraint.
    is_broken: Vec<bool>,
    /// The drift tests since they began.
    tests: Vec<tuner::continuous::Evidence>,
    /// The name that pages show for the series of each test.
    names: BTreeMap<String, String>,
    /// The experiment's history, oldest first.
    entries: Vec<tuner::continuous::HistoryEntry>,
}

/// No more rounds than these are in one answer: the newest.
const ROUNDS_MAX: usize = 5000;

pub(crate) async fn rounds(State(app): Here, Path(id): Path<String>) -> Reply<Rounds> {
    let id = super::path::id(&id)?;
    blocking(move || {
        let coordinator = &app.coordinator;
        let moment = coordinator.store().moment(id, ROUNDS_MAX)?;
        let tests = coordinator.evidence(&moment)?;
        let rounds = &moment.rounds[moment.rounds.len().saturating_sub(ROUNDS_MAX)..];
        let measured = |round: &tuner::continuous::Round| match &round.seen {
            tuner::continuous::Seen::Measured(measured) => Some(measured.clone()),
            _ => None,
        };
        let all: Vec<_> = rounds.iter().map(measured).collect();
        let spec = &moment.row.spec;
        let names = tests.iter().map(|test| {
            let name = Unit::in_spec(spec, &test.series).name();
            (test.series.clone(), name)
        });
        let names = names.collect();
        let objective = moment.row.spec.objective;
        Ok(Rounds {
            names,
            goal: objective.map_or_else(Goal::default, |objective| objective.goal),
            at_ms: rounds
                .iter()
                .map(|round| round.at.as_millisecond())
                .collect(),
            gain: all.iter().map(|it| it.as_ref().map(|it| it.gain)).collect(),
            gain_sd: all
                .iter()
                .map(|it| it.as_ref().map(|it| it.gain_variance.max(0.0).sqrt()))
                .collect(),
            of_promoted: rounds.iter().map(|round| round.of_promoted).collect(),
            is_broken: all
                .iter()
                .map(|it| it.as_ref().is_some_and(|it| !it.broken.is_empty()))
                .collect(),
            tests,
            entries: moment.entries.into_iter().rev().collect(),
        })
    })
    .await
    .map(Json)
}
