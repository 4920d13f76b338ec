//! Evaluations and their blocks.

use std::collections::BTreeMap;

use bayes_opt::Configuration;
use serde::Deserialize;
use tuner::begun::Begun;
use tuner::evaluation::{Block, Measurement, Outcome};
use tuner::report::{EvaluationRecord, Failure};

use super::database::{Cell, Database};
use super::row::find;
use super::{Store, json, now_ms, to_json, usize_of};
use crate::error::Error;

/// An evaluation, without its blocks.
#[derive(Clone, Debug)]
pub struct EvaluationRow {
    /// What is known of it; `blocks` is empty. Of one that runs, `outcome` is not to be read.
    pub record: EvaluationRecord,
    /// It is being measured.
    pub is_running: bool,
    /// When it began, in milliseconds since 1970; `None` of one that was measured elsewhere.
    pub started_ms: Option<i64>,
}

/// What a chart draws of an evaluation that ended. Reading ten thousand of these costs a fraction
/// of reading as many [`EvaluationRow`]s.
#[derive(Clone, Debug)]
pub struct ChartPoint {
    /// Its number.
    pub number: usize,
    /// What was measured.
    pub configuration: BTreeMap<String, serde_json::Value>,
    /// What it came to, as it is written.
    pub outcome: String,
    /// What the search minimises, and its variance; `None` where nothing was measured.
    pub score: Option<(f64, f64)>,
    /// When it began, in milliseconds since 1970; `None` of one that was measured elsewhere.
    pub started_ms: Option<i64>,
    /// How long it took.
    pub duration_s: f64,
    /// The worker that measured it; `None` of this host.
    pub host: Option<String>,
}

/// The evaluation that is being measured.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningEvaluation {
    /// Its number.
    pub number: usize,
    /// What is measured.
    pub configuration: Configuration,
}

/// The columns of one evaluation.
const COLUMNS: &str = "number, configuration, outcome, reason, failure, measurement, started_ms, duration_s, own_cpu_s, host, output, crash, note, begun";
/// The same of many: what their services printed would be long, and is read of one alone.
const COLUMNS_OF_MANY: &str = "number, configuration, outcome, reason, failure, measurement, started_ms, duration_s, own_cpu_s, host, CAST(NULL AS TEXT), crash, note, begun";

/// Stands for the beginning of an evaluation that was measured elsewhere: no report says it.
const ELSEWHERE: i64 = 0;

/// As it is written in a column.
fn word(value: &impl serde::Serialize) -> Result<String, Error> {
    Ok(to_json(value)?.trim_matches('"').to_owned())
}

fn row(cells: &[Cell]) -> Result<EvaluationRow, Error> {
    let outcome = cells[2].text().unwrap_or_default();
    let is_running = outcome == "running";
    let quoted = |text: &str| Cell::Text(format!("{text:?}"));
    let failure: Option<Failure> = cells[4]
        .text()
        .map(|text| json(&quoted(text)))
        .transpose()?;
    let measurement: Option<Measurement> = json(&cells[5])?;
    Ok(EvaluationRow {
        is_running,
        started_ms: cells[6].int().filter(|at_ms| *at_ms != ELSEWHERE),
        record: EvaluationRecord {
            number: usize_of(&cells[0]),
            configuration: json(&cells[1])?,
            outcome: if is_running {
                Outcome::Failed
            } else {
                json(&quoted(outcome))?
            },
            reason: cells[3].text().map(str::to_owned),
            measurement,
            failure,
            crash: json(&cells[11])?,
            blocks: Vec::new(),
            duration_s: cells[7].real().unwrap_or(0.0),
            own_cpu_s: cells[8].real().unwrap_or(0.0),
            host: cells[9].text().map(str::to_owned),
            output: cells[10].text().map(str::to_owned),
            note: cells[12].text().map(str::to_owned),
            begun: json(&cells[13])?,
        },
    })
}

