//! What a process does for its CPU time: the number of units of work by which "faster" is measured.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use host::{ProcessTree, Roots};
use perf_events::{Counter, Tracefs};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde::{Deserialize, Serialize};

use crate::RelayoutError;

/// The system calls that send a message: write, writev, sendto, sendmsg, sendmmsg
/// (arch/x86/entry/syscalls/syscall_64.tbl).
const SENDING: &str = "id == 1 || id == 20 || id == 44 || id == 46 || id == 307";

/// What a unit of work is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkUnit {
    /// A message sent, or anything else written: a proxy for an answer given.
    #[default]
    Sends,
    /// What a command counts: the last number that it prints, which only grows
    /// (`mariadb-admin status`, …).
    Command {
        /// For `sh -c`.
        command: String,
        /// What a unit is called.
        name: String,
    },
}

impl WorkUnit {
    /// What the gain is measured in.
    #[must_use]
    pub fn metric(&self) -> String {
        match self {
            Self::Sends => "messages sent per CPU second (a proxy for work done)".to_owned(),
            Self::Command { name, .. } => format!("{name} per CPU second"),
        }
    }
}

/// A reading: only differences mean something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnitReading {
    /// Units of work.
    pub units: f64,
    /// CPU time in user code, in seconds.
    pub user_s: f64,
    /// All CPU time, in seconds.
    pub cpu_s: f64,
}

/// Counts units and CPU time of processes and of those that they start.
#[derive(Debug)]
pub struct UnitMeter {
    unit: WorkUnit,
    counters: Vec<Counter>,
    tree: ProcessTree,
}

impl WorkUnit {
    /// Counts once, to see whether that is possible.
    ///
    /// # Errors
    /// [`RelayoutError::Metric`].
    pub fn try_once(&self) -> Result<(), RelayoutError> {
        match self {
            Self::Sends => Ok(()),
            Self::Command { command, .. } => run(command).map(drop),
        }
    }
}

