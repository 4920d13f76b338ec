//! What to do next with a process: a state machine that reads no clock and touches nothing. What
//! was observed comes in, what to do goes out.
//!
//! `monitoring → profiling → optimizing → verifying → optimized`, and `reoptimizing` when the
//! workload has changed. Every way that ends elsewhere ends in `declined` (nothing was gained, or
//! tried) or `rolled-back` (somebody wished it, or the gain was not shown).

use latency_stats::Interval;
use serde::{Deserialize, Serialize};

/// Where a process stands. The names are those that users of Dynimizer know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
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

impl std::fmt::Display for State {
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
pub struct Settings {
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
    /// Profiles less alike than this are of another workload (the sum over functions of the smaller
    /// share).
    pub overlap_min: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            idle_cores: 0.05,
            kernel_share_max: 0.75,
            footprint_bytes_min: 32 << 10,
            samples_min: 200,
            placements: 2,
            overlap_min: 0.5,
        }
    }
}

/// What a look at a process showed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// CPU time in use, in cores.
    pub cores: f64,
    /// The kernel's share of it.
    pub kernel_share: f64,
    /// Samples in user code.
    pub user_samples: u64,
    /// Bytes of the functions that hold nine tenths of them.
    pub footprint_bytes: u64,
    /// How alike they are to those that the layout in force was made for, 0 to 1.
    pub overlap: Option<f64>,
    /// Of the workloads that other layouts at hand were made for (0: that the original was left
    /// for), the one most like it, and how alike it is.
    pub other: Option<(u32, f64)>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// A look.
    Load(Load),
    /// The counts are there, or a layout is installed: the step is done.
    Done,
    /// The step failed: the reason.
    Failed(String),
    /// There is no profile on disk that fits.
    NothingKept,
    /// The comparison, new layout over original: units of work per CPU second.
    Compared(Interval),
    /// Somebody else rolled it back.
    RolledBack,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Sample it.
    Look,
    /// Count what runs.
    Count,
    /// Lay it out by a profile that an earlier process left on disk, if there is one.
    InstallKept,
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
    settings: Settings,
    state: State,
    placement: u32,
    reason: Option<String>,
    gain: Option<Interval>,
    kept: Kept,
    /// The layout to be compared was made for an earlier workload like this.
    is_resumed: bool,
    /// A layout was shown to be better once: from then on a workload that is like none before is
    /// worth another.
    has_won: bool,
}

/// What is known of a profile on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// Nobody has looked.
    Unknown,
    /// The layout in force was made by it.
    InForce,
    /// There is none, or it was no good.
    Useless,
}

