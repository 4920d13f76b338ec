//! The parameters and the configurations they make.
//!
//! A parameter with its values is in [`parameter`] and [`value`], a condition between parameters in
//! [`constraint`]. [`encode`] turns a configuration into a point of the unit cube and back;
//! [`coordinate`] says what the coordinates of such a point are.

pub(crate) mod constraint;
pub(crate) mod coordinate;
pub(crate) mod encode;
pub(crate) mod parameter;
pub(crate) mod value;

use crate::error::SpaceError;
use crate::space::constraint::LinearConstraint;
use crate::space::encode::Encoding;
use crate::space::parameter::{Kind, Parameter};
use crate::space::value::Configuration;

/// A validated set of parameters and the linear constraints between them.
#[derive(Clone, Debug)]
pub struct Space {
    parameters: Vec<Parameter>,
    constraints: Vec<LinearConstraint>,
    encoding: Encoding,
}

impl Space {
    /// Checks and joins parameters and constraints.
    ///
    /// # Errors
    /// [`SpaceError`] names the parameter and the key, or the constraint, that is wrong.
    pub fn new(
        parameters: Vec<Parameter>,
        constraints: Vec<LinearConstraint>,
    ) -> Result<Self, SpaceError> {
        if parameters.is_empty() {
            return Err(SpaceError::Empty);
        }
        for (position, parameter) in parameters.iter().enumerate() {
            if parameters[..position]
                .iter()
                .any(|earlier| earlier.name == parameter.name)
            {
                return Err(SpaceError::Duplicate {
                    parameter: parameter.name.clone(),
                });
            }
            parameter.check()?;
        }
        for constraint in &constraints {
            let wrong = |reason| SpaceError::Constraint {
                text: constraint.to_string(),
                reason,
            };
            for name in constraint.parameters() {
                let Some(parameter) = parameters.iter().find(|parameter| parameter.name == name)
                else {
                    return Err(wrong(format!("there is no parameter `{name}`")));
                };
                let values = match &parameter.kind {
                    Kind::Ordinal { values } | Kind::Categorical { values } => values.as_slice(),
                    _ => &[],
                };
                if values
                    .iter()
                    .chain(&parameter.special)
                    .any(|value| value.as_f64().is_none())
                {
                    return Err(wrong(format!(
                        "parameter `{name}` has values that are not numbers"
                    )));
                }
            }
        }
        let encoding = Encoding::new(&parameters);
        let mut space = Space {
            parameters,
            constraints,
            encoding,
        };
        if space
            .parameters
            .iter()
            .all(|parameter| parameter.default.is_some())
            && let Some(broken) = space.broken(&space.default_configuration())
        {
            return Err(SpaceError::Constraint {
                text: broken.to_string(),
                reason: "the default configuration breaks it".to_owned(),
            });
        }
        // Where constraints leave the middle out, it is no place to expect the best at.
        space.encoding.quadratic = space.allows(&space.encoding.middle());
        Ok(space)
    }

    /// The parameters, in the order they were given.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The constraints between parameters.
    pub fn constraints(&self) -> &[LinearConstraint] {
        &self.constraints
    }

    /// Every parameter at its default, or in the middle of its range where it has none.
    pub fn default_configuration(&self) -> Configuration {
        let value = |parameter: &Parameter| match &parameter.default {
            Some(default) => default.clone(),
            None => self
                .encoding
                .snap_value(&parameter.name, &parameter.middle()),
        };
        Configuration(
            self.parameters
                .iter()
                .map(|parameter| (parameter.name.clone(), value(parameter)))
                .collect(),
        )
    }

    /// Whether `configuration` has a value inside the range for every parameter, and meets the
    /// constraints. A value between two steps is inside: a control often is.
    ///
    /// # Errors
    /// [`SpaceError`] names the parameter or the constraint.
    pub fn check(&self, configuration: &Configuration) -> Result<(), SpaceError> {
        for name in configuration.0.keys() {
            if !self
                .parameters
                .iter()
                .any(|parameter| parameter.name == *name)
            {
                let known: Vec<&str> = self
                    .parameters
                    .iter()
                    .map(|parameter| parameter.name.as_str())
                    .collect();
                return Err(SpaceError::Unknown {
                    parameter: name.clone(),
                    known: known.join(", "),
                });
            }
        }
        for parameter in &self.parameters {
            let Some(value) = configuration.get(&parameter.name) else {
                return Err(SpaceError::Missing {
                    parameter: parameter.name.clone(),
                });
            };
            parameter
                .holds(value)
                .map_err(|reason| SpaceError::Outside {
                    parameter: parameter.name.clone(),
                    value: value.clone(),
                    reason,
                })?;
        }
        match self.broken(configuration) {
            Some(constraint) => Err(SpaceError::Broken {
                text: constraint.to_string(),
            }),
            None => Ok(()),
        }
    }

