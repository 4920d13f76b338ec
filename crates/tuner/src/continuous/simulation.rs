//! A service that does not exist, for months that do not pass: the same [`ContinuousController`],
//! the same [`run`] and the same search as in the real world, in a [`World`] with a simulated clock
//! and a seed.
//!
//! The truth is invented: a thread pool and a buffer whose best sizes move with deploys. It shows
//! how the controller behaves when it is known what happened; it says nothing about any real
//! service.

use std::cell::Cell;
use std::rc::Rc;

use bayes_opt::Configuration;
use jiff::{SignedDuration, Timestamp};

use super::{
    Alert, Applied, ContinuousController, ContinuousState, Flow, HistoryEntry, Round, Seen, Task,
    Tuned, World, run,
};
use crate::bench::{Arm, Bench};
use crate::error::{Fault, TunerError};
use crate::evaluation::Block;
use crate::ledger::{Ledger, LedgerEvent, ResumeState, RunControl};
use crate::live::{Changed, Changes};
use crate::simulation::{Noise, SimulatedService, Truth, number};
use crate::spec::{AlertSpec, CheckedSpec};

const DAY_S: f64 = 86_400.0;

/// When the simulation begins: a Thursday.
pub const BEGIN: Timestamp = Timestamp::constant(1_767_225_600, 0);

/// What the service is like from a day on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epoch {
    /// From this day on, counted from 0; fractions are allowed.
    pub day: f64,
    /// The best number of threads.
    pub threads: f64,
    /// The best size of the buffer.
    pub buffer_kib: f64,
    /// Buffers above this make the 99th percentile of latency half as long again.
    pub slow_above_kib: f64,
    /// Level of the load.
    pub load: f64,
}

/// What happens, day by day.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// How long it goes.
    pub days: f64,
    /// Deploys and changes of the load, in order.
    pub epochs: Vec<Epoch>,
    /// From and until which day the service cannot be measured. The monitoring cannot be reached in
    /// the first third of it; an alert fires in the rest and for an hour after.
    pub outage: Option<(f64, f64)>,
    /// Of the load's noise.
    pub seed: u64,
}

impl Scenario {
    /// Ninety days: three deploys that move the best configuration, one after which large buffers
    /// break the constraint, more load from one day on, and an outage of six hours shortly after a
    /// deploy.
    #[must_use]
    pub fn ninety_days() -> Self {
        let first = Epoch {
            day: 0.0,
            threads: 6.0,
            buffer_kib: 128.0,
            slow_above_kib: 1e9,
            load: 1.0,
        };
        let second = Epoch {
            day: 18.4,
            threads: 14.0,
            buffer_kib: 48.0,
            ..first
        };
        let third = Epoch {
            day: 33.3,
            load: 1.6,
            ..second
        };
        let fourth = Epoch {
            day: 47.6,
            threads: 4.0,
            buffer_kib: 300.0,
            ..third
        };
        let fifth = Epoch {
            day: 66.45,
            buffer_kib: 64.0,
            slow_above_kib: 96.0,
            ..fourth
        };
        let sixth = Epoch {
            day: 78.35,
            threads: 10.0,
            ..fifth
        };
        Self {
            days: 90.0,
            epochs: vec![first, second, third, fourth, fifth, sixth],
            outage: Some((78.45, 78.7)),
            seed: 1,
        }
    }

    /// Nothing ever happens, for so many days.
    #[must_use]
    pub fn quiet(days: f64) -> Self {
        let mut scenario = Self::ninety_days();
        scenario.epochs.truncate(1);
        Self {
            days,
            outage: None,
            ..scenario
        }
    }

    fn epoch(&self, day: f64) -> Epoch {
        let begun = self.epochs.iter().rev().find(|epoch| epoch.day <= day);
        *begun.unwrap_or(&self.epochs[0])
    }

    /// How a configuration really behaves at a time.
    #[must_use]
    pub fn truth(&self, configuration: &Configuration, at_s: f64) -> Truth {
        let day = at_s / DAY_S;
        let epoch = self.epoch(day);
        let load = epoch.load * load(day, self.seed);
        let threads = number(configuration, "threads", 16.0);
        let buffer_kib = number(configuration, "buffer_kib", 16.0);
        // More load wants a few more threads.
        let best_threads = epoch.threads * load.powf(0.1);
        let off = 0.08 * (threads / best_threads).ln().powi(2)
            + 0.03 * (buffer_kib / epoch.buffer_kib).ln().powi(2);
        let is_slow = buffer_kib > epoch.slow_above_kib;
        Truth {
            cpu_us_per_request: 80.0 * off.exp(),
            latency_p99_us: 2000.0 * (0.5 * off).exp() * if is_slow { 1.5 } else { 1.0 },
            requests_per_s: 5000.0 * load,
            ..Truth::default()
        }
    }

