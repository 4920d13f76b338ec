//! The unit of a metric, which the end of its name says, and its values as people read them.

use schemars::JsonSchema;
use serde::Serialize;
pub(crate) use tuner::report::significant as digits;
use tuner::spec::Spec;

/// The unit of a metric.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "MetricUnit")]
pub(crate) struct Unit {
    /// The metric's name without its unit: `latency p99`.
    pub(crate) label: String,
    /// What the metric counts.
    kind: Kind,
    /// One unit of the metric in seconds or in bytes. 1 for a count.
    scale: f64,
    /// `/request` or `/s` if the metric is per request or per second. Otherwise empty.
    per: &'static str,
}

/// What a metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "UnitKind")]
enum Kind {
    /// Time.
    Time,
    /// Bytes.
    Bytes,
    /// A number of anything else.
    Count,
}

/// Ends of names, with what one unit is.
const ENDS: &[(&str, Kind, f64)] = &[
    ("_ns", Kind::Time, 1e-9),
    ("_us", Kind::Time, 1e-6),
    ("_ms", Kind::Time, 1e-3),
    ("_s", Kind::Time, 1.0),
    ("_seconds", Kind::Time, 1.0),
    ("_bytes", Kind::Bytes, 1.0),
    ("_kib", Kind::Bytes, 1024.0),
    ("_mib", Kind::Bytes, 1_048_576.0),
];

/// Units of time, largest first, in seconds.
const TIMES: &[(&str, f64)] = &[
    ("h", 3600.0),
    ("min", 60.0),
    ("s", 1.0),
    ("ms", 1e-3),
    ("µs", 1e-6),
    ("ns", 1e-9),
];
const SIZES: &[(&str, f64)] = &[
    ("TiB", 1_099_511_627_776.0),
    ("GiB", 1_073_741_824.0),
    ("MiB", 1_048_576.0),
    ("KiB", 1024.0),
    ("B", 1.0),
];
/// A count of fewer than ten thousand needs no prefix.
const COUNTS: &[(&str, f64)] = &[("G", 1e9), ("M", 1e6), ("k", 1e3)];

impl Unit {
    /// The unit of a metric of this specification.
    pub(crate) fn in_spec(spec: &Spec, metric: &str) -> Self {
        Self::of(&tuner::metrics::with_unit(spec, metric))
    }

    /// The unit of the metric of that name.
    pub(crate) fn of(metric: &str) -> Self {
        let (rest, per) = [("_per_request", "/request"), ("_per_s", "/s")]
            .into_iter()
            .find_map(|(end, per)| Some((metric.strip_suffix(end)?, per)))
            .unwrap_or((metric, ""));
        let end = ENDS.iter().find_map(|(end, kind, scale)| {
            let rest = rest.strip_suffix(end).filter(|rest| !rest.is_empty());
            Some((rest?, *kind, *scale))
        });
        // `bytes_per_s` is a unit from end to end.
        let is_bytes = rest == "bytes";
        let (rest, kind, scale) = match end {
            Some(found) => found,
            None if is_bytes => (rest, Kind::Bytes, 1.0),
            None => (rest, Kind::Count, 1.0),
        };
        Self {
            label: rest.replace('_', " "),
            kind,
            scale,
            per,
        }
    }

    /// The name with what it is counted per: `cpu per request`.
    pub(crate) fn name(&self) -> String {
        match self.per {
            "/request" => format!("{} per request", self.label),
            "/s" => format!("{} per second", self.label),
            _ => self.label.clone(),
        }
    }

    /// A single reading, with its unit. What is only counted keeps its whole numbers.
    pub(crate) fn text(&self, value: f64) -> String {
        let is_whole = value.fract() == 0.0 && value.abs() < 9_999.5;
        match self.kind {
            Kind::Count if is_whole && value != 0.0 => {
                format!("{value:.0}{}", self.suffix()).replace('-', "−")
            }
            _ => self.mean(value),
        }
    }

    /// What stands behind a value's unit.
    fn suffix(&self) -> &'static str {
        match self.per {
            "/request" => "",
            per => per,
        }
    }

    /// A mean or an estimate, with its unit: four significant digits.
    pub(crate) fn mean(&self, value: f64) -> String {
        if !value.is_finite() {
            return "–".into();
        }
        let per = self.suffix();
        let base = value * self.scale;
        let scaled = |units: &[(&str, f64)], last: (&str, f64)| {
            // What rounds up to the next unit is shown in that.
            let found = units.iter().find(|(_, one)| base.abs() >= one * 0.999_95);
            let (unit, one) = found.copied().unwrap_or(last);
            format!("{} {unit}{per}", digits(base / one))
        };
        match self.kind {
            _ if base == 0.0 => format!("0{per}"),
            Kind::Time => scaled(TIMES, ("ns", 1e-9)),
            Kind::Bytes => scaled(SIZES, ("B", 1.0)),
            Kind::Count if base.abs() >= 9_999.5 => scaled(COUNTS, ("", 1.0)),
            Kind::Count => format!("{}{per}", digits(base)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_in_the_units_of_people() {
        for (metric, value, name, text) in [
            ("latency_p99_us", 2316.4, "latency p99", "2.316 ms"),
            ("latency_p99_us", 2300.0, "latency p99", "2.300 ms"),
            ("latency_p99_us", 999.999, "latency p99", "1.000 ms"),
            ("latency_p50_us", 87.0, "latency p50", "87.00 µs"),
            ("memory_bytes", 1.5 * 1_048_576.0, "memory", "1.500 MiB"),
            (
                "requests_per_s",
                12_340.0,
                "requests per second",
                "12.34 k/s",
            ),
            ("requests_per_s", 9_999.4, "requests per second", "9999/s"),
            ("bytes_per_s", 2048.0, "bytes per second", "2.000 KiB/s"),
            ("cpu_s_per_request", 4.2e-5, "cpu per request", "42.00 µs"),
            ("errors", 0.0, "errors", "0"),
            ("errors", -3.0, "errors", "−3"),
            ("errors", 2.5, "errors", "2.500"),
            ("throttled_s", 0.25, "throttled", "250.0 ms"),
            ("duration_s", 7260.0, "duration", "2.017 h"),
        ] {
            let unit = Unit::of(metric);
            assert_eq!(unit.name(), name, "{metric}");
            assert_eq!(unit.text(value), text, "{metric}");
        }
        assert_eq!(Unit::of("errors").text(f64::NAN), "–");
        assert_eq!(Unit::of("errors").mean(3.0), "3.000");
    }

    #[test]
    fn four_significant_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1.000"),
            (9_999.6, "10000"),
            (999.96, "1000"),
            (97.5, "97.50"),
            (1234.4, "1234"),
            (0.012_341, "0.01234"),
            (98_765.4, "98770"),
            (12_345.0, "12350"),
            (0.000_123_46, "0.0001235"),
            (999_999.6, "1000000"),
            (1.5e9, "1.500e9"),
            (-2.5e-7, "−2.500e-7"),
        ] {
            assert_eq!(digits(value), text);
        }
    }
}
