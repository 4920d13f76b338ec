//! CPU numbers: the kernel's list notation, which CPUs are online, and pinning a process or thread
//! to some of them.

use std::io;
use std::process::{Child, Command};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::{HostError, errno_of};
use crate::roots::{Roots, read_text};

/// Parses a list such as `0-3,5` (cpuset(7), "List format"). The result is sorted and without
/// repetitions; an empty text is an empty list.
///
/// ```
/// assert_eq!(host::parse_cpu_list("0-2,5").unwrap(), [0, 1, 2, 5]);
/// assert!(host::parse_cpu_list("3-1").is_err());
/// ```
///
/// # Errors
///
/// [`HostError::CpuList`].
pub fn parse_cpu_list(text: &str) -> Result<Vec<usize>, HostError> {
    let error = || HostError::CpuList {
        text: text.trim().to_owned(),
    };
    // No kernel can number more CPUs than a cpu_set_t of this size; a typo such as 0-99999999 is an
    // error, not a list.
    let number = |word: &str| {
        word.trim()
            .parse::<usize>()
            .ok()
            .filter(|n| *n < CpuSet::MAX_CPU)
            .ok_or_else(error)
    };
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|_| !text.trim().is_empty()) {
        match part.split_once('-') {
            None => cpus.push(number(part)?),
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last {
                    return Err(error());
                }
                cpus.extend(first..=last);
            }
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

/// The CPUs that are online (`/sys/devices/system/cpu/online`).
///
/// # Errors
///
/// [`HostError::Absent`] where the file does not exist, [`HostError::CpuList`] where it is not a
/// list.
pub fn online_cpus(roots: &Roots) -> Result<Vec<usize>, HostError> {
    let path = roots.sys("devices/system/cpu/online");
    let text = read_text(&path)?.ok_or_else(|| HostError::Absent {
        knob: "the list of online CPUs".into(),
        path,
    })?;
    parse_cpu_list(&text)
}

/// Pins one thread to `cpus`: the given one (a pid pins the process's first thread), or the calling
/// one. It makes one system call and on success allocates nothing, so it may be called between fork
/// and exec; threads and processes that the pinned thread starts later inherit the CPUs.
///
/// # Errors
///
/// [`HostError::Affinity`].
pub fn pin(pid: Option<u32>, cpus: &[usize]) -> Result<(), HostError> {
    let error = |errno| HostError::Affinity {
        pid: pid.unwrap_or(0),
        cpus: cpus.to_vec(),
        errno,
    };
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(error(libc::EINVAL));
        }
        set.set(cpu);
    }
    let thread = match pid {
        None => None,
        Some(pid) => Some(
            i32::try_from(pid)
                .ok()
                .and_then(Pid::from_raw)
                .ok_or_else(|| error(libc::ESRCH))?,
        ),
    };
    sched_setaffinity(thread, &set).map_err(|errno| error(errno.raw_os_error()))
}

/// Pins every thread of a running process. Threads started meanwhile are caught by repeating until
/// none is new.
///
/// # Errors
///
/// [`HostError::NoSuchProcess`], [`HostError::Affinity`].
pub fn pin_process(roots: &Roots, pid: u32, cpus: &[usize]) -> Result<(), HostError> {
    let mut pinned = std::collections::BTreeSet::new();
    // A process that starts threads faster than this many passes can pin has its later threads
    // inherit the CPUs anyway.
    for _ in 0..8 {
        let threads = crate::process::thread_ids(roots, pid)?;
        let mut has_new = false;
        for thread in threads {
            if pinned.insert(thread) {
                has_new = true;
                match pin(Some(thread), cpus) {
                    Err(HostError::Affinity {
                        errno: libc::ESRCH, ..
                    })
                    | Ok(()) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        if !has_new {
            break;
        }
    }
    Ok(())
}

/// Starts a command that is pinned from its first instruction: the calling thread takes the CPUs,
/// spawns (a child inherits them), and takes its own CPUs back. Needs no code between fork and
/// exec.
///
/// # Errors
///
/// [`HostError::Affinity`]; what spawning returns is passed through inside.
pub fn spawn_pinned(command: &mut Command, cpus: &[usize]) -> Result<io::Result<Child>, HostError> {
    let own = sched_getaffinity(None).map_err(|errno| HostError::Affinity {
        pid: 0,
        cpus: cpus.to_vec(),
        errno: errno.raw_os_error(),
    })?;
    pin(None, cpus)?;
    let child = command.spawn();
    sched_setaffinity(None, &own).map_err(|errno| HostError::Affinity {
        pid: 0,
        cpus: Vec::new(),
        errno: errno_of(&errno.into()),
    })?;
    Ok(child)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_and_what_is_none() {
        assert_eq!(parse_cpu_list("0-3,5\n").unwrap(), [0, 1, 2, 3, 5]);
        assert_eq!(parse_cpu_list("").unwrap(), [0usize; 0]);
        assert_eq!(parse_cpu_list("5,1,1").unwrap(), [1, 5]);
        for text in ["a", "1-", "-1", "3-1", "1,,2", "0-99999999", "1 2"] {
            assert!(
                matches!(parse_cpu_list(text), Err(HostError::CpuList { .. })),
                "{text}"
            );
        }
    }

    #[test]
    fn online_cpus_of_a_fake_tree() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::at(dir.path());
        assert!(matches!(online_cpus(&roots), Err(HostError::Absent { .. })));
        fs::create_dir_all(roots.sys("devices/system/cpu")).unwrap();
        fs::write(roots.sys("devices/system/cpu/online"), "0-1\n").unwrap();
        assert_eq!(online_cpus(&roots).unwrap(), [0, 1]);
        fs::write(roots.sys("devices/system/cpu/online"), "many\n").unwrap();
        assert!(matches!(
            online_cpus(&roots),
            Err(HostError::CpuList { .. })
        ));
    }

    #[test]
    fn a_spawned_command_is_pinned_and_the_caller_is_not() {
        let cpus = online_cpus(&Roots::default()).unwrap();
        let last = *cpus.last().unwrap();
        let mut command = Command::new("sleep");
        let mut child = spawn_pinned(command.arg("30"), &[last]).unwrap().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let set = sched_getaffinity(Pid::from_raw(pid)).unwrap();
        assert_eq!((set.count(), set.is_set(last)), (1, true));
        assert_eq!(
            sched_getaffinity(None).unwrap().count() as usize,
            cpus.len()
        );
        pin_process(&Roots::default(), child.id(), &cpus).unwrap();
        assert_eq!(
            sched_getaffinity(Pid::from_raw(pid)).unwrap().count() as usize,
            cpus.len()
        );
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(
            pin_process(&Roots::default(), child.id(), &cpus),
            Err(HostError::NoSuchProcess { .. })
        ));
    }

    #[test]
    fn no_cpu_and_unknown_cpus_are_refused() {
        assert!(matches!(
            pin(None, &[]),
            Err(HostError::Affinity {
                errno: libc::EINVAL,
                ..
            })
        ));
        assert!(matches!(
            pin(None, &[CpuSet::MAX_CPU]),
            Err(HostError::Affinity { .. })
        ));
        assert!(matches!(
            pin(Some(u32::MAX), &[0]),
            Err(HostError::Affinity {
                errno: libc::ESRCH,
                ..
            })
        ));
    }

    proptest! {
        #[test]
        fn foreign_text_never_panics(text in "[0-9,\\- a]{0,20}") {
            let _ = parse_cpu_list(&text);
        }
    }
}
