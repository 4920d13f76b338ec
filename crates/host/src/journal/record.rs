//! The journal's file: one JSON object a line. A line that says what is about to be done is
//! complete on disk before it is done; a second line says afterwards what was left. Reading it back
//! gives the list of things to undo.
//!
//! A last line without its newline was cut by a crash: what it announced was never done, so it is
//! dropped. Any other unreadable line is an error.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::HostError;
use crate::knob::Knob;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) seq: u64,
    pub(crate) time: String,
    #[serde(flatten)]
    pub(crate) record: Record,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub(crate) enum Record {
    /// About to act.
    Will { action: Action },
    /// Acted; `left` is the value read back.
    Done { of: u64, left: String },
    /// The kernel refused; nothing was changed.
    Refused { of: u64 },
}

/// Something that can be undone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Action {
    /// A knob gets a new value. `backup` is the name of a copy below the state directory, of an
    /// ordinary file: a value does not say what stood around it.
    Write {
        knob: Knob,
        old: String,
        new: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        backup: Option<String>,
    },
    /// A file's contents are replaced. `backup` is the name of the copy below the state directory;
    /// `None` where the file did not exist. `new_fnv` is the FNV-1a hash of what is written.
    File {
        path: PathBuf,
        backup: Option<String>,
        new_fnv: u64,
    },
    /// A control group's directory (path on the host) is made.
    Group { directory: PathBuf },
    /// A v2 controller is enabled for the children of a group (path on the host).
    Controller {
        directory: PathBuf,
        controller: String,
    },
    /// A process moves into a group; `from` pairs the `cgroup.procs` of the new group with that of
    /// the old one.
    Attach {
        pid: u32,
        start_time: u64,
        from: Vec<(PathBuf, PathBuf)>,
    },
    /// A process was started.
    Process {
        pid: u32,
        start_time: u64,
        boot_id: String,
    },
    /// Processes are started in a group that was made: all that is in the group is Slackline's own.
    Members { group: String, boot_id: String },
}

impl Action {
    /// Whether a later action is about the same thing, so that undoing the first one undoes both.
    pub(super) fn is_same_subject(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Write { knob: a, .. }, Self::Write { knob: b, .. }) => a == b,
            (Self::File { path: a, .. }, Self::File { path: b, .. }) => a == b,
            (Self::Members { group: a, .. }, Self::Members { group: b, .. }) => a == b,
            _ => false,
        }
    }

    /// A person's words for what it is about.
    pub(crate) fn subject(&self) -> String {
        match self {
            Self::Write { knob, .. } => knob.to_string(),
            Self::File { path, .. } => path.display().to_string(),
            Self::Group { directory } => format!("cgroup {}", directory.display()),
            Self::Controller {
                directory,
                controller,
            } => {
                format!("controller {controller} below {}", directory.display())
            }
            Self::Attach { pid, .. } => format!("cgroup of process {pid}"),
            Self::Process { pid, .. } => format!("process {pid}"),
            Self::Members { group, .. } => format!("processes in cgroup {group}"),
        }
    }
}

/// Something still to be undone; several writes of one knob are one of these.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pending {
    /// The sequence number of the first line about it.
    pub(crate) seq: u64,
    pub(crate) time: String,
    /// With the first old value and the last new one.
    pub(crate) action: Action,
    /// What we left; `None` while a write is (or at a crash was) under way.
    pub(crate) left: Option<String>,
    /// The last line about it, and the state before that line, in case that one turns out to have
    /// been refused.
    last_seq: u64,
    before: Option<(Action, Option<String>)>,
}

impl Pending {
    /// The hashes of what we may have left in a file: what was to be written last, and, while that
    /// was under way, what was there before. It changes by a rename, so anything else is somebody
    /// else's.
    pub(crate) fn may_hold(&self, new_fnv: u64) -> Vec<u64> {
        let mut hashes = vec![new_fnv];
        if let (None, Some((Action::File { new_fnv, .. }, _))) = (&self.left, &self.before) {
            hashes.push(*new_fnv);
        }
        hashes
    }
}

/// The things to undo, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pendings {
    pub(crate) list: Vec<Pending>,
    pub(crate) last_seq: u64,
}

impl Pendings {
    /// Takes in one line.
    pub(crate) fn apply(&mut self, line: &Line) {
        self.last_seq = self.last_seq.max(line.seq);
        match &line.record {
            Record::Will { action } => self.will(line, action),
            Record::Done { of, left } => {
                if let Some(pending) = self.list.iter_mut().find(|pending| pending.last_seq == *of)
                {
                    pending.left = Some(left.clone());
                    pending.before = None;
                }
            }
            Record::Refused { of } => {
                let Some(at) = self.list.iter().position(|pending| pending.last_seq == *of) else {
                    return;
                };
                match self.list[at].before.take() {
                    Some((action, left)) => {
                        self.list[at].action = action;
                        self.list[at].left = left;
                    }
                    None => {
                        self.list.remove(at);
                    }
                }
            }
        }
    }

