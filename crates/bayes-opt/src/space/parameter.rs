//! One parameter: its values, its default, and what is believed about it.

use serde::{Deserialize, Serialize};

use crate::error::SpaceError;
use crate::space::value::{Value, readable};

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

    /// Checks the parameter by itself: its range and steps, and whether its default, its special
    /// values and the guess at its best value fit them.
    ///
    /// # Errors
    /// [`SpaceError::Invalid`] names the key that is wrong.
    pub fn check(&self) -> Result<(), SpaceError> {
        match &self.kind {
            Kind::Int {
                low,
                high,
                step,
                log,
            } => self.validate_int(*low, *high, *step, *log)?,
            Kind::Float {
                low,
                high,
                step,
                log,
            } => self.validate_float(*low, *high, *step, *log)?,
            Kind::Ordinal { values } | Kind::Categorical { values } => {
                self.validate_values(values)?;
            }
            Kind::Bool => {}
        }
        self.validate_special()?;
        self.validate_default()?;
        self.validate_prior()
    }

    fn validate_int(&self, low: i64, high: i64, step: i64, log: bool) -> Result<(), SpaceError> {
        if low >= high {
            return Err(self.invalid(
                "low",
                format!("is {low}, but it has to be below `high`, {high}"),
            ));
        }
        let Some(range) = high.checked_sub(low) else {
            return Err(self.invalid(
                "high",
                "is too far from `low`: the range has to fit 63 bits",
            ));
        };
        if !(1..=range).contains(&step) {
            return Err(self.invalid(
                "step",
                format!(
                    "is {step}, but it has to be at least 1 and at most the whole range, {range}"
                ),
            ));
        }
        if log && low < 1 {
            let reason = format!(
                "is {low}, but a log scale starts at 1 or above; list 0 as a special value"
            );
            return Err(self.invalid("low", reason));
        }
        Ok(())
    }

    fn validate_float(
        &self,
        low: f64,
        high: f64,
        step: Option<f64>,
        log: bool,
    ) -> Result<(), SpaceError> {
        let (from, to) = (readable(low), readable(high));
        for (key, end) in [("low", low), ("high", high)] {
            if !end.is_finite() {
                let reason = format!("is {end}, but it has to be a finite number");
                return Err(self.invalid(key, reason));
            }
            if end.abs() > END_MAX {
                let reason = format!("is {end:e}, but it can be {END_MAX:e} at the most");
                return Err(self.invalid(key, reason));
            }
        }
        if low >= high {
            return Err(self.invalid(
                "low",
                format!("is {from}, but it has to be below `high`, {to}"),
            ));
        }
        if let Some(step) = step
            && !(step > 0.0 && step <= (high - low) * (1.0 + STEP_TOLERANCE))
        {
            let (step, range) = (readable(step), readable(high - low));
            return Err(self.invalid(
                "step",
                format!("is {step}, but it has to be above 0 and at most the whole range, {range}"),
            ));
        }
        if step.is_some_and(|step| (high - low) / step > STEPS_MAX) {
            return Err(self.invalid(
                "step",
                format!("is so small that there are more than {STEPS_MAX:e} of them: leave it out"),
            ));
        }
        if log && low <= 0.0 {
            let reason =
                format!("is {from}, but a log scale starts above 0; list 0 as a special value");
            return Err(self.invalid("low", reason));
        }
        if log && !(high / low).is_finite() {
            return Err(self.invalid("high", format!("is more than 1e308 times `low`, {low:e}")));
        }
        Ok(())
    }

    fn validate_values(&self, values: &[Value]) -> Result<(), SpaceError> {
        if values.len() < 2 {
            return Err(self.invalid(
                "values",
                "has fewer than two values: there is nothing to choose",
            ));
        }
        self.validate_list("values", values)
    }

    /// Each value of a list is another one, and each number is finite.
    fn validate_list(&self, key: &'static str, values: &[Value]) -> Result<(), SpaceError> {
        for (position, value) in values.iter().enumerate() {
            if value.as_f64().is_some_and(|number| !number.is_finite()) {
                let reason = format!("has {}, but a number has to be finite", value.quoted());
                return Err(self.invalid(key, reason));
            }
            if values[..position]
                .iter()
                .any(|earlier| earlier.means(value))
            {
                return Err(self.invalid(key, format!("has {} twice", value.quoted())));
            }
        }
        Ok(())
    }

    fn validate_special(&self) -> Result<(), SpaceError> {
        self.validate_list("special", &self.special)?;
        for special in &self.special {
            if !self.kind.is_range() && self.kind_holds(special).is_ok() {
                let special = special.quoted();
                let reason = format!("has {special}, which is an ordinary value already");
                return Err(self.invalid("special", reason));
            }
        }
        Ok(())
    }

    fn validate_default(&self) -> Result<(), SpaceError> {
        if let Some(default) = &self.default {
            self.holds(default).map_err(|reason| {
                self.invalid("default", format!("is {}: {reason}", default.quoted()))
            })?;
        }
        Ok(())
    }

    fn validate_prior(&self) -> Result<(), SpaceError> {
        if let Some(PriorGuess {
            best_guess,
            confidence,
        }) = &self.prior
        {
            self.holds(best_guess).map_err(|reason| {
                self.invalid(
                    "prior.best_guess",
                    format!("is {}: {reason}", best_guess.quoted()),
                )
            })?;
            if !(*confidence > 0.0 && *confidence < 1.0) {
                let reason = format!(
                    "is {}, but it has to be between 0 and 1, both exclusive",
                    readable(*confidence)
                );
                return Err(self.invalid("prior.confidence", reason));
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
