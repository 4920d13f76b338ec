//! What a coordinator and its workers say to each other. How it travels, and who may say it, is not
//! decided here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::assignment::{Assignment, EvaluationResult};
use crate::spec::Spec;

/// Which evaluation, or which run of which verification. It is measured by one worker at a time,
/// whose *attempt* the store counts: what an earlier attempt brings is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket {
    /// The experiment.
    pub experiment: i64,
    /// The verification, from 1; 0 for an evaluation of the search.
    pub verification: i64,
    /// The verification's arm, from 0; 0 for an evaluation of the search.
    pub arm: usize,
    /// The number of the evaluation, or of the verification's run.
    pub number: usize,
}

impl std::fmt::Display for Ticket {
    /// Four numbers: `3.0.0.12` is evaluation 12 of experiment 3.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}.{}.{}.{}",
            self.experiment, self.verification, self.arm, self.number
        )
    }
}

impl std::str::FromStr for Ticket {
    type Err = ();

    /// As it is written.
    fn from_str(text: &str) -> Result<Self, ()> {
        let numbers: Vec<&str> = text.split('.').collect();
        let &[experiment, verification, arm, number] = numbers.as_slice() else {
            return Err(());
        };
        Ok(Self {
            experiment: experiment.parse().map_err(drop)?,
            verification: verification.parse().map_err(drop)?,
            arm: arm.parse().map_err(drop)?,
            number: number.parse().map_err(drop)?,
        })
    }
}

/// What lies in the queue: everything that a worker needs to know. It is signed as a whole.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkOrder {
    /// What it is.
    pub ticket: Ticket,
    /// The specification, with the control's values written out.
    pub spec: Spec,
    /// The folder against which its relative paths count; files that it names must be there on the
    /// worker's host.
    pub dir: PathBuf,
    /// What is to be measured.
    pub assignment: Assignment,
    /// When the experiment was made, in milliseconds of the epoch: another store has another one of
    /// its number.
    #[serde(default)]
    pub made_ms: Option<i64>,
}

/// A run of a worker's process, by which two workers of one name are told apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// What the kernel calls this boot of its host ([`host::boot_id`]): another one on each host,
    /// even on those of one image.
    pub boot_id: String,
    /// When it was started, by its host's monotonic clock.
    pub started_ns: u64,
}

impl Instance {
    /// Whether it was started after that one on the same host.
    #[must_use]
    pub fn follows(&self, other: &Self) -> bool {
        self.is_beside(other) && self.started_ns > other.started_ns
    }

    /// Whether both are known to be on one host.
    #[must_use]
    pub fn is_beside(&self, other: &Self) -> bool {
        !self.boot_id.is_empty() && self.boot_id == other.boot_id
    }
}

/// Who a worker is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Its name: no two workers have the same.
    pub name: String,
    /// Its labels: `kernel`, `cpu`, `arch`, and those that its configuration gives.
    pub labels: BTreeMap<String, String>,
    /// Version of Slackline.
    pub version: String,
    /// Which process it is; a worker that does not say so is taken at its name.
    #[serde(default)]
    pub instance: Option<Instance>,
}

/// What a worker says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkerMessage {
    /// I am here; which queues may I take from?
    Hello(Hello),
    /// I have taken this from a queue; may I measure it?
    Claim {
        /// The ticket.
        ticket: Ticket,
        /// The worker's name.
        worker: String,
        /// [`WorkOrder::made_ms`]; none where the order was not understood.
        #[serde(default)]
        made_ms: Option<i64>,
    },
    /// I am measuring it.
    Beat {
        /// The ticket.
        ticket: Ticket,
        /// The attempt that was granted.
        attempt: i64,
        /// The worker's name.
        worker: String,
        /// Blocks that are done.
        blocks: usize,
    },
    /// I give it back: nothing of it was measured.
    Release {
        /// The ticket.
        ticket: Ticket,
        /// The attempt that was granted.
        attempt: i64,
        /// Why it cannot be measured on my host, if that is so.
        #[serde(default)]
        why: Option<String>,
    },
    /// It is measured.
    Result {
        /// The ticket.
        ticket: Ticket,
        /// The attempt that was granted.
        attempt: i64,
        /// What came of it.
        measured: Box<EvaluationResult>,
    },
}

/// What the coordinator answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// To `Hello`.
    Welcome {
        /// The queues to take from.
        classes: Vec<String>,
        /// A worker that is silent for that long has lost what it measures.
        lease_s: f64,
    },
    /// To `Claim`: measure it, under this attempt.
    Granted {
        /// Counts from 1.
        attempt: i64,
    },
    /// To `Claim`: nobody needs it any more.
    Gone,
    /// To `Claim`: somebody else is measuring it; ask again after a lease.
    Later,
    /// To `Beat`: go on.
    GoOn,
    /// To `Beat`: stop measuring it.
    Stop,
    /// To `Release` and `Result`: it is written down.
    Accepted,
    /// To `Result`: another attempt has taken its place, or its user does not want it any more.
    Refused,
    /// The coordinator cannot say now; ask again.
    Trouble(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_read_as_it_is_written() {
        let ticket = Ticket {
            experiment: 3,
            verification: 1,
            arm: 0,
            number: 12,
        };
        assert_eq!(ticket.to_string().parse(), Ok(ticket));
        for text in ["", "3.1.0", "3.1.0.12.1", "3.1.-1.12", "a.1.0.12"] {
            assert_eq!(text.parse::<Ticket>(), Err(()), "{text}");
        }
    }
}
