//! Where the entries of a configuration stand, so that messages about them name file, line and key.

use std::fmt;
use std::sync::Arc;

use experiment_spec::{Source, SpecError};
use host::HostError;

use crate::error::IsolateError;

/// The text that a configuration was read from. Two configurations that say the same are equal,
/// wherever they stand.
#[derive(Clone)]
pub(crate) struct Origin {
    source: Arc<Source>,
    /// The services are a list, so their keys have a number.
    is_list: bool,
}

impl Origin {
    pub(crate) fn new(source: Source, is_list: bool) -> Self {
        Self {
            source: Arc::new(source),
            is_list,
        }
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// The key of a service: `service`, or `service[1]`.
    pub(crate) fn service(&self, index: usize) -> String {
        match self.is_list {
            true => format!("service[{index}]"),
            false => "service".to_owned(),
        }
    }

    /// An error about a key.
    pub(crate) fn error(&self, key: &str, why: impl Into<String>) -> SpecError {
        self.source.error(key, why)
    }

    /// An error of this host that a key is the cause of. No key is the cause of a record that
    /// cannot be written.
    pub(crate) fn because_of(&self, key: &str, error: IsolateError) -> IsolateError {
        match error {
            IsolateError::Entry { .. } | IsolateError::Host(HostError::Journal { .. }) => error,
            error => IsolateError::Entry {
                said: self.error(key, error.to_string()),
                source: Box::new(error),
            },
        }
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origin").finish_non_exhaustive()
    }
}

impl PartialEq for Origin {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
