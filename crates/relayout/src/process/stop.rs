//! Stopping a process, all its threads or one of them, and letting it go on as if nothing had
//! happened.
//!
//! The tracing is done by a thread of ours that lives for one operation: whatever becomes of it,
//! the kernel detaches all its tracees when it ends (`exit_ptrace` in kernel/ptrace.c), also those
//! that had not stopped yet. A signal that arrives at the stop is delivered before the thread is
//! counted as stopped.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use host::{HostError, RealTime, Roots};
use serde::{Deserialize, Serialize};

use crate::error::is_of_thread;
use crate::process::ptrace::{self, Wait};
use crate::{Declined, ProcessMemory, RelayoutError};

/// How long all threads of a process may take to stop before an attempt is given up and all go on:
/// the first, and, where others compete for the CPUs, further ones. A thread that has a CPU needs
/// microseconds; one that waits for one needs as long as the scheduler lets others run; one in an
/// uninterruptible sleep may need as long as its disk.
pub const STOP_LIMITS: [Duration; 5] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
];

/// A thread in an uninterruptible sleep that has not stopped by now is not waited for while the
/// others stand still: it sleeps until its disk answers, or until a child of its `vfork` has found
/// another program.
const ASLEEP_LIMIT: Duration = Duration::from_millis(2);

/// How long such a thread is given to wake up, while the others run.
const AWAKE_LIMIT: Duration = Duration::from_secs(2);

/// How long one thread may take, before another one is tried.
const ONE_LIMIT: Duration = Duration::from_millis(200);

/// What a process gets to do its work between two attempts to stop it.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(50);

/// The shortest and the longest time between two looks at a thread that is waited for.
const LOOK_SHORTEST: Duration = Duration::from_micros(10);
const LOOK_LONGEST: Duration = Duration::from_millis(2);

/// How long a process was kept from running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// From the first request to stop to the last thread's going on.
    pub us: u64,
    /// The part of it until the last thread had stopped.
    pub stopping_us: u64,
    /// The part of it that it takes to let them go.
    pub resuming_us: u64,
    /// How many threads were stopped.
    pub threads: usize,
}

/// A stopped process (or a stopped thread of it). Nobody else runs in it, so its text can be
/// changed.
#[derive(Debug)]
pub struct Stopped<'a> {
    /// The process.
    pub pid: u32,
    /// Its memory.
    pub memory: &'a ProcessMemory,
    /// The stopped threads.
    pub threads: Vec<u32>,
    /// Job control had stopped the process before we did.
    pub is_group_stopped: bool,
    limit: Duration,
    since: Option<Instant>,
    stopped: Option<Instant>,
}

