//! What makes something: experiments from specifications, reports and forks, and enqueued
//! configurations. A specification can be checked without that.

use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use bayes_opt::Configuration;
use coordinator::store::Once;
use coordinator::{Coordinator, Error};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tuner::report::Report;

use super::body::body;
use super::path;
use super::shown::{Shown, shown};
use crate::access::Visitor;
use crate::app::{Here, Who};
use crate::audit::Detail;
use crate::reply::{Refusal, Reply, blocking};
use crate::role::Role;
use crate::secret::digest;

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
#[schemars(rename = "SpecFormat")]
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

/// A configuration to enqueue.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GivenConfiguration {
    /// Parameters and their values. A parameter that is left out has the control's value.
    configuration: BTreeMap<String, bayes_opt::Value>,
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

/// What a check of a specification has found.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum SpecCheck {
    Refused(SpecRefused),
    TextAccepted(SpecTextAccepted),
    Accepted(SpecAccepted),
}

/// The answer if the specification is wrong.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SpecRefused {
    /// Always `false`.
    #[schemars(extend("const" = false))]
    ok: bool,
    /// What is wrong.
    error: String,
    /// The line of the specification with the error.
    line: Option<usize>,
    /// The key of the specification with the error.
    key: String,
}

/// The answer to a token with the role read, if the text of the specification is right.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SpecTextAccepted {
    /// Always `true`.
    #[schemars(extend("const" = true))]
    ok: bool,
    /// Name of the experiment.
    name: Option<String>,
    /// Number of parameters.
    parameters: usize,
    /// Says that only the text was checked.
    remarks: Vec<&'static str>,
}

/// The answer to a token with the role write, if the specification is right and fits the host.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SpecAccepted {
    /// Always `true`.
    #[schemars(extend("const" = true))]
    ok: bool,
    /// Name of the experiment.
    name: String,
    /// Number of parameters.
    parameters: usize,
    /// Number of configurations. `null` if a parameter has infinitely many values.
    configurations: Option<u64>,
    /// The control's configuration.
    control: Configuration,
    /// The time that the experiment will take, in words.
    takes: String,
    /// Remarks on the specification.
    remarks: Vec<String>,
}

/// What is wrong with a specification, or what it would be. For who may only look, the text alone
/// is checked: a check reads knobs and templates, which may be any file of the host.
pub(crate) async fn check(
    State(app): Here,
    Extension(visitor): Who,
    bytes: Bytes,
) -> Reply<SpecCheck> {
    let given = given_spec(&bytes)?;
    let checked = move || {
        let path = given.path(&app.coordinator)?;
        let checked = match visitor.role {
            Role::Read => text_checked(given, &path).map(SpecCheck::TextAccepted),
            Role::Write => host_checked(&app.coordinator, &given, &path).map(SpecCheck::Accepted),
        };
        match checked {
            Err(Error::Spec(error)) => Ok(SpecCheck::Refused(SpecRefused {
                ok: false,
                error: error.message,
                line: error.line,
                key: error.key,
            })),
            checked => checked,
        }
    };
    blocking(checked).await.map(Json)
}

/// The remark on a check of the text alone.
const TEXT_ALONE: &str =
    "only the text was checked: a token with the role read cannot make the server open files";

fn text_checked(given: GivenSpec, path: &FilePath) -> Result<SpecTextAccepted, Error> {
    let spec = tuner::spec::check_text(given.spec, path)?;
    let stem = path.file_stem().map(|stem| stem.display().to_string());
    Ok(SpecTextAccepted {
        ok: true,
        name: spec.name.or(stem),
        parameters: spec.parameters.len(),
        remarks: vec![TEXT_ALONE],
    })
}

fn host_checked(
    coordinator: &Coordinator,
    given: &GivenSpec,
    path: &FilePath,
) -> Result<SpecAccepted, Error> {
    let spec = coordinator.check(&given.spec, path)?;
    Ok(SpecAccepted {
        ok: true,
        parameters: spec.space.parameters().len(),
        configurations: spec.space.cardinality(),
        control: spec.space.default_configuration(),
        takes: spec.planned_time().to_string(),
        remarks: tuner::remarks(&spec, &std::env::var_os("PATH").unwrap_or_default()),
        name: spec.name,
    })
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
    let configuration = Configuration(given.configuration);
    let enqueue = move || app.coordinator.enqueue(id, &configuration, once.as_ref());
    let enqueued = blocking(enqueue).await?;
    let values = enqueued
        .0
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let detail = values.collect::<Vec<_>>().join(" ");
    made_at(format!("/api/v1/experiments/{id}/queue"), detail, enqueued)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
