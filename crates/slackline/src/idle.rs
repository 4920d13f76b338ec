//! What an idle shard of a server does, as an argument.

use dataplane::idle::IdlePolicy;

#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Idle {
    /// Spin for a learnt time, then sleep.
    Learn,
    /// Never sleep: the lowest latency, and each shard uses a whole CPU.
    Spin,
    /// Sleep at once: the least CPU time.
    Sleep,
}

impl From<Idle> for IdlePolicy {
    fn from(idle: Idle) -> Self {
        match idle {
            Idle::Learn => Self::Learn,
            Idle::Spin => Self::Spin,
            Idle::Sleep => Self::Sleep,
        }
    }
}
