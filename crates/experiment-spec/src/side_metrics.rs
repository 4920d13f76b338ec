//! What was measured of one side of a block.

use std::collections::BTreeMap;

/// The metrics of one side of one block, by name.
pub type SideMetrics = BTreeMap<String, f64>;

/// Looks a metric up; `X_per_request` and `X_per_s` are derived from X where they were not
/// measured.
///
/// ```
/// let block = [("cpu_s".to_string(), 0.5), ("requests".to_string(), 1000.0)].into();
/// assert_eq!(experiment_spec::metrics::lookup(&block, "cpu_s_per_request"), Some(0.0005));
/// assert_eq!(experiment_spec::metrics::lookup(&block, "nothing"), None);
/// ```
pub fn lookup(metrics: &SideMetrics, name: &str) -> Option<f64> {
    if let Some(value) = metrics.get(name) {
        return Some(*value);
    }
    [("_per_request", "requests"), ("_per_s", "duration_s")]
        .into_iter()
        .find_map(|(suffix, divisor)| {
            let counted = lookup(metrics, name.strip_suffix(suffix)?)?;
            let per = *metrics.get(divisor)?;
            (per > 0.0).then(|| counted / per)
        })
}
