//! What is measured runs before all else on the machine.
//!
//! A machine has work of its own: a container's supervisor, the kernel's memory management. A few
//! milliseconds of it a second decide a 99th percentile. So servers and client run at nice −20. So
//! does ksoftirqd: the kernel gives it the receive work that was too much for an interrupt, and
//! beside a client of a higher priority it would hardly run.

use std::process::{Command, Stdio};

use anyhow::Context as _;

/// The highest priority (sched(7)).
pub(super) const HIGHEST: &str = "-20";

/// The threads `ksoftirqd` at the highest priority, until this is dropped.
pub(super) struct Raised {
    /// Each thread with its nice value of before.
    before: Vec<(u32, i64)>,
}

impl Raised {
    pub(super) fn new() -> anyhow::Result<Self> {
        let mut raised = Self { before: Vec::new() };
        for entry in std::fs::read_dir("/proc")? {
            let Ok(pid) = entry?.file_name().to_string_lossy().parse() else {
                continue;
            };
            // A process may have ended meanwhile.
            let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
                continue;
            };
            if let Some(nice) = nice_of_ksoftirqd(&stat) {
                renice(pid, HIGHEST)?;
                raised.before.push((pid, nice));
            }
        }
        Ok(raised)
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        for (pid, nice) in &self.before {
            if let Err(error) = renice(*pid, &nice.to_string()) {
                println!("thread {pid} (ksoftirqd) keeps nice {HIGHEST}: {error:#}");
            }
        }
    }
}

/// The nice value in a line of `/proc/PID/stat` (proc_pid_stat(5), field 19), if it is ksoftirqd's.
fn nice_of_ksoftirqd(stat: &str) -> Option<i64> {
    const BEHIND_NAME: usize = 16;
    let (_, name) = stat.split_once('(')?;
    let (name, fields) = name.rsplit_once(')')?;
    name.starts_with("ksoftirqd/").then_some(())?;
    fields
        .split_whitespace()
        .nth(BEHIND_NAME)
        .and_then(|nice| nice.parse().ok())
}

fn renice(pid: u32, nice: &str) -> anyhow::Result<()> {
    let status = Command::new("renice")
        .args(["-n", nice, "-p", &pid.to_string()])
        .stdout(Stdio::null())
        .status()
        .context("renice")?;
    anyhow::ensure!(status.success(), "renice -n {nice} -p {pid} failed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ksoftirqd_is_raised_from_its_own_nice_value() {
        let line = |name: &str, nice: &str| {
            format!("14 ({name}) S 2 0 0 0 -1 69238848 0 0 0 0 0 3 0 0 20 {nice} 1 0 5")
        };
        assert_eq!(nice_of_ksoftirqd(&line("ksoftirqd/0", "0")), Some(0));
        assert_eq!(nice_of_ksoftirqd(&line("ksoftirqd/11", "-5")), Some(-5));
        assert_eq!(nice_of_ksoftirqd(&line("a (ksoftirqd/", "0")), None);
        assert_eq!(nice_of_ksoftirqd("14"), None);
    }
}
