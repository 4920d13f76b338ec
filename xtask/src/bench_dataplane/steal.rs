//! What the hypervisor takes of the CPUs.

/// A tick of `/proc/stat` in milliseconds: `USER_HZ` is 100 on every platform of Linux today.
const TICK_MS: f64 = 10.0;
/// The place of `steal` among the numbers of a line (proc_stat(5)).
const STEAL: usize = 7;

/// Ticks that were stolen from all CPUs since the start of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stolen(u64);

impl Stolen {
    /// The count now. A kernel that does not say counts as 0.
    pub(super) fn now() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let all = text.lines().find_map(|line| line.strip_prefix("cpu "));
        let steal = all.and_then(|numbers| numbers.split_whitespace().nth(STEAL));
        Self(steal.and_then(|ticks| ticks.parse().ok()).unwrap_or(0))
    }

    /// Milliseconds of CPU time since an earlier count.
    pub(super) fn since_ms(self, before: Self) -> f64 {
        self.0.saturating_sub(before.0) as f64 * TICK_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_is_the_eighth_number_of_all_cpus() {
        let text = "cpu  53619 31034 9921 19089 688 0 133 127 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(Stolen::parse(text), Stolen(127));
        assert_eq!(Stolen(130).since_ms(Stolen(127)), 30.0);
        assert_eq!(Stolen::parse(""), Stolen(0));
    }
}
