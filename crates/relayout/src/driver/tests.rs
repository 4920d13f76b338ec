//! The state machine, without a process.

use super::*;
use crate::session::cover::Cover;

fn busy() -> ProcessLoad {
    ProcessLoad {
        cores: 1.5,
        kernel_share: 0.2,
        user_samples: 5000,
        footprint_bytes: 300 << 10,
        ..ProcessLoad::default()
    }
}

/// A layout that covers so many of a thousand samples.
fn covering(thousandths: u64) -> LayoutCandidate {
    LayoutCandidate {
        cover: Cover::new(thousandths, 1000).unwrap(),
        hot_bytes: 1000,
    }
}

/// As long after the process was opened as it takes until nothing is held off.
const LATER: Duration = Duration::from_secs(1000);

/// Two looks, as it takes to be sure that the layout in force does not fit; what follows.
fn look_twice(driver: &mut Driver, load: &ProcessLoad) -> DriverAction {
    assert_eq!(
        driver.step(DriverEvent::Load(load.clone())),
        DriverAction::Rest
    );
    driver.step(DriverEvent::Load(load.clone()))
}

/// The looks of the tests go on where the last layout was begun long ago.
fn much_later(driver: &mut Driver) {
    driver.begun_at = Duration::ZERO;
}

fn gain(low: f64, estimate: f64, high: f64) -> DriverEvent {
    DriverEvent::Compared(Interval {
        low,
        estimate,
        high,
        confidence: 0.95,
    })
}

fn verifying() -> Driver {
    let mut driver = Driver::new(DriverSettings::default());
    assert_eq!(driver.wake(), DriverAction::Look);
    assert_eq!(driver.step(DriverEvent::Load(busy())), DriverAction::Count);
    assert_eq!(driver.state(), ProcessState::Profiling);
    assert_eq!(
        driver.step(DriverEvent::Done),
        DriverAction::Install { placement: 0 }
    );
    assert_eq!(driver.step(DriverEvent::Done), DriverAction::Compare);
    assert_eq!(driver.state(), ProcessState::Verifying);
    driver
}

#[test]
fn a_gain_that_is_shown_stays() {
    let mut driver = verifying();
    assert_eq!(driver.step(gain(1.10, 1.17, 1.22)), DriverAction::Rest);
    assert_eq!(
        (driver.state(), driver.reason()),
        (ProcessState::Optimized, None)
    );
    // The same workload, then another one.
    let same = ProcessLoad {
        at: LATER,
        fit: Some(covering(960)),
        ..busy()
    };
    assert_eq!(look_twice(&mut driver, &same), DriverAction::Rest);
    assert_eq!(driver.state(), ProcessState::Optimized);
    assert_eq!(look_twice(&mut driver, &changed(&[])), DriverAction::Count);
    assert_eq!(driver.state(), ProcessState::Reoptimizing);
    assert_eq!(
        driver.reason(),
        Some("the layout in force covers 20.0 % [17.6, 22.6] of what runs, below 90 %")
    );
    assert_eq!(
        driver.step(DriverEvent::Done),
        DriverAction::Install { placement: 0 }
    );
}

/// A workload that the layout in force does not fit, and that these layouts fit.
fn changed(known: &[u32]) -> ProcessLoad {
    let fitting = known.iter().map(|generation| (*generation, covering(960)));
    ProcessLoad {
        at: LATER,
        fit: Some(covering(200)),
        held: [(7, covering(300))].into_iter().chain(fitting).collect(),
        ..busy()
    }
}

