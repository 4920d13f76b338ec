//! Starting, watching and ending processes: the target's and the workload's.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use host::Roots;
use rustix::process::{Pid, Signal};

use crate::daemon::Left;
use crate::log_end::{OUTPUT_LINES, end_of_file, extract, last_lines};
use crate::secrets;
use crate::shell_words::quoted;
use crate::stop::POLL;
pub use crate::stop::{Interrupt, Stop};
use experiment_spec::environment::secret_in;

/// What a command may print, as all of it is read into memory: some thousand times as much as any
/// load generator's report.
const OUTPUT_MAX_BYTES: u64 = 64 << 20;

/// Marks, in its environment, every process that ends with its run: the value is the instance's
/// directory. So what a `kill -9` of Slackline orphans is found even if the journal had no time to
/// name it.
const INSTANCE: &str = "SLACKLINE_INSTANCE";

/// What the control groups of a run's instances are called, before its pid.
pub(crate) const GROUP: &str = "slackline-";

/// A command, filled in and ready to run.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Environment beside Slackline's own.
    pub env: BTreeMap<String, String>,
    /// More of it: the files that hold the values.
    pub env_files: BTreeMap<String, PathBuf>,
    /// Working directory.
    pub dir: PathBuf,
    /// CPUs to run on.
    pub cpus: Option<Vec<usize>>,
    /// Where standard output and error go: `NAME.out`, `NAME.err`.
    pub log: PathBuf,
    /// What it starts belongs to the user and stays: a service restarted by an `apply` step.
    pub may_outlive_run: bool,
}

impl Launch {
    /// The file that takes standard output (`out`) or error (`err`).
    pub fn log_file(&self, stream: &str) -> PathBuf {
        self.log.with_extension(stream)
    }

    /// The command as one would type it into a shell, without its secrets.
    pub fn command_line(&self) -> String {
        let words = secrets::masked(&self.argv);
        let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        words.join(" ")
    }

    /// How it was run and what it said on standard error, for a message about its output.
    pub fn account(&self) -> String {
        let said = extract(&self.log_file("err"));
        let said = said.map_or_else(String::new, |said| {
            let said = self.without_secrets(&said);
            format!(". On standard error it said: {said}")
        });
        format!("It was run as: {}{said}", self.command_line())
    }

    /// A text that quotes what the command has printed, with the command's secrets masked.
    pub(crate) fn without_secrets(&self, text: &str) -> String {
        secrets::without_secrets(&self.argv, &self.env, &self.env_files, text)
    }

    /// The beginning and the end of a log, for messages: of standard error, or of standard output
    /// where that is empty.
    pub fn tail(&self) -> String {
        self.printed()
            .unwrap_or_else(|| "it printed nothing".into())
    }

    fn printed(&self) -> Option<String> {
        let mut streams = ["err", "out"].into_iter();
        let said = streams.find_map(|stream| extract(&self.log_file(stream)))?;
        Some(self.without_secrets(&said))
    }

    /// The last lines of both logs, to be kept, of each no more than that; nothing, where they are
    /// empty.
    pub(crate) fn output(&self, most_bytes: u64) -> Option<String> {
        let of = |stream: &str| {
            let end = end_of_file(&self.log_file(stream), most_bytes)?;
            Some(self.without_secrets(&end))
        };
        match (of("out"), of("err")) {
            (Some(out), Some(err)) => {
                Some(format!("standard output:\n{out}\nstandard error:\n{err}"))
            }
            (out, err) => err.or(out),
        }
    }

    /// The end of what it printed, line by line, for reports; standard error first.
    pub(crate) fn end_of_output(&self) -> Option<String> {
        let of = |stream: &&str| last_lines(&self.log_file(stream), OUTPUT_LINES);
        let streams: Vec<String> = ["err", "out"]
            .iter()
            .filter_map(of)
            .map(|lines| self.without_secrets(&lines.join("\n")))
            .collect();
        (!streams.is_empty()).then(|| streams.join("\n"))
    }

