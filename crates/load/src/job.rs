//! A request that a connection was given.

use crate::engine::Answered;

/// A request that a connection was given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// By which its answer is known.
    pub(crate) ticket: u32,
    /// Its place in the list of requests.
    pub(crate) request: usize,
}

impl Job {
    pub(crate) fn failed(self, why: &str) -> Answered {
        Answered {
            ticket: self.ticket,
            result: Err(why.to_owned()),
        }
    }
}
