//! The evaluations of an experiment: read, exported, killed.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use coordinator::Error;
use coordinator::store::EvaluationRow;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tuner::evaluation::Outcome;
use tuner::report::EvaluationRecord;
use tuner::spec::{Masks, Spec};

use super::shown::{Shown, act};
use crate::app::{App, Here, Who};
use crate::readers;
use crate::reply::{Refusal, Reply, blocking};
use crate::role::Role;
use crate::web::{Params, needed_of, one_of};

/// What an export can be.
const FORMATS: &[&str] = &["json", "csv", "parquet"];

/// What `export` may be asked.
#[derive(Deserialize)]
pub(crate) struct ExportQuery {
    #[serde(default)]
    format: Option<String>,
}

pub(crate) async fn export(
    State(app): Here,
    Extension(visitor): Who,
    Path(id): Path<String>,
    Params(query): Params<ExportQuery>,
) -> Result<Response, Refusal> {
    let id = super::path::id(&id)?;
    let format = match query.format.as_deref() {
        Some(format) => needed_of("format", format, FORMATS)?,
        None => "json",
    };
    let (kind, body) = match format {
        "csv" => {
            let write = |spec: &_, rows: &_| {
                coordinator::evaluations_csv(spec, rows).map(String::into_bytes)
            };
            (
                "text/csv; charset=utf-8",
                table(app, id, visitor.role, write).await?,
            )
        }
        "parquet" => {
            let write = coordinator::evaluations_parquet;
            (
                "application/vnd.apache.parquet",
                table(app, id, visitor.role, write).await?,
            )
        }
        _ => {
            let write = move || {
                let report = Masks::ForWriters.value(app.coordinator.export(id)?);
                serde_json::to_vec_pretty(&report)
                    .map_err(|error| Error::Invalid(error.to_string()))
            };
            ("application/json", blocking(write).await?)
        }
    };
    let name = format!("attachment; filename=\"experiment-{id}.{format}\"");
    Ok((
        [(CONTENT_TYPE, kind.to_owned()), (CONTENT_DISPOSITION, name)],
        body,
    )
        .into_response())
}

/// The evaluations of an experiment as `write` writes them.
async fn table(
    app: Arc<App>,
    id: i64,
    role: Role,
    write: impl Fn(&Spec, &[EvaluationRow]) -> Result<Vec<u8>, Error> + Send + 'static,
) -> Result<Vec<u8>, Refusal> {
    blocking(move || {
        let row = readers::experiment(&app.coordinator, id, role)?;
        let mut rows = app.coordinator.store().evaluations(id, 1)?;
        app.coordinator.store().fill_blocks(id, &mut rows)?;
        let rows = rows.into_iter().map(|it| readers::evaluation(role, it));
        write(&row.spec, &rows.collect::<Result<Vec<_>, Error>>()?)
    })
    .await
}

/// The outcome of an evaluation that is being measured.
const RUNNING: &str = "running";

/// One evaluation in JSON: its record, and what only the server knows.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct FullEvaluation(Value);

impl From<&EvaluationRow> for FullEvaluation {
    fn from(row: &EvaluationRow) -> Self {
        let mut value = serde_json::to_value(&row.record).unwrap_or_default();
        value["reason"] = json!(row.record.why());
        if row.is_running {
            value["outcome"] = json!(RUNNING);
        }
        value["started_ms"] = json!(row.started_ms);
        Self(value)
    }
}

/// An evaluation in a list: without what takes much room.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct ListedEvaluation(Value);

/// The fields that an evaluation in a list does not have.
const NOT_LISTED: [&str; 2] = ["blocks", "output"];

impl From<&EvaluationRow> for ListedEvaluation {
    fn from(row: &EvaluationRow) -> Self {
        let FullEvaluation(mut value) = row.into();
        if let Value::Object(fields) = &mut value {
            for field in NOT_LISTED {
                fields.remove(field);
            }
        }
        Self(value)
    }
}

