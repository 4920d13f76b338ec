//! One process: what `/proc/PID/stat` says, whether it is still the same process, and ending it.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::HostError;
use crate::roots::{Roots, read_text};

/// How often a process that should end is looked at.
const END_POLL: Duration = Duration::from_millis(20);

/// How long a killed process is given to disappear; one in an uninterruptible sleep takes longer.
pub(crate) const KILL_WAIT: Duration = Duration::from_secs(5);

/// How long a process is given between SIGTERM and SIGKILL (as long as `docker stop` gives).
pub const END_GRACE: Duration = Duration::from_secs(10);

/// The fields of `/proc/PID/stat` that Slackline uses (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) state: char,
    pub(crate) parent: u32,
    /// User and system time of all its threads, living and ended, in clock ticks.
    pub(crate) user_ticks: u64,
    pub(crate) system_ticks: u64,
    /// The same of the children it has waited for, and of theirs.
    pub(crate) children_user_ticks: u64,
    pub(crate) children_system_ticks: u64,
    pub(crate) threads: u64,
    /// Clock ticks between boot and its start.
    pub(crate) start_time: u64,
}

impl Stat {
    /// `Ok(None)` where the process does not exist.
    pub(crate) fn read(roots: &Roots, pid: u32) -> Result<Option<Self>, HostError> {
        let path = roots.proc(format!("{pid}/stat"));
        read_text(&path)?
            .map(|text| Self::parse(&path, &text))
            .transpose()
    }

    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, HostError> {
        let (_, fields) = name_and_fields(path, text)?;
        // The first field after the name is number 3.
        let number = |field: usize| {
            let text = fields.get(field - 3).copied().unwrap_or_default();
            // Times of children can be printed negative by old kernels; such a value counts as 0.
            text.parse::<i128>()
                .ok()
                .map(|value| u64::try_from(value).unwrap_or(0))
                .ok_or_else(|| {
                    HostError::parse(
                        path,
                        &format!("field {field}"),
                        format!("\"{text}\" is no number"),
                    )
                })
        };
        Ok(Self {
            state: fields
                .first()
                .and_then(|word| word.chars().next())
                .unwrap_or('?'),
            parent: u32::try_from(number(4)?).unwrap_or(0),
            user_ticks: number(14)?,
            system_ticks: number(15)?,
            children_user_ticks: number(16)?,
            children_system_ticks: number(17)?,
            threads: number(20)?,
            start_time: number(22)?,
        })
    }
}

/// The command's name and what stands behind it, field number 3 first.
fn name_and_fields<'a>(path: &Path, text: &'a str) -> Result<(&'a str, Vec<&'a str>), HostError> {
    // The name, in parentheses, may itself hold blanks and parentheses.
    let (before, rest) = text
        .rsplit_once(')')
        .ok_or_else(|| HostError::parse(path, "comm", "there is no closing parenthesis"))?;
    let (_, name) = before.split_once('(').unwrap_or_default();
    Ok((name, rest.split_whitespace().collect()))
}

/// Whether a thread is a worker of io_uring: a thread of the process by name, which runs in the
/// kernel alone (`create_io_thread` in kernel/fork.c). False where it is gone.
#[must_use]
pub fn is_io_worker(roots: &Roots, pid: u32, thread: u32) -> bool {
    const PF_IO_WORKER: u32 = 0x10;
    let path = roots.proc(format!("{pid}/task/{thread}/stat"));
    let Ok(Some(text)) = read_text(&path) else {
        return false;
    };
    let Ok((name, fields)) = name_and_fields(&path, &text) else {
        return false;
    };
    // Before Linux 5.12 the flag said something else, and there were no such threads.
    name.starts_with("iou-") && flags_in(&fields) & PF_IO_WORKER != 0
}

/// Field 9 (include/linux/sched.h, `PF_*`).
fn flags_in(fields: &[&str]) -> u32 {
    let flags = fields.get(9 - 3).and_then(|flags| flags.parse().ok());
    flags.unwrap_or(0)
}

/// Whether a process is a thread of the kernel. False where it is gone.
#[must_use]
pub fn is_kernel_thread(roots: &Roots, pid: u32) -> bool {
    const PF_KTHREAD: u32 = 0x0020_0000;
    let path = roots.proc(format!("{pid}/stat"));
    let Ok(Some(text)) = read_text(&path) else {
        return false;
    };
    let fields = name_and_fields(&path, &text).map(|(_, fields)| fields);
    fields.is_ok_and(|fields| flags_in(&fields) & PF_KTHREAD != 0)
}

