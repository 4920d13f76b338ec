//! The loop: look, decide, act, write down. It ends by a signal, after a time, or by an error; in
//! each case everything is put back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use host::{Journal, RestoreReport, Roots};
use isolation::{
    ActuatorSetting, Decision, GroupSeen, IsolationController, MachineObservation, MachineSeen,
    ServiceSeen, Subject, guarded,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::best_effort::Work;
use crate::config::{IsolationConfig, LatencyObjective, Service};
use crate::counters::{Counters, Machine, Rates, Traffic};
use crate::error::IsolateError;
use crate::latency::{self, Latency, Seen};
use crate::record::{RecordLine, Recorder};
use crate::status::{self, GroupStatus, IsolationStatus, ServiceStatus};
use crate::steer::{DecisionOutcome, Steer};
use crate::subject::{Place, is_same_or_above, place_of};
use crate::watchdog::Watchdog;

/// How often services and groups are looked for again.
const FIND_EVERY: Duration = Duration::from_secs(2);
/// How often a row is written and shown.
const ROW_EVERY: Duration = Duration::from_secs(1);
/// The loop's own CPU time stays below this; beyond it the steps become longer.
const OWN_CORES_MAX: f64 = 0.005;
/// The longest step: a source's window of a second has to be seen.
const STEP_MAX: Duration = Duration::from_secs(1);
/// Decisions that the status shows.
const RECENT_MAX: usize = 20;

/// How to run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// A directory for the record of the run.
    pub out: Option<PathBuf>,
    /// End after so long.
    pub duration: Option<Duration>,
    /// Decide and write down, and act on nothing, whatever the configuration says.
    pub observe: bool,
}

/// Who is told what happens.
pub trait Watcher {
    /// A second has passed.
    fn row(&mut self, status: &IsolationStatus);

    /// A step has passed: the time to answer who waits.
    fn step(&mut self, status: &IsolationStatus) {
        let _ = status;
    }

    /// Something worth a line of the log.
    fn say(&mut self, text: &str);
}

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

/// A service and what is known of it.
struct Watched {
    service: Service,
    objective: LatencyObjective,
    latency: Latency,
    place: Option<Place>,
    /// Its processes when it was last looked for.
    pids: Vec<u32>,
    counters: Counters,
    rates: Rates,
    seen: Option<Seen>,
}

/// A best-effort group and what is known of it.
struct Steered {
    work: Work,
    counters: Counters,
    rates: Rates,
    is_running: bool,
    settings: std::collections::BTreeMap<String, String>,
    reason: Option<isolation::Reason>,
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
    let config = IsolationConfig::read(path)?;
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

fn register(registered: std::io::Result<signal_hook::SigId>) -> Result<(), IsolateError> {
    registered
        .map(|_| ())
        .map_err(|error| IsolateError::file(Path::new("signal handler"), error))
}

struct Session {
    roots: Roots,
    state_dir: PathBuf,
    config: IsolationConfig,
    observe: bool,
    controller: Box<dyn IsolationController>,
    steer: Steer,
    /// `None` while only observing: then nothing is changed, and other Slacklines may run.
    journal: Option<Journal>,
    watchdog: Option<Watchdog>,
    recorder: Option<Recorder>,
    services: Vec<Watched>,
    groups: Vec<Steered>,
    machine: Machine,
    traffic: Traffic,
    cores: f64,
    busy_cores: f64,
    began: Instant,
    looked: Option<Instant>,
    found: Option<Instant>,
    step: Duration,
    own_cpu_s: (Instant, f64),
    own_cores: f64,
    decisions: std::collections::BTreeMap<String, u64>,
    troubles: std::collections::BTreeMap<String, u64>,
    recent: Vec<String>,
}

impl Session {
    fn begin(
        config: IsolationConfig,
        state_dir: &Path,
        options: &RunOptions,
        watcher: &mut dyn Watcher,
    ) -> Result<Self, IsolateError> {
        let roots = Roots::default();
        let observe = options.observe || config.policy.observe;
        let recorder = options.out.as_deref().map(Recorder::create).transpose()?;
        let services = open_services(&roots, &config)?;
        let (mut journal, mut watchdog) = (None, None);
        if !observe {
            let mut opened = Journal::open(state_dir)?;
            if !opened.is_empty() {
                let report = opened.restore(&roots, false)?;
                watcher.say(&format!(
                    "{} things that a killed run left were put back",
                    report.items.len()
                ));
            }
            watchdog = Some(Watchdog::start(state_dir)?);
            journal = Some(opened);
        }
        let now = Instant::now();
        let cores = host::online_cpus(&roots)?.len();
        #[expect(clippy::cast_precision_loss, reason = "a number of CPUs")]
        let cores = cores as f64;
        let groups = config.best_effort.iter().cloned().map(steered).collect();
        let mut session = Self {
            controller: guarded(&config.policy_settings()),
            steer: Steer::new(roots.clone(), config.policy.link_device.clone()),
            state_dir: state_dir.to_owned(),
            observe,
            journal,
            watchdog,
            recorder,
            services,
            groups,
            machine: Machine::default(),
            traffic: Traffic::default(),
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
            roots,
        };
        // What was begun is undone, whatever fails.
        if let Err(error) = session.find().and_then(|()| session.check_apart()) {
            session.end()?;
            return Err(error);
        }
        Ok(session)
    }

