//! Numbers as a page shows them.

use bayes_opt::Configuration;
use paired_stats::{Interval, mean_interval, ratio_interval};
use tuner::evaluation::{Block, EvaluationRules};
use tuner::report::{change, score_text};
use tuner::spec::{ObjectiveScale, ObjectiveSpec, Spec};

use crate::units::Unit;

/// Confidence of the intervals in a table of results.
const CONFIDENCE: f64 = 0.95;

/// A time as people read it, with its zone.
pub(crate) fn time(at_ms: i64) -> String {
    match jiff::Timestamp::from_millisecond(at_ms) {
        Ok(at) => at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        Err(_) => String::new(),
    }
}

/// A moment: absolute with its zone, and how long ago it was. A page without scripts has both, and
/// a script keeps the second one true.
#[derive(Clone, Debug)]
pub(crate) struct When {
    pub(crate) absolute: String,
    pub(crate) ago: String,
    pub(crate) iso: String,
}

impl When {
    pub(crate) fn ms(at_ms: i64) -> Self {
        let at = jiff::Timestamp::from_millisecond(at_ms).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        Self::of(at)
    }

    pub(crate) fn of(at: jiff::Timestamp) -> Self {
        let passed = jiff::Timestamp::now().duration_since(at).as_secs_f64();
        Self {
            absolute: time(at.as_millisecond()),
            ago: ago(passed),
            iso: at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        }
    }
}

impl std::fmt::Display for When {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.absolute)
    }
}

/// "3 min ago". Whole steps, so that a page that is read again is mostly the same.
fn ago(passed_s: f64) -> String {
    let (count, unit) = match passed_s.abs() {
        s if s < 60.0 => return "just now".into(),
        s if s < 3600.0 => (s / 60.0, "min"),
        s if s < 48.0 * 3600.0 => (s / 3600.0, "h"),
        s => (s / 86_400.0, "days"),
    };
    let count = count.floor();
    match passed_s > 0.0 {
        true => format!("{count:.0} {unit} ago"),
        false => format!("in {count:.0} {unit}"),
    }
}

/// A configuration as people write it: `level = 1, chunk = 50`.
pub(crate) fn configuration(it: &Configuration) -> String {
    let settings = it.0.iter().map(|(name, value)| format!("{name} = {value}"));
    settings.collect::<Vec<_>>().join(", ")
}