/// Whose a process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kinship {
    /// The process's name.
    pub name: String,
    /// It has ended, and its parent has not waited for it.
    pub is_zombie: bool,
    /// Who started it, or adopted it.
    pub parent: u32,
    /// Its process group; 0 for one that was made outside this PID namespace, as getpgrp(2) says.
    pub group: u32,
    /// Its session; 0 for one that was made outside this PID namespace, as getsid(2) says. So it is
    /// for all that runs in a container whose first process leads no session of its own.
    pub session: u32,
}

/// Whose a process is; `None` where it is gone.
#[must_use]
pub fn kinship(roots: &Roots, pid: u32) -> Option<Kinship> {
    let path = roots.proc(format!("{pid}/stat"));
    let text = read_text(&path).ok()??;
    let (name, fields) = name_and_fields(&path, &text).ok()?;
    let number = |field: usize| fields.get(field - 3)?.parse().ok();
    Some(Kinship {
        name: name.to_owned(),
        is_zombie: fields.first() == Some(&"Z"),
        parent: number(4)?,
        group: number(5)?,
        session: number(6)?,
    })
}

/// When a process started: clock ticks since boot (field 22 of `/proc/PID/stat`). Together with the
/// pid it names a process for good.
///
/// # Errors
///
/// [`HostError::NoSuchProcess`], [`HostError::Read`], [`HostError::Parse`].
pub fn start_time(roots: &Roots, pid: u32) -> Result<u64, HostError> {
    Ok(Stat::read(roots, pid)?
        .ok_or(HostError::NoSuchProcess { pid })?
        .start_time)
}

/// Who started a process (or adopted it, where that has ended); `None` where it is gone.
#[must_use]
pub fn parent(roots: &Roots, pid: u32) -> Option<u32> {
    Some(Stat::read(roots, pid).ok()??.parent)
}

/// Who started a process, who started that one, and so on, with their names.
#[must_use]
pub fn ancestors(roots: &Roots, pid: u32) -> Vec<(u32, String)> {
    let mut found: Vec<(u32, String)> = Vec::new();
    let mut next = kinship(roots, pid).map_or(0, |kin| kin.parent);
    // A pid that is reused while they are read could lead in a circle.
    while next != 0 && next != pid && !found.iter().any(|(known, _)| *known == next) {
        let Some(kin) = kinship(roots, next) else {
            break;
        };
        found.push((next, kin.name));
        next = kin.parent;
    }
    found
}

/// The kernel's name for this boot; empty where it does not tell. Pids and start times of another
/// boot name nobody.
#[must_use]
pub fn boot_id(roots: &Roots) -> String {
    let text = read_text(&roots.proc("sys/kernel/random/boot_id"))
        .ok()
        .flatten()
        .unwrap_or_default();
    text.trim().to_owned()
}

/// Whether that very process still runs (a zombie does not).
#[must_use]
pub fn is_running(roots: &Roots, pid: u32, start_time: u64) -> bool {
    matches!(Stat::read(roots, pid), Ok(Some(stat)) if stat.start_time == start_time && !matches!(stat.state, 'Z' | 'X'))
}

/// Whether a process with this pid runs (a zombie does not).
pub(crate) fn lives(roots: &Roots, pid: u32) -> bool {
    matches!(Stat::read(roots, pid), Ok(Some(stat)) if !matches!(stat.state, 'Z' | 'X'))
}

/// The pids of all processes, in the order of `/proc`.
///
/// # Errors
///
/// [`HostError::Read`].
pub fn all_pids(roots: &Roots) -> Result<Vec<u32>, HostError> {
    numbers_in(&roots.proc(""))
}

/// The ids of a process's threads.
///
/// # Errors
///
/// [`HostError::NoSuchProcess`], [`HostError::Read`].
pub fn thread_ids(roots: &Roots, pid: u32) -> Result<Vec<u32>, HostError> {
    let path = roots.proc(format!("{pid}/task"));
    match numbers_in(&path) {
        Ok(threads) if !threads.is_empty() => Ok(threads),
        Ok(_) => Err(HostError::NoSuchProcess { pid }),
        Err(HostError::Read {
            errno: libc::ENOENT | libc::ESRCH,
            ..
        }) => Err(HostError::NoSuchProcess { pid }),
        Err(error) => Err(error),
    }
}

