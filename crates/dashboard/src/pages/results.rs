//! The table of an experiment's evaluations: ordered, filtered and searched by its address, so that
//! it works without scripts, and ten thousand evaluations cost a browser fifty rows.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use bayes_opt::{Configuration, Value};
use coordinator::Error;
use coordinator::store::{EvaluationRow, ExperimentRow, Store};
use tuner::evaluation::{Block, Outcome};
use tuner::report::{EvaluationRecord, difference};
use tuner::spec::{ObjectiveSpec, Spec};

use crate::api::OUTCOMES;
use crate::format::{self, When};
use crate::names::Names;
use crate::readers;
use crate::reply::Refusal;
use crate::role::Role;
use crate::units::Unit;
use crate::web::{encoded, one_of, pairs};

/// No experiment has more pages.
const PAGE_MAX: usize = 1 << 20;
/// Rows on a page: what a reader looks through at once.
const ROWS: usize = 50;
/// No search text is longer.
const SEARCH_CHARS_MAX: usize = 200;

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

/// What the address asks of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Look {
    page: usize,
    sort: String,
    is_descending: bool,
    outcome: String,
    search: String,
    /// Empty: as nobody chose.
    columns: Vec<String>,
}

impl Look {
    /// # Errors
    /// A parameter is unknown, or has no such value.
    pub(super) fn parse(query: &str) -> Result<Self, Refusal> {
        let wrong = |why: String| Refusal::new(StatusCode::BAD_REQUEST, why);
        let mut look = Self {
            page: 1,
            sort: "rank".into(),
            ..Self::default()
        };
        for (name, value) in pairs(query) {
            match name.as_str() {
                "page" => {
                    let page = value.parse::<usize>().ok();
                    let page = page.filter(|page| (1..=PAGE_MAX).contains(page));
                    look.page = page.ok_or_else(|| {
                        wrong(format!(
                            "page={value}: give a whole number from 1 to {PAGE_MAX}"
                        ))
                    })?;
                }
                // A field of a form that nobody filled in.
                "sort" | "column" if value.is_empty() => {}
                "sort" => {
                    let key = value.strip_prefix('-');
                    look.is_descending = key.is_some();
                    key.unwrap_or(&value).clone_into(&mut look.sort);
                }
                "outcome" => {
                    one_of("outcome", Some(&value), OUTCOMES)?;
                    look.outcome = value;
                }
                "search" => look.search = value.trim().chars().take(SEARCH_CHARS_MAX).collect(),
                "column" => look.columns.push(value),
                other => {
                    return Err(wrong(format!(
                        "unknown query parameter {other:?}; known: page, sort, outcome, search, column"
                    )));
                }
            }
        }
        Ok(look)
    }

    /// Whether columns and order are of this experiment.
    ///
    /// # Errors
    /// A column or an order that it does not have, with those that it has.
    pub(super) fn check(&self, row: &ExperimentRow) -> Result<(), Refusal> {
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

    /// Best first, and everything.
    fn is_plain(&self) -> bool {
        self.sort == "rank"
            && !self.is_descending
            && self.outcome.is_empty()
            && self.search.is_empty()
    }

    /// The address of another page, or of another order.
    fn link(&self, page: usize, sort: &str) -> String {
        let mut parts = Vec::new();
        if page > 1 {
            parts.push(format!("page={page}"));
        }
        if sort != "rank" {
            parts.push(format!("sort={}", encoded(sort)));
        }
        for (name, value) in [("outcome", &self.outcome), ("search", &self.search)] {
            if !value.is_empty() {
                parts.push(format!("{name}={}", encoded(value)));
            }
        }
        let columns = self.columns.iter();
        parts.extend(columns.map(|key| format!("column={}", encoded(key))));
        format!("?{}", parts.join("&"))
    }

    fn sort_text(&self) -> String {
        format!("{}{}", if self.is_descending { "-" } else { "" }, self.sort)
    }
}

/// A column's heading.
pub(super) struct Head {
    pub(super) label: String,
    pub(super) note: &'static str,
    /// The order that a click asks for.
    pub(super) link: Option<String>,
    /// `ascending`, `descending` or `none`.
    pub(super) sorted: &'static str,
}

/// A cell.
#[derive(Default)]
pub(super) struct Shown {
    pub(super) text: String,
    pub(super) is_number: bool,
    pub(super) is_outcome: bool,
}

pub(super) struct Row {
    pub(super) number: usize,
    pub(super) outcome: String,
    pub(super) is_running: bool,
    /// Its configuration is what the verification measured, or the row that says so.
    pub(super) mark: String,
    pub(super) note: Option<String>,
    pub(super) cells: Vec<Shown>,
}

/// Something to choose from.
pub(super) struct Choice {
    pub(super) key: String,
    pub(super) label: String,
    pub(super) is_chosen: bool,
}

pub(super) struct Results {
    pub(super) heads: Vec<Head>,
    pub(super) rows: Vec<Row>,
    pub(super) columns: Vec<Choice>,
    pub(super) outcomes: Vec<Choice>,
    pub(super) search: String,
    pub(super) sort: String,
    /// The number's heading.
    pub(super) number: Head,
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) matching: usize,
    pub(super) of: usize,
    pub(super) previous: Option<String>,
    pub(super) next: Option<String>,
    pub(super) is_plain: bool,
}

