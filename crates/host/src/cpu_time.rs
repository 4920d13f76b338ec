//! CPU time as user and system seconds, from a total that is finer than its two parts.

use serde::{Deserialize, Serialize};

/// CPU time, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuTimes {
    /// In user mode.
    pub user_s: f64,
    /// In the kernel.
    pub system_s: f64,
}

impl CpuTimes {
    /// Both together.
    #[must_use]
    pub fn total_s(self) -> f64 {
        self.user_s + self.system_s
    }
}

/// Divides an exact total by the ratio of two coarse parts. The kernel knows the sum to the
/// nanosecond and the parts only by ticks (10 ms); dividing afresh each time could let one part go
/// back when the ratio changes a little, so each increment is divided such that neither does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Split {
    user_ns: u64,
    total_ns: u64,
}

impl Split {
    pub(crate) fn next(&mut self, total_ns: u64, user_part: u64, system_part: u64) -> CpuTimes {
        let total_ns = total_ns.max(self.total_ns);
        let parts = u128::from(user_part) + u128::from(system_part);
        let target_ns = (u128::from(total_ns) * u128::from(user_part))
            .checked_div(parts)
            .unwrap_or(u128::from(total_ns));
        let target_ns = u64::try_from(target_ns).unwrap_or(total_ns);
        self.user_ns = target_ns.clamp(self.user_ns, self.user_ns + (total_ns - self.total_ns));
        self.total_ns = total_ns;
        CpuTimes {
            user_s: seconds(self.user_ns),
            system_s: seconds(total_ns - self.user_ns),
        }
    }
}

/// Nanoseconds as seconds; exact to below a microsecond for a century of CPU time.
#[expect(
    clippy::cast_precision_loss,
    reason = "2^53 ns are 104 days to the nanosecond, and beyond that to the µs"
)]
pub(crate) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_total_is_divided_by_the_ratio() {
        let times = Split::default().next(1_000_000_000, 3, 1);
        assert_eq!(
            times,
            CpuTimes {
                user_s: 0.75,
                system_s: 0.25
            }
        );
        // Before the first tick everything counts as user time.
        assert_eq!(
            Split::default().next(5_000_000, 0, 0),
            CpuTimes {
                user_s: 0.005,
                system_s: 0.0
            }
        );
    }

    proptest! {
        #[test]
        fn neither_part_ever_goes_back(steps in prop::collection::vec((0u64..1 << 40, 0u64..1000, 0u64..1000), 1..50)) {
            let mut split = Split::default();
            let (mut total, mut user, mut system) = (0, 0, 0);
            let mut last = CpuTimes::default();
            for (more_total, more_user, more_system) in steps {
                (total, user, system) = (total + more_total, user + more_user, system + more_system);
                let now = split.next(total, user, system);
                prop_assert!(now.user_s >= last.user_s && now.system_s >= last.system_s - 1e-9);
                prop_assert!((now.total_s() - seconds(total)).abs() < 1e-6 * (1.0 + now.total_s()));
                last = now;
            }
        }
    }
}
