//! `mode = "continuous"`, simulated: the same controller, loop and search as in the real world,
//! with a clock of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use host::Roots;
use jiff::{SignedDuration, Timestamp};
use tuner::TunerError;
use tuner::bench::{Arm, Bench};
use tuner::continuous::simulation::{BEGIN, Epoch, SPEC, Scenario, SimulatedWorld};
use tuner::continuous::{
    Acting, ActionResult, Alert, AlertCheck, ContinuousAction, ContinuousController,
    ContinuousState, Promoted, Seen, VerifiedCandidate, watch,
};
use tuner::error::Fault;
use tuner::evaluation::Block;
use tuner::ledger::LedgerEvent;
use tuner::live::Changed;
use tuner::spec::{CheckedSpec, context};

fn spec() -> CheckedSpec {
    context(&Roots::default())
        .check(SPEC.into(), "simulated.toml".as_ref())
        .unwrap()
}

/// Sixteen days: a deploy that moves the best configuration on day 6, and one that breaks the
/// constraint on day 11.
fn short() -> Scenario {
    let mut scenario = Scenario::quiet(16.0);
    let first = scenario.epochs[0];
    let second = Epoch {
        day: 6.4,
        threads: 14.0,
        buffer_kib: 48.0,
        ..first
    };
    let third = Epoch {
        day: 11.4,
        slow_above_kib: 24.0,
        ..second
    };
    scenario.epochs.extend([second, third]);
    scenario.outage = Some((13.4, 13.6));
    scenario
}

fn days_of(world: &SimulatedWorld<'_>, kind: &str, word: &str) -> Vec<f64> {
    let entries = world.entries.iter();
    entries
        .filter(|entry| entry.kind == kind && entry.text.contains(word))
        .map(|entry| {
            let since = entry
                .at
                .duration_since(tuner::continuous::simulation::BEGIN);
            since.as_secs_f64() / 86_400.0
        })
        .collect()
}

#[test]
fn it_follows_the_deploys_and_rolls_back() {
    let (spec, scenario) = (spec(), short());
    let mut world = SimulatedWorld::new(&spec, &scenario, 3);
    world.go_on().unwrap();
    let promoted = days_of(&world, "promoted", "");
    assert!(promoted[0] < 1.0, "{promoted:?}");
    let drifted = days_of(&world, "drift", "The gain");
    assert!(
        drifted.iter().any(|day| (6.4..7.4).contains(day)),
        "{:#?}",
        world.entries
    );
    assert!(
        promoted.iter().any(|day| (6.4..8.4).contains(day)),
        "{promoted:?}"
    );
    let back = days_of(&world, "rollback", "in force again");
    assert!(
        back.iter().any(|day| (11.4..11.5).contains(day)),
        "{:#?}",
        world.entries
    );
    // Nothing is concluded from the outage, and nothing is changed in it.
    let out = 13.4..13.6 + 1.0 / 24.0;
    assert_eq!(days_of(&world, "unmeasured", "").len(), 1);
    assert!(!promoted.iter().any(|day| out.contains(day)));
    assert!(!back.iter().any(|day| out.contains(day)));
    // Within the hours, and within the budget.
    for day in &promoted {
        let hour = day.fract() * 24.0;
        assert!((8.0..18.01).contains(&hour), "{hour}");
        let same = promoted.iter().filter(|other| other.floor() == day.floor());
        assert!(same.count() <= 2, "{promoted:?}");
    }
}

/// Killed whenever something is to be kept, it goes on: what is in force on the host is what the
/// state says, as soon as what was begun is finished.
#[test]
fn killed_at_any_step_it_goes_on() {
    let mut scenario = short();
    scenario.days = 1.0;
    let spec = spec();
    let mut world = SimulatedWorld::new(&spec, &scenario, 3);
    let mut kills = 0;
    for step in (0..12).cycle() {
        world.killed_after = Some(step);
        match world.go_on() {
            Ok(()) => break,
            Err(_) => kills += 1,
        }
        assert!(kills < 2000, "it does not get on");
    }
    world.killed_after = None;
    world.go_on().unwrap();
    let state = world.kept.clone().unwrap();
    assert!(kills > 10, "{kills}");
    assert!(state.pending_change.is_none());
    let promoted = state.promoted.as_ref().map(|it| &it.configuration);
    assert!(promoted.is_some(), "{:#?}", world.entries);
    assert_eq!(promoted, world.in_force());
    // No round is kept twice.
    let numbers: Vec<usize> = world.rounds.iter().map(|round| round.number).collect();
    assert_eq!(numbers, (1..=numbers.len()).collect::<Vec<_>>());
}

