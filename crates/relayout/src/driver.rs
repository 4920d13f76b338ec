//! What to do next with a process: a state machine that reads no clock and touches nothing. What
//! was observed comes in, what to do goes out.
//!
//! `monitoring → profiling → optimizing → verifying → optimized`, and `reoptimizing` when the
//! workload has changed. Every way that ends elsewhere ends in `declined` (nothing was gained, or
//! tried) or `rolled-back` (somebody wished it, or the gain was not shown).

use std::time::Duration;

use paired_stats::Interval;
use serde::{Deserialize, Serialize};

use crate::session::cover::{COVER_MIN, LayoutCandidate};

/// Where a process stands. The names are those that users of Dynimizer know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessState {
    /// Looked at now and then.
    Monitoring,
    /// Counting what runs.
    Profiling,
    /// Being laid out.
    Optimizing,
    /// Compared with its original layout, back and forth.
    Verifying,
    /// Runs in a layout that was shown to be better.
    Optimized,
    /// Its workload has changed: profiled again.
    Reoptimizing,
    /// Left as it is.
    Declined,
    /// Back to its original bytes.
    RolledBack,
}

impl std::fmt::Display for ProcessState {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.pad(match self {
            Self::Monitoring => "monitoring",
            Self::Profiling => "profiling",
            Self::Optimizing => "optimizing",
            Self::Verifying => "verifying",
            Self::Optimized => "optimized",
            Self::Reoptimizing => "reoptimizing",
            Self::Declined => "declined",
            Self::RolledBack => "rolled-back",
        })
    }
}

/// When it is worth it, and when it is not.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriverSettings {
    /// Below this the process is idle, in cores. (A gain of 20 % of it would be 1 % of a core.)
    pub idle_cores: f64,
    /// Above this share of kernel time it is kernel-bound. (nginx has 77 to 83 %: +3.6 % [2.1,
    /// 10.3] at best; MariaDB under the shortest queries 69 % on a virtual machine, where it gains
    /// 5 %: docs/results/relayout.md.)
    pub kernel_share_max: f64,
    /// Hot code of so many bytes stays in the instruction cache however it lies: 32 KiB on x86-64
    /// since 2006.
    pub footprint_bytes_min: u64,
    /// Samples in user code that choose functions, at least.
    pub samples_min: u64,
    /// Placements tried before it is rolled back.
    pub placements: u32,
    /// A layout that is shown to cover less than this share of what runs does not fit.
    pub cover_min: f64,
    /// Looks in a row at which the layout in force does not fit, before there is another: a backup
    /// at night is not worth one.
    pub misfits: u32,
    /// And so long after the last one. Another one costs about 4 s of work (13 s of profiling at 6
    /// to 10 % less throughput, 23 s of comparison of which half is in the original code), so at
    /// most 1.3 % of the time between two.
    pub hold_off: Duration,
}

impl Default for DriverSettings {
    fn default() -> Self {
        Self {
            idle_cores: 0.05,
            kernel_share_max: 0.75,
            footprint_bytes_min: 32 << 10,
            samples_min: 200,
            placements: 2,
            cover_min: COVER_MIN,
            misfits: 2,
            hold_off: Duration::from_secs(300),
        }
    }
}

