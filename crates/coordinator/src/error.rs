//! What the coordinator refuses, and what keeps it from working.

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store cannot be used now; what was under way is repeated when it can.
    #[error("the store cannot be used: {0}")]
    Unavailable(String),
    /// The store holds something that is not its own.
    #[error("the store is damaged: {0}")]
    Corrupt(String),
    /// Another coordinator has taken over the store meanwhile.
    #[error(
        "another `slackline serve` has taken over the store: use that server, or stop it and start this one again"
    )]
    Superseded,
    /// There is no such experiment or evaluation.
    #[error("there is no {0}")]
    NotFound(String),
    /// A request was carried out before, and what it made was deleted since.
    #[error("{0}")]
    Gone(String),
    /// It cannot be done in the present state.
    #[error("{0}")]
    Conflict(String),
    /// What was given is wrong.
    #[error("{0}")]
    Invalid(String),
    /// A specification is wrong.
    #[error(transparent)]
    Spec(#[from] tuner::SpecError),
    /// A measurement, or undoing one, went wrong.
    #[error(transparent)]
    Tuner(#[from] tuner::TunerError),
}

impl Error {
    /// A session ended, and the host is not as it was before.
    pub(crate) fn not_restored() -> Self {
        Self::Conflict(
            "not every knob could be restored: run `slackline restore`; it restores what it can and names the rest"
                .into(),
        )
    }
}

impl From<host::HostError> for Error {
    fn from(error: host::HostError) -> Self {
        Self::Tuner(error.into())
    }
}

impl From<Error> for tuner::TunerError {
    fn from(error: Error) -> Self {
        match error {
            Error::Tuner(error) => error,
            error => Self::Ledger(Box::new(error)),
        }
    }
}
