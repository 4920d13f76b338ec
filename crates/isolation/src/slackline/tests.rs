//! Tests of the controller, step by step.

use super::*;
use crate::alarm;
use crate::observation::{GroupSeen, ServiceSeen};
use crate::tail::Tail;

/// A second of 1,000 requests, `above` of which were too slow.
fn seen(above: u64, waiting: f64) -> MachineObservation {
    let fresh = Tail {
        quantile: 0.99,
        latency_ms: if above > 10 { 9.0 } else { 2.0 },
        requests: 1000,
        above: Some(above),
    };
    MachineObservation {
        services: vec![ServiceSeen {
            fresh: Some(fresh),
            window: Some(fresh),
            window_s: 5.0,
            load: Some(0.5),
            waiting_share: Some(waiting),
            ..ServiceSeen::without_data("web", 5.0)
        }],
        groups: vec![GroupSeen::running("batch", 1.0)],
        ..MachineObservation::of_cores(4.0)
    }
}

fn run(
    slackline: &mut Slackline,
    seen: &MachineObservation,
    from_s: u32,
    to_s: u32,
) -> Vec<String> {
    let mut lines = Vec::new();
    for second in from_s..to_s {
        let decisions = slackline.step(seen, f64::from(second));
        lines.extend(decisions.iter().map(ToString::to_string));
    }
    lines
}

#[test]
fn it_begins_idle_and_off_doubles_and_opens() {
    let mut slackline = Slackline::default();
    let lines = run(&mut slackline, &seen(0, 0.0), 0, 30);
    assert_eq!(lines[0], "group batch: cpu.idle (start)");
    assert_eq!(lines[1], "group batch: off (start)");
    assert!(
        lines.contains(&"group batch: quota 0.40 cores (slack)".to_owned()),
        "{lines:?}"
    );
    assert_eq!(lines.last().unwrap(), "group batch: no quota (slack)");
}

#[test]
fn harm_is_undone_in_the_next_step_and_not_tried_again_for_a_minute() {
    let mut slackline = Slackline::default();
    run(&mut slackline, &seen(0, 0.0), 0, 6);
    let before = slackline.budget;
    assert!(before > 0.0);
    run(&mut slackline, &seen(0, 0.0), 6, 8);
    assert!(slackline.budget > before);
    let lines = run(&mut slackline, &seen(60, 0.0), 8, 9);
    assert!(lines[0].ends_with("(revert)"), "{lines:?}");
    assert!((slackline.budget - before).abs() < 1e-9);
    // From now on there is no harm, and the level is searched from below.
    let lines = run(&mut slackline, &seen(0, 0.0), 10, 60);
    assert!(slackline.budget < 4.0 * before, "{lines:?}");
    run(&mut slackline, &seen(0, 0.0), 70, 90);
    assert!(slackline.budget >= 2.0 * before, "{}", slackline.budget);
}

#[test]
fn a_service_that_is_too_slow_alone_is_said_and_nothing_else_is_touched() {
    let mut slackline = Slackline::default();
    let lines = run(&mut slackline, &seen(100, 0.0), 0, 20);
    assert_eq!(
        lines,
        ["group batch: cpu.idle (start)", "group batch: off (start)"]
    );
    let explained = slackline.explain();
    assert!(
        explained.starts_with(
            "a service violated its objective while best-effort work was off: best-effort work waits "
        ),
        "{explained}"
    );
    assert!(!explained.contains("other programs"), "{explained}");
    let mut busy = seen(100, 0.0);
    busy.machine.busy_cores = 3.5;
    slackline.step(&busy, 20.0);
    let explained = slackline.explain();
    assert!(explained.contains("other programs use"), "{explained}");
    // When the service recovers, best-effort work waits a little.
    let lines = run(&mut slackline, &seen(0, 0.0), 20, 200);
    assert!(
        lines.iter().any(|line| line.contains("on (slack)")),
        "{lines:?}"
    );
}