    /// The nearest configuration on the grid of steps. Missing values become defaults, numbers
    /// outside a range its nearest end, unknown words the default, unknown parameters are dropped.
    /// Linear constraints are not looked at.
    pub fn snap(&self, configuration: &Configuration) -> Configuration {
        let default = self.default_configuration();
        let value = |parameter: &Parameter| {
            let fallback = || {
                default
                    .get(&parameter.name)
                    .cloned()
                    .unwrap_or_else(|| parameter.middle())
            };
            match configuration.get(&parameter.name) {
                Some(value) if self.encoding.can_snap(&parameter.name, value) => {
                    self.encoding.snap_value(&parameter.name, value)
                }
                _ => fallback(),
            }
        };
        Configuration(
            self.parameters
                .iter()
                .map(|parameter| (parameter.name.clone(), value(parameter)))
                .collect(),
        )
    }

    /// How many configurations there are, without regard to linear constraints; `None` when a
    /// parameter is continuous or the number does not fit 64 bits.
    pub fn cardinality(&self) -> Option<u64> {
        self.encoding.cardinality()
    }

    pub(crate) fn encoding(&self) -> &Encoding {
        &self.encoding
    }

    /// The first constraint that `configuration` breaks.
    pub(crate) fn broken(&self, configuration: &Configuration) -> Option<&LinearConstraint> {
        self.constraints
            .iter()
            .find(|constraint| constraint.holds(configuration) == Some(false))
    }

