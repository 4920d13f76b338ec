//! Warming up until measuring makes sense: for a stated time, or until the service is steady.

use std::time::{Duration, Instant};

use paired_stats::{Warmth, warmth};

use super::Live;
use crate::begun::WarmUp;
use crate::error::Fault;
use crate::figures::percent;
use crate::metrics::{JIT_TIME, SideMetrics, lookup};
use crate::side::Side;
use crate::spec::{Pairing, WarmUpRule};

/// A JVM compiles for good if its compilers take less than this share of a core.
const JIT_CORES_MAX: f64 = 0.05;
/// Over so many slices.
const JIT_SLICES: usize = 4;

/// What the slices of one side's warm-up measured, by metric.
#[derive(Debug, Default)]
struct Slices {
    series: Vec<(String, Vec<f64>)>,
    /// The compilers' share of a core, of a JVM.
    jit_cores: Vec<f64>,
}

impl Slices {
    /// Takes a slice; `beside` is what a warm control measured at the same time. In their ratio
    /// what both felt does not count, such as a neighbour on the same CPUs.
    fn push(&mut self, metrics: &SideMetrics, beside: Option<&SideMetrics>, names: &[String]) {
        for name in names {
            // What uses no CPU time at all has no warm-up to be seen in it.
            let positive = |metrics| lookup(metrics, name).filter(|value| *value > 0.0);
            let Some(value) = positive(metrics) else {
                continue;
            };
            let value = value / beside.and_then(positive).unwrap_or(1.0);
            match self.series.iter_mut().find(|(known, _)| known == name) {
                Some((_, values)) => values.push(value),
                None => self.series.push((name.clone(), vec![value])),
            }
        }
        let duration_s = metrics.get("duration_s").copied().unwrap_or(0.0);
        if let Some(jit_s) = metrics.get(JIT_TIME).filter(|_| duration_s > 0.0) {
            self.jit_cores.push(jit_s / duration_s);
        }
    }

    /// What still changes, in words; `None` of a side that is steady.
    fn unsteady(&self) -> Option<String> {
        if self.series.is_empty() {
            return Some("nothing was measured by which to tell".into());
        }
        let last = self.jit_cores.len().saturating_sub(JIT_SLICES);
        let jit = &self.jit_cores[last..];
        let jit_cores = jit.iter().sum::<f64>() / jit.len().max(1) as f64;
        if jit_cores > JIT_CORES_MAX {
            return Some(format!(
                "the JVM's compilers still took {jit_cores:.2} cores"
            ));
        }
        self.series.iter().find_map(|(name, values)| {
            Some(match warmth(values) {
                Warmth::Steady { .. } => return None,
                Warmth::Trend { change } => {
                    format!(
                        "{name} changed all the time, by {} % at last",
                        percent(change)
                    )
                }
                Warmth::Young {
                    since,
                    change: Some(change),
                } => format!(
                    "{name} changed by {} % in slice {} of {}",
                    percent(change),
                    since + 1,
                    values.len()
                ),
                Warmth::Young { change: None, .. } => {
                    format!("{} slices say too little of {name}", values.len())
                }
            })
        })
    }
}

impl Live<'_> {
    /// Warms up what has just been started, as the specification wants it.
    pub(super) fn warm_up_sides(&mut self) -> Result<(), Fault> {
        let evaluation = &self.spec.written().evaluation;
        let (rule, fixed_s) = (evaluation.warm_up, evaluation.warm_up_s);
        let is_parallel = self.spec.target().pairing == Pairing::Parallel;
        let orders: Vec<Vec<Side>> = match is_parallel {
            true => vec![Side::BOTH.to_vec()],
            false => Side::BOTH.map(|side| vec![side]).to_vec(),
        };
        if rule.is_none() && fixed_s <= 0.0 {
            return Ok(());
        }
        for order in orders {
            if let (false, [side]) = (is_parallel, order.as_slice()) {
                self.switch(*side)?;
            }
            match rule {
                None => self.warm_up(&order, fixed_s)?,
                Some(WarmUpRule::Auto) => {
                    let done = self.warm_up_to_steady(&order)?;
                    let before = self.begun.warm_up.take().unwrap_or_default();
                    self.begun.warm_up = Some(before.and(done));
                }
            }
        }
        Ok(())
    }

    /// Loads `order` slice by slice, until each side that has just been started is steady.
    fn warm_up_to_steady(&mut self, order: &[Side]) -> Result<WarmUp, Fault> {
        let evaluation = &self.spec.written().evaluation;
        let least = Duration::from_secs_f64(evaluation.warm_up_s);
        let most = Duration::from_secs_f64(evaluation.warm_up_at_most_s);
        let slice_s = evaluation.slice_s();
        let names = self.signs_of_warmth();
        let is_warm = self.is_control_warm();
        let mut slices: Vec<Slices> = order.iter().map(|_| Slices::default()).collect();
        let started = Instant::now();
        loop {
            let loaded = self.load_once(order, slice_s, false)?;
            let mut sides = order.iter().zip(&loaded);
            let control = sides.find(|(side, _)| is_warm && **side == Side::Control);
            let control = control.map(|(_, (metrics, _))| metrics);
            for (slices, (metrics, _)) in slices.iter_mut().zip(&loaded) {
                slices.push(metrics, control, &names);
            }
            let young = order.iter().zip(&slices);
            let young = young.filter(|(side, _)| **side != Side::Control || !is_warm);
            let unsteady: Vec<String> = young
                .filter_map(|(side, slices)| {
                    Some(format!("{}: {}", side.name(), slices.unsteady()?))
                })
                .collect();
            let took = started.elapsed();
            let is_over = took + Duration::from_secs_f64(slice_s) > most;
            if is_over || (unsteady.is_empty() && took >= least) {
                return Ok(WarmUp {
                    took_s: took.as_secs_f64(),
                    unsteady,
                });
            }
        }
    }

    /// The metrics by which warmth is told: CPU time per request, or per second where there are no
    /// requests, and the objective.
    fn signs_of_warmth(&self) -> Vec<String> {
        let cpu = match self.loaded_by().is_of_users() {
            true => "cpu_s_per_s",
            false => "cpu_s_per_request",
        };
        let mut names = vec![cpu.to_owned()];
        let objective = &self.spec.objective().metric;
        names.extend(Some(objective.clone()).filter(|it| it != cpu));
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_still_changes_is_said_in_words() {
        let names = ["cpu_s_per_request".to_owned()];
        let slice = |cpu_s: f64, jit_s: f64| -> SideMetrics {
            [
                ("cpu_s", cpu_s),
                ("requests", 100.0),
                ("duration_s", 1.0),
                (JIT_TIME, jit_s),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into()
        };
        let mut slices = Slices::default();
        assert!(
            slices
                .unsteady()
                .unwrap()
                .starts_with("nothing was measured")
        );
        for _ in 0..4 {
            slices.push(&slice(0.9, 0.8), None, &names);
        }
        assert_eq!(
            slices.unsteady().unwrap(),
            "the JVM's compilers still took 0.80 cores"
        );
        for _ in 0..6 {
            slices.push(&slice(0.45, 0.01), None, &names);
        }
        let why = slices.unsteady().unwrap();
        let is_said = why.starts_with("cpu_s_per_request changed by −");
        assert!(is_said && why.ends_with(" % in slice 5 of 10"), "{why}");
        for _ in 0..8 {
            slices.push(&slice(0.45, 0.01), None, &names);
        }
        assert_eq!(slices.unsteady(), None);
    }
}