/// How an evaluation stands in the order from the best to the worst.
fn class(row: &EvaluationRow) -> usize {
    match (row.is_running, row.record.outcome) {
        (true, _) => 0,
        (_, Outcome::Completed) => 1,
        (_, Outcome::Aborted) => 2,
        (_, Outcome::Violated) => 3,
        (_, Outcome::Crashed) => 4,
        (_, Outcome::Killed) => 5,
        (_, Outcome::Failed) => 6,
    }
}

fn score(record: &EvaluationRecord) -> f64 {
    let measurement = record.measurement.as_ref();
    measurement.map_or(f64::INFINITY, |measurement| measurement.score)
}

fn outcome_of(row: &EvaluationRow) -> String {
    match row.is_running {
        true => "running".into(),
        false => row.record.outcome.to_string(),
    }
}

/// Whether a row has a rank: what runs has none yet, and what has no value none at all.
fn has_rank(row: &EvaluationRow) -> bool {
    !row.is_running && row.record.measurement.is_some()
}

/// Every row with its rank, where it has one.
fn ranked(mut rows: Vec<EvaluationRow>) -> Vec<(Option<usize>, EvaluationRow)> {
    rows.sort_by(|a, b| {
        let by_score = || score(&a.record).total_cmp(&score(&b.record));
        let by_class = class(a).cmp(&class(b));
        by_class
            .then_with(by_score)
            .then(a.record.number.cmp(&b.record.number))
    });
    let running = rows.iter().filter(|row| row.is_running).count();
    let with_rank = rows.into_iter().enumerate();
    let with_rank = with_rank.map(|(at, row)| (has_rank(&row).then(|| at + 1 - running), row));
    with_rank.collect()
}

fn compare_values(a: Option<&Value>, b: Option<&Value>) -> std::cmp::Ordering {
    let number = |value: Option<&Value>| value.and_then(Value::as_f64);
    match (number(a), number(b)) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        (a_number, b_number) => {
            let text = |it: Option<&Value>| it.map(ToString::to_string);
            let by_kind = b_number.is_some().cmp(&a_number.is_some());
            by_kind.then_with(|| text(a).cmp(&text(b)))
        }
    }
}

fn matches(row: &EvaluationRow, look: &Look, control: &Configuration) -> bool {
    if !look.outcome.is_empty() && outcome_of(row) != look.outcome {
        return false;
    }
    if look.search.is_empty() {
        return true;
    }
    let record = &row.record;
    let wanted = look.search.to_lowercase();
    let values = record.configuration.0.iter();
    let values = values.map(|(name, value)| format!("{name}={value}"));
    let mut words = values.chain([
        format!("#{}", record.number),
        record.why().unwrap_or_default(),
        record.host.clone().unwrap_or_default(),
        record.note.clone().unwrap_or_default(),
        difference(&record.configuration, control),
    ]);
    words.any(|text| text.to_lowercase().contains(&wanted)) || wanted.parse() == Ok(record.number)
}

