//! Controllers on modelled machines with delay and noise: no limit cycle, no lasting violation,
//! nothing without data.

#![expect(
    clippy::unwrap_used,
    reason = "test code: a panic is a failure, and helpers outside #[test] functions may have it too"
)]

use std::collections::BTreeMap;

use isolation::{
    ActuatorSetting, Antagonist, Decision, GroupSeen, MachineObservation, Plant, PlantModel,
    Policy, PolicySettings, ServiceModel, ServiceSeen, Simulation, guarded, simulate,
};
use proptest::prelude::*;

/// Hours of a steady load, and the times at which the controller took something away because of
/// harm.
fn harms(policy: Policy, model: PlantModel, load: f64, seed: u64, hours: f64) -> (Vec<f64>, usize) {
    let mut plant = Plant::new(model, seed);
    let mut controller = guarded(&PolicySettings::named(policy));
    let mut times = Vec::new();
    let mut decisions_late = 0;
    let (step_s, end_s) = (0.5, 3600.0 * hours);
    let mut now_s = 0.0;
    while now_s < end_s {
        now_s += step_s;
        let seen = plant.pass(step_s, load);
        let decisions = controller.step(&seen, now_s);
        for decision in &decisions {
            let name = decision.reason.name();
            if matches!(name, "violation" | "revert" | "fast_alarm") {
                times.push(now_s);
            }
            if now_s > end_s / 2.0 {
                decisions_late += 1;
            }
        }
        plant.apply(&decisions);
        assert!(
            plant.under_way() < 100,
            "the controller floods its actuators"
        );
    }
    times.dedup();
    (times, decisions_late)
}

/// Hours of a steady load under `slackline`, with what is observed changed: the times of its fast
/// alarms.
fn alarms(
    model: PlantModel,
    load: f64,
    seed: u64,
    hours: f64,
    disturb: impl Fn(f64, &mut MachineObservation),
) -> Vec<f64> {
    let mut plant = Plant::new(model, seed);
    let mut controller = guarded(&PolicySettings::named(Policy::Slackline));
    let mut times = Vec::new();
    let (step_s, mut now_s) = (0.5, 0.0);
    while now_s < 3600.0 * hours {
        now_s += step_s;
        let mut seen = plant.pass(step_s, load);
        disturb(now_s, &mut seen);
        let decisions = controller.step(&seen, now_s);
        let is_alarm = |decision: &Decision| decision.reason.name() == "fast_alarm";
        if decisions.iter().any(is_alarm) {
            times.push(now_s);
        }
        plant.apply(&decisions);
    }
    times
}

