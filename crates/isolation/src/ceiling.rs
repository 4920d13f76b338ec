//! The best that any controller could do on the modelled machine at a steady load: every setting is
//! tried, without noise and without delay. A search over partitions (Patel and Tiwari, CLITE, HPCA
//! 2020) can reach no more.

use serde::Serialize;

use crate::decision::{ActuatorSetting, Decision, Reason};
use crate::numbers::number;
use crate::plant::{GROUP, Moment, Plant, PlantModel};

/// Shares of the cores that are tried as a quota, and rates as shares of the link.
const SHARES: u64 = 72;
const RATES: u64 = 20;
const FREQUENCIES: [f64; 6] = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5];

/// The most that the machine can be used within the objective.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ceiling {
    /// The load, as a share of the peak.
    pub load: f64,
    /// With `cpu.idle` and a quota alone: what the policy `slackline` sets.
    pub with_quota: f64,
    /// With cores or a quota, cache ways, frequency and egress together.
    pub with_everything: f64,
}

/// What can be set beside cores or quota.
#[derive(Clone, Copy)]
struct Rest {
    ways: Option<u64>,
    frequency: f64,
    egress_mbit: Option<f64>,
}

const FREE: Rest = Rest {
    ways: None,
    frequency: 1.0,
    egress_mbit: None,
};

/// Tries every setting. The result is simulated.
#[must_use]
pub fn ceiling(model: &PlantModel, load: f64) -> Ceiling {
    let model = PlantModel {
        delay_s: 0.0,
        ..model.clone()
    };
    let rests = every_rest(&model);
    let mut best = Ceiling {
        load,
        with_quota: load,
        with_everything: load,
    };
    for quota in (1..=SHARES).map(|part| model.cores * number(part) / number(SHARES)) {
        let cpu = [
            ActuatorSetting::CpuIdle(true),
            ActuatorSetting::QuotaCores(Some(quota)),
        ];
        best.with_quota = best.with_quota.max(utilisation(&model, &cpu, FREE, load));
        for rest in &rests {
            let used = utilisation(&model, &cpu, *rest, load);
            best.with_everything = best.with_everything.max(used);
        }
    }
    for cores in (1..).take_while(|cores| number(*cores) < model.cores) {
        for rest in &rests {
            let used = utilisation(&model, &[ActuatorSetting::Cores(cores)], *rest, load);
            best.with_everything = best.with_everything.max(used);
        }
    }
    best
}

fn every_rest(model: &PlantModel) -> Vec<Rest> {
    let sends = model.antagonist.as_ref();
    let sends = sends.is_some_and(|antagonist| antagonist.egress_mbit_per_s > 0.0);
    let rates = (1..=RATES)
        .filter(|_| sends)
        .map(|part| Some(model.link_mbit_per_s * number(part) / number(RATES)));
    let rates: Vec<Option<f64>> = std::iter::once(None).chain(rates).collect();
    let mut rests = Vec::new();
    for ways in std::iter::once(None).chain((1..model.llc_ways).map(Some)) {
        for frequency in FREQUENCIES {
            rests.extend(rates.iter().map(|egress_mbit| Rest {
                ways,
                frequency,
                egress_mbit: *egress_mbit,
            }));
        }
    }
    rests
}

/// The machine's use under these settings; 0 where the objective is violated.
fn utilisation(model: &PlantModel, cpu: &[ActuatorSetting], rest: Rest, load: f64) -> f64 {
    let mut settings = cpu.to_vec();
    settings.extend(rest.ways.map(ActuatorSetting::LlcWays));
    settings.push(ActuatorSetting::Frequency(rest.frequency));
    settings.extend(rest.egress_mbit.map(ActuatorSetting::EgressMbit));
    let decisions: Vec<Decision> = settings
        .into_iter()
        .map(|setting| Decision::group(GROUP, setting, Reason::Start))
        .collect();
    let mut plant = Plant::new(model.clone(), 0);
    plant.apply(&decisions);
    plant.put_in_force();
    let moment: Moment = plant.moment(load);
    match moment.latency_ms <= plant.objective_ms() {
        true => load + moment.progress,
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plant::Antagonist;
    use crate::policy::Policy;
    use crate::simulation::{Simulation, simulate};

    /// What several settings together are worth on this machine, beside what `slackline` reaches
    /// with two of them.
    #[test]
    fn a_search_over_partitions_has_nothing_to_find() {
        for name in Antagonist::NAMES {
            let plant = PlantModel {
                antagonist: Antagonist::named(name),
                ..PlantModel::default()
            };
            for load in [0.25, 0.5, 0.7] {
                let most = ceiling(&plant, load);
                let reached = simulate(&Simulation {
                    plant: plant.clone(),
                    policy: Policy::Slackline,
                    load: vec![load],
                    ..Simulation::default()
                });
                println!(
                    "{name} at {load}: slackline {:.3} ({:.4} above), quota {:.3}, everything {:.3}",
                    reached.utilisation,
                    reached.violated_share,
                    most.with_quota,
                    most.with_everything
                );
                assert!(most.with_quota <= most.with_everything);
                // The network is shared by a rule, without a search.
                let is_network = name == "iperf";
                assert!(is_network || most.with_everything - most.with_quota < 0.005);
                // Near the objective `slackline` keeps a margin, and here the whole rest lies
                // within it.
                let is_in_margin = name == "stream-llc" && load > 0.6;
                let missing = most.with_everything - reached.utilisation;
                assert!(
                    is_in_margin || missing < 0.05,
                    "{name} at {load}: {missing}"
                );
            }
        }
    }
}