    /// The directory of the instance for which it runs.
    fn instance(&self) -> PathBuf {
        let dir = self.log.parent().unwrap_or(&self.log);
        std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned())
    }

    /// Starts the command in a process group of its own, so that a terminal's Ctrl-C does not reach
    /// it.
    ///
    /// # Errors
    /// In words, with the program's name.
    pub fn spawn(&self) -> Result<Child, String> {
        let (program, arguments) = self.argv.split_first().ok_or("the command is empty")?;
        let create = |stream: &str| {
            let path = self.log_file(stream);
            create_anew(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let secrets = self.env_files.iter().map(|(name, file)| {
            let value = secret_in(file);
            Ok::<_, String>((
                name,
                value.map_err(|why| format!("the variable {name}: {why}"))?,
            ))
        });
        let secrets = secrets.collect::<Result<Vec<_>, String>>()?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .envs(&self.env)
            .envs(secrets)
            .env_remove(INSTANCE)
            .envs((!self.may_outlive_run).then(|| (INSTANCE, self.instance())))
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(create("out")?)
            .stderr(create("err")?)
            .process_group(0);
        let spawned = match &self.cpus {
            Some(cpus) => {
                host::spawn_pinned(&mut command, cpus).map_err(|error| error.to_string())?
            }
            None => command.spawn(),
        };
        spawned.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                format!("{program}: there is no such program on the PATH")
            }
            _ => format!("{program}: {error}"),
        })
    }

    /// Runs the command to its end, while `alive` answers `Ok`.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn run(
        &self,
        timeout: Duration,
        interrupt: &Interrupt,
        alive: impl FnMut() -> Result<(), String>,
    ) -> Result<String, RunError> {
        let child = self.spawn().map_err(RunError::Start)?;
        Running {
            launch: self,
            child,
            started: Instant::now(),
        }
        .wait(timeout, interrupt, alive)
    }
}

/// A command that runs.
pub struct Running<'a> {
    launch: &'a Launch,
    child: Child,
    started: Instant,
}

impl<'a> Running<'a> {
    /// Starts it.
    ///
    /// # Errors
    /// [`RunError::Start`].
    pub fn start(launch: &'a Launch) -> Result<Self, RunError> {
        Ok(Self {
            launch,
            child: launch.spawn().map_err(RunError::Start)?,
            started: Instant::now(),
        })
    }

    /// Waits for its end, which must come within `timeout` of the start.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn wait(
        mut self,
        timeout: Duration,
        interrupt: &Interrupt,
        mut alive: impl FnMut() -> Result<(), String>,
    ) -> Result<String, RunError> {
        let program = self.launch.argv.first().cloned().unwrap_or_default();
        let path = self.launch.log_file("out");
        let flood = || {
            let length_bytes = std::fs::metadata(&path).map_or(0, |file| file.len());
            (length_bytes > OUTPUT_MAX_BYTES).then(|| {
                RunError::Status(format!(
                    "{program} printed more than {} MiB",
                    OUTPUT_MAX_BYTES >> 20
                ))
            })
        };
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => {}
                Err(error) => return Err(RunError::Start(format!("{program}: {error}"))),
            }
            let stop = match interrupt.stop() {
                Some(stop) => Some(RunError::Interrupted(stop)),
                None if self.started.elapsed() > timeout => Some(RunError::Timeout(format!(
                    "{program} did not end within {:.0} s",
                    timeout.as_secs_f64()
                ))),
                None => alive().err().map(RunError::TargetDied).or_else(flood),
            };
            if let Some(stop) = stop {
                end_group(&mut self.child, Signal::KILL, Duration::ZERO);
                return Err(stop);
            }
            std::thread::sleep(POLL);
        };
        if !status.success() {
            return Err(RunError::Status(format!(
                "{program} ended with {} and printed{}. It was run as: {}",
                describe(status),
                match self.launch.printed() {
                    Some(said) => format!(": {said}"),
                    None => " nothing".to_owned(),
                },
                self.launch.command_line()
            )));
        }
        if let Some(flood) = flood() {
            return Err(flood);
        }
        std::fs::read(&path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .map_err(|error| RunError::Start(format!("{}: {error}", path.display())))
    }
}

