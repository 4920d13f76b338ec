//! The audit log: who changed what, when, from where, and who was refused.
//!
//! Entries are lines of JSON in `audit.jsonl` in the state directory, which only its owner may
//! read. A full file becomes `audit.1.jsonl`, so that the two bound the disk. Every entry also goes
//! to the server's own log; a full disk costs the file alone.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::lock::lock;

/// A file of more than this begins anew: about 60,000 entries.
const BYTES_MAX: u64 = 16 << 20;
/// A text in an entry is cut there.
const TEXT_CHARS_MAX: usize = 500;
/// How the log calls somebody who was not signed in.
pub(crate) const NOBODY: &str = "unknown user";

/// How the log calls the server where it acts by itself.
pub(crate) const ITSELF: &str = "slackline";

/// An entry of the audit log: a change, or a refused request.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "AuditEntry")]
pub(crate) struct Entry {
    /// When it happened, in UTC.
    #[schemars(with = "String")]
    pub(crate) at: Timestamp,
    /// The name of the token, or of the proxy's user. Missing if nobody was signed in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) who: Option<String>,
    /// The client's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<IpAddr>,
    /// The name of the operation, or `sign-in`, `sign-out`, `make-token`, `revoke-token` or
    /// `refused`.
    pub(crate) action: String,
    /// Number of the experiment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) experiment: Option<i64>,
    /// Number of the evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) evaluation: Option<usize>,
    /// What the change has done, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
    /// The HTTP status of the answer.
    pub(crate) status: u16,
    /// Why the request was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refusal: Option<String>,
}

impl Entry {
    /// The name of whoever it was, also of somebody who was not signed in.
    pub(crate) fn who(&self) -> &str {
        self.who.as_deref().unwrap_or(NOBODY)
    }

    pub(crate) fn new(action: &str, who: Option<&str>, from: Option<IpAddr>, status: u16) -> Self {
        Self {
            at: Timestamp::now(),
            who: who.map(str::to_owned),
            from,
            action: action.to_owned(),
            experiment: None,
            evaluation: None,
            detail: None,
            status,
            refusal: None,
        }
    }

    /// The entry in one line of a log.
    pub(crate) fn line(&self) -> String {
        let who = self.who();
        let from = self.from.map(|from| format!(" from {from}"));
        let experiment = self.experiment.map(|id| format!(" experiment {id}"));
        let evaluation = self
            .evaluation
            .map(|number| format!(" evaluation {number}"));
        let detail = self.detail.as_ref().map(|detail| format!(": {detail}"));
        // What was refused before it was known what it would do.
        let (action, refused) = match self.action.as_str() {
            "refused" => ("request", " refused"),
            action => (action, ": refused"),
        };
        let refusal = self
            .refusal
            .as_ref()
            .map(|why| format!("{refused} ({}): {why}", self.status));
        let parts = [experiment, evaluation, from, detail, refusal];
        let parts: String = parts.into_iter().flatten().collect();
        format!("audit: {who}: {action}{parts}")
    }
}

/// What a handler says of what it has done, for the entry.
#[derive(Clone, Debug)]
pub(crate) struct Detail(pub(crate) String);

/// The log of a state directory.
pub(crate) struct Audit {
    path: PathBuf,
    writing: Mutex<()>,
    report: fn(&str),
}

impl Audit {
    pub(crate) fn of(state_dir: &Path, report: fn(&str)) -> Self {
        Self {
            path: state_dir.join("audit.jsonl"),
            writing: Mutex::new(()),
            report,
        }
    }

    fn former(&self) -> PathBuf {
        self.path.with_extension("1.jsonl")
    }

    /// Writes an entry.
    pub(crate) fn note(&self, mut entry: Entry) {
        for text in [&mut entry.detail, &mut entry.refusal, &mut entry.who] {
            *text = text.take().map(|text| tidy(&text));
        }
        (self.report)(&entry.line());
        if let Err(error) = self.append(&entry) {
            (self.report)(&format!("{}: {error}", self.path.display()));
        }
    }

    fn append(&self, entry: &Entry) -> std::io::Result<()> {
        let _one = lock(&self.writing);
        let mut file = crate::private::open_append(&self.path)?;
        if file.metadata()?.len() > BYTES_MAX {
            std::fs::rename(&self.path, self.former())?;
            file = crate::private::open_append(&self.path)?;
        }
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        if is_cut_off(&file)? {
            // The entry must not become a part of the damaged line.
            line.insert(0, b'\n');
        }
        file.write_all(&line)
    }

    /// The newest entries, newest first; of one experiment, where it is given. Damaged lines are
    /// left out and counted.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn last(&self, limit: usize, experiment: Option<i64>) -> std::io::Result<Last> {
        let mut last = VecDeque::new();
        let mut damaged = 0;
        for path in [self.former(), self.path.clone()] {
            let file = match File::open(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                file => file?,
            };
            // As bytes: a damaged line may be no text.
            for line in std::io::BufReader::new(file).split(b'\n') {
                let line = line?;
                let Ok(entry) = serde_json::from_slice::<Entry>(&line) else {
                    damaged += usize::from(!line.is_empty());
                    continue;
                };
                if experiment.is_some() && entry.experiment != experiment {
                    continue;
                }
                if last.len() == limit {
                    last.pop_front();
                }
                last.push_back(entry);
            }
        }
        if limit == 0 {
            last.clear();
        }
        Ok(Last {
            entries: last.into_iter().rev().collect(),
            damaged,
        })
    }
}

