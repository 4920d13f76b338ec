//! `slackline ask-tell`: JSON lines on standard input and output.
//!
//! `{"ask":1}` → `{"config":{…}}`, a line for each; `{"tell":{"config":{…},"value":1.2,"variance":0.01}}`
//! → nothing (`variance` optional; `"crashed":true` or `"constraints":{"name":excess}` too, where an
//! excess of at most 0 holds; `"weight":0.1` for what was measured before the system drifted: its variance is divided by it);
//! `{"best":1}` → `{"config":{…},"mean":…,"sd":…}`. The value is minimised.

use std::collections::BTreeMap;
use std::io::BufRead as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use bayes_opt::{Configuration, Measured, Observation, Optimizer, Outcome};
use serde::Deserialize;

use crate::{Done, print};

#[derive(Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Request {
    Ask(usize),
    Tell(Tell),
    Best(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tell {
    config: Configuration,
    value: Option<f64>,
    variance: Option<f64>,
    #[serde(default)]
    crashed: bool,
    #[serde(default)]
    constraints: BTreeMap<String, f64>,
    /// Less than 1 where the system has drifted since.
    #[serde(default = "one")]
    weight: f64,
}

fn one() -> f64 {
    1.0
}

pub(crate) fn run(spec: &Path) -> anyhow::Result<Done> {
    let (space, settings) = tuner::spec::load_space(spec, &host::Roots::default())?;
    let mut optimizer = Optimizer::new(space, settings)?;
    for (index, line) in std::io::stdin().lock().lines().enumerate() {
        let line = line.context("standard input")?;
        if line.trim().is_empty() {
            continue;
        }
        answer(&mut optimizer, &line)
            .with_context(|| format!("standard input, line {}", index + 1))?;
    }
    Ok(Done::Positive)
}

fn answer(optimizer: &mut Optimizer, line: &str) -> anyhow::Result<()> {
    let request = serde_json::from_str(line)
        .context("expected {\"ask\":1}, {\"tell\":{…}} or {\"best\":1}")?;
    match request {
        Request::Ask(count) => {
            for configuration in optimizer.ask(count)? {
                print(&format!(
                    "{}\n",
                    serde_json::json!({ "config": configuration })
                ))?;
            }
        }
        Request::Tell(tell) => optimizer.tell(observation(tell)?)?,
        Request::Best(_) => {
            let best = match optimizer.best() {
                Some(best) => serde_json::json!({
                    "config": best.configuration, "mean": best.mean, "sd": best.sd,
                }),
                None => serde_json::json!({ "config": null }),
            };
            print(&format!("{best}\n"))?;
        }
    }
    Ok(())
}

fn observation(tell: Tell) -> anyhow::Result<Observation> {
    let outcome = match (tell.crashed, tell.value) {
        (true, _) => Outcome::Crashed,
        (false, Some(value)) => Outcome::Completed {
            objective: Measured {
                value,
                variance: tell.variance,
            },
            constraints: tell
                .constraints
                .into_iter()
                .map(|(name, value)| {
                    (
                        name,
                        Measured {
                            value,
                            variance: None,
                        },
                    )
                })
                .collect(),
        },
        (false, None) => bail!("tell needs a finite \"value\", or \"crashed\": true"),
    };
    Ok(Observation {
        configuration: tell.config,
        outcome,
        weight: tell.weight,
    })
}