impl UnitMeter {
    /// Begins.
    ///
    /// # Errors
    /// Tracepoints cannot be counted, or the process is gone.
    pub fn open(pid: u32, unit: &WorkUnit) -> Result<Self, RelayoutError> {
        let mut counters = Vec::new();
        let roots = Roots::default();
        let mut tree = ProcessTree::of(pid);
        tree.read(&roots)?;
        if *unit == WorkUnit::Sends {
            let tracepoint = Tracefs::open()?.format("raw_syscalls", "sys_enter")?;
            for (process, _) in host::family(&roots, pid) {
                for thread in host::thread_ids(&roots, process)? {
                    match Counter::open(thread, &tracepoint, SENDING) {
                        Ok(counter) => counters.push(counter),
                        // It has ended in between.
                        Err(perf_events::Error::Count { source, .. })
                            if source.raw_os_error() == Some(libc::ESRCH) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
        Ok(Self {
            unit: unit.clone(),
            counters,
            tree,
        })
    }

    /// What it has come to.
    ///
    /// # Errors
    /// A counter cannot be read, the command fails or prints no number, or the process is gone.
    pub fn read(&mut self) -> Result<UnitReading, RelayoutError> {
        let units = match &self.unit {
            WorkUnit::Sends => {
                let mut sum = 0;
                for counter in &self.counters {
                    sum += counter.read()?;
                }
                sum as f64
            }
            WorkUnit::Command { command, .. } => run(command)?,
        };
        let cpu = self.tree.read(&Roots::default())?.cpu;
        Ok(UnitReading {
            units,
            user_s: cpu.user_s,
            cpu_s: cpu.total_s(),
        })
    }
}

/// A command that takes longer is not one that reads a counter (`mariadb-admin` takes 10 ms), and
/// hangs.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// More than a counter's reading by far.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// Between two looks at it: a small part of a block of 150 ms.
const POLL: Duration = Duration::from_millis(1);

fn run(command: &str) -> Result<f64, RelayoutError> {
    let (status, printed, said) =
        output(command, TIME_LIMIT).map_err(|why| RelayoutError::Metric {
            command: command.to_owned(),
            why,
        })?;
    let failed = |why: String| RelayoutError::Metric {
        command: command.to_owned(),
        why,
    };
    if !status.success() {
        return Err(failed(match said.trim() {
            "" => format!("it ended with {status}"),
            said => format!("it ended with {status}: {said}"),
        }));
    }
    last_number(&printed)
        .ok_or_else(|| failed(format!("it printed no number: {:?}", tail(printed.trim()))))
}

/// The end of a text, as much as is worth a message.
fn tail(text: &str) -> String {
    let skipped = text.chars().count().saturating_sub(200);
    text.chars().skip(skipped).collect()
}

/// How a command ended, and what it wrote to standard output and error. It has a process group of
/// its own, so that a Ctrl-C is ours to handle and what it leaves behind ends with it, and no
/// input; the process is measured meanwhile, in a layout that may not be its best, so it is not
/// waited for for long.
fn output(command: &str, limit: Duration) -> Result<(ExitStatus, String, String), String> {
    let in_words = |error: io::Error| error.to_string();
    let mut child = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(in_words)?;
    let mut pipes = [
        Pipe::new(child.stdout.take().map(OwnedFd::from)),
        Pipe::new(child.stderr.take().map(OwnedFd::from)),
    ];
    let waited = Pid::from_raw(child.id().cast_signed()).map_or(Ok(()), |pid| {
        let waited = wait(pid, &mut pipes, limit);
        // Whoever is left of it, also where it ended well: it was to count once. Its number is its
        // own until it is waited for.
        let _ = kill_process_group(pid, Signal::KILL);
        waited
    });
    let status = child.wait().map_err(in_words)?;
    waited?;
    let [printed, said] = pipes.map(|pipe| String::from_utf8_lossy(&pipe.bytes).into_owned());
    Ok((status, printed, said))
}

/// Until it has ended, and all that it wrote is read.
fn wait(pid: Pid, pipes: &mut [Pipe; 2], limit: Duration) -> Result<(), String> {
    let start = Instant::now();
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        // Asked before the pipes are read: what it wrote is in them when it has ended.
        let ended = waitid(WaitId::Pid(pid), options).map_err(|error| error.to_string())?;
        for pipe in &mut *pipes {
            pipe.drain().map_err(|error| error.to_string())?;
            if pipe.bytes.len() > OUTPUT_BYTES_MAX {
                return Err(format!("it printed more than {OUTPUT_BYTES_MAX} bytes"));
            }
        }
        if ended.is_some() {
            return Ok(());
        }
        if start.elapsed() > limit {
            return Err(format!("it did not end within {} s", limit.as_secs_f64()));
        }
        sleep(POLL);
    }
}

/// What comes through a pipe, read without waiting for it: somebody else may hold it open for ever.
struct Pipe {
    file: Option<File>,
    bytes: Vec<u8>,
}

impl Pipe {
    fn new(end: Option<OwnedFd>) -> Self {
        Self {
            file: end.map(File::from),
            bytes: Vec::new(),
        }
    }

    /// Reads what is there, up to a little more than is allowed.
    fn drain(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        fcntl_setfl(&*file, OFlags::NONBLOCK)?;
        let mut piece = [0; 1 << 16];
        while self.bytes.len() <= OUTPUT_BYTES_MAX {
            match file.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => self.bytes.extend(&piece[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The last number, also one like `1.5e+09`, as awk prints sums. One with commas in it may be two
/// things, and is none.
fn last_number(text: &str) -> Option<f64> {
    let is_part = |letter: char| letter.is_ascii_digit() || ".,+-eE".contains(letter);
    let words = text.split(|letter: char| !is_part(letter));
    let mut words = words.map(|word| word.trim_end_matches(['.', ',', '+', '-', 'e', 'E']));
    let last = words.rfind(|word| word.contains(|letter: char| letter.is_ascii_digit()))?;
    last.trim_start_matches(['e', 'E']).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_is_taken() {
        assert_eq!(last_number("Uptime: 3\nQuestions 1234\n"), Some(1234.0));
        assert_eq!(last_number("0.5 x 17.25"), Some(17.25));
        assert_eq!(last_number("nothing"), None);
        assert_eq!(last_number("1.23e+09\n"), Some(1.23e9));
        assert_eq!(last_number("queries: 17, slow."), Some(17.0));
        assert_eq!(last_number("-5"), Some(-5.0));
        assert_eq!(last_number("rate=7 done"), Some(7.0));
        for two_things in ["1,234", "1-2", "3e"] {
            assert_ne!(last_number(two_things), Some(234.0), "{two_things}");
        }
        assert_eq!(last_number("1,234"), None);
        assert_eq!(run("echo a 5 b 6").unwrap(), 6.0);
        for (command, said) in [
            ("exit 3", "exit status: 3"),
            ("echo", "no number"),
            ("echo 1,5", "no number"),
        ] {
            let error = run(command).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_command_that_does_not_end_or_floods_or_reads_or_leaves_somebody_behind_holds_nobody_up() {
        let start = Instant::now();
        let limit = Duration::from_millis(300);
        let why = output("sleep 1000", limit).unwrap_err();
        assert_eq!(why, "it did not end within 0.3 s");
        let why = output("yes", TIME_LIMIT).unwrap_err();
        assert_eq!(why, "it printed more than 1048576 bytes");
        assert_eq!(run("sleep 1000 & echo 7").unwrap(), 7.0);
        // There is nothing to read.
        let error = run("cat").unwrap_err().to_string();
        assert!(error.contains("no number"), "{error}");
        let long = run("yes no | head -1000").unwrap_err().to_string();
        assert!(long.len() < 500, "{long}");
        assert!(start.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn what_a_command_left_behind_ends_with_it() {
        let (_, printed, _) = output("sleep 1000 & echo $!", TIME_LIMIT).unwrap();
        let pid = printed.trim().parse().unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while host::start_time(&Roots::default(), pid)
            .is_ok_and(|start_time| host::is_running(&Roots::default(), pid, start_time))
        {
            assert!(Instant::now() < end, "it lives on");
            sleep(POLL);
        }
    }
}
