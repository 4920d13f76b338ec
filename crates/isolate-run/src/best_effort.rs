//! Best-effort work that Slackline starts or adopts: a group of its own, a command that is started
//! again when it ends, and a count of what it got done.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use host::{GroupMembers, Hierarchies, Journal, Roots};

use crate::config::BestEffort;
use crate::error::IsolateError;
use crate::subject::{Host, Place, group_again, own_group};

/// Controllers that a group of Slackline's own gets, where the host has them.
pub(crate) const CONTROLLERS: [&str; 7] = [
    "cpu", "cpuacct", "cpuset", "memory", "blkio", "io", "freezer",
];
/// A command that ends at once is not started in a tight loop.
const RESTART_FIRST: Duration = Duration::from_secs(1);
const RESTART_MOST: Duration = Duration::from_secs(60);
/// A progress command is asked this often.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// One best-effort group.
pub(crate) struct Work {
    /// What the configuration says.
    pub(crate) config: BestEffort,
    /// Where it runs; `None` while it does not.
    pub(crate) place: Option<Place>,
    /// Why it is left alone though the configuration names it.
    pub(crate) left: Option<String>,
    /// What the user is told of it next.
    pub(crate) news: Vec<String>,
    was_looked_for: bool,
    is_absence_said: bool,
    /// The start time of the process that was adopted.
    adopted: Option<u64>,
    /// When what an ended command has left was asked to end.
    ending: Option<Instant>,
    is_leaving_said: bool,
    child: Option<Child>,
    started: Option<Instant>,
    wait: Duration,
    /// Starts of the command.
    pub(crate) starts: u64,
    asked: Option<Instant>,
    asking: Option<std::sync::mpsc::Receiver<Option<f64>>>,
    /// Units of work so far, where it says.
    pub(crate) progress: Option<f64>,
    /// When it last said how much.
    answered: Option<(Instant, f64)>,
    /// Units of work a second, between its last two answers.
    pub(crate) progress_per_s: Option<f64>,
}

impl Work {
    pub(crate) fn new(config: BestEffort) -> Self {
        Self {
            config,
            place: None,
            left: None,
            news: Vec::new(),
            was_looked_for: false,
            is_absence_said: false,
            adopted: None,
            ending: None,
            is_leaving_said: false,
            child: None,
            started: None,
            wait: RESTART_FIRST,
            starts: 0,
            asked: None,
            asking: None,
            progress: None,
            answered: None,
            progress_per_s: None,
        }
    }

    /// Finds the group, or makes it and starts or adopts what belongs there. A group that is not
    /// there is no error: it may come.
    ///
    /// # Errors
    ///
    /// A group cannot be made or entered.
    pub(crate) fn find(
        &mut self,
        host: Host<'_>,
        journal: Option<&mut Journal>,
    ) -> Result<(), IsolateError> {
        let roots = host.roots;
        if self.config.command.is_none() && self.config.pid.is_none() {
            let found = group_again(host, &self.config, self.place.as_ref());
            self.tell_of_absence(&found);
            self.place = match found {
                Ok(group) => Some(Place { group, pid: None }),
                Err(IsolateError::NotThere { .. }) => None,
                Err(error) => return Err(error),
            };
            return Ok(());
        }
        let Some(journal) = journal else {
            self.place = self.config.pid.and_then(|pid| observed(roots, pid));
            return Ok(());
        };
        let group = own_group(&self.config);
        match self.config.pid {
            Some(pid) => self.tend_process(host, journal, &group, pid),
            None => self.tend_command(roots, journal, &group),
        }
    }

    /// A group that is not there at the start is said once, and so is its coming.
    fn tell_of_absence(&mut self, found: &Result<Option<String>, IsolateError>) {
        let was_looked_for = std::mem::replace(&mut self.was_looked_for, true);
        match found {
            Err(error @ IsolateError::NotThere { .. }) if !was_looked_for => {
                self.is_absence_said = true;
                let text = format!("{error}; isolate steers it as soon as it is there");
                self.news.push(text);
            }
            Ok(Some(group)) if std::mem::take(&mut self.is_absence_said) => {
                let name = &self.config.name;
                let text = format!("best-effort group {name} is there now: control group {group}");
                self.news.push(text);
            }
            _ => {}
        }
    }

