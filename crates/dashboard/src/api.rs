//! The JSON interface: one handler a verb.

mod body;
mod budget;
mod columns;
mod evaluations;
mod notes;
mod path;
mod promotions;
mod shown;

use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bayes_opt::Configuration;
use coordinator::store::{ExperimentSummary, Once, State as ExperimentState};
use coordinator::{Coordinator, Error};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tuner::report::Report;
use tuner::spec::Masks;

pub use body::OF_BODY;
use body::body;
pub(crate) use budget::{GivenBudget, set_budget};
pub(crate) use columns::{model, model_pair, points, rounds};
pub(crate) use evaluations::{OUTCOMES, evaluation, evaluations, export, kill};
pub(crate) use notes::{GivenNote, note, note_evaluation};
pub(crate) use path::number;
pub(crate) use promotions::{
    ENTRIES_MAX, OfCommand, commands, configuration, of_commands, promoted_by, promotions,
};
pub(crate) use shown::{ENTRIES, continuous, summary, winner_rank};
use shown::{Shown, act, shown};

use crate::access::Visitor;
use crate::app::{Here, Who};
use crate::audit::Detail;
use crate::reply::{Refusal, Reply, blocking};
use crate::role::Role;
use crate::secret::digest;
use crate::web::Params;

/// A specification.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GivenSpec {
    /// The text of the specification.
    pub(crate) spec: String,
    /// The format of the text. By default TOML.
    #[serde(default)]
    pub(crate) format: Format,
    /// The directory on the server's host where relative paths start. By default the state
    /// directory.
    #[serde(default)]
    pub(crate) dir: Option<PathBuf>,
    /// The experiment's name, if the text has none.
    #[serde(default)]
    pub(crate) name: Option<String>,
}

/// The format of a specification.
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
    /// Where it would be, were it in a file. Too long a text is refused before anything reads it.
    fn path(&self, coordinator: &Coordinator) -> Result<PathBuf, Error> {
        coordinator::check_source(&self.spec)?;
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

/// A fork, with the same specification or another one.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GivenFork {
    /// Another specification with the same objective. By default the specification of the other
    /// experiment.
    #[serde(default)]
    spec: Option<String>,
    /// The format of the text. By default TOML.
    #[serde(default)]
    format: Format,
    /// The directory on the server's host where relative paths start. By default the directory of
    /// the other experiment.
    #[serde(default)]
    dir: Option<PathBuf>,
}

/// A confirmation.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GivenConfirmation {
    /// Must be `true`: the sender accepts that the files and knobs stay as they are.
    confirm: bool,
}

/// A configuration to enqueue.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GivenConfiguration {
    /// Parameters and their values. A parameter that is left out has the control's value.
    configuration: BTreeMap<String, tuner::spec::Scalar>,
}

/// A specification in a body.
fn given_spec(bytes: &Bytes) -> Result<GivenSpec, Refusal> {
    let given: GivenSpec = body(bytes)?;
    check_dir(given.dir.as_deref())?;
    Ok(given)
}

/// What can be told without a look at the host.
fn check_dir(dir: Option<&FilePath>) -> Result<(), Refusal> {
    let Some(dir) = dir else { return Ok(()) };
    let why = if dir.as_os_str().as_encoded_bytes().contains(&0) {
        "dir has the character NUL: a path has none"
    } else if dir.is_relative() {
        "dir must be an absolute path on the server's host"
    } else {
        return Ok(());
    };
    Err(Refusal::new(StatusCode::BAD_REQUEST, why))
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
        "this path does not accept this method; see /api/v1/openapi.json",
    )
}

/// What `experiments` may be asked.
#[derive(Deserialize)]
pub(crate) struct ListQuery {
    #[serde(default)]
    state: Option<ExperimentState>,
    #[serde(default)]
    limit: Option<std::num::NonZeroUsize>,
}

pub(crate) async fn list(
    State(app): Here,
    Params(query): Params<ListQuery>,
) -> Reply<Vec<ExperimentSummary>> {
    blocking(move || {
        let all = app.coordinator.store().experiments()?.into_iter();
        let asked = all.filter(|it| query.state.is_none_or(|state| it.state == state));
        Ok(asked
            .take(query.limit.map_or(usize::MAX, Into::into))
            .collect())
    })
    .await
    .map(Json)
}

pub(crate) async fn show(State(app): Here, Path(id): Path<String>) -> Reply<Shown> {
    act(app, &id, |_, _| Ok(())).await
}