#[test]
fn a_layout_that_does_not_fit_is_replaced_only_when_that_is_sure_and_the_last_is_long_ago() {
    let mut driver = verifying();
    driver.step(gain(1.10, 1.17, 1.22));
    let look = |driver: &mut Driver, at_s: u64, fit: LayoutCandidate| {
        driver.step(DriverEvent::Load(ProcessLoad {
            at: Duration::from_secs(at_s),
            fit: Some(fit),
            ..busy()
        }))
    };
    // Begun at 0 s: it is held off, however often it does not fit.
    for at_s in [30, 60, 270] {
        assert_eq!(look(&mut driver, at_s, covering(200)), DriverAction::Rest);
    }
    // What is not sure, or fits for a moment, begins the count anew.
    for thousandths in [890, 200, 960, 200] {
        assert_eq!(
            look(&mut driver, 400, covering(thousandths)),
            DriverAction::Rest
        );
    }
    assert_eq!(driver.state(), ProcessState::Optimized);
    assert_eq!(look(&mut driver, 430, covering(200)), DriverAction::Count);
    driver.step(DriverEvent::Done);
    driver.step(DriverEvent::Done);
    driver.step(gain(1.10, 1.17, 1.22));
    // 300 s from then.
    for at_s in [460, 490, 729] {
        assert_eq!(look(&mut driver, at_s, covering(200)), DriverAction::Rest);
    }
    assert_eq!(look(&mut driver, 730, covering(200)), DriverAction::Count);
    // Nor where nothing can be won.
    let mut driver = verifying();
    driver.step(gain(1.10, 1.17, 1.22));
    let idle = ProcessLoad {
        cores: 0.0,
        ..changed(&[])
    };
    assert_eq!(look_twice(&mut driver, &idle), DriverAction::Rest);
    assert_eq!(look_twice(&mut driver, &changed(&[])), DriverAction::Count);
}

fn resume(generation: u32) -> DriverAction {
    DriverAction::Resume { generation }
}

#[test]
fn a_workload_that_comes_back_gets_its_layout_back_and_it_is_verified_again() {
    let mut driver = verifying();
    driver.step(gain(1.10, 1.17, 1.22));
    assert_eq!(look_twice(&mut driver, &changed(&[3])), resume(3));
    let why = driver.reason().unwrap();
    assert!(
        why.ends_with("generation 3 is in force again, which covers 96.0 % [94.6, 97.0]"),
        "{why}"
    );
    assert_eq!(driver.step(DriverEvent::Done), DriverAction::Compare);
    assert_eq!(driver.step(gain(1.01, 1.05, 1.09)), DriverAction::Rest);
    assert_eq!(driver.state(), ProcessState::Optimized);
    much_later(&mut driver);
    assert_eq!(look_twice(&mut driver, &changed(&[2])), resume(2));
    assert_eq!(driver.step(DriverEvent::Done), DriverAction::Compare);
    // It no longer is better: profiled as if it were new.
    assert_eq!(driver.step(gain(0.95, 1.0, 1.05)), DriverAction::Count);
    assert_eq!(
        driver.step(DriverEvent::Done),
        DriverAction::Install { placement: 0 }
    );
}

#[test]
fn where_the_original_cannot_be_left_in_force_nothing_is_held_and_all_begins_anew() {
    let mut driver = verifying();
    driver.step(gain(1.10, 1.17, 1.22));
    look_twice(&mut driver, &changed(&[0]));
    let failed = DriverEvent::Failed("it does not stop".into());
    assert_eq!(driver.step(failed), DriverAction::RollBack);
    assert_eq!(driver.state(), ProcessState::Declined);
    // Nothing is known any more that it could be like.
    assert_eq!(driver.step(DriverEvent::Load(busy())), DriverAction::Count);
}

#[test]
fn a_workload_without_a_gain_runs_in_the_original_layout_until_it_changes() {
    let mut driver = verifying();
    driver.step(gain(1.10, 1.17, 1.22));
    assert_eq!(look_twice(&mut driver, &changed(&[])), DriverAction::Count);
    let not_shown = || gain(0.95, 1.0, 1.05);
    let install = |placement| DriverAction::Install { placement };
    assert_eq!(driver.step(DriverEvent::Done), install(0));
    assert_eq!(driver.step(DriverEvent::Done), DriverAction::Compare);
    assert_eq!(driver.step(not_shown()), install(1));
    assert_eq!(driver.step(DriverEvent::Done), DriverAction::Compare);
    assert_eq!(driver.step(not_shown()), DriverAction::LeaveOriginal);
    assert_eq!(driver.step(DriverEvent::Done), DriverAction::Rest);
    assert_eq!(driver.state(), ProcessState::Declined);
    assert!(driver.reason().unwrap().ends_with("for what it does now"));
    much_later(&mut driver);
    let same = ProcessLoad {
        at: LATER,
        fit: Some(covering(960)),
        ..busy()
    };
    assert_eq!(driver.wake(), DriverAction::Look);
    assert_eq!(driver.step(DriverEvent::Load(same)), DriverAction::Rest);
    assert_eq!(driver.state(), ProcessState::Declined);
    // The first one comes back, and then this one.
    assert_eq!(look_twice(&mut driver, &changed(&[1])), resume(1));
    assert_eq!(driver.step(DriverEvent::Done), DriverAction::Compare);
    assert_eq!(driver.step(gain(1.10, 1.17, 1.22)), DriverAction::Rest);
    much_later(&mut driver);
    assert_eq!(look_twice(&mut driver, &changed(&[0])), resume(0));
    assert_eq!(driver.step(DriverEvent::Done), DriverAction::Rest);
    assert_eq!(driver.state(), ProcessState::Declined);
}

