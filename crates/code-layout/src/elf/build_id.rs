//! The build-id of a file.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The linker's build-id of a file; printed and serialised in hexadecimal.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BuildId(pub Vec<u8>);

impl fmt::Display for BuildId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "BuildId({self})")
    }
}

impl From<BuildId> for String {
    fn from(id: BuildId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for BuildId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a build-id: an even number of hexadecimal digits");
        if !text.len().is_multiple_of(2) || !text.is_ascii() {
            return Err(bad());
        }
        (0..text.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| bad()))
            .collect::<Result<_, _>>()
            .map(BuildId)
    }
}