/// What a look at a process showed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessLoad {
    /// When it was, since the process was opened.
    pub at: Duration,
    /// CPU time in use, in cores.
    pub cores: f64,
    /// The kernel's share of it.
    pub kernel_share: f64,
    /// Samples in user code.
    pub user_samples: u64,
    /// Bytes of the functions that hold nine tenths of them.
    pub footprint_bytes: u64,
    /// How well the layout in force fits what runs; where the original is left in force for a
    /// workload, how well that one does.
    pub fit: Option<LayoutCandidate>,
    /// How well the other layouts at hand would, by generation (0: a workload that the original was
    /// left for).
    pub held: Vec<(u32, LayoutCandidate)>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum DriverEvent {
    /// A look.
    Load(ProcessLoad),
    /// The counts are there, or a layout is installed: the step is done.
    Done,
    /// The step failed: the reason.
    Failed(String),
    /// The layouts by the profiles that earlier processes left on disk, and how well each would
    /// fit.
    Kept(Vec<LayoutCandidate>),
    /// The comparison, new layout over original: units of work per CPU second.
    Compared(Interval),
    /// Somebody else rolled it back.
    RolledBack,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum DriverAction {
    /// Sample it.
    Look,
    /// Count what runs.
    Count,
    /// Look how well the profiles that earlier processes left on disk fit what runs.
    ConsiderKept,
    /// Lay it out by one of them.
    InstallKept {
        /// Which one, in the order in which they were observed.
        index: usize,
    },
    /// Lay it out; which placement of the code cache.
    Install {
        /// From 0.
        placement: u32,
    },
    /// Put a layout in force again that was made for a workload like this; 0 is the original one.
    Resume {
        /// Its generation.
        generation: u32,
    },
    /// Go on in the original layout while the workload is this one; the layouts for others are
    /// held.
    LeaveOriginal,
    /// Compare the new layout with the original.
    Compare,
    /// Back to the original bytes.
    RollBack,
    /// Leave it alone until the next look.
    Rest,
}

/// The state machine of one process.
#[derive(Clone, Debug, PartialEq)]
pub struct Driver {
    settings: DriverSettings,
    state: ProcessState,
    placement: u32,
    reason: Option<String>,
    gain: Option<Interval>,
    /// Whether profiles on disk are considered.
    considers_kept: bool,
    /// The layout to be compared was made for an earlier workload like this, in this process or in
    /// another one.
    is_resumed: bool,
    /// A layout was shown to be better once: from then on a workload that is like none before is
    /// worth another.
    has_won: bool,
    /// Looks in a row at which the layout in force did not fit.
    misfits: u32,
    /// At which look the last layout was begun.
    begun_at: Duration,
    /// Why another layout is to be made, while the profiles on disk are considered.
    because: Option<String>,
}

impl Driver {
    /// A process that was just found.
    #[must_use]
    pub fn new(settings: DriverSettings) -> Self {
        Self {
            settings,
            state: ProcessState::Monitoring,
            placement: 0,
            reason: None,
            gain: None,
            considers_kept: false,
            is_resumed: false,
            has_won: false,
            misfits: 0,
            begun_at: Duration::ZERO,
            because: None,
        }
    }

    /// As [`Driver::new`], but takes a profile on disk where one fits.
    #[must_use]
    pub fn with_kept_profiles(settings: DriverSettings) -> Self {
        Self {
            considers_kept: true,
            ..Self::new(settings)
        }
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> ProcessState {
        self.state
    }

    /// Why it stands there, where that is not obvious.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// The last comparison.
    #[must_use]
    pub fn gain(&self) -> Option<Interval> {
        self.gain
    }

    /// What to do first, and after each rest.
    #[must_use]
    pub fn wake(&self) -> DriverAction {
        match self.state {
            ProcessState::RolledBack => DriverAction::Rest,
            _ => DriverAction::Look,
        }
    }

    /// Takes in what happened.
    pub fn step(&mut self, observation: DriverEvent) -> DriverAction {
        match (self.state, observation) {
            (_, DriverEvent::RolledBack) => {
                self.end(ProcessState::RolledBack, "as its user wished".into())
            }
            // Declined for what it does, while layouts for other workloads are held.
            (state, DriverEvent::Load(load))
                if state == ProcessState::Optimized
                    || state == ProcessState::Declined && load.fit.is_some() =>
            {
                self.look_at_workload(&load)
            }
            (ProcessState::Monitoring | ProcessState::Declined, DriverEvent::Load(load)) => {
                match self.why_not(&load) {
                    Some(why) => self.end(ProcessState::Declined, why),
                    None => self.begin(&load, None),
                }
            }
            (_, DriverEvent::Kept(kept)) => self.choose(&kept),
            (ProcessState::Reoptimizing, DriverEvent::Done) if self.is_resumed => {
                self.go(ProcessState::Verifying, DriverAction::Compare)
            }
            (ProcessState::Profiling | ProcessState::Reoptimizing, DriverEvent::Done) => {
                let placement = self.placement;
                self.go(
                    ProcessState::Optimizing,
                    DriverAction::Install { placement },
                )
            }
            (ProcessState::Optimizing, DriverEvent::Done) => {
                self.go(ProcessState::Verifying, DriverAction::Compare)
            }
            (ProcessState::Verifying, DriverEvent::Compared(gain)) => self.judge(gain),
            (state, DriverEvent::Failed(why)) => {
                let is_before = matches!(
                    state,
                    ProcessState::Monitoring | ProcessState::Profiling | ProcessState::Declined
                );
                self.end(
                    if is_before {
                        ProcessState::Declined
                    } else {
                        ProcessState::RolledBack
                    },
                    why,
                );
                self.is_resumed = false;
                // Code that counts may be in force.
                DriverAction::RollBack
            }
            // An answer to what was not asked: nothing follows from it.
            (_, _) => DriverAction::Rest,
        }
    }

    fn judge(&mut self, gain: Interval) -> DriverAction {
        self.gain = Some(gain);
        if gain.low > 1.0 {
            self.has_won = true;
            return self.go(ProcessState::Optimized, DriverAction::Rest);
        }
        if self.is_resumed {
            let why = format!("an earlier layout showed no gain ({})", change(gain));
            return self.profile(Some(why));
        }
        self.placement += 1;
        if self.placement < self.settings.placements {
            let placement = self.placement;
            return self.go(
                ProcessState::Optimizing,
                DriverAction::Install { placement },
            );
        }
        let why = format!(
            "no gain shown at {} placements (the last: {})",
            self.settings.placements,
            change(gain)
        );
        if self.has_won {
            self.end(
                ProcessState::Declined,
                format!("{why} for what it does now"),
            );
            return DriverAction::LeaveOriginal;
        }
        self.end(ProcessState::RolledBack, why);
        DriverAction::RollBack
    }

    /// A workload that the layout in force does not fit gets the layout at hand that fits it best,
    /// and a new one where none does.
    fn look_at_workload(&mut self, load: &ProcessLoad) -> DriverAction {
        if self.why_not(load).is_some() {
            return DriverAction::Rest;
        }
        let least = self.settings.cover_min;
        let Some(fit) = load.fit.filter(|fit| fit.cover.is_below(least)) else {
            self.misfits = 0;
            return DriverAction::Rest;
        };
        self.misfits += 1;
        let is_held_off = load.at < self.begun_at + self.settings.hold_off;
        if self.misfits < self.settings.misfits || is_held_off {
            return DriverAction::Rest;
        }
        let why = format!(
            "the layout in force covers {} of what runs, below {:.0} %",
            fit.cover,
            least * 100.0
        );
        let held: Vec<LayoutCandidate> = load.held.iter().map(|(_, held)| *held).collect();
        match LayoutCandidate::best(&held, least).map(|index| load.held[index]) {
            Some((0, _)) => {
                (self.misfits, self.begun_at) = (0, load.at);
                self.end(
                    ProcessState::Declined,
                    "no gain was shown for what it does now".into(),
                );
                DriverAction::Resume { generation: 0 }
            }
            Some((generation, held)) => {
                (self.misfits, self.begun_at) = (0, load.at);
                self.is_resumed = true;
                let why = format!(
                    "{why}; generation {generation} is in force again, which covers {}",
                    held.cover
                );
                self.go_as(
                    ProcessState::Reoptimizing,
                    Some(why),
                    DriverAction::Resume { generation },
                )
            }
            None => self.begin(load, Some(why)),
        }
    }

    /// Another layout is to be made, by a profile on disk or by a new one.
    fn begin(&mut self, load: &ProcessLoad, why: Option<String>) -> DriverAction {
        (self.misfits, self.begun_at) = (0, load.at);
        if !self.considers_kept {
            return self.profile(why);
        }
        // What is in force stays so until it is known what replaces it.
        self.because = why;
        DriverAction::ConsiderKept
    }

    /// Takes the profile on disk that fits best, and profiles anew where none does.
    fn choose(&mut self, kept: &[LayoutCandidate]) -> DriverAction {
        let least = self.settings.cover_min;
        let because = self.because.take();
        let with = |why: String| match &because {
            Some(because) => format!("{because}; {why}"),
            None => why,
        };
        if let Some(index) = LayoutCandidate::best(kept, least) {
            self.is_resumed = true;
            let why = format!(
                "by a kept profile, which covers {} of what runs",
                kept[index].cover
            );
            return self.go_as(
                ProcessState::Optimizing,
                Some(with(why)),
                DriverAction::InstallKept { index },
            );
        }
        let shares = kept.iter().map(|kept| kept.cover);
        let most = shares.max_by(|one, other| {
            let (one, other) = (one.share().estimate, other.share().estimate);
            one.total_cmp(&other)
        });
        let why = most.map(|cover| {
            with(format!(
                "no kept profile is shown to cover {:.0} % of what runs: the best of {} covers {cover}",
                least * 100.0,
                kept.len()
            ))
        });
        self.profile(why.or(because))
    }

    fn profile(&mut self, why: Option<String>) -> DriverAction {
        self.is_resumed = false;
        self.placement = 0;
        let state = match self.has_won {
            true => ProcessState::Reoptimizing,
            false => ProcessState::Profiling,
        };
        self.go_as(state, why, DriverAction::Count)
    }

    fn go(&mut self, state: ProcessState, action: DriverAction) -> DriverAction {
        self.go_as(state, None, action)
    }

    fn go_as(
        &mut self,
        state: ProcessState,
        reason: Option<String>,
        action: DriverAction,
    ) -> DriverAction {
        self.state = state;
        self.reason = reason;
        action
    }

    fn end(&mut self, state: ProcessState, reason: String) -> DriverAction {
        self.state = state;
        self.reason = Some(reason);
        DriverAction::Rest
    }

    /// Why nothing is to be won from a process in this state of load.
    fn why_not(&self, load: &ProcessLoad) -> Option<String> {
        let settings = &self.settings;
        if load.cores < settings.idle_cores {
            return Some(format!(
                "idle: it uses {:.3} cores (below {})",
                load.cores, settings.idle_cores
            ));
        }
        if load.kernel_share > settings.kernel_share_max {
            return Some(format!(
                "kernel-bound: {:.0} % of its CPU time is in the kernel, which stays as it is",
                load.kernel_share * 100.0
            ));
        }
        if load.user_samples < settings.samples_min {
            return Some(format!(
                "too little of its time is in code that could be moved: {} samples of {}",
                load.user_samples, settings.samples_min
            ));
        }
        if load.footprint_bytes < settings.footprint_bytes_min {
            return Some(format!(
                "footprint small: nine tenths of its time are in {:.0} KiB of functions, which fit into the instruction cache as they lie",
                load.footprint_bytes as f64 / 1024.0
            ));
        }
        None
    }
}

/// A ratio as a change in percent, with its interval.
fn change(gain: Interval) -> String {
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    format!(
        "{:+.1} % [{:.1}, {:.1}]",
        percent(gain.estimate),
        percent(gain.low),
        percent(gain.high)
    )
}

#[cfg(test)]
mod tests;