fn numbers_in(path: &Path) -> Result<Vec<u32>, HostError> {
    let failed = |error: std::io::Error| HostError::read(path, &error);
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let Ok(entry) = entry else { continue };
        numbers.extend(
            entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<u32>().ok()),
        );
    }
    Ok(numbers)
}

/// The process and its descendants with their start times, parents first.
#[must_use]
pub fn family(roots: &Roots, pid: u32) -> Vec<(u32, u64)> {
    let mut family = Vec::new();
    let stats: Vec<(u32, Stat)> = all_pids(roots)
        .unwrap_or_default()
        .into_iter()
        .filter_map(|pid| Some((pid, Stat::read(roots, pid).ok()??)))
        .collect();
    family.extend(
        stats
            .iter()
            .filter(|(other, _)| *other == pid)
            .map(|(pid, stat)| (*pid, stat.start_time)),
    );
    let mut next = 0;
    while let Some(&(parent, _)) = family.get(next) {
        next += 1;
        for (pid, stat) in &stats {
            if stat.parent == parent && !family.iter().any(|(known, _)| known == pid) {
                family.push((*pid, stat.start_time));
            }
        }
    }
    family
}

/// How ending a process went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It, and what it had started, has ended.
    Ended,
    /// It was gone already.
    WasGone,
}

/// Ends a process of this host: SIGTERM to it, and after `grace` SIGKILL to it and to whatever it
/// had started that still runs. Each signal goes through a pidfd after its start time is checked,
/// so it never hits a later process with the same pid.
///
/// # Errors
///
/// The kernel's error number: EPERM, or ETIMEDOUT where a process stays even after SIGKILL.
pub fn end_process(pid: u32, start_time: u64, grace: Duration) -> Result<End, i32> {
    let roots = Roots::default();
    if !is_running(&roots, pid, start_time) {
        return Ok(End::WasGone);
    }
    let family = family(&roots, pid);
    let is_over = || {
        !family
            .iter()
            .any(|(pid, start_time)| is_running(&roots, *pid, *start_time))
    };
    signal(&roots, pid, start_time, Signal::TERM)?;
    if wait_until(grace, is_over) {
        return Ok(End::Ended);
    }
    for (pid, start_time) in &family {
        signal(&roots, *pid, *start_time, Signal::KILL)?;
    }
    if wait_until(KILL_WAIT, is_over) {
        Ok(End::Ended)
    } else {
        Err(libc::ETIMEDOUT)
    }
}

pub(crate) fn wait_until(limit: Duration, is_over: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if is_over() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        sleep(END_POLL);
    }
}