/// Writes how an evaluation ended, inside a transaction.
pub(super) fn write_end(
    database: &mut Database,
    id: i64,
    record: &EvaluationRecord,
) -> Result<(), Error> {
    let score = record
        .measurement
        .as_ref()
        .map(|measurement| measurement.score);
    database.execute(
        "UPDATE evaluations SET outcome = $1, reason = $2, failure = $3, score = $4, measurement = $5, \
         duration_s = $6, own_cpu_s = $7, host = $8, output = $9, crash = $10, begun = $11 \
         WHERE experiment = $12 AND number = $13",
        &[
            word(&record.outcome)?.into(),
            record.reason.as_deref().map(http_client::redact).into(),
            record.failure.map(|failure| word(&failure)).transpose()?.into(),
            score.into(),
            record.measurement.as_ref().map(to_json).transpose()?.into(),
            record.duration_s.into(),
            record.own_cpu_s.into(),
            record.host.clone().into(),
            record.output.as_deref().map(http_client::redact).into(),
            record.crash.as_ref().map(to_json).transpose()?.into(),
            record.begun.as_ref().map(to_json).transpose()?.into(),
            id.into(),
            record.number.into(),
        ],
    )?;
    Ok(())
}

/// Writes what a person says of an evaluation, inside a transaction.
fn note_evaluation(
    database: &mut Database,
    id: i64,
    number: usize,
    note: Option<&str>,
) -> Result<(), Error> {
    database.execute(
        "UPDATE evaluations SET note = $1 WHERE experiment = $2 AND number = $3",
        &[
            note.map(http_client::redact).into(),
            id.into(),
            number.into(),
        ],
    )?;
    Ok(())
}

pub(super) fn insert(
    database: &mut Database,
    id: i64,
    number: usize,
    configuration: &Configuration,
    started_ms: i64,
) -> Result<(), Error> {
    database.execute(
        "INSERT INTO evaluations (experiment, number, configuration, outcome, is_to_be_killed, started_ms) \
         VALUES ($1, $2, $3, 'running', 0, $4)",
        &[id.into(), number.into(), to_json(configuration)?.into(), started_ms.into()],
    )?;
    Ok(())
}

pub(super) fn insert_block(
    database: &mut Database,
    id: i64,
    evaluation: usize,
    number: usize,
    block: &Block,
) -> Result<(), Error> {
    database.execute(
        "INSERT INTO blocks (experiment, evaluation, number, block) VALUES ($1, $2, $3, $4)",
        &[
            id.into(),
            evaluation.into(),
            number.into(),
            to_json(block)?.into(),
        ],
    )?;
    Ok(())
}

/// An evaluation begins, inside a transaction. An enqueued one leaves the queue.
pub(super) fn begin(
    database: &mut Database,
    id: i64,
    running: &RunningEvaluation,
    is_from_queue: bool,
) -> Result<(), Error> {
    insert(
        database,
        id,
        running.number,
        &running.configuration,
        now_ms(),
    )?;
    if is_from_queue {
        leave_queue(database, id)?;
    }
    Ok(())
}

/// The first enqueued configuration is taken.
fn leave_queue(database: &mut Database, id: i64) -> Result<(), Error> {
    database.execute(
        "DELETE FROM queue WHERE experiment = $1 AND position = \
         (SELECT MIN(position) FROM queue WHERE experiment = $2)",
        &[id.into(), id.into()],
    )?;
    Ok(())
}

/// One evaluation without its blocks, inside a transaction.
pub(super) fn find_evaluation(
    database: &mut Database,
    id: i64,
    number: usize,
) -> Result<EvaluationRow, Error> {
    let rows = database.query(
        &format!("SELECT {COLUMNS} FROM evaluations WHERE experiment = $1 AND number = $2"),
        &[id.into(), number.into()],
    )?;
    let found = rows.first().map(|cells| row(cells)).transpose()?;
    found.ok_or_else(|| Error::NotFound(format!("evaluation {number} of experiment {id}")))
}

/// Evaluations measured elsewhere, with their blocks, inside a transaction.
pub(super) fn import(
    database: &mut Database,
    id: i64,
    records: &[EvaluationRecord],
) -> Result<(), Error> {
    for record in records {
        insert(
            database,
            id,
            record.number,
            &record.configuration,
            ELSEWHERE,
        )?;
        write_end(database, id, record)?;
        if let Some(note) = &record.note {
            note_evaluation(database, id, record.number, Some(note))?;
        }
        for (number, block) in (1..).zip(&record.blocks) {
            insert_block(database, id, record.number, number, block)?;
        }
    }
    Ok(())
}

/// The order from the best to the worst, in SQL: by how they ended, then by score.
const BEST_FIRST: &str = "CASE outcome WHEN 'running' THEN 0 WHEN 'completed' THEN 1 WHEN 'aborted' THEN 2 \
    WHEN 'violated' THEN 3 WHEN 'crashed' THEN 4 WHEN 'killed' THEN 5 ELSE 6 END, score IS NULL, score, number";