    /// Whether the encoded point meets the constraints.
    pub(crate) fn allows(&self, point: &[f64]) -> bool {
        self.constraints.is_empty() || self.broken(&self.encoding.decode(point)).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::parameter::PriorGuess;
    use crate::space::value::Value;

    fn int(low: i64, high: i64, step: i64, log: bool) -> Kind {
        Kind::Int {
            low,
            high,
            step,
            log,
        }
    }

    fn key_of(parameter: Parameter) -> &'static str {
        match Space::new(vec![parameter], vec![]) {
            Err(SpaceError::Invalid { key, .. }) => key,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_step_may_be_the_whole_range() {
        // By rounding, 0.3 - 0.1 is less than 0.2, and 0.8 - 0.7 more than 0.1.
        for (low, high, step) in [(0.1, 0.3, 0.2), (0.7, 0.8, 0.1)] {
            let kind = Kind::Float {
                low,
                high,
                step: Some(step),
                log: false,
            };
            assert!(kind.is_pair());
            assert!(Space::new(vec![Parameter::new("x", kind)], vec![]).is_ok());
        }
    }

    #[test]
    fn a_bowl_is_expected_where_the_middle_is_allowed() {
        let float = |name: &str| {
            let mut parameter = Parameter::new(
                name,
                Kind::Float {
                    low: 0.0,
                    high: 1.0,
                    step: None,
                    log: false,
                },
            );
            parameter.special = vec![Value::Float(-1.0)];
            parameter.default = Some(Value::Float(0.1));
            parameter
        };
        let quadratic = |constraint: &str| {
            let constraint = LinearConstraint::parse(constraint).unwrap();
            let space = Space::new(vec![float("a"), float("b")], vec![constraint]).unwrap();
            space.encoding.quadratic
        };
        assert!(quadratic("a + b <= 1.0") && !quadratic("a + b <= 0.9"));
    }

    #[test]
    fn wrong_parameters_name_the_key() {
        let float = |low, high, step, log| {
            Parameter::new(
                "f",
                Kind::Float {
                    low,
                    high,
                    step,
                    log,
                },
            )
        };
        assert_eq!(key_of(Parameter::new("i", int(5, 5, 1, false))), "low");
        assert_eq!(key_of(Parameter::new("i", int(0, 5, 0, false))), "step");
        assert_eq!(key_of(Parameter::new("i", int(0, 5, 6, false))), "step");
        assert_eq!(key_of(Parameter::new("i", int(0, 5, 1, true))), "low");
        assert_eq!(
            key_of(Parameter::new("i", int(i64::MIN, i64::MAX, 1, false))),
            "high"
        );
        assert_eq!(key_of(float(0.0, f64::NAN, None, false)), "high");
        assert_eq!(key_of(float(1.0, 1.0, None, false)), "low");
        assert_eq!(key_of(float(0.0, 1.0, Some(2.0), false)), "step");
        assert_eq!(key_of(float(0.0, 1.0, None, true)), "low");
        assert_eq!(
            key_of(Parameter::new(
                "o",
                Kind::Ordinal {
                    values: vec![1.into()]
                }
            )),
            "values"
        );
        assert_eq!(
            key_of(Parameter::new(
                "c",
                Kind::Categorical {
                    values: vec!["a".into(), "a".into()]
                }
            )),
            "values"
        );
        let good = Parameter::new("i", int(1, 5, 1, false));
        assert_eq!(
            key_of(Parameter {
                default: Some(6.into()),
                ..good.clone()
            }),
            "default"
        );
        assert_eq!(
            key_of(Parameter {
                default: Some(true.into()),
                ..good.clone()
            }),
            "default"
        );
        assert_eq!(
            key_of(Parameter {
                special: vec![0.into(), 0.into()],
                ..good.clone()
            }),
            "special"
        );
        let prior = |best_guess: i64, confidence| {
            Some(PriorGuess {
                best_guess: best_guess.into(),
                confidence,
            })
        };
        assert_eq!(
            key_of(Parameter {
                prior: prior(9, 0.5),
                ..good.clone()
            }),
            "prior.best_guess"
        );
        assert_eq!(
            key_of(Parameter {
                prior: prior(3, 1.0),
                ..good.clone()
            }),
            "prior.confidence"
        );
        assert_eq!(Space::new(vec![], vec![]).unwrap_err(), SpaceError::Empty);
        let twice = Space::new(vec![good.clone(), good], vec![]).unwrap_err();
        assert!(matches!(twice, SpaceError::Duplicate { .. }));
    }

    fn pools() -> Space {
        let parameter = |name: &str| Parameter::new(name, int(0, 100, 10, false));
        let buffer = Parameter {
            default: Some(0.into()),
            special: vec![0.into()],
            ..Parameter::new("buffer", int(16, 1024, 16, true))
        };
        let constraints = vec![LinearConstraint::parse("min_pool <= max_pool").unwrap()];
        Space::new(
            vec![parameter("min_pool"), parameter("max_pool"), buffer],
            constraints,
        )
        .unwrap()
    }

    fn configuration(min: i64, max: i64, buffer: i64) -> Configuration {
        let pairs = [("min_pool", min), ("max_pool", max), ("buffer", buffer)];
        Configuration(
            pairs
                .into_iter()
                .map(|(name, value)| (name.to_owned(), Value::Int(value)))
                .collect(),
        )
    }

    #[test]
    fn configurations_are_checked_and_snapped() {
        let space = pools();
        assert_eq!(space.cardinality(), Some(11 * 11 * 65));
        assert_eq!(space.default_configuration(), configuration(50, 50, 0));
        space.check(&configuration(5, 15, 0)).unwrap();
        assert!(matches!(
            space.check(&configuration(20, 10, 0)),
            Err(SpaceError::Broken { .. })
        ));
        assert!(matches!(
            space.check(&configuration(0, 10, 8)),
            Err(SpaceError::Outside { .. })
        ));
        assert!(matches!(
            space.check(&Configuration::default()),
            Err(SpaceError::Missing { .. })
        ));
        let mut extra = configuration(0, 10, 16);
        extra.0.insert("oops".into(), 1.into());
        assert!(matches!(
            space.check(&extra),
            Err(SpaceError::Unknown { .. })
        ));
        assert_eq!(space.snap(&extra), configuration(0, 10, 16));
        assert_eq!(
            space.snap(&configuration(14, 999, 3)),
            configuration(10, 100, 16)
        );
        assert_eq!(
            space.snap(&Configuration::default()),
            space.default_configuration()
        );
    }

    #[test]
    fn constraints_are_checked_against_the_parameters() {
        let a = Parameter::new(
            "a",
            Kind::Categorical {
                values: vec!["x".into(), "y".into()],
            },
        );
        let b = Parameter {
            default: Some(3.into()),
            ..Parameter::new("b", int(1, 5, 1, false))
        };
        for text in ["a <= 1", "c <= 1"] {
            let error = Space::new(
                vec![a.clone(), b.clone()],
                vec![LinearConstraint::parse(text).unwrap()],
            );
            assert!(
                matches!(error, Err(SpaceError::Constraint { .. })),
                "{text}"
            );
        }
        let error =
            Space::new(vec![b], vec![LinearConstraint::parse("b < 3").unwrap()]).unwrap_err();
        assert!(error.to_string().contains("default configuration"));
    }
}
