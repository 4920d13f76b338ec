//! The evaluations of an experiment as a table, in CSV and in Parquet: one a row, with a column for
//! the objective, each parameter, each constraint's excess, and each metric of both sides. Headings
//! have units.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bayes_opt::Value;
use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;
use tuner::evaluation::Block;
use tuner::metrics::{unit, with_unit};
use tuner::report::EvaluationRecord;
use tuner::spec::{
    ConstraintLimit, MetricConstraint, ObjectiveScale, ObjectiveSpec, ParameterType, Spec,
};

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
        column("reason", texts(&|row| row.record.why())),
        column("host", texts(&|row| row.record.host.clone())),
        column(
            "started_ms",
            Cells::Ints(rows.iter().map(|row| row.started_ms).collect()),
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
    columns.extend(spec.objective.iter().map(|it| objective(it, spec, rows)));
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
        // A name stands once in a table: a parameter may be called `score`.
        let name = match columns.iter().any(|other| other.name == parameter.name) {
            true => format!("parameter {}", parameter.name),
            false => parameter.name.clone(),
        };
        columns.push(column(&name, cells));
    }
    for constraint in &spec.constraints {
        let excess = |record: &EvaluationRecord| {
            let excess = &record.measurement.as_ref()?.excess;
            excess.get(constraint.as_str()).copied()
        };
        let parsed = MetricConstraint::parse(constraint).ok();
        let unit = parsed.map(|parsed| match parsed.limit {
            ConstraintLimit::TimesControl(_) => "log ratio to the limit",
            ConstraintLimit::Absolute(_) => "share of the limit",
        });
        let name = format!("excess of {constraint}{}", in_brackets(unit));
        columns.push(column(&name, reals(&excess)));
    }
    let blocks = rows.iter().flat_map(|row| &row.record.blocks);
    let metrics: BTreeSet<&String> = blocks
        .flat_map(|block| block.control.keys().chain(block.experiment.keys()))
        .collect();
    for metric in metrics {
        for (side, of) in [
            ("control", control as Side),
            ("candidate", experiment as Side),
        ] {
            let unit = unit_of(spec, metric);
            let name = format!("{metric} of {side}{}", in_brackets(unit.as_deref()));
            let mean = |record: &EvaluationRecord| mean_of(&record.blocks, of, metric);
            columns.push(column(&name, reals(&mean)));
        }
    }
    columns
}

/// One side of a block.
type Side = fn(&Block) -> &BTreeMap<String, f64>;

fn control(block: &Block) -> &BTreeMap<String, f64> {
    &block.control
}

fn experiment(block: &Block) -> &BTreeMap<String, f64> {
    &block.experiment
}

/// The mean of a metric over the blocks that have it.
fn mean_of(blocks: &[Block], side: Side, metric: &str) -> Option<f64> {
    let values: Vec<f64> = blocks
        .iter()
        .filter_map(|block| side(block).get(metric).copied())
        .collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn in_brackets(unit: Option<&str>) -> String {
    unit.map_or_else(String::new, |unit| format!(" [{unit}]"))
}

/// The unit of a metric of this specification.
fn unit_of(spec: &Spec, metric: &str) -> Option<String> {
    unit(&with_unit(spec, metric))
}

/// The objective in its own terms: its ratio to the control, or its value.
fn objective(objective: &ObjectiveSpec, spec: &Spec, rows: &[EvaluationRow]) -> Column {
    let unit = match objective.scale {
        ObjectiveScale::Ratio => Some("ratio to control".to_owned()),
        ObjectiveScale::Absolute => unit_of(spec, &objective.metric),
    };
    let value = |row: &EvaluationRow| {
        let measurement = row.record.measurement.as_ref()?;
        let score = objective.goal.sign() * measurement.score;
        Some(match objective.scale {
            ObjectiveScale::Ratio => measurement.ratio.unwrap_or_else(|| score.exp()),
            ObjectiveScale::Absolute => score,
        })
    };
    Column {
        name: format!(
            "objective: {}{}",
            objective.name(),
            in_brackets(unit.as_deref())
        ),
        cells: Cells::Reals(rows.iter().map(value).collect()),
    }
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

    fn physical(&self) -> Physical {
        match self {
            Self::Bools(_) => Physical::BOOLEAN,
            Self::Ints(_) => Physical::INT64,
            Self::Reals(_) => Physical::DOUBLE,
            Self::Texts(_) => Physical::BYTE_ARRAY,
        }
    }

    /// Empty cells are told from others by definition levels of 0 and 1.
    fn write(&self, mut to: SerializedColumnWriter<'_>) -> Result<(), ParquetError> {
        fn levels<T>(cells: &[Option<T>]) -> Vec<i16> {
            cells.iter().map(|cell| i16::from(cell.is_some())).collect()
        }
        match self {
            Self::Bools(cells) => {
                let values: Vec<bool> = cells.iter().flatten().copied().collect();
                to.typed::<BoolType>()
                    .write_batch(&values, Some(&levels(cells)), None)?;
            }
            Self::Ints(cells) => {
                let values: Vec<i64> = cells.iter().flatten().copied().collect();
                to.typed::<Int64Type>()
                    .write_batch(&values, Some(&levels(cells)), None)?;
            }
            Self::Reals(cells) => {
                let values: Vec<f64> = cells.iter().flatten().copied().collect();
                to.typed::<DoubleType>()
                    .write_batch(&values, Some(&levels(cells)), None)?;
            }
            Self::Texts(cells) => {
                let texts = cells.iter().flatten();
                let values: Vec<ByteArray> = texts
                    .map(|text| ByteArray::from(text.as_bytes().to_vec()))
                    .collect();
                to.typed::<ByteArrayType>()
                    .write_batch(&values, Some(&levels(cells)), None)?;
            }
        }
        to.close()
    }
}

/// A text that no spreadsheet takes for a formula: a single quote stands before what begins like
/// one and is no number (OWASP, "CSV Injection").
fn harmless(text: &str) -> Cow<'_, str> {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']);
    match is_formula && text.parse::<f64>().is_err() {
        true => Cow::Owned(format!("'{text}")),
        false => Cow::Borrowed(text),
    }
}

