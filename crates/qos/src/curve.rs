//! A device's calibration: how many tokens a second it takes at a tail latency.

use serde::{Deserialize, Serialize};

use crate::{Costs, Grouped};

/// At this 95th percentile of read latency the device takes so many tokens a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// 95th percentile of the latency of reads, in microseconds.
    pub p95_us: f64,
    /// Tokens a second.
    pub tokens_per_s: f64,
}

/// Points by rising latency and rising rate; between them the curve is straight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<CurvePoint>", into = "Vec<CurvePoint>")]
pub struct Column(Vec<CurvePoint>);

/// Points of a column at most: a calibration has a dozen.
pub const POINTS_MAX: usize = 1_000;
/// The longest latency of a point, in microseconds: an hour.
const P95_US_MAX: u64 = 3_600_000_000;
/// The highest rate of a point, in tokens a second: 10 billion reads of 4 KiB.
const TOKENS_PER_S_MAX: u64 = 1_000_000_000_000;

/// Why points are no curve.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CurveError {
    /// There are no points.
    #[error("a calibration curve needs at least one point")]
    Empty,
    /// There are too many points.
    #[error("a calibration curve has at most {} points, and this one has {points}", Grouped(POINTS_MAX as u64))]
    TooMany {
        /// Number of points.
        points: usize,
    },
    /// A latency or a rate makes no sense.
    #[error("point {index} of the calibration curve: {key} must be above 0 and at most {}", Grouped(*max))]
    OutOfRange {
        /// Index of the point, from 0.
        index: usize,
        /// The number.
        key: &'static str,
        /// What it may be at most.
        max: u64,
    },
    /// A point does not follow the one before it.
    #[error(
        "point {index} of the calibration curve does not rise: latencies must rise and rates may not fall from point to point"
    )]
    NotRising {
        /// Index of the point, from 0.
        index: usize,
    },
}

impl Column {
    /// Checks the points.
    ///
    /// # Errors
    /// See [`CurveError`].
    pub fn new(points: Vec<CurvePoint>) -> Result<Self, CurveError> {
        if points.is_empty() {
            return Err(CurveError::Empty);
        }
        if points.len() > POINTS_MAX {
            let points = points.len();
            return Err(CurveError::TooMany { points });
        }
        for (index, point) in points.iter().enumerate() {
            let numbers = [
                ("p95_us", point.p95_us, P95_US_MAX),
                ("tokens_per_s", point.tokens_per_s, TOKENS_PER_S_MAX),
            ];
            for (key, value, max) in numbers {
                if !(value > 0.0 && value <= max as f64) {
                    return Err(CurveError::OutOfRange { index, key, max });
                }
            }
        }
        for (index, pair) in points.windows(2).enumerate() {
            if pair[1].p95_us <= pair[0].p95_us || pair[1].tokens_per_s < pair[0].tokens_per_s {
                return Err(CurveError::NotRising { index: index + 1 });
            }
        }
        Ok(Self(points))
    }

    /// The points.
    pub fn points(&self) -> &[CurvePoint] {
        &self.0
    }

    /// Tokens a second at a 95th percentile, by linear interpolation. `None` below the first point:
    /// the device was never seen to be so fast. Beyond the last point its rate holds.
    pub fn tokens_per_s_at(&self, p95_us: f64) -> Option<f64> {
        let after = self.0.partition_point(|point| point.p95_us <= p95_us);
        let before = self.0.get(after.checked_sub(1)?)?;
        let Some(next) = self.0.get(after) else {
            return Some(before.tokens_per_s);
        };
        let share = (p95_us - before.p95_us) / (next.p95_us - before.p95_us);
        Some(before.tokens_per_s + share * (next.tokens_per_s - before.tokens_per_s))
    }

    /// The 95th percentile that is expected at a rate, in microseconds; the first point's below it,
    /// the last point's beyond it.
    pub fn p95_us_at(&self, tokens_per_s: f64) -> f64 {
        let after = self
            .0
            .partition_point(|point| point.tokens_per_s <= tokens_per_s);
        let last = self.0[self.0.len() - 1];
        let (Some(before), Some(next)) = (
            after.checked_sub(1).and_then(|index| self.0.get(index)),
            self.0.get(after),
        ) else {
            return if after == 0 {
                self.0[0].p95_us
            } else {
                last.p95_us
            };
        };
        let share =
            (tokens_per_s - before.tokens_per_s) / (next.tokens_per_s - before.tokens_per_s);
        before.p95_us + share * (next.p95_us - before.p95_us)
    }

    /// The highest rate that was seen, whatever the latency.
    pub fn max_tokens_per_s(&self) -> f64 {
        self.0[self.0.len() - 1].tokens_per_s
    }

