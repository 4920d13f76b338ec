//! The JSON interface: one handler a verb.

use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bayes_opt::Configuration;
use coordinator::store::{EvaluationRow, ExperimentRow, Summary};
use coordinator::{Coordinator, Error, Progress};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tuner::report::Report;
use tuner::spec::{BudgetSpec, Goal, ObjectiveScale, Spec};

use crate::explain::{Explanation, Pair};
use crate::reply::{Refusal, Reply, blocking};
use crate::server::App;

type Here = State<Arc<App>>;

/// A specification in a request.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GivenSpec {
    /// Its text.
    pub(crate) spec: String,
    /// What the text is.
    #[serde(default)]
    pub(crate) format: Format,
    /// The folder on the server's host from which relative paths count; the state directory by default.
    #[serde(default)]
    pub(crate) dir: Option<PathBuf>,
    /// The experiment's name, where the text has none.
    #[serde(default)]
    pub(crate) name: Option<String>,
}

/// What a specification is written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    /// TOML.
    #[default]
    Toml,
    /// JSON.
    Json,
}

impl GivenSpec {
    /// Where it would be, were it in a file.
    fn path(&self, coordinator: &Coordinator) -> Result<PathBuf, Error> {
        let dir = self.dir.as_deref().unwrap_or(coordinator.state_dir());
        let stem = self.name.as_deref().unwrap_or("experiment");
        if stem.is_empty() || stem.len() > 100 || stem.contains(['/', '\0']) {
            return Err(Error::Invalid(
                "name: up to 100 characters without a slash".into(),
            ));
        }
        Ok(dir.join(match self.format {
            Format::Toml => format!("{stem}.toml"),
            Format::Json => format!("{stem}.json"),
        }))
    }
}

/// A fork: with another specification, or the same.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GivenFork {
    /// Another specification; its objective must be the same.
    #[serde(default)]
    spec: Option<String>,
    /// What the text is.
    #[serde(default)]
    format: Format,
    /// The folder from which relative paths count; that of the other experiment by default.
    #[serde(default)]
    dir: Option<PathBuf>,
}

/// A budget.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GivenBudget {
    /// Evaluations, the failed ones included.
    #[schemars(range(min = 1, max = 100_000))]
    evaluations: usize,
    /// Minutes.
    #[serde(default)]
    wall_time_min: Option<f64>,
}

/// A configuration to try.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GivenConfiguration {
    /// Parameters and their values; those left out take the control's.
    configuration: BTreeMap<String, tuner::spec::Scalar>,
}

/// A body of JSON; what is wrong with one is said in words.
fn body<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, Refusal> {
    let wrong = |why: &str| {
        let why = format!("the body is not what it should be: {why}");
        Refusal::new(StatusCode::BAD_REQUEST, why)
    };
    // Else the readers take a list for the fields in their order.
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err(wrong("it is a list, not an object"));
    }
    serde_json::from_slice(bytes).map_err(|error| wrong(&tuner::spec::plain(&error.to_string())))
}

/// The number of an experiment or evaluation in a path.
pub(crate) fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, Refusal> {
    text.parse()
        .map_err(|_| Refusal::new(StatusCode::NOT_FOUND, format!("there is no {what} {text}")))
}

fn id(text: &str) -> Result<i64, Refusal> {
    number(text, "experiment")
}

pub(crate) async fn nothing_here() -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        "there is nothing at this path; see /api/v1/openapi.json",
    )
}

pub(crate) async fn not_so() -> Refusal {
    Refusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this path has another method; see /api/v1/openapi.json",
    )
}

/// An experiment, whole but for what it measured.
#[derive(Serialize)]
pub(crate) struct Shown {
    #[serde(flatten)]
    summary: Summary,
    dir: String,
    source: String,
    spec: tuner::spec::Spec,
    wall_time_min: Option<f64>,
    control: Configuration,
    recommended: Option<tuner::report::Recommended>,
    finding: tuner::report::Finding,
    settings: Vec<String>,
    promotion: Option<coordinator::store::Promotion>,
    queue: Vec<Configuration>,
    progress: Option<Progress>,
    /// How it stands, in `mode = "continuous"`.
    continuous: Option<tuner::continuous::View>,
    /// What happened in it, newest first.
    entries: Vec<tuner::continuous::Entry>,
}

/// As many of the last entries of a continuous experiment are shown.
pub(crate) const ENTRIES: usize = 30;

