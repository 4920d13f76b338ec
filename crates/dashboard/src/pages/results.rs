//! The table of an experiment's evaluations: ordered, filtered and searched by its address, so that
//! it works without scripts, and ten thousand evaluations cost a browser fifty rows.

mod columns;
mod look;
mod rows;

use std::collections::BTreeMap;

use bayes_opt::Configuration;
use coordinator::Error;
use coordinator::store::{EvaluationRow, ExperimentRow, Store};
use tuner::evaluation::Block;
use tuner::report::{EvaluationRecord, difference};
use tuner::spec::{ObjectiveSpec, Spec};

pub(super) use self::columns::metrics;
use self::columns::{Choice, Head, choices, head};
pub(super) use self::look::Look;
use self::rows::{ROWS, find, outcome_of};
use crate::api::OUTCOMES;
use crate::format::{self, When};
use crate::names::Names;
use crate::role::Role;
use crate::units::Unit;

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
}
