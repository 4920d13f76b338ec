//! What is wrong with a specification.

use std::path::PathBuf;

/// Something is wrong with a specification; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SpecError {
    /// The specification.
    pub file: PathBuf,
    /// Line, from 1, where it could be found.
    pub line: Option<usize>,
    /// Key, such as `parameters[2].low`; empty for errors of syntax.
    pub key: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl std::fmt::Display for SpecError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": ")?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        write!(f, "{}", self.message)
    }
}
