//! CPU throttling of a live service. [`observe`] watches a control group and says what holds it
//! up, and [`KnownService`] records it for `throttle::advice`. [`try_limit`] tries another limit.
//! [`loadtest()`] searches the load that the service takes. [`FleetQuery`] asks Prometheus about a
//! whole fleet.
//!
//! [`Tracepoints`] hands over the scheduler's events, [`collect()`] gives them to
//! [`throttle::SchedTrace`] together with the counters of the group that has the limit, and
//! [`throttle::judge`] makes one sentence of both.
//!
//! Architecture invariant: nothing here prints, and nothing here decides what a trace means. What a
//! user should know meanwhile goes to [`Say`]. A limit is written through `host`'s journal only.

#![forbid(unsafe_code)]

mod collect;
mod connections;
mod container;
mod error;
mod fleet;
mod limit_trial;
mod loadtest;
mod pool_experiment;
mod report;
mod requests;
mod runtimes;
mod say;
mod service;
mod shell;
mod target;
mod thread_status;
mod tracepoints;
mod watch;

pub use collect::{Collected, Jobs, collect};
pub use container::container_id;
pub use error::{PlanError, ThrottleError};
pub use fleet::{FleetQuery, FleetReport, WorstShard};
pub use limit_trial::{
    LimitTrialEnd, LimitTrialOptions, LimitTrialReport, TrialBlock, TrialMetric, try_limit,
};
pub use loadtest::{
    LoadSource, LoadtestEnd, LoadtestOptions, LoadtestReport, LoadtestSide, PlanAtRate, loadtest,
};
pub use pool_experiment::{ExperimentLoad, PoolExperiment};
pub use report::{GroupWatch, WatchReport};
pub use requests::{LatencyMoment, PortLatency, RequestLatency, RequestMonitor};
pub use say::Say;
pub use service::KnownService;
pub use target::{ServiceTarget, group_of, named};
pub use tracepoints::Tracepoints;
pub use watch::observe;
