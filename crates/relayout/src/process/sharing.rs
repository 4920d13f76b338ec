//! Processes that run in the same memory without being threads of one (`clone` with `CLONE_VM`): no
//! stop of one stops the other.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::thread::sleep;
use std::time::Duration;

use host::Roots;

use crate::process::Process;
use crate::process::handlers::continuations;
use crate::process::maps::Mapping;
use crate::process::stop::{Pause, Stopped, declined, state, status_field, stopped};
use crate::{Declined, RelayoutError};

/// What is done to a stopped process.
type Act<'a> = dyn FnMut(&Stopped<'_>, &[u64]) -> Result<Vec<u64>, RelayoutError> + Send + 'a;

/// What a child of `vfork` is given that has just begun: its parent does not wait for it yet.
const BEGINNING: Duration = Duration::from_millis(20);

/// `KCMP_VM` in include/uapi/linux/kcmp.h.
const KCMP_VM: libc::c_long = 1;

/// The order of two processes' address spaces, by which the kernel tells whether they are one; none
/// where it does not tell.
fn compare(one: u32, other: u32) -> Option<Ordering> {
    let (one, other) = (libc::c_long::from(one), libc::c_long::from(other));
    // SAFETY: kcmp(2) takes numbers only.
    let compared = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0_usize, 0_usize) };
    match compared {
        0 => Some(Ordering::Equal),
        1 => Some(Ordering::Less),
        2 => Some(Ordering::Greater),
        _ => None,
    }
}

/// Whether its parent stands still until it has found another program, or ended: it is a child of
/// `vfork`.
fn is_waited_for(pid: u32) -> bool {
    let parent = status_field(pid, pid, "PPid").and_then(|parent| parent.parse().ok());
    parent.is_some_and(|parent: u32| {
        // A kernel without the list may have it.
        let may_have_it = |thread: u32| {
            let list = fs::read_to_string(format!("/proc/{parent}/task/{thread}/children"));
            list.map_or(true, |list| {
                list.split_whitespace()
                    .any(|child| child.parse() == Ok(pid))
            })
        };
        let threads = host::thread_ids(&Roots::default(), parent).unwrap_or_default();
        let mut threads = threads.into_iter();
        threads.any(|thread| state(parent, thread) == 'D' && may_have_it(thread))
    })
}

/// Whether no other process runs in this one's memory, which lasts: a child of `vfork` is not
/// looked at.
///
/// # Errors
/// [`Declined::SharedMemory`].
pub(crate) fn check(process: &Process) -> Result<(), RelayoutError> {
    let sharers = || {
        let mut pids = host::all_pids(&Roots::default()).unwrap_or_default();
        pids.retain(|pid| {
            // One memory has one program.
            let inode = fs::metadata(format!("/proc/{pid}/exe")).map(|metadata| metadata.ino());
            *pid != process.pid
                && inode.is_ok_and(|inode| inode == process.exe_inode)
                && compare(process.pid, *pid) == Some(Ordering::Equal)
                && !is_waited_for(*pid)
        });
        pids
    };
    let first = sharers();
    if first.is_empty() {
        return Ok(());
    }
    sleep(BEGINNING);
    let mut both = sharers().into_iter().filter(|pid| first.contains(pid));
    both.next()
        .map_or(Ok(()), |with| Err(shared(process.pid, with)))
}

pub(crate) fn shared(pid: u32, with: u32) -> RelayoutError {
    declined(pid, Declined::SharedMemory { with })
}

/// Those of some processes that run in the memory of others of them, which lasts, and of which.
pub(crate) fn among<'a>(processes: impl Iterator<Item = &'a Process>) -> BTreeMap<u32, Vec<u32>> {
    let pids: Vec<u32> = processes.map(|process| process.pid).collect();
    let mut found = among_now(&pids);
    if found.is_empty() {
        return found;
    }
    sleep(BEGINNING);
    let again = among_now(&pids);
    for (pid, others) in &mut found {
        let still = again.get(pid);
        others.retain(|other| still.is_some_and(|still| still.contains(other)));
    }
    found.retain(|_, others| !others.is_empty());
    found
}

fn among_now(pids: &[u32]) -> BTreeMap<u32, Vec<u32>> {
    // In order, so that few of what may be thousands are compared. (Not by `sort_by`, as one that
    // ends changes its place.)
    let mut groups: Vec<Vec<u32>> = Vec::new();
    for pid in pids {
        let order = |group: &Vec<u32>| compare(group[0], *pid).unwrap_or(Ordering::Less);
        match groups.binary_search_by(order) {
            Ok(place) => groups[place].push(*pid),
            Err(place) => groups.insert(place, vec![*pid]),
        }
    }
    let mut found = BTreeMap::new();
    for mut group in groups.into_iter().filter(|group| group.len() > 1) {
        group.retain(|pid| !is_waited_for(*pid));
        for pid in group.iter().filter(|_| group.len() > 1) {
            let others = group.iter().copied().filter(|other| other != pid);
            found.insert(*pid, others.collect::<Vec<u32>>());
        }
    }
    found
}

/// Runs `act` while a process is stopped, and with it others that run in its memory; `act` is told
/// where their threads go on.
pub(crate) fn all_stopped(
    process: &Process,
    others: &[u32],
    maps: &[Mapping],
    going_on: &[u64],
    act: &mut Act<'_>,
) -> Result<(Vec<u64>, Pause), RelayoutError> {
    let memory = &process.memory;
    let Some((other, rest)) = others.split_first() else {
        return stopped(process.pid, memory, |stopped| act(stopped, going_on));
    };
    let nested = stopped(*other, memory, |stopped| {
        let theirs = continuations(stopped, maps)?.into_iter();
        let mut going_on = going_on.to_vec();
        going_on.extend(theirs.map(|(_, address)| address));
        all_stopped(process, rest, maps, &going_on, act)
    });
    match nested {
        Ok(((done, _), pause)) => Ok((done, pause)),
        Err(RelayoutError::Gone { pid }) if pid == *other => {
            all_stopped(process, rest, maps, going_on, act)
        }
        Err(error) => Err(error),
    }
}
