//! Where something stands in the configuration file, and what is wrong there.

use std::path::PathBuf;

/// A configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}{}: {message}", file.display(), line.map_or_else(String::new, |line| format!(":{line}")), key.as_deref().map_or_else(String::new, |key| format!(": {key}")))]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: Option<usize>,
    /// The key.
    pub key: Option<String>,
    /// What is wrong, and what to do.
    pub message: String,
}

/// Where something stands in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The key.
    pub key: &'static str,
}

impl Place {
    /// An error at this place.
    pub fn error(&self, message: impl Into<String>) -> ConfigError {
        ConfigError {
            file: self.file.clone(),
            line: Some(self.line),
            key: Some(self.key.to_owned()),
            message: message.into(),
        }
    }
}

/// A file that the configuration names, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFile {
    /// The file.
    pub path: PathBuf,
    /// Where the configuration names it.
    pub place: Place,
}

impl NamedFile {
    /// What is wrong with the file, at the place that names it.
    pub fn error(&self, why: impl std::fmt::Display) -> ConfigError {
        self.place.error(format!("{}: {why}", self.path.display()))
    }
}
