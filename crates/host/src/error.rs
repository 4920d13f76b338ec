//! The one error type of this crate. Every variant carries what a person needs to find the place
//! (path, pid, errno, key), and its message says what to do next. The message knows nothing of who
//! asked: what an experiment can do besides, `experiment-spec` says.

use std::io;
use std::path::{Path, PathBuf};

/// What can go wrong between Slackline and the kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// A file that should be readable is not.
    #[error("cannot read {}: {}{}", path.display(), describe(*errno), advice(*errno))]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error number.
        errno: i32,
    },
    /// A knob without a value, such as `vm.compact_memory`.
    #[error(
        "{} is write-only: its value cannot be read, so a change could not be undone",
        path.display()
    )]
    WriteOnly {
        /// The file.
        path: PathBuf,
    },
    /// A value that only the kernel changes.
    #[error("{} is read-only{}: no value can be written to it", path.display(), read_only_because(*is_mount))]
    ReadOnly {
        /// The file.
        path: PathBuf,
        /// Its file system is mounted read-only, not the file.
        is_mount: bool,
    },
    /// Threads have no slice of their own on this kernel.
    #[error(
        "thread {tid} has no slice of its own: that needs Linux 6.12, and a thread of policy other, batch or idle"
    )]
    NoSlice {
        /// The thread.
        tid: u32,
    },
    /// A file of debugfs that the kernel's lockdown closes.
    #[error(
        "{} is closed by the kernel's lockdown, to root as well (kernel_lockdown(7)): start the kernel with lockdown=none",
        path.display()
    )]
    LockedDown {
        /// The file.
        path: PathBuf,
    },
    /// The kernel, or the file system, refused a write. The knob is unchanged.
    #[error("cannot write \"{value}\" to {}: {}{}", path.display(), describe(*errno), advice(*errno))]
    Write {
        /// The file.
        path: PathBuf,
        /// The value that was refused.
        value: String,
        /// The kernel's error number.
        errno: i32,
    },
    /// The write was accepted, and the knob still reads as before.
    #[error(
        "{} accepted \"{wanted}\" and still reads \"{found}\": the kernel ignores or rounds away this value; choose one it can hold",
        path.display()
    )]
    NotTaken {
        /// The file.
        path: PathBuf,
        /// The value that was written.
        wanted: String,
        /// The value read back.
        found: String,
    },
    /// Somebody else changed the knob, or the file, after us.
    #[error("{knob} was changed by someone else, from {left} to {found}, and is left as found")]
    Disturbed {
        /// The knob as a person names it.
        knob: String,
        /// What we had left there.
        left: String,
        /// What is there now.
        found: String,
    },
    /// A file of which replacing would lose something.
    #[error("{} cannot be replaced: {why}", path.display())]
    Irreplaceable {
        /// The file.
        path: PathBuf,
        /// Why, and what to do.
        why: &'static str,
    },
    /// The file that is to take another one's place cannot be given its extended attribute.
    #[error(
        "{} is not replaced, as its extended attribute {name} would be lost: {}{}",
        path.display(), describe(*errno), advice(*errno)
    )]
    Attribute {
        /// The file.
        path: PathBuf,
        /// The attribute, e.g. `system.posix_acl_access`.
        name: String,
        /// The kernel's error number.
        errno: i32,
    },
    /// The knob does not exist on this host.
    #[error("{knob} does not exist here ({}): this kernel lacks it, or its name is misspelt", path.display())]
    Absent {
        /// The knob as a person names it.
        knob: String,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The name of a knob or group would lead out of its tree.
    #[error("\"{name}\" is not a valid name: {why}")]
    InvalidName {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Another Slackline holds the lock of this host.
    #[error("{}", held(path, *pid, command, started))]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The holder's process id (0 where the holder has not written it yet).
        pid: u32,
        /// The holder's command line.
        command: String,
        /// When the holder took the lock.
        started: String,
    },
    /// The undo journal, or another record that has to be on disk before a change, cannot be
    /// written.
    #[error("{} cannot be written: {}{}; nothing is changed without a record of it", path.display(), describe(*errno), journal_advice(*errno))]
    Journal {
        /// The journal or a file beside it.
        path: PathBuf,
        /// The kernel's error number.
        errno: i32,
    },
    /// A line of the journal that was once complete is no longer readable.
    #[error(
        "{} line {line} is damaged ({why}): repair or remove that line by hand, then run slackline restore again; the other lines still say what to undo",
        path.display()
    )]
    Corrupt {
        /// The journal.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What the parser says.
        why: String,
    },
    /// A kernel file does not have the expected form.
    #[error("{}: {key}: {why}; this kernel formats the file in a way Slackline does not know, please report it", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The key or field.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// A value that the kernel would refuse.
    #[error("{actuator} cannot be set to {wanted}: {why}")]
    Unfit {
        /// The actuator's name.
        actuator: &'static str,
        /// The value.
        wanted: String,
        /// What the kernel takes.
        why: String,
    },
    /// The process is gone.
    #[error("process {pid} does not exist (any more): it ended, or the pid is wrong")]
    NoSuchProcess {
        /// The process.
        pid: u32,
    },
    /// A cgroup controller is not available.
    #[error(
        "the cgroup controller \"{controller}\" is mounted neither as v1 nor as v2: mount it, or start the kernel with it (slackline doctor says what this host has)"
    )]
    NoController {
        /// The controller, e.g. `cpu`.
        controller: String,
    },
    /// A group of v2 whose parent keeps the cpu controller to itself
    /// (Documentation/admin-guide/cgroup-v2.rst, "Enabling and Disabling").
    #[error(
        "{group} cannot have a limit of its own, because the group above it does not pass the cpu controller on: run echo +cpu > {}, or for a systemd unit: systemctl set-property UNIT CPUQuota=",
        path.display()
    )]
    NotPassedOn {
        /// The group.
        group: String,
        /// What the group above it passes on.
        path: PathBuf,
    },
    /// A list of CPUs that is not one.
    #[error("\"{text}\" is not a list of CPUs: write it like 0-3,5, with numbers below 1024")]
    CpuList {
        /// The text.
        text: String,
    },
    /// The kernel refused a CPU affinity.
    #[error("cannot pin pid {pid} to CPUs {cpus:?}: {}; are they online and in its cpuset?", describe(*errno))]
    Affinity {
        /// The process or thread (0 = the calling one).
        pid: u32,
        /// The wanted CPUs.
        cpus: Vec<usize>,
        /// The kernel's error number.
        errno: i32,
    },
    /// The JVM's performance data is missing or malformed.
    #[error("JVM performance data of pid {pid} ({}): {why}", path.display())]
    HsPerf {
        /// The JVM.
        pid: u32,
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
}

