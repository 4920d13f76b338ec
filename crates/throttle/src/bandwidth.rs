//! The CFS bandwidth controller as kernel/sched/fair.c has it: a quota a period, handed out to each
//! CPU in slices, with burst.
//!
//! Pure: the caller says when time passes. One group, no nesting (the tightest ancestor is what
//! counts).

/// What a CPU takes from the group's runtime at a time (`sched_cfs_bandwidth_slice_us`, 5 ms).
pub const SLICE_NS: i64 = 5_000_000;
/// What a CPU that goes idle keeps (`min_cfs_rq_runtime`, 1 ms).
pub const KEPT_NS: i64 = 1_000_000;
/// How long after such a return the runtime is given to throttled CPUs
/// (`cfs_bandwidth_slack_period`, 5 ms).
pub const SLACK_NS: u64 = 5_000_000;

/// A group's limit: `cpu.max` and `cpu.max.burst` (v2), `cpu.cfs_quota_us`, `cpu.cfs_period_us` and
/// `cpu.cfs_burst_us` (v1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// CPU time a period; `None`: no limit.
    pub quota_us: Option<u64>,
    /// The period; 100 ms by default.
    pub period_us: u64,
    /// CPU time that may be saved up from earlier periods.
    pub burst_us: u64,
}

impl Limit {
    /// The kernel's default period.
    pub const PERIOD_US: u64 = 100_000;

    /// A limit of so many cores in the default period, without burst.
    ///
    /// ```
    /// let limit = throttle::Limit::cores(1.5);
    /// assert_eq!(limit.quota_us, Some(150_000));
    /// assert_eq!(limit.in_cores(), Some(1.5));
    /// ```
    #[must_use]
    pub fn cores(cores: f64) -> Self {
        Self {
            quota_us: Some(crate::rounded(cores * Self::PERIOD_US as f64)),
            period_us: Self::PERIOD_US,
            burst_us: 0,
        }
    }

    /// The quota in cores.
    #[must_use]
    pub fn in_cores(&self) -> Option<f64> {
        self.quota_us
            .map(|quota_us| quota_us as f64 / self.period_us as f64)
    }
}

/// The group's side of the controller.
#[derive(Clone, Debug)]
pub struct BandwidthPool {
    quota_ns: Option<i64>,
    burst_ns: i64,
    runtime_ns: i64,
    /// CPUs that wait for runtime, longest first.
    throttled: std::collections::VecDeque<usize>,
    /// Periods so far, those in which some CPU was throttled, and the time that CPUs were, summed.
    pub(crate) periods: u64,
    pub(crate) throttled_periods: u64,
}

impl BandwidthPool {
    /// A full one.
    #[must_use]
    pub fn new(limit: &Limit) -> Self {
        let quota_ns = limit.quota_us.map(|us| signed(us * 1000));
        Self {
            quota_ns,
            burst_ns: signed(limit.burst_us * 1000),
            runtime_ns: quota_ns.unwrap_or(0),
            throttled: std::collections::VecDeque::new(),
            periods: 0,
            throttled_periods: 0,
        }
    }

    /// `assign_cfs_rq_runtime`: fills a CPU's runtime up to one slice as far as there is any;
    /// whether it may run.
    pub fn assign(&mut self, local_ns: &mut i64) -> bool {
        if self.quota_ns.is_none() {
            *local_ns = SLICE_NS;
            return true;
        }
        let given = (SLICE_NS - *local_ns).clamp(0, self.runtime_ns.max(0));
        self.runtime_ns -= given;
        *local_ns += given;
        *local_ns > 0
    }

    /// A CPU found no runtime.
    pub fn throttle(&mut self, cpu: usize) {
        self.throttled.push_back(cpu);
    }

