//! The parameters and the configurations they make.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::constraint::LinearConstraint;
use crate::encode::Encoding;
use crate::error::SpaceError;
use crate::value::{Configuration, Value, readable};

/// How large the ends of a range may be, and how many steps it may have: fewer than an `f64` tells
/// apart. Choices of this crate.
const END_MAX: f64 = 1e300;
const STEPS_MAX: f64 = 1e15;
/// How much of a step may be missing to the end of a range, by rounding.
pub(crate) const STEP_TOLERANCE: f64 = 1e-9;

/// What values a parameter has.
///
/// Two values are a switch, however they are written: [`Kind::Bool`], a list of two, a range from
/// one step to the next. What other switches cost the objective, or bring, when they are on is
/// expected of it too, once measurements bear that out. It helps if the first value is what is off;
/// in another order nothing else is lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Kind {
    /// Whole numbers from `low` to `high` (both included) in steps.
    Int {
        /// The least.
        low: i64,
        /// The greatest.
        high: i64,
        /// The distance of neighbours, counted from `low`.
        step: i64,
        /// Whether ratios matter, not differences: 1 to 2 is as far as 100 to 200.
        log: bool,
    },
    /// Real numbers from `low` to `high`.
    Float {
        /// The least.
        low: f64,
        /// The greatest.
        high: f64,
        /// The distance of neighbours, counted from `low`; `None`: any number.
        step: Option<f64>,
        /// Whether ratios matter, not differences.
        log: bool,
    },
    /// Values in an order, equally far from one to the next.
    Ordinal {
        /// The values, in their order.
        values: Vec<Value>,
    },
    /// Values without an order.
    Categorical {
        /// The values.
        values: Vec<Value>,
    },
    /// On or off.
    Bool,
}

impl Kind {
    /// Whether it is a range of numbers, not a list.
    pub(crate) fn is_range(&self) -> bool {
        matches!(self, Kind::Int { .. } | Kind::Float { .. })
    }

    /// Whether it has two values, its ends if it is a range.
    pub(crate) fn is_pair(&self) -> bool {
        match self {
            Kind::Int {
                low, high, step, ..
            } => high.abs_diff(*low) == step.unsigned_abs(),
            Kind::Float {
                low, high, step, ..
            } => step.is_some_and(|step| (step - (high - low)).abs() <= STEP_TOLERANCE * step),
            Kind::Ordinal { values } | Kind::Categorical { values } => values.len() == 2,
            Kind::Bool => true,
        }
    }
}

/// What somebody believes about the best value of a parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PriorGuess {
    /// The value believed to be best.
    pub best_guess: Value,
    /// How strong the belief is, between 0 and 1 exclusive. It decays as evaluations come in.
    pub confidence: f64,
}

/// One parameter of the space.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameter {
    /// Its name, unique in the space.
    pub name: String,
    /// Its values.
    pub kind: Kind,
    /// The value it has when nobody tunes it.
    pub default: Option<Value>,
    /// What is believed about its best value.
    pub prior: Option<PriorGuess>,
    /// Values outside the order of the range, such as 0 for "off". Each is modelled as a level of
    /// its own.
    pub special: Vec<Value>,
}

impl Parameter {
    /// A parameter without default, prior or special values.
    pub fn new(name: impl Into<String>, kind: Kind) -> Self {
        Parameter {
            name: name.into(),
            kind,
            default: None,
            prior: None,
            special: Vec::new(),
        }
    }

    fn invalid(&self, key: &'static str, reason: impl Into<String>) -> SpaceError {
        SpaceError::Invalid {
            parameter: self.name.clone(),
            key,
            reason: reason.into(),
        }
    }