impl Driver {
    /// A process that was just found.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            state: State::Monitoring,
            placement: 0,
            reason: None,
            gain: None,
            kept: Kept::Useless,
            is_resumed: false,
            has_won: false,
        }
    }

    /// As [`Driver::new`], but tries the profile on disk first.
    #[must_use]
    pub fn with_kept_profile(settings: Settings) -> Self {
        Self {
            kept: Kept::Unknown,
            ..Self::new(settings)
        }
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Why it was declined or rolled back.
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
    pub fn wake(&self) -> Action {
        match self.state {
            State::RolledBack => Action::Rest,
            State::Monitoring if self.kept == Kept::Unknown => Action::InstallKept,
            _ => Action::Look,
        }
    }

    /// Takes in what happened.
    pub fn step(&mut self, observation: Observation) -> Action {
        match (self.state, observation) {
            (_, Observation::RolledBack) => {
                self.end(State::RolledBack, "as its user wished".into())
            }
            (State::Monitoring, Observation::NothingKept) => {
                self.kept = Kept::Useless;
                Action::Look
            }
            (State::Monitoring, Observation::Done) => {
                self.kept = Kept::InForce;
                self.go(State::Verifying, Action::Look)
            }
            // In force, but not verified: for that it has to have something to do.
            (State::Verifying, Observation::Load(load)) => match self.why_not(&load) {
                Some(why) => {
                    self.reason = Some(format!("not verified yet: {why}"));
                    Action::Rest
                }
                None => self.go(State::Verifying, Action::Compare),
            },
            // Declined for what it does, while layouts for other workloads are held.
            (state, Observation::Load(load))
                if state == State::Optimized
                    || state == State::Declined && load.overlap.is_some() =>
            {
                self.look_at_workload(&load)
            }
            (State::Monitoring | State::Declined, Observation::Load(load)) => {
                match self.why_not(&load) {
                    Some(why) => self.end(State::Declined, why),
                    None => self.go(State::Profiling, Action::Count),
                }
            }
            (State::Reoptimizing, Observation::Done) if self.is_resumed => {
                self.go(State::Verifying, Action::Compare)
            }
            (State::Profiling | State::Reoptimizing, Observation::Done) => {
                let placement = self.placement;
                self.go(State::Optimizing, Action::Install { placement })
            }
            (State::Optimizing, Observation::Done) => self.go(State::Verifying, Action::Compare),
            (State::Verifying, Observation::Compared(gain)) => self.judge(gain),
            (state, Observation::Failed(why)) => {
                let is_before = matches!(
                    state,
                    State::Monitoring | State::Profiling | State::Declined
                );
                self.end(
                    if is_before {
                        State::Declined
                    } else {
                        State::RolledBack
                    },
                    why,
                );
                self.is_resumed = false;
                // Code that counts may be in force.
                Action::RollBack
            }
            // An answer to what was not asked: nothing follows from it.
            (_, _) => Action::Rest,
        }
    }

    fn judge(&mut self, gain: Interval) -> Action {
        self.gain = Some(gain);
        if gain.low > 1.0 {
            self.has_won = true;
            // What a later workload needs says nothing of it.
            self.kept = Kept::Useless;
            return self.go(State::Optimized, Action::Rest);
        }
        if self.is_resumed {
            return self.profile_again();
        }
        if self.kept == Kept::InForce {
            // It may have been another workload's.
            self.kept = Kept::Useless;
            return self.go(State::Monitoring, Action::RollBack);
        }
        self.placement += 1;
        if self.placement < self.settings.placements {
            let placement = self.placement;
            return self.go(State::Optimizing, Action::Install { placement });
        }
        let why = format!(
            "no gain shown at {} placements (the last: {:+.1} % [{:.1}, {:.1}])",
            self.settings.placements,
            percent(gain.estimate),
            percent(gain.low),
            percent(gain.high)
        );
        if self.has_won {
            self.end(State::Declined, format!("{why} for what it does now"));
            return Action::LeaveOriginal;
        }
        self.end(State::RolledBack, why);
        Action::RollBack
    }

    /// A workload that is no longer the one that the layout in force was made for gets that of the
    /// one most like it, and a new one where none is.
    fn look_at_workload(&mut self, load: &Load) -> Action {
        let is_alike = |alike: f64| alike >= self.settings.overlap_min;
        if self.why_not(load).is_some() || load.overlap.is_none_or(is_alike) {
            return Action::Rest;
        }
        match load.other.filter(|(_, alike)| is_alike(*alike)) {
            Some((0, _)) => {
                self.end(
                    State::Declined,
                    "no gain was shown for what it does now".into(),
                );
                Action::Resume { generation: 0 }
            }
            Some((generation, _)) => {
                self.is_resumed = true;
                self.go(State::Reoptimizing, Action::Resume { generation })
            }
            None => self.profile_again(),
        }
    }

    fn profile_again(&mut self) -> Action {
        self.is_resumed = false;
        self.placement = 0;
        self.go(State::Reoptimizing, Action::Count)
    }

    fn go(&mut self, state: State, action: Action) -> Action {
        self.state = state;
        self.reason = None;
        action
    }

    fn end(&mut self, state: State, reason: String) -> Action {
        self.state = state;
        self.reason = Some(reason);
        Action::Rest
    }

    /// Why nothing is to be won from a process in this state of load.
    fn why_not(&self, load: &Load) -> Option<String> {
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

fn percent(ratio: f64) -> f64 {
    (ratio - 1.0) * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy() -> Load {
        Load {
            cores: 1.5,
            kernel_share: 0.2,
            user_samples: 5000,
            footprint_bytes: 300 << 10,
            overlap: None,
            other: None,
        }
    }

    fn gain(low: f64, estimate: f64, high: f64) -> Observation {
        Observation::Compared(Interval {
            low,
            estimate,
            high,
            confidence: 0.95,
        })
    }

    fn verifying() -> Driver {
        let mut driver = Driver::new(Settings::default());
        assert_eq!(driver.wake(), Action::Look);
        assert_eq!(driver.step(Observation::Load(busy())), Action::Count);
        assert_eq!(driver.state(), State::Profiling);
        assert_eq!(
            driver.step(Observation::Done),
            Action::Install { placement: 0 }
        );
        assert_eq!(driver.step(Observation::Done), Action::Compare);
        assert_eq!(driver.state(), State::Verifying);
        driver
    }

    #[test]
    fn a_gain_that_is_shown_stays() {
        let mut driver = verifying();
        assert_eq!(driver.step(gain(1.10, 1.17, 1.22)), Action::Rest);
        assert_eq!((driver.state(), driver.reason()), (State::Optimized, None));
        // The same workload, then another one.
        let same = Load {
            overlap: Some(0.9),
            ..busy()
        };
        assert_eq!(driver.step(Observation::Load(same)), Action::Rest);
        assert_eq!(driver.state(), State::Optimized);
        let other = Load {
            overlap: Some(0.2),
            ..busy()
        };
        assert_eq!(driver.step(Observation::Load(other)), Action::Count);
        assert_eq!(driver.state(), State::Reoptimizing);
        assert_eq!(
            driver.step(Observation::Done),
            Action::Install { placement: 0 }
        );
    }

    /// Of another workload than that of the layout in force; `known` is like it.
    fn changed(known: Option<u32>) -> Observation {
        Observation::Load(Load {
            overlap: Some(0.2),
            other: Some(known.map_or((7, 0.3), |generation| (generation, 0.9))),
            ..busy()
        })
    }

    fn resume(generation: u32) -> Action {
        Action::Resume { generation }
    }

    #[test]
    fn a_workload_that_comes_back_gets_its_layout_back_and_it_is_verified_again() {
        let mut driver = verifying();
        driver.step(gain(1.10, 1.17, 1.22));
        assert_eq!(driver.step(changed(Some(3))), resume(3));
        assert_eq!(driver.step(Observation::Done), Action::Compare);
        assert_eq!(driver.step(gain(1.01, 1.05, 1.09)), Action::Rest);
        assert_eq!(driver.state(), State::Optimized);
        assert_eq!(driver.step(changed(Some(2))), resume(2));
        assert_eq!(driver.step(Observation::Done), Action::Compare);
        // It no longer is better: profiled as if it were new.
        assert_eq!(driver.step(gain(0.95, 1.0, 1.05)), Action::Count);
        assert_eq!(
            driver.step(Observation::Done),
            Action::Install { placement: 0 }
        );
    }

    #[test]
    fn a_profile_on_disk_that_won_is_not_held_against_the_next_workload() {
        let mut driver = Driver::with_kept_profile(Settings::default());
        driver.step(Observation::Done);
        assert_eq!(driver.step(Observation::Load(busy())), Action::Compare);
        driver.step(gain(1.10, 1.17, 1.22));
        assert_eq!(driver.step(changed(None)), Action::Count);
        driver.step(Observation::Done);
        driver.step(Observation::Done);
        let next = driver.step(gain(0.95, 1.0, 1.05));
        assert_eq!(next, Action::Install { placement: 1 });
    }

    #[test]
    fn where_the_original_cannot_be_left_in_force_nothing_is_held_and_all_begins_anew() {
        let mut driver = verifying();
        driver.step(gain(1.10, 1.17, 1.22));
        driver.step(changed(Some(0)));
        let failed = Observation::Failed("it does not stop".into());
        assert_eq!(driver.step(failed), Action::RollBack);
        assert_eq!(driver.state(), State::Declined);
        // Nothing is known any more that it could be like.
        assert_eq!(driver.step(Observation::Load(busy())), Action::Count);
    }

    #[test]
    fn a_workload_without_a_gain_runs_in_the_original_layout_until_it_changes() {
        let mut driver = verifying();
        driver.step(gain(1.10, 1.17, 1.22));
        assert_eq!(driver.step(changed(None)), Action::Count);
        let not_shown = || gain(0.95, 1.0, 1.05);
        let install = |placement| Action::Install { placement };
        assert_eq!(driver.step(Observation::Done), install(0));
        assert_eq!(driver.step(Observation::Done), Action::Compare);
        assert_eq!(driver.step(not_shown()), install(1));
        assert_eq!(driver.step(Observation::Done), Action::Compare);
        assert_eq!(driver.step(not_shown()), Action::LeaveOriginal);
        assert_eq!(driver.step(Observation::Done), Action::Rest);
        assert_eq!(driver.state(), State::Declined);
        assert!(driver.reason().unwrap().ends_with("for what it does now"));
        let same = Load {
            overlap: Some(0.9),
            ..busy()
        };
        assert_eq!(driver.wake(), Action::Look);
        assert_eq!(driver.step(Observation::Load(same)), Action::Rest);
        assert_eq!(driver.state(), State::Declined);
        // The first one comes back, and then this one.
        assert_eq!(driver.step(changed(Some(1))), resume(1));
        assert_eq!(driver.step(Observation::Done), Action::Compare);
        assert_eq!(driver.step(gain(1.10, 1.17, 1.22)), Action::Rest);
        assert_eq!(driver.step(changed(Some(0))), resume(0));
        assert_eq!(driver.step(Observation::Done), Action::Rest);
        assert_eq!(driver.state(), State::Declined);
    }

    #[test]
    fn a_gain_that_is_not_shown_is_tried_elsewhere_once_and_rolled_back() {
        let mut driver = verifying();
        assert_eq!(
            driver.step(gain(0.95, 1.01, 1.07)),
            Action::Install { placement: 1 }
        );
        assert_eq!(driver.step(Observation::Done), Action::Compare);
        assert_eq!(driver.step(gain(1.0, 1.01, 1.02)), Action::RollBack);
        assert_eq!(driver.state(), State::RolledBack);
        assert_eq!(
            driver.reason(),
            Some("no gain shown at 2 placements (the last: +1.0 % [0.0, 2.0])")
        );
        assert_eq!(driver.wake(), Action::Rest);
    }

    #[test]
    fn a_profile_on_disk_is_tried_first_and_verified_all_the_same() {
        let fresh = || Driver::with_kept_profile(Settings::default());
        let mut driver = fresh();
        assert_eq!(driver.wake(), Action::InstallKept);
        assert_eq!(driver.step(Observation::NothingKept), Action::Look);
        assert_eq!(driver.step(Observation::Load(busy())), Action::Count);
        let mut driver = fresh();
        assert_eq!(driver.step(Observation::Done), Action::Look);
        let idle = Load {
            cores: 0.0,
            ..busy()
        };
        assert_eq!(driver.step(Observation::Load(idle)), Action::Rest);
        assert_eq!(driver.state(), State::Verifying);
        assert!(driver.reason().unwrap().contains("not verified yet: idle"));
        assert_eq!(driver.wake(), Action::Look);
        assert_eq!(driver.step(Observation::Load(busy())), Action::Compare);
        let mut other = driver.clone();
        assert_eq!(driver.step(gain(1.1, 1.2, 1.3)), Action::Rest);
        assert_eq!(driver.state(), State::Optimized);
        // Of another workload: it is profiled, as if there had been none.
        assert_eq!(other.step(gain(0.9, 1.0, 1.1)), Action::RollBack);
        assert_eq!(
            (other.state(), other.wake()),
            (State::Monitoring, Action::Look)
        );
    }

    #[test]
    fn each_reason_to_decline_is_said_and_looked_at_again() {
        for (load, said) in [
            (
                Load {
                    cores: 0.01,
                    ..busy()
                },
                "idle",
            ),
            (
                Load {
                    kernel_share: 0.77,
                    ..busy()
                },
                "kernel-bound",
            ),
            (
                Load {
                    user_samples: 10,
                    ..busy()
                },
                "10 samples",
            ),
            (
                Load {
                    footprint_bytes: 9 << 10,
                    ..busy()
                },
                "footprint small",
            ),
        ] {
            let mut driver = Driver::new(Settings::default());
            assert_eq!(driver.step(Observation::Load(load)), Action::Rest);
            assert_eq!(driver.state(), State::Declined);
            assert!(
                driver.reason().unwrap().contains(said),
                "{:?}",
                driver.reason()
            );
            assert_eq!(driver.wake(), Action::Look);
            assert_eq!(driver.step(Observation::Load(busy())), Action::Count);
        }
    }

    #[test]
    fn failures_leave_the_original_in_force() {
        let mut driver = Driver::new(Settings::default());
        driver.step(Observation::Load(busy()));
        assert_eq!(
            driver.step(Observation::Failed("no room".into())),
            Action::RollBack
        );
        assert_eq!(driver.state(), State::Declined);
        let mut driver = verifying();
        assert_eq!(
            driver.step(Observation::Failed("gone".into())),
            Action::RollBack
        );
        assert_eq!(
            (driver.state(), driver.reason()),
            (State::RolledBack, Some("gone"))
        );
        let mut driver = verifying();
        assert_eq!(driver.step(Observation::RolledBack), Action::Rest);
        assert_eq!(driver.state(), State::RolledBack);
    }
}