/// The answer of what makes something: where it is, and what it is.
type Made<T = Shown> = Result<
    (
        StatusCode,
        [(axum::http::HeaderName, String); 1],
        Extension<Detail>,
        Json<T>,
    ),
    Refusal,
>;

fn made(shown: Shown) -> Made {
    let id = shown.summary.id;
    made_at(
        format!("/api/v1/experiments/{id}"),
        format!("the new experiment is number {id}"),
        shown,
    )
}

fn made_at<T>(path: String, detail: String, what: T) -> Made<T> {
    let detail = Extension(Detail(detail));
    Ok((StatusCode::CREATED, [(LOCATION, path)], detail, Json(what)))
}

/// The header by which a request that is sent again makes nothing twice.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// No key is longer.
const KEY_CHARS_MAX: usize = 255;

/// What tells a request from others, where its sender gave it a key.
fn once(
    headers: &HeaderMap,
    visitor: &Visitor,
    what: &str,
    body: &[u8],
) -> Result<Option<Once>, Refusal> {
    let Some(key) = headers.get(IDEMPOTENCY_KEY) else {
        return Ok(None);
    };
    let key = key.to_str().unwrap_or_default();
    if key.is_empty() || key.len() > KEY_CHARS_MAX {
        let why = format!("Idempotency-Key has to be 1 to {KEY_CHARS_MAX} characters of ASCII");
        return Err(Refusal::new(StatusCode::BAD_REQUEST, why));
    }
    let body = String::from_utf8_lossy(body);
    Ok(Some(Once {
        key: digest(&format!("{} {key}", visitor.name)),
        fingerprint: digest(&format!("{what} {body}")),
    }))
}

pub(crate) async fn create(
    State(app): Here,
    Extension(visitor): Who,
    headers: HeaderMap,
    bytes: Bytes,
) -> Made {
    let given = given_spec(&bytes)?;
    let once = once(&headers, &visitor, "create", &bytes)?;
    let create = move || {
        // Its directory may be gone since.
        if let Some(made) = app.coordinator.made(once.as_ref())? {
            return shown(&app.coordinator, made);
        }
        let path = given.path(&app.coordinator)?;
        let id = app.coordinator.create(&given.spec, &path, once)?;
        shown(&app.coordinator, id)
    };
    made(blocking(create).await?)
}

/// What is wrong with a specification, or what it would be. For who may only look, the text alone
/// is checked: a check reads knobs and templates, which may be any file of the host.
pub(crate) async fn check(State(app): Here, Extension(visitor): Who, bytes: Bytes) -> Reply<Value> {
    let given = given_spec(&bytes)?;
    let checked = move || {
        let path = given.path(&app.coordinator)?;
        let checked = match visitor.role {
            Role::Read => text_checked(given, &path),
            Role::Write => host_checked(&app.coordinator, &given, &path),
        };
        match checked {
            Err(Error::Spec(error)) => Ok(json!({
                "ok": false,
                "error": error.message,
                "line": error.line,
                "key": error.key,
            })),
            checked => checked,
        }
    };
    blocking(checked).await.map(Json)
}

fn text_checked(given: GivenSpec, path: &FilePath) -> Result<Value, Error> {
    let spec = tuner::spec::check_text(given.spec, path)?;
    let stem = path.file_stem().map(|stem| stem.display().to_string());
    Ok(json!({
        "ok": true,
        "name": spec.name.or(stem),
        "parameters": spec.parameters.len(),
        "remarks": ["only the text was checked: a token with the role read cannot make the server open files"],
    }))
}

fn host_checked(
    coordinator: &Coordinator,
    given: &GivenSpec,
    path: &FilePath,
) -> Result<Value, Error> {
    let spec = coordinator.check(&given.spec, path)?;
    Ok(json!({
        "ok": true,
        "name": spec.name,
        "parameters": spec.space.parameters().len(),
        "configurations": spec.space.cardinality(),
        "control": spec.space.default_configuration(),
        "takes": spec.planned_time().to_string(),
        "remarks": spec.remarks(&std::env::var_os("PATH").unwrap_or_default()),
    }))
}

pub(crate) async fn import(
    State(app): Here,
    Extension(visitor): Who,
    headers: HeaderMap,
    bytes: Bytes,
) -> Made {
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            "this is no report: only JSON exports can be imported (`slackline experiments export --format json`, or `tune --json`)",
        ));
    }
    let report: Report = body(&bytes)?;
    let once = once(&headers, &visitor, "import", &bytes)?;
    let import = move || {
        let text = std::str::from_utf8(&bytes).ok();
        let id = app.coordinator.import(report, text, once)?;
        shown(&app.coordinator, id)
    };
    made(blocking(import).await?)
}