/// The schema of a record, with what only the server knows.
fn evaluation_schema(generator: &mut SchemaGenerator, description: &str) -> Schema {
    let mut schema = EvaluationRecord::json_schema(generator);
    let outcome = generator.subschema_for::<Outcome>();
    let started = generator.subschema_for::<Option<i64>>();
    let fields = schema.ensure_object();
    fields.insert("description".into(), description.into());
    if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
        let outcome = json!({
            "description": "How the evaluation ended. `running`: it is being measured.",
            "anyOf": [outcome, { "const": RUNNING }],
        });
        properties.insert("outcome".into(), outcome);
        let mut started = started.to_value();
        started["description"] = json!(
            "When the evaluation began, in milliseconds since 1970. `null` if it was imported."
        );
        properties.insert("started_ms".into(), started);
    }
    if let Some(required) = fields.get_mut("required").and_then(Value::as_array_mut) {
        required.push("started_ms".into());
    }
    schema
}

impl JsonSchema for FullEvaluation {
    fn schema_name() -> Cow<'static, str> {
        "Evaluation".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        evaluation_schema(generator, "One evaluation.")
    }
}

impl JsonSchema for ListedEvaluation {
    fn schema_name() -> Cow<'static, str> {
        "ListedEvaluation".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let description = "An evaluation in a list, without its blocks.";
        let mut schema = evaluation_schema(generator, description);
        let fields = schema.ensure_object();
        if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
            properties.retain(|field, _| !NOT_LISTED.contains(&field.as_str()));
        }
        if let Some(required) = fields.get_mut("required").and_then(Value::as_array_mut) {
            required.retain(|it| !NOT_LISTED.iter().any(|field| it == field));
        }
        schema
    }
}

/// What an evaluation may have come to, as it is written.
pub(crate) const OUTCOMES: &[&str] = &[
    RUNNING,
    "completed",
    "aborted",
    "violated",
    "crashed",
    "killed",
    "failed",
];

/// What `evaluations` may be asked.
#[derive(Deserialize)]
pub(crate) struct FromQuery {
    #[serde(default)]
    from: Option<usize>,
    #[serde(default)]
    limit: Option<std::num::NonZeroUsize>,
    #[serde(default)]
    outcome: Option<String>,
}

pub(crate) async fn evaluations(
    State(app): Here,
    Path(id): Path<String>,
    Params(query): Params<FromQuery>,
) -> Reply<Vec<ListedEvaluation>> {
    let id = super::path::id(&id)?;
    one_of("outcome", query.outcome.as_deref(), OUTCOMES)?;
    blocking(move || {
        app.coordinator.store().experiment(id)?;
        let rows = app
            .coordinator
            .store()
            .evaluations(id, query.from.unwrap_or(1))?;
        let outcome = query.outcome.as_deref().filter(|it| !it.is_empty());
        let all = rows.iter().map(ListedEvaluation::from);
        let asked = all.filter(|it| outcome.is_none_or(|outcome| it.0["outcome"] == outcome));
        Ok(asked
            .take(query.limit.map_or(usize::MAX, Into::into))
            .collect())
    })
    .await
    .map(Json)
}

pub(crate) async fn evaluation(
    State(app): Here,
    Path((id, number)): Path<(String, String)>,
) -> Reply<FullEvaluation> {
    let (id, number) = (super::path::id(&id)?, super::number(&number, "evaluation")?);
    blocking(move || {
        let row = app.coordinator.store().evaluation(id, number)?;
        Ok(FullEvaluation::from(&row))
    })
    .await
    .map(Json)
}

pub(crate) async fn kill(
    State(app): Here,
    Path((id, number)): Path<(String, String)>,
) -> Reply<Shown> {
    let number: usize = super::number(&number, "evaluation")?;
    act(app, &id, move |coordinator, id| {
        coordinator.kill(id, number)
    })
    .await
}
