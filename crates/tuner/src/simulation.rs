//! A service that does not exist: a [`Bench`] under a seed, for testing the whole loop against a
//! known truth.
//!
//! The truth is a function from a configuration to [`Truth`]; the [`Noise`] between it and the
//! measurements is what a shared machine does: blocks scatter, runs differ, the machine drifts
//! under both sides alike, some blocks are far out, and the harness itself fails now and then. The
//! clock is simulated too: an experiment of hours takes as long as its arithmetic.

use bayes_opt::{Configuration, Value};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::bench::{Arm, Bench};
use crate::error::{Crash, CrashKind, Fault, TunerError};
use crate::evaluation::{Block, SideOrder};
use crate::metrics::SideMetrics;
use crate::stop::Stop;

/// The parameters, the target and the workload of a specification whose truth is
/// [`pooled_service`]: a pool and a buffer.
pub const POOLED_SPEC: &str = r#"
[[parameters]]
name = "threads"
type = "int"
low = 1
high = 32
default = 16

[[parameters]]
name = "buffer_kib"
type = "int"
low = 4
high = 1024
scale = "log"
default = 16

[target]
start = ["sleep", "9"]

[workload]
command = ["true"]
json = { requests = "requests", latency_p99_us = "p99", requests_per_s = "rate" }
"#;

/// How a configuration really behaves, without noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Truth {
    /// CPU time of a request.
    pub cpu_us_per_request: f64,
    /// The 99th percentile of its latency.
    pub latency_p99_us: f64,
    /// Requests served in a second.
    pub requests_per_s: f64,
    /// Share of the scheduling periods in which the quota runs out, from 0 to 1.
    pub throttled_share: f64,
    /// Memory of the service.
    pub memory_bytes: f64,
    /// The service does not survive this configuration.
    pub crashes: bool,
}

impl Default for Truth {
    fn default() -> Self {
        Self {
            cpu_us_per_request: 100.0,
            latency_p99_us: 2000.0,
            requests_per_s: 5000.0,
            throttled_share: 0.0,
            memory_bytes: 1e8,
            crashes: false,
        }
    }
}

/// What stands between the truth and a measurement. Deviations are of logarithms: 0.02 is about 2
/// %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// Of one side of one block.
    pub block_sd: f64,
    /// Of a whole start of one side (memory layout, placement).
    pub run_sd: f64,
    /// Of the machine's step from one measurement to the next, which both sides feel.
    pub drift_sd: f64,
    /// Probability that one side of a block is slowed 3 to 10 times.
    pub outlier_probability: f64,
    /// Probability that a block fails through no fault of the configuration.
    pub harness_failure_probability: f64,
}

impl Noise {
    /// None at all.
    pub const NONE: Self = Self {
        block_sd: 0.0,
        run_sd: 0.0,
        drift_sd: 0.0,
        outlier_probability: 0.0,
        harness_failure_probability: 0.0,
    };
}

impl Default for Noise {
    /// Blocks scatter by 2 %, runs by 0.5 %; nothing else happens.
    fn default() -> Self {
        Self {
            block_sd: 0.02,
            run_sd: 0.005,
            ..Self::NONE
        }
    }
}

/// Length of a CFS period (`cpu.cfs_period_us` by default: Documentation/scheduler/sched-bwc.rst).
const PERIOD_S: f64 = 0.1;

/// A service with a known truth.
///
/// ```
/// use tuner::bench::{Arm, Bench};
/// use tuner::simulation::{Noise, SimulatedService, Truth};
///
/// let truth = |_: &bayes_opt::Configuration| Truth::default();
/// let mut service = SimulatedService::new(7, Noise::NONE, Default::default(), truth);
/// service.begin(&Arm::default())?;
/// let block = service.block(0)?;
/// assert_eq!(tuner::metrics::lookup(&block.control, "cpu_s_per_request"), Some(100e-6));
/// assert_eq!(block.control, block.experiment);
/// assert_eq!(service.elapsed_s(), 12.0); // 2 s of warm-up and two sides of 5 s
/// # Ok::<(), tuner::Fault>(())
/// ```
pub struct SimulatedService<F> {
    truth: F,
    noise: Noise,
    control: Configuration,
    rng: ChaCha8Rng,
    warm_up_s: f64,
    block_s: f64,
    clock_s: f64,
    /// Logarithm of the machine's slowness.
    machine: f64,
    /// Logarithms of what this start does to control and experiment.
    run: [f64; 2],
    experiment: Configuration,
    interrupt: Option<(usize, i32)>,
    fail: Vec<usize>,
    begun: Vec<Configuration>,
    measured_blocks: usize,
    /// Requests a second that the load sends, where it does not wait for answers.
    rate: f64,
    saturates: bool,
}

