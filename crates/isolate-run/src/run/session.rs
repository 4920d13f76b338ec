//! A session: what it watches and steers, one look, and one decision carried out.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use host::{Hierarchies, Journal, RestoreReport, Roots};
use isolation::{
    ActuatorSetting, Decision, GroupSeen, IsolationController, MachineObservation, MachineSeen,
    ServiceSeen, Subject,
};

use super::options::{RunOptions, Watcher};
use super::subjects::{
    Steered, Watched, Words, made_again, open_services, service_status, steered, told,
};
use crate::config::IsolationConfig;
use crate::counters::{Counters, Machine, Rates, Traffic};
use crate::error::IsolateError;
use crate::hardware::Hardware;
use crate::latency::Seen;
use crate::machine_lock;
use crate::record::{RecordLine, Recorder};
use crate::status::{self, GroupStatus, IsolationStatus, StatusFile};
use crate::steer::{DecisionOutcome, Devices, Steer};
use crate::subject::{Host, Place, place_again};
use crate::watchdog::Watchdog;

/// Decisions that the status shows.
const RECENT_MAX: usize = 20;

pub(super) struct Session {
    pub(super) roots: Roots,
    /// As they were when services and groups were last looked for: to find them again means to read
    /// a long file.
    pub(super) hierarchies: Hierarchies,
    llc_ways: Option<u64>,
    pub(super) state_dir: PathBuf,
    pub(super) config: IsolationConfig,
    pub(super) observe: bool,
    pub(super) controller: Box<dyn IsolationController>,
    pub(super) steer: Steer,
    /// What is to be carried out once more: a group was made anew, or the configuration was read
    /// again.
    pub(super) again: Vec<Decision>,
    /// `None` while only observing: then nothing is changed, and other Slacklines may run.
    pub(super) journal: Option<Journal>,
    pub(super) watchdog: Option<Watchdog>,
    recorder: Option<Recorder>,
    pub(super) status_file: StatusFile,
    pub(super) services: Vec<Watched>,
    pub(super) groups: Vec<Steered>,
    machine: Machine,
    hardware: Hardware,
    traffic: Traffic,
    /// The settings in force; those that would be, while only observing.
    pub(super) machine_settings: Words,
    /// What was said of the configuration, for the status.
    pub(super) notes: Vec<String>,
    /// Why nothing new can be begun, while the journal cannot be written.
    pub(super) journal_trouble: Option<String>,
    cores: f64,
    busy_cores: f64,
    pub(super) began: Instant,
    looked: Option<Instant>,
    pub(super) found: Option<Instant>,
    pub(super) step: Duration,
    pub(super) own_cpu_s: (Instant, f64),
    pub(super) own_cores: f64,
    decisions: std::collections::BTreeMap<String, u64>,
    pub(super) troubles: std::collections::BTreeMap<String, u64>,
    recent: Vec<String>,
}

/// A line of the log, with the time since the start.
fn at(since_start: Duration, text: &str) -> String {
    format!("{:.1} s: {text}", since_start.as_secs_f64())
}

/// What is needed to change anything: the journal with its lock, and a watchdog. What a killed run
/// left is put back.
pub(super) fn steering(
    roots: &Roots,
    state_dir: &Path,
    since_start: Duration,
    watcher: &mut dyn Watcher,
) -> Result<(Journal, Watchdog), IsolateError> {
    let lock = machine_lock::take()?;
    let mut journal = Journal::open(state_dir)?;
    if !journal.is_empty() {
        let is_complete = journal.restore(roots, false)?.is_complete();
        let text = match is_complete {
            true => "an earlier run was killed: what it left is restored",
            false => {
                "an earlier run was killed, and not everything that it left could be restored: run `slackline restore` after this run"
            }
        };
        watcher.say(&at(since_start, text));
    }
    journal.check_writable()?;
    let watchdog = Watchdog::start(state_dir, lock)?;
    Ok((journal, watchdog))
}

/// The policy's controller, which knows whether its decisions are carried out.
pub(super) fn controller(config: &IsolationConfig, observe: bool) -> Box<dyn IsolationController> {
    let settings = config.policy_settings();
    match observe {
        true => isolation::observing(&settings),
        false => isolation::guarded(&settings),
    }
}