    /// `return_cfs_rq_runtime`: a CPU went idle; whether throttled CPUs are to be served
    /// [`SLACK_NS`] later.
    pub fn give_back(&mut self, local_ns: &mut i64) -> bool {
        let slack_ns = *local_ns - KEPT_NS;
        if slack_ns <= 0 || self.quota_ns.is_none() {
            return false;
        }
        self.runtime_ns += slack_ns;
        *local_ns = KEPT_NS;
        self.runtime_ns > SLICE_NS && !self.throttled.is_empty()
    }

    /// The period timer: refills, and returns the CPUs that may run again.
    pub fn refill(&mut self, locals_ns: &mut [i64]) -> Vec<usize> {
        let Some(quota_ns) = self.quota_ns else {
            return Vec::new();
        };
        self.periods += 1;
        if !self.throttled.is_empty() {
            self.throttled_periods += 1;
        }
        self.runtime_ns = (self.runtime_ns + quota_ns).min(quota_ns + self.burst_ns);
        self.distribute(locals_ns)
    }

    /// `distribute_cfs_runtime`: lifts throttled CPUs just above zero, longest waiting first.
    pub fn distribute(&mut self, locals_ns: &mut [i64]) -> Vec<usize> {
        let mut released = Vec::new();
        while let Some(&cpu) = self.throttled.front() {
            let wanted = 1 - locals_ns[cpu];
            if self.runtime_ns < wanted {
                // The rest pays off debt.
                locals_ns[cpu] += self.runtime_ns.max(0);
                self.runtime_ns = self.runtime_ns.min(0);
                break;
            }
            self.runtime_ns -= wanted;
            locals_ns[cpu] += wanted;
            self.throttled.pop_front();
            released.push(cpu);
        }
        released
    }
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_handed_out_until_the_quota_is_gone() {
        let mut pool = BandwidthPool::new(&Limit::cores(0.12));
        let mut locals = [0_i64; 3];
        assert!(pool.assign(&mut locals[0]) && pool.assign(&mut locals[1]));
        assert!(pool.assign(&mut locals[2]));
        assert_eq!(locals, [SLICE_NS, SLICE_NS, 2_000_000]);
        let mut fourth = -500;
        assert!(!pool.assign(&mut fourth));
    }

    #[test]
    fn a_debt_is_paid_before_a_cpu_runs_again() {
        let mut pool = BandwidthPool::new(&Limit::cores(0.05));
        let mut locals = [0_i64];
        assert!(pool.assign(&mut locals[0]));
        locals[0] = -12_000_000;
        pool.throttle(0);
        assert!(pool.refill(&mut locals).is_empty());
        assert!(pool.refill(&mut locals).is_empty());
        assert_eq!(pool.refill(&mut locals), [0]);
        assert_eq!((pool.periods, pool.throttled_periods), (3, 3));
    }

    #[test]
    fn burst_is_saved_up_to_its_limit() {
        let limit = Limit {
            burst_us: 50_000,
            ..Limit::cores(1.0)
        };
        let mut pool = BandwidthPool::new(&limit);
        for _ in 0..5 {
            pool.refill(&mut []);
        }
        assert_eq!(pool.runtime_ns, 150_000_000);
        let mut none = BandwidthPool::new(&Limit::cores(1.0));
        none.refill(&mut []);
        assert_eq!(none.runtime_ns, 100_000_000);
    }

    #[test]
    fn an_idle_cpu_returns_all_but_a_millisecond() {
        let mut pool = BandwidthPool::new(&Limit::cores(1.0));
        let mut local = 0;
        pool.assign(&mut local);
        assert!(!pool.give_back(&mut local));
        assert_eq!((local, pool.runtime_ns), (KEPT_NS, 99_000_000));
        pool.throttle(1);
        local = SLICE_NS;
        assert!(pool.give_back(&mut local));
    }

    #[test]
    fn without_a_quota_nothing_is_throttled() {
        let mut pool = BandwidthPool::new(&Limit {
            quota_us: None,
            ..Limit::cores(1.0)
        });
        let mut local = -1;
        assert!(pool.assign(&mut local));
        assert!(pool.refill(&mut [local]).is_empty());
        assert_eq!(pool.periods, 0);
    }
}