/// Lets nothing new begin.
pub(crate) async fn pause_queue(State(app): Here) -> Reply<Value> {
    blocking(move || {
        app.coordinator.pause_queue()?;
        status_of(&app.coordinator)
    })
    .await
    .map(Json)
}

/// Lets the queue go on.
pub(crate) async fn resume_queue(State(app): Here) -> Reply<Value> {
    blocking(move || {
        app.coordinator.resume_queue()?;
        status_of(&app.coordinator)
    })
    .await
    .map(Json)
}

/// How the server is.
pub(crate) async fn status(State(app): Here) -> Reply<Value> {
    blocking(move || status_of(&app.coordinator))
        .await
        .map(Json)
}

fn status_of(coordinator: &Coordinator) -> Result<Value, Error> {
    Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "is_active": coordinator.is_active(),
        "trouble": coordinator.trouble(),
        "queue_is_paused": coordinator.store().is_queue_paused()?,
        "progress": coordinator.progress(),
    }))
}

/// What `audit` may be asked.
#[derive(Deserialize)]
pub(crate) struct AuditQuery {
    #[serde(default)]
    limit: Option<std::num::NonZeroUsize>,
    #[serde(default)]
    experiment: Option<i64>,
}

/// As many entries as are shown where nobody says how many.
pub(crate) const AUDIT_ENTRIES: usize = 100;

/// The header that says how many lines of the audit log are damaged.
const DAMAGED_LINES: &str = "slackline-damaged-lines";

/// Who changed what, newest first. It has addresses and names of people, so it is for those who may
/// write.
pub(crate) async fn audit(
    State(app): Here,
    Extension(visitor): Who,
    Params(query): Params<AuditQuery>,
) -> Result<Response, Refusal> {
    may_see_audit(&visitor)?;
    let limit = query.limit.map_or(AUDIT_ENTRIES, Into::into);
    let last = blocking(move || {
        let last = app.audit.last(limit, query.experiment);
        last.map_err(|error| Error::Unavailable(error.to_string()))
    });
    let last = last.await?;
    let damaged = [(DAMAGED_LINES, last.damaged.to_string())];
    Ok((damaged, Json(last.entries)).into_response())
}

pub(crate) fn may_see_audit(visitor: &Visitor) -> Result<(), Refusal> {
    if visitor.role >= Role::Write {
        return Ok(());
    }
    let why = "the audit log is for tokens that may change things";
    Err(Refusal::new(StatusCode::FORBIDDEN, why))
}

