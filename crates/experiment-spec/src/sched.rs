//! Scheduling attributes of threads, as a specification names them.

use host::SchedAttribute;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A scheduling attribute of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SchedKind {
    /// How long a thread runs before another one's turn, in microseconds, 100 to 100,000; since
    /// Linux 6.12.
    SliceUs,
    /// The nice value, −20 to 19.
    Nice,
    /// `other`, `batch` or `idle`.
    Policy,
}

impl SchedKind {
    /// As the kernel knows it.
    pub(super) fn attribute(self) -> SchedAttribute {
        match self {
            Self::SliceUs => SchedAttribute::SliceUs,
            Self::Nice => SchedAttribute::Nice,
            Self::Policy => SchedAttribute::Policy,
        }
    }
}
