//! Durations in a query of Prometheus.

use std::time::Duration;

/// The ranges in a query: `[30s]`, `[1h30m]`, and of a subquery `[5m:10s]` the first part.
pub(crate) fn ranges(query: &str) -> Vec<Duration> {
    let inside = query.split('[').skip(1);
    inside
        .filter_map(|rest| rest.split_once(']'))
        .filter_map(|(range, _)| duration_of(range.split(':').next().unwrap_or(range).trim()))
        .collect()
}

/// A duration as Prometheus writes it
/// (prometheus.io/docs/prometheus/latest/querying/basics/#float-literals-and-time-durations).
fn duration_of(text: &str) -> Option<Duration> {
    let (mut total, mut rest) = (Duration::ZERO, text);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let count: u32 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit());
        let (unit, behind) = rest.split_at(end.unwrap_or(rest.len()));
        let ms: u64 = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60 * 1000,
            "h" => 3600 * 1000,
            "d" => 24 * 3600 * 1000,
            "w" => 7 * 24 * 3600 * 1000,
            _ => return None,
        };
        total = total.checked_add(Duration::from_millis(ms).checked_mul(count)?)?;
        rest = behind;
    }
    (!total.is_zero()).then_some(total)
}