fn model(antagonist: &str, delay_s: f64, noise: f64) -> PlantModel {
    PlantModel {
        antagonist: Antagonist::named(antagonist),
        delay_s,
        noise,
        ..PlantModel::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A limit cycle does harm at a steady rate. `slackline` doubles its wait after each harm, so
    /// in two hours there are few, and in the second half fewer than in the first.
    #[test]
    fn slackline_has_no_limit_cycle(
        which in 0usize..6,
        delay_s in 0.0f64..2.0,
        noise in 0.0f64..0.05,
        load in 0.2f64..0.85,
        seed in any::<u64>(),
    ) {
        let model = model(Antagonist::NAMES[which], delay_s, noise);
        let (times, late) = harms(Policy::Slackline, model, load, seed, 2.0);
        prop_assert!(times.len() <= 40, "{} harms: {:?}", times.len(), times);
        let late_harms = times.iter().filter(|at| **at > 3600.0).count();
        prop_assert!(late_harms <= 14, "{late_harms} of {} harms in the second half", times.len());
        prop_assert!(late <= 60, "{late} decisions in the second half");
    }

    /// Thresholds of the fast loop fall again. Threads that wait now and then without any harm
    /// raise false alarms, and these die out all the same.
    #[test]
    fn false_alarms_make_no_limit_cycle(
        which in 0usize..6,
        delay_s in 0.0f64..2.0,
        noise in 0.0f64..0.05,
        load in 0.2f64..0.85,
        seed in any::<u64>(),
        every_s in 30.0f64..300.0,
        waiting in 0.05f64..0.5,
    ) {
        let model = model(Antagonist::NAMES[which], delay_s, noise);
        let (hours, half_s) = (6.0, 3.0 * 3600.0);
        let times = alarms(model, load, seed, hours, |now_s, seen| {
            if now_s % every_s < 1.5 {
                seen.services[0].waiting_share = Some(waiting);
            }
        });
        prop_assert!(times.len() <= 30, "{} alarms: {times:?}", times.len());
        let late = times.iter().filter(|at| **at > half_s).count();
        prop_assert!(late <= 4, "{late} of {} alarms in the second half: {times:?}", times.len());
    }

    /// Whatever is observed, no controller asks for the impossible.
    #[test]
    fn settings_are_always_possible(
        policy in prop::sample::select(Policy::ALL.to_vec()),
        looks in prop::collection::vec((any::<bool>(), 0.0f64..20.0, 0u64..5000, 0.0f64..1.2, 0.0f64..2.0), 1..200),
    ) {
        let mut controller = guarded(&PolicySettings::named(policy));
        for (index, (has_data, latency_ms, requests, load, waiting)) in looks.into_iter().enumerate() {
            let tail = has_data.then_some(isolation::Tail {
                quantile: 0.99,
                latency_ms,
                requests,
                above: Some(if latency_ms > 5.0 { requests / 20 } else { 0 }),
            });
            let seen = MachineObservation {
                services: vec![ServiceSeen {
                    fresh: tail,
                    window: tail,
                    load: Some(load),
                    waiting_share: Some(waiting),
                    throttled_share: waiting / 2.0,
                    cpu_cores: load * 4.0,
                    ..ServiceSeen::without_data("web", 5.0)
                }],
                groups: vec![GroupSeen::running("a", 1.0), GroupSeen::running("b", 0.5)],
                ..MachineObservation::of_cores(8.0)
            };
            let now_s = f64::from(u32::try_from(index).unwrap()) * 0.5;
            for Decision { setting, .. } in controller.step(&seen, now_s) {
                match setting {
                    ActuatorSetting::QuotaCores(Some(cores)) => prop_assert!((0.01..=8.0).contains(&cores), "{setting}"),
                    ActuatorSetting::Cores(cores) => prop_assert!((1..8).contains(&cores), "{setting}"),
                    ActuatorSetting::Power(share) | ActuatorSetting::Frequency(share) => {
                        prop_assert!(share > 0.1 && share <= 1.0, "{setting}");
                    }
                    ActuatorSetting::Weight(weight) => prop_assert!((1..=10_000).contains(&weight)),
                    ActuatorSetting::EgressMbit(rate) => prop_assert!(rate > 0.0),
                    _ => {}
                }
            }
        }
    }
}

/// A day in two hours: the load goes up and down.
const DAY: [f64; 9] = [0.2, 0.3, 0.5, 0.7, 0.8, 0.7, 0.5, 0.3, 0.2];

fn day(policy: Policy, antagonist: &str, service: &str, seed: u64) -> isolation::Simulated {
    simulate(&Simulation {
        plant: PlantModel {
            service: ServiceModel::named(service).unwrap(),
            ..model(antagonist, 0.5, 0.02)
        },
        policy,
        load: DAY.to_vec(),
        seed,
        ..Simulation::default()
    })
}

#[test]
fn slackline_keeps_the_objective_over_a_day_beside_every_antagonist() {
    let mut violated = Vec::new();
    for service in ["websearch", "ml_cluster"] {
        for antagonist in Antagonist::NAMES {
            let done = day(Policy::Slackline, antagonist, service, 3);
            violated.push((done.violated_share, service, antagonist, done.utilisation));
        }
    }
    let worst = violated
        .iter()
        .map(|(share, ..)| *share)
        .fold(0.0, f64::max);
    assert!(worst < 0.02, "{violated:?}");
}

#[test]
fn a_policy_that_looks_at_cpu_alone_misses_what_is_not_cpu() {
    let done = day(Policy::CpuSuppress, "iperf", "websearch", 3);
    assert!(done.violated_share > 0.5, "{:.3}", done.violated_share);
}

#[test]
fn the_reasons_of_a_day_are_counted() {
    let done = day(Policy::Slackline, "brain", "websearch", 3);
    let counts: &BTreeMap<String, usize> = &done.decisions;
    assert!(
        counts.get("slack").is_some_and(|count| *count > 0),
        "{counts:?}"
    );
    assert!(done.is_simulated);
    assert!(done.utilisation > 0.6, "{:.2}", done.utilisation);
}
