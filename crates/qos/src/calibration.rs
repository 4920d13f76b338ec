//! From measured points to a model: the cost of a write, and the curve.

use serde::{Deserialize, Serialize};

use crate::{Column, Costs, Curve, CurveError, CurvePoint, DeviceModel, READ_COST, rounded};

/// The cost of a write where none was measured, in tokens: 20 reads, as in ReFlex.
pub const ASSUMED_WRITE_COST: u32 = 2000;
/// Costs of a write that are tried, in tokens.
const WRITE_COST: (f64, f64) = (10.0, 10_000.0);
/// Costs that are tried, evenly by their logarithm: steps of 0.5 %.
const TRIES: u32 = 1400;
/// Latencies at which rates of different shares of reads are compared.
const LEVELS: u32 = 12;

/// What one load of a device showed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalibrationPoint {
    /// Share of reads, 0 to 1.
    pub read_share: f64,
    /// Requests of 4 KiB a second.
    pub iops: f64,
    /// 95th percentile of the latency of reads, in microseconds.
    pub p95_us: f64,
}

/// Why points are no calibration.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CalibrationError {
    /// Nothing was measured with reads alone.
    #[error("no load with reads alone was measured")]
    NoReads,
    /// The points are no curve.
    #[error(transparent)]
    Curve(#[from] CurveError),
}

/// The points of one share, by rising rate and rising latency: at this latency the device did so
/// many requests a second.
struct Sweep {
    read_share: f64,
    /// (p95 in microseconds, IOPS)
    points: Vec<(f64, f64)>,
}

impl Sweep {
    fn new(read_share: f64, points: &[CalibrationPoint]) -> Self {
        let is_of_share = |point: &&CalibrationPoint| (point.read_share - read_share).abs() < 1e-9;
        let mut points: Vec<(f64, f64)> = points
            .iter()
            .filter(is_of_share)
            .map(|point| (point.p95_us, point.iops))
            .collect();
        points.sort_by(|a, b| a.1.total_cmp(&b.1));
        // A faster tail at a higher rate is scatter: the slower one counts.
        let mut rising: Vec<(f64, f64)> = Vec::new();
        for (p95_us, iops) in points {
            match rising.last_mut() {
                Some(last) if p95_us <= last.0 * 1.001 => last.1 = iops,
                _ => rising.push((p95_us, iops)),
            }
        }
        Self {
            read_share,
            points: rising,
        }
    }

    /// Requests a second at a latency; `None` below the first point.
    fn iops_at(&self, p95_us: f64) -> Option<f64> {
        let after = self.points.partition_point(|point| point.0 <= p95_us);
        let before = self.points.get(after.checked_sub(1)?)?;
        let Some(next) = self.points.get(after) else {
            return Some(before.1);
        };
        let share = (p95_us - before.0) / (next.0 - before.0);
        Some(before.1 + share * (next.1 - before.1))
    }

    fn cost(&self, write: f64) -> f64 {
        self.read_share * f64::from(READ_COST) + (1.0 - self.read_share) * write
    }
}

/// Fits a model to measured points: the cost of a write that makes the curves of all shares of
/// reads with writes overlap (ReFlex, section 3.2.1), and for each latency the lowest of their
/// rates.
///
/// # Errors
/// See [`CalibrationError`].
pub fn fit(points: &[CalibrationPoint]) -> Result<DeviceModel, CalibrationError> {
    let mut shares: Vec<f64> = points.iter().map(|point| point.read_share).collect();
    shares.sort_by(f64::total_cmp);
    shares.dedup_by(|a, b| (*a - *b).abs() < 1e-9);
    let (pure, mixed): (Vec<f64>, Vec<f64>) =
        shares.into_iter().partition(|share| *share > 1.0 - 1e-9);
    let Some(pure) = pure.first() else {
        return Err(CalibrationError::NoReads);
    };
    let read_only = Sweep::new(*pure, points);
    let sweeps: Vec<Sweep> = mixed
        .iter()
        .map(|share| Sweep::new(*share, points))
        .collect();
    let read_only_column = column(read_only.points.iter().map(|point| CurvePoint {
        p95_us: point.0,
        tokens_per_s: point.1 * f64::from(READ_COST),
    }))?;
    let write = write_cost(&sweeps, &read_only);
    let mixed = match sweeps.is_empty() {
        true => None,
        false => Some(envelope(&sweeps, write)?),
    };
    Ok(DeviceModel {
        costs: Costs::new(u32::try_from(rounded(write)).unwrap_or(u32::MAX)),
        curve: Curve {
            mixed,
            read_only: read_only_column,
        },
    })
}

fn column(points: impl Iterator<Item = CurvePoint>) -> Result<Column, CurveError> {
    let mut rising: Vec<CurvePoint> = Vec::new();
    for mut point in points {
        if let Some(last) = rising.last_mut() {
            point.tokens_per_s = point.tokens_per_s.max(last.tokens_per_s);
            if point.p95_us <= last.p95_us {
                last.tokens_per_s = point.tokens_per_s;
                continue;
            }
        }
        rising.push(point);
    }
    Column::new(rising)
}

/// Latencies at which all sweeps have a rate and most are still below their highest one.
fn levels(sweeps: &[Sweep]) -> Vec<f64> {
    let first = |sweep: &Sweep| sweep.points.first().map_or(0.0, |point| point.0);
    let last = |sweep: &Sweep| sweep.points.last().map_or(0.0, |point| point.0);
    let low = sweeps.iter().map(first).fold(0.0, f64::max);
    let high = sweeps.iter().map(last).fold(f64::INFINITY, f64::min);
    let high = high.max(low);
    (0..=LEVELS)
        .map(|level| low * (high / low).powf(f64::from(level) / f64::from(LEVELS)))
        .collect()
}

