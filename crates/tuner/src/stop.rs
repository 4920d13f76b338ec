//! What asks an evaluation to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How often a running process is looked at: short beside a block, and 100 looks a second cost
/// under 0.1 % of a core.
pub(crate) const POLL: Duration = Duration::from_millis(10);

/// What asked an evaluation to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A signal of that number: the experiment ends.
    Signal(i32),
    /// The user had enough of this evaluation; the experiment goes on.
    Evaluation,
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Signal(number) => write!(f, "signal {number}"),
            Self::Evaluation => f.write_str("its user"),
        }
    }
}

/// A request to stop, seen by everything that waits.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    /// The number of the signal, which a signal handler writes; 0 is none (signals count from 1).
    signal: Arc<AtomicUsize>,
    evaluation: Arc<AtomicBool>,
}

impl Interrupt {
    /// Catches SIGINT, SIGTERM and, unless it is ignored already, as under `nohup`, SIGHUP from now
    /// on.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn on_signals() -> std::io::Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let interrupt = Self::default();
        // Not SIGINT, which a shell's script has whatever is in the background ignore.
        let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        for signal in [SIGINT, SIGTERM].into_iter().chain(hang_up) {
            let number = usize::try_from(signal).unwrap_or(0);
            signal_hook::flag::register_usize(signal, Arc::clone(&interrupt.signal), number)?;
        }
        Ok(interrupt)
    }

    /// The signal, once there was one.
    pub fn signal(&self) -> Option<i32> {
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            number => i32::try_from(number).ok(),
        }
    }

    /// What asked to stop, if anything did.
    pub fn stop(&self) -> Option<Stop> {
        let evaluation = || {
            self.evaluation
                .load(Ordering::Relaxed)
                .then_some(Stop::Evaluation)
        };
        self.signal().map(Stop::Signal).or_else(evaluation)
    }

    /// Asks as that signal would.
    pub fn raise(&self, signal: i32) {
        self.signal
            .store(usize::try_from(signal).unwrap_or(0), Ordering::Relaxed);
    }

    /// Asks the present evaluation to stop, and nothing after it.
    pub fn kill_evaluation(&self) {
        self.evaluation.store(true, Ordering::Relaxed);
    }

    /// The evaluation that was to stop is over.
    pub fn evaluation_is_over(&self) {
        self.evaluation.store(false, Ordering::Relaxed);
    }

    /// Waits, but not beyond a request to stop.
    ///
    /// # Errors
    /// That request.
    pub fn sleep(&self, duration: Duration) -> Result<(), Stop> {
        let end = Instant::now() + duration;
        loop {
            if let Some(stop) = self.stop() {
                return Err(stop);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(POLL));
        }
    }
}

/// Whether this process ignores a signal: proc_pid_status(5), `SigIgn`, a bit each from the lowest
/// on.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}
