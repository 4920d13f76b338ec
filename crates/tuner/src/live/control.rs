//! The control that runs on from evaluation to evaluation of a search.
//!
//! Its configuration does not change, so starting it anew for each evaluation costs time and adds
//! the difference of two starts. It is started again where it has ended or failed, where the
//! templates of its files have changed, or where its own test says that it is no longer what it was
//! in its first evaluation, when it was as young as each experiment is.

use super::Live;
use super::active_side::ActiveSide;
use super::warm_control::{BLOCKS_MIN, WarmControl, drift};
use crate::begun::ControlRun;
use crate::bench::{Arm, Bench as _};
use crate::error::{Fault, TunerError};
use crate::evaluation::Block;
use crate::side::Side;
use crate::spec::CheckedSpec;
use crate::stop::Stop;
use crate::target::Instance;

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
        let objective = self.spec.objective().metric.as_str();
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
    let files = spec.target().files.iter();
    let contents = files.map(|file| instance.contents_of(spec, file));
    contents.collect::<Result<_, _>>().map_err(Fault::Harness)
}