/// The table in CSV. A text that begins like a formula gets a single quote in front.
///
/// # Errors
/// [`Error::Invalid`] where it cannot be written.
pub fn evaluations_csv(spec: &Spec, rows: &[EvaluationRow]) -> Result<String, Error> {
    let columns = columns(spec, rows);
    let mut table = csv::Writer::from_writer(Vec::new());
    let failed = |error: csv::Error| Error::Invalid(error.to_string());
    table
        .write_record(columns.iter().map(|it| harmless(&it.name).into_owned()))
        .map_err(failed)?;
    for row in 0..rows.len() {
        let cells = columns.iter().map(|column| column.cells.text(row));
        table
            .write_record(cells.map(|text| harmless(&text).into_owned()))
            .map_err(failed)?;
    }
    let bytes = table
        .into_inner()
        .map_err(|error| Error::Invalid(error.to_string()))?;
    String::from_utf8(bytes).map_err(|error| Error::Invalid(error.to_string()))
}

/// The table in Parquet (format version 1.0, one row group, uncompressed): numbers are `INT64` and
/// `DOUBLE`, texts are UTF-8.
///
/// # Errors
/// [`Error::Invalid`] where it cannot be written.
pub fn evaluations_parquet(spec: &Spec, rows: &[EvaluationRow]) -> Result<Vec<u8>, Error> {
    write_parquet(&columns(spec, rows)).map_err(|error| Error::Invalid(error.to_string()))
}

