//! Latencies as counts: a fine histogram, a service's own buckets, or one figure that somebody else
//! has computed.

use hdrhistogram::Histogram;

/// Digits that the fine histogram keeps: a latency is off by less than 0.1 %.
const DIGITS: u8 = 3;

/// Latencies of some requests.
#[derive(Clone, Debug, Default)]
pub enum Distribution {
    /// No request.
    #[default]
    Empty,
    /// Each request counted, in nanoseconds.
    Fine(Fine),
    /// A service's own buckets.
    Buckets(Buckets),
    /// One figure that somebody else has computed of so many requests.
    Figure {
        /// The quantile that it is, 0 to 1.
        quantile: f64,
        /// The figure, in microseconds.
        value_us: f64,
        /// Requests that it stands on.
        requests: u64,
    },
}

impl Distribution {
    /// How many requests there are.
    #[must_use]
    pub fn requests(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Fine(fine) => fine.requests(),
            Self::Buckets(buckets) => buckets.requests(),
            Self::Figure { requests, .. } => *requests,
        }
    }

    /// A quantile, 0 to 1, in microseconds. `None` of nothing, and of a figure that is another
    /// quantile.
    #[must_use]
    pub fn quantile_us(&self, quantile: f64) -> Option<f64> {
        match self {
            Self::Empty => None,
            Self::Fine(fine) => fine.quantile_us(quantile),
            Self::Buckets(buckets) => buckets.quantile_us(quantile),
            Self::Figure {
                quantile: of,
                value_us,
                ..
            } => ((of - quantile).abs() < 1e-9).then_some(*value_us),
        }
    }

    /// How many requests took longer than this, in microseconds. `None` where there is no request,
    /// and where only one figure of them is known.
    #[must_use]
    pub fn above(&self, limit_us: f64) -> Option<u64> {
        match self {
            Self::Empty | Self::Figure { .. } => None,
            Self::Fine(fine) => Some(fine.above(limit_us)),
            Self::Buckets(buckets) => Some(buckets.above(limit_us)),
        }
    }

    /// Joins what came later. Figures of one quantile become their mean by requests: the quantile
    /// of all these requests is not known, and lies between the lowest and the highest figure. What
    /// cannot be joined (other buckets, another quantile) is replaced by what came later.
    pub fn merge(&mut self, later: &Self) {
        match (&mut *self, later) {
            (_, Self::Empty) => {}
            (Self::Fine(mine), Self::Fine(later)) => mine.merge(later),
            (Self::Buckets(mine), Self::Buckets(later)) if mine.bounds_us == later.bounds_us => {
                for (mine, later) in mine.counts.iter_mut().zip(&later.counts) {
                    *mine += later;
                }
            }
            (
                Self::Figure {
                    quantile,
                    value_us,
                    requests,
                },
                Self::Figure {
                    quantile: later_quantile,
                    value_us: later_us,
                    requests: later_requests,
                },
            ) if (*quantile - later_quantile).abs() < 1e-9 => {
                let sum = requests.saturating_add(*later_requests);
                let part = *later_requests as f64 / sum.max(1) as f64;
                *value_us += part * (later_us - *value_us);
                *requests = sum;
            }
            _ => *self = later.clone(),
        }
    }
}

/// A histogram of latencies with a relative error below 0.1 %, which grows with the longest
/// latency.
#[derive(Clone, Debug)]
pub struct Fine(Histogram<u32>);

impl Default for Fine {
    fn default() -> Self {
        #[expect(clippy::expect_used, reason = "0 to 5 digits are allowed")]
        let mut empty = Histogram::new(DIGITS).expect("three digits are allowed");
        empty.auto(true);
        Self(empty)
    }
}

impl Fine {
    /// Counts one request.
    pub fn record_ns(&mut self, latency_ns: u64) {
        self.record_times_ns(latency_ns, 1);
    }

    /// Counts so many requests of one latency.
    pub fn record_times_ns(&mut self, latency_ns: u64, times: u64) {
        let times = u32::try_from(times).unwrap_or(u32::MAX);
        // It grows by itself, up to 146 years: nothing is left that fails.
        let _ = self.0.record_n(latency_ns.clamp(1, 1 << 62), times);
    }