/// The newest entries of the log.
pub(crate) struct Last {
    /// Newest first.
    pub(crate) entries: Vec<Entry>,
    /// Lines of the log that cannot be read, which a crash or a full disk has left.
    pub(crate) damaged: usize,
}

/// Whether the last line of a file has no end.
fn is_cut_off(file: &File) -> std::io::Result<bool> {
    let Some(at) = file.metadata()?.len().checked_sub(1) else {
        return Ok(false);
    };
    let mut last = [0];
    file.read_exact_at(&mut last, at)?;
    Ok(last != *b"\n")
}

/// Writes down what was done by a command on this host, which no server was asked for. What cannot
/// be written goes to `report`.
pub fn note_command(state_dir: &Path, action: &str, detail: &str, report: fn(&str)) {
    let audit = Audit::of(state_dir, |_| ());
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    let user = user.unwrap_or_else(|_| format!("uid {}", rustix::process::getuid().as_raw()));
    let entry = Entry {
        detail: Some(tidy(detail)),
        ..Entry::new(
            action,
            Some(&tidy(&format!("{user} (command line)"))),
            None,
            200,
        )
    };
    if let Err(error) = audit.append(&entry) {
        report(&format!(
            "the audit log has no entry of this: {}: {error}",
            audit.path.display()
        ));
    }
}

/// One line of bounded length, without credentials.
fn tidy(text: &str) -> String {
    let text: String = text.chars().take(TEXT_CHARS_MAX).collect();
    http_client::redact(&text.replace(|it: char| it.is_control(), " "))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn entries_are_kept_in_order_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::of(dir.path(), |_| ());
        assert!(audit.last(10, None).unwrap().entries.is_empty());
        for id in 1..=3 {
            audit.note(Entry {
                experiment: Some(id),
                detail: Some("http://me:s3cr3t@h\nx".into()),
                ..Entry::new("promote", Some("anna"), None, 200)
            });
        }
        std::fs::OpenOptions::new()
            .append(true)
            .open(dir.path().join("audit.jsonl"))
            .and_then(|mut file| file.write_all(b"{\"at\":"))
            .unwrap();
        let ids = |limit, id| {
            let last = audit.last(limit, id).unwrap().entries.into_iter();
            last.filter_map(|entry| entry.experiment)
                .collect::<Vec<_>>()
        };
        assert_eq!(ids(10, None), [3, 2, 1]);
        assert_eq!(ids(2, None), [3, 2]);
        assert_eq!(ids(0, None), [0; 0]);
        assert_eq!(ids(10, Some(2)), [2]);
        let path = dir.path().join("audit.jsonl");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains("s3cr3t"), "{text}");
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_command_on_the_host_has_an_entry() {
        let dir = tempfile::tempdir().unwrap();
        note_command(dir.path(), "make-token", "anna, role write", |why| {
            panic!("{why}")
        });
        let last = Audit::of(dir.path(), |_| ()).last(1, None).unwrap();
        let entry = &last.entries[0];
        assert_eq!(entry.action, "make-token");
        assert_eq!(entry.detail.as_deref(), Some("anna, role write"));
        let who = entry.who.as_deref().unwrap();
        assert!(who.ends_with(" (command line)"), "{who}");
    }

    #[test]
    fn damaged_lines_are_counted_and_the_rest_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::of(dir.path(), |_| ());
        let note = |id| {
            audit.note(Entry {
                experiment: Some(id),
                ..Entry::new("stop", Some("anna"), None, 200)
            });
        };
        let damage = |bytes: &[u8]| {
            let file = File::options().append(true).open(&audit.path);
            file.and_then(|mut file| file.write_all(bytes)).unwrap();
        };
        note(1);
        damage(b"\xff\xfe\n{}\n\n\0\0\0");
        // The last line has no end, and the next entry is whole all the same.
        note(2);
        let last = audit.last(10, None).unwrap();
        let ids: Vec<_> = last.entries.iter().filter_map(|it| it.experiment).collect();
        assert_eq!((ids, last.damaged), (vec![2, 1], 3));
    }

    #[test]
    fn an_entry_says_who_did_what_from_where() {
        let mut entry = Entry::new("kill", Some("anna"), Some([10, 0, 0, 7].into()), 200);
        (entry.experiment, entry.evaluation) = (Some(3), Some(4));
        assert_eq!(
            entry.line(),
            "audit: anna: kill experiment 3 evaluation 4 from 10.0.0.7"
        );
        let mut refused = Entry::new("refused", None, None, 401);
        refused.refusal = Some("no token".into());
        assert_eq!(
            refused.line(),
            "audit: unknown user: request refused (401): no token"
        );
        refused.from = Some([10, 0, 0, 8].into());
        assert_eq!(
            refused.line(),
            "audit: unknown user: request from 10.0.0.8 refused (401): no token"
        );
    }
}
