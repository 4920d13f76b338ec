//! Constraints on metrics, as written: `latency_p99_us <= 1.05 * control`, `throttled_periods = 0`.

use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::text::significant;

/// How a metric is compared with its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Comparison {
    /// `<=`
    AtMost,
    /// `>=`
    AtLeast,
    /// `=`
    Equal,
}

/// What a metric is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum ConstraintLimit {
    /// A number in the metric's own unit.
    Absolute(f64),
    /// That many times the control's value in the same block.
    TimesControl(f64),
}

/// A constraint on one metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricConstraint {
    /// As its author wrote it; also its name.
    pub text: String,
    /// The metric.
    pub metric: String,
    /// The comparison.
    pub comparison: Comparison,
    /// The limit.
    pub limit: ConstraintLimit,
}

impl MetricConstraint {
    /// Parses a constraint.
    ///
    /// ```
    /// use experiment_spec::{ConstraintLimit, MetricConstraint};
    /// let constraint = MetricConstraint::parse("latency_p99_us <= 1.05 * control").unwrap();
    /// assert_eq!(constraint.limit, ConstraintLimit::TimesControl(1.05));
    /// assert!(MetricConstraint::parse("fast enough").is_err());
    /// ```
    ///
    /// # Errors
    /// What was expected, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        static SHAPE: LazyLock<Option<Regex>> = LazyLock::new(|| {
            Regex::new(
                r"^\s*([A-Za-z_]\w*)\s*(<=|>=|==?)\s*(?:([-+0-9.eE]+)\s*(\*\s*control)?|(control))\s*$",
            )
            .ok()
        });
        let expected = || {
            format!(
                "{text:?} is not a constraint: write METRIC <= NUMBER, METRIC <= NUMBER * control, or the same with >= or ="
            )
        };
        let groups = SHAPE
            .as_ref()
            .and_then(|shape| shape.captures(text))
            .ok_or_else(expected)?;
        let number = match groups.get(3) {
            Some(digits) => digits.as_str().parse::<f64>().map_err(|_| expected())?,
            None => 1.0,
        };
        if !number.is_finite() {
            return Err(expected());
        }
        let relative = groups.get(4).is_some() || groups.get(5).is_some();
        if relative && number <= 0.0 {
            return Err(format!("{text:?}: the factor of control must be above 0"));
        }
        Ok(Self {
            text: text.trim().to_owned(),
            metric: groups[1].to_owned(),
            comparison: match &groups[2] {
                "<=" => Comparison::AtMost,
                ">=" => Comparison::AtLeast,
                _ => Comparison::Equal,
            },
            limit: if relative {
                ConstraintLimit::TimesControl(number)
            } else {
                ConstraintLimit::Absolute(number)
            },
        })
    }

    /// By how much a block misses the constraint; at most 0 where it holds. Relative constraints
    /// are in units of the logarithm of the ratio, absolute ones in units of the limit (or of the
    /// metric, where the limit is 0).
    ///
    /// A relative constraint on a metric that is 0 on both sides holds.
    pub fn excess(&self, control: f64, experiment: f64) -> f64 {
        let above = match self.limit {
            ConstraintLimit::Absolute(limit) => {
                (experiment - limit) / if limit == 0.0 { 1.0 } else { limit.abs() }
            }
            ConstraintLimit::TimesControl(factor) => {
                let limit = factor * control;
                if experiment == limit || (experiment <= 0.0 && control <= 0.0) {
                    0.0
                } else if limit <= 0.0 || experiment <= 0.0 {
                    // One side is 0: as far off as a factor of e.
                    (experiment - limit).signum()
                } else {
                    (experiment / limit).ln()
                }
            }
        };
        match self.comparison {
            Comparison::AtMost => above,
            Comparison::AtLeast => -above,
            Comparison::Equal => above.abs(),
        }
    }

    /// An [`excess`](Self::excess) as a reader takes it: a share of the limit, or where the limit
    /// is 0 the metric's own value.
    pub fn excess_text(&self, excess: f64) -> String {
        let share = match (self.limit, self.comparison) {
            (ConstraintLimit::Absolute(0.0), _) => return significant(excess),
            (ConstraintLimit::Absolute(_), _) => excess,
            (ConstraintLimit::TimesControl(_), Comparison::AtLeast) => -(-excess).exp_m1(),
            (ConstraintLimit::TimesControl(_), _) => excess.exp_m1(),
        };
        format!("{} %", significant(100.0 * share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_measures() {
        let p99 = MetricConstraint::parse("latency_p99_us <= 1.05 * control").unwrap();
        assert!(p99.excess(100.0, 104.0) < 0.0);
        assert!(p99.excess(100.0, 106.0) > 0.0);
        let zero = MetricConstraint::parse("throttled_periods = 0").unwrap();
        assert_eq!(zero.excess(3.0, 0.0), 0.0);
        assert_eq!(zero.excess(3.0, 2.0), 2.0);
        let rate = MetricConstraint::parse("requests_per_s >= control").unwrap();
        assert!(rate.excess(100.0, 90.0) > 0.0);
        assert!(rate.excess(100.0, 110.0) < 0.0);
    }

    #[test]
    fn says_how_far_it_is_broken() {
        for (constraint, control, experiment, said) in [
            ("latency_p99_us <= 1.2 * control", 100.0, 132.0, "10.00 %"),
            ("requests_per_s >= control", 100.0, 80.0, "20.00 %"),
            ("latency_p99_us <= 200", 100.0, 250.0, "25.00 %"),
            ("requests_per_s >= 200", 100.0, 150.0, "25.00 %"),
            ("throttled_periods = 0", 0.0, 3.0, "3.000"),
        ] {
            let constraint = MetricConstraint::parse(constraint).unwrap();
            let excess = constraint.excess(control, experiment);
            assert_eq!(constraint.excess_text(excess), said, "{}", constraint.text);
        }
    }

    #[test]
    fn refuses_nonsense() {
        for text in [
            "",
            "p99",
            "p99 < 1",
            "p99 <= x",
            "p99 <= 1.2.3",
            "p99 <= 0 * control",
            "p99 <= inf",
        ] {
            assert!(MetricConstraint::parse(text).is_err(), "{text}");
        }
    }
}