/// While only observing, best-effort work runs as before, whatever was decided.
#[test]
fn what_was_only_observed_did_no_harm_and_the_service_is_not_alone() {
    let mut slackline = Slackline::new(ControllerMode::Observing);
    run(&mut slackline, &seen(0, 0.0), 0, 8);
    let before = slackline.budget;
    assert!(before > 0.0);
    let would_have = format!("best-effort work would have {before:.2} cores together (slack)");
    assert_eq!(slackline.explain(), would_have);
    let lines = run(&mut slackline, &seen(60, 0.0), 8, 9);
    assert!(lines[0].ends_with("(violation)"), "{lines:?}");
    assert_eq!(slackline.harm.len(9.0), 0);
    run(&mut slackline, &seen(60, 0.0), 9, 30);
    let off = "best-effort work would be off (violation)";
    assert_eq!(slackline.explain(), off);
    // A service that violates its objective while no best-effort work runs is alone.
    let mut alone = seen(60, 0.0);
    alone.groups[0].is_running = false;
    run(&mut slackline, &alone, 30, 40);
    let explained = slackline.explain();
    assert!(
        explained.starts_with(
            "a service violated its objective while no best-effort work ran: best-effort work would wait "
        ),
        "{explained}"
    );
}

#[test]
fn after_one_bad_second_of_the_service_alone_batch_work_waits_two_windows() {
    let window_s = |seconds, above| {
        let mut seen = seen(above, 0.0);
        seen.services[0].window_s = seconds;
        seen
    };
    for (seconds, earliest_s, latest_s) in [(2.0, 4, 10), (15.0, 30, 40)] {
        let mut slackline = Slackline::default();
        run(&mut slackline, &window_s(seconds, 100), 0, 2);
        assert!(slackline.is_overloaded);
        let lines = run(&mut slackline, &window_s(seconds, 0), 2, earliest_s);
        assert!(lines.is_empty(), "{lines:?}");
        let lines = run(&mut slackline, &window_s(seconds, 0), earliest_s, latest_s);
        assert!(slackline.budget > 0.0, "{lines:?}");
    }
}

#[test]
fn a_fast_alarm_halves_the_budget_and_a_false_one_gives_it_back() {
    let mut slackline = Slackline::default();
    run(&mut slackline, &seen(0, 0.01), 0, 40);
    let before = slackline.budget;
    let lines = run(&mut slackline, &seen(0, 0.9), 40, 42);
    assert_eq!(lines, ["group batch: quota 2.00 cores (fast_alarm)"]);
    let lines = run(&mut slackline, &seen(0, 0.01), 42, 52);
    assert_eq!(lines, ["group batch: no quota (alarm_over)"]);
    assert!((slackline.budget - before).abs() < 1e-9);
    assert!(slackline.alarm.level(0) > alarm::LEAST);
    // The same where the service stands still for a disk.
    let mut stalled = seen(0, 0.01);
    stalled.services[0].stalled_share = Some(0.9);
    let lines = run(&mut slackline, &stalled, 52, 54);
    assert_eq!(lines, ["group batch: quota 2.00 cores (fast_alarm)"]);
}

#[test]
fn a_window_shorter_than_the_evidence_of_a_growth_does_not_stop_it() {
    let mut slackline = Slackline::default();
    let mut short = seen(0, 0.0);
    short.services[0].window_s = 1.0;
    run(&mut slackline, &short, 0, 30);
    assert!(slackline.budget >= 4.0, "{}", slackline.budget);
}

