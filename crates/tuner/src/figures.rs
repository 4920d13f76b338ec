//! Figures and counts as people read them.

use bayes_opt::Configuration;
pub use experiment_spec::significant;
use paired_stats::Interval;

/// "−8.1 % [−9.0, −7.2]": a ratio and its interval as a change.
///
/// ```
/// let interval = paired_stats::Interval { low: 0.9, estimate: 0.92, high: 0.94, confidence: 0.95 };
/// assert_eq!(tuner::report::change(&interval), "−8.0 % [−10.0, −6.0]");
/// ```
pub fn change(interval: &Interval) -> String {
    format!(
        "{} % [{}, {}]",
        percent(interval.estimate),
        percent(interval.low),
        percent(interval.high)
    )
}

/// A ratio as a signed percentage. What is rounded to zero has no minus.
///
/// ```
/// assert_eq!(tuner::report::percent(0.9996), "+0.0");
/// assert_eq!(tuner::report::percent(0.9994), "−0.1");
/// ```
pub fn percent(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    let text = format!("{:.1}", percent.abs());
    let sign = if percent < 0.0 && text != "0.0" {
        "−"
    } else {
        "+"
    };
    format!("{sign}{text}")
}

/// A confidence in per cent, without digits that nobody asked for: `95`, `99.17`.
#[must_use]
pub fn confidence_percent(confidence: f64) -> f64 {
    (confidence * 1e4).round() / 100.0
}

/// What differs from the control, or "as control".
pub fn difference(configuration: &Configuration, control: &Configuration) -> String {
    let changed: Vec<String> = configuration
        .0
        .iter()
        .filter(|(name, value)| control.0.get(*name) != Some(value))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    if changed.is_empty() {
        "as control".into()
    } else {
        changed.join(" ")
    }
}

/// A number of things: `1 alarm`, `2 alarms`.
#[must_use]
pub fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

/// A text that begins like a sentence and ends like one.
#[must_use]
pub fn sentence(text: &str) -> String {
    let mut letters = text.trim_end_matches('.').chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).chain(['.']).collect(),
        None => String::new(),
    }
}