    /// The lowest 95th percentile that was seen, in microseconds.
    pub fn min_p95_us(&self) -> f64 {
        self.0[0].p95_us
    }

    /// The column with each latency multiplied by a factor of its own, kept rising.
    pub(crate) fn scaled(&self, factors: &[f64]) -> Self {
        let mut points = self.0.clone();
        let mut least = 0.0;
        for (point, factor) in points.iter_mut().zip(factors) {
            point.p95_us = (point.p95_us * factor).max(least);
            // A thousandth more keeps the column rising.
            least = point.p95_us * 1.001;
        }
        Self(points)
    }
}

impl TryFrom<Vec<CurvePoint>> for Column {
    type Error = CurveError;

    fn try_from(points: Vec<CurvePoint>) -> Result<Self, CurveError> {
        Self::new(points)
    }
}

impl From<Column> for Vec<CurvePoint> {
    fn from(column: Column) -> Self {
        column.0
    }
}

/// The curve of a device, with a column of its own for the time in which nobody writes: reads are
/// cheaper then (ReFlex, section 3.2.1; on the P3600 by half).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// While some tenant may write. `None` where only reads were calibrated.
    pub mixed: Option<Column>,
    /// While all tenants only read.
    pub read_only: Column,
}

/// What a calibration knows about a device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceModel {
    /// Prices of requests.
    pub costs: Costs,
    /// Tokens a second by latency.
    pub curve: Curve,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn column(points: &[(f64, f64)]) -> Result<Column, CurveError> {
        let point = |&(p95_us, tokens_per_s): &(f64, f64)| CurvePoint {
            p95_us,
            tokens_per_s,
        };
        Column::new(points.iter().map(point).collect())
    }

    #[test]
    fn rates_are_interpolated_and_never_promised_below_the_first_point() {
        let column = column(&[(100.0, 10.0), (200.0, 30.0), (400.0, 30.0)]).unwrap();
        assert_eq!(column.tokens_per_s_at(99.9), None);
        assert_eq!(column.tokens_per_s_at(100.0), Some(10.0));
        assert_eq!(column.tokens_per_s_at(150.0), Some(20.0));
        assert_eq!(column.tokens_per_s_at(300.0), Some(30.0));
        assert_eq!(column.tokens_per_s_at(9999.0), Some(30.0));
        assert!((column.p95_us_at(1.0) - 100.0).abs() < 1e-9);
        assert!((column.p95_us_at(20.0) - 150.0).abs() < 1e-9);
        assert!((column.p95_us_at(31.0) - 400.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_no_curve_is_refused() {
        assert_eq!(column(&[]), Err(CurveError::Empty));
        for (point, expected) in [
            (
                (0.0, 2.0),
                "p95_us must be above 0 and at most 3,600,000,000",
            ),
            (
                (4e9, 2.0),
                "p95_us must be above 0 and at most 3,600,000,000",
            ),
            (
                (2.0, f64::NAN),
                "tokens_per_s must be above 0 and at most 1,000,000,000,000",
            ),
            (
                (2.0, 1e300),
                "tokens_per_s must be above 0 and at most 1,000,000,000,000",
            ),
        ] {
            let error = column(&[(1.0, 1.0), point]).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("point 1 of the calibration curve: {expected}")
            );
        }
        let many: Vec<(f64, f64)> = (1..=1001).map(|at| (f64::from(at), 1.0)).collect();
        assert!(column(&many[1..]).is_ok());
        assert_eq!(column(&many), Err(CurveError::TooMany { points: 1001 }));
        assert_eq!(
            column(&[(1.0, 1.0), (1.0, 2.0)]),
            Err(CurveError::NotRising { index: 1 })
        );
        assert_eq!(
            column(&[(1.0, 2.0), (2.0, 1.0)]),
            Err(CurveError::NotRising { index: 1 })
        );
    }

    proptest! {
        #[test]
        fn both_directions_agree(
            steps in prop::collection::vec((1.0_f64..1000.0, 1.0_f64..1e6), 1..8),
            at in 0.0_f64..1.0,
        ) {
            let mut sum = (0.0, 0.0);
            let points: Vec<(f64, f64)> = steps
                .iter()
                .map(|step| {
                    sum = (sum.0 + step.0, sum.1 + step.1);
                    sum
                })
                .collect();
            let column = column(&points).unwrap();
            let p95_us = column.min_p95_us() + at * (sum.0 - column.min_p95_us());
            let rate = column.tokens_per_s_at(p95_us).unwrap();
            prop_assert!((column.p95_us_at(rate) - p95_us).abs() <= 1e-6 * p95_us);
            prop_assert!(rate <= column.max_tokens_per_s());
        }
    }
}
