//! The processes of a control group that Slackline made and filled. They are ended as a whole:
//! whatever a command leaves in its group, daemons among them, ends with it.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::cgroup::existing_directories;
use crate::cgroup_tree::processes_in;
use crate::error::HostError;
use crate::process::{End, KILL_WAIT, ancestors, lives, wait_until};
use crate::roots::{Roots, write_text};

/// So many processes are signalled at a time: each takes a file descriptor.
const CHUNK: usize = 256;
/// How long killed processes are waited for before what has been forked meanwhile is killed, too.
const KILL_AGAIN: Duration = Duration::from_millis(100);

/// The processes of a control group and of those below it, in all hierarchies. This process and
/// those that started it do not count: they are never ended.
#[derive(Clone, Debug)]
pub struct GroupMembers {
    roots: Roots,
    directories: Vec<PathBuf>,
    ours: BTreeSet<u32>,
}

impl GroupMembers {
    /// Those of a group, which need not exist.
    #[must_use]
    pub fn of(roots: &Roots, group: &str) -> Self {
        let own = std::process::id();
        let started_us = ancestors(roots, own).into_iter().map(|(pid, _)| pid);
        Self {
            roots: roots.clone(),
            directories: existing_directories(roots, group),
            ours: started_us.chain([own]).collect(),
        }
    }

    /// Their pids now.
    ///
    /// # Errors
    ///
    /// [`HostError::Read`].
    pub fn pids(&self) -> Result<BTreeSet<u32>, HostError> {
        let mut found = BTreeSet::new();
        for directory in &self.directories {
            found.extend(processes_in(directory)?);
        }
        found.retain(|pid| !self.ours.contains(pid) && lives(&self.roots, *pid));
        Ok(found)
    }

    /// Asks all to end, by SIGTERM.
    ///
    /// # Errors
    ///
    /// The kernel's error number: EPERM, or that of reading the group.
    pub fn terminate(&self) -> Result<(), i32> {
        self.signal(Signal::TERM)
    }

    /// Kills all. What they fork meanwhile may be left on hosts without `cgroup.kill` (Linux 5.14,
    /// v2).
    ///
    /// # Errors
    ///
    /// As [`terminate`](Self::terminate).
    pub fn kill(&self) -> Result<(), i32> {
        if !self.roots.is_real() {
            return Ok(());
        }
        for directory in &self.directories {
            // Documentation/admin-guide/cgroup-v2.rst: it kills those of the groups below as well.
            let file = directory.join("cgroup.kill");
            if file.exists() && !self.holds_us(directory) {
                let _ = write_text(&file, "1");
            }
        }
        self.signal(Signal::KILL)
    }

    /// Ends all: SIGTERM, and after `grace` SIGKILL until none is left.
    ///
    /// # Errors
    ///
    /// As [`terminate`](Self::terminate), or ETIMEDOUT where a process stays even after SIGKILL.
    pub fn end(&self, grace: Duration) -> Result<End, i32> {
        if !self.roots.is_real() || self.pids().map_err(errno)?.is_empty() {
            return Ok(End::WasGone);
        }
        self.terminate()?;
        self.kill_after(grace)?;
        Ok(End::Ended)
    }

    /// As [`end`](Self::end), of processes that have been asked to end.
    pub(crate) fn kill_after(&self, grace: Duration) -> Result<(), i32> {
        if !self.roots.is_real() || wait_until(grace, || self.is_empty()) {
            return Ok(());
        }
        let give_up = Instant::now() + KILL_WAIT;
        while Instant::now() < give_up {
            self.kill()?;
            if wait_until(KILL_AGAIN, || self.is_empty()) {
                return Ok(());
            }
        }
        Err(libc::ETIMEDOUT)
    }

    fn is_empty(&self) -> bool {
        self.pids().is_ok_and(|pids| pids.is_empty())
    }

    /// Whether a group has a process of ours: it must not be killed as a whole.
    fn holds_us(&self, directory: &Path) -> bool {
        match processes_in(directory) {
            Ok(pids) => pids.iter().any(|pid| self.ours.contains(pid)),
            Err(_) => true,
        }
    }

    fn signal(&self, signal: Signal) -> Result<(), i32> {
        if !self.roots.is_real() {
            return Ok(());
        }
        let listed: Vec<u32> = self.pids().map_err(errno)?.into_iter().collect();
        let mut sent = Ok(());
        for pids in listed.chunks(CHUNK) {
            let open: Vec<(u32, OwnedFd)> = pids
                .iter()
                .filter_map(|pid| Some((*pid, opened(*pid)?)))
                .collect();
            // A descriptor stays with its process. Where that is a later one with the same pid, it
            // is not in the group.
            let still = self.pids().map_err(errno)?;
            for (_, process) in open.iter().filter(|(pid, _)| still.contains(pid)) {
                match pidfd_send_signal(process, signal) {
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(errno) => sent = Err(errno.raw_os_error()),
                }
            }
        }
        sent
    }
}

/// `None` where it has ended.
fn opened(pid: u32) -> Option<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn errno(error: HostError) -> i32 {
    error.errno().unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::tests::fake;

    #[test]
    fn members_are_of_all_hierarchies_without_the_dead_and_without_us() {
        let own = std::process::id();
        let stat = |pid: u32, state: char| {
            let text =
                format!("{pid} (x) {state} 1 0 0 0 -1 0 1 2 3 4 11 12 13 14 20 0 5 0 777 1 1");
            (format!("proc/{pid}/stat"), text)
        };
        let all = [stat(7, 'S'), stat(8, 'Z'), stat(9, 'R'), stat(own, 'R')];
        let mut files: Vec<(&str, &str)> = all
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
            .collect();
        let listed = format!("7\n8\n{own}\n");
        files.extend([
            ("sys/fs/cgroup/cpu/a/cgroup.procs", listed.as_str()),
            ("sys/fs/cgroup/freezer/a/b/cgroup.procs", "9\n10\n"),
            ("sys/fs/cgroup/freezer/other/cgroup.procs", "11\n"),
        ]);
        let (_dir, roots) = fake(&files);
        let members = GroupMembers::of(&roots, "/a/");
        assert_eq!(members.pids().unwrap(), [7, 9].into());
        // Pids of a fake tree are nobody's.
        assert_eq!(members.end(Duration::ZERO), Ok(End::WasGone));
        let none = GroupMembers::of(&roots, "gone");
        assert!(none.pids().unwrap().is_empty());
    }
}