fn write_parquet(columns: &[Column]) -> Result<Vec<u8>, ParquetError> {
    let field = |column: &Column| {
        let physical = column.cells.physical();
        let mut field = Type::primitive_type_builder(&column.name, physical)
            .with_repetition(Repetition::OPTIONAL);
        if physical == Physical::BYTE_ARRAY {
            field = field
                .with_logical_type(Some(LogicalType::String))
                .with_converted_type(ConvertedType::UTF8);
        }
        field.build().map(Arc::new)
    };
    let fields = columns.iter().map(field).collect::<Result<_, _>>()?;
    let schema = Type::group_type_builder("evaluations")
        .with_fields(fields)
        .build()?;
    let mut bytes = Vec::new();
    let properties = Arc::new(WriterProperties::builder().build());
    let mut file = SerializedFileWriter::new(&mut bytes, Arc::new(schema), properties)?;
    let mut group = file.next_row_group()?;
    for column in columns {
        if let Some(to) = group.next_column()? {
            column.cells.write(to)?;
        }
    }
    group.close()?;
    file.close()?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use bayes_opt::Configuration;
    use host::Roots;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;
    use tuner::evaluation::{Measurement, Outcome};

    use super::*;

    const SPEC: &str = r#"
    parameters = [
        { name = "score", type = "int", low = 0, high = 9, default = 5 },
        { name = "share", type = "float", low = 0.0, high = 1.0, default = 0.5 },
        { name = "on", type = "bool", default = false },
        { name = "kind", type = "categorical", values = ["a", "b"], default = "a" },
    ]
    target = { start = ["true"] }
    workload = { command = ["true"], json = { requests = "requests", latency_p99_us = "p99" } }
    objective = { metric = "latency_p99_us" }
    constraints = ["latency_p99_us <= 5000"]
    "#;

    fn rows() -> Vec<EvaluationRow> {
        let row = |number: usize, measurement: Option<Measurement>| EvaluationRow {
            is_running: measurement.is_none(),
            started_ms: Some(1_700_000_000_000),
            record: EvaluationRecord {
                number,
                configuration: Configuration(
                    [
                        ("score".to_owned(), Value::Int(i64::MIN)),
                        ("share".to_owned(), Value::Float(0.1)),
                        ("on".to_owned(), Value::Bool(true)),
                        ("kind".to_owned(), Value::Text("b".into())),
                    ]
                    .into(),
                ),
                outcome: Outcome::Completed,
                reason: (number == 1).then(|| "a \u{2212}, \"b\"".to_owned()),
                measurement,
                failure: None,
                crash: None,
                blocks: Vec::new(),
                duration_s: 1.5,
                own_cpu_s: 0.0,
                host: None,
                output: None,
                note: None,
                begun: None,
            },
        };
        let measured = Measurement {
            score: -0.125,
            score_variance: 1e-300,
            ratio: None,
            excess: [("latency_p99_us <= 5000".to_owned(), -0.5)].into(),
            excess_variance: [].into(),
        };
        vec![row(1, Some(measured)), row(2, None)]
    }

    fn spec() -> Spec {
        tuner::spec::context(&Roots::default())
            .check(SPEC.into(), Path::new("table.toml"))
            .unwrap()
            .pinned()
    }

    #[test]
    fn parquet_is_read_back_with_types_and_empty_cells() {
        let bytes = evaluations_parquet(&spec(), &rows()).unwrap();
        let file = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        let rows: Vec<BTreeMap<String, Field>> = file
            .get_row_iter(None)
            .unwrap()
            .map(|row| row.unwrap().into_columns().into_iter().collect())
            .collect();
        assert_eq!(rows.len(), 2);
        let text = |text: &str| Field::Str(text.to_owned());
        let first = [
            ("number", Field::Long(1)),
            ("outcome", text("completed")),
            ("reason", text("a \u{2212}, \"b\"")),
            ("host", Field::Null),
            ("started_ms", Field::Long(1_700_000_000_000)),
            ("duration_s", Field::Double(1.5)),
            ("score", Field::Double(-0.125)),
            ("score_variance", Field::Double(1e-300)),
            (
                "objective: latency_p99_us [ratio to control]",
                Field::Double((-0.125_f64).exp()),
            ),
            ("parameter score", Field::Long(i64::MIN)),
            ("share", Field::Double(0.1)),
            ("on", Field::Bool(true)),
            ("kind", text("b")),
            (
                "excess of latency_p99_us <= 5000 [share of the limit]",
                Field::Double(-0.5),
            ),
        ];
        assert_eq!(
            rows[0],
            first.map(|(name, field)| (name.to_owned(), field)).into()
        );
        assert_eq!(rows[1]["outcome"], text("running"));
        for empty in [
            "reason",
            "score",
            "excess of latency_p99_us <= 5000 [share of the limit]",
        ] {
            assert_eq!(rows[1][empty], Field::Null, "{empty}");
        }
    }

    #[test]
    fn a_table_without_rows_has_its_columns() {
        let bytes = evaluations_parquet(&spec(), &[]).unwrap();
        let file = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        assert_eq!(file.metadata().file_metadata().num_rows(), 0);
        assert_eq!(
            file.metadata().file_metadata().schema().get_fields().len(),
            14
        );
    }

    #[test]
    fn no_cell_of_a_csv_is_a_formula() {
        for (text, written) in [
            ("=1+1", "'=1+1"),
            ("+x", "'+x"),
            ("-x", "'-x"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "'\t=1"),
            ("\r=1", "'\r=1"),
            ("-3", "-3"),
            ("+1.5e9", "+1.5e9"),
            ("a=b", "a=b"),
            ("", ""),
        ] {
            assert_eq!(harmless(text), written);
            let mut rows = rows();
            rows[0].record.reason = Some(text.into());
            rows[0].record.measurement = None;
            let kind = Value::Text(text.into());
            rows[0].record.configuration.0.insert("kind".into(), kind);
            let table = evaluations_csv(&spec(), &rows).unwrap();
            let mut table = csv::Reader::from_reader(table.as_bytes());
            let first = table.records().next().unwrap().unwrap();
            assert_eq!((&first[2], &first[12]), (written, written), "{text}");
            assert_eq!(&first[9], i64::MIN.to_string());
        }
    }

    #[test]
    fn csv_has_the_same_columns() {
        let text = evaluations_csv(&spec(), &rows()).unwrap();
        let mut table = csv::Reader::from_reader(text.as_bytes());
        assert_eq!(table.headers().unwrap().len(), 14);
        let first = table.records().next().unwrap().unwrap();
        assert_eq!(&first[2], "a \u{2212}, \"b\"");
        assert_eq!(&first[9], i64::MIN.to_string());
    }
}
