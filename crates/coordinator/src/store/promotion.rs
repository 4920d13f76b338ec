//! What of an experiment is in force on the host, or left there by its rollback.

use serde::{Deserialize, Serialize};
use tuner::live::{Changed, Changes};

/// A configuration left in force on the host, and how it came there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promotion {
    /// It was written down before it was begun; what cut it off in between left it open how far it
    /// came.
    pub is_complete: bool,
    /// What was changed. Of a rollback that left something, that with the reasons.
    #[serde(flatten)]
    pub done: Changes,
    /// Knobs and files that a rollback could not restore, while it restored all else; rolling back
    /// again tries these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
    /// When, in UTC.
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