    fn will(&mut self, line: &Line, action: &Action) {
        let Some(pending) = self
            .list
            .iter_mut()
            .find(|pending| pending.action.is_same_subject(action))
        else {
            self.list.push(Pending {
                seq: line.seq,
                time: line.time.clone(),
                action: action.clone(),
                left: None,
                last_seq: line.seq,
                before: None,
            });
            return;
        };
        pending.before = Some((pending.action.clone(), pending.left.take()));
        pending.last_seq = line.seq;
        match (&mut pending.action, action) {
            (Action::Write { new, .. }, Action::Write { new: later, .. }) => new.clone_from(later),
            (Action::File { new_fnv, .. }, Action::File { new_fnv: later, .. }) => {
                *new_fnv = *later
            }
            _ => {}
        }
    }

    /// The shortest lines that say the same.
    pub(crate) fn lines(&self) -> Vec<Line> {
        let mut lines = Vec::new();
        let mut next_seq = self.last_seq;
        for pending in &self.list {
            let line = |seq, record| Line {
                seq,
                time: pending.time.clone(),
                record,
            };
            let will = |action: &Action| Record::Will {
                action: action.clone(),
            };
            if let (None, Some((before, _))) = (&pending.left, &pending.before) {
                lines.push(line(pending.seq, will(before)));
                next_seq += 1;
                lines.push(line(next_seq, will(&pending.action)));
                continue;
            }
            lines.push(line(pending.seq, will(&pending.action)));
            if let Some(left) = &pending.left {
                next_seq += 1;
                lines.push(line(
                    next_seq,
                    Record::Done {
                        of: pending.seq,
                        left: left.clone(),
                    },
                ));
            }
        }
        lines
    }
}

/// Reads the journal's bytes: the things to undo, and the length of the part that is complete.
pub(crate) fn load(path: &Path, bytes: &[u8]) -> Result<(Pendings, u64), HostError> {
    let mut pendings = Pendings::default();
    let mut complete_bytes = 0;
    for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let Some(line) = line.strip_suffix(b"\n") else {
            break;
        };
        let parsed: Line = serde_json::from_slice(line).map_err(|error| HostError::Corrupt {
            path: path.to_owned(),
            line: index + 1,
            why: error.to_string(),
        })?;
        pendings.apply(&parsed);
        complete_bytes += line.len() as u64 + 1;
    }
    Ok((pendings, complete_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn will(seq: u64, name: &str, old: &str, new: &str) -> Line {
        let action = Action::Write {
            knob: Knob::Sysctl(name.into()),
            old: old.into(),
            new: new.into(),
            backup: None,
        };
        Line {
            seq,
            time: "t".into(),
            record: Record::Will { action },
        }
    }

    fn bytes(lines: &[Line]) -> Vec<u8> {
        lines
            .iter()
            .flat_map(|line| format!("{}\n", serde_json::to_string(line).unwrap()).into_bytes())
            .collect()
    }

    #[test]
    fn writes_of_one_knob_keep_the_first_old_value_and_the_last_left() {
        let done = |seq, of, left: &str| Line {
            seq,
            time: "t".into(),
            record: Record::Done {
                of,
                left: left.into(),
            },
        };
        let refused = Line {
            seq: 7,
            time: "t".into(),
            record: Record::Refused { of: 6 },
        };
        let lines = [
            will(1, "a", "60", "10"),
            done(2, 1, "10"),
            will(3, "b", "1", "2"),
            will(4, "a", "10", "21"),
            done(5, 4, "20"),
            will(6, "a", "20", "999"),
            refused,
        ];
        let (pendings, length) = load(Path::new("j"), &bytes(&lines)).unwrap();
        assert_eq!(length, bytes(&lines).len() as u64);
        assert_eq!(pendings.list.len(), 2);
        assert_eq!(pendings.list[0].left.as_deref(), Some("20"));
        assert!(
            matches!(&pendings.list[0].action, Action::Write { old, new, .. } if old == "60" && new == "21")
        );
        assert_eq!(pendings.list[1].left, None);
        // The compacted lines say the same.
        let (again, _) = load(Path::new("j"), &bytes(&pendings.lines())).unwrap();
        let key = |p: &Pendings| {
            p.list
                .iter()
                .map(|p| (p.action.clone(), p.left.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(key(&again), key(&pendings));
    }

    #[test]
    fn a_torn_last_line_is_dropped_and_a_damaged_middle_is_named() {
        let whole = bytes(&[will(1, "a", "1", "2"), will(2, "b", "1", "2")]);
        let (pendings, length) = load(Path::new("j"), &whole[..whole.len() - 1]).unwrap();
        assert_eq!(pendings.list.len(), 1);
        assert_eq!(length, bytes(&[will(1, "a", "1", "2")]).len() as u64);
        let mut damaged = whole;
        damaged[3] = 0;
        let error = load(Path::new("/s/journal.jsonl"), &damaged)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("/s/journal.jsonl line 1 is damaged"),
            "{error}"
        );
    }
}
