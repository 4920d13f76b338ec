//! What can go wrong.

use std::path::PathBuf;

use experiment_spec::SpecError;

/// Why isolation cannot begin or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IsolateError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] SpecError),
    /// This host refuses what an entry of the configuration says.
    #[error("{said}")]
    Entry {
        /// File, line, key and reason.
        said: SpecError,
        /// The reason.
        #[source]
        source: Box<IsolateError>,
    },
    /// The host refuses.
    #[error(transparent)]
    Host(#[from] host::HostError),
    /// A latency source cannot be opened.
    #[error("service {service}: {source}")]
    Source {
        /// The service.
        service: String,
        /// The reason.
        #[source]
        source: wire_latency::Error,
    },
    /// A service or a group is not there.
    #[error("{subject} is not there: {why}")]
    NotThere {
        /// `service web`, `best-effort group batch`.
        subject: String,
        /// What to do.
        why: String,
    },
    /// The command of a best-effort group cannot be started.
    #[error("the command of best-effort group {group} cannot be started: {source}")]
    Command {
        /// The best-effort group.
        group: String,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// The watchdog cannot be started.
    #[error(
        "the watchdog cannot be started: {0}; without the watchdog, a killed controller would leave its limits in force"
    )]
    Watchdog(String),
    /// A file of the run cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// The directory of a new recording has one already.
    #[error(
        "{} is the recording of another run: name another directory, or remove this file",
        path.display()
    )]
    RecordingThere {
        /// The file.
        path: PathBuf,
    },
    /// A recording without a row.
    #[error(
        "{} has no row: the run was ended before its first one, or could not record anything",
        path.display()
    )]
    NothingRecorded {
        /// The file.
        path: PathBuf,
    },
    /// A file of the run is damaged.
    #[error("{}:{line}: {why}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
}

impl IsolateError {
    /// Whether something was not begun because the undo journal cannot be written.
    pub(crate) fn is_unrecorded(&self) -> bool {
        matches!(self, Self::Host(host::HostError::Journal { .. }))
    }

    /// Whether a privilege or a kernel feature is missing (exit code 3).
    #[must_use]
    pub fn is_missing_privilege(&self) -> bool {
        match self {
            Self::Entry { source, .. } => source.is_missing_privilege(),
            Self::Host(error) => error.is_missing_privilege(),
            Self::Source { source, .. } => source.is_missing_privilege(),
            Self::File { source, .. } => source.kind() == std::io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }

    /// A damaged line. Its number is said once: the reader counts from the line's own begin.
    pub(crate) fn record(path: &std::path::Path, line: usize, error: &serde_json::Error) -> Self {
        let text = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        Self::Record {
            path: path.to_owned(),
            line,
            why: text.strip_suffix(&place).unwrap_or(&text).to_owned(),
        }
    }

    pub(crate) fn file(path: &std::path::Path, source: std::io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            source,
        }
    }
}
