//! What best-effort work must not be: a control group or a process that Slackline, the host or a
//! service needs to go on, and one that is named already.

use std::path::Path;

use experiment_spec::SpecError;
use host::{GroupMembers, Journal, Roots};

use crate::best_effort::CONTROLLERS;
use crate::config::{BestEffort, IsolationConfig};
use crate::error::IsolateError;
use crate::subject::{group_of_work, is_same_or_above, own_group, place_of};

/// What to do where batch work would hold Slackline itself.
const START_ELSEWHERE: &str = "start isolate outside of it, for example as a systemd unit, or name batch work that does not include Slackline";
const NAME_OTHER: &str = "name batch work alone";

/// A process that has to go on.
#[derive(Clone, Debug)]
struct Needed {
    pid: u32,
    /// As in messages.
    who: String,
    /// Its groups, in all hierarchies in which a group is steered.
    groups: Vec<String>,
    advice: &'static str,
}

/// Processes that have to go on, and the groups of services.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reserved {
    needed: Vec<Needed>,
    /// Names and groups.
    services: Vec<(String, String)>,
}

impl Reserved {
    /// This process, those that started it, its watchdog, and the host's first process.
    pub(crate) fn of_slackline(roots: &Roots, watchdog: Option<u32>) -> Self {
        let mut reserved = Self::default();
        let own = std::process::id();
        let who = format!("slackline itself (pid {own})");
        reserved.need(roots, own, who, START_ELSEWHERE);
        if let Some(pid) = watchdog {
            let who = format!("the watchdog (pid {pid})");
            reserved.need(roots, pid, who, START_ELSEWHERE);
        }
        for (pid, name) in host::ancestors(roots, own) {
            if pid != 1 {
                let who = format!("{name} (pid {pid}), from which slackline was started");
                reserved.need(roots, pid, who, START_ELSEWHERE);
            }
        }
        let first = "the first process of this host (pid 1)".to_owned();
        reserved.need(roots, 1, first, NAME_OTHER);
        reserved
    }

    /// A service: its own group if it has one, and its processes.
    pub(crate) fn add_service(
        &mut self,
        roots: &Roots,
        name: &str,
        group: Option<&str>,
        pids: impl IntoIterator<Item = u32>,
    ) {
        let group = group.map(|group| (name.to_owned(), group.to_owned()));
        self.services.extend(group);
        for pid in pids {
            let who = format!("process {pid} of service {name}");
            self.need(roots, pid, who, NAME_OTHER);
        }
    }

    fn need(&mut self, roots: &Roots, pid: u32, who: String, advice: &'static str) {
        // One that has ended meanwhile is in no group.
        let groups = host::groups_of(roots, pid, &CONTROLLERS).unwrap_or_default();
        self.needed.push(Needed {
            pid,
            who,
            groups,
            advice,
        });
    }

    /// Why a control group must not be best-effort work, if it must not.
    pub(crate) fn objection(&self, group: &str) -> Option<String> {
        let mut services = self.services.iter();
        let overlap = services.find(|(_, theirs)| is_nested(group, theirs));
        if let Some((service, theirs)) = overlap {
            return Some(format!(
                "this is the control group {group}, and service {service} uses {theirs}: these are the same group, or one is \
                 inside the other; use separate control groups"
            ));
        }
        let needed = self.needed.iter().find(|needed| {
            let mut groups = needed.groups.iter();
            groups.any(|theirs| is_same_or_above(group, theirs))
        })?;
        Some(format!(
            "control group {group} holds {}: {}",
            needed.who, needed.advice
        ))
    }

    /// Why a process with all its children must not be best-effort work, if it must not.
    pub(crate) fn objection_to_process(&self, roots: &Roots, pid: u32) -> Option<String> {
        if pid == 0 {
            return Some("no process has the pid 0: give the pid of the batch work".to_owned());
        }
        if host::start_time(roots, pid).is_err() {
            return Some(format!("process {pid} does not exist (any more)"));
        }
        if host::is_kernel_thread(roots, pid) {
            return Some(format!(
                "process {pid} is a thread of the kernel: such threads cannot be moved into another control group"
            ));
        }
        if let Some(it) = self.needed.iter().find(|needed| needed.pid == pid) {
            return Some(format!("this is {}: {}", it.who, it.advice));
        }
        let family = host::family(roots, pid);
        let is_child = |needed: &&Needed| family.iter().any(|(member, _)| *member == needed.pid);
        let needed = self.needed.iter().find(is_child)?;
        Some(format!(
            "process {pid} has started {}: {}",
            needed.who, needed.advice
        ))
    }
}