impl HostError {
    /// A failed read of `path`.
    #[must_use]
    pub fn read(path: &Path, error: &io::Error) -> Self {
        Self::Read {
            path: path.to_owned(),
            errno: errno_of(error),
        }
    }

    /// A failed write of `value` to `path`.
    #[must_use]
    pub fn write(path: &Path, value: &str, error: &io::Error) -> Self {
        Self::Write {
            path: path.to_owned(),
            value: value.to_owned(),
            errno: errno_of(error),
        }
    }

    /// A failed write of the undo journal, or of another file that must be on disk before a change.
    #[must_use]
    pub fn journal_io(path: &Path, error: &io::Error) -> Self {
        Self::Journal {
            path: path.to_owned(),
            errno: errno_of(error),
        }
    }

    pub(crate) fn parse(path: &Path, key: &str, why: impl Into<String>) -> Self {
        Self::Parse {
            path: path.to_owned(),
            key: key.to_owned(),
            why: why.into(),
        }
    }

    /// The kernel's error number, where there is one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Read { errno, .. }
            | Self::Write { errno, .. }
            | Self::Journal { errno, .. }
            | Self::Attribute { errno, .. }
            | Self::Affinity { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// Whether a privilege or a kernel feature is missing (exit code 3), rather than the input
    /// being wrong.
    #[must_use]
    pub fn is_missing_privilege(&self) -> bool {
        matches!(
            self,
            Self::NoController { .. } | Self::NotPassedOn { .. } | Self::LockedDown { .. }
        ) || matches!(self.errno(), Some(libc::EACCES | libc::EPERM | libc::EROFS))
    }
}

/// The error number of an I/O error; errors that std makes up itself count as EIO.
pub(crate) fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Absence that is no error: no such file, or its device, group or process has just gone.
pub(crate) fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ENODEV | libc::ESRCH | libc::ENXIO | libc::ENOTDIR)
    )
}

