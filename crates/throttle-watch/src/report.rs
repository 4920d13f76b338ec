//! What a watch says: the tracepoints' schedule with the limit, its counters and the verdict.

use host::{Roots, TightestQuota};
use serde::Serialize;
use throttle::{BandwidthCounters, Limit, Observed, Verdict};

use crate::collect::Collected;
use crate::error::ThrottleError;
use crate::requests::RequestLatency;
use crate::runtimes;

/// Everything that a watch saw.
#[derive(Serialize)]
pub struct WatchReport {
    /// The control group; empty is the root group.
    pub group: String,
    /// CPUs of the host that are online.
    pub cpus: usize,
    /// The tightest limit of the group and those above it.
    pub limit: Option<Limit>,
    /// The group that has the limit: itself or an ancestor.
    pub limited_by: Option<String>,
    /// What the counters of the group with the limit advanced by.
    pub counters: Option<BandwidthCounters>,
    /// What the tracepoints saw.
    pub observed: Observed,
    /// Events that the kernel had no room for.
    pub lost_events: u64,
    /// Slackline's own CPU time over the time of the watch.
    pub own_cpu_cores: f64,
    /// What it comes to.
    pub verdict: Verdict,
    /// The latency of the requests on a port, where one is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<RequestLatency>,
    /// A sentence for each runtime that runs more threads at once than the quota has cores.
    pub runtimes: Vec<String>,
}

/// A watch that has begun: what does not come from the tracepoints.
pub struct GroupWatch {
    roots: Roots,
    pub(crate) group: String,
    tightest: Option<TightestQuota>,
    own_before_s: f64,
    cpus: usize,
    /// Found once: it means reading whole programs.
    runtimes: Option<Vec<String>>,
}

impl GroupWatch {
    /// Reads what limits the group.
    ///
    /// # Errors
    /// There is no such group, or the kernel's files cannot be read.
    pub fn begin(group: String) -> Result<Self, ThrottleError> {
        let roots = Roots::default();
        Ok(Self {
            tightest: host::tightest_quota(&roots, &group)?,
            own_before_s: host::own_cpu_s(),
            cpus: host::online_cpus(&roots)?.len(),
            roots,
            group,
            runtimes: None,
        })
    }

    /// The group whose counters tell of throttling.
    #[must_use]
    pub fn limited_by(&self) -> &str {
        self.tightest
            .as_ref()
            .map_or(&self.group, |tightest| &tightest.group)
    }

    /// What is to be said by now.
    pub fn report(&mut self, collected: &Collected) -> WatchReport {
        let counters = collected.counters;
        let observed = collected.schedule.clone().finish(collected.end_ns);
        let limit = self.tightest.as_ref().map(limit_of);
        let quota = limit.and_then(|limit| limit.in_cores());
        let (group, cpus) = (self.group.clone(), self.cpus);
        let runtimes = self.runtimes.get_or_insert_with(|| {
            quota.map_or_else(Vec::new, |cores| {
                runtimes::ignoring(&self.roots, &group, &observed, cores, cpus)
            })
        });
        let runtimes = runtimes.clone();
        WatchReport {
            runtimes,
            latency: None,
            verdict: throttle::judge(
                &observed,
                limit.as_ref(),
                Some(self.limited_by()).filter(|by| *by != self.group),
                counters.as_ref(),
                cpus,
            ),
            own_cpu_cores: (host::own_cpu_s() - self.own_before_s)
                / (observed.duration_us / 1e6).max(0.001),
            limited_by: self
                .tightest
                .as_ref()
                .map(|tightest| tightest.group.clone()),
            observed,
            lost_events: collected.lost,
            group,
            cpus,
            limit,
            counters,
        }
    }
}

fn limit_of(tightest: &TightestQuota) -> Limit {
    Limit {
        quota_us: tightest.quota.quota_us,
        period_us: tightest.quota.period_us,
        burst_us: tightest.quota.burst_us.unwrap_or(0),
    }
}