/// The cost at which the rates of all sweeps, in tokens, differ least. One sweep alone is compared
/// with reads alone. Without writes a write costs as much as ReFlex assumes.
fn write_cost(sweeps: &[Sweep], read_only: &Sweep) -> f64 {
    if sweeps.is_empty() {
        return f64::from(ASSUMED_WRITE_COST);
    }
    let mut compared: Vec<&Sweep> = sweeps.iter().collect();
    if compared.len() == 1 {
        compared.push(read_only);
    }
    let levels = levels(sweeps);
    let spread = |write: f64| -> f64 {
        let at_level = |level: &f64| {
            let logs: Vec<f64> = compared
                .iter()
                .filter_map(|sweep| Some((sweep.iops_at(*level)? * sweep.cost(write)).ln()))
                .collect();
            let mean = logs.iter().sum::<f64>() / logs.len().max(1) as f64;
            logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>()
        };
        levels.iter().map(at_level).sum()
    };
    let candidate = |index: u32| {
        WRITE_COST.0 * (WRITE_COST.1 / WRITE_COST.0).powf(f64::from(index) / f64::from(TRIES))
    };
    (0..=TRIES)
        .map(candidate)
        .min_by(|a, b| spread(*a).total_cmp(&spread(*b)))
        .unwrap_or(f64::from(ASSUMED_WRITE_COST))
}

/// For each latency the lowest rate of all shares: what holds whatever the tenants' mixture is.
fn envelope(sweeps: &[Sweep], write: f64) -> Result<Column, CurveError> {
    let low = levels(sweeps).first().copied().unwrap_or(0.0);
    let mut at_us: Vec<f64> = sweeps
        .iter()
        .flat_map(|sweep| sweep.points.iter().map(|point| point.0))
        .filter(|p95_us| *p95_us >= low)
        .collect();
    at_us.sort_by(f64::total_cmp);
    at_us.dedup_by(|a, b| *a <= *b * 1.01);
    let lowest = |p95_us: &f64| {
        sweeps
            .iter()
            .filter_map(|sweep| Some(sweep.iops_at(*p95_us)? * sweep.cost(write)))
            .fold(f64::INFINITY, f64::min)
    };
    column(at_us.iter().map(|p95_us| CurvePoint {
        p95_us: *p95_us,
        tokens_per_s: lowest(p95_us),
    }))
}

#[cfg(test)]
mod tests {
    use rand::{Rng as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::Operation;
    use crate::simulated::p3600_model;

    /// What a calibration would see on a device with a model, with 3 % of scatter.
    fn measured(model: &DeviceModel, shares: &[f64]) -> Vec<CalibrationPoint> {
        let mut random = ChaCha8Rng::seed_from_u64(3);
        let mut points = Vec::new();
        for &read_share in shares {
            let column = match (&model.curve.mixed, read_share < 1.0) {
                (Some(mixed), true) => mixed,
                _ => &model.curve.read_only,
            };
            let cost = read_share * 100.0
                + (1.0 - read_share) * f64::from(model.costs.of_block(Operation::Write));
            for step in 1..=12 {
                let tokens = column.max_tokens_per_s() * f64::from(step) / 12.0;
                points.push(CalibrationPoint {
                    read_share,
                    iops: tokens / cost,
                    p95_us: column.p95_us_at(tokens) * random.random_range(0.97..1.03),
                });
            }
        }
        points
    }

    #[test]
    fn the_model_that_made_the_points_is_found() {
        let truth = p3600_model();
        let fitted = fit(&measured(&truth, &[1.0, 0.99, 0.95, 0.9, 0.75, 0.5])).unwrap();
        let write = f64::from(fitted.costs.of_block(Operation::Write));
        assert!((write / 1000.0 - 1.0).abs() < 0.1, "{write}");
        let columns = [
            (&truth.curve.read_only, &fitted.curve.read_only),
            (
                truth.curve.mixed.as_ref().unwrap(),
                fitted.curve.mixed.as_ref().unwrap(),
            ),
        ];
        for (truth, fitted) in columns {
            for p95_us in [400.0, 500.0, 1000.0, 1500.0] {
                let (is, was) = (
                    fitted.tokens_per_s_at(p95_us).unwrap(),
                    truth.tokens_per_s_at(p95_us).unwrap(),
                );
                // The lowest of five sweeps lies below the truth rather than above it.
                assert!(is < 1.06 * was && is > 0.75 * was, "{p95_us}: {is} {was}");
            }
        }
    }

    #[test]
    fn a_cheap_write_is_found_too_and_one_share_is_enough() {
        let mut truth = p3600_model();
        truth.costs = Costs::new(220);
        truth.curve.mixed = Some(truth.curve.read_only.clone());
        for shares in [&[1.0, 0.9, 0.75, 0.5][..], &[1.0, 0.5]] {
            let fitted = fit(&measured(&truth, shares)).unwrap();
            let write = f64::from(fitted.costs.of_block(Operation::Write));
            assert!((write / 220.0 - 1.0).abs() < 0.15, "{shares:?}: {write}");
        }
    }

    #[test]
    fn reads_alone_leave_writes_unknown_and_no_reads_are_an_error() {
        let truth = p3600_model();
        let fitted = fit(&measured(&truth, &[1.0])).unwrap();
        assert!(fitted.curve.mixed.is_none());
        assert_eq!(
            fit(&measured(&truth, &[0.9])),
            Err(CalibrationError::NoReads)
        );
        assert_eq!(fit(&[]), Err(CalibrationError::NoReads));
        let broken = CalibrationPoint {
            read_share: 1.0,
            iops: 0.0,
            p95_us: 100.0,
        };
        assert!(matches!(fit(&[broken]), Err(CalibrationError::Curve(_))));
    }
}
