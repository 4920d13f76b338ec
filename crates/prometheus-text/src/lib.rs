//! Pages of metrics in Prometheus' text format 0.0.4
//! (prometheus.io/docs/instrumenting/exposition_formats).
//!
//! ```
//! use prometheus_text::{Exposition, Labels, MetricKind};
//!
//! let mut page = Exposition::new();
//! page.single("up", MetricKind::Gauge, "Whether the service runs.", 1);
//! let disk = Labels::new().and("disk", "a \"b\"");
//! let mut reads = page.family("reads_total", MetricKind::Counter, "Reads answered.");
//! reads.sample(&disk, 7);
//! assert_eq!(
//!     page.into_text(),
//!     "# HELP up Whether the service runs.\n# TYPE up gauge\nup 1\n".to_owned()
//!         + "# HELP reads_total Reads answered.\n# TYPE reads_total counter\n"
//!         + "reads_total{disk=\"a \\\"b\\\"\"} 7\n"
//! );
//! ```
#![forbid(unsafe_code)]

use std::borrow::Borrow;
use std::fmt::{self, Display, Write as _};

/// What the values of a metric are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A count that only grows.
    Counter,
    /// A value of now.
    Gauge,
    /// Counts of what is at most as large as each of some limits.
    Histogram,
}

impl Display for MetricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

/// The labels of a series. Their values may be any text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(String);

impl Labels {
    /// No label yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One more label.
    #[must_use]
    pub fn and(mut self, name: &str, value: impl Display) -> Self {
        let value = value.to_string();
        let value = value.replace('\\', "\\\\").replace('"', "\\\"");
        let value = value.replace('\n', "\\n");
        let comma = self.comma();
        let _ = write!(self.0, "{comma}{name}=\"{value}\"");
        self
    }

    /// What stands before a further label.
    fn comma(&self) -> &'static str {
        match self.0.is_empty() {
            true => "",
            false => ",",
        }
    }
}

/// As they stand behind a series' name.
impl Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.is_empty() {
            true => Ok(()),
            false => write!(f, "{{{}}}", self.0),
        }
    }
}

/// A page of metrics.
#[derive(Clone, Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    /// An empty page.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a metric. Its help is one line of text.
    pub fn family<'a>(&'a mut self, name: &'a str, kind: MetricKind, help: &str) -> Family<'a> {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        let page = &mut self.0;
        Family { page, name }
    }

    /// A metric of one series, without labels.
    pub fn single(&mut self, name: &str, kind: MetricKind, help: &str, value: impl Display) {
        self.family(name, kind, help).sample(&Labels::new(), value);
    }

    /// The page as it is served.
    #[must_use]
    pub fn into_text(self) -> String {
        self.0
    }
}

/// A metric, whose series are written one after the other.
#[derive(Debug)]
pub struct Family<'a> {
    page: &'a mut String,
    name: &'a str,
}

impl Family<'_> {
    /// A series.
    pub fn sample(&mut self, labels: &Labels, value: impl Display) {
        let _ = writeln!(self.page, "{}{labels} {value}", self.name);
    }

    /// Several series.
    pub fn samples(&mut self, all: impl IntoIterator<Item = (impl Borrow<Labels>, impl Display)>) {
        for (labels, value) in all {
            self.sample(labels.borrow(), value);
        }
    }

    /// A histogram: for each limit, in rising order, how many values are at most as large; and the
    /// sum and the number of all values.
    pub fn histogram(
        &mut self,
        labels: &Labels,
        buckets: impl IntoIterator<Item = (impl Display, u64)>,
        sum: impl Display,
        count: u64,
    ) {
        let (page, name) = (&mut *self.page, self.name);
        let (others, comma) = (&labels.0, labels.comma());
        for (limit, below) in buckets {
            let _ = writeln!(
                page,
                "{name}_bucket{{{others}{comma}le=\"{limit}\"}} {below}"
            );
        }
        let _ = write!(
            page,
            "{name}_bucket{{{others}{comma}le=\"+Inf\"}} {count}\n\
             {name}_sum{labels} {sum}\n{name}_count{labels} {count}\n"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_ends_with_all_values() {
        let mut page = Exposition::new();
        let of = Labels::new().and("shard", 3);
        let buckets = [(1, 4), (2, 6)];
        let mut family = page.family("wait", MetricKind::Histogram, "Waits.");
        family.histogram(&of, buckets, 9.5, 7);
        family.histogram(&Labels::new(), [(0.5, 1)], 1, 1);
        assert_eq!(
            page.into_text(),
            "# HELP wait Waits.\n# TYPE wait histogram\n\
             wait_bucket{shard=\"3\",le=\"1\"} 4\nwait_bucket{shard=\"3\",le=\"2\"} 6\n\
             wait_bucket{shard=\"3\",le=\"+Inf\"} 7\nwait_sum{shard=\"3\"} 9.5\n\
             wait_count{shard=\"3\"} 7\nwait_bucket{le=\"0.5\"} 1\n\
             wait_bucket{le=\"+Inf\"} 1\nwait_sum 1\nwait_count 1\n"
        );
    }

    #[test]
    fn a_label_may_be_any_text() {
        let labels = Labels::new().and("a", "x\ny\\").and("b", "\"");
        assert_eq!(labels.to_string(), "{a=\"x\\ny\\\\\",b=\"\\\"\"}");
    }
}