#[test]
fn what_batch_work_may_send_follows_the_link_and_not_every_packet() {
    let mut slackline = Slackline::default();
    let mut link = seen(0, 0.0);
    link.machine.link_mbit_per_s = Some(1000.0);
    link.services[0].egress_mbit_per_s = Some(600.0);
    let lines = run(&mut slackline, &link, 0, 1);
    assert!(
        lines.contains(&"group batch: egress 340 Mbit/s (network)".to_owned()),
        "{lines:?}"
    );
    link.services[0].egress_mbit_per_s = Some(605.0);
    let lines = run(&mut slackline, &link, 1, 3);
    assert!(
        !lines.iter().any(|line| line.contains("egress")),
        "{lines:?}"
    );
    link.services[0].egress_mbit_per_s = Some(100.0);
    let lines = run(&mut slackline, &link, 3, 5);
    assert!(
        lines.contains(&"group batch: egress 850 Mbit/s (network)".to_owned()),
        "{lines:?}"
    );
}

#[test]
fn a_few_requests_decide_nothing() {
    let mut slackline = Slackline::default();
    let mut thin = seen(0, 0.0);
    let service = &mut thin.services[0];
    for tail in [&mut service.fresh, &mut service.window] {
        tail.as_mut().unwrap().requests = 2;
    }
    run(&mut slackline, &thin, 0, 60);
    assert!(slackline.budget.abs() < 1e-9);
}

/// What it says while these actuators of the batch work are somebody else's.
fn run_with(
    slackline: &mut Slackline,
    foreign: &[&'static str],
    above: u64,
    from_s: u32,
    to_s: u32,
) -> Vec<String> {
    let mut seen = seen(above, 0.0);
    seen.groups[0].foreign = foreign.to_vec();
    run(slackline, &seen, from_s, to_s)
}

#[test]
fn without_cpu_idle_batch_work_has_the_first_budget_and_gets_no_more() {
    let mut slackline = Slackline::default();
    run(&mut slackline, &seen(0, 0.0), 0, 30);
    assert!((slackline.budget - 4.0).abs() < 1e-9);
    let lines = run_with(&mut slackline, &["cpu_idle"], 0, 30, 90);
    assert_eq!(lines, ["group batch: quota 0.40 cores (not_in_force)"]);
    // What harms is still taken away, and does not come back.
    run_with(&mut slackline, &["cpu_idle"], 100, 90, 110);
    assert!(slackline.budget.abs() < 1e-9, "{}", slackline.budget);
    let lines = run_with(&mut slackline, &["cpu_idle"], 0, 110, 900);
    assert_eq!(lines, [""; 0]);
    // In force again: the search goes on.
    run(&mut slackline, &seen(0, 0.0), 900, 1000);
    assert!(slackline.budget > 0.4, "{}", slackline.budget);
}

#[test]
fn without_its_quota_batch_work_is_off() {
    for foreign in ["quota", "off"] {
        let mut slackline = Slackline::default();
        run(&mut slackline, &seen(0, 0.0), 0, 8);
        assert!(slackline.budget > 0.0);
        let lines = run_with(&mut slackline, &[foreign], 0, 8, 90);
        assert_eq!(lines, ["group batch: off (not_in_force)"], "{foreign}");
    }
    // Other settings have nothing to do with the budget.
    let mut slackline = Slackline::default();
    run_with(&mut slackline, &["memory_high", "freezer"], 0, 0, 30);
    assert!((slackline.budget - 4.0).abs() < 1e-9);
}

#[test]
fn a_small_budget_without_cpu_idle_is_kept_and_a_false_alarm_gives_nothing_back() {
    let mut slackline = Slackline::default();
    run(&mut slackline, &seen(0, 0.01), 0, 40);
    run(&mut slackline, &seen(0, 0.9), 40, 42);
    assert!((slackline.budget - 2.0).abs() < 1e-9);
    let lines = run_with(&mut slackline, &["cpu_idle"], 0, 42, 60);
    assert_eq!(lines, ["group batch: quota 0.40 cores (not_in_force)"]);
    let mut slackline = Slackline::default();
    run(&mut slackline, &seen(0, 0.0), 0, 4);
    assert!((slackline.budget - 0.4).abs() < 1e-9);
    assert_eq!(run_with(&mut slackline, &["cpu_idle"], 0, 4, 60), [""; 0]);
}