    /// The true gain of a configuration over the control, as a share of the control's cost; below 0
    /// is better.
    #[must_use]
    pub fn gain(&self, control: &Configuration, configuration: &Configuration, at_s: f64) -> f64 {
        let (control, it) = (self.truth(control, at_s), self.truth(configuration, at_s));
        it.cpu_us_per_request / control.cpu_us_per_request - 1.0
    }

    /// The gain of the best configuration at a time that keeps the constraint.
    #[must_use]
    pub fn oracle(&self, spec: &CheckedSpec, at_s: f64) -> f64 {
        let control = spec.space.default_configuration();
        let mut best = 0.0_f64;
        for threads in 1..=32 {
            for step in 0..=64 {
                let mut it = control.clone();
                let buffer_kib = (4.0 * 256f64.powf(f64::from(step) / 64.0)).round();
                it.0.insert("threads".into(), bayes_opt::Value::Int(threads));
                #[expect(clippy::cast_possible_truncation, reason = "4 to 1024")]
                it.0.insert(
                    "buffer_kib".into(),
                    bayes_opt::Value::Int(buffer_kib as i64),
                );
                if self.keeps_constraint(&control, &it, at_s) {
                    best = best.min(self.gain(&control, &it, at_s));
                }
            }
        }
        best
    }

    /// Whether a configuration keeps [`SPEC`]'s constraint at a time.
    #[must_use]
    pub fn keeps_constraint(&self, control: &Configuration, it: &Configuration, at_s: f64) -> bool {
        self.truth(it, at_s).latency_p99_us <= 1.1 * self.truth(control, at_s).latency_p99_us
    }

    fn is_out(&self, day: f64) -> bool {
        self.outage
            .is_some_and(|(from, until)| (from..until).contains(&day))
    }

    fn alert(&self, day: f64) -> Alert {
        match self.outage {
            Some((from, until)) if (from..from + (until - from) / 3.0).contains(&day) => {
                Alert::Unreachable("the monitoring is out as well".into())
            }
            Some((from, until)) if (from..until + 1.0 / 24.0).contains(&day) => Alert::Firing(1),
            _ => Alert::Quiet,
        }
    }
}

/// The load of a time: by day three times that of the night, less at weekends, and 5 % of noise
/// from one quarter of an hour to the next.
fn load(day: f64, seed: u64) -> f64 {
    let hour = (day.fract() * 24.0 - 15.0) / 24.0;
    let diurnal = 0.65 + 0.35 * (std::f64::consts::TAU * hour).cos();
    // Day 0 is a Thursday.
    let is_weekend = matches!((day.floor() + 3.0).rem_euclid(7.0), weekday if weekday >= 5.0);
    let quarter = (day * 96.0).floor() + 1e5 * seed as f64;
    // Twelve uniform numbers less six are nearly normal.
    let noise: f64 = (0..12)
        .map(|i| {
            let x = ((quarter * 12.0 + f64::from(i)) * 12.9898).sin() * 43758.5453;
            x - x.floor()
        })
        .sum::<f64>()
        - 6.0;
    diurnal * if is_weekend { 0.7 } else { 1.0 } * (0.05 * noise).exp()
}

/// The specification that is simulated.
pub const SPEC: &str = r#"
name = "simulated"
mode = "continuous"
constraints = ["latency_p99_us <= 1.1 * control"]
parameters = [
  { name = "threads", type = "int", low = 1, high = 32, default = 16, scale = "log" },
  { name = "buffer_kib", type = "int", low = 4, high = 1024, default = 16, scale = "log" },
]
objective = { metric = "cpu_s_per_request" }
evaluation = { warm_up_s = 2, block_s = 5, blocks = 6 }
budget = { evaluations = 14 }
verification = { runs = 3 }

[target]
apply = [{ command = ["true"] }]
observe = { pid = 1 }

[workload]
command = ["true"]
json = { requests = "requests", latency_p99_us = "p99", requests_per_s = "rate" }

# 32 s of control every 15 minutes.
[continuous]
control_share = 0.035555555555555556
metrics = ["requests_per_s"]
weekends = true
false_alarms_per_day = 0.03
changes_per_day = 2
hours = ["08:00-18:00"]
time_zone = "UTC"
alert = { prometheus = "http://127.0.0.1:9", query = "ALERTS{alertstate=\"firing\"}" }
"#;