/// Keeps an error of a journal that cannot be written for later: what has to be recorded first was
/// not begun, and everything else goes on.
fn later(
    done: Result<(), impl Into<IsolateError>>,
    unrecorded: &mut Result<(), IsolateError>,
) -> Result<(), IsolateError> {
    match done.map_err(Into::into) {
        Err(error) if error.is_unrecorded() => {
            *unrecorded = Err(error);
            Ok(())
        }
        other => other,
    }
}

impl Session {
    pub(super) fn begin(
        config: IsolationConfig,
        state_dir: &Path,
        options: &RunOptions,
        watcher: &mut dyn Watcher,
    ) -> Result<Self, IsolateError> {
        let roots = Roots::default();
        let observe = options.observe || config.policy.observe;
        let recorder = options.out.as_deref().map(Recorder::create).transpose()?;
        let services = open_services(&roots, &config)?;
        let (journal, watchdog) = match observe {
            true => (None, None),
            false => {
                let (journal, watchdog) = steering(&roots, state_dir, Duration::ZERO, watcher)?;
                (Some(journal), Some(watchdog))
            }
        };
        let now = Instant::now();
        let cores = host::online_cpus(&roots)?.len();
        #[expect(clippy::cast_precision_loss, reason = "a number of CPUs")]
        let cores = cores as f64;
        let groups = config.best_effort.iter().cloned().map(steered).collect();
        let mut session = Self {
            controller: controller(&config, observe),
            steer: Steer::new(roots.clone(), Devices::of(&config.policy)),
            again: Vec::new(),
            state_dir: state_dir.to_owned(),
            observe,
            journal,
            watchdog,
            recorder,
            status_file: StatusFile::default(),
            services,
            groups,
            machine: Machine::default(),
            hardware: Hardware::default(),
            traffic: Traffic::default(),
            machine_settings: Words::new(),
            notes: Vec::new(),
            journal_trouble: None,
            cores,
            busy_cores: 0.0,
            began: now,
            looked: None,
            found: None,
            step: Duration::from_secs_f64(config.policy.step_ms / 1000.0),
            own_cpu_s: (now, host::own_cpu_s()),
            own_cores: 0.0,
            decisions: std::collections::BTreeMap::new(),
            troubles: std::collections::BTreeMap::new(),
            recent: Vec::new(),
            config,
            hierarchies: Hierarchies::default(),
            llc_ways: None,
            roots,
        };
        // What was begun is undone, whatever fails.
        if let Err(error) = session.check_writable().and_then(|()| session.find()) {
            session.end()?;
            return Err(error);
        }
        Ok(session)
    }

    /// Records it, where the run is recorded and that is possible.
    pub(super) fn write(&mut self, watcher: &mut dyn Watcher, entry: &RecordLine) {
        let recorder = self.recorder.as_mut();
        if let Some(news) = recorder.and_then(|recorder| recorder.write(entry, Instant::now())) {
            watcher.say(&at(self.began.elapsed(), &news));
        }
    }

    pub(super) fn note(&mut self, watcher: &mut dyn Watcher, text: &str) {
        let elapsed = self.began.elapsed();
        watcher.say(&at(elapsed, text));
        let entry = RecordLine::Note {
            at_s: elapsed.as_secs_f64(),
            text: text.to_owned(),
        };
        self.write(watcher, &entry);
    }

