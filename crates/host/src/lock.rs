//! The host-wide lock: `flock` on `STATE_DIR/lock`. The kernel releases it when its holder ends,
//! however it ends. A second Slackline is told who holds it: by the kernel (`/proc/locks`), and by
//! the file's content, which a full disk may keep from being written.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::error::HostError;
use crate::process::{is_running, start_time};
use crate::roots::Roots;

#[derive(Debug, Serialize, Deserialize)]
struct Holder {
    pid: u32,
    command: String,
    started: String,
    /// It may be ended by a signal for something more urgent.
    #[serde(default)]
    gives_way: bool,
}

/// How long to wait for a lock whose holder has just ended: a process that was killed between fork
/// and exec leaves a child that holds it until its exec closes the file.
const DEAD_HOLDER_WAIT: Duration = Duration::from_secs(2);
const DEAD_HOLDER_POLL: Duration = Duration::from_millis(10);

impl Holder {
    fn read(file: &mut File) -> Self {
        let mut text = String::new();
        let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
        let written = read
            .ok()
            .and_then(|_| serde_json::from_str::<Self>(&text).ok());
        let by_kernel = lock_holder(file);
        let is_it = |it: &Self| by_kernel.is_none_or(|pid| it.pid == pid);
        written.filter(is_it).unwrap_or_else(|| Self {
            pid: by_kernel.unwrap_or(0),
            command: by_kernel.and_then(command_of).unwrap_or_default(),
            started: taken(file).unwrap_or_else(|| "just now".to_owned()),
            gives_way: false,
        })
    }

    /// Best effort: with a full disk the lock still holds, only its holder is not named.
    fn write(&self, file: &mut File) {
        let text = serde_json::to_string(self).unwrap_or_default();
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(text.as_bytes()));
    }

    fn locks(self, path: PathBuf) -> HostError {
        HostError::Locked {
            path,
            pid: self.pid,
            command: self.command,
            started: self.started,
        }
    }

    /// Pid 0 is one that has the lock, has not said who it is yet, and is not of these processes.
    fn is_alive(&self) -> bool {
        let roots = Roots::default();
        self.pid == 0
            || start_time(&roots, self.pid)
                .is_ok_and(|started| is_running(&roots, self.pid, started))
    }
}

/// The process that holds `flock` on a file, by the kernel's list (proc(5), `/proc/locks`); `None`
/// where the list does not name it, as in another pid namespace.
#[must_use]
pub fn lock_holder(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let (device, inode) = (metadata.dev(), metadata.ino());
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let place = format!("{major:02x}:{minor:02x}:{inode}");
    let list = fs::read_to_string("/proc/locks").ok()?;
    let mut held = list.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [_, "FLOCK", _, _, pid, at, ..] if *at == place => pid.parse().ok(),
            _ => None,
        }
    });
    held.next().filter(|pid| *pid > 0)
}

/// The command line of a process, without what may be a password.
fn command_of(pid: u32) -> Option<String> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = String::from_utf8_lossy(&words).into_owned();
    let words = words.split_terminator('\0').map(without_login);
    Some(words.collect::<Vec<_>>().join(" "))
}

/// When a lock was taken: its holder empties the file then.
fn taken(file: &File) -> Option<String> {
    let at = file.metadata().ok()?.modified().ok()?;
    Some(jiff::Timestamp::try_from(at).ok()?.to_string())
}

/// A held lock; dropping it releases it. [`crate::Journal`] takes the host's.
#[derive(Debug)]
pub struct Lock {
    file: File,
    holder: Holder,
}

impl Lock {
    /// Takes the lock of an existing directory.
    ///
    /// # Errors
    ///
    /// [`HostError::Locked`] names the holder; [`HostError::Journal`] where the directory cannot be
    /// used.
    pub fn take(state_dir: &Path) -> Result<Self, HostError> {
        let path = state_dir.join("lock");
        let failed = |error: &std::io::Error| HostError::journal_io(&path, error);
        // std opens with O_CLOEXEC, so a service that Slackline starts does not hold the lock after
        // its end.
        let mut file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|error| failed(&error))?;
        // One of an earlier version could be read by others. Where it is another user's, its owner
        // decides.
        let _ = file.set_permissions(fs::Permissions::from_mode(0o600));
        let give_up = Instant::now() + DEAD_HOLDER_WAIT;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(failed(&errno.into())),
            }
            let holder = Holder::read(&mut file);
            if holder.is_alive() || Instant::now() > give_up {
                return Err(holder.locks(path));
            }
            std::thread::sleep(DEAD_HOLDER_POLL);
        }
        let holder = Holder {
            pid: std::process::id(),
            command: std::env::args_os()
                .map(|word| without_login(&word.to_string_lossy()))
                .collect::<Vec<_>>()
                .join(" "),
            started: jiff::Timestamp::now().to_string(),
            gives_way: false,
        };
        holder.write(&mut file);
        Ok(Self { file, holder })
    }

    /// Says that this process may be ended by SIGTERM for something more urgent: it puts everything
    /// back then, and releases the lock.
    pub fn give_way(&mut self) {
        self.holder.gives_way = true;
        self.holder.write(&mut self.file);
    }

    /// Who holds the lock of a directory now, as the [`HostError::Locked`] that
    /// [`take`](Self::take) would return, without taking the lock. `None` where nobody holds it, or
    /// where it cannot be looked at.
    #[must_use]
    pub fn holder(state_dir: &Path) -> Option<HostError> {
        let path = state_dir.join("lock");
        let mut file = File::open(&path).ok()?;
        // A shared lock changes nothing for its holder, and ends with the file.
        let is_free = flock(&file, FlockOperation::NonBlockingLockShared).is_ok();
        let holder = (!is_free).then(|| Holder::read(&mut file));
        holder.filter(Holder::is_alive).map(|it| it.locks(path))
    }
}