impl<F: Fn(&Configuration) -> Truth> SimulatedService<F> {
    /// A service whose `control` and every other configuration behave as `truth` says; blocks of
    /// 5 s after a warm-up of 2 s.
    pub fn new(seed: u64, noise: Noise, control: Configuration, truth: F) -> Self {
        Self {
            truth,
            noise,
            experiment: control.clone(),
            control,
            rng: ChaCha8Rng::seed_from_u64(seed),
            warm_up_s: 2.0,
            block_s: 5.0,
            clock_s: 0.0,
            machine: 0.0,
            run: [0.0; 2],
            interrupt: None,
            fail: Vec::new(),
            begun: Vec::new(),
            measured_blocks: 0,
            rate: f64::INFINITY,
            saturates: true,
        }
    }

    /// Is sent so many requests a second, unless an arm asks for its capacity.
    #[must_use]
    pub fn with_rate(mut self, rate: f64) -> Self {
        self.rate = rate;
        self
    }

    /// Sends `signal` in place of the block with this number, counted from 0 over the experiment.
    #[must_use]
    pub fn interrupted_at(mut self, block: usize, signal: i32) -> Self {
        self.interrupt = Some((block, signal));
        self
    }

    /// Lets these starts fail, counted from 0 over the experiment, as a harness does.
    #[must_use]
    pub fn failing_starts(mut self, starts: impl IntoIterator<Item = usize>) -> Self {
        self.fail.extend(starts);
        self
    }

    /// Lets the simulated time pass.
    pub fn sleep(&mut self, seconds: f64) {
        self.clock_s += seconds.max(0.0);
    }

    /// The configurations that were started, in order.
    pub fn begun(&self) -> &[Configuration] {
        &self.begun
    }

    /// Blocks measured so far, in search and verification.
    pub fn measured_blocks(&self) -> usize {
        self.measured_blocks
    }

