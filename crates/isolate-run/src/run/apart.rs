//! What keeps a run from doing harm: it begins only where it can say how things stand, and it
//! leaves a group alone that has come to hold Slackline or a service.

use super::options::Watcher;
use super::session::Session;
use crate::error::IsolateError;
use crate::reserved::{Reserved, twin};
use crate::status;
use crate::watchdog::Watchdog;

/// So many processes of a service are looked at every time: to find one of them in a best-effort
/// group, its control groups are read.
const PIDS_MAX: usize = 64;

impl Session {
    /// A run that cannot say how things stand does not begin.
    pub(super) fn check_writable(&self) -> Result<(), IsolateError> {
        status::check_writable(&self.state_dir, &self.status())
    }

    /// Leaves each group alone that has come to hold what has to go on, and takes it up again
    /// afterwards. What was set of it is undone.
    pub(super) fn leave_reserved(&mut self) -> Result<(), IsolateError> {
        let watchdog = self.watchdog.as_ref().map(Watchdog::pid);
        let mut reserved = Reserved::of_slackline(&self.roots, watchdog);
        for service in &self.services {
            let place = service.place.as_ref();
            let group = place.and_then(|place| place.group.as_deref());
            let pids = match (service.service.pid, group) {
                // Who else is in its group is not known.
                (Some(pid), Some(_)) => vec![pid],
                _ => service.pids.iter().copied().take(PIDS_MAX).collect(),
            };
            reserved.add_service(&self.roots, &service.service.name, group, pids);
        }
        let mut taken: Vec<(String, String)> = Vec::new();
        for group in &mut self.groups {
            let name = group.work.config.name.clone();
            let place = group.work.place.as_ref();
            let Some(own) = place.and_then(|place| place.group.clone()) else {
                group.work.left = None;
                continue;
            };
            let others = taken.iter();
            let others = others.map(|(name, group)| (name.as_str(), group.as_str()));
            let why = reserved.objection(&own).or_else(|| twin(&own, others));
            match (&why, &group.work.left) {
                (Some(why), None) => {
                    if let Some(journal) = &mut self.journal {
                        journal.restore_settings(&self.roots, &own)?;
                    }
                    self.steer.forget(&isolation::Subject::Group(name.clone()));
                    group.settings.clear();
                    let text = format!("best-effort group {name} is left alone: {why}");
                    group.work.news.push(text);
                }
                (None, Some(_)) => {
                    let text = format!("best-effort group {name} is steered again");
                    group.work.news.push(text);
                }
                _ => {}
            }
            group.work.left = why;
            taken.push((format!("best-effort group {name}"), own));
        }
        Ok(())
    }

    /// Looks for services and groups again. A journal that cannot be written does not end the run:
    /// batch work would go on without limits.
    pub(super) fn find_again(&mut self, watcher: &mut dyn Watcher) -> Result<(), IsolateError> {
        let trouble = match self.find() {
            Ok(()) => None,
            Err(error) if error.is_unrecorded() => Some(format!(
                "{error}. The settings in force stay; nothing new is begun before the file can be written"
            )),
            Err(error) => return Err(error),
        };
        match (&trouble, &self.journal_trouble) {
            (Some(text), None) => self.note(watcher, &text.clone()),
            (None, Some(_)) => self.note(watcher, "the journal can be written again"),
            _ => {}
        }
        self.journal_trouble = trouble;
        Ok(())
    }

    /// The groups that are left alone, in sentences.
    pub(super) fn left_alone(&self) -> impl Iterator<Item = String> {
        self.groups.iter().filter_map(|group| {
            let why = group.work.left.as_ref()?;
            let name = &group.work.config.name;
            Some(format!("Best-effort group {name} is left alone: {why}"))
        })
    }

    /// Says what is new of best-effort groups.
    pub(super) fn tell_of_groups(&mut self, watcher: &mut dyn Watcher) {
        let groups = self.groups.iter_mut();
        let news: Vec<String> = groups
            .flat_map(|group| std::mem::take(&mut group.work.news))
            .collect();
        for text in news {
            self.note(watcher, &text);
        }
    }
}