pub(crate) async fn delete(
    State(app): Here,
    Path(id): Path<String>,
) -> Result<StatusCode, Refusal> {
    let id = path::id(&id)?;
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

/// What was changed is in the audit log.
pub(crate) async fn promote(
    State(app): Here,
    Path(id): Path<String>,
) -> Result<(Extension<Detail>, Json<Shown>), Refusal> {
    let id = path::id(&id)?;
    let promoted = blocking(move || {
        let promotion = app.coordinator.promote(id)?;
        Ok((promotion.done, shown(&app.coordinator, id)?))
    });
    let (done, shown) = promoted.await?;
    Ok((Extension(Detail(done.sentences().join(" "))), Json(shown)))
}

/// An experiment after its rollback.
#[derive(Serialize)]
pub(crate) struct RolledBack {
    #[serde(flatten)]
    shown: Shown,
    /// What the rollback has done, a text for each file, knob and copy.
    rolled_back: Vec<String>,
    /// Continuous experiments that may promote now.
    may_promote: Vec<i64>,
}

/// What could not be restored is `promotion.left`, and in the audit log.
pub(crate) async fn roll_back(
    State(app): Here,
    Path(id): Path<String>,
) -> Result<(Extension<Detail>, Json<RolledBack>), Refusal> {
    let id = path::id(&id)?;
    let rolled_back = blocking(move || {
        let changed = app.coordinator.roll_back(id)?;
        let may_promote = app.coordinator.would_promote(id)?;
        Ok((changed, may_promote, shown(&app.coordinator, id)?))
    });
    let (changed, may_promote, shown) = rolled_back.await?;
    let left = changed.left.iter().map(|it| format!("not restored: {it}"));
    let done = changed.done.texts();
    let detail: Vec<String> = left.chain(done.iter().cloned()).collect();
    let answer = RolledBack {
        shown,
        rolled_back: done,
        may_promote,
    };
    Ok((Extension(Detail(detail.join("; "))), Json(answer)))
}

/// Forgets what a rollback could not restore, so that the experiment can be deleted. Without the
/// confirmation nothing is forgotten, and the refusal says what that would be.
pub(crate) async fn forget_rest(
    State(app): Here,
    Path(id): Path<String>,
    bytes: Bytes,
) -> Result<(Extension<Detail>, Json<Shown>), Refusal> {
    let id = path::id(&id)?;
    let is_confirmed = match bytes.is_empty() {
        true => false,
        false => body::<GivenConfirmation>(&bytes)?.confirm,
    };
    let forgotten = blocking(move || {
        let coordinator = &app.coordinator;
        let rest = coordinator.not_restored(id)?;
        if !is_confirmed && !rest.is_empty() {
            return Err(Error::Invalid(format!(
                "Slackline would no longer try to restore: {}. Nothing is forgotten yet. To forget these files and knobs, send {{\"confirm\": true}}",
                rest.join(", ")
            )));
        }
        let forgotten = coordinator.forget_rest(id)?;
        Ok((forgotten, shown(coordinator, id)?))
    });
    let (forgotten, shown) = forgotten.await?;
    let detail = format!("left as it is: {}", forgotten.join(", "));
    Ok((Extension(Detail(detail)), Json(shown)))
}

pub(crate) async fn fork(
    State(app): Here,
    Extension(visitor): Who,
    Path(id): Path<String>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Made {
    let id = path::id(&id)?;
    let once = once(&headers, &visitor, &format!("fork {id}"), &bytes)?;
    let given: GivenFork = if bytes.is_empty() {
        GivenFork::default()
    } else {
        body(&bytes)?
    };
    check_dir(given.dir.as_deref())?;
    let fork = move || {
        // The experiment that was forked may be gone since.
        if let Some(made) = app.coordinator.made(once.as_ref())? {
            return shown(&app.coordinator, made);
        }
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
        let new = app.coordinator.fork(id, text, once)?;
        shown(&app.coordinator, new)
    };
    made(blocking(fork).await?)
}

pub(crate) async fn queue(State(app): Here, Path(id): Path<String>) -> Reply<Vec<Configuration>> {
    let id = path::id(&id)?;
    blocking(move || {
        app.coordinator.store().experiment(id)?;
        app.coordinator.store().queue(id)
    })
    .await
    .map(Json)
}

pub(crate) async fn enqueue(
    State(app): Here,
    Extension(visitor): Who,
    Path(id): Path<String>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Made<Configuration> {
    let id = path::id(&id)?;
    let once = once(&headers, &visitor, &format!("enqueue {id}"), &bytes)?;
    let given: GivenConfiguration = body(&bytes)?;
    let values = given.configuration.iter();
    let configuration = Configuration(
        values
            .map(|(name, value)| (name.clone(), value.into()))
            .collect(),
    );
    let enqueue = move || app.coordinator.enqueue(id, &configuration, once.as_ref());
    let enqueued = blocking(enqueue).await?;
    let values = enqueued
        .0
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let detail = values.collect::<Vec<_>>().join(" ");
    made_at(format!("/api/v1/experiments/{id}/queue"), detail, enqueued)
}

pub(crate) async fn verification(State(app): Here, Path(id): Path<String>) -> Reply<Value> {
    let id = path::id(&id)?;
    let masks = Masks::ForWriters;
    blocking(move || {
        let row = app.coordinator.store().experiment(id)?;
        let runs = app.coordinator.store().runs(id)?;
        let report = app.coordinator.with_runs(&row)?;
        let last = app.coordinator.last_verification(&row)?;
        Ok(json!({
            "number": row.verification,
            // Arms have variables of their own.
            "plan": masks.value(&row.plan),
            "runs": masks.value(&runs),
            // The one before it, as long as this one has no runs.
            "last": masks.value(&last),
            "arms": masks.value(&report.verification),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_with_nul_in_its_name_is_refused_with_its_field() {
        let given = |dir: &str| {
            let text = json!({ "spec": "", "dir": dir }).to_string();
            given_spec(&Bytes::from(text)).map(|given| given.dir)
        };
        let refused = given("/tmp/a\0b").unwrap_err();
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
        assert!(
            refused.text().starts_with("dir has the character NUL"),
            "{}",
            refused.text()
        );
        assert_eq!(given("/tmp/ab").unwrap(), Some(PathBuf::from("/tmp/ab")));
        for relative in ["", "tmp", "./tmp", "../tmp"] {
            let refused = given(relative).unwrap_err();
            assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{relative}");
            assert!(refused.text().starts_with("dir must be an absolute path"));
        }
    }
}