    fn validate(&self) -> Result<(), SpaceError> {
        match &self.kind {
            Kind::Int {
                low,
                high,
                step,
                log,
            } => {
                if low >= high {
                    return Err(self.invalid(
                        "low",
                        format!("is {low}, but it has to be below `high`, {high}"),
                    ));
                }
                if *step < 1 {
                    return Err(
                        self.invalid("step", format!("is {step}, but it has to be at least 1"))
                    );
                }
                match high.checked_sub(*low) {
                    None => {
                        return Err(self.invalid(
                            "high",
                            "is too far from `low`: the range has to fit 63 bits",
                        ));
                    }
                    Some(range) if *step > range => {
                        return Err(self.invalid(
                            "step",
                            format!("is {step}, more than the whole range, {range}"),
                        ));
                    }
                    Some(_) => {}
                }
                if *log && *low < 1 {
                    let reason = format!(
                        "is {low}, but a log scale starts at 1 or above; list 0 as a special value"
                    );
                    return Err(self.invalid("low", reason));
                }
            }
            Kind::Float {
                low,
                high,
                step,
                log,
            } => {
                let (from, to) = (readable(*low), readable(*high));
                if low.partial_cmp(high) != Some(Ordering::Less) {
                    return Err(self.invalid(
                        "low",
                        format!("is {from}, but it has to be below `high`, {to}"),
                    ));
                }
                for (key, end) in [("low", *low), ("high", *high)] {
                    if end.abs() > END_MAX {
                        let reason = format!("is {end:e}, but it can be {END_MAX:e} at the most");
                        return Err(self.invalid(key, reason));
                    }
                }
                if let Some(step) = step
                    && !(*step > 0.0 && *step <= (high - low) * (1.0 + STEP_TOLERANCE))
                {
                    return Err(self.invalid(
                        "step",
                        format!(
                            "is {}, but it has to be above 0 and within the range",
                            readable(*step)
                        ),
                    ));
                }
                if step.is_some_and(|step| (high - low) / step > STEPS_MAX) {
                    return Err(self.invalid(
                        "step",
                        format!("is so small that there are more than {STEPS_MAX:e} of them: leave it out"),
                    ));
                }
                if *log && *low <= 0.0 {
                    let reason = format!("is {from}, but a log scale starts above 0");
                    return Err(self.invalid("low", reason));
                }
                if *log && !(high / low).is_finite() {
                    return Err(
                        self.invalid("high", format!("is more than 1e308 times `low`, {low:e}"))
                    );
                }
            }
            Kind::Ordinal { values } | Kind::Categorical { values } => {
                if values.len() < 2 {
                    return Err(self.invalid(
                        "values",
                        "has fewer than two values: there is nothing to choose",
                    ));
                }
                if values
                    .iter()
                    .any(|value| value.as_f64().is_some_and(|number| !number.is_finite()))
                {
                    return Err(self.invalid("values", "has a number that is not finite"));
                }
                for (position, value) in values.iter().enumerate() {
                    if values[..position]
                        .iter()
                        .any(|earlier| earlier.means(value))
                    {
                        return Err(self.invalid("values", format!("has {} twice", value.quoted())));
                    }
                }
            }
            Kind::Bool => {}
        }
        for (position, special) in self.special.iter().enumerate() {
            if special.as_f64().is_some_and(|number| !number.is_finite()) {
                return Err(self.invalid("special", "has a number that is not finite"));
            }
            if self.special[..position]
                .iter()
                .any(|earlier| earlier.means(special))
            {
                return Err(self.invalid("special", format!("has {} twice", special.quoted())));
            }
            if !self.kind.is_range() && self.kind_holds(special).is_ok() {
                let special = special.quoted();
                let reason = format!("has {special}, which is an ordinary value already");
                return Err(self.invalid("special", reason));
            }
        }
        if let Some(default) = &self.default {
            self.holds(default).map_err(|reason| {
                self.invalid("default", format!("is {}: {reason}", default.quoted()))
            })?;
        }
        if let Some(PriorGuess {
            best_guess,
            confidence,
        }) = &self.prior
        {
            self.holds(best_guess).map_err(|reason| {
                self.invalid(
                    "prior",
                    format!("has best_guess {}: {reason}", best_guess.quoted()),
                )
            })?;
            if !(*confidence > 0.0 && *confidence < 1.0) {
                let reason = format!(
                    "has confidence {}, but it has to be between 0 and 1, both exclusive",
                    readable(*confidence)
                );
                return Err(self.invalid("prior", reason));
            }
        }
        Ok(())
    }

    /// Whether `value` is allowed; if not, what is.
    pub(crate) fn holds(&self, value: &Value) -> Result<(), String> {
        if self.special.iter().any(|special| special.means(value)) {
            return Ok(());
        }
        self.kind_holds(value)
    }

    fn kind_holds(&self, value: &Value) -> Result<(), String> {
        let inside = match &self.kind {
            Kind::Int { low, high, .. } => value
                .as_i64()
                .is_some_and(|value| (*low..=*high).contains(&value)),
            Kind::Float { low, high, .. } => match value {
                Value::Int(_) | Value::Float(_) => value
                    .as_f64()
                    .is_some_and(|value| (*low..=*high).contains(&value)),
                _ => false,
            },
            Kind::Ordinal { values } | Kind::Categorical { values } => {
                values.iter().any(|allowed| allowed.means(value))
            }
            Kind::Bool => matches!(value, Value::Bool(_)),
        };
        if inside {
            return Ok(());
        }
        Err(match &self.kind {
            Kind::Int { low, high, .. } => {
                format!("it has to be a whole number from {low} to {high}")
            }
            Kind::Float { low, high, .. } => {
                let (from, to) = (readable(*low), readable(*high));
                format!("it has to be a number from {from} to {to}")
            }
            Kind::Ordinal { values } | Kind::Categorical { values } => {
                let list: Vec<String> = values.iter().map(Value::to_string).collect();
                format!("it has to be one of {}", list.join(", "))
            }
            Kind::Bool => "it has to be true or false".to_owned(),
        })
    }

    /// The middle of its range on its scale; of a list one of its values.
    pub(crate) fn middle(&self) -> Value {
        match &self.kind {
            Kind::Int {
                low,
                high,
                log: false,
                ..
            } => Value::Int(low + (high - low) / 2),
            Kind::Int {
                low,
                high,
                log: true,
                ..
            } => Value::Float((*low as f64 * *high as f64).sqrt()),
            Kind::Float {
                low,
                high,
                log: false,
                ..
            } => Value::Float(low + (high - low) / 2.0),
            Kind::Float {
                low,
                high,
                log: true,
                ..
            } => Value::Float((low.ln() / 2.0 + high.ln() / 2.0).exp()),
            Kind::Ordinal { values } => values[values.len() / 2].clone(),
            Kind::Categorical { values } => values[0].clone(),
            Kind::Bool => Value::Bool(false),
        }
    }
}

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
            parameter.validate()?;
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
        space.encoding.bowl = space.allows(&space.encoding.middle());
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
        let bowl = |constraint: &str| {
            let constraint = LinearConstraint::parse(constraint).unwrap();
            let space = Space::new(vec![float("a"), float("b")], vec![constraint]).unwrap();
            space.encoding.bowl
        };
        assert!(bowl("a + b <= 1.0") && !bowl("a + b <= 0.9"));
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
        assert_eq!(key_of(float(0.0, f64::NAN, None, false)), "low");
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
            "prior"
        );
        assert_eq!(
            key_of(Parameter {
                prior: prior(3, 1.0),
                ..good.clone()
            }),
            "prior"
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
