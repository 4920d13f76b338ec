//! A histogram with one writer and any number of readers, without locks.

use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets for each doubling: a value is known to within 12.5 %.
const SUB_BUCKETS: usize = 8;
const SUB_BITS: u32 = 3;
/// Values up to 2³⁶ (69 s in nanoseconds) are told apart; larger ones count as the largest.
const OCTAVES: usize = 34;
const BUCKETS: usize = SUB_BUCKETS * OCTAVES;

/// Counts of values in logarithmic buckets. Only one thread may call [`Histogram::record`]:
/// additions are not atomic, so that recording costs no locked instruction.
#[derive(Debug)]
pub struct Histogram {
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }
}

/// Adds to a counter that only the calling thread writes.
pub fn add(counter: &AtomicU64, amount: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(amount),
        Ordering::Relaxed,
    );
}

fn bucket_of(value: u64) -> usize {
    let small = usize::try_from(value).unwrap_or(usize::MAX);
    if small < SUB_BUCKETS {
        return small;
    }
    let octave = 63 - value.leading_zeros();
    let sub = usize::try_from(value >> (octave - SUB_BITS)).unwrap_or(0) & (SUB_BUCKETS - 1);
    let index = (octave - SUB_BITS + 1) as usize * SUB_BUCKETS + sub;
    index.min(BUCKETS - 1)
}

/// The largest value of a bucket.
fn upper_edge(bucket: usize) -> u64 {
    if bucket < SUB_BUCKETS {
        return bucket as u64;
    }
    let octave = (bucket / SUB_BUCKETS - 1) as u64;
    let sub = (bucket % SUB_BUCKETS + SUB_BUCKETS) as u64;
    ((sub + 1) << octave) - 1
}

impl Histogram {
    /// Counts `value` `times` times.
    pub fn record(&self, value: u64, times: u64) {
        add(&self.counts[bucket_of(value)], times);
        add(&self.sum, value.wrapping_mul(times));
    }

    /// The counts now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            counts: self
                .counts
                .iter()
                .map(|count| count.load(Ordering::Relaxed))
                .collect(),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

/// Counts at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    counts: Vec<u64>,
    /// Sum of all values.
    pub sum: u64,
}

impl Snapshot {
    /// Number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What was counted since `earlier`, a snapshot of the same histogram.
    pub fn since(&self, earlier: &Self) -> Self {
        let before = earlier.counts.iter().copied().chain(std::iter::repeat(0));
        Self {
            counts: self
                .counts
                .iter()
                .zip(before)
                .map(|(now, then)| now.wrapping_sub(then))
                .collect(),
            sum: self.sum.wrapping_sub(earlier.sum),
        }
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.counts
            .resize(self.counts.len().max(other.counts.len()), 0);
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.wrapping_add(*more);
        }
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// The value that a share of `quantile` (0 to 1) of all values does not exceed, to within 12.5
    /// % above. 0 without values.
    pub fn quantile(&self, quantile: f64) -> u64 {
        let total = self.count();
        let mut seen = 0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen += count;
            if seen > 0 && seen as f64 >= quantile * total as f64 {
                return upper_edge(bucket);
            }
        }
        0
    }

    /// Number of values up to `limit`, counted by whole buckets.
    pub fn count_up_to(&self, limit: u64) -> u64 {
        self.counts
            .iter()
            .enumerate()
            .take_while(|(bucket, _)| upper_edge(*bucket) <= limit)
            .map(|(_, count)| count)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_value_lies_in_its_bucket(value in 0_u64..1 << 36) {
            let bucket = bucket_of(value);
            prop_assert!(value <= upper_edge(bucket));
            if bucket > 0 {
                prop_assert!(value > upper_edge(bucket - 1));
            }
            prop_assert!(upper_edge(bucket) as f64 <= (value as f64 * 1.125).max(value as f64 + 0.5));
        }
    }

    #[test]
    fn quantiles_and_differences_of_snapshots() {
        let histogram = Histogram::default();
        histogram.record(5, 98);
        let before = histogram.snapshot();
        histogram.record(1000, 2);
        histogram.record(u64::MAX >> 8, 1);
        let all = histogram.snapshot();
        assert_eq!(all.quantile(0.5), 5);
        assert!((1000..=1125).contains(&all.quantile(0.985)));
        assert_eq!(all.since(&before).count(), 3);
        assert_eq!(Snapshot::default().quantile(0.99), 0);
    }
}
