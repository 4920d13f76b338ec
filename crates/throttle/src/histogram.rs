//! Cores in use over windows of 10 ms: the figure that shows what throttles. Averages over seconds
//! hide it.

use serde::{Deserialize, Serialize};

/// Length of a window. The kernel's default period is ten of them.
pub const WINDOW_NS: u64 = 10_000_000;
/// Width of a bin, in cores.
pub const BIN_CORES: f64 = 0.1;

/// A histogram of cores in use, from intervals in which some CPU ran the group.
///
/// Intervals come CPU by CPU, so they overlap and arrive out of order; windows are kept until
/// [`Cores::close`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cores {
    /// Busy time of each window, by number.
    #[serde(skip)]
    windows_ns: Vec<u64>,
    /// Windows by cores in use, in bins of a tenth of a core: bin k counts (k − ½)/10 to (k + ½)/10
    /// cores.
    pub bins: Vec<u64>,
}

impl Cores {
    /// Adds an interval in which one CPU was in use, in nanoseconds since the beginning.
    pub fn add(&mut self, from_ns: u64, to_ns: u64) {
        let mut from_ns = from_ns;
        while from_ns < to_ns {
            let window = from_ns / WINDOW_NS;
            let end_ns = to_ns.min((window + 1) * WINDOW_NS);
            let Ok(index) = usize::try_from(window) else {
                return;
            };
            if self.windows_ns.len() <= index {
                self.windows_ns.resize(index + 1, 0);
            }
            self.windows_ns[index] += end_ns - from_ns;
            from_ns = end_ns;
        }
    }

    /// Cores in use in each whole window up to `end_ns`, idle ones too.
    pub fn windows_until(&self, end_ns: u64) -> impl Iterator<Item = f64> {
        let count = usize::try_from(end_ns / WINDOW_NS).unwrap_or(usize::MAX);
        let busy_ns = self.windows_ns.iter().copied().chain(std::iter::repeat(0));
        busy_ns.take(count).map(|ns| ns as f64 / WINDOW_NS as f64)
    }

    /// The last `count` of these windows.
    pub fn last_windows(&self, end_ns: u64, count: usize) -> impl Iterator<Item = f64> {
        let all = usize::try_from(end_ns / WINDOW_NS).unwrap_or(usize::MAX);
        self.windows_until(end_ns).skip(all.saturating_sub(count))
    }

    /// Counts all whole windows up to `end_ns`, idle ones too.
    pub fn close(&mut self, end_ns: u64) {
        for cores in self.windows_until(end_ns).collect::<Vec<_>>() {
            let bin = usize::try_from(crate::rounded(cores / BIN_CORES)).unwrap_or(usize::MAX);
            if self.bins.len() <= bin {
                self.bins.resize(bin + 1, 0);
            }
            self.bins[bin] += 1;
        }
        self.windows_ns.clear();
    }

    /// Joins the counted windows of another time or place.
    pub fn merge(&mut self, other: &Self) {
        if self.bins.len() < other.bins.len() {
            self.bins.resize(other.bins.len(), 0);
        }
        for (bin, count) in self.bins.iter_mut().zip(&other.bins) {
            *bin += count;
        }
    }

    /// How many windows there are.
    #[must_use]
    pub fn windows(&self) -> u64 {
        self.bins.iter().sum()
    }

    /// Whether a bin counts windows with more cores in use than `cores`.
    #[must_use]
    pub fn is_above(bin: usize, cores: f64) -> bool {
        bin as f64 * BIN_CORES > cores + BIN_CORES / 2.0
    }

    /// The share of windows with more cores in use than `cores`.
    #[must_use]
    pub fn share_above(&self, cores: f64) -> f64 {
        let above: u64 = self
            .bins
            .iter()
            .enumerate()
            .filter(|(bin, _)| Self::is_above(*bin, cores))
            .map(|(_, count)| count)
            .sum();
        above as f64 / self.windows().max(1) as f64
    }

    /// Mean cores in use, to the width of a bin.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let sum: f64 = self
            .bins
            .iter()
            .enumerate()
            .map(|(bin, count)| bin as f64 * *count as f64)
            .sum();
        BIN_CORES * sum / self.windows().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_fall_into_windows() {
        let mut cores = Cores::default();
        // Two CPUs: one busy for 15 ms, one for the second window.
        cores.add(0, 15_000_000);
        cores.add(10_000_000, 20_000_000);
        cores.close(40_000_000);
        assert_eq!(cores.windows(), 4);
        assert_eq!(cores.bins[0], 2);
        assert_eq!((cores.bins[10], cores.bins[15]), (1, 1));
        assert!((cores.share_above(1.0) - 0.25).abs() < 1e-12);
        assert!((cores.mean() - 0.625).abs() < 1e-12);
    }
}