fn sort(rows: &mut [(Option<usize>, EvaluationRow)], look: &Look) {
    let parameter = look.sort.strip_prefix("p:");
    rows.sort_by(|(_, a), (_, b)| {
        let (one, other) = (&a.record, &b.record);
        match (look.sort.as_str(), parameter) {
            (_, Some(name)) => {
                compare_values(one.configuration.get(name), other.configuration.get(name))
            }
            ("number", _) => one.number.cmp(&other.number),
            ("outcome", _) => class(a).cmp(&class(b)),
            ("objective", _) => score(one).total_cmp(&score(other)),
            ("took", _) => one.duration_s.total_cmp(&other.duration_s),
            ("began", _) => a.started_ms.cmp(&b.started_ms),
            ("host", _) => one.host.cmp(&other.host),
            // They are ranked already.
            _ => std::cmp::Ordering::Equal,
        }
    });
    if look.is_descending {
        rows.reverse();
    }
}

/// The rows of one page with their ranks, how many match, and how many there are.
type Found = (Vec<(Option<usize>, EvaluationRow)>, usize, usize);

fn find(
    store: &Store,
    id: i64,
    look: &Look,
    control: &Configuration,
    role: Role,
) -> Result<Found, Error> {
    let seen = |rows: Vec<EvaluationRow>| {
        let rows = rows.into_iter().map(|it| readers::evaluation(role, it));
        rows.collect::<Result<Vec<_>, Error>>()
    };
    let skip = (look.page - 1) * ROWS;
    if look.is_plain() {
        let (rows, of) = store.ranked(id, skip, ROWS)?;
        let running = store.tally(id)?.running;
        let ranks = seen(rows)?.into_iter().zip(skip..);
        let ranks = ranks.map(|(row, at)| (has_rank(&row).then(|| at + 1 - running.min(at)), row));
        return Ok((ranks.collect(), of, of));
    }
    // Nobody finds by a search what they may not see.
    let all = ranked(seen(store.evaluations(id, 1)?)?);
    let of = all.len();
    let matching = all
        .into_iter()
        .filter(|(_, row)| matches(row, look, control));
    let mut matching: Vec<_> = matching.collect();
    sort(&mut matching, look);
    let count = matching.len();
    Ok((
        matching.into_iter().skip(skip).take(ROWS).collect(),
        count,
        of,
    ))
}

/// What of an evaluation stands in a column.
struct Cells<'a> {
    row: &'a EvaluationRow,
    rank: Option<usize>,
    blocks: &'a [Block],
    spec: &'a Spec,
    objective: &'a ObjectiveSpec,
    control: &'a Configuration,
    names: &'a Names<'a>,
}

