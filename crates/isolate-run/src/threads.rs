//! How long the threads of a service ran, and how long they waited for a CPU
//! (`/proc/PID/task/TID/schedstat`: sched-stats.rst). The kernel counts both at every switch, so
//! reading them costs less than a tracepoint would.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use host::Roots;

/// Reading the waiting time of more threads than this takes too long for a step.
const THREADS_MAX: usize = 256;
/// Files that stay open. A process can have 1,024 by default, and the journal, the sources and
/// other services need some, too.
const FILES_MAX: usize = 64;
/// Three numbers of at most 20 digits.
const TEXT_BYTES: usize = 64;

/// Nanoseconds that threads ran, and that they waited for a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    pub(crate) ran_ns: u64,
    pub(crate) waited_ns: u64,
}

impl Waits {
    fn since(self, earlier: Self) -> Self {
        Self {
            ran_ns: self.ran_ns.saturating_sub(earlier.ran_ns),
            waited_ns: self.waited_ns.saturating_sub(earlier.waited_ns),
        }
    }

    fn add(&mut self, other: Self) {
        self.ran_ns += other.ran_ns;
        self.waited_ns += other.waited_ns;
    }
}

/// The threads of one service. Their files stay open: to open one costs seven times what it costs
/// to read it.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    known: BTreeMap<u32, Thread>,
    /// The processes at the last look.
    processes: BTreeSet<u32>,
}

#[derive(Debug)]
struct Thread {
    file: Option<File>,
    last: Waits,
}

impl Threads {
    /// What the threads of these processes did since the last look. `None` at the first one,
    /// without a thread, and with too many of them.
    pub(crate) fn look(&mut self, roots: &Roots, pids: &[u32]) -> Option<Waits> {
        let (mut sum, mut seen) = (Waits::default(), BTreeSet::new());
        let is_first = self.known.is_empty();
        for pid in pids {
            for id in host::thread_ids(roots, *pid).unwrap_or_default() {
                if seen.len() == THREADS_MAX {
                    *self = Self::default();
                    return None;
                }
                // A thread that has just ended has nothing more to say.
                if let Some(waits) = self.since_last(roots, *pid, id) {
                    sum.add(waits);
                    seen.insert(id);
                }
            }
        }
        self.known.retain(|id, _| seen.contains(id));
        self.processes = pids.iter().copied().collect();
        (!is_first && !seen.is_empty()).then_some(sum)
    }

    fn since_last(&mut self, roots: &Roots, pid: u32, id: u32) -> Option<Waits> {
        if let Some(thread) = self.known.get_mut(&id) {
            let now = match thread.file.as_ref().map(read) {
                Some(Some(now)) => now,
                // The number may be another thread's since: its file has to be opened anew.
                is_open => {
                    let (file, now) = read_once(roots, pid, id)?;
                    thread.file = is_open.map(|_| file);
                    now
                }
            };
            let last = std::mem::replace(&mut thread.last, now);
            return Some(now.since(last));
        }
        let (file, now) = read_once(roots, pid, id)?;
        let is_kept = self.known.len() < FILES_MAX;
        let file = is_kept.then_some(file);
        self.known.insert(id, Thread { file, last: now });
        // A new thread of a known process began since the last look. What a process did before it
        // was looked at says nothing of now.
        let is_new = self.processes.contains(&pid);
        Some(if is_new { now } else { Waits::default() })
    }
}

fn read_once(roots: &Roots, pid: u32, id: u32) -> Option<(File, Waits)> {
    let file = File::open(roots.proc(format!("{pid}/task/{id}/schedstat"))).ok()?;
    let waits = read(&file)?;
    Some((file, waits))
}

fn read(file: &File) -> Option<Waits> {
    let mut text = [0; TEXT_BYTES];
    let length = file.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(text.get(..length)?).ok()?;
    let mut numbers = text.split_whitespace().map(|word| word.parse().ok());
    Some(Waits {
        ran_ns: numbers.next()??,
        waited_ns: numbers.next()??,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Host(tempfile::TempDir);

    impl Host {
        fn set(&self, pid: u32, thread: u32, text: &str) {
            let task = self.task(pid, thread);
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("schedstat"), text).unwrap();
        }

        fn end(&self, pid: u32, thread: u32) {
            fs::remove_dir_all(self.task(pid, thread)).unwrap();
        }

        fn task(&self, pid: u32, thread: u32) -> std::path::PathBuf {
            self.0.path().join(format!("proc/{pid}/task/{thread}"))
        }
    }

    fn waits(ran_ns: u64, waited_ns: u64) -> Option<Waits> {
        Some(Waits { ran_ns, waited_ns })
    }

    #[test]
    fn what_threads_did_since_the_last_look_is_summed() {
        let host = Host(tempfile::tempdir().unwrap());
        let roots = Roots::at(host.0.path());
        let mut threads = Threads::default();
        assert_eq!(threads.look(&roots, &[7]), None);
        host.set(7, 7, "100 10 1\n");
        host.set(7, 8, "200 20 1\n");
        assert_eq!(threads.look(&roots, &[7]), None);
        host.set(7, 7, "150 11 2\n");
        host.set(7, 8, "260 22 2\n");
        assert_eq!(threads.look(&roots, &[7]), waits(110, 3));
        // A thread that ends takes nothing away, and a new one counts from its beginning.
        host.end(7, 7);
        host.set(7, 9, "5 1 1\n");
        host.set(7, 8, "270 22 3\n");
        assert_eq!(threads.look(&roots, &[7]), waits(15, 1));
        // A process that is looked at for the first time has an earlier life.
        host.set(30, 30, "900000 800000 1\n");
        assert_eq!(threads.look(&roots, &[7, 30]), waits(0, 0));
        host.set(30, 30, "900007 800001 2\n");
        assert_eq!(threads.look(&roots, &[7, 30]), waits(7, 1));
        assert_eq!(threads.look(&roots, &[]), None);
    }

    #[test]
    fn many_threads_are_read_without_open_files_and_too_many_are_not_read() {
        let host = Host(tempfile::tempdir().unwrap());
        let roots = Roots::at(host.0.path());
        let mut threads = Threads::default();
        let most = u32::try_from(THREADS_MAX).unwrap();
        (0..most).for_each(|id| host.set(7, 100 + id, "100 10 1\n"));
        threads.look(&roots, &[7]);
        let open = threads.known.values().filter(|one| one.file.is_some());
        assert_eq!(open.count(), FILES_MAX);
        (0..most).for_each(|id| host.set(7, 100 + id, "101 12 1\n"));
        let all = u64::from(most);
        assert_eq!(threads.look(&roots, &[7]), waits(all, 2 * all));
        host.set(7, 100 + most, "1 1 1\n");
        assert_eq!(threads.look(&roots, &[7]), None);
        assert!(threads.known.is_empty());
    }
}
