//! What became of each thing that was to be undone.

use std::path::PathBuf;

use serde::Serialize;

use crate::knob::Knob;

/// What became of one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RestoreOutcome {
    /// It is (in a dry run: would be) as at first.
    Restored,
    /// It was already as at first.
    AlreadyOriginal,
    /// Somebody else changed it since; it was left alone.
    ChangedByOther {
        /// What Slackline had left.
        expected: String,
        /// What is there.
        found: String,
    },
    /// It no longer exists.
    Vanished,
    /// It could not be undone, and stays in the journal.
    Failed {
        /// The kernel's error number.
        errno: i32,
    },
}

/// One thing, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RestoredItem {
    /// The thing in a person's words: the knob's name, the file's path, `process 123`.
    pub subject: String,
    /// The knob, where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub knob: Option<Knob>,
    /// The first value, where it is a knob.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original: Option<String>,
    /// When Slackline first changed it.
    pub since: String,
    /// What became of it.
    pub outcome: RestoreOutcome,
    /// Where what it held at first is (in a dry run: would be) kept, of a file that somebody else
    /// changed or removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<PathBuf>,
}

impl RestoredItem {
    /// The subject, with where what it held at first is kept.
    #[must_use]
    pub fn named(&self) -> String {
        let kept = self.kept.as_ref().map_or_else(String::new, |kept| {
            format!(" (the original contents are kept in {})", kept.display())
        });
        format!("{}{kept}", self.subject)
    }
}

/// Everything that was to be undone, in the order in which it was tried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RestoreReport {
    /// One item for each thing.
    pub items: Vec<RestoredItem>,
}

impl RestoreReport {
    /// Whether nothing is left in the journal. (Things changed by others are reported once and
    /// dropped.)
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self
            .items
            .iter()
            .any(|item| matches!(item.outcome, RestoreOutcome::Failed { .. }))
    }

    /// Takes in a later attempt: what had failed has its outcome.
    pub fn again(&mut self, later: Self) {
        self.items
            .retain(|item| !matches!(item.outcome, RestoreOutcome::Failed { .. }));
        self.items.extend(later.items);
    }

    /// The items that were changed by somebody else and left alone.
    pub fn changed_by_others(&self) -> impl Iterator<Item = &RestoredItem> {
        self.items
            .iter()
            .filter(|item| matches!(item.outcome, RestoreOutcome::ChangedByOther { .. }))
    }
}
