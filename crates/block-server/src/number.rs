//! Numbers of configuration and calibration, each with the range that it may have.

use std::borrow::Cow;
use std::fmt;

use qos::Grouped;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// How a size is written, for messages.
pub const SIZE_HINT: &str =
    "write a whole number and KiB, MiB, GiB or TiB without a space, as in \"200GiB\"";

/// A number of bytes, as in "0", "4096", "512MiB" or "2TiB".
pub fn parse_size(text: &str) -> Option<u64> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let shift = match unit {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A whole number from `MIN` to `MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Whole<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Whole<MIN, MAX> {
    pub(crate) fn size(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// For a `MAX` that is a `u32`.
    pub(crate) fn small(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }

    fn checked<E: Error>(value: i128) -> Result<Self, E> {
        let found = u64::try_from(value).ok();
        let found = found.filter(|found| (MIN..=MAX).contains(found));
        found.map(Self).ok_or_else(|| {
            let (min, max) = (Grouped(MIN), Grouped(MAX));
            E::custom(format!(
                "{value} is out of range: it must be from {min} to {max}"
            ))
        })
    }
}

struct WholeVisitor<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Visitor<'_> for WholeVisitor<MIN, MAX> {
    type Value = Whole<MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a whole number from {} to {}",
            Grouped(MIN),
            Grouped(MAX)
        )
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Whole::checked(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Whole::checked(value.into())
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<Self::Value, E> {
        Whole::checked(value)
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<Self::Value, E> {
        Whole::checked(i128::try_from(value).unwrap_or(i128::MAX))
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WholeVisitor)
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for Whole<MIN, MAX> {
    fn schema_name() -> Cow<'static, str> {
        format!("WholeFrom{MIN}To{MAX}").into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": MIN, "maximum": MAX })
    }
}

/// A share from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Share(pub(crate) f64);

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        match (0.0..=1.0).contains(&value) {
            true => Ok(Self(value)),
            false => Err(D::Error::custom(format!(
                "{value} is out of range: it must be from 0 to 1"
            ))),
        }
    }
}

impl JsonSchema for Share {
    fn schema_name() -> Cow<'static, str> {
        "Share".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "minimum": 0, "maximum": 1 })
    }
}