    /// Adopts the process with its children when it is first seen. A later process with its pid is
    /// another one. Children that outlive it stay in the group.
    fn tend_process(
        &mut self,
        host: Host<'_>,
        journal: &mut Journal,
        group: &str,
        pid: u32,
    ) -> Result<(), IsolateError> {
        let roots = host.roots;
        let started = host::start_time(roots, pid).ok();
        if let (None, Some(started)) = (self.adopted, started) {
            make_group(journal, roots, group)?;
            for (member, _) in host::family(roots, pid) {
                match journal.attach(roots, group, member) {
                    // It has ended meanwhile.
                    Err(_) if host::start_time(roots, member).is_err() => {}
                    attached => attached?,
                }
            }
            self.adopted = Some(started);
        }
        let is_it = self.adopted.is_some() && self.adopted == started;
        let was_there = self.place.is_some();
        let is_there = is_it || host::has_process(host.hierarchies, group).unwrap_or(false);
        self.place = is_there.then(|| Place {
            group: Some(group.to_owned()),
            pid: Some(pid),
        });
        if was_there && !is_there {
            let name = &self.config.name;
            self.news.push(format!(
                "best-effort group {name}: process {pid} has ended; isolate does not take a later process with this pid"
            ));
        }
        Ok(())
    }

    fn tend_command(
        &mut self,
        roots: &Roots,
        journal: &mut Journal,
        group: &str,
    ) -> Result<(), IsolateError> {
        if let Some(child) = &mut self.child {
            match child.try_wait() {
                Ok(None) => return Ok(()),
                _ => {
                    journal.forget_process(child.id())?;
                    self.child = None;
                    let lived = self.started.map_or(Duration::ZERO, |at| at.elapsed());
                    self.wait = if lived > RESTART_MOST {
                        RESTART_FIRST
                    } else {
                        (2 * self.wait).min(RESTART_MOST)
                    };
                }
            }
        }
        if self.started.is_some_and(|at| at.elapsed() < self.wait) {
            return Ok(());
        }
        if !self.end_left(roots, group) {
            return Ok(());
        }
        make_group(journal, roots, group)?;
        journal.own_members(group)?;
        let procs = host::cgroup::procs_files(roots, group)?;
        let mut words = host::cgroup::enter_command(&procs);
        words.extend(self.config.command.iter().flatten().map(Into::into));
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0);
        let child = command.spawn().map_err(|source| IsolateError::Command {
            group: self.config.name.clone(),
            source,
        })?;
        let started = host::start_time(roots, child.id()).unwrap_or(0);
        journal.process(child.id(), started)?;
        self.child = Some(child);
        self.started = Some(Instant::now());
        self.starts += 1;
        self.place = Some(Place {
            group: Some(group.to_owned()),
            pid: None,
        });
        Ok(())
    }

    /// Ends what an ended command has left in its group, without waiting for it: it is asked first,
    /// and killed at a later look. True where nothing is left.
    fn end_left(&mut self, roots: &Roots, group: &str) -> bool {
        let members = GroupMembers::of(roots, group);
        let left = members.pids().map_or(0, |pids| pids.len());
        if left == 0 {
            self.ending = None;
            return true;
        }
        // What cannot be ended keeps the command from being started again.
        match self.ending {
            Some(asked) if asked.elapsed() >= host::END_GRACE => {
                let _ = members.kill();
            }
            Some(_) => {}
            None => {
                let _ = members.terminate();
                self.ending = Some(Instant::now());
            }
        }
        if !std::mem::replace(&mut self.is_leaving_said, true) {
            let name = &self.config.name;
            self.news.push(format!(
                "best-effort group {name}: its command has ended and left processes ({left}); isolate ends what a command leaves \
                 before it starts the command again: use a command that stays in the foreground"
            ));
        }
        false
    }

    /// Whether it has processes that are steered.
    pub(crate) fn is_running(&self, host: Host<'_>) -> bool {
        let place = self.place.as_ref().filter(|_| self.left.is_none());
        place.is_some_and(|place| place.is_running(host))
    }

    /// Asks how much was done, now and then, and never waits for the answer.
    pub(crate) fn ask_progress(&mut self) {
        let Some(progress) = &self.config.progress else {
            return;
        };
        if let Some(asking) = &self.asking {
            match asking.try_recv() {
                Ok(answer) => {
                    if let Some(units) = answer {
                        let now = (Instant::now(), units);
                        self.progress = Some(units);
                        self.progress_per_s = rate(self.answered.replace(now), now);
                    }
                    self.asking = None;
                }
                Err(std::sync::mpsc::TryRecvError::Disconnected) => self.asking = None,
                Err(std::sync::mpsc::TryRecvError::Empty) => {}
            }
            return;
        }
        if self.asked.is_some_and(|at| at.elapsed() < PROGRESS_EVERY) {
            return;
        }
        self.asked = Some(Instant::now());
        let (sender, receiver) = std::sync::mpsc::channel();
        let command = progress.command.clone();
        std::thread::spawn(move || {
            let output = Command::new("/bin/sh")
                .args(["-c", &command])
                .stdin(Stdio::null())
                .output();
            let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            let _ = sender.send(text.ok().and_then(|text| last_number(&text)));
        });
        self.asking = Some(receiver);
    }

    /// Reaps the command after the journal has ended it.
    pub(crate) fn reap(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
    }
}