/// A number of evaluations.
pub(crate) fn evaluations(count: usize) -> String {
    match count {
        1 => "1 evaluation".to_owned(),
        count => format!("{count} evaluations"),
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

/// The objective over an evaluation's blocks, with its interval; empty where there is none, such as
/// for `mean + k·std`.
pub(crate) fn objective(spec: &Spec, objective: &ObjectiveSpec, blocks: &[Block]) -> String {
    if objective.std_weight > 0.0 {
        return String::new();
    }
    let pairs = EvaluationRules::pairs(blocks, &objective.metric);
    match objective.scale {
        ObjectiveScale::Ratio => {
            ratio_interval(&pairs, CONFIDENCE).map_or_else(|_| String::new(), |it| change(&it))
        }
        ObjectiveScale::Absolute => {
            let values: Vec<f64> = pairs.iter().map(|pair| pair.experiment).collect();
            let unit = Unit::in_spec(spec, &objective.metric);
            let text = |it: Interval| interval(&unit, &it);
            mean_interval(&values, CONFIDENCE).map_or_else(|_| String::new(), text)
        }
    }
}

/// A score as a reader takes it: the objective's change against the control, or its value in its
/// unit.
pub(crate) fn score(spec: &Spec, objective: &ObjectiveSpec, score: f64) -> String {
    match objective.scale {
        ObjectiveScale::Ratio => score_text(score, objective),
        ObjectiveScale::Absolute => {
            let value = objective.goal.sign() * score;
            Unit::in_spec(spec, &objective.metric).mean(value)
        }
    }
}

/// An estimate with its interval, in its unit.
pub(crate) fn interval(unit: &Unit, it: &Interval) -> String {
    format!(
        "{} [{}, {}]",
        unit.mean(it.estimate),
        unit.mean(it.low),
        unit.mean(it.high)
    )
}

/// A metric over an evaluation's blocks: what the control had, what the experiment had, and the
/// change with its interval. Where there is a change, both are geometric means, of which it is the
/// ratio; else they are plain means.
pub(crate) struct Compared {
    pub(crate) name: String,
    pub(crate) metric: String,
    pub(crate) control: String,
    pub(crate) experiment: String,
    pub(crate) change: String,
}

/// Every metric that both sides of some block have.
pub(crate) fn compared(spec: &Spec, blocks: &[Block], first: &[String]) -> Vec<Compared> {
    let mut names: Vec<String> = first.to_vec();
    let all = blocks.iter().flat_map(|block| block.experiment.keys());
    for name in all.chain(blocks.iter().flat_map(|block| block.control.keys())) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    let rows = names.into_iter().filter_map(|metric| {
        let pairs = EvaluationRules::pairs(blocks, &metric);
        if pairs.is_empty() {
            return None;
        }
        let ratio = ratio_interval(&pairs, CONFIDENCE).ok();
        let mean = |of: fn(&paired_stats::Pair) -> f64| {
            let values = pairs.iter().map(of);
            let n = pairs.len() as f64;
            match ratio {
                Some(_) => (values.map(f64::ln).sum::<f64>() / n).exp(),
                None => values.sum::<f64>() / n,
            }
        };
        let unit = Unit::in_spec(spec, &metric);
        Some(Compared {
            name: unit.name(),
            control: unit.mean(mean(|pair| pair.control)),
            experiment: unit.mean(mean(|pair| pair.experiment)),
            change: ratio.map_or_else(String::new, |it| change(&it)),
            metric,
        })
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_change_is_the_ratio_of_what_stands_beside_it() {
        let text = r#"{
            "parameters": [{ "name": "x", "type": "int", "low": 1, "high": 9, "default": 5 }],
            "target": { "start": ["true"] },
            "workload": { "command": ["true"], "parse": "wrk" },
            "objective": { "metric": "latency_p99_us" } }"#;
        let roots = host::Roots::default();
        let spec = tuner::spec::context(&roots)
            .check(text.into(), "x.json".as_ref())
            .unwrap();
        let block = |control: f64, experiment: f64| Block {
            start_s: 0.0,
            order: tuner::evaluation::SideOrder::Parallel,
            control: [
                ("latency_p99_us".to_owned(), control),
                ("errors".to_owned(), 0.0),
            ]
            .into(),
            experiment: [
                ("latency_p99_us".to_owned(), experiment),
                ("errors".to_owned(), 2.0),
            ]
            .into(),
        };
        // The plain means are 10 and 16.3; in two pairs of three the candidate is much better.
        let blocks = [block(10.0, 4.0), block(10.0, 4.0), block(10.0, 41.0)];
        let shown = compared(spec.written(), &blocks, &[]);
        let of = |metric: &str| shown.iter().find(|it| it.metric == metric).unwrap();
        let latency = of("latency_p99_us");
        assert_eq!(
            (latency.control.as_str(), latency.experiment.as_str()),
            ("10.00 µs", "8.689 µs")
        );
        assert!(
            latency.change.starts_with("−13.1 % ["),
            "{}",
            latency.change
        );
        let errors = of("errors");
        assert_eq!(
            (errors.experiment.as_str(), errors.change.as_str()),
            ("2.000", "")
        );
    }

    #[test]
    fn a_moment_is_absolute_and_relative() {
        let when = When::of(jiff::Timestamp::now() - jiff::SignedDuration::from_secs(185));
        assert_eq!(when.ago, "3 min ago");
        assert!(when.to_string().ends_with(" UTC"), "{when}");
        assert_eq!(ago(20.0), "just now");
        assert_eq!(ago(7300.0), "2 h ago");
        assert_eq!(ago(-7300.0), "in 2 h");
        assert_eq!(ago(3.5 * 86_400.0), "3 days ago");
    }
}
