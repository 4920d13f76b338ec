//! What a process does for its CPU time: the number of units of work by which "faster" is measured.

use std::process::Command;

use host::{ProcessTree, Roots};
use perf_events::{Counter, Tracefs};
use serde::{Deserialize, Serialize};

use crate::RelayoutError;

/// The system calls that send a message: write, writev, sendto, sendmsg, sendmmsg (arch/x86/entry/syscalls/syscall_64.tbl).
const SENDING: &str = "id == 1 || id == 20 || id == 44 || id == 46 || id == 307";

/// What a unit of work is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A message sent, or anything else written: a proxy for an answer given.
    #[default]
    Sends,
    /// What a command counts: the last number that it prints, which only grows (`mariadb-admin status`, …).
    Command {
        /// For `sh -c`.
        command: String,
        /// What a unit is called.
        name: String,
    },
}

impl Unit {
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
pub struct Reading {
    /// Units of work.
    pub units: f64,
    /// CPU time in user code, in seconds.
    pub user_s: f64,
    /// All CPU time, in seconds.
    pub cpu_s: f64,
}

/// Counts units and CPU time of processes and of those that they start.
#[derive(Debug)]
pub struct Meter {
    unit: Unit,
    counters: Vec<Counter>,
    tree: ProcessTree,
}

impl Unit {
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

impl Meter {
    /// Begins.
    ///
    /// # Errors
    /// Tracepoints cannot be counted, or the process is gone.
    pub fn open(pid: u32, unit: &Unit) -> Result<Self, RelayoutError> {
        let mut counters = Vec::new();
        let roots = Roots::default();
        let mut tree = ProcessTree::of(pid);
        tree.read(&roots)?;
        if *unit == Unit::Sends {
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
    pub fn read(&mut self) -> Result<Reading, RelayoutError> {
        let units = match &self.unit {
            Unit::Sends => {
                let mut sum = 0;
                for counter in &self.counters {
                    sum += counter.read()?;
                }
                sum as f64
            }
            Unit::Command { command, .. } => run(command)?,
        };
        let cpu = self.tree.read(&Roots::default())?.cpu;
        Ok(Reading {
            units,
            user_s: cpu.user_s,
            cpu_s: cpu.total_s(),
        })
    }
}

fn run(command: &str) -> Result<f64, RelayoutError> {
    let failed = |why: String| RelayoutError::Metric {
        command: command.to_owned(),
        why,
    };
    let output = Command::new("sh")
        .args(["-c", command])
        .output()
        .map_err(|error| failed(error.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(failed(match said.trim() {
            "" => format!("it ended with {}", output.status),
            said => format!("it ended with {}: {said}", output.status),
        }));
    }
    last_number(&text).ok_or_else(|| failed(format!("it printed no number: {:?}", text.trim())))
}

/// The last number, also one like `1.5e+09`, as awk prints sums. One with commas in it may be two things, and is none.
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
}