impl Cells<'_> {
    fn of(&self, key: &str) -> Shown {
        let record = &self.row.record;
        let text = |text: String| Shown {
            text,
            ..Shown::default()
        };
        let number = |text: String| Shown {
            text,
            is_number: true,
            ..Shown::default()
        };
        match key.split_once(':') {
            Some(("p", name)) => {
                let value = record.configuration.get(name);
                return number(value.map_or_else(String::new, ToString::to_string));
            }
            Some(("m", metric)) => {
                let values = self.blocks.iter();
                let values =
                    values.filter_map(|block| tuner::metrics::lookup(&block.experiment, metric));
                let values: Vec<f64> = values.collect();
                let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
                let shown =
                    (!values.is_empty()).then(|| Unit::in_spec(self.spec, metric).mean(mean));
                return number(shown.unwrap_or_default());
            }
            _ => {}
        }
        match key {
            "rank" => number(
                self.rank
                    .map_or_else(|| "–".into(), |rank| rank.to_string()),
            ),
            "outcome" => Shown {
                text: outcome_of(self.row),
                is_outcome: true,
                ..Shown::default()
            },
            "objective" => number(self.objective()),
            "configuration" => text(difference(&record.configuration, self.control)),
            "limits" => text(self.names.text(&self.limits())),
            "took" if self.row.is_running => number(String::new()),
            "took" => number(format::duration(record.duration_s)),
            "began" => number(
                self.row
                    .started_ms
                    .map_or_else(String::new, |at_ms| When::ms(at_ms).to_string()),
            ),
            "reason" => text(self.names.text(&record.why().unwrap_or_default())),
            "host" => text(record.host.clone().unwrap_or_default()),
            "note" => text(record.note.clone().unwrap_or_default()),
            _ => Shown::default(),
        }
    }

    fn objective(&self) -> String {
        let interval = format::objective(self.spec, self.objective, self.blocks);
        match &self.row.record.measurement {
            Some(measurement) if interval.is_empty() => {
                format::score(self.spec, self.objective, measurement.score)
            }
            _ => interval,
        }
    }

    fn limits(&self) -> String {
        let Some(measurement) = &self.row.record.measurement else {
            return String::new();
        };
        let broken = measurement
            .excess
            .iter()
            .filter(|(_, excess)| **excess > 0.0);
        broken
            .map(|(text, _)| text.clone())
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// The metrics that have a column each, if somebody wants it: objective, constraints, what is
/// reported.
pub(super) fn metrics(row: &ExperimentRow) -> Vec<String> {
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
fn choices(row: &ExperimentRow, look: &Look, has_reasons: bool) -> Vec<Choice> {
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

fn head(key: &str, label: &str, look: &Look) -> Head {
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

/// What the verification says of configurations, with the best evaluation of each.
type Marks = BTreeMap<String, (&'static str, Option<usize>)>;

/// What the verification says of configurations, for the marks in the table.
fn marks(store: &Store, row: &ExperimentRow) -> Result<Marks, Error> {
    let planned = row.plan.iter().flatten().filter(|arm| arm.is_candidate);
    let mut marks: BTreeMap<String, (&'static str, &Configuration)> = planned
        .map(|arm| {
            (
                key(&arm.configuration),
                ("in verification", &arm.configuration),
            )
        })
        .collect();
    let verified = row
        .report
        .verification
        .iter()
        .filter(|arm| arm.is_candidate);
    marks.extend(verified.map(|arm| (key(&arm.configuration), ("verified", &arm.configuration))));
    if let Some(winner) = row.report.winner() {
        let mark = match row.report.finding.is_better() {
            true => "verified winner",
            false => "verified",
        };
        let configuration = &winner.configuration;
        marks.insert(key(configuration), (mark, configuration));
    }
    let configurations: Vec<&Configuration> = marks.values().map(|it| it.1).collect();
    let best = store.best_of(row.id, &configurations)?.into_iter();
    let marks = marks.into_iter().zip(best);
    Ok(marks
        .map(|((key, (mark, _)), best)| (key, (mark, best.map(|it| it.0))))
        .collect())
}

/// The mark of an evaluation: a configuration that was evaluated several times has its mark once.
fn mark(marks: &Marks, record: &EvaluationRecord) -> String {
    match marks.get(&key(&record.configuration)) {
        Some((_, Some(best))) if *best != record.number => format!("same as {best}"),
        Some((mark, _)) => (*mark).to_owned(),
        None => String::new(),
    }
}

fn key(configuration: &Configuration) -> String {
    let values = configuration.0.iter();
    values
        .map(|(name, value)| format!("{name}={value}\n"))
        .collect()
}

/// The table that `look`, once checked, asks for.
///
/// # Errors
/// What the store says.
pub(super) fn results(
    store: &Store,
    row: &ExperimentRow,
    look: &Look,
    role: Role,
) -> Result<Results, Error> {
    let control = &row.report.control;
    let (found, matching, of) = find(store, row.id, look, control, role)?;
    let objective = super::summary::objective(row);
    let mut records = found.iter().map(|(_, found)| &found.record);
    let has_reasons = records.any(|record| record.reason.is_some());
    let columns = choices(row, look, has_reasons);
    let shown: Vec<&Choice> = columns.iter().filter(|choice| choice.is_chosen).collect();
    let name = Unit::in_spec(&row.spec, &objective.metric).name();
    let heads = shown.iter().map(|choice| {
        let label = if choice.key == "objective" {
            &name
        } else {
            &choice.label
        };
        head(&choice.key, label, look)
    });
    let heads = heads.collect();
    let marks = marks(store, row)?;
    let names = Names::of(&row.spec);
    let needs_blocks = shown
        .iter()
        .any(|choice| choice.key == "objective" || choice.key.starts_with("m:"));
    let mut rows = Vec::new();
    for (rank, found) in &found {
        let record = &found.record;
        let blocks = match needs_blocks {
            true => store.evaluation(row.id, record.number)?.record.blocks,
            false => Vec::new(),
        };
        let cells = Cells {
            row: found,
            rank: *rank,
            blocks: &blocks,
            spec: &row.spec,
            objective: &objective,
            control,
            names: &names,
        };
        rows.push(Row {
            number: record.number,
            outcome: outcome_of(found),
            is_running: found.is_running,
            mark: mark(&marks, record),
            note: record.note.clone(),
            cells: shown.iter().map(|choice| cells.of(&choice.key)).collect(),
        });
    }
    let first = (look.page - 1) * ROWS;
    let last = (first + rows.len()).min(matching);
    let sort = look.sort_text();
    let outcomes = OUTCOMES.iter().map(|name| Choice {
        key: (*name).to_owned(),
        label: (*name).to_owned(),
        is_chosen: look.outcome == *name,
    });
    Ok(Results {
        heads,
        rows,
        outcomes: outcomes.collect(),
        search: look.search.clone(),
        number: head("number", "No.", look),
        first: (first + 1).min(matching),
        last,
        matching,
        of,
        previous: (look.page > 1).then(|| look.link(look.page - 1, &sort)),
        next: (last < matching).then(|| look.link(look.page + 1, &sort)),
        is_plain: look.is_plain() && look.columns.is_empty(),
        columns,
        sort,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_asks_for_an_order_a_filter_and_columns() {
        let look = Look::parse(
            "page=2&sort=-p%3Ax&outcome=crashed&search=+pool%3D4+&column=rank&column=p%3Ax",
        )
        .unwrap();
        assert_eq!(
            (look.page, look.sort.as_str(), look.is_descending),
            (2, "p:x", true)
        );
        assert_eq!(
            (look.outcome.as_str(), look.search.as_str()),
            ("crashed", "pool=4")
        );
        let link = look.link(3, &look.sort_text());
        let again = Look::parse(link.trim_start_matches('?')).unwrap();
        assert_eq!(again, Look { page: 3, ..look });
        assert!(Look::parse("").unwrap().is_plain());
        for wrong in [
            "page=abc",
            "page=0",
            "page=-1",
            "page=1048577",
            "page=99999999999999999999",
            "outcome=good",
            "sorted=rank",
        ] {
            assert!(Look::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn one_row_alone_is_the_winner() {
        let record = |number: usize, x: i64| {
            let text = format!(
                r#"{{ "number": {number}, "configuration": {{ "x": {x} }}, "outcome": "completed",
                    "blocks": [], "duration_s": 1, "own_cpu_s": 0 }}"#
            );
            serde_json::from_str::<EvaluationRecord>(&text).unwrap()
        };
        let winner = record(7, 3);
        let marks: Marks = [(
            key(&winner.configuration),
            ("verified winner", Some(winner.number)),
        )]
        .into();
        assert_eq!(mark(&marks, &winner), "verified winner");
        assert_eq!(mark(&marks, &record(9, 3)), "same as 7");
        assert_eq!(mark(&marks, &record(8, 4)), "");
    }

    #[test]
    fn what_runs_stands_first_and_has_no_rank() {
        let row = |number: usize, score: Option<f64>, is_running: bool| {
            let measurement = score.map_or_else(String::new, |score| {
                format!(
                    r#""measurement": {{ "score": {score}, "score_variance": 0, "excess": {{}}, "excess_variance": {{}} }},"#
                )
            });
            let text = format!(
                r#"{{ "number": {number}, "configuration": {{ "x": 1 }}, "outcome": "completed", {measurement}
                    "blocks": [], "duration_s": 1, "own_cpu_s": 0 }}"#
            );
            EvaluationRow {
                record: serde_json::from_str(&text).unwrap(),
                is_running,
                started_ms: None,
            }
        };
        let rows = vec![
            row(1, Some(-0.1), false),
            row(2, Some(-0.2), false),
            row(3, None, true),
        ];
        let ranked = ranked(rows).into_iter();
        let ranks: Vec<_> = ranked
            .map(|(rank, row)| (row.record.number, rank))
            .collect();
        assert_eq!(ranks, [(3, None), (2, Some(1)), (1, Some(2))]);
    }

    #[test]
    fn numbers_come_in_the_order_of_numbers_and_before_words() {
        let order = |a: Value, b: Value| compare_values(Some(&a), Some(&b));
        assert!(order(Value::Int(9), Value::Int(10)).is_lt());
        assert!(order(Value::Float(0.5), Value::Int(1)).is_lt());
        assert!(order(Value::Int(1000), Value::Text("auto".into())).is_lt());
        assert!(order(Value::Text("a".into()), Value::Text("b".into())).is_lt());
    }
}