    /// No best-effort group may be a service's, hold it, or be held by it.
    fn check_apart(&self) -> Result<(), IsolateError> {
        for service in &self.services {
            let Some(theirs) = service
                .place
                .as_ref()
                .and_then(|place| place.group.as_deref())
            else {
                continue;
            };
            for group in &self.groups {
                let Some(own) = group
                    .work
                    .place
                    .as_ref()
                    .and_then(|place| place.group.as_deref())
                else {
                    continue;
                };
                if is_same_or_above(own, theirs) || is_same_or_above(theirs, own) {
                    return Err(IsolateError::NotThere {
                        subject: format!("best-effort group {}", group.work.config.name),
                        why: format!(
                            "its control group {own} and that of service {}, {theirs}, hold each other: put them apart",
                            service.service.name
                        ),
                    });
                }
            }
        }
        Ok(())
    }

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
        loop {
            if signal.load(Ordering::Relaxed) != 0
                || options
                    .duration
                    .is_some_and(|limit| self.began.elapsed() >= limit)
            {
                return Ok(());
            }
            if reload.swap(false, Ordering::Relaxed) {
                self.reload(path, watcher)?;
            }
            if self.found.is_none_or(|at| at.elapsed() >= FIND_EVERY) {
                self.find()?;
                if let Some(watchdog) = &mut self.watchdog
                    && watchdog.renew()?
                {
                    self.note(watcher, "the watchdog had died and was started again")?;
                }
            }
            let observation = self.look();
            let decisions = self
                .controller
                .step(&observation, self.began.elapsed().as_secs_f64());
            for decision in decisions {
                self.act(&decision, watcher)?;
            }
            let now = Instant::now();
            if now >= next_row {
                next_row = now + ROW_EVERY;
                self.count_own();
                let status = self.status();
                status::write(&self.state_dir, &status);
                watcher.row(&status);
                self.write(&RecordLine::Row(Box::new(status)))?;
                self.services.iter_mut().for_each(|service| {
                    if let Some(seen) = &mut service.seen {
                        seen.fresh = None;
                    }
                });
            }
            watcher.step(&self.status());
            next += self.step;
            // A machine that stood still does not catch up.
            next = next.max(Instant::now());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    fn write(&mut self, entry: &RecordLine) -> Result<(), IsolateError> {
        match &mut self.recorder {
            Some(recorder) => recorder.write(entry),
            None => Ok(()),
        }
    }

    fn note(&mut self, watcher: &mut dyn Watcher, text: &str) -> Result<(), IsolateError> {
        watcher.say(text);
        let at_s = self.began.elapsed().as_secs_f64();
        self.write(&RecordLine::Note {
            at_s,
            text: text.to_owned(),
        })
    }

    /// Looks for services and groups again: a service restarts with another pid, a group comes and
    /// goes.
    fn find(&mut self) -> Result<(), IsolateError> {
        self.found = Some(Instant::now());
        for service in &mut self.services {
            let place = match place_of(&self.roots, &service.service) {
                Ok(place) => Some(place),
                Err(IsolateError::NotThere { .. }) => None,
                Err(error) => return Err(error),
            };
            if place != service.place {
                service.counters = Counters::default();
                service.place = place;
            }
            let place = service.place.as_ref();
            service.pids = place.map_or_else(Vec::new, |place| place.pids(&self.roots));
        }
        for group in &mut self.groups {
            let before = group.work.place.clone();
            group.work.find(&self.roots, self.journal.as_mut())?;
            group.work.ask_progress();
            if before != group.work.place {
                group.counters = Counters::default();
                if group.work.place.is_none() {
                    self.steer.forget(&group.work.config.name);
                    let gone = before.and_then(|place| place.group);
                    if let (Some(journal), Some(gone)) = (&mut self.journal, gone) {
                        journal.forget_group(&gone)?;
                    }
                    group.settings.clear();
                }
            }
        }
        Ok(())
    }

    /// Reads all counters and sources.
    fn look(&mut self) -> MachineObservation {
        let now = Instant::now();
        let elapsed_s = self
            .looked
            .map_or(1.0, |at| (now - at).as_secs_f64())
            .max(1e-3);
        self.looked = Some(now);
        self.busy_cores = self.machine.busy_cores(&self.roots, elapsed_s);
        let mut observation = MachineObservation {
            machine: MachineSeen {
                busy_cores: self.busy_cores,
                llc_ways: host::Resctrl::ways(&self.roots).map(u64::from),
                link_mbit_per_s: self.config.policy.link_mbit_per_s,
                ..MachineObservation::of_cores(self.cores).machine
            },
            ..MachineObservation::default()
        };
        for service in &mut self.services {
            let rates = service.place.as_ref().and_then(|place| {
                service
                    .counters
                    .look(&self.roots, place, elapsed_s, &service.pids)
                    .ok()
            });
            let is_running = rates.is_some()
                && service
                    .place
                    .as_ref()
                    .is_some_and(|place| place.is_running(&self.roots));
            service.rates = rates.unwrap_or_default();
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
                cpu_cores: service.rates.cpu_cores,
                quota_cores: service.rates.quota_cores,
                throttled_share: service.rates.throttled_share,
                waiting_share: service.rates.waiting_share,
                ..ServiceSeen::without_data(&service.service.name, service.objective.latency_ms)
            });
            let fresh = seen
                .fresh
                .or(service.seen.as_ref().and_then(|seen| seen.fresh));
            service.seen = Some(Seen { fresh, ..seen });
        }
        for group in &mut self.groups {
            let rates = group
                .work
                .place
                .as_ref()
                .and_then(|place| group.counters.look(&self.roots, place, elapsed_s, &[]).ok());
            group.is_running = rates.is_some() && group.work.is_running(&self.roots);
            group.rates = rates.unwrap_or_default();
            observation.groups.push(GroupSeen {
                is_running: group.is_running,
                ..GroupSeen::running(&group.work.config.name, group.rates.cpu_cores)
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

    fn act(&mut self, decision: &Decision, watcher: &mut dyn Watcher) -> Result<(), IsolateError> {
        let place = match &decision.subject {
            Subject::Group(name) => {
                let mut groups = self.groups.iter();
                let group = groups.find(|group| group.work.config.name == *name);
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
            DecisionOutcome::Vanished => Some(("vanished", "it has vanished".to_owned())),
            DecisionOutcome::Lacking(why) => Some(("lacking", why.clone())),
            DecisionOutcome::Refused(why) => Some(("refused", why.clone())),
            DecisionOutcome::Yielded(why) => Some(("yielded", why.clone())),
        };
        let mut line = decision.to_string();
        if let Some((kind, why)) = said {
            let count = self.troubles.entry(kind.to_owned()).or_default();
            *count += 1;
            line = format!("{line}: {kind}: {why}");
            // The record has them all; the log the first of each kind.
            if *count == 1 {
                watcher.say(&line);
            }
        } else if let Subject::Group(name) = &decision.subject
            && let Some(group) = self
                .groups
                .iter_mut()
                .find(|group| group.work.config.name == *name)
        {
            let actuator = decision.setting.actuator().to_owned();
            let is_on = decision.setting == ActuatorSetting::Off(false);
            if is_on {
                group.settings.remove(&actuator);
            } else {
                group
                    .settings
                    .insert(actuator, decision.setting.to_string());
            }
            group.reason = Some(decision.reason);
        }
        let at_s = self.began.elapsed().as_secs_f64();
        self.recent.push(format!("{at_s:.1} s: {line}"));
        let extra = self.recent.len().saturating_sub(RECENT_MAX);
        self.recent.drain(..extra);
        self.write(&RecordLine::Decision {
            at_s,
            decision: decision.clone(),
            outcome,
        })
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
    fn reload(&mut self, path: &Path, watcher: &mut dyn Watcher) -> Result<(), IsolateError> {
        let config = match IsolationConfig::read(path) {
            Ok(config) => config,
            Err(error) => {
                return self.note(watcher, &format!("the old configuration stays: {error}"));
            }
        };
        if config.services != self.config.services {
            match open_services(&self.roots, &config) {
                Ok(services) => self.services = services,
                Err(error) => {
                    return self.note(watcher, &format!("the old configuration stays: {error}"));
                }
            }
        }
        if config.policy != self.config.policy {
            self.controller = guarded(&config.policy_settings());
            self.step = Duration::from_secs_f64(config.policy.step_ms / 1000.0);
        }
        if config.best_effort != self.config.best_effort {
            self.exchange_groups(&config)?;
        }
        self.steer.reload(config.policy.link_device.clone());
        self.config = config;
        self.find()?;
        self.check_apart()?;
        self.note(watcher, "the configuration was read again")
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
            self.steer.forget(&name);
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

    fn status(&self) -> IsolationStatus {
        let services = self.services.iter().map(service_status).collect();
        let groups = self.groups.iter().map(|group| GroupStatus {
            name: group.work.config.name.clone(),
            group: group
                .work
                .place
                .as_ref()
                .and_then(|place| place.group.clone()),
            is_running: group.is_running,
            cpu_cores: group.rates.cpu_cores,
            progress: group.work.progress,
            settings: group.settings.clone(),
            reason: group.reason,
        });
        IsolationStatus {
            time: jiff::Timestamp::now().to_string(),
            at_s: self.began.elapsed().as_secs_f64(),
            pid: std::process::id(),
            watchdog_pid: self.watchdog.as_ref().map(Watchdog::pid),
            policy: self.config.policy.name,
            observe: self.observe,
            explanation: self.controller.explain(),
            services,
            groups: groups.collect(),
            cores: self.cores,
            busy_cores: self.busy_cores,
            own_cores: self.own_cores,
            step_s: self.step.as_secs_f64(),
            decisions: self.decisions.clone(),
            troubles: self.troubles.clone(),
            recent: self.recent.clone(),
            yielded: self.steer.yielded().collect(),
        }
    }

    /// Puts everything back, and lets the watchdog go.
    fn end(&mut self) -> Result<RestoreReport, IsolateError> {
        let restored = match &mut self.journal {
            Some(journal) => journal.restore(&self.roots, false),
            None => Ok(RestoreReport::default()),
        };
        for group in &mut self.groups {
            group.work.reap();
        }
        status::remove(&self.state_dir);
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

fn steered(work: crate::config::BestEffort) -> Steered {
    Steered {
        work: Work::new(work),
        counters: Counters::default(),
        rates: Rates::default(),
        is_running: false,
        settings: std::collections::BTreeMap::new(),
        reason: None,
    }
}

/// Finds each service and opens its source. A service that is not there now is an error: it may be
/// misspelt.
fn open_services(roots: &Roots, config: &IsolationConfig) -> Result<Vec<Watched>, IsolateError> {
    let every = Duration::from_secs_f64((config.policy.step_ms / 2000.0).clamp(0.05, 0.25));
    let mut services = Vec::new();
    for (service, objective, spec) in &config.services {
        let place = place_of(roots, service)?;
        let pid = place.pid.or_else(|| place.pids(roots).first().copied());
        let surroundings = latency::surroundings(pid, objective, config.services.len());
        let latency = Latency::start(&service.name, spec, *objective, &surroundings, every)?;
        services.push(Watched {
            service: service.clone(),
            objective: *objective,
            latency,
            place: Some(place),
            pids: Vec::new(),
            counters: Counters::default(),
            rates: Rates::default(),
            seen: None,
        });
    }
    Ok(services)
}

fn service_status(service: &Watched) -> ServiceStatus {
    let window = service
        .seen
        .as_ref()
        .and_then(|seen| seen.window.as_ref().ok());
    let no_data = service
        .seen
        .as_ref()
        .and_then(|seen| seen.window.as_ref().err());
    let has_requests = window.filter(|tail| tail.requests > 0);
    ServiceStatus {
        name: service.service.name.clone(),
        source: service.latency.description().to_owned(),
        is_running: service.place.is_some(),
        percentile: service.objective.percentile,
        objective_ms: service.objective.latency_ms,
        latency_ms: has_requests.map(|tail| tail.latency_ms),
        fresh_ms: service
            .seen
            .as_ref()
            .and_then(|seen| seen.fresh)
            .map(|tail| tail.latency_ms),
        slack: has_requests.map(|tail| tail.slack(service.objective.latency_ms)),
        requests: window.map_or(0, |tail| tail.requests),
        requests_per_s: service.seen.as_ref().and_then(|seen| seen.requests_per_s),
        no_data: no_data.map(ToString::to_string),
        cpu_cores: service.rates.cpu_cores,
        quota_cores: service.rates.quota_cores,
        waiting_share: service.rates.waiting_share,
    }
}
