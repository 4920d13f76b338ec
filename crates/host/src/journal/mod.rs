//! The undo journal: the only way in which Slackline changes a host. Before anything is changed, a
//! line that says how to change it back is on disk; after a `kill -9` or a power cut
//! [`Journal::restore`] reads those lines and undoes them. See [`record`] for the file,
//! [`restore`](Journal::restore) for undoing, `file` for replaced files.
//!
//! ```
//! use host::{Journal, Knob, Roots};
//! # let dir = tempfile::tempdir()?;
//! # std::fs::create_dir_all(dir.path().join("proc/sys/vm"))?;
//! # std::fs::write(dir.path().join("proc/sys/vm/swappiness"), "60\n")?;
//! let roots = Roots::at(dir.path());
//! let mut journal = Journal::open(&dir.path().join("state"))?;
//! let knob = Knob::Sysctl("vm.swappiness".into());
//! journal.write(&roots, &knob, "10")?;
//! assert_eq!(knob.read(&roots)?.as_deref(), Some("10"));
//! assert!(journal.restore(&roots, false)?.is_complete());
//! assert_eq!(knob.read(&roots)?.as_deref(), Some("60"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod disturbed;
mod file;
mod group;
mod record;
mod report;
mod reset;
mod restore;
mod together;
mod undo;

pub use file::{Change, Former};

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};

use crate::error::{HostError, is_absence};
use crate::files::{replace_synced, sync_directory};
use crate::knob::{Knob, is_taken_as, normalise};
use crate::lock::Lock;
use crate::roots::Roots;
use record::{Action, Line, Pendings, Record};
pub use report::{RestoreOutcome, RestoreReport, RestoredItem};

/// The journal's file in the state directory.
const FILE: &str = "journal.jsonl";

/// Space reserved for the line that follows an act, beyond the length of its value, so that a disk
/// that fills up meanwhile cannot keep that line out. Such a line without its value is below 200
/// bytes.
const RESERVE_BYTES: u64 = 4096;

/// Space that the journal's file has from the start, so that a rollback can be written down on a
/// full disk: some hundred lines. A rollback has a line for each knob and file, and one that
/// follows it.
const KEPT_BYTES: u64 = 64 << 10;

/// A line that is written to find out whether one can be has this length.
const CHECK_BYTES: usize = 1024;

/// A journal longer than this is rewritten in its shortest form (a long search writes the same few
/// knobs again and again; what is to be undone stays a few kilobytes).
const COMPACT_ABOVE_BYTES: u64 = 4 << 20;

/// The undo journal of one host, and the lock that keeps a second Slackline out. Dropping it undoes
/// nothing: the caller decides between [`Journal::restore`] and [`Journal::promote`].
#[derive(Debug)]
pub struct Journal {
    state_dir: PathBuf,
    path: PathBuf,
    file: File,
    length_bytes: u64,
    pendings: Pendings,
    /// It may end in half a line, of a run that was killed or an append that failed.
    is_torn: bool,
    lock: Lock,
}