    /// A standard normal number (Box and Muller 1958).
    fn normal(&mut self) -> f64 {
        // 1 − u: `random` is in [0, 1), and ln 0 is not finite.
        let radius = (-2.0 * (1.0 - self.rng.random::<f64>()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.rng.random::<f64>()).cos()
    }

    /// One side of a block, measured for `block_s`.
    fn side(&mut self, index: usize) -> SideMetrics {
        let truth = (self.truth)(if index == 0 {
            &self.control
        } else {
            &self.experiment
        });
        self.machine += self.noise.drift_sd * self.normal();
        let mut slowness = self.machine + self.run[index] + self.noise.block_sd * self.normal();
        // Drawn whether or not it is an outlier: equal seeds then see equal noise.
        let (chance, size) = (
            self.rng.random::<f64>(),
            self.rng.random_range(3.0..10.0_f64),
        );
        if chance < self.noise.outlier_probability {
            slowness += size.ln();
        }
        let latency_noise = slowness + self.noise.block_sd * self.normal();
        self.clock_s += self.block_s;
        let capacity = truth.requests_per_s * (-slowness).exp();
        let limit = if self.saturates {
            f64::INFINITY
        } else {
            self.rate
        };
        let requests_per_s = capacity.min(limit);
        let requests = requests_per_s * self.block_s;
        let periods = self.block_s / PERIOD_S;
        let throttled_periods = (periods * truth.throttled_share).round();
        let cpu_s = truth.cpu_us_per_request * 1e-6 * slowness.exp() * requests;
        [
            ("requests", requests),
            ("requests_per_s", requests_per_s),
            ("duration_s", self.block_s),
            ("errors", 0.0),
            ("cpu_s", cpu_s),
            ("cpu_user_s", 0.7 * cpu_s),
            ("cpu_system_s", 0.3 * cpu_s),
            ("latency_p99_us", truth.latency_p99_us * latency_noise.exp()),
            ("periods", periods),
            ("throttled_periods", throttled_periods),
            ("throttled_s", throttled_periods * PERIOD_S / 2.0),
            ("memory_bytes", truth.memory_bytes),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

impl<F: Fn(&Configuration) -> Truth> Bench for SimulatedService<F> {
    fn begin(&mut self, arm: &Arm) -> Result<(), Fault> {
        let start = self.begun.len();
        self.begun.push(arm.configuration.clone());
        self.experiment = arm.configuration.clone();
        self.saturates = arm.saturates;
        self.run = [0, 1].map(|_| self.noise.run_sd * self.normal());
        self.clock_s += self.warm_up_s;
        if self.fail.contains(&start) {
            return Err(Fault::Harness("the control did not come up".into()));
        }
        if (self.truth)(&self.experiment).crashes {
            return Err(Fault::Configuration(Crash {
                kind: CrashKind::EndedAtStart,
                status: Some(1),
                message: "ended with status 1".into(),
                output: None,
            }));
        }
        Ok(())
    }

    fn block(&mut self, index: usize) -> Result<Block, Fault> {
        if let Some((_, signal)) = self
            .interrupt
            .filter(|(block, _)| self.measured_blocks >= *block)
        {
            return Err(Fault::Interrupted(Stop::Signal(signal)));
        }
        if self.rng.random::<f64>() < self.noise.harness_failure_probability {
            return Err(Fault::Harness(
                "the load generator ended with status 1".into(),
            ));
        }
        let start_s = self.clock_s;
        let order = SideOrder::in_turns(index);
        let (control, experiment) = if order == SideOrder::ControlFirst {
            let control = self.side(0);
            (control, self.side(1))
        } else {
            let experiment = self.side(1);
            (self.side(0), experiment)
        };
        self.measured_blocks += 1;
        Ok(Block {
            start_s,
            order,
            control,
            experiment,
        })
    }

    fn end(&mut self) -> Result<(), TunerError> {
        Ok(())
    }

    fn elapsed_s(&self) -> f64 {
        self.clock_s
    }

    fn own_cpu_s(&self) -> f64 {
        0.0
    }
}

/// The value of a parameter as a number; `otherwise` if there is none of that name or it is not
/// one.
pub fn number(configuration: &Configuration, name: &str, otherwise: f64) -> f64 {
    configuration
        .get(name)
        .and_then(Value::as_f64)
        .unwrap_or(otherwise)
}

/// A service with a thread pool and a buffer: best at 6 `threads` and a `buffer_kib` of 128, where
/// a request costs 80 µs of CPU. Beyond 24 threads it is throttled, beyond 400 KiB it crashes.
///
/// ```
/// use tuner::simulation::pooled_service;
/// let at = |threads, buffer_kib| {
///     let configuration = [("threads", threads), ("buffer_kib", buffer_kib)]
///         .map(|(name, value)| (name.to_string(), bayes_opt::Value::Int(value)));
///     pooled_service(&bayes_opt::Configuration(configuration.into_iter().collect()))
/// };
/// assert_eq!(at(6, 128).cpu_us_per_request, 80.0);
/// assert!(at(16, 16).cpu_us_per_request > 95.0);
/// assert!(at(32, 128).throttled_share > 0.0);
/// assert!(at(6, 512).crashes);
/// ```
pub fn pooled_service(configuration: &Configuration) -> Truth {
    let threads = number(configuration, "threads", 16.0);
    let buffer_kib = number(configuration, "buffer_kib", 16.0);
    let off = 0.08 * (threads / 6.0).ln().powi(2) + 0.03 * (buffer_kib / 128.0).ln().powi(2);
    Truth {
        cpu_us_per_request: 80.0 * off.exp(),
        latency_p99_us: 2000.0 * off.exp(),
        requests_per_s: 6000.0 * (-off).exp(),
        throttled_share: ((threads - 24.0) / 16.0).clamp(0.0, 1.0),
        crashes: buffer_kib > 400.0,
        ..Truth::default()
    }
}