#[test]
fn a_gain_that_is_not_shown_is_tried_elsewhere_once_and_rolled_back() {
    let mut driver = verifying();
    assert_eq!(
        driver.step(gain(0.95, 1.01, 1.07)),
        DriverAction::Install { placement: 1 }
    );
    assert_eq!(driver.step(DriverEvent::Done), DriverAction::Compare);
    assert_eq!(driver.step(gain(1.0, 1.01, 1.02)), DriverAction::RollBack);
    assert_eq!(driver.state(), ProcessState::RolledBack);
    assert_eq!(
        driver.reason(),
        Some("no gain shown at 2 placements (the last: +1.0 % [0.0, 2.0])")
    );
    assert_eq!(driver.wake(), DriverAction::Rest);
}

/// A process that was just found, looked at, with these profiles on disk; what follows.
fn with_kept(kept: &[LayoutCandidate]) -> (Driver, DriverAction) {
    let mut driver = Driver::with_kept_profiles(DriverSettings::default());
    assert_eq!(driver.wake(), DriverAction::Look);
    let considered = driver.step(DriverEvent::Load(busy()));
    assert_eq!(considered, DriverAction::ConsiderKept);
    assert_eq!(driver.state(), ProcessState::Monitoring);
    let action = driver.step(DriverEvent::Kept(kept.to_vec()));
    (driver, action)
}

#[test]
fn a_profile_on_disk_that_covers_what_runs_is_taken_and_verified_all_the_same() {
    let smaller = LayoutCandidate {
        hot_bytes: 900,
        ..covering(965)
    };
    let (mut driver, action) = with_kept(&[covering(300), covering(970), smaller]);
    assert_eq!(action, DriverAction::InstallKept { index: 2 });
    assert_eq!(driver.state(), ProcessState::Optimizing);
    assert_eq!(
        driver.reason(),
        Some("by a kept profile, which covers 96.5 % [95.2, 97.5] of what runs")
    );
    assert_eq!(driver.step(DriverEvent::Done), DriverAction::Compare);
    let mut other = driver.clone();
    assert_eq!(driver.step(gain(1.1, 1.2, 1.3)), DriverAction::Rest);
    assert_eq!(driver.state(), ProcessState::Optimized);
    // No gain: it is profiled, as if there had been none.
    assert_eq!(other.step(gain(0.9, 1.0, 1.1)), DriverAction::Count);
    assert_eq!(other.state(), ProcessState::Profiling);
    let why = other.reason().unwrap();
    assert!(
        why.contains("showed no gain (+0.0 % [-10.0, 10.0])"),
        "{why}"
    );
    assert_eq!(
        other.step(DriverEvent::Done),
        DriverAction::Install { placement: 0 }
    );
    assert_eq!(other.step(DriverEvent::Done), DriverAction::Compare);
    assert_eq!(
        other.step(gain(0.9, 1.0, 1.1)),
        DriverAction::Install { placement: 1 }
    );
}

