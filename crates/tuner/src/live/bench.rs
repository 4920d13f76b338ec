//! An evaluation: its sides started and warmed up, its blocks, and its end.

use std::collections::BTreeMap;

use host::HostError;
use paired_stats::abba;

use super::active_side::ActiveSide;
use super::{Ending, Live};
use crate::begun::Begun;
use crate::bench::{Arm, Bench};
use crate::descriptors::{blamed, shortage};
use crate::error::{Fault, TunerError};
use crate::evaluation::{Block, SideOrder};
use crate::log_end::{FAILED_BYTES, MEASURED_BYTES};
use crate::promoted_templates::template_fingerprints;
use crate::side::Side;
use crate::spec::Pairing;

/// A templated file that somebody else has changed during an evaluation is an error, as a knob is.
fn undisturbed_files(files: Result<(), HostError>) -> Result<(), TunerError> {
    match files {
        Err(HostError::Disturbed { knob, .. }) => Err(TunerError::Disturbed(knob)),
        files => Ok(files?),
    }
}

impl Bench for Live<'_> {
    fn begin(&mut self, arm: &Arm) -> Result<(), Fault> {
        self.output = None;
        self.saturates = arm.saturates;
        let begun = self.begin_evaluation(arm);
        self.begun.control = self.control_run();
        begun.inspect_err(|fault| self.note_output(fault))
    }

    fn block(&mut self, index: usize) -> Result<Block, Fault> {
        let measured = self.measure_block(index).map_err(blamed);
        measured
            .inspect(|block| self.watch_control(block))
            .inspect_err(|fault| self.note_output(fault))
    }

    fn end(&mut self) -> Result<(), TunerError> {
        self.end_evaluation()
    }

    fn take_output(&mut self) -> Option<String> {
        self.output.take().filter(|output| !output.is_empty())
    }

    fn take_begun(&mut self) -> Option<Begun> {
        Some(std::mem::take(&mut self.begun)).filter(|begun| *begun != Begun::default())
    }

    fn templates(&self) -> BTreeMap<String, String> {
        template_fingerprints(self.spec)
    }

    fn elapsed_s(&self) -> f64 {
        self.before_s + self.began.elapsed().as_secs_f64()
    }

    fn own_cpu_s(&self) -> f64 {
        host::own_cpu_s()
    }
}

impl Live<'_> {
    /// Keeps what the side printed that is to blame, before it is ended.
    fn note_output(&mut self, fault: &Fault) {
        self.blame_control(fault);
        let side = match fault {
            Fault::Harness(_) => Side::Control,
            Fault::Configuration(_) | Fault::Unmeasured(_) | Fault::Interrupted(_) => {
                Side::Experiment
            }
        };
        if let Some(sides) = &self.sides {
            let output = sides[side.index()].instance.output(self.spec, FAILED_BYTES);
            self.output = Some(output.unwrap_or_default());
        }
    }

    /// Keeps what the experiment's service printed, where it was measured and Slackline started it.
    fn note_output_of_measured(&mut self) {
        let is_started = self.spec.target().start.is_some();
        if let (true, None, Some(sides)) = (is_started, &self.output, &self.sides) {
            let instance = &sides[Side::Experiment.index()].instance;
            self.output = instance.output(self.spec, MEASURED_BYTES);
        }
    }

    fn begin_evaluation(&mut self, arm: &Arm) -> Result<(), Fault> {
        self.control_took = None;
        self.begun = Begun::default();
        if let Some(why) = shortage() {
            return Err(Fault::Harness(why));
        }
        let mut sides: Vec<ActiveSide> = self.resting_control(arm)?.into_iter().collect();
        // It may be where the experiment's first block is to be.
        self.pin(&sides, 0)?;
        let started = self.start_sides(arm, &mut sides).map_err(blamed);
        if let Err(fault) = started {
            // The side that did not come up is the last one that was begun.
            let failed = sides.last().map(|side| &side.instance);
            self.output = failed.and_then(|instance| instance.output(self.spec, FAILED_BYTES));
            self.close_meters();
            for side in sides {
                self.stop_side(side, Ending::Evaluation)
                    .map_err(|error| Fault::Harness(error.to_string()))?;
            }
            return Err(fault);
        }
        self.sides = <[ActiveSide; 2]>::try_from(sides).ok();
        self.warm_up_sides().map_err(blamed)
    }

    /// Starts the sides that do not run yet.
    fn start_sides(&mut self, arm: &Arm, sides: &mut Vec<ActiveSide>) -> Result<(), Fault> {
        for side in Side::BOTH.into_iter().skip(sides.len()) {
            self.start_side(side, arm, sides)?;
            if let (Side::Control, Some(control)) = (side, sides.last()) {
                self.note_control(arm, control)?;
            }
        }
        Ok(())
    }

    fn measure_block(&mut self, index: usize) -> Result<Block, Fault> {
        let start_s = self.elapsed_s();
        let block_s = self.spec.written().evaluation.block_s;
        let parallel = self.spec.target().pairing == Pairing::Parallel;
        let order = match parallel {
            true => SideOrder::Parallel,
            false => SideOrder::in_turns(index),
        };
        let mut measured = BTreeMap::new();
        if parallel {
            self.swap_cpus(index)?;
            let metrics = self.load(&Side::BOTH, block_s)?;
            measured.extend([0, 1].into_iter().zip(metrics));
        } else {
            // Two blocks in one order, then two with the CPUs exchanged.
            self.swap_cpus(index / 2)?;
            for side in abba(index, Side::BOTH) {
                self.switch(side)?;
                let metrics = self.load(&[side], block_s)?;
                measured.extend([side.index()].into_iter().zip(metrics));
            }
        }
        let mut take = |side: Side| measured.remove(&side.index()).unwrap_or_default();
        Ok(Block {
            start_s,
            order,
            control: take(Side::Control),
            experiment: take(Side::Experiment),
        })
    }

    fn end_evaluation(&mut self) -> Result<(), TunerError> {
        // The way back is not the evaluation's.
        self.interrupt.evaluation_is_over();
        self.note_output_of_measured();
        // Before they are put back: what somebody else wrote then stays, and is no error of the
        // restore.
        let files = self.journal.check_files();
        // In mode = "continuous" a round is over long before the next one: what its user changes in
        // between is not of it.
        if self.spec.continuous.is_some() {
            self.end_at_baseline()?;
            return undisturbed_files(files);
        }
        let is_away = self.spec.target().is_reconfigurable() && self.applied != Some(Side::Control);
        let back = if is_away && self.interrupt.signal().is_none() {
            self.switch(Side::Control)
        } else {
            Ok(())
        };
        self.stop_sides(Ending::Evaluation)?;
        if let Some(error) = self.fatal.take() {
            return Err(error.into());
        }
        let is_disturbed = back.is_err() || files.is_err();
        let is_ending = is_disturbed || self.interrupt.signal().is_some();
        if is_ending {
            self.end_control()?;
        }
        // With a control that runs on there are no knobs of the host, and its process is in the
        // journal.
        if is_ending || (!self.spec.knobs.is_empty() && self.resting_pid().is_none()) {
            let report = self.journal.restore(&self.roots, false)?;
            self.in_force.clear();
            if self.interrupt.signal().is_some() {
                self.applied = None;
            }
            self.undisturbed(&report)?;
        }
        undisturbed_files(files)
    }
}
