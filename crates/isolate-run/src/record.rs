//! The record of a run: a row a second and each decision, as JSON lines in a directory.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use isolation::Decision;
use serde::{Deserialize, Serialize};

use crate::error::IsolateError;
use crate::status::IsolationStatus;
use crate::steer::DecisionOutcome;

/// The record ends here: about a week of one service and one group.
const BYTES_MAX: u64 = 512 << 20;
const NAME: &str = "run.jsonl";

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordLine {
    /// How everything stood.
    Row(Box<IsolationStatus>),
    /// A decision and what became of it.
    Decision {
        /// Seconds since the start.
        at_s: f64,
        /// The decision.
        decision: Decision,
        /// What became of it.
        outcome: DecisionOutcome,
    },
    /// Something else that happened.
    Note {
        /// Seconds since the start.
        at_s: f64,
        /// In words.
        text: String,
    },
}

/// Writes the record.
pub(crate) struct Recorder {
    path: PathBuf,
    file: File,
    length: u64,
}

impl Recorder {
    /// Begins a record in a directory, which is made.
    pub(crate) fn create(directory: &Path) -> Result<Self, IsolateError> {
        fs::create_dir_all(directory).map_err(|error| IsolateError::file(directory, error))?;
        let path = directory.join(NAME);
        let file = File::create(&path).map_err(|error| IsolateError::file(&path, error))?;
        Ok(Self {
            path,
            file,
            length: 0,
        })
    }

    pub(crate) fn write(&mut self, entry: &RecordLine) -> Result<(), IsolateError> {
        if self.length > BYTES_MAX {
            return Ok(());
        }
        let mut line = serde_json::to_vec(entry).unwrap_or_default();
        line.push(b'\n');
        self.length += line.len() as u64;
        self.file
            .write_all(&line)
            .map_err(|error| IsolateError::file(&self.path, error))
    }
}

/// A record, read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedRun {
    /// How everything stood, second by second.
    pub rows: Vec<IsolationStatus>,
    /// Decisions with what became of them.
    pub decisions: Vec<(f64, Decision, DecisionOutcome)>,
    /// What else happened.
    pub notes: Vec<(f64, String)>,
}

/// Reads the record in a directory. A last line that a kill cut short is left out.
///
/// # Errors
///
/// [`IsolateError::File`]; [`IsolateError::Record`] names a damaged line.
pub fn read(directory: &Path) -> Result<RecordedRun, IsolateError> {
    let path = directory.join(NAME);
    let failed = |error| IsolateError::file(&path, error);
    let file = File::open(&path).map_err(failed)?;
    let mut recorded = RecordedRun::default();
    let mut lines = BufReader::new(file).lines().enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        let line = line.map_err(failed)?;
        match serde_json::from_str(&line) {
            Ok(RecordLine::Row(row)) => recorded.rows.push(*row),
            Ok(RecordLine::Decision {
                at_s,
                decision,
                outcome,
            }) => recorded.decisions.push((at_s, decision, outcome)),
            Ok(RecordLine::Note { at_s, text }) => recorded.notes.push((at_s, text)),
            Err(_) if lines.peek().is_none() => break,
            Err(error) => {
                return Err(IsolateError::Record {
                    path,
                    line: index + 1,
                    why: error.to_string(),
                });
            }
        }
    }
    Ok(recorded)
}

#[cfg(test)]
mod tests {
    use isolation::{ActuatorSetting, Reason};

    use super::*;

    #[test]
    fn a_record_is_read_back_without_its_torn_last_line() {
        let dir = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::create(&dir.path().join("run")).unwrap();
        let decision = Decision::group("batch", ActuatorSetting::Off(true), Reason::NoData);
        let entry = RecordLine::Decision {
            at_s: 1.0,
            decision: decision.clone(),
            outcome: DecisionOutcome::Refused("no".to_owned()),
        };
        recorder.write(&entry).unwrap();
        let note = RecordLine::Note {
            at_s: 2.0,
            text: "read again".to_owned(),
        };
        recorder.write(&note).unwrap();
        recorder.file.write_all(b"{\"note\":{\"at").unwrap();
        let recorded = read(&dir.path().join("run")).unwrap();
        assert_eq!(
            recorded.decisions,
            [(1.0, decision, DecisionOutcome::Refused("no".to_owned()))]
        );
        assert_eq!(recorded.notes.len(), 1);
        recorder.file.write_all(b"\n{}\n").unwrap();
        let error = read(&dir.path().join("run")).unwrap_err().to_string();
        assert!(error.contains("run.jsonl:3"), "{error}");
    }
}