/// One round of the simulation, and what was true then.
#[derive(Clone, Debug)]
pub struct SimulatedRound {
    /// The day.
    pub day: f64,
    /// The true gain of what is in force.
    pub gain: f64,
    /// The true gain of what was promoted first.
    pub never: f64,
    /// What is in force breaks the constraint.
    pub is_broken: bool,
    /// What was promoted first breaks it.
    pub is_never_broken: bool,
}

/// A simulated world.
pub struct SimulatedWorld<'a> {
    spec: &'a CheckedSpec,
    scenario: &'a Scenario,
    bench: Clocked<'a>,
    memory: Memory,
    in_force: Option<Configuration>,
    first: Option<Configuration>,
    end_s: f64,
    /// The state as it was kept last.
    pub kept: Option<ContinuousState>,
    /// Every round that was kept.
    pub rounds: Vec<Round>,
    /// What happened.
    pub entries: Vec<HistoryEntry>,
    /// The truth beside every round.
    pub samples: Vec<SimulatedRound>,
    /// Ends the world after it was asked to keep something so many times: a `kill -9`.
    pub killed_after: Option<usize>,
}

/// What a configuration is truly like.
type TruthOf<'a> = Box<dyn Fn(&Configuration) -> Truth + 'a>;

/// A bench that moves the world's clock.
struct Clocked<'a> {
    service: SimulatedService<TruthOf<'a>>,
    clock_s: Rc<Cell<f64>>,
    scenario: &'a Scenario,
}

impl Clocked<'_> {
    fn tick(&mut self) {
        self.clock_s.set(self.service.elapsed_s());
    }

    fn fail_if_out(&mut self) -> Result<(), Fault> {
        if self.scenario.is_out(self.clock_s.get() / DAY_S) {
            self.service.sleep(10.0);
            self.tick();
            return Err(Fault::Harness("the service does not answer".into()));
        }
        Ok(())
    }
}

impl Bench for Clocked<'_> {
    fn begin(&mut self, arm: &Arm) -> Result<(), Fault> {
        self.fail_if_out()?;
        let begun = self.service.begin(arm);
        self.tick();
        begun
    }

    fn block(&mut self, index: usize) -> Result<Block, Fault> {
        self.fail_if_out()?;
        let block = self.service.block(index);
        self.tick();
        block
    }

    fn end(&mut self) -> Result<(), TunerError> {
        self.service.end()
    }

    fn elapsed_s(&self) -> f64 {
        self.service.elapsed_s()
    }

    fn own_cpu_s(&self) -> f64 {
        0.0
    }
}

/// What the store is in the real world.
#[derive(Default)]
struct Memory {
    kept: ResumeState,
    clock_s: Rc<Cell<f64>>,
    until_s: f64,
    budget: crate::spec::BudgetSpec,
    alert: Option<Box<dyn Fn(f64) -> Alert>>,
}

impl Ledger for Memory {
    fn kept(&mut self) -> Result<ResumeState, TunerError> {
        Ok(self.kept.clone())
    }

    fn wish(&mut self) -> Result<RunControl, TunerError> {
        let now_s = self.clock_s.get();
        let fires = self
            .alert
            .as_ref()
            .is_some_and(|alert| alert(now_s / DAY_S) != Alert::Quiet);
        Ok(RunControl {
            budget: Some(self.budget.clone()),
            queued: None,
            pause: now_s >= self.until_s || fires,
        })
    }

    fn note(&mut self, event: &LedgerEvent<'_>) -> Result<(), TunerError> {
        match event {
            LedgerEvent::Ended { record, .. } => {
                let mut record = (*record).clone();
                record.blocks.clear();
                self.kept.evaluations.push(record);
            }
            LedgerEvent::Planned(plan) => self.kept.plan = Some(plan.to_vec()),
            LedgerEvent::Verified(run) => self.kept.runs.push((*run).clone()),
            _ => {}
        }
        Ok(())
    }
}

fn timestamp(at_s: f64) -> Timestamp {
    BEGIN
        .checked_add(SignedDuration::from_secs_f64(at_s))
        .unwrap_or(BEGIN)
}

fn seconds(at: Timestamp) -> f64 {
    at.duration_since(BEGIN).as_secs_f64()
}

impl<'a> SimulatedWorld<'a> {
    /// A world in which nothing has happened yet.
    #[must_use]
    pub fn new(spec: &'a CheckedSpec, scenario: &'a Scenario, seed: u64) -> Self {
        let clock_s = Rc::new(Cell::new(0.0));
        let clock = Rc::clone(&clock_s);
        let truth: TruthOf<'a> =
            Box::new(move |configuration| scenario.truth(configuration, clock.get()));
        let control = spec.space.default_configuration();
        let alerts = scenario.clone();
        Self {
            spec,
            scenario,
            bench: Clocked {
                service: SimulatedService::new(seed, Noise::default(), control, truth),
                clock_s: Rc::clone(&clock_s),
                scenario,
            },
            memory: Memory {
                clock_s,
                alert: Some(Box::new(move |day| alerts.alert(day))),
                ..Memory::default()
            },
            in_force: None,
            first: None,
            end_s: scenario.days * DAY_S,
            kept: None,
            rounds: Vec::new(),
            entries: Vec::new(),
            samples: Vec::new(),
            killed_after: None,
        }
    }
}

