//! The real [`Bench`](crate::bench::Bench): real services, real knobs, real load.

mod active_side;
mod bench;
mod control;
mod knobs;
mod latency;
mod loading;
mod meters;
mod promotion;
mod putting;
mod warm_control;
mod warming;

pub use promotion::{APPLY_STEPS, Changed, Changes, Unrestored};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bayes_opt::Configuration;
use host::{HostError, Journal, Knob, RestoreOutcome, RestoreReport, RestoredItem, Roots};

use crate::begun::Begun;
use crate::bench::Arm;
use crate::continuous::HostThen;
use crate::error::{Fault, TunerError};
use crate::metrics::SideMetrics;
use crate::process::{Interrupt, RunError};
use crate::promoted_templates::promoted_files;
use crate::reapply::Reapply;
use crate::sampler::{Sampler, external};
use crate::scratch::scratch_root;
use crate::side::Side;
use crate::spec::CheckedSpec;
use crate::target::Instance;
use crate::template;
use active_side::ActiveSide;

/// The world as it is.
pub struct Live<'a> {
    spec: &'a CheckedSpec,
    roots: Roots,
    journal: Journal,
    /// An earlier run had left nothing to undo.
    found_clean: bool,
    interrupt: Interrupt,
    scratch: PathBuf,
    began: Instant,
    /// How long earlier sessions of the experiment took.
    before_s: f64,
    sides: Option<[ActiveSide; 2]>,
    /// The side whose files and `apply` steps are in force; `None` where it is neither's, or not
    /// known.
    applied: Option<Side>,
    /// What was last written to each knob, or found there.
    in_force: BTreeMap<Knob, String>,
    state_dir: PathBuf,
    /// How long the control's last load took in this evaluation.
    control_took: Option<Duration>,
    /// The service was started once.
    has_started: bool,
    /// A refusal that no further attempt will change.
    fatal: Option<HostError>,
    /// What is in force between evaluations instead of the control's configuration: it was promoted
    /// earlier.
    baseline: Option<Configuration>,
    /// The last lines of the service that made the evaluation fail, else of the experiment's. Empty
    /// where that one has printed nothing.
    output: Option<String>,
    /// The load waits for answers: the capacity is measured.
    saturates: bool,
    /// The sources of latency that are open.
    meters: meters::Meters,
    /// The control that runs on from evaluation to evaluation.
    warm: Option<warm_control::WarmControl>,
    /// Why the one before it was ended.
    restarted: Option<String>,
    /// How the evaluation began.
    begun: Begun,
}

/// What becomes of the two sides at the end of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The control may run on.
    Evaluation,
    /// Both end.
    All,
}

impl<'a> Live<'a> {
    /// Takes the host's lock; starts and changes nothing yet.
    ///
    /// # Errors
    /// Another Slackline holds the lock, or an earlier one left something to restore. A metric
    /// needs packets, and none can be read here.
    pub fn new(
        spec: &'a CheckedSpec,
        state_dir: &Path,
        interrupt: Interrupt,
    ) -> Result<Self, TunerError> {
        if let Some(name) = spec.wire_metric() {
            wire_latency::probe().map_err(|source| TunerError::Latency {
                name: name.to_owned(),
                source,
            })?;
        }
        let journal = Journal::open(state_dir)?;
        let scratch = scratch_root(state_dir).join(std::process::id().to_string());
        Ok(Self {
            spec,
            found_clean: journal.is_empty() && matches!(Reapply::left_in(state_dir), Ok(None)),
            roots: Roots::default(),
            journal,
            interrupt,
            scratch,
            began: Instant::now(),
            before_s: 0.0,
            sides: None,
            applied: None,
            in_force: BTreeMap::new(),
            state_dir: state_dir.to_owned(),
            control_took: None,
            has_started: false,
            fatal: None,
            baseline: None,
            output: None,
            saturates: false,
            meters: meters::Meters::default(),
            warm: None,
            restarted: None,
            begun: Begun::default(),
        })
    }

    /// Counts from the end of earlier sessions of the experiment, which took that long.
    #[must_use]
    pub fn after(mut self, before_s: f64) -> Self {
        self.before_s = before_s;
        self
    }

