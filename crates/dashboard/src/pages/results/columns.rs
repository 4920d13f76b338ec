//! The columns of the table: which there are, which are shown, and their headings.

use coordinator::store::ExperimentRow;

use super::look::Look;
use crate::reply::Refusal;
use crate::units::Unit;
use crate::web::one_of;

/// Columns that every experiment has: name in the address, heading, shown where nobody chose.
const COLUMNS: &[(&str, &str, bool)] = &[
    ("rank", "Rank", true),
    ("outcome", "Outcome", true),
    ("objective", "Objective", true),
    ("configuration", "Configuration", true),
    ("limits", "Constraints broken", true),
    ("took", "Took", true),
    ("began", "Began", false),
    ("reason", "Reason", false),
    ("host", "Host", false),
    ("note", "Note", false),
];
/// Those that can be sorted by; so can every parameter.
const SORTED: &[&str] = &[
    "rank",
    "number",
    "outcome",
    "objective",
    "took",
    "began",
    "host",
];

/// A column's heading.
pub(crate) struct Head {
    pub(crate) label: String,
    pub(crate) note: &'static str,
    /// The order that a click asks for.
    pub(crate) link: Option<String>,
    /// `ascending`, `descending` or `none`.
    pub(crate) sorted: &'static str,
}

/// Something to choose from.
pub(crate) struct Choice {
    pub(crate) key: String,
    pub(crate) label: String,
    pub(crate) is_chosen: bool,
}

impl Look {
    /// Whether columns and order are of this experiment.
    ///
    /// # Errors
    /// A column or an order that it does not have, with those that it has.
    pub(crate) fn check(&self, row: &ExperimentRow) -> Result<(), Refusal> {
        let all = choices(row, self, false);
        let all: Vec<&str> = all.iter().map(|choice| choice.key.as_str()).collect();
        let parameters = all.iter().filter(|key| key.starts_with("p:"));
        let sorted: Vec<&str> = SORTED.iter().chain(parameters).copied().collect();
        one_of("sort", Some(&self.sort), &sorted)?;
        // What this experiment has nothing for, others have.
        let is_common = |key: &str| COLUMNS.iter().any(|(known, ..)| *known == key);
        for key in self.columns.iter().filter(|key| !is_common(key)) {
            one_of("column", Some(key), &all)?;
        }
        Ok(())
    }
}

/// The metrics that have a column each, if somebody wants it: objective, constraints, what is
/// reported.
pub(crate) fn metrics(row: &ExperimentRow) -> Vec<String> {
    let objective = row.spec.objective.iter();
    let mut names: Vec<String> = objective
        .map(|objective| objective.metric.clone())
        .collect();
    let constrained = row.spec.constraints.iter();
    let constrained = constrained.filter_map(|text| text.split_whitespace().next());
    for name in constrained.chain(row.spec.verification.report.iter().map(String::as_str)) {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// The columns to choose from. Reasons are shown where a row has one; a specification without
/// constraints has no column for them.
pub(super) fn choices(row: &ExperimentRow, look: &Look, has_reasons: bool) -> Vec<Choice> {
    let can_break = !row.spec.constraints.is_empty();
    let common = COLUMNS
        .iter()
        .filter(|(key, ..)| can_break || *key != "limits")
        .map(|(key, label, is_shown)| {
            let is_shown = *is_shown || has_reasons && *key == "reason";
            ((*key).to_owned(), (*label).to_owned(), is_shown)
        });
    let parameters = row.report.control.0.keys();
    let parameters = parameters.map(|name| (format!("p:{name}"), name.clone(), false));
    let metrics = metrics(row).into_iter();
    let metrics = metrics.map(|name| {
        (
            format!("m:{name}"),
            format!("{} (mean)", Unit::in_spec(&row.spec, &name).name()),
            false,
        )
    });
    let all = common.chain(parameters).chain(metrics);
    let chosen = all.map(|(key, label, is_shown)| Choice {
        is_chosen: match look.columns.is_empty() {
            true => is_shown,
            false => look.columns.contains(&key),
        },
        key,
        label,
    });
    chosen.collect()
}

pub(super) fn head(key: &str, label: &str, look: &Look) -> Head {
    let is_sorted = look.sort == key;
    let next = match is_sorted && !look.is_descending {
        true => format!("-{key}"),
        false => key.to_owned(),
    };
    let can_sort = SORTED.contains(&key) || key.starts_with("p:");
    Head {
        label: label.to_owned(),
        note: match key {
            "objective" => "against the control, 95 %",
            "configuration" => "where it differs",
            "limits" => "by the mean of the blocks",
            "began" => "UTC",
            _ => "",
        },
        link: can_sort.then(|| look.link(1, &next)),
        sorted: match (is_sorted, look.is_descending) {
            (false, _) => "none",
            (true, false) => "ascending",
            (true, true) => "descending",
        },
    }
}