fn promoted(spec: &CheckedSpec) -> ContinuousState {
    let mut configuration = spec.space.default_configuration();
    configuration
        .0
        .insert("threads".into(), bayes_opt::Value::Int(4));
    ContinuousState {
        promoted: Some(Promoted {
            configuration,
            gain: -0.1,
            since: BEGIN,
            host: None,
        }),
        search_reason: None,
        ..ContinuousState::new(BEGIN)
    }
}

/// A controller with something promoted, and what it does after each of these rounds, a second
/// apart.
fn after(spec: &CheckedSpec, rounds: &[Seen]) -> (ContinuousController, Vec<ContinuousAction>) {
    let control = spec.space.default_configuration();
    let rules = spec.continuous.clone().unwrap();
    let mut controller = ContinuousController::resume(rules, control, promoted(spec), &[]);
    let actions = rounds.iter().zip(1..).map(|(seen, second)| {
        let now: Timestamp = BEGIN + SignedDuration::from_secs(second);
        controller.observe(now, ActionResult::Watched(seen.clone()));
        controller.next(now)
    });
    let actions = actions.collect();
    (controller, actions)
}

#[test]
fn what_alone_cannot_be_measured_is_rolled_back() {
    let spec = spec();
    let one_sided = Seen::OneSided("no answer".into());
    let (mut controller, actions) = after(&spec, &vec![one_sided; 3]);
    assert!(matches!(
        actions[..],
        [
            ContinuousAction::Watch(_),
            ContinuousAction::Watch(_),
            ContinuousAction::RollBack
        ]
    ));
    let view = controller.view(BEGIN, None);
    assert!(
        view.lines[1].contains("could not be measured, up to now: 3"),
        "{:?}",
        view.lines
    );
    let entries = controller.take_entries();
    assert!(
        entries[1]
            .text
            .ends_with("no answer (2 of 3 rounds in a row)."),
        "{entries:?}"
    );
    // Of the control's side nothing is concluded.
    let (_, actions) = after(&spec, &vec![Seen::Unmeasured("no answer".into()); 9]);
    let waits = |action: &ContinuousAction| matches!(action, ContinuousAction::Wait(_));
    assert!(actions.iter().all(waits), "{actions:?}");
}

/// A search measures, and a promotion writes over, what somebody else has put in the place of what
/// is promoted.
#[test]
fn nothing_is_searched_or_promoted_while_somebody_else_has_changed_it() {
    let spec = spec();
    let candidate = VerifiedCandidate {
        configuration: spec.space.default_configuration(),
        gain: -0.2,
    };
    // A Thursday at noon, when the hours are open.
    let now = BEGIN + SignedDuration::from_hours(12);
    let quiet = AlertCheck {
        at: now,
        alert: Alert::Quiet,
    };
    let next = |externally_modified: Option<&str>, candidate: Option<VerifiedCandidate>| {
        let state = ContinuousState {
            externally_modified: externally_modified.map(str::to_owned),
            search_reason: Some("the gain has changed".into()),
            candidate,
            next_round: now + SignedDuration::from_secs(60),
            alert_check: Some(quiet.clone()),
            ..promoted(&spec)
        };
        let rules = spec.continuous.clone().unwrap();
        let control = spec.space.default_configuration();
        ContinuousController::resume(rules, control, state, &[]).next(now)
    };
    assert!(matches!(next(None, None), ContinuousAction::Tune(_)));
    assert!(matches!(
        next(None, Some(candidate.clone())),
        ContinuousAction::Promote(_)
    ));
    for candidate in [None, Some(candidate)] {
        let action = next(Some("/etc/a.conf"), candidate);
        assert!(matches!(action, ContinuousAction::Wait(_)), "{action:?}");
    }
}

