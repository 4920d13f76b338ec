//! Values in a specification.

use bayes_opt::Value;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A value in a specification.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected true, false, a number or a text")]
pub enum Scalar {
    /// `true`, `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// Text.
    Text(String),
}

impl From<&Scalar> for Value {
    fn from(scalar: &Scalar) -> Self {
        match scalar {
            Scalar::Bool(value) => Value::Bool(*value),
            Scalar::Int(value) => Value::Int(*value),
            Scalar::Float(value) => Value::Float(*value),
            Scalar::Text(value) => Value::Text(value.clone()),
        }
    }
}

impl From<&Value> for Scalar {
    fn from(value: &Value) -> Self {
        match value {
            Value::Bool(value) => Self::Bool(*value),
            Value::Int(value) => Self::Int(*value),
            Value::Float(value) => Self::Float(*value),
            Value::Text(value) => Self::Text(value.clone()),
        }
    }
}
