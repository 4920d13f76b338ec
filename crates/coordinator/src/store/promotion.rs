//! What of an experiment is in force on the host, or left there by its rollback.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tuner::live::{Changed, Changes};

/// A configuration that is in force on the host, or that a rollback could not fully restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Promotion {
    /// `false`: the promotion was interrupted, so it is not known what it has changed.
    pub is_complete: bool,
    /// What was changed. After a rollback that could not restore something: that, with the reasons.
    #[serde(flatten)]
    pub done: Changes,
    /// Knobs and files that the rollback could not restore. The next rollback tries only these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
    /// When the promotion or the rollback was, in UTC.
    #[schemars(with = "String")]
    pub at: jiff::Timestamp,
}

impl Promotion {
    /// What a rollback has left of this; nothing, where it restored everything.
    pub(crate) fn rest(at: jiff::Timestamp, changed: &Changed) -> Option<Self> {
        let left = changed.left.iter().map(ToString::to_string);
        (!changed.left.is_empty()).then(|| Self {
            is_complete: true,
            done: Changes {
                changed: left.collect(),
                ..Changes::default()
            },
            left: changed.left.iter().map(|it| it.subject.clone()).collect(),
            at,
        })
    }
}