impl SimulatedWorld<'_> {
    /// Runs from what was kept, to the end or until it is killed.
    ///
    /// # Errors
    /// The search's; [`TunerError::Ledger`] of the kill.
    pub fn go_on(&mut self) -> Result<(), TunerError> {
        let Some(rules) = self.spec.continuous.clone() else {
            return Ok(());
        };
        let control = self.spec.space.default_configuration();
        let state = self
            .kept
            .clone()
            .unwrap_or_else(|| ContinuousState::new(self.now()));
        let mut controller = ContinuousController::resume(rules, control, state, &self.rounds);
        run(&mut controller, self)
    }

    /// What is in force on the simulated host.
    #[must_use]
    pub fn in_force(&self) -> Option<&Configuration> {
        self.in_force.as_ref()
    }
}

impl World for SimulatedWorld<'_> {
    fn now(&mut self) -> Timestamp {
        timestamp(self.bench.clock_s.get())
    }

    fn wait(&mut self, until: Timestamp) -> Flow {
        let wait_s = seconds(until) - self.bench.clock_s.get();
        self.bench.service.sleep(wait_s.min(self.end_s));
        self.bench.tick();
        if self.bench.clock_s.get() < self.end_s {
            Flow::On
        } else {
            Flow::End
        }
    }

    fn keep(
        &mut self,
        controller: &mut ContinuousController,
        round: Option<&Round>,
    ) -> Result<(), TunerError> {
        if let Some(left) = &mut self.killed_after {
            if *left == 0 {
                return Err(TunerError::Ledger("killed".into()));
            }
            *left -= 1;
        }
        self.kept = Some(controller.state().clone());
        self.rounds.extend(round.cloned());
        self.entries.extend(controller.take_entries());
        if round.is_some() {
            let at_s = self.bench.clock_s.get();
            let control = self.spec.space.default_configuration();
            let of = |it: &Option<Configuration>| {
                let it = it.as_ref().unwrap_or(&control);
                let is_kept = self.scenario.keeps_constraint(&control, it, at_s);
                (self.scenario.gain(&control, it, at_s), !is_kept)
            };
            let ((gain, is_broken), (never, is_never_broken)) =
                (of(&self.in_force), of(&self.first));
            self.samples.push(SimulatedRound {
                day: at_s / DAY_S,
                gain,
                never,
                is_broken,
                is_never_broken,
            });
        }
        Ok(())
    }

    fn watch(&mut self, configuration: &Configuration) -> Result<Option<Seen>, TunerError> {
        let nobody = &mut |_: &LedgerEvent<'_>| {};
        super::watch(self.spec, configuration, &mut self.bench, nobody)
    }

    fn tune(&mut self, task: &Task) -> Result<Option<Tuned>, TunerError> {
        let memory = &mut self.memory;
        if task.is_new {
            memory.kept.plan = None;
            memory.kept.runs.clear();
        }
        memory.kept.drifts.clone_from(&task.drifts);
        memory.kept.in_force.clone_from(&task.in_force);
        memory.until_s = seconds(task.until);
        memory.budget = self.spec.written().budget.clone();
        memory.budget.evaluations += task.from;
        Ok(super::tune(self.spec, task.in_force.as_ref(), &mut self.bench, memory)?.0)
    }

    fn alert(&mut self, _: &AlertSpec) -> Alert {
        self.scenario.alert(self.bench.clock_s.get() / DAY_S)
    }

    fn apply(
        &mut self,
        configuration: Option<&Configuration>,
    ) -> Result<Option<Applied>, TunerError> {
        self.in_force = configuration.cloned();
        if self.first.is_none() {
            self.first.clone_from(&self.in_force);
        }
        self.bench.service.sleep(1.0);
        self.bench.tick();
        let control = self.spec.space.default_configuration();
        let now = self.in_force.as_ref().unwrap_or(&control);
        let changed = now
            .0
            .iter()
            .map(|(name, value)| format!("{name} = {value}"));
        Ok(Some(Ok(Changed {
            done: Changes {
                changed: changed.collect(),
                ..Changes::default()
            },
            ..Changed::default()
        })))
    }
}
