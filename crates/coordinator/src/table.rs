//! The evaluations of an experiment as a table, in CSV: one a row, with a column for each parameter and each
//! constraint's excess.

use bayes_opt::Value;
use tuner::report::EvaluationRecord;
use tuner::spec::{ParameterType, Spec};

use crate::error::Error;
use crate::store::EvaluationRow;

/// The cells of a column; a cell may be empty.
enum Cells {
    Bools(Vec<Option<bool>>),
    Ints(Vec<Option<i64>>),
    Reals(Vec<Option<f64>>),
    Texts(Vec<Option<String>>),
}

struct Column {
    name: String,
    cells: Cells,
}

fn columns(spec: &Spec, rows: &[EvaluationRow]) -> Vec<Column> {
    let column = |name: &str, cells: Cells| Column {
        name: name.to_owned(),
        cells,
    };
    let reals = |cell: &dyn Fn(&EvaluationRecord) -> Option<f64>| {
        Cells::Reals(rows.iter().map(|row| cell(&row.record)).collect())
    };
    let texts = |cell: &dyn Fn(&EvaluationRow) -> Option<String>| {
        Cells::Texts(rows.iter().map(cell).collect())
    };
    let number = |row: &EvaluationRow| i64::try_from(row.record.number).ok();
    let outcome = |row: &EvaluationRow| {
        Some(match row.is_running {
            true => "running".to_owned(),
            false => row.record.outcome.to_string(),
        })
    };
    let mut columns = vec![
        column("number", Cells::Ints(rows.iter().map(number).collect())),
        column("outcome", texts(&outcome)),
        column("reason", texts(&|row| row.record.reason.clone())),
        column("host", texts(&|row| row.record.host.clone())),
        column(
            "started_ms",
            Cells::Ints(rows.iter().map(|row| Some(row.started_ms)).collect()),
        ),
        column("duration_s", reals(&|record| Some(record.duration_s))),
        column(
            "score",
            reals(&|record| Some(record.measurement.as_ref()?.score)),
        ),
        column(
            "score_variance",
            reals(&|record| Some(record.measurement.as_ref()?.score_variance)),
        ),
    ];
    for parameter in &spec.parameters {
        let values = rows
            .iter()
            .map(|row| row.record.configuration.get(&parameter.name));
        let cells = match parameter.kind {
            ParameterType::Bool => Cells::Bools(
                values
                    .map(|value| match value {
                        Some(Value::Bool(value)) => Some(*value),
                        _ => None,
                    })
                    .collect(),
            ),
            ParameterType::Int => {
                Cells::Ints(values.map(|value| value.and_then(Value::as_i64)).collect())
            }
            ParameterType::Float => {
                Cells::Reals(values.map(|value| value.and_then(Value::as_f64)).collect())
            }
            ParameterType::Ordinal | ParameterType::Categorical => {
                Cells::Texts(values.map(|value| value.map(ToString::to_string)).collect())
            }
        };
        columns.push(column(&parameter.name, cells));
    }
    for constraint in &spec.constraints {
        let excess = |record: &EvaluationRecord| {
            let excess = &record.measurement.as_ref()?.excess;
            excess.get(constraint.as_str()).copied()
        };
        columns.push(column(&format!("excess of {constraint}"), reals(&excess)));
    }
    columns
}

impl Cells {
    fn text(&self, row: usize) -> String {
        fn of<T: ToString>(cell: &Option<T>) -> String {
            cell.as_ref().map_or_else(String::new, ToString::to_string)
        }
        match self {
            Self::Bools(cells) => of(&cells[row]),
            Self::Ints(cells) => of(&cells[row]),
            Self::Reals(cells) => of(&cells[row]),
            Self::Texts(cells) => of(&cells[row]),
        }
    }
}

/// The table in CSV.
///
/// # Errors
/// [`Error::Invalid`] where it cannot be written.
pub fn evaluations_csv(spec: &Spec, rows: &[EvaluationRow]) -> Result<String, Error> {
    let columns = columns(spec, rows);
    let mut table = csv::Writer::from_writer(Vec::new());
    let failed = |error: csv::Error| Error::Invalid(error.to_string());
    table
        .write_record(columns.iter().map(|column| column.name.as_str()))
        .map_err(failed)?;
    for row in 0..rows.len() {
        table
            .write_record(columns.iter().map(|column| column.cells.text(row)))
            .map_err(failed)?;
    }
    let bytes = table
        .into_inner()
        .map_err(|error| Error::Invalid(error.to_string()))?;
    String::from_utf8(bytes).map_err(|error| Error::Invalid(error.to_string()))
}
