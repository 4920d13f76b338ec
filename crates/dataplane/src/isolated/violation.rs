//! What one process may not do to the other.

/// What the other process may not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A position of the ring that cannot be.
    #[error("a position in the ring is impossible")]
    Position,
    /// A record that is longer than what was written, or than any record may be.
    #[error("the length of a record is impossible")]
    Length,
    /// A record of a kind that there is not.
    #[error("the kind of a record is unknown")]
    Kind,
    /// A record whose content cannot be.
    #[error("the content of a record is impossible")]
    Content,
    /// A flow that there cannot be.
    #[error("a record names a flow that cannot exist")]
    Flow,
    /// More bytes than the flow, or all flows, may have queued or given back.
    #[error("a record has more bytes than the credit of its flow")]
    Credit,
    /// Events that nobody reads.
    #[error("the application does not read its events")]
    Unread,
}

/// The two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one of the application.
    Application,
    /// The one of the TCP stack.
    Stack,
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Application => "the application",
            Self::Stack => "the TCP stack",
        })
    }
}