/// Whether two groups are the same, or one is inside the other.
fn is_nested(one: &str, other: &str) -> bool {
    is_same_or_above(one, other) || is_same_or_above(other, one)
}

/// The first of these that is the same group as this one, or around it, or inside it: in words.
pub(crate) fn twin<'a>(
    group: &str,
    mut taken: impl Iterator<Item = (&'a str, &'a str)>,
) -> Option<String> {
    let (name, other) = taken.find(|(_, other)| is_nested(group, other))?;
    Some(
        if is_same_or_above(group, other) && is_same_or_above(other, group) {
            format!("{name} is the same control group, {group}: name each group once")
        } else {
            format!(
                "control group {group}, and {other} of {name}: one is inside the other, so its CPU time would count twice; name \
             only one of them"
            )
        },
    )
}

/// For whom a configuration is judged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Judge<'a> {
    /// Best-effort work that is steered already: its process was judged when it was adopted.
    pub(crate) known: &'a [BestEffort],
    /// Where the journal of the run is, which knows the groups that Slackline has made. `None`
    /// where no group is made: a check, or an observing run, may stand beside a run.
    pub(crate) state_dir: Option<&'a Path>,
}

/// What of a configuration cannot be used as it is named, by file, line and key. What is not there
/// is not among it, except for processes.
pub(crate) fn refusals(
    config: &IsolationConfig,
    roots: &Roots,
    judge: Judge<'_>,
) -> Vec<SpecError> {
    let origin = &config.origin;
    let mut reserved = Reserved::of_slackline(roots, None);
    let mut said = Vec::new();
    let mut places: Vec<(String, String, bool)> = Vec::new();
    for (index, (service, ..)) in config.services.iter().enumerate() {
        let Ok(place) = place_of(roots, service) else {
            continue;
        };
        // Who else is in the group of a process that is named by its pid is not known.
        let pids: Vec<u32> = match service.pid {
            Some(pid) => host::family(roots, pid)
                .into_iter()
                .map(|(pid, _)| pid)
                .collect(),
            None => place.pids(roots),
        };
        reserved.add_service(roots, &service.name, place.group.as_deref(), pids);
        let at = origin.service(index);
        let Some(group) = place.group else {
            continue;
        };
        // Two processes of one group are two services.
        let is_by_pid = place.pid.is_some();
        let mut others = places.iter();
        let twin = others.find(|(_, other, by_pid)| *other == group && !(is_by_pid && *by_pid));
        if let Some((other, ..)) = twin {
            let why = format!("{other} is the same control group, {group}: name each service once");
            said.push(origin.error(&at, why));
        }
        places.push((at, group, is_by_pid));
    }
    let made = judge.state_dir.map(|state_dir| {
        let pending = Journal::peek(state_dir).unwrap_or_default();
        move |group: &str| {
            let end = format!("/{group}");
            pending.iter().any(|subject| subject.ends_with(&end))
        }
    });
    let mut taken: Vec<(String, String)> = Vec::new();
    for (index, work) in config.best_effort.iter().enumerate() {
        let is_known = judge.known.contains(work);
        let why = work
            .pid
            .filter(|_| !is_known)
            .and_then(|pid| reserved.objection_to_process(roots, pid));
        let (group, is_own) = match group_of_work(roots, work) {
            Ok(Some(group)) => (group, false),
            Ok(None) => (own_group(work), true),
            Err(_) => continue,
        };
        let others = taken
            .iter()
            .map(|(at, group)| (at.as_str(), group.as_str()));
        let why = why
            .or_else(|| reserved.objection(&group))
            .or_else(|| twin(&group, others))
            .or_else(|| match &made {
                Some(made) if is_own && !is_known && !made(group.as_str()) => {
                    occupied(roots, &group)
                }
                _ => None,
            });
        let at = format!("best_effort[{index}].{}", work.key());
        said.extend(why.map(|why| origin.error(&at, why)));
        taken.push((at, group));
    }
    said
}

/// Why a group that Slackline would make for itself is not free, if it is not.
fn occupied(roots: &Roots, group: &str) -> Option<String> {
    let pids = GroupMembers::of(roots, group).pids().ok()?;
    let first = pids.first()?;
    Some(format!(
        "control group {group} has processes that this isolate did not start, such as pid {first}: end them, or give this \
         best-effort group another name"
    ))
}

/// The first refusal as an error.
///
/// # Errors
///
/// [`IsolateError::Config`].
pub(crate) fn refuse(
    config: &IsolationConfig,
    roots: &Roots,
    judge: Judge<'_>,
) -> Result<(), IsolateError> {
    match refusals(config, roots, judge).into_iter().next() {
        Some(refusal) => Err(refusal.into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