/// How a continuous experiment stands; `None` as well for one whose specification does not fit this host any more.
pub(crate) fn continuous(
    coordinator: &Coordinator,
    id: i64,
) -> Result<Option<tuner::continuous::View>, Error> {
    match coordinator.continuous(id) {
        Err(Error::Spec(_)) => Ok(None),
        view => view,
    }
}

/// The summary of one experiment.
pub(crate) fn summary(coordinator: &Coordinator, id: i64) -> Result<Summary, Error> {
    let all = coordinator.store().experiments()?.into_iter();
    let mut found = all.filter(|summary| summary.id == id);
    found
        .next()
        .ok_or_else(|| Error::NotFound(format!("experiment {id}")))
}

fn shown(coordinator: &Coordinator, id: i64) -> Result<Shown, Error> {
    // The state first: what is read after it is at least as new, so that an end is not shown with what came before it.
    let summary = summary(coordinator, id)?;
    let row = coordinator.store().experiment(id)?;
    Ok(Shown {
        summary,
        wall_time_min: row.budget().wall_time_min,
        dir: row.dir,
        source: row.source,
        spec: row.spec,
        control: row.report.control,
        recommended: row.report.recommended,
        finding: row.report.finding,
        settings: row.report.settings,
        promotion: row.promotion,
        queue: coordinator.store().queue(id)?,
        continuous: continuous(coordinator, id)?,
        entries: coordinator.store().entries(id, ENTRIES)?,
        progress: coordinator
            .progress()
            .filter(|progress| progress.experiment == id),
    })
}

/// Does something to an experiment, and answers with what it is then.
async fn act(
    app: Arc<App>,
    text: &str,
    action: impl FnOnce(&Coordinator, i64) -> Result<(), Error> + Send + 'static,
) -> Reply<Shown> {
    let id = id(text)?;
    blocking(move || {
        action(&app.coordinator, id)?;
        shown(&app.coordinator, id)
    })
    .await
    .map(Json)
}

pub(crate) async fn list(State(app): Here) -> Reply<Vec<Summary>> {
    blocking(move || app.coordinator.store().experiments())
        .await
        .map(Json)
}

pub(crate) async fn show(State(app): Here, Path(id): Path<String>) -> Reply<Shown> {
    act(app, &id, |_, _| Ok(())).await
}

pub(crate) async fn create(
    State(app): Here,
    bytes: Bytes,
) -> Result<(StatusCode, Json<Shown>), Refusal> {
    let given: GivenSpec = body(&bytes)?;
    let made = move || {
        let path = given.path(&app.coordinator)?;
        let id = app.coordinator.create(&given.spec, &path)?;
        shown(&app.coordinator, id)
    };
    Ok((StatusCode::CREATED, Json(blocking(made).await?)))
}

/// What is wrong with a specification, or what it would be.
pub(crate) async fn check(State(app): Here, bytes: Bytes) -> Reply<Value> {
    let given: GivenSpec = body(&bytes)?;
    let checked = move || {
        let path = given.path(&app.coordinator)?;
        match app.coordinator.check(&given.spec, &path) {
            Ok(spec) => Ok(json!({
                "ok": true,
                "name": spec.name,
                "parameters": spec.space.parameters().len(),
                "configurations": spec.space.cardinality(),
                "control": spec.space.default_configuration(),
                "remarks": spec.remarks(&std::env::var_os("PATH").unwrap_or_default()),
            })),
            Err(Error::Spec(error)) => Ok(json!({
                "ok": false,
                "error": error.message,
                "line": error.line,
                "key": error.key,
            })),
            Err(error) => Err(error),
        }
    };
    blocking(checked).await.map(Json)
}

pub(crate) async fn import(
    State(app): Here,
    bytes: Bytes,
) -> Result<(StatusCode, Json<Shown>), Refusal> {
    let report: Report = body(&bytes)?;
    let imported = move || {
        let id = app.coordinator.import(report)?;
        shown(&app.coordinator, id)
    };
    Ok((StatusCode::CREATED, Json(blocking(imported).await?)))
}

