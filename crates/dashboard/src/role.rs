//! What a token admits to.

use serde::{Deserialize, Serialize};

/// What a token admits to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Looking.
    Read,
    /// Looking and changing; a specification's commands run as the coordinator's user, so this is
    /// as good as being it.
    Write,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}
