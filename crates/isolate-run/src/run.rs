//! The loop: look, decide, act, write down. It ends by a signal, after a time, or by an error; in
//! each case everything is put back.

mod apart;
mod options;
mod others;
mod session;
mod subjects;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use host::{Hierarchies, Journal, RestoreReport, Roots};
use isolation::Subject;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

pub use self::options::{RunOptions, Watcher};
use self::session::{Session, controller, steering};
use self::subjects::{Steered, Watched, open_services, steered};
use crate::config::IsolationConfig;
use crate::error::IsolateError;
use crate::feasibility::{Placed, lacking, notes};
use crate::program::missing_programs;
use crate::record::RecordLine;
use crate::reserved::{Judge, refuse};
use crate::status::IsolationStatus;
use crate::steer::{Devices, Steer};
use crate::watchdog::Watchdog;

/// How often services and groups are looked for again.
const FIND_EVERY: Duration = Duration::from_secs(2);
/// So many notes of one kind are written at most.
const NOTES_MAX: usize = 5;
/// How often a row is written and shown.
const ROW_EVERY: Duration = Duration::from_secs(1);
/// The loop's own CPU time stays below this; beyond it the steps become longer.
const OWN_CORES_MAX: f64 = 0.005;
/// The longest step: a source's window of a second has to be seen.
const STEP_MAX: Duration = Duration::from_secs(1);

/// How a run ended.
#[derive(Debug)]
pub struct Finish {
    /// What was put back.
    pub restored: RestoreReport,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// How everything stood at the end.
    pub status: IsolationStatus,
}

/// Runs until a signal, or for the options' duration.
///
/// # Errors
///
/// [`IsolateError`]; everything is put back first.
pub fn run(
    path: &Path,
    state_dir: &Path,
    options: &RunOptions,
    watcher: &mut dyn Watcher,
) -> Result<Finish, IsolateError> {
    let config = read(path, options.observe)?;
    let observe = options.observe || config.policy.observe;
    let judge = Judge {
        state_dir: (!observe).then_some(state_dir),
        ..Judge::default()
    };
    refuse(&config, &Roots::default(), judge)?;
    let signal = Arc::new(AtomicUsize::new(0));
    let reload = Arc::new(AtomicBool::new(false));
    for number in [SIGINT, SIGTERM] {
        let value = usize::try_from(number).unwrap_or(0);
        register(signal_hook::flag::register_usize(
            number,
            Arc::clone(&signal),
            value,
        ))?;
    }
    register(signal_hook::flag::register(SIGHUP, Arc::clone(&reload)))?;
    let mut session = Session::begin(config, state_dir, options, watcher)?;
    watcher.begun(&session.status());
    let ended = session.run(path, options, watcher, &signal, &reload);
    let restored = session.end();
    let status = session.status();
    ended?;
    let signal = i32::try_from(signal.load(Ordering::Relaxed))
        .ok()
        .filter(|number| *number != 0);
    Ok(Finish {
        restored: restored?,
        signal,
        status,
    })
}

/// The configuration, whose commands can be started on this host.
fn read(path: &Path, observes_always: bool) -> Result<IsolationConfig, IsolateError> {
    let config = IsolationConfig::read(path)?;
    let observe = observes_always || config.policy.observe;
    match missing_programs(&config, observe).into_iter().next() {
        Some(missing) => Err(missing.into()),
        None => Ok(config),
    }
}

fn register(registered: std::io::Result<signal_hook::SigId>) -> Result<(), IsolateError> {
    registered
        .map(|_| ())
        .map_err(|error| IsolateError::file(Path::new("signal handler"), error))
}

/// The first notes of a kind: a host with hundreds of groups has one for each of them.
fn first(mut kind: Vec<String>, path: &Path) -> Vec<String> {
    let more = kind.len().saturating_sub(NOTES_MAX);
    kind.truncate(NOTES_MAX);
    if more > 0 {
        kind.push(format!(
            "{more} more notes like the last one: `slackline isolate check {}` shows all",
            path.display()
        ));
    }
    kind
}