    /// Looks for services and groups again: a service restarts with another pid, a group comes and
    /// goes.
    ///
    /// # Errors
    ///
    /// If the journal cannot be written, everything is looked for all the same, and the last error
    /// is returned: [`IsolateError::is_unrecorded`].
    pub(super) fn find(&mut self) -> Result<(), IsolateError> {
        self.found = Some(Instant::now());
        let mut unrecorded = Ok(());
        self.hierarchies = Hierarchies::of(&self.roots);
        self.llc_ways = host::Resctrl::ways(&self.roots).map(u64::from);
        let host = Host {
            roots: &self.roots,
            hierarchies: &self.hierarchies,
        };
        for (index, service) in self.services.iter_mut().enumerate() {
            let known = service.place.as_ref();
            let place = match place_again(host, &service.service, known) {
                Ok(place) => Some(place),
                Err(IsolateError::NotThere { .. }) => None,
                Err(error) => return Err(self.config.about_service(index, error)),
            };
            if place != service.place {
                service.counters = Counters::default();
                let before = std::mem::replace(&mut service.place, place);
                let gone = before.and_then(|place| place.group);
                if let Some(gone) = gone.filter(|group| !host.has_group(group)) {
                    service.settings.clear();
                    let subject = Subject::Service(service.service.name.clone());
                    let wanted = self.steer.forget(&subject);
                    self.again
                        .extend(wanted.into_iter().filter(|_| service.place.is_some()));
                    if let Some(journal) = &mut self.journal {
                        later(journal.forget_group(&gone), &mut unrecorded)?;
                    }
                }
            }
            if let Some(group) = made_again(&mut service.number, host, service.place.as_ref()) {
                service.counters = Counters::default();
                service.settings.clear();
                let subject = Subject::Service(service.service.name.clone());
                self.again.extend(self.steer.forget(&subject));
                if let Some(journal) = &mut self.journal {
                    later(journal.forget_group(group), &mut unrecorded)?;
                }
            }
            let place = service.place.as_ref();
            service.pids = place.map_or_else(Vec::new, |place| place.pids(&self.roots));
        }
        for (index, group) in self.groups.iter_mut().enumerate() {
            let before = group.work.place.clone();
            let found = group.work.find(host, self.journal.as_mut());
            let found = found.map_err(|error| self.config.about_work(index, error));
            later(found, &mut unrecorded)?;
            group.work.ask_progress();
            if before != group.work.place {
                group.counters = Counters::default();
                if group.work.place.is_none() {
                    self.steer
                        .forget(&Subject::Group(group.work.config.name.clone()));
                    let gone = before.and_then(|place| place.group);
                    if let (Some(journal), Some(gone)) = (&mut self.journal, gone) {
                        later(journal.forget_group(&gone), &mut unrecorded)?;
                    }
                    group.settings.clear();
                }
            }
            let place = group.work.place.as_ref();
            if let Some(own) = made_again(&mut group.number, host, place) {
                group.counters = Counters::default();
                group.settings.clear();
                let subject = Subject::Group(group.work.config.name.clone());
                self.again.extend(self.steer.forget(&subject));
                if let Some(journal) = &mut self.journal {
                    later(journal.forget_group(own), &mut unrecorded)?;
                }
            }
        }
        later(self.leave_reserved(), &mut unrecorded)?;
        let places = self.groups.iter();
        let groups = places.filter_map(|group| group.work.place.as_ref()?.group.as_deref());
        let policy = &self.config.policy;
        let peak = policy.dram_peak_gb_per_s;
        let now = Instant::now();
        self.hardware
            .look(&self.roots, now, policy.name, peak, groups);
        unrecorded
    }

    /// Reads all counters and sources.
    pub(super) fn look(&mut self) -> MachineObservation {
        let now = Instant::now();
        let elapsed_s = self
            .looked
            .map_or(1.0, |at| (now - at).as_secs_f64())
            .max(1e-3);
        self.looked = Some(now);
        let host = Host {
            roots: &self.roots,
            hierarchies: &self.hierarchies,
        };
        self.busy_cores = self.machine.busy_cores(&self.roots, self.cores);
        let mut observation = MachineObservation {
            machine: self.hardware.seen.into_machine(MachineSeen {
                busy_cores: self.busy_cores,
                llc_ways: self.llc_ways,
                link_mbit_per_s: self.config.policy.link_mbit_per_s,
                ..MachineObservation::of_cores(self.cores).machine
            }),
            ..MachineObservation::default()
        };
        for service in &mut self.services {
            let rates = service.place.as_ref().and_then(|place| {
                let looked =
                    service
                        .counters
                        .look_at_service(host, place, elapsed_s, &service.pids);
                looked.ok()
            });
            let is_running = rates.is_some()
                && service
                    .place
                    .as_ref()
                    .is_some_and(|place| place.is_running(host));
            service.is_running = is_running;
            service.rates = rates.unwrap_or_else(Rates::of_nobody);
            let seen = service.latency.look();
            let rate = seen.requests_per_s;
            observation.services.push(ServiceSeen {
                is_running,
                fresh: seen.fresh,
                window: seen.window.as_ref().ok().copied(),
                window_s: service.objective.window_s,
                load: rate
                    .zip(service.service.peak_requests_per_s)
                    .map(|(rate, peak)| rate / peak),
                requests_per_s: rate,
                cpu_cores: service.rates.cpu_cores.unwrap_or(0.0),
                quota_cores: service.rates.quota_cores,
                throttled_share: service.rates.throttled_share,
                waiting_share: service.rates.waiting_share,
                stalled_share: service.rates.stalled_share,
                foreign: self
                    .steer
                    .foreign_of(&Subject::Service(service.service.name.clone())),
                ..ServiceSeen::without_data(&service.service.name, service.objective.latency_ms)
            });
            let fresh = seen
                .fresh
                .or(service.seen.as_ref().and_then(|seen| seen.fresh));
            service.seen = Some(Seen { fresh, ..seen });
        }
        for group in &mut self.groups {
            let place = group.work.place.as_ref();
            let rates =
                place.and_then(|place| group.counters.look_at_work(host, place, elapsed_s).ok());
            group.is_running = rates.is_some() && group.work.is_running(host);
            group.rates = rates.unwrap_or_else(Rates::of_nobody);
            group.cpu_s += group.rates.used_s;
            let cpu_cores = group.rates.cpu_cores.unwrap_or(0.0);
            observation.groups.push(GroupSeen {
                is_running: group.is_running,
                progress_per_s: group.work.progress_per_s,
                foreign: self
                    .steer
                    .foreign_of(&Subject::Group(group.work.config.name.clone())),
                ..GroupSeen::running(&group.work.config.name, cpu_cores)
            });
        }
        self.look_at_traffic(&mut observation, elapsed_s);
        observation
    }