impl Store {
    /// The evaluations of an experiment from number `from` on, in order, without what their
    /// services printed.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn evaluations(&self, id: i64, from: usize) -> Result<Vec<EvaluationRow>, Error> {
        let rows = self.read(|database| {
            database.query(
                &format!("SELECT {COLUMNS_OF_MANY} FROM evaluations WHERE experiment = $1 AND number >= $2 ORDER BY number"),
                &[id.into(), from.into()],
            )
        })?;
        rows.iter().map(|cells| row(cells)).collect()
    }

    /// The evaluations of an experiment that ended, in order, as charts need them.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn points(&self, id: i64) -> Result<Vec<ChartPoint>, Error> {
        #[derive(Deserialize)]
        struct Score {
            score: f64,
            score_variance: f64,
        }
        let rows = self.read(|database| {
            database.query(
                "SELECT number, configuration, outcome, measurement, started_ms, duration_s, host FROM evaluations \
                 WHERE experiment = $1 AND outcome <> 'running' ORDER BY number",
                &[id.into()],
            )
        })?;
        let points = rows.iter().map(|cells| {
            let score: Option<Score> = json(&cells[3])?;
            Ok(ChartPoint {
                number: usize_of(&cells[0]),
                configuration: json(&cells[1])?,
                outcome: cells[2].text().unwrap_or_default().to_owned(),
                score: score.map(|it| (it.score, it.score_variance)),
                started_ms: cells[4].int().filter(|at_ms| *at_ms != ELSEWHERE),
                duration_s: cells[5].real().unwrap_or(0.0),
                host: cells[6].text().map(str::to_owned),
            })
        });
        points.collect()
    }

    /// How the evaluations began of which that is known, in order, by their numbers.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn begun(&self, id: i64) -> Result<Vec<(usize, Begun)>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT number, begun FROM evaluations WHERE experiment = $1 AND begun IS NOT NULL ORDER BY number",
                &[id.into()],
            )
        })?;
        rows.iter()
            .map(|cells| Ok((usize_of(&cells[0]), json(&cells[1])?)))
            .collect()
    }

    /// Some of the evaluations, best first: the running one, the completed by score, then the
    /// aborted, violated, crashed, killed and failed. With the number of all, and without what
    /// their services printed.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn ranked(
        &self,
        id: i64,
        skip: usize,
        take: usize,
    ) -> Result<(Vec<EvaluationRow>, usize), Error> {
        let (rows, count) = self.read(|database| {
            let rows = database.query(
                &format!(
                    "SELECT {COLUMNS_OF_MANY} FROM evaluations WHERE experiment = $1 ORDER BY {BEST_FIRST} LIMIT $2 OFFSET $3"
                ),
                &[id.into(), take.into(), skip.into()],
            )?;
            let count = database.query(
                "SELECT COUNT(*) FROM evaluations WHERE experiment = $1",
                &[id.into()],
            )?;
            Ok((rows, count))
        })?;
        let rows = rows
            .iter()
            .map(|cells| row(cells))
            .collect::<Result<_, _>>()?;
        Ok((rows, count.first().map_or(0, |row| usize_of(&row[0]))))
    }

    /// The best evaluation that has ended of each of these configurations, and its rank among all
    /// that have ended; `None` where none has.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn best_of(
        &self,
        id: i64,
        configurations: &[&Configuration],
    ) -> Result<Vec<Option<(usize, usize)>>, Error> {
        let asked = configurations.iter().map(to_json);
        let asked: Vec<String> = asked.collect::<Result<_, _>>()?;
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let places = (0..asked.len()).map(|place| format!("${}", place + 2));
        let places = places.collect::<Vec<_>>().join(", ");
        let mut cells = vec![Cell::from(id)];
        cells.extend(asked.iter().map(|it| Cell::from(it.as_str())));
        let rows = self.read(|database| {
            database.query(
                &format!(
                    "SELECT configuration, number, place FROM (SELECT number, configuration, ROW_NUMBER() OVER (ORDER BY {BEST_FIRST}) \
                     AS place FROM evaluations WHERE experiment = $1 AND outcome <> 'running') AS ranked \
                     WHERE configuration IN ({places}) ORDER BY place"
                ),
                &cells,
            )
        })?;
        let mut best = BTreeMap::new();
        for row in &rows {
            let found = (usize_of(&row[1]), usize_of(&row[2]));
            best.entry(row[0].text()).or_insert(found);
        }
        let best = asked.iter().map(|it| best.get(&Some(it.as_str())).copied());
        Ok(best.collect())
    }

    /// Gives evaluations their blocks.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn fill_blocks(&self, id: i64, rows: &mut [EvaluationRow]) -> Result<(), Error> {
        let mut blocks: BTreeMap<usize, Vec<Block>> = BTreeMap::new();
        for (evaluation, block) in self.blocks(id)? {
            blocks.entry(evaluation).or_default().push(block);
        }
        for row in rows {
            let found = blocks.remove(&row.record.number);
            row.record.blocks = found.unwrap_or_default();
        }
        Ok(())
    }

    /// Gives the evaluations that measured nothing what their services printed.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub(crate) fn fill_outputs(&self, id: i64, rows: &mut [EvaluationRow]) -> Result<(), Error> {
        let found = self.read(|database| {
            database.query(
                "SELECT number, output FROM evaluations WHERE experiment = $1 AND measurement IS NULL AND output IS NOT NULL",
                &[id.into()],
            )
        })?;
        let output = |cells: &Vec<Cell>| Some((usize_of(&cells[0]), cells[1].text()?.to_owned()));
        let mut outputs: BTreeMap<usize, String> = found.iter().filter_map(output).collect();
        for row in rows {
            row.record.output = outputs.remove(&row.record.number);
        }
        Ok(())
    }

    /// One evaluation with its blocks.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn evaluation(&self, id: i64, number: usize) -> Result<EvaluationRow, Error> {
        self.read(|database| {
            let mut found = find_evaluation(database, id, number)?;
            let blocks = database.query(
                "SELECT block FROM blocks WHERE experiment = $1 AND evaluation = $2 ORDER BY number",
                &[id.into(), number.into()],
            )?;
            found.record.blocks = blocks.iter().map(|row| json(&row[0])).collect::<Result<_, _>>()?;
            Ok(found)
        })
    }

    /// Every block of an experiment, with the number of its evaluation.
    pub(crate) fn blocks(&self, id: i64) -> Result<Vec<(usize, Block)>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT evaluation, block FROM blocks WHERE experiment = $1 ORDER BY evaluation, number",
                &[id.into()],
            )
        })?;
        rows.iter()
            .map(|row| Ok((usize_of(&row[0]), json(&row[1])?)))
            .collect()
    }

    /// An evaluation begins. An enqueued one leaves the queue.
    pub(crate) fn started(
        &self,
        id: i64,
        running: &RunningEvaluation,
        is_from_queue: bool,
    ) -> Result<(), Error> {
        self.change(|database| begin(database, id, running, is_from_queue))
    }

    /// A block of the running evaluation was measured.
    pub(crate) fn add_block(
        &self,
        id: i64,
        evaluation: usize,
        number: usize,
        block: &Block,
    ) -> Result<(), Error> {
        self.change(|database| insert_block(database, id, evaluation, number, block))
    }

    /// An evaluation ended.
    pub(crate) fn ended(&self, id: i64, record: &EvaluationRecord) -> Result<(), Error> {
        self.change(|database| write_end(database, id, record))
    }

    /// Evaluations measured elsewhere, with their blocks.
    #[cfg(test)]
    pub(crate) fn import(&self, id: i64, records: &[EvaluationRecord]) -> Result<(), Error> {
        self.change(|database| import(database, id, records))
    }

    /// What a person has written about an evaluation; `None` takes it away.
    pub(crate) fn note_evaluation(
        &self,
        id: i64,
        number: usize,
        note: Option<&str>,
    ) -> Result<(), Error> {
        self.change(|database| {
            find_evaluation(database, id, number)?;
            note_evaluation(database, id, number, note)
        })
    }

    /// The running evaluation is to be killed: written down, before it is.
    pub(crate) fn is_to_be_killed(&self, id: i64, number: usize) -> Result<(), Error> {
        self.change(|database| {
            find(database, id)?;
            let changed = database.execute(
                "UPDATE evaluations SET is_to_be_killed = 1 WHERE experiment = $1 AND number = $2 \
                 AND outcome = 'running'",
                &[id.into(), number.into()],
            )?;
            if changed == 0 {
                return Err(Error::Conflict(format!(
                    "evaluation {number} of experiment {id} is not running"
                )));
            }
            Ok(())
        })
    }
}
