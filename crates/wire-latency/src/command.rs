//! A command as a source: it prints the latency in milliseconds and the number of requests that it
//! stands on.

use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command as Process, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::Error;
use crate::distribution::{COUNT_MAX, Distribution, LATENCY_US_MAX};
use crate::pace::{LOOK_EVERY, Pace};
use crate::reading::{NoData, Slice};
use crate::source::{LatencySource, Surroundings, Wrong};
use crate::stopper::Stopper;

/// A command that takes longer is ended.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of its output that are read.
const OUTPUT_MAX: usize = 4096;

/// How often it is looked whether a command that has closed its output has ended.
const END_EVERY: Duration = Duration::from_millis(2);

/// A command that is run for each poll.
#[derive(Debug)]
pub(crate) struct Command {
    argv: Vec<String>,
    stopper: Stopper,
    quantile: f64,
    pace: Pace,
    /// It has run before: what it prints is of the time since.
    has_run: bool,
}

impl Command {
    pub(crate) fn new(argv: &[String], surroundings: &Surroundings) -> Result<Self, Error> {
        if argv.is_empty() {
            return Err(Wrong::new("command", "name a program").into());
        }
        Ok(Self {
            argv: argv.to_vec(),
            stopper: Stopper::default(),
            quantile: surroundings.percentile / 100.0,
            pace: Pace::new(LOOK_EVERY),
            has_run: false,
        })
    }

    fn run(&self) -> Result<String, String> {
        let mut process = Process::new(&self.argv[0]);
        process
            .args(&self.argv[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        ends_with_this_thread(&mut process);
        let mut child = self
            .stopper
            .spawn(&mut process)
            .map_err(|error| format!("{}: {error}", self.argv[0]))?;
        let deadline = Instant::now() + TIME_LIMIT;
        let output = read(&mut child, deadline);
        let ended = output.and_then(|output| Ok((output, self.status(&mut child, deadline)?)));
        if ended.is_err() {
            self.stopper.kill();
            // What was killed ends, and leaves no zombie.
            let _ = self.status(&mut child, Instant::now() + TIME_LIMIT);
        }
        let (output, status) = ended?;
        match status.success() {
            true => Ok(output),
            false => Err(format!("{} ended with {status}", self.argv[0])),
        }
    }

    fn status(&self, child: &mut Child, deadline: Instant) -> Result<ExitStatus, String> {
        loop {
            let reaped = self.stopper.reap(child);
            if let Some(status) = reaped.map_err(|error| error.to_string())? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                return Err(too_long());
            }
            std::thread::sleep(END_EVERY);
        }
    }
}

fn too_long() -> String {
    format!("it took longer than {} s", TIME_LIMIT.as_secs())
}

/// The kernel kills the command when the thread that started it ends: a killed Slackline can do it
/// no more.
fn ends_with_this_thread(process: &mut Process) {
    let asks = || set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from);
    // SAFETY: pre_exec wants a closure that is safe after fork. This one makes one system call
    // (prctl), allocates nothing and takes no lock.
    unsafe { process.pre_exec(asks) };
}

/// Its output, up to its end.
fn read(child: &mut Child, deadline: Instant) -> Result<String, String> {
    let Some(mut stdout) = child.stdout.take() else {
        return Ok(String::new());
    };
    let mut output = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(|error| error.to_string())?;
        let mut descriptors = [PollFd::new(&stdout, PollFlags::IN)];
        let is_ready = poll(&mut descriptors, Some(&timeout)).map_err(|errno| errno.to_string())?;
        if is_ready == 0 {
            return Err(too_long());
        }
        let mut buffer = [0; 1024];
        let count = stdout
            .read(&mut buffer)
            .map_err(|error| error.to_string())?;
        output.extend_from_slice(&buffer[..count]);
        if output.len() > OUTPUT_MAX {
            return Err("it printed more than two numbers".to_owned());
        }
        if count == 0 {
            return Ok(String::from_utf8_lossy(&output).into_owned());
        }
    }
}