    /// How many requests there are.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.0.len()
    }

    /// A quantile, 0 to 1, in microseconds.
    #[must_use]
    pub fn quantile_us(&self, quantile: f64) -> Option<f64> {
        if self.0.is_empty() {
            return None;
        }
        let bucket_ns = self.0.value_at_quantile(quantile);
        Some(self.0.median_equivalent(bucket_ns) as f64 / 1000.0)
    }

    /// Requests that took longer than this, to within the histogram's relative error.
    fn above(&self, limit_us: f64) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast saturates, and no latency is below 0"
        )]
        let limit_ns = ((1000.0 * limit_us) as u64).min(1 << 62);
        let (first, last) = (self.0.next_non_equivalent(limit_ns), self.0.max());
        match first <= last {
            true => self.0.count_between(first, last),
            false => 0,
        }
    }

    /// The mean, in microseconds.
    #[must_use]
    pub fn mean_us(&self) -> f64 {
        self.0.mean() / 1000.0
    }

    /// Joins another one.
    pub fn merge(&mut self, other: &Self) {
        // It grows by itself, and both have the same digits: nothing is left that fails.
        let _ = self.0.add(&other.0);
    }

    /// Takes away what was joined before. `false` where that was never joined: then the counts mean
    /// nothing any more.
    #[must_use]
    pub(crate) fn remove(&mut self, other: &Self) -> bool {
        self.0.subtract(&other.0).is_ok()
    }

    /// Removes all requests.
    pub fn clear(&mut self) {
        self.0.reset();
    }
}

/// Counts of requests by upper bounds of their latency, as Prometheus has them, but each bucket
/// alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buckets {
    /// Upper bounds in microseconds, ascending; the last is infinity.
    bounds_us: Vec<f64>,
    /// Requests within each bucket; a fraction where Prometheus has extrapolated.
    counts: Vec<f64>,
}

impl Buckets {
    /// From cumulative counts by upper bound, in any order.
    ///
    /// # Errors
    /// There is no bucket, or no infinite one, or the counts fall.
    pub fn from_cumulative(mut cumulative: Vec<(f64, f64)>) -> Result<Self, String> {
        cumulative.sort_by(|a, b| a.0.total_cmp(&b.0));
        if cumulative.last().is_none_or(|last| last.0 != f64::INFINITY) {
            return Err("the histogram has no bucket le=\"+Inf\"".to_owned());
        }
        let mut below = 0.0;
        let mut counts = Vec::with_capacity(cumulative.len());
        for (_, count) in &cumulative {
            if !count.is_finite() || *count < below {
                return Err("the histogram's buckets are not cumulative".to_owned());
            }
            counts.push(count - below);
            below = *count;
        }
        Ok(Self {
            bounds_us: cumulative.into_iter().map(|(bound, _)| bound).collect(),
            counts,
        })
    }