/// Who has the host, and what to do. One in another pid namespace that has only just taken the lock
/// is not known.
fn held(path: &std::path::Path, pid: u32, command: &str, started: &str) -> String {
    let path = path.display();
    if pid == 0 {
        return format!(
            "another process holds {path}, and the kernel does not say which one: it may be in another container; try again in a few \
             seconds"
        );
    }
    if pid == std::process::id() {
        return format!(
            "this server (pid {pid}) has held {path} since {started}, for another command; try again in a few seconds"
        );
    }
    // A server lets go of the host when it measures nothing.
    if command.split_whitespace().any(|word| word == "serve") {
        return format!(
            "`slackline serve` (pid {pid}, since {started}) is measuring on this host and holds {path}. Pause its queue with \
             `slackline experiments pause-queue`, and pause a continuous experiment that watches a promotion. Wait for the end of the \
             evaluation, and try again"
        );
    }
    format!(
        "another slackline is at work on this host: pid {pid} ({command}), since {started}, holds {path}; wait for it, or stop it with: \
         kill -INT {pid}"
    )
}

pub(crate) fn describe(errno: i32) -> String {
    io::Error::from_raw_os_error(errno).to_string()
}

fn read_only_because(is_mount: bool) -> &'static str {
    match is_mount {
        true => " (its file system is mounted so, as in a container)",
        false => "",
    }
}

fn journal_advice(errno: i32) -> &'static str {
    match errno {
        libc::ENOSPC | libc::EDQUOT => "; free space there, or choose another --state-dir",
        libc::EACCES | libc::EPERM => "; run as root, or choose another --state-dir",
        libc::EROFS => {
            "; it is read-only there: mount it for writing, or choose another --state-dir"
        }
        _ => advice(errno),
    }
}

fn advice(errno: i32) -> &'static str {
    match errno {
        libc::EACCES | libc::EPERM => "; run as root, or give the process the capability",
        libc::EROFS => "; the file is read-only here (a container?): run on the host itself",
        libc::EINVAL | libc::ERANGE => {
            "; the kernel does not take this value here: choose another one"
        }
        libc::ENOENT | libc::ENODEV => "; it does not exist on this host",
        libc::EBUSY => "; it is in use: stop what uses it and try again",
        libc::EMFILE => {
            "; raise the limit on open files (`ulimit -n`, or `LimitNOFILE=` in the systemd unit)"
        }
        libc::ENFILE => "; raise the host's limit on open files (sysctl fs.file-max)",
        libc::ENOSPC => "; no space is left (or, for a cpuset: its cpus and mems are not set)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_path_value_reason_and_remedy() {
        let error = HostError::Write {
            path: "/proc/sys/vm/swappiness".into(),
            value: "999".into(),
            errno: libc::EINVAL,
        };
        assert_eq!(
            error.to_string(),
            "cannot write \"999\" to /proc/sys/vm/swappiness: Invalid argument (os error 22); \
             the kernel does not take this value here: choose another one"
        );
        assert!(!error.is_missing_privilege());
        // Many an experiment needs no root but for this.
        let error = HostError::Journal {
            path: "/var/lib/slackline/lock".into(),
            errno: libc::EACCES,
        };
        assert_eq!(
            error.to_string(),
            "/var/lib/slackline/lock cannot be written: Permission denied (os error 13); \
             run as root, or choose another --state-dir; nothing is changed without a record of it"
        );
        let error = HostError::Journal {
            path: "/var/lib/slackline/lock".into(),
            errno: libc::EROFS,
        };
        assert_eq!(
            error.to_string(),
            "/var/lib/slackline/lock cannot be written: Read-only file system (os error 30); \
             it is read-only there: mount it for writing, or choose another --state-dir; nothing is changed without a record of it"
        );
        let error = HostError::read(Path::new("/x"), &io::Error::from_raw_os_error(libc::EACCES));
        assert!(error.is_missing_privilege());
        assert_eq!(error.errno(), Some(libc::EACCES));
    }
}