/// `LATENCY_MS REQUESTS`.
fn parse(output: &str) -> Option<(f64, u64)> {
    let mut words = output.split_whitespace();
    let latency_ms: f64 = words.next()?.parse().ok()?;
    let requests: u64 = words.next()?.parse().ok()?;
    let is_latency = (0.0..=LATENCY_US_MAX / 1000.0).contains(&latency_ms);
    let is_sane = is_latency && requests as f64 <= COUNT_MAX && words.next().is_none();
    is_sane.then_some((latency_ms, requests))
}

impl LatencySource for Command {
    fn describe(&self) -> String {
        format!("the command {}", self.argv[0])
    }

    fn stopper(&self) -> Option<Stopper> {
        Some(self.stopper.clone())
    }

    fn poll(&mut self, until: Instant) -> Result<Slice, NoData> {
        self.pace.wait(until);
        let failed = |why: String| NoData::Failed {
            why: format!("the command: {why}"),
        };
        let output = self.run().map_err(failed)?;
        if !std::mem::replace(&mut self.has_run, true) {
            return Err(NoData::Starting);
        }
        let (latency_ms, requests) = parse(&output).ok_or_else(|| {
            let beginning: String = output.trim().chars().take(80).collect();
            failed(format!(
                "it printed {beginning:?} in place of a latency in milliseconds and a number of requests"
            ))
        })?;
        Ok(Slice {
            distribution: match requests {
                0 => Distribution::Empty,
                requests => Distribution::Figure {
                    quantile: self.quantile,
                    value_us: latency_ms * 1000.0,
                    requests,
                },
            },
            sampled_share: 1.0,
            ..Slice::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(script: &str) -> Command {
        let argv = ["sh", "-c", script].map(str::to_owned);
        let mut source = Command::new(&argv, &Surroundings::default()).unwrap();
        source.pace = Pace::new(Duration::ZERO);
        source
    }

    #[test]
    fn a_figure_is_of_the_time_since_the_last_run() {
        let mut source = source("echo 2.5 300");
        assert_eq!(source.poll(Instant::now()).unwrap_err(), NoData::Starting);
        let slice = source.poll(Instant::now()).unwrap();
        assert_eq!(slice.distribution.requests(), 300);
        assert_eq!(slice.distribution.quantile_us(0.99), Some(2500.0));
        assert_eq!(slice.distribution.quantile_us(0.5), None);
    }

    #[test]
    fn a_command_that_runs_can_be_stopped_and_none_is_started_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let mut source = source(&format!("echo $$ > {}; exec sleep 1000", file.display()));
        let stopper = source.stopper().unwrap();
        let polling = std::thread::spawn(move || {
            let first = source.poll(Instant::now());
            (first, source.poll(Instant::now()))
        });
        let pid = loop {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            if let Ok(pid) = text.trim().parse::<u32>() {
                break pid;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        stopper.stop();
        let (first, second) = polling.join().unwrap();
        assert!(first.is_err() && second.is_err());
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_command_ends_with_the_thread_that_started_it() {
        let mut child = std::thread::spawn(|| {
            let mut process = Process::new("sleep");
            ends_with_this_thread(&mut process);
            process.arg("1000").spawn().unwrap()
        })
        .join()
        .unwrap();
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn anything_else_than_two_numbers_is_a_failure() {
        for (script, why) in [
            ("echo 2.5", "in place of"),
            ("echo x 3", "in place of"),
            ("echo -1 3", "in place of"),
            ("echo 1e300 3", "in place of"),
            ("echo 1 18446744073709551615", "in place of"),
            ("echo 1 2 3", "in place of"),
            ("echo 1 2; exit 3", "exit status: 3"),
            ("yes", "more than two numbers"),
        ] {
            let mut source = source(script);
            let polls = [source.poll(Instant::now()), source.poll(Instant::now())];
            let failure = polls.into_iter().find_map(|polled| match polled {
                Err(NoData::Failed { why }) => Some(why),
                _ => None,
            });
            assert!(
                failure.is_some_and(|failure| failure.contains(why)),
                "{script}"
            );
        }
        assert!(Command::new(&[], &Surroundings::default()).is_err());
    }
}