    /// Says that whatever is more urgent on this host may end this process by SIGTERM
    /// ([`host::Lock::give_way`]). The process catches it, and restores everything.
    pub fn give_way(&mut self) {
        self.journal.give_way();
    }

    /// Between evaluations, this is in force and not the control's configuration: it was promoted
    /// earlier. Without one it is, in `mode = "continuous"`, whatever was found.
    pub fn set_baseline(&mut self, baseline: Option<Configuration>) {
        self.baseline = baseline;
    }

    /// What the host is like now, on which this configuration was promoted.
    pub fn host(&self, promoted: &Configuration) -> HostThen {
        let knobs = self.spec.knobs.values().filter_map(|binding| {
            let value = binding.knob.read(&self.roots).ok()??;
            Some((binding.knob.to_string(), value))
        });
        let files = promoted_files(self.spec, promoted);
        let files = files.flat_map(|(path, template)| {
            let template_is = format!("the template {}", template.display());
            [(path.display().to_string(), path), (template_is, template)]
        });
        let files = files.filter_map(|(name, path)| Some((name, host::fingerprint(&path).ok()??)));
        HostThen {
            boot_id: host::boot_id(&self.roots),
            knobs: knobs.collect(),
            files: files.collect(),
        }
    }

    /// What an earlier run left to undo; empty on a healthy host.
    pub fn left_over(&self) -> Vec<String> {
        let mut left = self.changes_and_processes();
        match Reapply::left_in(&self.state_dir) {
            Ok(None) => {}
            Ok(Some(reapply)) => left.push(reapply.describe()),
            Err(message) => left.push(message),
        }
        left
    }

    fn changes_and_processes(&self) -> Vec<String> {
        let root = self.scratch.parent().unwrap_or(&self.scratch);
        let mut left = self.journal.describe();
        for pid in crate::process::orphans(root) {
            let process = format!("process {pid}");
            if !left.contains(&process) {
                left.push(process);
            }
        }
        left
    }

    /// Forgets that a running service is still to be told of its own configuration, if nothing else
    /// is left to undo. Whether nothing else is: for who tells the service anew.
    pub fn forget_to_tell(&mut self) -> bool {
        let is_rest = self.changes_and_processes().is_empty();
        if is_rest {
            Reapply::forget(&self.state_dir);
        }
        is_rest
    }

    /// Undoes everything that was done, tells a running service of it, and forgets the scratch
    /// directory.
    ///
    /// # Errors
    /// The journal cannot be read or written, or the service cannot be told.
    pub fn restore(&mut self) -> Result<RestoreReport, TunerError> {
        self.applied = None;
        self.stop_sides(Ending::All)?;
        let report = self.journal.restore(&self.roots, false)?;
        if self.scratch.exists() {
            std::fs::remove_dir_all(&self.scratch).map_err(|source| TunerError::File {
                path: self.scratch.clone(),
                source,
            })?;
            // The common one goes with the last of its kind.
            let _ = self.scratch.parent().map(std::fs::remove_dir);
        }
        self.in_force.clear();
        if let Some(reapply) = Reapply::left_in(&self.state_dir).map_err(TunerError::Reapply)? {
            reapply.run(&self.state_dir).map_err(TunerError::Reapply)?;
        }
        Ok(report)
    }