/// Runs `act` while every thread of the process is stopped.
///
/// # Errors
/// [`RelayoutError::NotStopping`], [`RelayoutError::Gone`], [`RelayoutError::Declined`] where
/// somebody else traces it, [`RelayoutError::Ptrace`], and whatever `act` returns.
pub fn stopped<T: Send>(
    pid: u32,
    memory: &ProcessMemory,
    act: impl FnOnce(&Stopped<'_>) -> Result<T, RelayoutError> + Send,
) -> Result<(T, Pause), RelayoutError> {
    let mut act = Some(act);
    let mut failed = RelayoutError::Gone { pid };
    for limit in STOP_LIMITS {
        let attempt = on_a_thread(|| {
            let mut process = Stopped::new(pid, memory, limit);
            let _real_time = RealTime::take();
            process.stop_all()?;
            process.stopped = Some(Instant::now());
            let done = act.take().map(|act| act(&process));
            let pause = process.resume();
            done.unwrap_or(Err(RelayoutError::Gone { pid }))
                .map(|done| (done, pause))
        });
        match attempt {
            Err(error @ RelayoutError::NotStopping { .. }) if act.is_some() => failed = error,
            other => return other,
        }
        match failed {
            RelayoutError::NotStopping {
                thread, state: 'D', ..
            } => {
                if !wakes_up(pid, thread) {
                    break;
                }
            }
            _ => sleep(BETWEEN_ATTEMPTS),
        }
    }
    Err(failed)
}

/// Waits until a thread has left its uninterruptible sleep; false where it has not in time.
fn wakes_up(pid: u32, thread: u32) -> bool {
    let give_up = Instant::now() + AWAKE_LIMIT;
    while state(pid, thread) == 'D' {
        if Instant::now() > give_up {
            return false;
        }
        sleep(Duration::from_millis(1));
    }
    true
}

/// Runs `act` while one thread is stopped and the others run: the first of them that stops soon and
/// can do what `act` asks of it.
///
/// # Errors
/// As [`stopped`].
pub fn one_stopped<T: Send>(
    pid: u32,
    memory: &ProcessMemory,
    candidates: &[u32],
    mut act: impl FnMut(&Stopped<'_>) -> Result<T, RelayoutError> + Send,
) -> Result<(T, Pause), RelayoutError> {
    on_a_thread(|| {
        let mut failed = RelayoutError::Gone { pid };
        for thread in candidates {
            let mut process = Stopped::new(pid, memory, ONE_LIMIT);
            match process.stop_one(*thread) {
                Ok(()) if process.is_group_stopped => {
                    return Err(declined(pid, Declined::Stopped));
                }
                Ok(()) => {
                    let done = act(&process);
                    let pause = process.resume();
                    match done {
                        Err(error) if is_of_thread(&error) => failed = error,
                        done => return Ok((done?, pause)),
                    }
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    })
}

/// Sleeps between two looks at a thread that is waited for since then: the longer, the longer it
/// takes. Looks at real-time priority take the CPU which the thread needs, and which others need
/// who wait for theirs.
pub(crate) fn until_next_look(since: Instant) {
    sleep((since.elapsed() / 8).clamp(LOOK_SHORTEST, LOOK_LONGEST));
}

fn on_a_thread<T: Send>(
    act: impl FnOnce() -> Result<T, RelayoutError> + Send,
) -> Result<T, RelayoutError> {
    std::thread::scope(|scope| {
        scope
            .spawn(act)
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

pub(crate) fn declined(pid: u32, reason: Declined) -> RelayoutError {
    RelayoutError::Declined { pid, reason }
}

/// What is said of a thread that was waited for so long.
pub(crate) fn not_stopping(pid: u32, thread: u32, limit: Duration, state: char) -> RelayoutError {
    RelayoutError::NotStopping {
        pid,
        thread,
        limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
        state,
    }
}

/// A field of `/proc/PID/task/TID/status`.
pub(crate) fn status_field(pid: u32, thread: u32, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(line.strip_prefix(':')?.trim().to_owned())
}

/// Whether a thread is under seccomp, each for itself: by a filter, or strictly
/// (`SECCOMP_MODE_STRICT`), which takes all but four calls for a reason to end it. A kernel without
/// seccomp says nothing.
pub(crate) fn is_filtered(pid: u32, thread: u32) -> bool {
    status_field(pid, thread, "Seccomp").is_some_and(|mode| mode != "0")
}

/// Why a stopped thread must not be made to do a system call, if so: it could end the process.
pub(crate) fn refusal(pid: u32, thread: u32) -> Option<Declined> {
    if is_filtered(pid, thread) {
        return Some(Declined::Seccomp);
    }
    ptrace::is_dispatched(thread).then_some(Declined::Dispatched)
}

pub(crate) fn state(pid: u32, thread: u32) -> char {
    status_field(pid, thread, "State")
        .and_then(|text| text.chars().next())
        .unwrap_or('?')
}

impl<'a> Stopped<'a> {
    fn new(pid: u32, memory: &'a ProcessMemory, limit: Duration) -> Self {
        Self {
            pid,
            memory,
            threads: Vec::new(),
            is_group_stopped: false,
            limit,
            since: None,
            stopped: None,
        }
    }

    /// Seizes first and stops afterwards, so that the process runs while we look for its threads;
    /// then looks again, until no thread appears that a running one could have made.
    fn stop_all(&mut self) -> Result<(), RelayoutError> {
        let mut seized: BTreeMap<u32, bool> = BTreeMap::new();
        for _ in 0..4 {
            if !self.seize_new(&mut seized)? {
                break;
            }
        }
        let deadline = Instant::now() + self.limit;
        self.since = Some(Instant::now());
        loop {
            let asked = self.threads.len();
            for (thread, is_known) in &mut seized {
                if !*is_known {
                    // ESRCH: it has just ended, as the wait will tell.
                    let _ = ptrace::interrupt(*thread);
                    self.threads.push(*thread);
                    *is_known = true;
                }
            }
            self.wait(asked, deadline)?;
            if !self.seize_new(&mut seized)? {
                break;
            }
        }
        if self.threads.is_empty() {
            return Err(RelayoutError::Gone { pid: self.pid });
        }
        Ok(())
    }

    fn stop_one(&mut self, thread: u32) -> Result<(), RelayoutError> {
        seize(self.pid, thread)?;
        self.since = Some(Instant::now());
        ptrace::interrupt(thread)?;
        self.threads.push(thread);
        self.wait(0, Instant::now() + self.limit)?;
        if self.threads.is_empty() {
            return Err(RelayoutError::Gone { pid: self.pid });
        }
        Ok(())
    }

    /// Seizes the threads that are not yet, but for workers of the kernel; whether there were any.
    fn seize_new(&self, seized: &mut BTreeMap<u32, bool>) -> Result<bool, RelayoutError> {
        let threads =
            host::thread_ids(&Roots::default(), self.pid).map_err(|error| match error {
                HostError::NoSuchProcess { pid } => RelayoutError::Gone { pid },
                error => error.into(),
            })?;
        let mut is_any = false;
        for thread in threads {
            if seized.contains_key(&thread) {
                continue;
            }
            // There is nothing of it to stop, and it may sleep uninterruptibly for as long as a
            // disk takes.
            if host::is_io_worker(&Roots::default(), self.pid, thread) {
                seized.insert(thread, true);
                continue;
            }
            match seize(self.pid, thread) {
                Ok(()) => {
                    seized.insert(thread, false);
                    is_any = true;
                }
                // A thread that has ended runs no code: a zombie leader stays in the list until its
                // process ends.
                Err(RelayoutError::Gone { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(is_any)
    }

    /// Waits until every thread in the list from this place on has stopped; those that ended leave
    /// the list. One after the other: to look at all of them again and again would take a CPU,
    /// which they need to get to their stop.
    fn wait(&mut self, from: usize, deadline: Instant) -> Result<(), RelayoutError> {
        let asleep = Instant::now() + ASLEEP_LIMIT;
        let mut stopped = self.threads[..from].to_vec();
        for thread in &self.threads[from..] {
            let since = Instant::now();
            loop {
                match self.wait_one(*thread)? {
                    Wait::Nothing => self.check_patience(*thread, asleep, deadline)?,
                    Wait::Ended => break,
                    reached => {
                        self.is_group_stopped |= reached == Wait::GroupStopped;
                        stopped.push(*thread);
                        break;
                    }
                }
                until_next_look(since);
            }
        }
        self.threads = stopped;
        Ok(())
    }

    /// Whether a thread may still be waited for.
    fn check_patience(
        &self,
        thread: u32,
        asleep: Instant,
        deadline: Instant,
    ) -> Result<(), RelayoutError> {
        let now = Instant::now();
        if now < deadline && now < asleep {
            return Ok(());
        }
        let state = state(self.pid, thread);
        let waited = match state {
            'D' => AWAKE_LIMIT,
            _ if now < deadline => return Ok(()),
            _ => self.limit,
        };
        Err(not_stopping(self.pid, thread, waited, state))
    }

    fn wait_one(&self, thread: u32) -> Result<Wait, RelayoutError> {
        let failed = |source| RelayoutError::Ptrace {
            thread,
            request: "wait",
            source,
        };
        match ptrace::poll(thread).map_err(failed)? {
            Wait::Signal(signal) => {
                // Any stop takes back the request to stop (`ptrace_stop` in kernel/signal.c), so
                // ask again, then let the signal through: the thread stops before the first
                // instruction of its handler.
                ptrace::interrupt(thread)?;
                ptrace::resume(thread, signal)?;
                Ok(Wait::Nothing)
            }
            Wait::Syscall => {
                ptrace::interrupt(thread)?;
                ptrace::resume(thread, 0)?;
                Ok(Wait::Nothing)
            }
            other => Ok(other),
        }
    }

    fn resume(&mut self) -> Pause {
        let threads = self.threads.len();
        let acted = Instant::now();
        for thread in self.threads.drain(..) {
            // ESRCH: it was killed meanwhile.
            let _ = ptrace::detach(thread);
        }
        let since = self.since.unwrap_or(acted);
        let us = |length: Duration| u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
        Pause {
            us: us(since.elapsed()),
            stopping_us: us(self.stopped.unwrap_or(since) - since),
            resuming_us: us(acted.elapsed()),
            threads,
        }
    }
}

fn seize(pid: u32, thread: u32) -> Result<(), RelayoutError> {
    // The request waits for an exec to end, and is refused where the exec has put another thread in
    // the place of this one.
    let seized = ptrace::seize(thread).or_else(|_| ptrace::seize(thread));
    seized.map_err(|error| {
        let tracer = status_field(pid, thread, "TracerPid")
            .and_then(|tracer| tracer.parse().ok())
            .unwrap_or(0);
        match state(pid, thread) {
            // ESRCH, or EPERM where its parent has not waited for it.
            'Z' | 'X' | '?' => RelayoutError::Gone { pid },
            _ if tracer != 0 => declined(pid, Declined::Traced { tracer }),
            _ => error,
        }
    })
}

/// The threads of a process that may do a system call, in the order in which they are worth trying:
/// those that sleep in one stop at once and have nothing better to do.
pub(crate) fn threads_by_chance(pid: u32) -> Result<Vec<u32>, RelayoutError> {
    let roots = host::Roots::default();
    let mut threads = host::thread_ids(&roots, pid)?;
    threads
        .retain(|thread| !host::is_io_worker(&roots, pid, *thread) && !is_filtered(pid, *thread));
    threads.sort_by_cached_key(|thread| {
        status_field(pid, *thread, "State").is_none_or(|state| !state.starts_with('S'))
    });
    Ok(threads)
}
