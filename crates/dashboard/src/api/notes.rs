//! What people write about experiments and evaluations.

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::Deserialize;

use super::body::body;
use super::path::number;
use super::shown::{Shown, act};
use crate::app::Here;
use crate::audit::Detail;
use crate::reply::Refusal;

/// A note.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GivenNote {
    /// Plain text. An empty text removes the note.
    #[schemars(length(max = 10_000))]
    text: String,
}

impl GivenNote {
    /// What the audit log says: the text itself can be read where it stands.
    fn detail(&self) -> Extension<Detail> {
        let what = match self.text.trim().is_empty() {
            true => "the note is removed".to_owned(),
            false => format!("{} characters", self.text.chars().count()),
        };
        Extension(Detail(what))
    }
}

type Noted = Result<(Extension<Detail>, Json<Shown>), Refusal>;

pub(crate) async fn note(State(app): Here, Path(id): Path<String>, bytes: Bytes) -> Noted {
    let given: GivenNote = body(&bytes)?;
    let detail = given.detail();
    let noted = act(app, &id, move |coordinator, id| {
        coordinator.note(id, None, &given.text)
    });
    Ok((detail, noted.await?))
}

pub(crate) async fn note_evaluation(
    State(app): Here,
    Path((id, evaluation)): Path<(String, String)>,
    bytes: Bytes,
) -> Noted {
    let evaluation: usize = number(&evaluation, "evaluation")?;
    let given: GivenNote = body(&bytes)?;
    let detail = given.detail();
    let noted = act(app, &id, move |coordinator, id| {
        coordinator.note(id, Some(evaluation), &given.text)
    });
    Ok((detail, noted.await?))
}
