//! The record of a run: a row a second and each decision, as JSON lines in a directory. What cannot
//! be written makes a gap in the record. It never ends the run.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use isolation::Decision;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::IsolateError;
use crate::status::IsolationStatus;
use crate::steer::DecisionOutcome;

/// The record ends here: about a week of one service and one group.
const BYTES_MAX: u64 = 512 << 20;
const NAME: &str = "run.jsonl";
/// After a failure the next line is tried so much later.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Without room for some minutes of a run, the next gap would begin at once.
const ROOM_BYTES: u64 = 1 << 20;

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

impl RecordLine {
    fn at_s(&self) -> f64 {
        match self {
            Self::Row(row) => row.at_s,
            Self::Decision { at_s, .. } | Self::Note { at_s, .. } => *at_s,
        }
    }
}

/// A time in which nothing is recorded.
struct Gap {
    since_s: f64,
    why: String,
    lines: u64,
    next_try: Instant,
}

/// Writes the record.
pub(crate) struct Recorder {
    path: PathBuf,
    file: File,
    /// The length without half a line that is still to be cut off.
    torn_from: Option<u64>,
    gap: Option<Gap>,
    is_at_limit: bool,
}

impl Recorder {
    /// Begins a record in a directory, which is made.
    ///
    /// # Errors
    ///
    /// [`IsolateError::RecordingThere`]: what an earlier run recorded is not replaced.
    pub(crate) fn create(directory: &Path) -> Result<Self, IsolateError> {
        fs::create_dir_all(directory).map_err(|error| IsolateError::file(directory, error))?;
        let path = directory.join(NAME);
        match new_file(&path) {
            Ok(file) => Ok(Self {
                path,
                file,
                torn_from: None,
                gap: None,
                is_at_limit: false,
            }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(IsolateError::RecordingThere { path })
            }
            Err(error) => Err(IsolateError::file(&path, error)),
        }
    }

    /// Writes a line if that is possible. Returns what the user is told: that the recording pauses,
    /// goes on, or has ended.
    pub(crate) fn write(&mut self, entry: &RecordLine, now: Instant) -> Option<String> {
        if self.is_at_limit {
            return None;
        }
        let Some(gap) = &mut self.gap else {
            return match self.append(&[entry]) {
                Ok(()) if self.is_at_limit => self.in_words(),
                Ok(()) => None,
                Err(error) => {
                    self.gap = Some(Gap {
                        since_s: entry.at_s(),
                        why: format!("{}: {error}", self.path.display()),
                        lines: 1,
                        next_try: now + AGAIN_AFTER,
                    });
                    let words = self.in_words().unwrap_or_default();
                    Some(format!(
                        "{words}; isolate goes on and tries again every minute"
                    ))
                }
            };
        };
        if now < gap.next_try {
            gap.lines += 1;
            return None;
        }
        let text = format!(
            "{} lines from {:.1} s on are missing: {}",
            gap.lines, gap.since_s, gap.why
        );
        let note = RecordLine::Note {
            at_s: entry.at_s(),
            text: format!("the recording has a gap: {text}"),
        };
        let written = self.make_ready();
        match written.and_then(|()| self.append(&[&note, entry])) {
            Ok(()) => {
                self.gap = None;
                Some(format!("the recording goes on: {text}"))
            }
            Err(error) => {
                if let Some(gap) = &mut self.gap {
                    gap.lines += 1;
                    gap.next_try = now + AGAIN_AFTER;
                    gap.why = format!("{}: {error}", self.path.display());
                }
                None
            }
        }
    }

    /// Why nothing is recorded now; `None` while it is.
    pub(crate) fn in_words(&self) -> Option<String> {
        let path = self.path.display();
        match &self.gap {
            _ if self.is_at_limit => Some(format!(
                "the recording has ended: {path} has {} MiB",
                BYTES_MAX >> 20
            )),
            Some(gap) => Some(format!(
                "the recording has paused since {:.1} s: {}",
                gap.since_s, gap.why
            )),
            None => None,
        }
    }

    /// Writes whole lines, or nothing.
    fn append(&mut self, entries: &[&RecordLine]) -> io::Result<()> {
        let mut lines = Vec::new();
        for entry in entries {
            serde_json::to_writer(&mut lines, entry)?;
            lines.push(b'\n');
        }
        let before = self.file.metadata()?;
        if before.nlink() == 0 {
            let text = "the file has been removed";
            return Err(io::Error::new(ErrorKind::NotFound, text));
        }
        if let Err(error) = self.file.write_all(&lines) {
            // Half a line would be a damaged one as soon as another line follows.
            let is_cut = self.file.set_len(before.len()).is_ok();
            self.torn_from = (!is_cut).then_some(before.len());
            return Err(error);
        }
        self.is_at_limit = before.len() + lines.len() as u64 > BYTES_MAX;
        Ok(())
    }

    /// Before another try: a whole last line, and room behind it. A file that was removed is made
    /// again, where its directory is there.
    fn make_ready(&mut self) -> io::Result<()> {
        if self.file.metadata()?.nlink() == 0 {
            self.file = new_file(&self.path)?;
            self.torn_from = None;
        }
        if let Some(length) = self.torn_from {
            self.file.set_len(length)?;
            self.torn_from = None;
        }
        let length = self.file.metadata()?.len();
        match fallocate(&self.file, FallocateFlags::KEEP_SIZE, length, ROOM_BYTES) {
            // A file system that cannot reserve says at the write that it is full.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Drop for Recorder {
    /// A run that recorded nothing leaves no file, which would refuse the next run.
    fn drop(&mut self) {
        let metadata = self.file.metadata();
        if metadata.is_ok_and(|metadata| metadata.len() == 0 && metadata.nlink() > 0) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A file to append to that was not there before.
fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create_new(true).open(path)
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
/// [`IsolateError::File`]; [`IsolateError::Record`] names a damaged line;
/// [`IsolateError::NothingRecorded`] where there is no row.
pub fn read(directory: &Path) -> Result<RecordedRun, IsolateError> {
    let path = directory.join(NAME);
    let failed = |error| IsolateError::file(&path, error);
    let mut file = BufReader::new(File::open(&path).map_err(failed)?);
    let mut recorded = RecordedRun::default();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if file.read_until(b'\n', &mut line).map_err(failed)? == 0 {
            break;
        }
        match serde_json::from_slice(&line) {
            Ok(RecordLine::Row(row)) => recorded.rows.push(*row),
            Ok(RecordLine::Decision {
                at_s,
                decision,
                outcome,
            }) => recorded.decisions.push((at_s, decision, outcome)),
            Ok(RecordLine::Note { at_s, text }) => recorded.notes.push((at_s, text)),
            Err(_) if !line.ends_with(b"\n") => break,
            Err(error) => return Err(IsolateError::record(&path, number, &error)),
        }
    }
    match recorded.rows.is_empty() {
        true => Err(IsolateError::NothingRecorded { path }),
        false => Ok(recorded),
    }
}

#[cfg(test)]
mod tests;
