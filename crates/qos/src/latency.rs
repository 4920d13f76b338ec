//! The latencies of a tenant in a window of time.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use crate::word::Word;

/// Buckets for each doubling; within a bucket values are taken as evenly spread, so that a
/// percentile is good to about 1 %.
const SUB_BITS: u32 = 4;
const SUB_BUCKETS: usize = 1 << SUB_BITS;
/// Up to 17 s.
const OCTAVES: usize = 25;
const BUCKETS: usize = SUB_BUCKETS * OCTAVES;

/// A histogram of latencies.
#[derive(Clone, Debug)]
pub struct LatencyWindow {
    counts: Box<[u32; BUCKETS]>,
    total: u32,
}

impl Default for LatencyWindow {
    fn default() -> Self {
        Self {
            counts: Box::new([0; BUCKETS]),
            total: 0,
        }
    }
}

/// The bucket of a latency. The narrowest are 64 ns wide.
fn bucket_of(latency_ns: u64) -> usize {
    let shifted = latency_ns >> (10 - SUB_BITS);
    let small = usize::try_from(shifted).unwrap_or(usize::MAX);
    if small < SUB_BUCKETS {
        return small;
    }
    let octave = 63 - shifted.leading_zeros();
    let sub = usize::try_from(shifted >> (octave - SUB_BITS)).unwrap_or(0) & (SUB_BUCKETS - 1);
    ((octave - SUB_BITS + 1) as usize * SUB_BUCKETS + sub).min(BUCKETS - 1)
}

/// The lower edge of a bucket, in nanoseconds.
fn edge_ns(bucket: usize) -> f64 {
    let unit = f64::from(1_u32 << (10 - SUB_BITS));
    if bucket < SUB_BUCKETS {
        return bucket as f64 * unit;
    }
    let octave = bucket / SUB_BUCKETS - 1;
    let sub = bucket % SUB_BUCKETS + SUB_BUCKETS;
    (sub as f64) * f64::from(1_u32 << octave) * unit
}

impl LatencyWindow {
    /// Counts a latency.
    pub fn record(&mut self, latency_ns: u64) {
        self.counts[bucket_of(latency_ns)] += 1;
        self.total += 1;
    }

    /// Number of latencies.
    pub fn count(&self) -> u32 {
        self.total
    }

    /// The 95th percentile, in microseconds; `None` without latencies.
    pub fn p95_us(&self) -> Option<f64> {
        self.quantile_us(0.95)
    }

    /// The latency that a share of `quantile` does not exceed, in microseconds.
    pub fn quantile_us(&self, quantile: f64) -> Option<f64> {
        if self.total == 0 {
            return None;
        }
        let wanted = quantile * f64::from(self.total);
        let mut before = 0.0;
        for (bucket, count) in self.counts.iter().enumerate() {
            let count = f64::from(*count);
            if count > 0.0 && before + count >= wanted {
                let (low, high) = (edge_ns(bucket), edge_ns(bucket + 1));
                return Some((low + (high - low) * (wanted - before) / count) / 1000.0);
            }
            before += count;
        }
        None
    }

    /// The share of latencies above one; 0 without latencies. A bucket is taken as evenly spread.
    pub(crate) fn share_above(&self, limit_us: f64) -> f64 {
        if self.total == 0 {
            return 0.0;
        }
        let limit_ns = limit_us * 1000.0;
        let above = |(bucket, count): (usize, &u32)| {
            let (low, high) = (edge_ns(bucket), edge_ns(bucket + 1));
            f64::from(*count) * ((high - limit_ns) / (high - low)).clamp(0.0, 1.0)
        };
        self.counts.iter().enumerate().map(above).sum::<f64>() / f64::from(self.total)
    }

    /// Forgets all latencies.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.total = 0;
    }
}

/// A histogram that several threads count in. Each bucket is a word of its own: a latency that is
/// counted while another thread drains is in this window or in the next one.
#[derive(Debug)]
pub(crate) struct Counts {
    counts: Box<[AtomicU32; BUCKETS]>,
    total: Word,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            counts: Box::new([const { AtomicU32::new(0) }; BUCKETS]),
            total: Word::default(),
        }
    }
}

impl Counts {
    pub(crate) fn record(&self, is_alone: bool, latency_ns: u64) {
        let count = &self.counts[bucket_of(latency_ns)];
        match is_alone {
            true => count.store(count.load(Relaxed).wrapping_add(1), Relaxed),
            false => {
                count.fetch_add(1, Relaxed);
            }
        }
        self.total.add(is_alone, 1);
    }

    pub(crate) fn count(&self) -> i64 {
        self.total.get()
    }

    /// Moves all latencies into a window.
    pub(crate) fn drain(&self, is_alone: bool, window: &mut LatencyWindow) {
        window.total = 0;
        for (count, drained) in self.counts.iter().zip(window.counts.iter_mut()) {
            *drained = match count.load(Relaxed) {
                0 => 0,
                _ => count.swap(0, Relaxed),
            };
            window.total += *drained;
        }
        self.total.add(is_alone, -i64::from(window.total));
    }

    pub(crate) fn clear(&self) {
        for count in self.counts.iter() {
            count.store(0, Relaxed);
        }
        self.total.set(0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_percentile_of_an_even_spread_is_exact_to_a_percent() {
        let mut window = LatencyWindow::default();
        assert_eq!(window.p95_us(), None);
        for latency_us in 1..=1000 {
            window.record(latency_us * 1000);
        }
        let p95_us = window.p95_us().unwrap();
        assert!((p95_us - 950.0).abs() < 10.0, "{p95_us}");
        for (limit_us, share) in [(0.0, 1.0), (900.0, 0.1), (p95_us, 0.05), (2000.0, 0.0)] {
            let seen = window.share_above(limit_us);
            assert!((seen - share).abs() < 0.01, "{seen} above {limit_us} µs");
        }
        window.clear();
        assert_eq!((window.count(), window.p95_us()), (0, None));
        assert_eq!(window.share_above(1.0), 0.0);
        window.record(u64::MAX);
        assert!(window.p95_us().unwrap() > 1e7);
    }

    proptest! {
        #[test]
        fn a_latency_lies_in_its_bucket(latency_ns in 0_u64..16_000_000_000) {
            let bucket = bucket_of(latency_ns);
            prop_assert!(edge_ns(bucket) <= latency_ns as f64);
            prop_assert!((latency_ns as f64) < edge_ns(bucket + 1));
        }
    }
}
