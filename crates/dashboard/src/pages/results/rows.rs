//! The rows of the table: ranked, filtered, ordered, and a page at a time.

use bayes_opt::{Configuration, Value};
use coordinator::Error;
use coordinator::store::{EvaluationRow, Store};
use tuner::evaluation::Outcome;
use tuner::report::{EvaluationRecord, difference};

use super::look::Look;
use crate::readers;
use crate::role::Role;

/// Rows on a page: what a reader looks through at once.
pub(super) const ROWS: usize = 50;

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

pub(super) fn outcome_of(row: &EvaluationRow) -> String {
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
pub(super) type Found = (Vec<(Option<usize>, EvaluationRow)>, usize, usize);

pub(super) fn find(
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

#[cfg(test)]
mod tests {
    use super::*;

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
