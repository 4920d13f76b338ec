//! Seconds of a run that something outside disturbed: found, named, and repeated.

use serde::{Deserialize, Serialize};

use crate::machine::Neighbours;

/// A request is late if the generator was, by more than this: a wake-up takes 50 µs, a scheduling
/// slice of another thread up to 3 ms. A choice of this crate.
pub(crate) const LATE_NS: u64 = 1_000_000;
/// It matters only beside what was measured: a tenth of the 99th percentile.
pub(crate) const LATE_SHARE: f64 = 0.1;
/// It happens: what matters is one request in a hundred, and more than two.
pub(crate) const LATE_REQUESTS: (f64, f64) = (0.01, 2.0);
/// Share of all CPU time from which on the hypervisor disturbs a second: its 99th percentile is
/// then the hypervisor's.
const STOLEN: f64 = 0.01;
/// It is counted in ticks of 10 ms: one may be chance.
const STOLEN_S: f64 = 0.015;
/// Share of the time in which the generator was ready, and had no CPU, from which on others explain
/// that it was late.
const NO_CPU: f64 = 0.2;

/// What is known of one second of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Facts {
    pub(crate) requests: u64,
    /// Requests that the generator sent or read late, beside the second's own 99th percentile.
    pub(crate) late: u64,
    /// How long the loop was not waiting for anything.
    pub(crate) busy_ns: u64,
    /// How long the thread could have run, and had no CPU.
    pub(crate) run_queue_ns: u64,
    pub(crate) stolen_share: f64,
    pub(crate) stolen_s: f64,
    pub(crate) neighbours: Option<Neighbours>,
}

/// What disturbed a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum Disturbance {
    /// The hypervisor ran something else.
    Steal {
        /// Share of the machine's CPU time.
        stolen_share: f64,
    },
    /// Other processes were in the service's way.
    OtherProcesses {
        /// Share of the machine's CPU time that they used.
        used_share: f64,
    },
    /// The generator was ready and got no CPU.
    RunQueue {
        /// How long.
        waited_ms: f64,
    },
}

impl std::fmt::Display for Disturbance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Steal { stolen_share } => {
                write!(f, "steal {:.1} %", 100.0 * stolen_share)
            }
            Self::OtherProcesses { used_share } => {
                write!(
                    f,
                    "other processes used {:.0} % of the CPUs",
                    100.0 * used_share
                )
            }
            Self::RunQueue { waited_ms } => {
                write!(
                    f,
                    "another process had the generator's CPU for {waited_ms:.1} ms"
                )
            }
        }
    }
}

/// Whether so many late requests are more than chance.
pub(crate) fn are_many(late: u64, requests: u64) -> bool {
    let (share, least) = LATE_REQUESTS;
    late as f64 > least && late as f64 >= share * requests as f64
}

impl Facts {
    /// What disturbed the second, if anything outside did. That the generator is too slow for the
    /// load is no disturbance.
    pub(crate) fn disturbance(&self) -> Option<Disturbance> {
        if self.stolen_share > STOLEN && self.stolen_s > STOLEN_S {
            return Some(Disturbance::Steal {
                stolen_share: self.stolen_share,
            });
        }
        if let Some(they) = self.neighbours.filter(Neighbours::were_in_the_way) {
            return Some(Disturbance::OtherProcesses {
                used_share: they.used_share,
            });
        }
        if are_many(self.late, self.requests) && had_no_cpu(self.busy_ns, self.run_queue_ns) {
            return Some(Disturbance::RunQueue {
                waited_ms: self.run_queue_ns as f64 / 1e6,
            });
        }
        None
    }
}

/// Whether waiting for a CPU explains why a loop was late that was ready for `busy_ns`.
pub(crate) fn had_no_cpu(busy_ns: u64, run_queue_ns: u64) -> bool {
    run_queue_ns as f64 > NO_CPU * busy_ns.max(run_queue_ns) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn facts() -> Facts {
        Facts {
            requests: 1000,
            busy_ns: SECOND / 10,
            ..Facts::default()
        }
    }

    #[test]
    fn a_disturbance_has_a_cause_outside() {
        assert_eq!(facts().disturbance(), None);
        let late = Facts {
            late: 20,
            ..facts()
        };
        // Late by itself: too slow, not disturbed.
        assert_eq!(late.disturbance(), None);
        let queued = Facts {
            run_queue_ns: SECOND / 20,
            ..late
        };
        let cause = queued.disturbance().unwrap();
        assert_eq!(
            cause.to_string(),
            "another process had the generator's CPU for 50.0 ms"
        );
        // It waited for a CPU, but nothing was late.
        let unhurt = Facts { late: 2, ..queued };
        assert_eq!(unhurt.disturbance(), None);
        let stolen = |stolen_share, stolen_s| Facts {
            stolen_share,
            stolen_s,
            ..facts()
        };
        assert_eq!(stolen(0.005, 0.02).disturbance(), None);
        assert_eq!(stolen(0.017, 0.01).disturbance(), None);
        let cause = stolen(0.015, 0.03).disturbance().unwrap();
        assert_eq!(cause.to_string(), "steal 1.5 %");
        let beside = Facts {
            neighbours: Some(Neighbours {
                used_share: 0.3,
                unused_share: 0.1,
            }),
            ..facts()
        };
        let cause = beside.disturbance().unwrap();
        assert_eq!(cause.to_string(), "other processes used 30 % of the CPUs");
    }
}