#[test]
fn a_profile_on_disk_that_does_not_cover_what_runs_is_not_taken() {
    let (driver, action) = with_kept(&[]);
    assert_eq!((action, driver.reason()), (DriverAction::Count, None));
    // Nor one of which the samples do not show it.
    for best in [300, 905] {
        let (mut driver, action) = with_kept(&[covering(200), covering(best)]);
        assert_eq!(
            (driver.state(), action),
            (ProcessState::Profiling, DriverAction::Count)
        );
        let why = driver.reason().unwrap();
        let share = format!(": the best of 2 covers {}", covering(best).cover);
        assert!(
            why.starts_with("no kept profile is shown to cover 90 %"),
            "{why}"
        );
        assert!(why.ends_with(&share), "{why}");
        assert_eq!(
            driver.step(DriverEvent::Done),
            DriverAction::Install { placement: 0 }
        );
    }
}

#[test]
fn a_workload_that_changes_is_laid_out_by_a_profile_on_disk_that_covers_it() {
    let (mut driver, _) = with_kept(&[]);
    driver.step(DriverEvent::Done);
    driver.step(DriverEvent::Done);
    driver.step(gain(1.1, 1.2, 1.3));
    assert_eq!(
        look_twice(&mut driver, &changed(&[])),
        DriverAction::ConsiderKept
    );
    // Until it is known what replaces it, what was shown stays in force.
    assert_eq!(
        (driver.state(), driver.reason()),
        (ProcessState::Optimized, None)
    );
    let action = driver.step(DriverEvent::Kept(vec![covering(960)]));
    assert_eq!(action, DriverAction::InstallKept { index: 0 });
    let why = driver.reason().unwrap();
    assert!(
        why.contains("below 90 %; by a kept profile, which covers 96.0 %"),
        "{why}"
    );
    assert_eq!(driver.step(DriverEvent::Done), DriverAction::Compare);
    assert_eq!(driver.step(gain(0.9, 1.0, 1.1)), DriverAction::Count);
    assert_eq!(driver.state(), ProcessState::Reoptimizing);
}

#[test]
fn an_idle_process_is_not_laid_out_by_what_was_kept() {
    let mut driver = Driver::with_kept_profiles(DriverSettings::default());
    let idle = ProcessLoad {
        cores: 0.0,
        ..busy()
    };
    assert_eq!(driver.step(DriverEvent::Load(idle)), DriverAction::Rest);
    assert_eq!(driver.state(), ProcessState::Declined);
    let considered = driver.step(DriverEvent::Load(busy()));
    assert_eq!(considered, DriverAction::ConsiderKept);
}

#[test]
fn each_reason_to_decline_is_said_and_looked_at_again() {
    for (load, said) in [
        (
            ProcessLoad {
                cores: 0.01,
                ..busy()
            },
            "idle",
        ),
        (
            ProcessLoad {
                kernel_share: 0.77,
                ..busy()
            },
            "kernel-bound",
        ),
        (
            ProcessLoad {
                user_samples: 10,
                ..busy()
            },
            "10 samples",
        ),
        (
            ProcessLoad {
                footprint_bytes: 9 << 10,
                ..busy()
            },
            "footprint small",
        ),
    ] {
        let mut driver = Driver::new(DriverSettings::default());
        assert_eq!(driver.step(DriverEvent::Load(load)), DriverAction::Rest);
        assert_eq!(driver.state(), ProcessState::Declined);
        assert!(
            driver.reason().unwrap().contains(said),
            "{:?}",
            driver.reason()
        );
        assert_eq!(driver.wake(), DriverAction::Look);
        assert_eq!(driver.step(DriverEvent::Load(busy())), DriverAction::Count);
    }
}

#[test]
fn failures_leave_the_original_in_force() {
    let mut driver = Driver::new(DriverSettings::default());
    driver.step(DriverEvent::Load(busy()));
    assert_eq!(
        driver.step(DriverEvent::Failed("no room".into())),
        DriverAction::RollBack
    );
    assert_eq!(driver.state(), ProcessState::Declined);
    let mut driver = verifying();
    assert_eq!(
        driver.step(DriverEvent::Failed("gone".into())),
        DriverAction::RollBack
    );
    assert_eq!(
        (driver.state(), driver.reason()),
        (ProcessState::RolledBack, Some("gone"))
    );
    let mut driver = verifying();
    assert_eq!(driver.step(DriverEvent::RolledBack), DriverAction::Rest);
    assert_eq!(driver.state(), ProcessState::RolledBack);
}
