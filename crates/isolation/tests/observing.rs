//! What holds for every policy: it has a sentence for each state, the sentence is in the
//! conditional while nothing is carried out, and it writes what it says that it may write.

use isolation::{
    Antagonist, GroupSeen, MachineObservation, Plant, PlantModel, Policy, PolicySettings,
    ServiceSeen, Subject, Tail, guarded, observing,
};

/// A machine with a service at its tail of so many milliseconds, if that is known.
fn seen(latency_ms: Option<f64>, groups: &[GroupSeen]) -> MachineObservation {
    let tail = latency_ms.map(|latency_ms| Tail {
        quantile: 0.99,
        latency_ms,
        requests: 5000,
        above: Some(if latency_ms > 5.0 { 500 } else { 0 }),
    });
    MachineObservation {
        services: vec![ServiceSeen {
            fresh: tail,
            window: tail,
            window_s: 2.0,
            requests_per_s: Some(5000.0),
            cpu_cores: 0.5,
            ..ServiceSeen::without_data("web", 5.0)
        }],
        groups: groups.to_vec(),
        ..MachineObservation::of_cores(4.0)
    }
}

fn settings(policy: Policy) -> PolicySettings {
    let mut settings = PolicySettings::named(policy);
    if policy == Policy::Static {
        settings.fixed.cpu_idle = Some(true);
    }
    settings
}

#[test]
fn every_policy_has_a_sentence_for_every_state_and_observing_says_what_would_be() {
    let running = GroupSeen::running("batch", 1.0);
    let ended = GroupSeen {
        is_running: false,
        ..running.clone()
    };
    for policy in Policy::ALL {
        for groups in [
            &[][..],
            std::slice::from_ref(&ended),
            std::slice::from_ref(&running),
        ] {
            for (is_acting, mut controller) in [
                (true, guarded(&settings(policy))),
                (false, observing(&settings(policy))),
            ] {
                let mut said = vec![controller.explain()];
                for second in 0..60 {
                    let latency_ms = match second {
                        0..3 => None,
                        3..20 => Some(1.0),
                        20..40 => Some(50.0),
                        _ => Some(4.9),
                    };
                    controller.step(&seen(latency_ms, groups), f64::from(second));
                    said.push(controller.explain());
                }
                for sentence in said {
                    assert!(!sentence.trim().is_empty(), "{policy:?} {groups:?}");
                    assert!(!sentence.ends_with('.'), "{sentence}");
                    let is_of_now = [" is off", " has ", " may use ", " is at ", "too large"]
                        .iter()
                        .any(|words| sentence.contains(words));
                    assert!(is_acting || !is_of_now, "{policy:?}: {sentence}");
                    assert!(!is_acting || !sentence.contains("would"), "{sentence}");
                }
            }
        }
    }
}

/// A policy that believed its own decisions would lower a setting on and on, as nothing ever gets
/// worse.
#[test]
fn the_service_s_own_quota_is_not_lowered_on_and_on_while_nothing_is_in_force() {
    let mut controller = observing(&settings(Policy::Slackline));
    let mut said = Vec::new();
    for second in 0..600 {
        let decisions = controller.step(&seen(Some(1.0), &[]), f64::from(second));
        said.extend(decisions.iter().map(ToString::to_string));
    }
    assert_eq!(said, ["service web: quota 0.75 cores (start)"]);
    assert_eq!(
        controller.explain(),
        "the quota of web would be 0.75 cores (start)"
    );
}

#[test]
fn a_service_whose_use_is_not_known_gets_no_quota() {
    let mut unknown = seen(Some(1.0), &[]);
    unknown.services[0].cpu_cores = 0.0;
    let mut controller = guarded(&settings(Policy::Slackline));
    for second in 0..60 {
        assert_eq!(controller.step(&unknown, f64::from(second)), []);
    }
}

#[test]
fn policies_write_what_they_say_that_they_may_write() {
    for policy in Policy::ALL {
        for antagonist in [None, Some("brain"), Some("iperf")] {
            let model = PlantModel {
                antagonist: antagonist.map(|name| Antagonist::named(name).unwrap()),
                ..PlantModel::default()
            };
            let mut plant = Plant::new(model, 1);
            let mut controller = guarded(&settings(policy));
            for step in 1..2400 {
                let now_s = 0.5 * f64::from(step);
                let seen = plant.pass(0.5, if step < 1200 { 0.3 } else { 0.8 });
                let writes = settings(policy).writes(!seen.groups.is_empty());
                let decisions = controller.step(&seen, now_s);
                for decision in &decisions {
                    let may = match decision.subject {
                        Subject::Group(_) => &writes.groups,
                        Subject::Service(_) => &writes.services,
                        Subject::Machine => &writes.machine,
                    };
                    let actuator = decision.setting.actuator();
                    assert!(may.contains(actuator), "{policy:?}: {decision}");
                }
                plant.apply(&decisions);
            }
        }
    }
}