    /// Starts one side; what was started is in `sides` even if it did not come up.
    fn start_side(
        &mut self,
        side: Side,
        arm: &Arm,
        sides: &mut Vec<ActiveSide>,
    ) -> Result<(), Fault> {
        let instance = Instance::prepare(self.spec, arm, side, &self.scratch)?;
        let of = match side {
            Side::Control => &self.spec.space.default_configuration(),
            Side::Experiment => &arm.configuration,
        };
        let knobs = knobs::knob_values(self.spec, of, &instance.variables)?;
        sides.push(ActiveSide {
            instance,
            sampler: Sampler::default(),
            knobs,
        });
        let is_first = !std::mem::replace(&mut self.has_started, true);
        self.open_sockets(side, sides)?;
        let Some(active) = sides.last_mut() else {
            return Ok(());
        };
        // Some knobs are read when a service starts: they are in force before.
        let knobs = active.knobs.clone();
        self.put(&knobs, side)?;
        if let Some(quota) = active.instance.quota(self.spec)? {
            active
                .instance
                .make_group(&quota, &self.roots, &mut self.journal)
                .map_err(|error| self.refused(error, side))?;
        }
        active.instance.start(
            self.spec,
            &self.roots,
            &mut self.journal,
            &self.interrupt,
            is_first,
        )?;
        if let Some(pid) = active.instance.pid() {
            knobs::put_of_instance(&knobs, pid, &self.roots)
                .map_err(|error| side.fault(error.to_string()))?;
        }
        active.sampler = match active.instance.pid() {
            Some(pid) => Sampler::of_process(pid, active.instance.group(), &self.roots)?,
            None => Sampler::of_observed(self.spec.target().observe.as_ref(), &self.roots)?,
        };
        if self.spec.target().start.is_some() {
            active.instance.apply(self.spec, &self.interrupt)?;
        }
        Ok(())
    }

    /// Ends both sides; the control may run on after an evaluation.
    fn stop_sides(&mut self, ending: Ending) -> Result<(), TunerError> {
        self.close_meters();
        for side in self.sides.take().into_iter().flatten() {
            self.stop_side(side, ending)?;
        }
        if ending == Ending::All {
            self.end_control()?;
        }
        // What its commands, or those of the workload, started and did not wait for.
        let resting = self.resting_pid();
        let resting = resting
            .as_ref()
            .map(|(pid, group)| (*pid, group.as_deref()));
        crate::process::end_orphans(&self.scratch, resting);
        Ok(())
    }

    fn stop_side(&mut self, side: ActiveSide, ending: Ending) -> Result<(), TunerError> {
        let over = match ending {
            Ending::Evaluation => self.rest_control(side),
            Ending::All => Some(side),
        };
        if let Some(mut side) = over {
            side.instance
                .stop(self.spec, &self.roots, &mut self.journal)?;
        }
        Ok(())
    }

    /// Ends an evaluation after which not the control, but what was found before is to be in force:
    /// everything is as it was.
    fn end_at_baseline(&mut self) -> Result<(), TunerError> {
        let report = self.restore()?;
        if let Some(error) = self.fatal.take() {
            return Err(error.into());
        }
        self.undisturbed(&report)
    }

    /// A knob that somebody else has changed meanwhile is an error, and so is a file that was
    /// changed or removed; what it held at first is named.
    fn undisturbed(&self, report: &RestoreReport) -> Result<(), TunerError> {
        // A controller that somebody else has come to use is no change of what is measured.
        let changed = report.items.iter().filter(|item| {
            item.kept.is_some()
                || item.knob.is_some()
                    && matches!(item.outcome, RestoreOutcome::ChangedByOther { .. })
        });
        let changed: Vec<String> = changed.map(RestoredItem::named).collect();
        match changed.is_empty() {
            true => Ok(()),
            false => Err(TunerError::Disturbed(changed.join(", "))),
        }
    }

    /// Puts the knobs (and, for one running system, the files and `apply` steps) of a side in
    /// force.
    fn switch(&mut self, to: Side) -> Result<(), Fault> {
        let Some(sides) = &self.sides else {
            return Ok(());
        };
        let tells = self.spec.target().is_reconfigurable() && self.applied != Some(to);
        let knobs = sides[to.index()].knobs.clone();
        let changed = self.put(&knobs, to)?;
        if tells {
            self.remember_apply()?;
            let before = self.applied.take();
            let before = before.and_then(|side| {
                let sides = self.sides.as_ref()?;
                Some(sides[side.index()].instance.variables.clone())
            });
            if let Some(sides) = &mut self.sides {
                let side = &mut sides[to.index()];
                side.instance
                    .write_files(self.spec, Some(&mut self.journal))?;
                side.instance
                    .apply_changes(self.spec, before.as_ref(), &self.interrupt)?;
                side.instance.wait_ready(self.spec, &self.interrupt)?;
                // It may have been restarted: another process is to be observed then.
                side.sampler =
                    Sampler::of_observed(self.spec.target().observe.as_ref(), &self.roots)?;
            }
            self.applied = Some(to);
        }
        let settle_s = self.spec.written().evaluation.settle_s;
        if (changed || tells) && settle_s > 0.0 {
            self.interrupt
                .sleep(Duration::from_secs_f64(settle_s))
                .map_err(Fault::Interrupted)?;
        }
        Ok(())
    }

