//! The control that runs on from evaluation to evaluation of a search.
//!
//! Its configuration does not change, so starting it anew for each evaluation costs time and adds
//! the difference of two starts. It is started again where it has ended or failed, where the
//! templates of its files have changed, or where its own test says that it is no longer what it was
//! in its first evaluation, when it was as young as each experiment is.

use std::collections::BTreeMap;

use latency_stats::difference_interval;

use super::{ActiveSide, Live};
use crate::begun::ControlRun;
use crate::bench::{Arm, Bench as _};
use crate::error::{Fault, TunerError};
use crate::evaluation::Block;
use crate::figures::change;
use crate::metrics::{SideMetrics, lookup};
use crate::side::Side;
use crate::spec::CheckedSpec;
use crate::stop::Stop;
use crate::target::Instance;

/// A control that has not changed is started again in one evaluation of twenty.
const FALSE_RESTARTS: f64 = 0.05;
/// A smaller change of the control is of no consequence: 1 %, as a logarithm.
const EQUAL: f64 = 0.01;
/// Fewer blocks have no interval.
const BLOCKS_MIN: usize = 2;
/// What every service with a load has, and what tells its age first.
const CPU: &str = "cpu_s_per_request";

/// A control from its start on.
pub(super) struct WarmControl {
    run: ControlRun,
    /// What its files were given.
    files: Vec<String>,
    /// Its blocks in its first evaluation.
    first: Vec<SideMetrics>,
    /// Its blocks in this one.
    now: Vec<SideMetrics>,
    /// Its side, between two evaluations.
    resting: Option<ActiveSide>,
    /// Why it cannot be the next evaluation's.
    unfit: Option<String>,
}

/// What becomes of the two sides at the end of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The control may run on.
    Evaluation,
    /// Both end.
    All,
}

impl Live<'_> {
    /// The control that runs on into the evaluation of this arm, if there is one that can. One that
    /// cannot is ended.
    pub(super) fn resting_control(&mut self, arm: &Arm) -> Result<Option<ActiveSide>, Fault> {
        let harness = |error: TunerError| Fault::Harness(error.to_string());
        if !arm.warm_control {
            self.end_control().map_err(harness)?;
            return Ok(None);
        }
        let why = self.why_not_on()?;
        let Some(control) = &mut self.warm else {
            return Ok(None);
        };
        if why.is_none() {
            control.run.restarted = None;
            return Ok(control.resting.take());
        }
        self.end_control().map_err(harness)?;
        self.restarted = why;
        Ok(None)
    }

    /// Why the control that there is cannot run on.
    fn why_not_on(&mut self) -> Result<Option<String>, Fault> {
        let spec = self.spec;
        let Some(control) = &mut self.warm else {
            return Ok(None);
        };
        if control.unfit.is_some() {
            return Ok(control.unfit.clone());
        }
        let Some(resting) = &mut control.resting else {
            return Ok(Some("its last evaluation did not begin".into()));
        };
        if let Err(crash) = resting.instance.alive() {
            return Ok(Some(crash.to_string()));
        }
        let has_changed = files_of(&resting.instance, spec)? != control.files;
        Ok(has_changed.then(|| "a template of its files has changed".into()))
    }

    /// The control has just been started for the evaluation of this arm.
    pub(super) fn note_control(&mut self, arm: &Arm, side: &ActiveSide) -> Result<(), Fault> {
        if !arm.warm_control {
            return Ok(());
        }
        self.warm = Some(WarmControl {
            run: ControlRun {
                started_s: self.elapsed_s(),
                evaluations: 0,
                restarted: self.restarted.take(),
            },
            files: files_of(&side.instance, self.spec)?,
            first: Vec::new(),
            now: Vec::new(),
            resting: None,
            unfit: None,
        });
        Ok(())
    }

    /// The present control, as the evaluation's record has it.
    pub(super) fn control_run(&self) -> Option<ControlRun> {
        self.warm.as_ref().map(|control| control.run.clone())
    }

    /// Whether the control is warm already.
    pub(super) fn is_control_warm(&self) -> bool {
        let run = self.control_run();
        run.is_some_and(|run| run.evaluations > 0)
    }

    /// A block was measured.
    pub(super) fn watch_control(&mut self, block: &Block) {
        if let Some(control) = &mut self.warm {
            control.now.push(block.control.clone());
        }
    }

    /// What went wrong may be the control's doing: it is started again then.
    pub(super) fn blame_control(&mut self, fault: &Fault) {
        let Some(control) = &mut self.warm else {
            return;
        };
        match fault {
            Fault::Harness(reason) => {
                let reason = reason.lines().next().unwrap_or_default();
                control.unfit = Some(format!("an evaluation failed ({reason})"));
            }
            Fault::Interrupted(Stop::Signal(_)) => {
                control.unfit = Some("a signal came".into());
            }
            Fault::Interrupted(Stop::Evaluation)
            | Fault::Configuration(_)
            | Fault::Unmeasured(_) => {}
        }
    }

    /// Keeps the control's side for the next evaluation, where it can run on; else gives it back.
    pub(super) fn rest_control(&mut self, side: ActiveSide) -> Option<ActiveSide> {
        let is_ending = self.interrupt.signal().is_some();
        let objective = self.spec.objective.metric.as_str();
        let Some(control) = &mut self.warm else {
            return Some(side);
        };
        if side.instance.side != Side::Control || is_ending || control.resting.is_some() {
            return Some(side);
        }
        let now = std::mem::take(&mut control.now);
        control.run.evaluations += usize::from(!now.is_empty());
        if control.first.len() < BLOCKS_MIN {
            control.first.extend(now);
        } else if let Some(why) = drift(objective, &control.first, &now) {
            control.unfit.get_or_insert(why);
        }
        control.resting = Some(side);
        None
    }

    /// Ends the control that rests, if there is one.
    pub(super) fn end_control(&mut self) -> Result<(), TunerError> {
        if let Some(mut side) = self.warm.take().and_then(|control| control.resting) {
            side.instance
                .stop(self.spec, &self.roots, &mut self.journal)?;
        }
        Ok(())
    }

    /// The control's first process and its group, while it rests.
    pub(super) fn resting_pid(&self) -> Option<(u32, Option<String>)> {
        let side = self.warm.as_ref()?.resting.as_ref()?;
        let group = side.instance.group().map(str::to_owned);
        Some((side.instance.pid()?, group))
    }
}

/// What the templates of an instance's files give now.
fn files_of(instance: &Instance, spec: &CheckedSpec) -> Result<Vec<String>, Fault> {
    let files = spec.target.files.iter();
    let contents = files.map(|file| instance.contents_of(spec, file));
    contents.collect::<Result<_, _>>().map_err(Fault::Harness)
}

/// How the control differs from what it was in its first evaluation, if that is shown.
///
/// Blocks of two evaluations are compared by an interval of the difference of their logarithms
/// (Welch). It is looked at after each evaluation, which needs no correction: a false alarm costs
/// one restart, and the rate is that of one look.
fn drift(objective: &str, first: &[SideMetrics], now: &[SideMetrics]) -> Option<String> {
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