/// A process that holds a lock and gives way ([`Lock::give_way`]).
#[derive(Debug)]
pub struct GivesWay {
    holder: Holder,
    process: OwnedFd,
}

impl GivesWay {
    /// The holder of a directory's lock, if it gives way. `None` also for a process of another pid
    /// namespace.
    #[must_use]
    pub fn holder(state_dir: &Path) -> Option<Self> {
        let mut file = File::open(state_dir.join("lock")).ok()?;
        let pid = lock_holder(&file)?;
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        let process = pidfd_open(raw, PidfdFlags::empty()).ok()?;
        // The holder has the pid still, so the descriptor is of no later process with that pid.
        let holder = Holder::read(&mut file);
        let is_it = holder.gives_way && lock_holder(&file) == Some(pid);
        is_it.then_some(Self { holder, process })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.holder.pid
    }

    /// Asks it to put everything back and to end, by SIGTERM. It takes a while.
    ///
    /// # Errors
    /// It is another user's (EPERM), or has ended (ESRCH).
    pub fn end(&self) -> std::io::Result<()> {
        Ok(pidfd_send_signal(&self.process, Signal::TERM)?)
    }
}

impl std::fmt::Display for GivesWay {
    /// Its command, and its process id.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` (pid {})", self.holder.command, self.holder.pid)
    }
}

/// A word of a command without what may be a password: the login and the query of an address.
/// Refusals quote the word.
fn without_login(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else {
        return word.to_owned();
    };
    let place = rest.split('?').next().unwrap_or_default();
    match place.rsplit_once('@') {
        Some((_, place)) => format!("{scheme}://…@{place}"),
        None => format!("{scheme}://{place}"),
    }
}

impl Drop for Lock {
    /// At once: a process that is being started between its fork and its exec has this file open as
    /// well (flock(2)).
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_named_without_a_password() {
        for (word, named) in [
            (
                "--store=postgresql://me:s3cr3t@h:5/d",
                "--store=postgresql://…@h:5/d",
            ),
            ("postgresql://h/d?password=s3cr3t", "postgresql://h/d"),
            ("serve", "serve"),
        ] {
            assert_eq!(without_login(word), named);
        }
    }

    #[test]
    fn a_holder_that_could_not_write_its_name_is_named_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::take(dir.path()).unwrap();
        // As on a full disk, and as an earlier holder has left it.
        for written in ["", r#"{"pid":1,"command":"init","started":"long ago"}"#] {
            fs::write(dir.path().join("lock"), written).unwrap();
            let Err(HostError::Locked { pid, command, .. }) = Lock::take(dir.path()) else {
                panic!("taken twice");
            };
            assert_eq!(pid, std::process::id(), "{written}");
            let own = std::env::args().next().unwrap();
            assert!(command.starts_with(&own), "{command}");
        }
        drop(lock);
    }

    #[test]
    fn only_a_holder_that_gives_way_is_named_as_one() {
        let dir = tempfile::tempdir().unwrap();
        assert!(GivesWay::holder(dir.path()).is_none(), "nobody");
        let mut lock = Lock::take(dir.path()).unwrap();
        assert!(GivesWay::holder(dir.path()).is_none(), "it does not");
        lock.give_way();
        let holder = GivesWay::holder(dir.path()).unwrap();
        assert_eq!(holder.pid(), std::process::id());
        drop(lock);
        assert!(GivesWay::holder(dir.path()).is_none(), "it did");
        // The next holder does not, whatever the file says of the one before it.
        let _lock = Lock::take(dir.path()).unwrap();
        assert!(GivesWay::holder(dir.path()).is_none(), "the next one");
        let of_other = r#"{"pid":1,"command":"init","started":"","gives_way":true}"#;
        fs::write(dir.path().join("lock"), of_other).unwrap();
        assert!(GivesWay::holder(dir.path()).is_none(), "another one");
    }

    #[test]
    fn a_dropped_lock_is_free_though_a_child_that_is_being_started_has_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::take(dir.path()).unwrap();
        let of_child = lock.file.try_clone().unwrap();
        assert!(matches!(
            Lock::take(dir.path()),
            Err(HostError::Locked { .. })
        ));
        assert!(matches!(
            Lock::holder(dir.path()),
            Some(HostError::Locked { pid, .. }) if pid == std::process::id()
        ));
        drop(lock);
        assert!(Lock::holder(dir.path()).is_none());
        Lock::take(dir.path()).unwrap();
        drop(of_child);
    }
}