pub(crate) async fn delete(
    State(app): Here,
    Path(id): Path<String>,
) -> Result<StatusCode, Refusal> {
    let id = self::id(&id)?;
    blocking(move || app.coordinator.delete(id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn pause(State(app): Here, Path(id): Path<String>) -> Reply<Shown> {
    act(app, &id, Coordinator::pause).await
}

pub(crate) async fn resume(State(app): Here, Path(id): Path<String>) -> Reply<Shown> {
    act(app, &id, Coordinator::resume).await
}

pub(crate) async fn stop(State(app): Here, Path(id): Path<String>) -> Reply<Shown> {
    act(app, &id, Coordinator::stop).await
}

pub(crate) async fn verify(State(app): Here, Path(id): Path<String>) -> Reply<Shown> {
    act(app, &id, Coordinator::verify).await
}

pub(crate) async fn promote(State(app): Here, Path(id): Path<String>) -> Reply<Shown> {
    act(app, &id, |coordinator, id| {
        coordinator.promote(id).map(drop)
    })
    .await
}

pub(crate) async fn roll_back(State(app): Here, Path(id): Path<String>) -> Reply<Shown> {
    act(app, &id, |coordinator, id| {
        coordinator.roll_back(id).map(drop)
    })
    .await
}

pub(crate) async fn fork(
    State(app): Here,
    Path(id): Path<String>,
    bytes: Bytes,
) -> Result<(StatusCode, Json<Shown>), Refusal> {
    let id = self::id(&id)?;
    let given: GivenFork = if bytes.is_empty() {
        GivenFork::default()
    } else {
        body(&bytes)?
    };
    let forked = move || {
        let row = app.coordinator.store().experiment(id)?;
        let text = given.spec.as_ref().map(|spec| GivenSpec {
            spec: spec.clone(),
            format: given.format,
            dir: given.dir.clone().or_else(|| Some(PathBuf::from(&row.dir))),
            name: None,
        });
        let text = match &text {
            Some(text) => Some((text.spec.as_str(), text.path(&app.coordinator)?)),
            None => None,
        };
        let new = app.coordinator.fork(id, text)?;
        shown(&app.coordinator, new)
    };
    Ok((StatusCode::CREATED, Json(blocking(forked).await?)))
}

pub(crate) async fn set_budget(
    State(app): Here,
    Path(id): Path<String>,
    bytes: Bytes,
) -> Reply<Shown> {
    let given: GivenBudget = body(&bytes)?;
    if given.evaluations == 0 {
        return Err(Refusal::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "evaluations must be above 0",
        ));
    }
    let budget = BudgetSpec {
        evaluations: given.evaluations,
        wall_time_min: given.wall_time_min,
    };
    act(app, &id, move |coordinator, id| {
        coordinator.set_budget(id, &budget)
    })
    .await
}

pub(crate) async fn queue(State(app): Here, Path(id): Path<String>) -> Reply<Vec<Configuration>> {
    let id = self::id(&id)?;
    blocking(move || {
        app.coordinator.store().experiment(id)?;
        app.coordinator.store().queue(id)
    })
    .await
    .map(Json)
}

pub(crate) async fn enqueue(
    State(app): Here,
    Path(id): Path<String>,
    bytes: Bytes,
) -> Result<(StatusCode, Json<Configuration>), Refusal> {
    let id = self::id(&id)?;
    let given: GivenConfiguration = body(&bytes)?;
    let values = given.configuration.iter();
    let configuration = Configuration(
        values
            .map(|(name, value)| (name.clone(), value.into()))
            .collect(),
    );
    let enqueued = blocking(move || app.coordinator.enqueue(id, &configuration)).await?;
    Ok((StatusCode::CREATED, Json(enqueued)))
}

/// What `export` may be asked.
#[derive(Deserialize)]
pub(crate) struct ExportQuery {
    #[serde(default)]
    format: Option<String>,
}

pub(crate) async fn export(
    State(app): Here,
    Path(id): Path<String>,
    Query(query): Query<ExportQuery>,
) -> Result<Response, Refusal> {
    let id = self::id(&id)?;
    let format = query.format.unwrap_or_else(|| "json".into());
    let (kind, body) = match format.as_str() {
        "json" => {
            let write = move || {
                let report = app.coordinator.export(id)?;
                serde_json::to_vec_pretty(&report)
                    .map_err(|error| Error::Invalid(error.to_string()))
            };
            ("application/json", blocking(write).await?)
        }
        "csv" => {
            let write = |spec: &_, rows: &_| {
                coordinator::evaluations_csv(spec, rows).map(String::into_bytes)
            };
            ("text/csv; charset=utf-8", table(app, id, write).await?)
        }
        "parquet" => {
            let write = coordinator::evaluations_parquet;
            (
                "application/vnd.apache.parquet",
                table(app, id, write).await?,
            )
        }
        other => {
            return Err(Refusal::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                format!("format={other}: there are json, csv and parquet"),
            ));
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
    write: impl Fn(&Spec, &[EvaluationRow]) -> Result<Vec<u8>, Error> + Send + 'static,
) -> Result<Vec<u8>, Refusal> {
    blocking(move || {
        let row = app.coordinator.store().experiment(id)?;
        let rows = app.coordinator.store().evaluations(id, 1)?;
        write(&row.spec, &rows)
    })
    .await
}

/// An evaluation as a row of JSON.
pub(crate) fn evaluation_json(row: &EvaluationRow) -> Value {
    let mut value = serde_json::to_value(&row.record).unwrap_or_default();
    if row.is_running {
        value["outcome"] = json!("running");
    }
    value["started_ms"] = json!(row.started_ms);
    value
}

/// What `evaluations` may be asked.
#[derive(Deserialize)]
pub(crate) struct FromQuery {
    #[serde(default)]
    from: Option<usize>,
}

pub(crate) async fn evaluations(
    State(app): Here,
    Path(id): Path<String>,
    Query(query): Query<FromQuery>,
) -> Reply<Vec<Value>> {
    let id = self::id(&id)?;
    blocking(move || {
        app.coordinator.store().experiment(id)?;
        let rows = app
            .coordinator
            .store()
            .evaluations(id, query.from.unwrap_or(1))?;
        Ok(rows
            .iter()
            .map(|row| {
                let mut value = evaluation_json(row);
                if let Value::Object(fields) = &mut value {
                    fields.remove("blocks");
                }
                value
            })
            .collect())
    })
    .await
    .map(Json)
}

pub(crate) async fn evaluation(
    State(app): Here,
    Path((id, number)): Path<(String, String)>,
) -> Reply<Value> {
    let (id, number) = (self::id(&id)?, self::number(&number, "evaluation")?);
    blocking(move || {
        let row = app.coordinator.store().evaluation(id, number)?;
        Ok(evaluation_json(&row))
    })
    .await
    .map(Json)
}

pub(crate) async fn kill(
    State(app): Here,
    Path((id, number)): Path<(String, String)>,
) -> Reply<Shown> {
    let number: usize = self::number(&number, "evaluation")?;
    act(app, &id, move |coordinator, id| {
        coordinator.kill(id, number)
    })
    .await
}

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
    let id = self::id(&id)?;
    blocking(move || {
        let row = app.coordinator.store().experiment(id)?;
        points_of(&row, &app.coordinator.store().evaluations(id, 1)?)
    })
    .await
    .map(Json)
}

pub(crate) async fn model(State(app): Here, Path(id): Path<String>) -> Reply<Explanation> {
    let id = self::id(&id)?;
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
    Query(query): Query<PairQuery>,
) -> Reply<Pair> {
    let id = self::id(&id)?;
    blocking(move || app.models.pair(&app.coordinator, id, &query.x, &query.y))
        .await
        .map(Json)
}

pub(crate) async fn verification(State(app): Here, Path(id): Path<String>) -> Reply<Value> {
    let id = self::id(&id)?;
    blocking(move || {
        let row = app.coordinator.store().experiment(id)?;
        let runs = app.coordinator.store().runs(id)?;
        let report = app.coordinator.with_runs(&row)?;
        Ok(json!({
            "number": row.verification,
            "plan": row.plan,
            "runs": runs,
            "arms": report.verification,
            "finding": report.finding,
            "sentence": report.sentence,
        }))
    })
    .await
    .map(Json)
}

/// What of the host is changed, and what it can do.
pub(crate) async fn host(State(app): Here) -> Reply<Value> {
    blocking(move || {
        Ok(json!({
            "progress": app.coordinator.progress(),
            "trouble": app.coordinator.trouble(),
            "store": app.coordinator.store().location().to_string(),
            "changed": changed(app.coordinator.state_dir())?,
            "probes": host::probe(&host::Roots::default()),
        }))
    })
    .await
    .map(Json)
}

/// The workers on other hosts, and what came of what they claimed and brought.
pub(crate) async fn workers(State(app): Here) -> Json<Value> {
    let workers = app.coordinator.workers();
    Json(json!({ "workers": workers.list(), "counts": workers.counts() }))
}

/// What is changed on this host now, in words.
pub(crate) fn changed(state_dir: &FilePath) -> Result<Vec<String>, Error> {
    Ok(host::Journal::peek(state_dir)?)
}