    /// What came since an earlier look; `None` where a count fell or the buckets are others: the
    /// counters were reset.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Option<Self> {
        if self.bounds_us != earlier.bounds_us {
            return None;
        }
        let pairs = self.counts.iter().zip(&earlier.counts);
        let counts: Vec<f64> = pairs.map(|(now, then)| now - then).collect();
        counts.iter().all(|count| *count >= 0.0).then(|| Self {
            bounds_us: self.bounds_us.clone(),
            counts,
        })
    }

    /// How many requests there are, rounded down.
    #[must_use]
    pub fn requests(&self) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "counts are finite and not below 0, and a cast saturates"
        )]
        let whole = self.counts.iter().sum::<f64>() as u64;
        whole
    }

    /// Requests that took longer than this, interpolated within the bucket. How long those beyond
    /// the last bound took is not known: they count as slower than any limit.
    fn above(&self, limit_us: f64) -> u64 {
        let mut lower_us = 0.0;
        let mut above = 0.0;
        for (bound_us, count) in self.bounds_us.iter().zip(&self.counts) {
            let width_us = bound_us - lower_us;
            above += match bound_us.is_infinite() {
                true => *count,
                false if width_us > 0.0 => {
                    count * ((bound_us - limit_us) / width_us).clamp(0.0, 1.0)
                }
                false => 0.0,
            };
            lower_us = *bound_us;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "counts are finite and not below 0, and a cast saturates"
        )]
        let whole = above.round() as u64;
        whole.min(self.requests())
    }

    /// A quantile, interpolated within its bucket as Prometheus' `histogram_quantile` does. In the
    /// infinite bucket it is that bucket's lower bound.
    #[must_use]
    pub fn quantile_us(&self, quantile: f64) -> Option<f64> {
        let total: f64 = self.counts.iter().sum();
        if total <= 0.0 {
            return None;
        }
        let (rank, mut below) = (quantile * total, 0.0);
        let mut lower_us = 0.0;
        for (bound_us, count) in self.bounds_us.iter().zip(&self.counts) {
            if below + count >= rank && *count > 0.0 {
                if bound_us.is_infinite() {
                    return Some(lower_us);
                }
                let part = ((rank - below) / count).clamp(0.0, 1.0);
                return Some(lower_us + (bound_us - lower_us) * part);
            }
            below += count;
            lower_us = *bound_us;
        }
        Some(lower_us).filter(|it| it.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fine_histogram_is_off_by_less_than_a_thousandth() {
        let mut fine = Fine::default();
        assert_eq!(fine.quantile_us(0.5), None);
        (1..=100_000_u64).for_each(|us| fine.record_ns(us * 1000));
        for quantile in [0.5_f64, 0.95, 0.99, 1.0] {
            let found = fine.quantile_us(quantile).unwrap();
            assert!(
                (found / (quantile * 100_000.0) - 1.0).abs() < 1e-3,
                "{quantile}: {found}"
            );
        }
    }

    #[test]
    fn buckets_are_interpolated_as_prometheus_does() {
        let buckets =
            Buckets::from_cumulative(vec![(f64::INFINITY, 100.0), (1000.0, 50.0), (2000.0, 90.0)])
                .unwrap();
        assert_eq!(buckets.requests(), 100);
        assert_eq!(buckets.quantile_us(0.25), Some(500.0));
        assert_eq!(buckets.quantile_us(0.7), Some(1500.0));
        assert_eq!(buckets.quantile_us(0.99), Some(2000.0));
    }

    #[test]
    fn slow_requests_are_counted() {
        let mut fine = Fine::default();
        (1..=1000_u64).for_each(|us| fine.record_ns(us * 1000));
        let fine = Distribution::Fine(fine);
        for (limit_us, above) in [
            (0.0, 1000),
            (700.0, 300),
            (999.9, 0),
            (1000.0, 0),
            (1e12, 0),
        ] {
            let found = fine.above(limit_us).unwrap();
            assert!(found.abs_diff(above) <= 1, "{limit_us}: {found}");
        }
        let buckets =
            Buckets::from_cumulative(vec![(1000.0, 50.0), (2000.0, 90.0), (f64::INFINITY, 100.0)])
                .unwrap();
        let buckets = Distribution::Buckets(buckets);
        // What is beyond the last bound is slower than any limit.
        for (limit_us, above) in [
            (500.0, 75),
            (1000.0, 50),
            (1750.0, 20),
            (2000.0, 10),
            (9e9, 10),
        ] {
            assert_eq!(buckets.above(limit_us), Some(above), "{limit_us}");
        }
        assert_eq!(Distribution::Empty.above(1.0), None);
    }

    #[test]
    fn what_was_joined_can_be_taken_away_again() {
        let of = |latencies: &[u64]| {
            let mut fine = Fine::default();
            latencies.iter().for_each(|us| fine.record_ns(us * 1000));
            fine
        };
        let (old, new) = (of(&[10, 5000, 20]), of(&[30, 40]));
        let mut sum = old.clone();
        sum.merge(&new);
        assert!(sum.remove(&old));
        assert_eq!(sum.requests(), 2);
        assert!((sum.quantile_us(1.0).unwrap() - 40.0).abs() < 0.1);
        assert!(sum.remove(&new));
        assert_eq!((sum.requests(), sum.quantile_us(0.5)), (0, None));
        assert!(!sum.remove(&of(&[7])));
    }

    #[test]
    fn buckets_that_fell_are_a_reset_and_malformed_ones_are_refused() {
        let at = |low: f64, all: f64| {
            Buckets::from_cumulative(vec![(1000.0, low), (f64::INFINITY, all)]).unwrap()
        };
        assert_eq!(at(5.0, 9.0).since(&at(2.0, 4.0)), Some(at(3.0, 5.0)));
        assert_eq!(at(1.0, 9.0).since(&at(2.0, 4.0)), None);
        assert!(Buckets::from_cumulative(vec![(1000.0, 1.0)]).is_err());
        assert!(Buckets::from_cumulative(vec![(1.0, 3.0), (f64::INFINITY, 2.0)]).is_err());
        assert!(Buckets::from_cumulative(Vec::new()).is_err());
    }

    #[test]
    fn figures_are_joined_by_their_requests_and_other_quantiles_replace() {
        let figure = |quantile, value_us, requests| Distribution::Figure {
            quantile,
            value_us,
            requests,
        };
        let mut merged = figure(0.99, 1.0, 300);
        merged.merge(&figure(0.99, 2.0, 100));
        assert_eq!(merged.quantile_us(0.99), Some(1.25));
        assert_eq!((merged.quantile_us(0.5), merged.requests()), (None, 400));
        merged.merge(&Distribution::Empty);
        merged.merge(&figure(0.99, 9.0, 0));
        assert_eq!(
            (merged.quantile_us(0.99), merged.requests()),
            (Some(1.25), 400)
        );
        merged.merge(&figure(0.5, 3.0, 7));
        assert_eq!((merged.quantile_us(0.5), merged.requests()), (Some(3.0), 7));
    }
}