impl Drop for Running<'_> {
    /// A load generator whose sibling failed does not run on.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            end_group(&mut self.child, Signal::KILL, Duration::ZERO);
        }
    }
}

/// Why a command gave no output.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// It could not be started.
    #[error("{0}")]
    Start(String),
    /// It ended with an error.
    #[error("{0}")]
    Status(String),
    /// It did not end.
    #[error("{0}")]
    Timeout(String),
    /// The target died meanwhile.
    #[error("{0}")]
    TargetDied(String),
    /// Something asked to stop.
    #[error("stopped by {0}")]
    Interrupted(Stop),
}

/// "exit status 1", "signal 9".
pub fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no status".into(),
    }
}

/// Ends a process group that we started: `signal` to its first process, which after `grace` is
/// followed by SIGKILL to the whole group and all that it had started.
pub(crate) fn end_group(child: &mut Child, signal: Signal, grace: Duration) {
    let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else {
        return;
    };
    let roots = Roots::default();
    // Asked before the first signal: orphans no longer show whose they were.
    let members = host::family(&roots, child.id());
    if matches!(child.try_wait(), Ok(None)) {
        // Errors mean that it is gone already.
        let _ = rustix::process::kill_process(pid, signal);
        let end = Instant::now() + grace;
        while Instant::now() < end && matches!(child.try_wait(), Ok(None)) {
            std::thread::sleep(POLL);
        }
    }
    let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    let _ = child.wait();
    // Some may have left the group, as with `su -`, and SIGKILL is delivered, not awaited.
    end_all(|| {
        let running = members.iter();
        let running =
            running.filter(|(pid, start_time)| host::is_running(&roots, *pid, *start_time));
        let families = running.flat_map(|(pid, _)| host::family(&roots, *pid));
        families.map(|(pid, _)| pid).collect()
    });
}

/// How long killed processes are waited for; one in an uninterruptible sleep may take longer.
const KILL_WAIT: Duration = Duration::from_secs(1);

/// Whether a process is there and not a zombie: proc_pid_stat(5), field 3.
fn runs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    })
}

/// A new file in the place of what is there. Whoever may write to an instance's directory may have
/// put a link in its place, which is not followed.
pub(crate) fn create_anew(path: &Path) -> std::io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => File::create_new(path),
    }
}

/// The processes that runs with their directories below `scratch_root` started and did not end. The
/// caller holds the host's lock, so no other run is alive; a process that has overwritten its
/// environment is not seen.
#[must_use]
pub fn orphans(scratch_root: &Path) -> Vec<u32> {
    let mark = format!("{INSTANCE}={}/", scratch_root.display()).into_bytes();
    let is_ours = |pid: &u32| {
        // A process that has just gone, or is another user's, has no environment to read.
        std::fs::read(format!("/proc/{pid}/environ"))
            .unwrap_or_default()
            .split(|byte| *byte == 0)
            .any(|variable| variable.starts_with(&mark))
    };
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(is_ours)
        .collect()
}

/// While it lives, processes whose parent ends are left to this process, and not to the first
/// process of the system (prctl(2), `PR_SET_CHILD_SUBREAPER`): so a service that goes into the
/// background is found, whatever it did to its session and its environment.
pub(crate) struct Adopting;

impl Adopting {
    pub(crate) fn begin() -> Self {
        // Where the kernel refuses, such a service is not found.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        Self
    }
}

impl Drop for Adopting {
    fn drop(&mut self) {
        let _ = rustix::process::set_child_subreaper(None);
        reap_left();
    }
}

/// What was started for the instance in `dir` and left to this process. A process that has
/// overwritten its environment, as nginx does, has no variable at all; children of this process
/// that belong to something else have some.
pub(crate) fn left_to_us(dir: &Path) -> Vec<Left> {
    let mark = format!("{INSTANCE}={}", dir.display()).into_bytes();
    let is_of = |left: &Left| {
        let environment = std::fs::read(format!("/proc/{}/environ", left.pid)).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        !environment.contains(&b'=') || variables.any(|variable| variable == mark)
    };
    let mut left = all_left();
    left.retain(|left| !left.is_zombie && is_of(left));
    left
}