    /// What is sent and is not of a limited group counts as the services'.
    fn look_at_traffic(&mut self, observation: &mut MachineObservation, elapsed_s: f64) {
        let Some(device) = &self.config.policy.link_device else {
            return;
        };
        let places = self.groups.iter().filter_map(|group| {
            let place = group.work.place.as_ref()?;
            place.group.as_deref()
        });
        let rest = self.traffic.look(&self.roots, device, places, elapsed_s);
        for (number, service) in observation.services.iter_mut().enumerate() {
            service.egress_mbit_per_s = rest.map(|rest| if number == 0 { rest } else { 0.0 });
        }
    }

    pub(super) fn act(&mut self, decision: &Decision, watcher: &mut dyn Watcher) {
        let place = match &decision.subject {
            Subject::Group(name) => {
                let mut groups = self.groups.iter();
                let group = groups.find(|group| group.work.config.name == *name);
                let group = group.filter(|group| group.work.left.is_none());
                group.and_then(|group| group.work.place.clone())
            }
            Subject::Service(name) => {
                let mut services = self.services.iter();
                let service = services.find(|service| service.service.name == *name);
                service.and_then(|service| service.place.clone())
            }
            Subject::Machine => None,
        };
        let services: Vec<Place> = self
            .services
            .iter()
            .filter_map(|service| service.place.clone())
            .collect();
        let outcome = match &mut self.journal {
            Some(journal) => self
                .steer
                .carry_out(journal, decision, place.as_ref(), &services),
            None => DecisionOutcome::Observed,
        };
        *self
            .decisions
            .entry(decision.reason.name().to_owned())
            .or_default() += 1;
        let said = match &outcome {
            DecisionOutcome::Applied | DecisionOutcome::Observed => None,
            DecisionOutcome::Vanished => {
                Some(("vanished", "it does not exist any more".to_owned()))
            }
            DecisionOutcome::Lacking(why) => Some(("lacking", why.clone())),
            DecisionOutcome::Refused(why) => Some(("refused", why.clone())),
            DecisionOutcome::Yielded(why) => Some(("yielded", why.clone())),
        };
        let elapsed = self.began.elapsed();
        let mut line = at(elapsed, &decision.to_string());
        if let Some((kind, why)) = said {
            let count = self.troubles.entry(kind.to_owned()).or_default();
            *count += 1;
            line = format!("{line}: not carried out ({kind}): {why}");
            // The record has them all; the log the first of each kind.
            if *count == 1 {
                watcher.say(&line);
            }
            self.show_foreign();
        } else {
            self.keep_setting(decision);
        }
        if outcome == DecisionOutcome::Observed {
            line += " (observed)";
        }
        self.recent.push(line);
        let extra = self.recent.len().saturating_sub(RECENT_MAX);
        self.recent.drain(..extra);
        let entry = RecordLine::Decision {
            at_s: elapsed.as_secs_f64(),
            decision: decision.clone(),
            outcome,
        };
        self.write(watcher, &entry);
    }

