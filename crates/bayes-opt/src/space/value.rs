//! What a parameter can be set to, and a whole setting of all parameters.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A value: of a parameter, or of a variable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "expected true, false, a number or a text")]
pub enum Value {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// Text.
    Text(String),
}

impl Value {
    /// The value as a number: a bool is 0 or 1, a text has none.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Bool(value) => Some(f64::from(u8::from(*value))),
            Value::Int(value) => Some(*value as f64),
            Value::Float(value) => Some(*value),
            Value::Text(_) => None,
        }
    }

    /// The value as a whole number, also when it is written as a float (`4.0`).
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Value::Int(value) => Some(*value),
            Value::Float(value) if value.fract() == 0.0 && value.abs() < 9.0e15 => {
                Some(round_to_i64(*value))
            }
            _ => None,
        }
    }

    /// As it is told: a text in quotes.
    pub(crate) fn quoted(&self) -> String {
        match self {
            Value::Text(text) => format!("{text:?}"),
            Value::Float(value) => readable(*value),
            other => other.to_string(),
        }
    }

    /// Whether both mean the same setting: `4` and `4.0` do, `1` and `true` do not.
    pub fn means(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Int(a), Value::Float(b)) | (Value::Float(b), Value::Int(a)) => *a as f64 == *b,
            _ => self == other,
        }
    }
}

/// A number as a message has it: one that would have more than 15 digits before the point, or four
/// zeros behind it, has an exponent.
///
/// ```
/// assert_eq!(bayes_opt::readable(-1e300), "-1e300");
/// assert_eq!(bayes_opt::readable(1.5e14), "150000000000000");
/// assert_eq!(bayes_opt::readable(0.000_01), "0.00001");
/// assert_eq!(bayes_opt::readable(2.5e-6), "2.5e-6");
/// ```
#[must_use]
pub fn readable(value: f64) -> String {
    let is_plain = value == 0.0 || !value.is_finite() || (1e-5..1e15).contains(&value.abs());
    match is_plain {
        true => value.to_string(),
        false => format!("{value:e}"),
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bool(value) => value.fmt(f),
            Value::Int(value) => value.fmt(f),
            Value::Float(value) => value.fmt(f),
            Value::Text(value) => value.fmt(f),
        }
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Value::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Value::Int(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Value::Float(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Value::Text(value.to_owned())
    }
}

/// One value for each parameter, by name.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema), schemars(inline))]
#[serde(transparent)]
pub struct Configuration(pub BTreeMap<String, Value>);

impl Configuration {
    /// The value of the parameter `name`.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (name, value)) in self.0.iter().enumerate() {
            let gap = if position == 0 { "" } else { " " };
            write!(f, "{gap}{name}={value}")?;
        }
        Ok(())
    }
}

/// The nearest whole number, saturating at the ends of `i64`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "`as` saturates, which is what is wanted"
)]
pub(crate) fn round_to_i64(value: f64) -> i64 {
    value.round() as i64
}

/// The cell of `0..count` that holds `unit`, a number in [0, 1].
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates and the minimum bounds it"
)]
pub(crate) fn cell(unit: f64, count: usize) -> usize {
    ((unit.max(0.0) * count as f64) as usize).min(count.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_type_through_json() {
        let text = r#"{"a":true,"b":3,"c":2.5,"d":"lru"}"#;
        let configuration: Configuration = serde_json::from_str(text).unwrap();
        assert_eq!(configuration.get("a"), Some(&Value::Bool(true)));
        assert_eq!(configuration.get("b"), Some(&Value::Int(3)));
        assert_eq!(configuration.get("c"), Some(&Value::Float(2.5)));
        assert_eq!(configuration.get("d"), Some(&Value::from("lru")));
        assert_eq!(serde_json::to_string(&configuration).unwrap(), text);
        assert_eq!(configuration.to_string(), "a=true b=3 c=2.5 d=lru");
    }

    #[test]
    fn numbers_mean_the_same_whichever_way_written() {
        assert!(Value::Int(4).means(&Value::Float(4.0)));
        assert!(!Value::Int(1).means(&Value::Bool(true)));
        assert_eq!(Value::Float(4.0).as_i64(), Some(4));
        assert_eq!(Value::Float(4.5).as_i64(), None);
    }

    #[test]
    fn cells_cover_the_unit_interval() {
        assert_eq!(cell(0.0, 4), 0);
        assert_eq!(cell(0.999, 4), 3);
        assert_eq!(cell(1.0, 4), 3);
    }
}
