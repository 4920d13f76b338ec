//! `slackline isolate simulate`: the controllers on a modelled machine.

use std::path::PathBuf;

use isolation::{Policy, Simulation, simulate};
use tuner::spec::Source;

use super::text;

use crate::done::CommandOutcome;
use crate::output::print;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The model of the machine and the load (TOML, or JSON with the ending .json). An example is
    /// examples/isolate-simulated/plant.toml.
    plant: PathBuf,
    /// Simulate this policy instead of the policy in the file.
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Simulate every policy, one after the other.
    #[arg(long, conflicts_with = "policy")]
    all: bool,
    /// Simulate no policy: try every setting, and print how much of the machine can be used at each
    /// load.
    #[arg(long, conflicts_with_all = ["policy", "all"])]
    ceiling: bool,
    /// Print JSON, with one entry for each window.
    #[arg(long)]
    json: bool,
}

/// Longer simulations take minutes.
const DURATION_MAX_S: f64 = 1e6;

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<CommandOutcome> {
    let source = Source::read(&arguments.plant)?;
    let mut simulation: Simulation = source.parse()?;
    if !(simulation.duration_s > 0.0 && simulation.duration_s <= DURATION_MAX_S) {
        return Err(source
            .error("duration_s", "must be above 0 and at most 1000000")
            .into());
    }
    if !(0.05..=10.0).contains(&simulation.step_s) {
        return Err(source.error("step_s", "must be between 0.05 and 10").into());
    }
    if simulation.load.is_empty()
        || simulation
            .load
            .iter()
            .any(|load| !(0.0..=2.0).contains(load))
    {
        return Err(source
            .error("load", "must be a list of shares of the peak load, 0 to 2")
            .into());
    }
    if let Some(name) = &arguments.policy {
        let named = Policy::ALL.into_iter().find(|policy| policy.name() == name);
        let names = Policy::ALL.map(Policy::name).join(", ");
        simulation.policy = named.ok_or_else(|| {
            anyhow::anyhow!("--policy {name}: no such policy; the policies are {names}")
        })?;
    }
    if arguments.ceiling {
        return ceilings(&simulation, arguments.json);
    }
    let policies = match arguments.all {
        true => Policy::ALL.to_vec(),
        false => vec![simulation.policy],
    };
    let all: Vec<isolation::Simulated> = policies
        .into_iter()
        .map(|policy| {
            simulate(&Simulation {
                policy,
                ..simulation.clone()
            })
        })
        .collect();
    if arguments.json {
        print(&(serde_json::to_string_pretty(&all)? + "\n"))?;
    } else {
        let all: Vec<String> = all.iter().map(text::simulated).collect();
        print(&format!("{}\n{}", all.join("\n"), text::UTILISATION))?;
    }
    Ok(CommandOutcome::Positive)
}

fn ceilings(simulation: &Simulation, as_json: bool) -> anyhow::Result<CommandOutcome> {
    let loads = simulation.load.iter();
    let all: Vec<isolation::Ceiling> = loads
        .map(|load| isolation::ceiling(&simulation.plant, *load))
        .collect();
    if as_json {
        print(&(serde_json::to_string_pretty(&all)? + "\n"))?;
    } else {
        print(&text::ceilings(&all))?;
    }
    Ok(CommandOutcome::Positive)
}
