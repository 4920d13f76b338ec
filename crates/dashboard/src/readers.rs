//! What those see who may only look: no text shows them a secret, whoever has written it.
//!
//! Answers in JSON are masked in one place, on their way out: their handlers know no readers.
//! Pages, tables and streams are made of what this module gives them.

use std::collections::BTreeMap;

use axum::body::{Body, to_bytes};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use coordinator::store::{EvaluationRow, ExperimentRow, ExperimentSummary};
use coordinator::{Coordinator, Error};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tuner::spec::Masks;

use crate::reply::Refusal;
use crate::role::Role;

/// What of a text somebody of that role sees.
pub(crate) fn masks(role: Role) -> Masks {
    match role {
        Role::Read => Masks::ForReaders,
        Role::Write => Masks::ForWriters,
    }
}

/// An answer in JSON, as readers may see it.
pub(crate) async fn masked(response: Response) -> Response {
    let kind = response.headers().get(CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok());
    let is_json = kind.is_some_and(|it| it.starts_with("application/") && it.contains("json"));
    if !is_json {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let value = match to_bytes(body, usize::MAX).await {
        Ok(bytes) => serde_json::from_slice::<Value>(&bytes).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let is_file = parts.headers.contains_key(CONTENT_DISPOSITION);
    match value.and_then(|value| text(value, is_file).map_err(|error| error.to_string())) {
        Ok(text) => {
            parts.headers.remove(CONTENT_LENGTH);
            Response::from_parts(parts, Body::from(text))
        }
        Err(error) => Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the answer could not be masked: {error}"),
        )
        .into_response(),
    }
}

fn text(value: Value, is_pretty: bool) -> Result<Vec<u8>, serde_json::Error> {
    let masked = Masks::ForReaders.value(value);
    match is_pretty {
        true => serde_json::to_vec_pretty(&masked),
        false => serde_json::to_vec(&masked),
    }
}

/// What somebody of that role sees of a value.
pub(crate) fn seen<T: Serialize + DeserializeOwned>(role: Role, value: T) -> Result<T, Error> {
    if role == Role::Write {
        return Ok(value);
    }
    serde_json::from_value(Masks::ForReaders.value(value))
        .map_err(|error| Error::Invalid(format!("this cannot be shown to readers: {error}")))
}

/// What somebody of that role sees of a line of text.
pub(crate) fn line(role: Role, text: &str) -> String {
    match role {
        Role::Write => text.to_owned(),
        Role::Read => Masks::ForReaders.line(text),
    }
}

/// What somebody of that role sees of a parameter's values.
pub(crate) fn values(
    role: Role,
    name: &str,
    values: Vec<bayes_opt::Value>,
) -> Result<Vec<bayes_opt::Value>, Error> {
    let mut named = seen(role, BTreeMap::from([(name.to_owned(), values)]))?;
    Ok(named.remove(name).unwrap_or_default())
}

/// What somebody of that role sees of several lines of text.
pub(crate) fn lines(role: Role, texts: Vec<String>) -> Vec<String> {
    texts.into_iter().map(|it| line(role, &it)).collect()
}

/// What keeps the server from its work, as somebody of that role sees it.
pub(crate) fn trouble(coordinator: &Coordinator, role: Role) -> Option<String> {
    coordinator.trouble().map(|it| line(role, &it))
}

/// What somebody of that role sees of an experiment.
pub(crate) fn experiment(
    coordinator: &Coordinator,
    id: i64,
    role: Role,
) -> Result<ExperimentRow, Error> {
    row(role, coordinator.store().experiment(id)?)
}

/// What somebody of that role sees of an experiment that has been read.
pub(crate) fn row(role: Role, row: ExperimentRow) -> Result<ExperimentRow, Error> {
    let source = masks(role).text(&row.source);
    if role == Role::Write {
        return Ok(ExperimentRow { source, ..row });
    }
    Ok(ExperimentRow {
        name: line(role, &row.name),
        message: row.message.map(|it| line(role, &it)),
        note: row.note.map(|it| line(role, &it)),
        spec: seen(role, row.spec)?,
        report: seen(role, row.report)?,
        plan: seen(role, row.plan)?,
        promotion: seen(role, row.promotion)?,
        source,
        ..row
    })
}

/// What somebody of that role sees of an experiment in a list.
pub(crate) fn summary(role: Role, summary: ExperimentSummary) -> ExperimentSummary {
    ExperimentSummary {
        name: line(role, &summary.name),
        message: summary.message.map(|it| line(role, &it)),
        sentence: line(role, &summary.sentence),
        waits: summary.waits.map(|it| line(role, &it)),
        not_restored: lines(role, summary.not_restored),
        ..summary
    }
}

/// What somebody of that role sees of an evaluation. Blocks are numbers.
pub(crate) fn evaluation(role: Role, mut row: EvaluationRow) -> Result<EvaluationRow, Error> {
    let record = &row.record;
    let texts = [&record.reason, &record.host, &record.output, &record.note];
    let mut values = record.configuration.0.values();
    // Most have no text, and a table is made of thousands.
    let has_text = texts.iter().any(|it| it.is_some())
        || record.crash.is_some()
        || record.begun.is_some()
        || values.any(|value| matches!(value, bayes_opt::Value::Text(_)));
    if role == Role::Write || !has_text {
        return Ok(row);
    }
    let blocks = std::mem::take(&mut row.record.blocks);
    row.record = seen(role, row.record)?;
    row.record.blocks = blocks;
    Ok(row)
}

#[cfg(test)]
mod tests {
    use axum::Json;
    use serde_json::json;

    use super::*;

    const TEXT: &str = "it ran with --password=s3cr3t";

    #[tokio::test]
    async fn an_answer_in_json_is_masked_and_a_page_is_as_it_was_made() {
        let said = json!({ "sentence": TEXT, "list": [{ "DB_PASSWORD": "s3cr3t" }], "n": 0.1 });
        let shown = masked(Json(said).into_response()).await;
        let bytes = to_bytes(shown.into_body(), usize::MAX).await.unwrap();
        let shown: Value = serde_json::from_slice(&bytes).unwrap();
        let expected = json!({
            "sentence": "it ran with --password=…", "list": [{ "DB_PASSWORD": "…" }], "n": 0.1,
        });
        assert_eq!(shown, expected);
        let page = masked(axum::response::Html(TEXT).into_response()).await;
        let bytes = to_bytes(page.into_body(), usize::MAX).await.unwrap();
        assert_eq!(bytes, TEXT.as_bytes());
    }

    #[test]
    fn every_specification_can_be_shown_to_readers() {
        let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
        let mut count = 0;
        for folder in std::fs::read_dir(examples).unwrap() {
            let path = folder.unwrap().path().join("experiment.toml");
            let Ok(text) = std::fs::read_to_string(&path) else {
                continue;
            };
            let spec = tuner::spec::check_text(text, &path).unwrap();
            let shown = seen(Role::Read, spec.clone()).unwrap();
            assert_eq!(shown.parameters.len(), spec.parameters.len());
            count += 1;
        }
        assert!(count >= 5, "{count}");
    }

    #[test]
    fn who_may_write_sees_texts_as_they_are() {
        assert_eq!(line(Role::Write, TEXT), TEXT);
        assert_eq!(line(Role::Read, TEXT), "it ran with --password=…");
        let given = |text: &str| vec![bayes_opt::Value::Text(text.into()), 2_i64.into()];
        let of = |role, name| values(role, name, given("s3cr3t")).unwrap();
        assert_eq!(of(Role::Write, "db_password"), given("s3cr3t"));
        assert_eq!(of(Role::Read, "db_password"), given("…"));
        assert_eq!(of(Role::Read, "codec"), given("s3cr3t"));
    }
}
