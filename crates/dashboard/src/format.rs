//! Numbers as a page shows them.

use latency_stats::{Interval, mean_interval, ratio_interval};
use tuner::evaluation::{Block, Rules};
use tuner::report::change;
use tuner::spec::{ObjectiveScale, ObjectiveSpec};

/// Confidence of the intervals in a table of results.
const CONFIDENCE: f64 = 0.95;

/// A time as people read it, in UTC.
pub(crate) fn time(at_ms: i64) -> String {
    match jiff::Timestamp::from_millisecond(at_ms) {
        Ok(at) => at.strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => String::new(),
    }
}

/// A number of seconds.
pub(crate) fn duration(duration_s: f64) -> String {
    if duration_s < 120.0 {
        format!("{duration_s:.1} s")
    } else if duration_s < 7200.0 {
        format!("{:.0} min", duration_s / 60.0)
    } else {
        format!("{:.1} h", duration_s / 3600.0)
    }
}

/// A measured quantity, to four digits.
pub(crate) fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let magnitude = value.abs().log10().floor();
    if !(-4.0..6.0).contains(&magnitude) {
        return format!("{value:.3e}");
    }
    let decimals = (0..8)
        .find(|decimals| f64::from(*decimals) >= 3.0 - magnitude)
        .unwrap_or(8);
    format!("{value:.*}", usize::try_from(decimals).unwrap_or(0))
}

/// The objective over an evaluation's blocks, with its interval; empty where there is none, such as for `mean + k·std`.
pub(crate) fn objective(objective: &ObjectiveSpec, blocks: &[Block]) -> String {
    if objective.std_weight > 0.0 {
        return String::new();
    }
    let pairs = Rules::pairs(blocks, &objective.metric);
    match objective.scale {
        ObjectiveScale::Ratio => {
            ratio_interval(&pairs, CONFIDENCE).map_or_else(|_| String::new(), |it| change(&it))
        }
        ObjectiveScale::Absolute => {
            let values: Vec<f64> = pairs.iter().map(|pair| pair.experiment).collect();
            let text = |it: Interval| {
                format!(
                    "{} [{}, {}]",
                    number(it.estimate),
                    number(it.low),
                    number(it.high)
                )
            };
            mean_interval(&values, CONFIDENCE).map_or_else(|_| String::new(), text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1.000"),
            (1234.4, "1234"),
            (0.012_341, "0.01234"),
            (98_765.4, "98765"),
            (1.5e9, "1.500e9"),
            (-2.5e-7, "-2.500e-7"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
