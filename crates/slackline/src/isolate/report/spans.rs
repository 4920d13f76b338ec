//! Times of a recorded run in which something stayed the same: a reload may change the policy, an
//! objective, and whether the controller acts.

use isolate_run::{IsolationStatus, ServiceStatus};

/// A time in which a value stayed the same.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Span<T> {
    pub(super) from_s: f64,
    pub(super) to_s: f64,
    pub(super) value: T,
}

impl<T> Span<T> {
    /// The time in words.
    pub(super) fn times(&self) -> String {
        format!("{:.0} s to {:.0} s", self.from_s, self.to_s)
    }
}

/// The spans of a value over the rows. A row that does not have the value ends a span. The first
/// span begins with the run.
pub(super) fn spans<T: PartialEq>(
    rows: &[IsolationStatus],
    of: impl Fn(&IsolationStatus) -> Option<T>,
) -> Vec<Span<T>> {
    let mut spans: Vec<Span<T>> = Vec::new();
    let mut is_open = false;
    for (index, row) in rows.iter().enumerate() {
        let value = of(row);
        if is_open && let Some(open) = spans.last_mut() {
            open.to_s = row.at_s;
            is_open = value.as_ref() == Some(&open.value);
        }
        if let Some(value) = value
            && !is_open
        {
            let from_s = if index == 0 { 0.0 } else { row.at_s };
            spans.push(Span {
                from_s,
                to_s: row.at_s,
                value,
            });
            is_open = true;
        }
    }
    spans
}

/// The service of this name in a row.
pub(super) fn service<'a>(row: &'a IsolationStatus, name: &str) -> Option<&'a ServiceStatus> {
    row.services.iter().find(|service| service.name == name)
}

/// The seconds in which a service's tail was within the objective of that second, and all seconds
/// in which the tail is known; in those that the controller only observed, or in the others.
pub(super) fn kept(rows: &[IsolationStatus], name: &str, observed: bool) -> (usize, usize) {
    let rows = rows.iter().filter(|row| row.observe == observed);
    let known = rows.filter_map(|row| {
        let service = service(row, name)?;
        Some(service.latency_ms? <= service.objective_ms)
    });
    known.fold((0, 0), |(within, all), is_within| {
        (within + usize::from(is_within), all + 1)
    })
}

/// What a counter that may begin anew has counted. A reload from observing to acting begins the
/// groups anew.
pub(super) fn counted(counter: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut last) = (0.0, 0.0);
    for now in counter {
        sum += if now < last { now } else { now - last };
        last = now;
    }
    sum
}