impl Journal {
    /// Takes the host's lock and reads what an earlier run left to undo ([`Journal::is_empty`]
    /// tells). Makes the directory where it does not exist.
    ///
    /// # Errors
    ///
    /// [`HostError::Locked`] names the holder; [`HostError::Journal`] where the directory cannot be
    /// used; [`HostError::Corrupt`] for a damaged journal.
    pub fn open(state_dir: &Path) -> Result<Self, HostError> {
        let state_dir = std::path::absolute(state_dir)
            .map_err(|error| HostError::journal_io(state_dir, &error))?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&state_dir)
            .map_err(|error| HostError::journal_io(&state_dir, &error))?;
        let lock = Lock::take(&state_dir)?;
        let path = state_dir.join(FILE);
        let failed = |error: &io::Error| HostError::journal_io(&path, error);
        let mut file = open_append(&path).map_err(|error| failed(&error))?;
        sync_directory(&state_dir).map_err(|error| failed(&error))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)
            .map_err(|error| failed(&error))?;
        let (pendings, length_bytes) = record::load(&path, &bytes)?;
        keep_space(&file, length_bytes);
        Ok(Self {
            state_dir,
            path,
            file,
            length_bytes,
            pendings,
            is_torn: length_bytes < bytes.len() as u64,
            lock,
        })
    }

    /// As [`Lock::give_way`].
    pub fn give_way(&mut self) {
        self.lock.give_way();
    }

    /// Whether a journal was ever opened in that directory.
    #[must_use]
    pub fn exists(state_dir: &Path) -> bool {
        // What cannot be looked at may be there: opening it says why.
        !matches!(state_dir.join(FILE).try_exists(), Ok(false))
    }

    /// What there is to undo in that directory, as [`describe`](Self::describe) says it, without
    /// the lock: for looking on while another process, or thread, has it open.
    ///
    /// # Errors
    ///
    /// [`HostError::Journal`], [`HostError::Corrupt`].
    pub fn peek(state_dir: &Path) -> Result<Vec<String>, HostError> {
        let pendings = Self::look(state_dir)?;
        let actions = pendings.list.iter();
        Ok(actions.map(|pending| pending.action.subject()).collect())
    }

    /// The values that knobs which are changed now will have again, also without the lock.
    ///
    /// # Errors
    ///
    /// As [`peek`](Self::peek).
    pub fn originals(state_dir: &Path) -> Result<BTreeMap<Knob, String>, HostError> {
        let pendings = Self::look(state_dir)?.list.into_iter();
        Ok(pendings
            .filter_map(|pending| match pending.action {
                Action::Write { knob, old, .. } => Some((knob, old)),
                _ => None,
            })
            .collect())
    }

    fn look(state_dir: &Path) -> Result<Pendings, HostError> {
        let path = state_dir.join(FILE);
        match fs::read(&path) {
            Ok(bytes) => Ok(record::load(&path, &bytes)?.0),
            Err(error) if is_absence(&error) => Ok(Pendings::default()),
            Err(error) => Err(HostError::journal_io(&path, &error)),
        }
    }

    /// Whether a line can be written to it now: one is, and is taken back.
    ///
    /// # Errors
    ///
    /// [`HostError::Journal`]: nothing could be changed.
    pub fn check_writable(&mut self) -> Result<(), HostError> {
        // Without its end: should this process be killed now, the rest is dropped.
        let text = " ".repeat(CHECK_BYTES);
        let written = self.append_text(&text, true, true);
        let taken_back = self.file.set_len(self.length_bytes);
        self.is_torn = taken_back.is_err();
        keep_space(&self.file, self.length_bytes);
        let failed = |error| HostError::journal_io(&self.path, &error);
        written.and(taken_back).map_err(failed)
    }

    /// Whether there is nothing to undo.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pendings.list.is_empty()
    }

    /// The things to undo in a person's words, oldest first.
    #[must_use]
    pub fn describe(&self) -> Vec<String> {
        self.pendings
            .list
            .iter()
            .map(|pending| pending.action.subject())
            .collect()
    }

    /// The control groups that are to be removed.
    pub fn groups(&self) -> Vec<PathBuf> {
        let pendings = self.pendings.list.iter();
        pendings
            .filter_map(|pending| match &pending.action {
                Action::Group { directory } => Some(directory.clone()),
                _ => None,
            })
            .collect()
    }

    /// Writes a knob: first its old value goes to the journal and to disk, then the knob is written
    /// and read back.
    ///
    /// # Errors
    ///
    /// [`HostError::Journal`] (the knob was not touched); [`HostError::Write`] where the kernel
    /// refuses (unchanged); [`HostError::NotTaken`] where it accepts and ignores the value;
    /// [`HostError::Read`] for a knob that cannot be read, which could not be undone.
    pub fn write(&mut self, roots: &Roots, knob: &Knob, value: &str) -> Result<(), HostError> {
        knob.check()?;
        let (path, at) = (knob.path(roots), knob.reach(roots));
        let refused = |errno| HostError::Write {
            path: path.clone(),
            value: value.to_owned(),
            errno,
        };
        if value.contains('\0') {
            return Err(refused(libc::EINVAL));
        }
        let Some(old) = knob.read(roots)? else {
            return Err(refused(libc::ENOENT));
        };
        self.check_undisturbed(knob, &old)?;
        let backup = self.save_ordinary(knob, &at)?;
        let seq = self.will(Action::Write {
            knob: knob.clone(),
            old: old.clone(),
            new: value.to_owned(),
            backup,
        })?;
        let excluded = match self.will_exclude(roots, knob) {
            Ok(excluded) => excluded,
            Err(error) => {
                let _ = self.append(Record::Refused { of: seq });
                return Err(error);
            }
        };
        if let Err(error) = knob.put(roots, value) {
            // A refusal leaves the knob as it was; where it did not, the entry stays.
            if knob.read(roots)?.as_deref() == Some(old.as_str()) {
                self.append(Record::Refused { of: seq })?;
                if let Some((_, of)) = excluded {
                    self.append(Record::Refused { of })?;
                }
            }
            return Err(HostError::write(&path, value, &error));
        }
        if let Some((other, of)) = excluded {
            let left = other.read(roots)?.unwrap_or_default();
            self.append(Record::Done { of, left })?;
        }
        let found = knob.read(roots)?.unwrap_or_else(|| normalise(value));
        if found == old && !is_taken_as(value, &found) {
            self.append(Record::Refused { of: seq })?;
            return Err(HostError::NotTaken {
                path,
                wanted: value.to_owned(),
                found,
            });
        }
        if let Err(error) = self.append(Record::Done {
            of: seq,
            left: found,
        }) {
            // The space was reserved, so this is a failing disk: go back while we still know how.
            let _ = knob.put(roots, &old);
            return Err(error);
        }
        Ok(())
    }

    /// An error if somebody else has changed a knob since we wrote it: what they wrote is not ours
    /// to overwrite.
    fn check_undisturbed(&self, knob: &Knob, found: &str) -> Result<(), HostError> {
        let pending = self.pendings.list.iter().find(
            |pending| matches!(&pending.action, Action::Write { knob: known, .. } if known == knob),
        );
        let disturbance = pending.and_then(|pending| self.disturbance(pending, knob, found));
        disturbance.map_or(Ok(()), Err)
    }

    /// Announces the loss of the value that writing `knob` takes from another one, if that one is
    /// in force. It comes after the knob's own line, so it is undone before it; that puts the knob
    /// back as well.
    fn will_exclude(
        &mut self,
        roots: &Roots,
        knob: &Knob,
    ) -> Result<Option<(Knob, u64)>, HostError> {
        let Some(other) = knob.excludes() else {
            return Ok(None);
        };
        let Some(old) = other.read(roots)?.filter(|value| value != "0") else {
            return Ok(None);
        };
        let seq = self.will(Action::Write {
            knob: other.clone(),
            old,
            new: "0".to_owned(),
            backup: None,
        })?;
        Ok(Some((other, seq)))
    }

    /// Records a process that was just started, so that [`Journal::restore`] can end it after a
    /// crash. `start_time` is field 22 of `/proc/PID/stat` ([`crate::start_time`]): a later process
    /// with the same pid is left alone.
    ///
    /// # Errors
    ///
    /// [`HostError::Journal`].
    pub fn process(&mut self, pid: u32, start_time: u64) -> Result<(), HostError> {
        let boot_id = crate::process::boot_id(&Roots::default());
        let seq = self.will(Action::Process {
            pid,
            start_time,
            boot_id,
        })?;
        self.done(seq)
    }

    /// Forgets a process that the caller has ended (and reaped) itself.
    ///
    /// # Errors
    ///
    /// [`HostError::Journal`].
    pub fn forget_process(&mut self, pid: u32) -> Result<(), HostError> {
        self.forget(|action| matches!(action, Action::Process { pid: other, .. } if *other == pid))
    }

    /// Forgets the settings of a control group that is gone: they went with it, and a group of that
    /// name that comes later is another one.
    ///
    /// # Errors
    ///
    /// [`HostError::Journal`].
    pub fn forget_group(&mut self, gone: &str) -> Result<(), HostError> {
        self.forget(|action| {
            matches!(action, Action::Write { knob: Knob::Cgroup { group, .. }, .. } if group == gone)
        })
    }

    /// Forgets what is to be undone of these knobs, so that their present values stay.
    ///
    /// # Errors
    ///
    /// [`HostError::Journal`]: then nothing is forgotten.
    pub fn promote(&mut self, knobs: &[Knob]) -> Result<(), HostError> {
        self.forget(|action| matches!(action, Action::Write { knob, .. } if knobs.contains(knob)))
    }

    fn forget(&mut self, is_forgotten: impl Fn(&Action) -> bool) -> Result<(), HostError> {
        let mut kept = self.pendings.clone();
        kept.list.retain(|pending| !is_forgotten(&pending.action));
        if kept.list.len() == self.pendings.list.len() {
            return Ok(());
        }
        self.rewrite(kept)
    }

    /// The value that a knob had before it was first written, if it is to be undone.
    #[must_use]
    pub fn original(&self, knob: &Knob) -> Option<&str> {
        let pendings = self.pendings.list.iter();
        pendings
            .filter_map(|pending| match &pending.action {
                Action::Write {
                    knob: known, old, ..
                } if known == knob => Some(old.as_str()),
                _ => None,
            })
            .next()
    }

    /// Announces an act: on return its line is on disk.
    fn will(&mut self, action: Action) -> Result<u64, HostError> {
        if self.length_bytes > COMPACT_ABOVE_BYTES {
            self.rewrite(self.pendings.clone())?;
        }
        self.append(Record::Will { action })
    }

    /// What was announced with this number is done. It has no value that could be compared later.
    fn done(&mut self, seq: u64) -> Result<(), HostError> {
        let left = String::new();
        self.append(Record::Done { of: seq, left }).map(drop)
    }

    /// Whether a line has to be on disk before the act. A later write of a group's file or egress
    /// need not: how to undo it is on disk since the first one, and a power cut takes the group
    /// along. A controller writes such files many times a minute.
    fn is_to_be_synced(&self, record: &Record) -> bool {
        let Record::Will { action } = record else {
            return false;
        };
        let is_group_file = matches!(
            action,
            Action::Write {
                knob: Knob::Cgroup { .. } | Knob::Egress { .. },
                ..
            }
        );
        let is_known = || {
            let mut pendings = self.pendings.list.iter();
            pendings.any(|pending| pending.action.is_same_subject(action))
        };
        !(is_group_file && is_known())
    }

    /// Appends a line. One that announces an act is synced; one that follows an act need not be:
    /// after a `kill -9` the kernel still has it, and after a power cut the act counts as under
    /// way.
    fn append(&mut self, record: Record) -> Result<u64, HostError> {
        if self.is_torn {
            self.file
                .set_len(self.length_bytes)
                .map_err(|error| HostError::journal_io(&self.path, &error))?;
            self.is_torn = false;
        }
        let is_announcement = matches!(record, Record::Will { .. });
        let is_synced = self.is_to_be_synced(&record);
        let seq = self.pendings.last_seq + 1;
        let line = Line {
            seq,
            time: jiff::Timestamp::now().to_string(),
            record,
        };
        let mut text = serde_json::to_string(&line)
            .map_err(|error| HostError::journal_io(&self.path, &error.into()))?;
        text.push('\n');
        if let Err(error) = self.append_text(&text, is_announcement, is_synced) {
            self.is_torn = self.file.set_len(self.length_bytes).is_err();
            return Err(HostError::journal_io(&self.path, &error));
        }
        self.length_bytes += text.len() as u64;
        self.pendings.apply(&line);
        Ok(seq)
    }

    fn append_text(
        &mut self,
        text: &str,
        is_announcement: bool,
        is_synced: bool,
    ) -> io::Result<()> {
        if is_announcement {
            let wanted_bytes = 2 * text.len() as u64 + RESERVE_BYTES;
            match fallocate(
                &self.file,
                FallocateFlags::KEEP_SIZE,
                self.length_bytes,
                wanted_bytes,
            ) {
                // A file system that cannot reserve (EOPNOTSUPP) reports a full disk at the write.
                Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        self.file.write_all(text.as_bytes())?;
        if is_synced {
            self.file.sync_data()
        } else {
            Ok(())
        }
    }

    /// Replaces the journal by the shortest one that has `pendings`; an empty one also drops the
    /// saved files.
    fn rewrite(&mut self, pendings: Pendings) -> Result<(), HostError> {
        let failed = |error: &io::Error| HostError::journal_io(&self.path, error);
        let mut text = String::new();
        for line in pendings.lines() {
            text += &serde_json::to_string(&line).map_err(|error| failed(&error.into()))?;
            text.push('\n');
        }
        if text.is_empty() {
            self.file
                .set_len(0)
                .and_then(|()| self.file.sync_data())
                .map_err(|error| failed(&error))?;
            keep_space(&self.file, 0);
            match fs::remove_dir_all(self.state_dir.join("files")) {
                Ok(()) => {}
                Err(error) if is_absence(&error) => {}
                Err(error) => return Err(failed(&error)),
            }
        } else {
            replace_synced(&self.path, text.as_bytes())?;
            self.file = open_append(&self.path).map_err(|error| failed(&error))?;
            keep_space(&self.file, text.len() as u64);
        }
        self.length_bytes = text.len() as u64;
        self.is_torn = false;
        self.pendings = pendings;
        Ok(())
    }
}

/// Reserves space behind the end of the journal, as far as the disk has it.
fn keep_space(file: &File, length_bytes: u64) {
    let _ = fallocate(file, FallocateFlags::KEEP_SIZE, length_bytes, KEPT_BYTES);
}

fn open_append(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
}

#[cfg(test)]
mod tests;