    /// Keeps what is in force, or would be, for the status.
    fn keep_setting(&mut self, decision: &Decision) {
        if let Subject::Group(name) = &decision.subject {
            let mut groups = self.groups.iter_mut();
            let group = groups.find(|group| group.work.config.name == *name);
            if let Some(group) = group {
                group.reason = Some(decision.reason);
            }
        }
        let Some(settings) = self.settings_of(&decision.subject) else {
            return;
        };
        let actuator = decision.setting.actuator().to_owned();
        if decision.setting == ActuatorSetting::Off(false) {
            settings.remove(&actuator);
        } else {
            settings.insert(actuator, decision.setting.to_string());
        }
    }

    /// The settings of one of them, by actuator, in words.
    pub(super) fn settings_of(
        &mut self,
        subject: &Subject,
    ) -> Option<&mut std::collections::BTreeMap<String, String>> {
        match subject {
            Subject::Group(name) => {
                let mut groups = self.groups.iter_mut();
                let group = groups.find(|group| group.work.config.name == *name)?;
                Some(&mut group.settings)
            }
            Subject::Service(name) => {
                let mut services = self.services.iter_mut();
                let service = services.find(|service| service.service.name == *name)?;
                Some(&mut service.settings)
            }
            Subject::Machine => Some(&mut self.machine_settings),
        }
    }

    pub(super) fn status(&self) -> IsolationStatus {
        let services = self.services.iter();
        let services = services.map(|service| service_status(service, self.observe));
        let groups = self.groups.iter().map(|group| {
            let (settings, observed_settings) = told(&group.settings, self.observe);
            GroupStatus {
                name: group.work.config.name.clone(),
                group: group
                    .work
                    .place
                    .as_ref()
                    .and_then(|place| place.group.clone()),
                is_running: group.is_running,
                cpu_cores: group.rates.cpu_cores,
                cpu_s: group.cpu_s,
                progress: group.work.progress,
                settings,
                observed_settings,
                reason: group.reason,
            }
        });
        let (machine_settings, observed_machine_settings) =
            told(&self.machine_settings, self.observe);
        IsolationStatus {
            time: jiff::Timestamp::now().to_string(),
            age_s: None,
            at_s: self.began.elapsed().as_secs_f64(),
            pid: std::process::id(),
            watchdog_pid: self.watchdog.as_ref().map(Watchdog::pid),
            policy: self.config.policy.name,
            observe: self.observe,
            explanation: self.controller.explain(),
            services: services.collect(),
            groups: groups.collect(),
            machine_settings,
            observed_machine_settings,
            cores: self.cores,
            busy_cores: self.busy_cores,
            own_cores: self.own_cores,
            step_s: self.step.as_secs_f64(),
            decisions: self.decisions.clone(),
            troubles: self.troubles.clone(),
            recent: self.recent.clone(),
            yielded: self.steer.yielded().collect(),
            notes: self
                .notes
                .iter()
                .cloned()
                .chain(self.left_alone())
                .chain(self.journal_trouble.clone())
                .collect(),
            recording_trouble: self.recorder.as_ref().and_then(Recorder::in_words),
        }
    }

    /// Puts everything back, and lets the watchdog go.
    pub(super) fn end(&mut self) -> Result<RestoreReport, IsolateError> {
        let restored = self.put_back();
        status::remove(&self.state_dir);
        restored
    }

    /// Puts everything back. The watchdog goes, and with it the right to change anything.
    pub(super) fn put_back(&mut self) -> Result<RestoreReport, IsolateError> {
        let restored = match &mut self.journal {
            Some(journal) => journal.restore(&self.roots, false),
            None => Ok(RestoreReport::default()),
        };
        for group in &mut self.groups {
            group.work.reap();
        }
        let restored = restored?;
        // Where something could not be put back, the watchdog tries again when this process has
        // ended.
        if restored.is_complete()
            && let Some(watchdog) = self.watchdog.take()
        {
            watchdog.dismiss();
        }
        Ok(restored)
    }
}
