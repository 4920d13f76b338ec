//! What `slackline ask-tell` is told of one configuration, in JSON; so are the lines of a `.jsonl`
//! file that a search starts from.
//!
//! `{"config":{"pool":8},"value":1.2}`, besides `variance`, `constraints` and `weight`; or
//! `{"config":{"pool":64},"crashed":true}`.

use std::collections::BTreeMap;

use bayes_opt::{Configuration, MeasuredValue, Observation, ObservedOutcome};
use serde::Deserialize;

use crate::spec::Goal;

/// One evaluation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tell {
    config: Configuration,
    /// The objective.
    value: Option<f64>,
    /// The variance of the value: of a mean of n runs that of one run, divided by n.
    variance: Option<f64>,
    #[serde(default)]
    crashed: bool,
    /// By name how far each limit was exceeded, in any unit: it holds at 0 or less.
    #[serde(default)]
    constraints: BTreeMap<String, f64>,
    /// Less than 1 where the system has drifted since.
    #[serde(default = "one")]
    weight: f64,
}

fn one() -> f64 {
    1.0
}

impl Tell {
    /// As the optimiser, which minimises, takes it in.
    ///
    /// # Errors
    /// What is missing, too much, or no number that can be.
    pub fn observation(self, goal: Goal) -> Result<Observation, String> {
        let known = |value: f64| MeasuredValue {
            value,
            variance: None,
        };
        let outcome = match (self.crashed, self.value) {
            (true, None) if self.variance.is_none() && self.constraints.is_empty() => {
                ObservedOutcome::Crashed
            }
            (true, _) => {
                return Err(
                    "what crashed has no \"value\", \"variance\" or \"constraints\"".into(),
                );
            }
            (false, Some(value)) => {
                let constraints = self.constraints.into_iter();
                ObservedOutcome::Completed {
                    objective: MeasuredValue {
                        value,
                        variance: self.variance,
                    },
                    constraints: constraints.map(|(name, c)| (name, known(c))).collect(),
                }
            }
            (false, None) => return Err("give a finite \"value\", or \"crashed\": true".into()),
        };
        let mut observation = Observation {
            configuration: self.config,
            outcome,
            weight: self.weight,
        };
        observation.validate().map_err(|error| error.to_string())?;
        if let ObservedOutcome::Completed { objective, .. } = &mut observation.outcome {
            objective.value *= goal.sign();
        }
        Ok(observation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, goal: Goal) -> Result<Observation, String> {
        serde_json::from_str::<Tell>(text)
            .unwrap()
            .observation(goal)
    }

    #[test]
    fn what_is_maximised_is_told_with_the_other_sign() {
        let line = r#"{"config":{"x":1},"value":3,"variance":0.5,"constraints":{"p99":-0.2},"weight":0.5}"#;
        let [less, more] = [Goal::Minimise, Goal::Maximise].map(|goal| {
            let observation = read(line, goal).unwrap();
            assert_eq!(observation.weight, 0.5);
            let ObservedOutcome::Completed {
                objective,
                constraints,
            } = observation.outcome
            else {
                panic!("it completed");
            };
            assert_eq!(objective.variance, Some(0.5));
            assert_eq!(constraints["p99"].value, -0.2);
            objective.value
        });
        assert_eq!((less, more), (3.0, -3.0));
    }

    #[test]
    fn contradictions_and_impossible_numbers_are_refused() {
        for (line, message) in [
            (r#"{"config":{"x":1}}"#, "give a finite \"value\""),
            (
                r#"{"config":{"x":1},"crashed":true,"value":3}"#,
                "what crashed has no",
            ),
            (
                r#"{"config":{"x":1},"crashed":true,"variance":3}"#,
                "what crashed has no",
            ),
            (r#"{"config":{"x":1},"value":1e200}"#, "objective is 1e200"),
            (
                r#"{"config":{"x":1},"value":1,"variance":-1}"#,
                "variance of objective is -1",
            ),
            (
                r#"{"config":{"x":1},"value":1,"weight":2}"#,
                "weight of an observation is 2",
            ),
            (
                r#"{"config":{"x":1},"value":1,"constraints":{"p99":1e300}}"#,
                "p99 is 1e300",
            ),
        ] {
            let error = read(line, Goal::Minimise).unwrap_err();
            assert!(error.contains(message), "{line}: {error}");
        }
        assert_eq!(
            read(r#"{"config":{"x":1},"crashed":true}"#, Goal::Minimise)
                .unwrap()
                .outcome,
            ObservedOutcome::Crashed
        );
    }
}
