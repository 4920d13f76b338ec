//! What is known of a control that runs on, and whether it still is what it was at first.

use std::collections::BTreeMap;

use paired_stats::difference_interval;

use super::active_side::ActiveSide;
use crate::begun::ControlRun;
use crate::figures::change;
use crate::metrics::{SideMetrics, lookup};

/// A control that has not changed is started again in one evaluation of twenty.
const FALSE_RESTARTS: f64 = 0.05;

/// A smaller change of the control is of no consequence: 1 %, as a logarithm.
const EQUAL: f64 = 0.01;

/// Fewer blocks have no interval.
pub(super) const BLOCKS_MIN: usize = 2;

/// What every service with a load has, and what tells its age first.
const CPU: &str = "cpu_s_per_request";

/// A control from its start on.
pub(super) struct WarmControl {
    pub(super) run: ControlRun,
    /// What its files were given.
    pub(super) files: Vec<String>,
    /// Its blocks in its first evaluation.
    pub(super) first: Vec<SideMetrics>,
    /// Its blocks in this one.
    pub(super) now: Vec<SideMetrics>,
    /// Its side, between two evaluations.
    pub(super) resting: Option<ActiveSide>,
    /// Why it cannot be the next evaluation's.
    pub(super) unfit: Option<String>,
}

/// How the control differs from what it was in its first evaluation, if that is shown.
///
/// Blocks of two evaluations are compared by an interval of the difference of their logarithms
/// (Welch). It is looked at after each evaluation, which needs no correction: a false alarm costs
/// one restart, and the rate is that of one look.
pub(super) fn drift(objective: &str, first: &[SideMetrics], now: &[SideMetrics]) -> Option<String> {
    let mut metrics = vec![CPU];
    metrics.extend(Some(objective).filter(|it| *it != CPU));
    let logs = |blocks: &[SideMetrics], metric: &str| -> Vec<f64> {
        let values = blocks.iter().filter_map(|block| lookup(block, metric));
        let values = values.filter(|value| *value > 0.0);
        values.map(f64::ln).collect()
    };
    let sides: BTreeMap<&str, [Vec<f64>; 2]> = metrics
        .into_iter()
        .map(|metric| (metric, [first, now].map(|blocks| logs(blocks, metric))))
        .filter(|(_, [first, now])| first.len().min(now.len()) >= BLOCKS_MIN)
        .collect();
    let confidence = 1.0 - FALSE_RESTARTS / sides.len().max(1) as f64;
    sides.into_iter().find_map(|(metric, [first, now])| {
        let interval = difference_interval(&first, &now, confidence).ok()?;
        let is_shown = interval.excludes(0.0) && interval.estimate.abs() > EQUAL;
        let changed = change(&interval.exp());
        is_shown
            .then(|| format!("its {metric} had changed by {changed} since its first evaluation"))
    })
}

#[cfg(test)]
mod tests {
    use rand::{Rng as _, SeedableRng as _};

    use super::*;

    /// Blocks with these CPU times per request.
    fn blocks(cpu_us: &[f64]) -> Vec<SideMetrics> {
        let block = |cpu_us: &f64| {
            SideMetrics::from([
                ("cpu_s".to_owned(), cpu_us * 1e-3),
                ("requests".to_owned(), 1000.0),
            ])
        };
        cpu_us.iter().map(block).collect()
    }

    #[test]
    fn a_control_that_ages_is_noticed_and_one_that_does_not_is_left_alone() {
        let first = blocks(&[100.0, 101.0, 99.0, 100.5]);
        let same = blocks(&[100.2, 99.1, 101.0, 99.9]);
        assert_eq!(drift("requests", &first, &same), None);
        let faster = blocks(&[90.0, 91.0, 90.5, 89.5]);
        let why = drift(CPU, &first, &faster).unwrap();
        assert!(
            why.starts_with("its cpu_s_per_request had changed by −9.9 % ["),
            "{why}"
        );
        // Shown, and of no consequence.
        let nearly = |times: f64| blocks(&[100.0 * times, 100.01 * times, 99.99 * times]);
        assert_eq!(drift(CPU, &nearly(1.0), &nearly(1.005)), None);
        assert!(drift(CPU, &nearly(1.0), &nearly(1.02)).is_some());
        assert_eq!(drift(CPU, &[], &faster), None, "nothing to compare with");
    }

    #[test]
    fn a_load_that_is_noisy_restarts_it_as_often_as_promised() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
        // Nearly normal: the sum of twelve (Irwin and Hall).
        let mut normal = || (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0;
        let mut evaluation = || -> Vec<SideMetrics> {
            let values: Vec<f64> = (0..6).map(|_| 100.0 * (0.05 * normal()).exp()).collect();
            blocks(&values)
        };
        let restarts = (0..2000).filter(|_| drift(CPU, &evaluation(), &evaluation()).is_some());
        let share = restarts.count() as f64 / 2000.0;
        assert!((0.01..0.08).contains(&share), "{share}");
    }
}