impl Session {
    fn run(
        &mut self,
        path: &Path,
        options: &RunOptions,
        watcher: &mut dyn Watcher,
        signal: &AtomicUsize,
        reload: &AtomicBool,
    ) -> Result<(), IsolateError> {
        let mut next_row = Instant::now();
        let mut next = Instant::now();
        self.warn(path, watcher);
        loop {
            if signal.load(Ordering::Relaxed) != 0
                || options
                    .duration
                    .is_some_and(|limit| self.began.elapsed() >= limit)
            {
                return Ok(());
            }
            if reload.swap(false, Ordering::Relaxed) {
                self.reload(path, options.observe, watcher)?;
            }
            if self.found.is_none_or(|at| at.elapsed() >= FIND_EVERY) {
                self.find_again(watcher)?;
                if let Some(watchdog) = &mut self.watchdog
                    && watchdog.renew()?
                {
                    self.note(watcher, "the watchdog had died and was started again");
                }
                self.heed_others(watcher);
            }
            self.tell_of_groups(watcher);
            let observation = self.look();
            let decisions = self
                .controller
                .step(&observation, self.began.elapsed().as_secs_f64());
            for decision in decisions {
                self.act(&decision, watcher);
            }
            let now = Instant::now();
            if now >= next_row {
                next_row = now + ROW_EVERY;
                self.tell_of_sources(now, watcher);
                self.count_own();
                let status = self.status();
                if let Some(news) = self.status_file.write(&self.state_dir, &status, now) {
                    self.note(watcher, &news);
                }
                watcher.row(&status);
                self.write(watcher, &RecordLine::Row(Box::new(status)));
                self.services.iter_mut().for_each(|service| {
                    if let Some(seen) = &mut service.seen {
                        seen.fresh = None;
                    }
                });
            }
            watcher.step(&|| self.status());
            next += self.step;
            // A machine that stood still does not catch up.
            next = next.max(Instant::now());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    fn tell_of_sources(&mut self, now: Instant, watcher: &mut dyn Watcher) {
        let services = self.services.iter_mut();
        let news: Vec<String> = services
            .filter_map(|service| service.source_news(now))
            .collect();
        for text in news {
            self.note(watcher, &text);
        }
    }

    /// Counts the loop's own CPU time, and makes the steps longer where it is too much.
    fn count_own(&mut self) {
        let (then, cpu_then_s) = self.own_cpu_s;
        let (now, cpu_s) = (Instant::now(), host::own_cpu_s());
        let elapsed_s = (now - then).as_secs_f64();
        if elapsed_s < 5.0 {
            return;
        }
        self.own_cores = (cpu_s - cpu_then_s) / elapsed_s;
        self.own_cpu_s = (now, cpu_s);
        let wanted = Duration::from_secs_f64(self.config.policy.step_ms / 1000.0);
        self.step = if self.own_cores > OWN_CORES_MAX {
            (self.step * 5 / 4).min(STEP_MAX.max(wanted))
        } else if self.own_cores < 0.5 * OWN_CORES_MAX {
            (self.step * 4 / 5).max(wanted)
        } else {
            self.step
        };
    }

    /// Reads the configuration again. A controller of the same policy goes on with what it has
    /// learnt. A configuration that is wrong is said, and the old one stays.
    fn reload(
        &mut self,
        path: &Path,
        observes_always: bool,
        watcher: &mut dyn Watcher,
    ) -> Result<(), IsolateError> {
        let config = match read(path, observes_always) {
            Ok(config) => config,
            Err(error) => {
                self.keep_old(&error, watcher);
                return Ok(());
            }
        };
        let observe = observes_always || config.policy.observe;
        let judge = Judge {
            // Observing adopts nothing.
            known: match self.observe {
                true => &[],
                false => self.config.best_effort.as_slice(),
            },
            state_dir: (!observe).then_some(self.state_dir.as_path()),
        };
        if let Err(error) = refuse(&config, &self.roots, judge) {
            self.keep_old(&error, watcher);
            return Ok(());
        }
        // Another Slackline may hold the lock by now.
        let since_start = self.began.elapsed();
        let begun = match self.observe && !observe {
            true => match steering(&self.roots, &self.state_dir, since_start, watcher) {
                Ok(begun) => Some(begun),
                Err(error) => {
                    self.keep_old(&error, watcher);
                    return Ok(());
                }
            },
            false => None,
        };
        if config.services != self.config.services {
            match open_services(&self.roots, &config) {
                Ok(mut services) => {
                    for service in &mut services {
                        let mut old = self.services.iter();
                        let is_it = |old: &&Watched| old.service.name == service.service.name;
                        let known = old.find(is_it).map(|old| old.settings.clone());
                        service.settings = known.unwrap_or_default();
                    }
                    self.services = services;
                }
                Err(error) => {
                    if let Some((_, watchdog)) = begun {
                        watchdog.dismiss();
                    }
                    self.keep_old(&error, watcher);
                    return Ok(());
                }
            }
        }
        let is_same = config.policy_settings() == self.config.policy_settings();
        let is_kept = is_same && observe == self.observe;
        if !is_kept {
            // One that only observed has said what was never done.
            self.controller = controller(&config, observe);
        }
        self.step = Duration::from_secs_f64(config.policy.step_ms / 1000.0);
        if observe != self.observe {
            self.observe_or_act(begun, &config, watcher)?;
        } else if config.best_effort != self.config.best_effort {
            self.exchange_groups(&config)?;
        }
        let yielded = self.steer.reload(Devices::of(&config.policy));
        // A new controller says all that it wants.
        self.again.extend(yielded.into_iter().filter(|_| is_kept));
        self.config = config;
        self.find_again(watcher)?;
        self.note(watcher, "the configuration was read again");
        self.heed_others(watcher);
        self.warn(path, watcher);
        Ok(())
    }

    /// Says what this host lacks of the configuration, and what has no effect.
    fn warn(&mut self, path: &Path, watcher: &mut dyn Watcher) {
        let services = self.services.iter().map(|service| {
            let place = service.place.as_ref();
            let group = place.and_then(|place| place.group.as_deref());
            Placed::service(&service.service.name, group)
        });
        let services: Vec<Placed> = services.collect();
        let groups = self.groups.iter().filter_map(|group| {
            let group_of = group.work.place.as_ref()?.group.as_deref()?;
            Some(Placed::work(&group.work.config.name, group_of))
        });
        let groups: Vec<Placed> = groups.collect();
        let lacking = lacking(&self.config, &services, &groups, &self.roots);
        let hierarchies = Hierarchies::of(&self.roots);
        let notes = notes(&self.config, &services, &groups, &hierarchies, self.observe);
        let kinds = std::iter::once(lacking).chain(notes);
        self.notes = kinds.flat_map(|kind| first(kind, path)).collect();
        for text in self.notes.clone() {
            self.note(watcher, &text);
        }
    }

    fn keep_old(&mut self, error: &dyn std::fmt::Display, watcher: &mut dyn Watcher) {
        let text = format!("the old configuration stays in force: {error}");
        self.note(watcher, &text);
    }

    /// From only observing to acting, or back. The groups begin anew: what was started ends, and
    /// nothing is in force.
    fn observe_or_act(
        &mut self,
        begun: Option<(Journal, Watchdog)>,
        config: &IsolationConfig,
        watcher: &mut dyn Watcher,
    ) -> Result<(), IsolateError> {
        if !self.put_back()?.is_complete() {
            // The watchdog tries again when its pipe closes.
            let text = "not everything could be restored: the watchdog tries again; run `slackline restore` to see what is left";
            self.note(watcher, text);
        }
        self.observe = begun.is_none();
        (self.journal, self.watchdog) = begun.unzip();
        let old = std::mem::take(&mut self.groups);
        self.groups = config.best_effort.iter().cloned().map(steered).collect();
        for group in &mut self.groups {
            let mut old = old.iter();
            let is_it = |old: &&Steered| old.work.config.name == group.work.config.name;
            group.cpu_s = old.find(is_it).map_or(0.0, |old| old.cpu_s);
        }
        self.services
            .iter_mut()
            .for_each(|service| service.settings.clear());
        self.machine_settings.clear();
        self.steer = Steer::new(self.roots.clone(), Devices::of(&config.policy));
        Ok(())
    }

    /// Groups that are still named go on as they are; the others get back what they had.
    fn exchange_groups(&mut self, config: &IsolationConfig) -> Result<(), IsolateError> {
        let mut old: Vec<Steered> = std::mem::take(&mut self.groups);
        for work in &config.best_effort {
            let kept = old.iter().position(|group| group.work.config == *work);
            let group = match kept {
                Some(at) => old.swap_remove(at),
                None => steered(work.clone()),
            };
            self.groups.push(group);
        }
        for mut gone in old {
            let name = gone.work.config.name.clone();
            self.steer.forget(&Subject::Group(name));
            let group = gone
                .work
                .place
                .as_ref()
                .and_then(|place| place.group.clone());
            if let (Some(journal), Some(group)) = (&mut self.journal, group) {
                journal.restore_group(&self.roots, &group)?;
            }
            gone.work.reap();
        }
        Ok(())
    }
}