#[test]
fn one_hiccup_at_the_end_of_a_round_is_no_end() {
    let spec = spec();
    let hiccup = || Seen::Unsettled("the reload failed".into());
    let rounds = [hiccup(), hiccup(), Seen::Unmeasured("out".into()), hiccup()];
    let (mut controller, actions) = after(&spec, &rounds);
    assert_eq!(controller.gives_up(), None);
    let ContinuousAction::Wait(until) = &actions[1] else {
        panic!("{actions:?}");
    };
    assert!(until.duration_since(BEGIN).as_secs() <= 12, "{until}");
    let entries = controller.take_entries();
    assert_eq!(
        entries[1].text,
        "Not measured: the reload failed (2 of 3 in a row)."
    );
    let (controller, _) = after(&spec, &[hiccup(), hiccup(), hiccup()]);
    assert_eq!(controller.gives_up(), Some(3));
    assert!(controller.state().promoted.is_some());
    let rules = spec.continuous.clone().unwrap();
    let control = spec.space.default_configuration();
    let resumed = ContinuousController::resume(rules, control, controller.state().clone(), &[]);
    assert_eq!(resumed.gives_up(), None);
}

#[test]
fn nothing_is_watched_while_the_experiment_rests() {
    let spec = spec();
    let (controller, _) = after(&spec, &[]);
    let first = |resting| controller.view(BEGIN, resting).lines[0].clone();
    assert!(first(None).contains("; watched against the control"));
    let resting = first(Some("failed"));
    let ends = "when verified, and not watched: the experiment is failed; 0 rounds so far";
    assert!(resting.ends_with(ends), "{resting}");
    // What is to be maximised has become more.
    for (goal, change) in [("minimise", "−9.5 %"), ("maximise", "+10.5 %")] {
        let text = format!(r#"metric = "cpu_s_per_request", goal = "{goal}""#);
        let text = SPEC.replace(r#"metric = "cpu_s_per_request""#, &text);
        let spec = context(&Roots::default())
            .check(text, "simulated.toml".as_ref())
            .unwrap();
        let first = after(&spec, &[]).0.view(BEGIN, None).lines[0].clone();
        let says = format!(", {change} when verified");
        assert!(first.contains(&says), "{first}");
    }
    let (mut controller, _) = after(&spec, &[]);
    controller.rolled_back_by_hand(BEGIN, &Changed::default());
    let view = controller.view(BEGIN, Some("paused"));
    let says =
        "nothing is promoted, and nothing is watched: the experiment is paused; 0 rounds so far";
    assert_eq!(view.lines[0], says);
}

/// A bench whose sides, and whose way back, fail as they are told.
struct Failing {
    begin: Option<Fault>,
    end: Option<TunerError>,
    experiment: f64,
}

impl Bench for Failing {
    fn begin(&mut self, _: &Arm) -> Result<(), Fault> {
        self.begin.take().map_or(Ok(()), Err)
    }

    fn block(&mut self, _: usize) -> Result<Block, Fault> {
        let side = |cpu_s| {
            let metrics = [
                ("cpu_s", cpu_s),
                ("requests", 1000.0),
                ("latency_p99_us", 9.0),
            ];
            metrics.map(|(name, value)| (name.to_owned(), value)).into()
        };
        Ok(Block {
            start_s: 0.0,
            order: tuner::evaluation::SideOrder::ControlFirst,
            control: side(1.0),
            experiment: side(self.experiment),
        })
    }

    fn end(&mut self) -> Result<(), TunerError> {
        self.end.take().map_or(Ok(()), Err)
    }

    fn elapsed_s(&self) -> f64 {
        0.0
    }

    fn own_cpu_s(&self) -> f64 {
        0.0
    }
}

fn seen(begin: Option<Fault>, end: Option<TunerError>, experiment: f64) -> Option<Seen> {
    let spec = spec();
    let mut bench = Failing {
        begin,
        end,
        experiment,
    };
    let control = spec.space.default_configuration();
    watch(&spec, &control, &mut bench, &mut |_: &LedgerEvent<'_>| {}).unwrap()
}

#[test]
fn a_round_says_whose_side_failed() {
    let refused = || Some(Fault::Configuration("refused".into()));
    let reapply = || Some(TunerError::Reapply("refused as well".into()));
    let crashed = Some(Seen::Crashed("refused".into()));
    assert_eq!(seen(refused(), None, 1.0), crashed);
    assert_eq!(seen(refused(), reapply(), 1.0), crashed);
    let silent = || Some(Fault::Unmeasured("silent".into()));
    let one_sided = Some(Seen::OneSided("silent".into()));
    assert_eq!(seen(silent(), None, 1.0), one_sided);
    assert_eq!(seen(silent(), reapply(), 1.0), one_sided);
    let control = Some(Fault::Harness("control".into()));
    assert!(matches!(
        seen(control, None, 1.0),
        Some(Seen::Unmeasured(_))
    ));
    assert!(matches!(seen(None, None, 0.0), Some(Seen::OneSided(_))));
    for hiccup in [reapply(), Some(TunerError::Disturbed("x".into()))] {
        assert!(matches!(seen(None, hiccup, 1.0), Some(Seen::Unsettled(_))));
    }
}

/// A load that is 10 % lower at weekends gives nine times the false alarms where it is compared
/// with that of other days.
#[test]
fn weekends_are_seasons_of_their_own_unless_told_otherwise() {
    let weekends = |said: &str| {
        let text = SPEC.replace("weekends = true\n", said);
        let spec = context(&Roots::default())
            .check(text, "simulated.toml".as_ref())
            .unwrap();
        spec.continuous.unwrap().weekends
    };
    assert!(weekends(""));
    assert!(!weekends("weekends = false\n"));
}

#[test]
fn a_clock_that_was_ahead_keeps_nothing_waiting_once_it_is_right() {
    let spec = spec();
    let rules = spec.continuous.clone().unwrap();
    let control = spec.space.default_configuration();
    // A Thursday at noon, and three days later.
    let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
    let ahead = now + SignedDuration::from_hours(72);
    let next = |state: ContinuousState| {
        let mut controller =
            ContinuousController::resume(rules.clone(), control.clone(), state, &[]);
        let action = controller.next(now);
        (action, controller)
    };
    let soon = |until: Timestamp| until <= now + SignedDuration::from_secs(900);
    let quiet = ContinuousState {
        search_reason: None,
        next_round: ahead,
        ..ContinuousState::new(ahead)
    };
    let (action, _) = next(quiet.clone());
    assert!(
        matches!(action, ContinuousAction::Wait(until) if soon(until)),
        "{action:?}"
    );
    let (action, _) = next(ContinuousState {
        pending_change: Some(Acting::RollBack("it is slow".into())),
        ..quiet.clone()
    });
    assert!(
        matches!(action, ContinuousAction::Wait(until) if soon(until)),
        "{action:?}"
    );
    // The answer of an alert query counts for 30 s, not for three days; what was changed counts for
    // today.
    let (action, controller) = next(ContinuousState {
        search_reason: Some("nothing has been searched yet".into()),
        not_before: now,
        alert_check: Some(AlertCheck {
            at: ahead,
            alert: Alert::Firing(1),
        }),
        changes: vec![ahead],
        ..quiet.clone()
    });
    assert_eq!(action, ContinuousAction::AskAlert);
    assert_eq!(controller.view(now, None).changes_today, 1);
    let tomorrow = now + SignedDuration::from_hours(24);
    assert_eq!(controller.view(tomorrow, None).changes_today, 0);
    let (_, controller) = next(ContinuousState {
        search_again: Some(ahead),
        ..quiet
    });
    assert_eq!(controller.state().search_again, Some(tomorrow));
}
