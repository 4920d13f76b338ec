//! One breach of a rule.

use std::fmt;
use std::path::PathBuf;

/// One breach of a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(super) path: PathBuf,
    pub(super) line: Option<usize>,
    pub(super) message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.path.display())?;
        if let Some(line) = self.line {
            write!(out, ":{line}")?;
        }
        write!(out, ": {}", self.message)
    }
}