    fn check_alive(&mut self) -> Result<(), Fault> {
        for side in self.sides.iter_mut().flatten() {
            let of = side.instance.side;
            side.instance.alive().map_err(|crash| of.fault(crash))?;
        }
        Ok(())
    }

    /// Everything that only grows.
    fn counters(&mut self, side: Side) -> Result<SideMetrics, Fault> {
        let Some(sides) = &mut self.sides else {
            return Ok(SideMetrics::new());
        };
        let mut counters = sides[side.index()].sampler.read(&self.roots)?;
        counters.extend(self.external(side, true)?);
        Ok(counters)
    }

    /// The memory of a side's processes, where they are known.
    fn memory(&self, side: Side) -> Option<(String, f64)> {
        let sides = self.sides.as_ref()?;
        let bytes = sides[side.index()].sampler.memory_bytes(&self.roots)?;
        Some(("memory_bytes".to_owned(), bytes as f64))
    }

    /// External metrics that are values, not counters.
    fn gauges(&self, side: Side) -> Result<SideMetrics, Fault> {
        self.external(side, false)
    }

    fn external(&self, side: Side, counter: bool) -> Result<SideMetrics, Fault> {
        let Some(sides) = &self.sides else {
            return Ok(SideMetrics::new());
        };
        let instance = &sides[side.index()].instance;
        self.spec
            .written()
            .metrics
            .iter()
            .filter(|(_, metric)| metric.counter == counter && metric.latency().is_none())
            .map(|(name, metric)| {
                let mut filled = metric.clone();
                if let Some(query) = &mut filled.query {
                    *query = template::fill(query, &instance.variables)
                        .map_err(|error| Fault::Harness(format!("metrics.{name}: {error}")))?;
                }
                let value = external(name, &filled, |command| {
                    instance
                        .launch(self.spec, command, "metric")?
                        .run(Duration::from_secs(30), &self.interrupt, || Ok(()))
                        .map_err(|error| fault_of(&format!("metrics.{name}"), &error, side))
                })?;
                Ok((name.clone(), value))
            })
            .collect()
    }

    /// Gives the sides each other's CPUs: block `index` has them as written, the next one swapped.
    fn swap_cpus(&self, index: usize) -> Result<(), Fault> {
        self.pin(self.sides.iter().flatten(), index)
    }

    /// Gives sides the CPUs of block `index`.
    fn pin<'s>(
        &self,
        sides: impl IntoIterator<Item = &'s ActiveSide>,
        index: usize,
    ) -> Result<(), Fault> {
        let Some(cpus) = &self.spec.pins.sides else {
            return Ok(());
        };
        for side in sides {
            let mine = (side.instance.side.index() + index) % 2;
            let family = side
                .instance
                .pid()
                .map(|pid| host::family(&self.roots, pid));
            for (pid, _) in family.unwrap_or_default() {
                match host::pin_process(&self.roots, pid, &cpus[mine]) {
                    Ok(()) | Err(host::HostError::NoSuchProcess { .. }) => {}
                    Err(error) => return Err(Fault::Harness(error.to_string())),
                }
            }
        }
        Ok(())
    }
}

/// Whose fault it is that a command of the harness's own gave nothing; `what` it is in the
/// specification.
fn fault_of(what: &str, error: &RunError, side: Side) -> Fault {
    match error {
        RunError::Interrupted(stop) => Fault::Interrupted(*stop),
        // No configuration makes a program appear.
        RunError::Start(_) => Fault::Harness(format!("{what}: {error}")),
        error => side.gave_nothing(what, &error.to_string()),
    }
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        // Reached without a restore only by a panic or an early error; `slackline restore` can try
        // again. What an earlier run left is not ours to undo unasked.
        if self.found_clean {
            let _ = self.restore();
        }
    }
}
