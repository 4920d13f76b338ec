//! Metrics and constraints in texts, as people call them: `latency p99` for `latency_p99_us`. The
//! texts of the store have the keys, which are what somebody types.

use std::collections::BTreeSet;

use bayes_opt::readable;
use tuner::metrics::{CGROUP, JVM, PROCESS, WORKLOAD, unit, with_unit};
use tuner::spec::{Comparison, ConstraintLimit, MetricConstraint, Spec};

use crate::units::Unit;

/// The metrics and constraints of a specification.
pub(crate) struct Names<'a> {
    spec: &'a Spec,
    metrics: BTreeSet<&'a str>,
    /// Each constraint as it is written and as it is told, the longest first.
    constraints: Vec<(&'a str, String)>,
}

impl<'a> Names<'a> {
    pub(crate) fn of(spec: &'a Spec) -> Self {
        let own = [&WORKLOAD[..], &PROCESS, &CGROUP, &JVM].concat();
        let objective = spec.objective.iter().map(|it| it.metric.as_str());
        let given = spec.metrics.keys().map(String::as_str);
        let mut constraints: Vec<(&str, String)> = spec
            .constraints
            .iter()
            .filter_map(|text| Some((text.trim(), told(spec, text)?)))
            .collect();
        constraints.sort_by_key(|(written, _)| std::cmp::Reverse(written.len()));
        Self {
            spec,
            metrics: own.into_iter().chain(objective).chain(given).collect(),
            constraints,
        }
    }

    /// A text of the store for people.
    pub(crate) fn text(&self, text: &str) -> String {
        let constraints = self.constraints.iter();
        let text = constraints.fold(text.to_owned(), |text, (written, told)| {
            text.replace(written, told)
        });
        let is_word = |it: char| it.is_ascii_alphanumeric() || "_-./{}\"'`=".contains(it);
        let mut shown = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let begin = rest.find(is_word).unwrap_or(rest.len());
            let (between, words) = rest.split_at(begin);
            let end = words.find(|it| !is_word(it)).unwrap_or(words.len());
            let (word, behind) = words.split_at(end);
            // A full stop ends a sentence.
            let name = word.trim_end_matches('.');
            shown.push_str(between);
            match self.is_metric(name) {
                true => {
                    shown.push_str(&Unit::in_spec(self.spec, name).name());
                    shown.push_str(&word[name.len()..]);
                }
                false => shown.push_str(word),
            }
            rest = behind;
        }
        shown
    }

    fn is_metric(&self, word: &str) -> bool {
        let per = ["_per_request", "_per_s", ""];
        let mut bases = per.iter().filter_map(|end| word.strip_suffix(end));
        bases.any(|base| self.metrics.contains(base))
    }
}

/// `latency p99 ≤ 5000 us` for `latency_p99_us <= 5000`.
fn told(spec: &Spec, text: &str) -> Option<String> {
    let constraint = MetricConstraint::parse(text).ok()?;
    let name = Unit::in_spec(spec, &constraint.metric).name();
    let sign = match constraint.comparison {
        Comparison::AtMost => "≤",
        Comparison::AtLeast => "≥",
        Comparison::Equal => "=",
    };
    let limit = match constraint.limit {
        ConstraintLimit::TimesControl(1.0) => "control".to_owned(),
        ConstraintLimit::TimesControl(factor) => format!("{} × control", readable(factor)),
        ConstraintLimit::Absolute(limit) => {
            let unit = unit(&with_unit(spec, &constraint.metric)).unwrap_or_default();
            // A name says itself what it is counted per.
            let unit = unit.trim_end_matches("/request").replace("us", "µs");
            let unit = unit.strip_prefix('1').unwrap_or(&unit).to_owned();
            let gap = if unit.is_empty() || unit.starts_with('/') {
                ""
            } else {
                " "
            };
            format!("{}{gap}{unit}", readable(limit))
        }
    };
    Some(format!("{name} {sign} {limit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_metrics_and_constraints_are_told_as_people_call_them() {
        let text = r#"{
            "parameters": [{ "name": "x_us", "type": "int", "low": 1, "high": 9, "default": 5 }],
            "target": { "start": ["true"] },
            "workload": { "command": ["true"], "parse": "wrk" },
            "metrics": { "slow_ms": { "command": ["true"] } },
            "constraints": [
                "latency_p99_us <= 1.05 * control", "latency_p99_us <= 5000", "errors = 0",
                "requests_per_s >= control", "requests_per_s >= 1e20"
            ],
            "objective": { "metric": "latency_p99_us" } }"#;
        let spec: Spec = serde_json::from_str(text).unwrap();
        let names = Names::of(&spec);
        for (text, told) in [
            (
                "Shown: −8.1 % of latency_p99_us against the control.",
                "Shown: −8.1 % of latency p99 against the control.",
            ),
            (
                "Broken: latency_p99_us <= 1.05 * control (+16.7 %).",
                "Broken: latency p99 ≤ 1.05 × control (+16.7 %).",
            ),
            (
                "latency_p99_us <= 5000 is broken; errors = 0 is broken",
                "latency p99 ≤ 5000 µs is broken; errors = 0 is broken",
            ),
            ("requests_per_s >= control", "requests per second ≥ control"),
            ("requests_per_s >= 1e20", "requests per second ≥ 1e20/s"),
            (
                "memory_bytes +1.0 %, cpu_s_per_request −2.0 %, slow_ms.",
                "memory +1.0 %, cpu per request −2.0 %, slow.",
            ),
            // What is no metric, or only like one.
            (
                "x_us=4 /tmp/latency_p99_us.txt {latency_p99_us} --latency_p99_us",
                "x_us=4 /tmp/latency_p99_us.txt {latency_p99_us} --latency_p99_us",
            ),
            ("", ""),
        ] {
            assert_eq!(names.text(text), told);
        }
    }
}