/// Ends such processes and all that they started.
pub(crate) fn end_left(left: &[Left]) {
    let roots = Roots::default();
    end_all(|| {
        let running = left.iter().filter(|left| runs(left.pid));
        let families = running.flat_map(|left| host::family(&roots, left.pid));
        families.map(|(pid, _)| pid).collect()
    });
    reap_left();
}

/// Waits for those that have ended: nobody else will.
fn reap_left() {
    for left in all_left().into_iter().filter(|left| left.is_zombie) {
        let pid = i32::try_from(left.pid).ok().and_then(Pid::from_raw);
        let _ = rustix::process::waitpid(pid, rustix::process::WaitOptions::NOHANG);
    }
}

/// Children of this process that it did not start itself. Those that it did lead a process group in
/// its own session ([`Launch::spawn`]) or are in its own group.
fn all_left() -> Vec<Left> {
    let (roots, own_pid) = (Roots::default(), std::process::id());
    let Some(own) = host::kinship(&roots, own_pid) else {
        return Vec::new();
    };
    let pids = host::all_pids(&roots).unwrap_or_default();
    let left = pids.into_iter().filter_map(|pid| {
        let kin = host::kinship(&roots, pid)?;
        let is_started = kin.group == own.group || (kin.group == pid && kin.session == own.session);
        (kin.parent == own_pid && !is_started).then_some(Left {
            pid,
            name: kin.name,
            is_zombie: kin.is_zombie,
        })
    });
    left.collect()
}

/// What a run left in the control groups that it made for its instances, `slackline-PID/…`: also
/// processes that have overwritten their environment. The caller holds the host's lock.
#[must_use]
pub fn left_in_groups(roots: &Roots, directories: &[PathBuf]) -> Vec<u32> {
    let is_ours = |directory: &&PathBuf| {
        let parent = directory.parent().and_then(Path::file_name);
        parent.is_some_and(|name| name.to_string_lossy().starts_with(GROUP))
    };
    let members = directories
        .iter()
        .filter(is_ours)
        .flat_map(|directory| host::processes_in(&roots.absolute(directory)));
    members.flatten().collect()
}

/// Kills processes that are ours, such as [`orphans`]; one that has ended by itself is no error.
pub fn kill_all(pids: &[u32]) {
    let pids = pids.iter().filter_map(|pid| i32::try_from(*pid).ok());
    for pid in pids.filter_map(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// Kills what commands of the run with its directories below `scratch` left running, and waits for
/// its end: whoever went into the background or made a session of its own. A service that runs on
/// is left alone: `kept` is its first process, with its control group if it has one of its own.
pub(crate) fn end_orphans(scratch: &Path, kept: Option<(u32, Option<&str>)>) {
    let roots = Roots::default();
    end_all(|| {
        let mut left = orphans(scratch);
        left.retain(|pid| runs(*pid));
        if let (Some((pid, group)), false) = (kept, left.is_empty()) {
            let group = group.map(|group| host::processes_below(&roots, group));
            let members = group.and_then(Result::ok).unwrap_or_default();
            let family = host::family(&roots, pid);
            left.retain(|left| {
                !members.contains(left)
                    && !family.iter().any(|(of, _)| of == left)
                    && !is_in_group_of(*left, pid)
            });
        }
        left
    });
}

/// Whether a process is in the process group that another one leads.
fn is_in_group_of(pid: u32, leader: u32) -> bool {
    let as_pid = |pid: u32| i32::try_from(pid).ok().and_then(Pid::from_raw);
    let group = as_pid(pid).and_then(|pid| rustix::process::getpgid(Some(pid)).ok());
    group.is_some() && group == as_pid(leader)
}

/// Kills what is in a group of ours, until it is empty: also processes that left the process group.
pub(crate) fn end_members(roots: &Roots, group: &str) {
    end_all(|| host::processes_below(roots, group).unwrap_or_default());
}

/// Kills what is left until nothing is.
fn end_all(left: impl Fn() -> Vec<u32>) {
    let end = Instant::now() + KILL_WAIT;
    loop {
        let pids = left();
        if pids.is_empty() || Instant::now() >= end {
            return;
        }
        kill_all(&pids);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests;