fn signal(roots: &Roots, pid: u32, start_time: u64, signal: Signal) -> Result<(), i32> {
    let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return Err(libc::ESRCH);
    };
    let pidfd = match pidfd_open(raw, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(Errno::SRCH) => return Ok(()),
        Err(errno) => return Err(errno.raw_os_error()),
    };
    // The pidfd holds on to whichever process has the pid now; only after that is its start time
    // worth anything.
    if !is_running(roots, pid, start_time) {
        return Ok(());
    }
    match pidfd_send_signal(&pidfd, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.raw_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::cgroup::tests::fake;

    #[test]
    fn a_group_and_a_session_from_outside_the_namespace_are_0() {
        let (_dir, roots) = fake(&[
            ("proc/7/stat", "7 (a ) b) S 1 0 0 0 -1 4194560"),
            ("proc/8/stat", "8 (a) Z 1 8 7 0 -1 4194560"),
            ("proc/9/stat", "9 (a) S 1 x"),
        ]);
        let kin = kinship(&roots, 7).unwrap();
        assert_eq!((kin.name.as_str(), kin.is_zombie), ("a ) b", false));
        assert_eq!((kin.parent, kin.group, kin.session), (1, 0, 0));
        assert!(kinship(&roots, 8).unwrap().is_zombie);
        assert!(kinship(&roots, 9).is_none());
        assert!(kinship(&roots, 10).is_none());
    }

    #[test]
    fn a_name_with_parentheses_does_not_confuse_the_fields() {
        let text = "7 (a ) R (b) S 3 0 0 0 -1 0 1 2 3 4 11 12 13 14 20 0 5 0 777 1 1";
        let (_dir, roots) = fake(&[
            ("proc/7/stat", text),
            ("proc/8/stat", "8 (x"),
            ("proc/9/stat", "9 (x) S 1 2"),
        ]);
        let stat = Stat::read(&roots, 7).unwrap().unwrap();
        assert_eq!(
            (stat.state, stat.parent, stat.threads, stat.start_time),
            ('S', 3, 5, 777)
        );
        assert_eq!((stat.user_ticks, stat.system_ticks), (11, 12));
        assert_eq!(
            (stat.children_user_ticks, stat.children_system_ticks),
            (13, 14)
        );
        assert!(matches!(
            Stat::read(&roots, 8),
            Err(HostError::Parse { .. })
        ));
        let error = Stat::read(&roots, 9).unwrap_err().to_string();
        assert!(error.contains("field 14"), "{error}");
        assert!(matches!(
            start_time(&roots, 10),
            Err(HostError::NoSuchProcess { pid: 10 })
        ));
    }

    #[test]
    fn a_worker_of_io_uring_is_known_by_its_flag_and_its_name() {
        let line = |name: &str, flags: u32| format!("8 ({name}) S 7 7 7 0 -1 {flags} 0 0");
        let (_dir, roots) = fake(&[
            ("proc/7/task/7/stat", &line("server", 0x0040_0040)),
            ("proc/7/task/8/stat", &line("iou-wrk-7", 0x0040_4050)),
            ("proc/7/task/9/stat", &line("iou-wrk-7", 0x0040_0040)),
            ("proc/7/task/10/stat", &line("CPU 0/KVM", 0x0040_0050)),
            ("proc/7/task/11/stat", &line("a (iou-x) 1", 0x0040_0050)),
            ("proc/7/task/12/stat", "12 (iou-wrk-7"),
            ("proc/7/task/13/stat", "13 (iou-wrk-7) S 7"),
        ]);
        let workers = (7..=14).filter(|thread| is_io_worker(&roots, 7, *thread));
        assert_eq!(workers.collect::<Vec<u32>>(), [8]);
    }

    #[test]
    fn a_thread_of_the_kernel_is_known_by_its_flag() {
        let line = |flags: u32| format!("8 (kworker/0:1) S 2 0 0 0 -1 {flags} 0 0");
        let (_dir, roots) = fake(&[
            ("proc/7/stat", &line(0x0420_8060)),
            ("proc/8/stat", &line(0x0040_0040)),
            ("proc/9/stat", "9 (x"),
        ]);
        let threads = (7..=10).filter(|pid| is_kernel_thread(&roots, *pid));
        assert_eq!(threads.collect::<Vec<u32>>(), [7]);
    }

    #[test]
    fn ancestors_end_at_the_first_process_and_at_a_circle() {
        let (_dir, roots) = fake(&[
            ("proc/1/stat", "1 (init) S 0 1 1 0 -1 0"),
            ("proc/7/stat", "7 (sh) S 1 7 7 0 -1 0"),
            ("proc/8/stat", "8 (run) S 7 7 7 0 -1 0"),
            ("proc/20/stat", "20 (a) S 21 0 0 0 -1 0"),
            ("proc/21/stat", "21 (b) S 20 0 0 0 -1 0"),
            ("proc/30/stat", "30 (c) S 31 0 0 0 -1 0"),
        ]);
        let of = |pid: u32| -> Vec<String> {
            let found = ancestors(&roots, pid).into_iter();
            found.map(|(pid, name)| format!("{pid} {name}")).collect()
        };
        let found = [8, 20, 30, 40].map(of);
        let wanted: [&[&str]; 4] = [&["7 sh", "1 init"], &["21 b"], &[], &[]];
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_process_that_ignores_sigterm_and_its_child_are_ended() {
        let roots = Roots::default();
        let mut child = Command::new("sh")
            .args(["-c", "trap '' TERM; sleep 100 & sleep 100; sleep 100"])
            .spawn()
            .unwrap();
        let pid = child.id();
        let started = start_time(&roots, pid).unwrap();
        sleep(Duration::from_millis(100));
        assert!(family(&roots, pid).len() >= 2);
        // Another start time is another process.
        assert_eq!(
            end_process(pid, started + 1, Duration::ZERO),
            Ok(End::WasGone)
        );
        assert!(is_running(&roots, pid, started));
        let family = family(&roots, pid);
        assert_eq!(
            end_process(pid, started, Duration::from_millis(100)),
            Ok(End::Ended)
        );
        assert!(
            !family
                .iter()
                .any(|(pid, started)| is_running(&roots, *pid, *started))
        );
        child.wait().unwrap();
        assert_eq!(end_process(pid, started, Duration::ZERO), Ok(End::WasGone));
    }
}