/// A process that is only observed: it stays where it is.
fn observed(roots: &Roots, pid: u32) -> Option<Place> {
    host::start_time(roots, pid).is_ok().then_some(Place {
        group: None,
        pid: Some(pid),
    })
}

/// The controllers of [`CONTROLLERS`] that this host has.
pub(crate) fn present_controllers(roots: &Roots) -> Vec<&'static str> {
    let hierarchies = Hierarchies::of(roots);
    let mut present = CONTROLLERS.to_vec();
    present.retain(|name| hierarchies.controller(name).is_some());
    present
}

fn make_group(journal: &mut Journal, roots: &Roots, group: &str) -> Result<(), IsolateError> {
    journal.make_cgroup_with(roots, group, &present_controllers(roots))?;
    // What it sends is told apart by its group of v2.
    Ok(journal.make_unified_cgroup(roots, group)?)
}

/// Units a second from one answer to the next. `None` where the count went back: the work began
/// anew.
fn rate(before: Option<(Instant, f64)>, now: (Instant, f64)) -> Option<f64> {
    let (then, earlier) = before?;
    let elapsed_s = now.0.saturating_duration_since(then).as_secs_f64();
    let units = now.1 - earlier;
    (elapsed_s > 0.0 && units >= 0.0).then(|| units / elapsed_s)
}

/// The last number in a text.
fn last_number(text: &str) -> Option<f64> {
    text.split_whitespace()
        .rev()
        .find_map(|word| word.parse().ok())
        .filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_a_rate_between_two_answers() {
        let then = Instant::now();
        let now = then + Duration::from_secs(5);
        assert_eq!(rate(None, (now, 40.0)), None);
        assert_eq!(rate(Some((then, 10.0)), (now, 40.0)), Some(6.0));
        assert_eq!(rate(Some((then, 10.0)), (now, 2.0)), None);
        assert_eq!(rate(Some((now, 10.0)), (now, 10.0)), None);
    }

    #[test]
    fn the_last_number_counts() {
        assert_eq!(last_number("frames 12 of 40\n"), Some(40.0));
        assert_eq!(last_number("no number"), None);
        assert_eq!(last_number("1 inf nan"), None);
    }
}
