//! `slackline relayout start`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use ::relayout::{
    ComparisonOptions, Drive, Driver, DriverSettings, ManifestStore, ProcessState,
    ProfilingOptions, RelayoutError, RelayoutStatus, Session, WorkUnit, drive,
};
use anyhow::{Context as _, bail};
use tuner::process::Interrupt;

use super::config::{self, Config, EVERY_S, Watch};
use super::log::Log;
use super::status::line;
use super::{undo, watcher};
use crate::done::CommandOutcome;
use crate::output::{error_chain, print};
use crate::throttle::process_number;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    whom: Whom,
    /// End when every process is optimised, declined or rolled back. By default the command watches
    /// until it is stopped.
    #[arg(long)]
    once: bool,
    /// Print the processes as JSON at the end.
    #[arg(long)]
    json: bool,
    /// A shell command for measuring the gain: the last number that it prints is the units of work
    /// done so far, such as queries. By default the messages that the process sends are counted.
    #[arg(long, value_name = "COMMAND")]
    metric_command: Option<String>,
    /// Name of the units that --metric-command counts.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "units",
        requires = "metric_command"
    )]
    metric_name: String,
    /// Number of pairs of blocks in the comparison.
    #[arg(long, value_name = "N", default_value_t = ComparisonOptions::default().pairs)]
    pairs: usize,
    /// Length of a block of the comparison, in seconds. Blocks are longer if the process does
    /// little work.
    #[arg(long, value_name = "S", default_value_t = ComparisonOptions::default().block.as_secs_f64())]
    block_s: f64,
    /// How often to look for processes, in seconds. By default the value of the configuration file,
    /// or 30.
    #[arg(long, value_name = "S")]
    every_s: Option<f64>,
    /// Shortest time between two relayouts of one process, in seconds. By default the value of the
    /// configuration file, or 300.
    #[arg(long, value_name = "S")]
    hold_off_s: Option<f64>,
}

/// Whom to watch.
#[derive(clap::Args)]
#[group(required = true, multiple = true)]
struct Whom {
    /// A process id. Repeatable.
    #[arg(long, value_parser = process_number)]
    pid: Vec<u32>,
    /// Every process whose executable has this name, without directory. Repeatable.
    #[arg(long, value_name = "NAME")]
    exe: Vec<String>,
    /// The processes that this configuration file (TOML) names. An example is
    /// contrib/systemd/slackline-relayout.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Of the shortest blocks so many take weeks: a number beyond it is a slip of the keyboard.
const PAIRS_MAX: usize = 1_000_000;

/// Whom arguments and configuration file name together.
struct Watched {
    pids: Vec<u32>,
    exe: Vec<Watch>,
}

impl Watched {
    fn new(whom: &Whom, config: Option<&Config>) -> anyhow::Result<Self> {
        for exe in &whom.exe {
            if let Some(why) = config::why_no_name(exe) {
                bail!("--exe {exe:?}: {why}");
            }
        }
        for pid in &whom.pid {
            if let Some(process) = thread_group(*pid).filter(|process| process != pid) {
                bail!("{pid} is a thread of process {process}: --pid {process}");
            }
        }
        let names = whom.exe.iter().cloned();
        let mut exe: Vec<Watch> = names.map(|exe| Watch { exe, uid: None }).collect();
        exe.extend(config.iter().flat_map(|config| config.watch.clone()));
        Ok(Self {
            pids: whom.pid.clone(),
            exe,
        })
    }

    /// Only processes by their numbers, of which none runs any more.
    fn has_ended(&self) -> bool {
        let roots = host::Roots::default();
        self.exe.is_empty()
            && !self
                .pids
                .iter()
                .any(|pid| host::start_time(&roots, *pid).is_ok())
    }

    fn sentence(&self, every_s: f64) -> String {
        let pids = self.pids.iter().map(|pid| format!("process {pid}"));
        let exe = self.exe.iter().map(|watch| format!("every {}", watch.exe));
        let whom: Vec<String> = pids.chain(exe).collect();
        format!("Watching {}, every {every_s} s.", whom.join(", "))
    }
}

/// The process of a thread: `/proc` has a directory for each thread, which it does not list, and
/// what is there looks like a process of its own.
fn thread_group(thread: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let field = text.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    field.trim().parse().ok()
}

pub(super) fn run(arguments: &Arguments, store: &ManifestStore) -> anyhow::Result<CommandOutcome> {
    anyhow::ensure!(
        (2..=PAIRS_MAX).contains(&arguments.pairs),
        "--pairs must be between 2 and {PAIRS_MAX}"
    );
    anyhow::ensure!(
        (0.05..=60.0).contains(&arguments.block_s),
        "--block-s must be between 0.05 and 60"
    );
    let config = arguments.whom.config.as_deref().map(config::read);
    let config = config.transpose()?;
    let is_once = arguments.once || config.as_ref().is_some_and(|config| config.once);
    let of_file = config.as_ref().and_then(|config| config.every_s);
    let every_s = arguments.every_s.or(of_file).unwrap_or(EVERY_S);
    let hold_off_of_file = config.as_ref().and_then(|config| config.hold_off_s);
    let whom = Watched::new(&arguments.whom, config.as_ref())?;
    let log_file = config.and_then(|config| config.log);
    crate::output::ensure_writable(&[log_file.as_ref().map(|(file, _)| file.as_path())])?;
    let log = Log::new(log_file);
    anyhow::ensure!(
        (1.0..=86_400.0).contains(&every_s),
        "--every-s must be between 1 and 86400"
    );
    let with = drive_of(arguments, arguments.hold_off_s.or(hold_off_of_file))?;
    let interrupt = Interrupt::on_signals().context("signals cannot be caught")?;
    // Before a process is touched.
    match with.unit.try_once() {
        Err(error) if is_once => return Err(error.into()),
        Err(error) => log.say(&format!("slackline: {error}")),
        Ok(()) => {}
    }
    if !is_once {
        watcher::note_watcher(store)?;
        log.say(&whom.sentence(every_s));
    }
    let mut watched: BTreeMap<(u32, u64), (Session, Driver)> = BTreeMap::new();
    let mut seen: BTreeMap<(u32, u64), RelayoutStatus> = BTreeMap::new();
    // What was said of a process last: the same every half a minute is not worth a line.
    let mut said: BTreeMap<u32, String> = BTreeMap::new();
    // With `--once`, what went wrong with one process, which keeps no other from its turn.
    let mut failed: Option<anyhow::Error> = None;
    loop {
        let pids = find(&whom)?;
        if pids.is_empty() && is_once {
            let names: Vec<&str> = whom.exe.iter().map(|watch| watch.exe.as_str()).collect();
            bail!(
                "no process has an executable of that name: {}",
                names.join(", ")
            );
        }
        watched.retain(|(pid, _), _| pids.contains(pid));
        for pid in pids {
            match drive_process(pid, store, &with, &interrupt, &mut watched, is_once, &log) {
                Ok(status) => {
                    seen.insert((status.pid, status.start_time), status);
                }
                Err(error) if !is_once => {
                    let text = format!("slackline: {}", error_chain(&error));
                    if said.insert(pid, text.clone()).as_ref() != Some(&text) {
                        log.say(&text);
                    }
                }
                // It ended before its turn came.
                Err(error) if is_gone(&error) && !whom.pids.contains(&pid) => {
                    log.say(&error_chain(&error));
                }
                Err(error) => {
                    if let Some(earlier) = failed.replace(error) {
                        log.say(&format!("slackline: {}", error_chain(&earlier)));
                    }
                }
            }
            if let Some(signal) = interrupt.signal() {
                return Ok(ended_by(signal, &seen));
            }
        }
        if is_once {
            break;
        }
        if whom.has_ended() {
            anyhow::ensure!(
                !seen.is_empty(),
                "no such process runs, so there is nothing to watch"
            );
            log.say("None of these processes runs any more: nothing is left to watch.");
            break;
        }
        let _ = interrupt.sleep(Duration::from_secs_f64(every_s));
        if let Some(signal) = interrupt.signal() {
            return Ok(ended_by(signal, &seen));
        }
    }
    finish(arguments.json, is_once, &seen, failed, &log)
}

/// How processes are driven.
fn drive_of(arguments: &Arguments, hold_off_s: Option<f64>) -> anyhow::Result<Drive> {
    let mut settings = DriverSettings::default();
    if let Some(hold_off_s) = hold_off_s {
        anyhow::ensure!(
            (0.0..=86_400.0).contains(&hold_off_s),
            "--hold-off-s must be between 0 and 86400"
        );
        settings.hold_off = Duration::from_secs_f64(hold_off_s);
    }
    Ok(Drive {
        method: ProfilingOptions::default(),
        unit: match &arguments.metric_command {
            None => WorkUnit::Sends,
            Some(command) => WorkUnit::Command {
                command: command.clone(),
                name: arguments.metric_name.clone(),
            },
        },
        effort: ComparisonOptions {
            pairs: arguments.pairs,
            block: Duration::from_secs_f64(arguments.block_s),
            ..ComparisonOptions::default()
        },
        settings,
    })
}

/// Prints how each process stands, and says what that is as an end.
fn finish(
    json: bool,
    is_once: bool,
    seen: &BTreeMap<(u32, u64), RelayoutStatus>,
    failed: Option<anyhow::Error>,
    log: &Log,
) -> anyhow::Result<CommandOutcome> {
    let all: Vec<&RelayoutStatus> = seen.values().collect();
    if json {
        let printed = serde_json::json!({ "processes": all });
        print(&(serde_json::to_string_pretty(&printed)? + "\n"))?;
    } else {
        let text: String = all.iter().map(|status| line(status) + "\n").collect();
        print(&text)?;
    }
    if is_once && seen.values().any(is_left) {
        if let Some(error) = failed {
            log.say(&format!("slackline: {}", error_chain(&error)));
        }
        return Ok(CommandOutcome::RestoreFailed);
    }
    if let Some(error) = failed {
        return Err(error);
    }
    let is_better = |status: &&RelayoutStatus| status.state == ProcessState::Optimized;
    Ok(match !all.is_empty() && all.iter().all(is_better) {
        true => CommandOutcome::Positive,
        false => CommandOutcome::Negative,
    })
}

fn is_gone(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<host::HostError>();
    matches!(error, Some(host::HostError::NoSuchProcess { .. }))
}

/// Drives one process as far as it goes now.
fn drive_process(
    pid: u32,
    store: &ManifestStore,
    with: &Drive,
    interrupt: &Interrupt,
    watched: &mut BTreeMap<(u32, u64), (Session, Driver)>,
    is_once: bool,
    log: &Log,
) -> anyhow::Result<RelayoutStatus> {
    let start_time = host::start_time(&host::Roots::default(), pid)?;
    let key = (pid, start_time);
    if let Some(other) = RelayoutStatus::claim(store, key, &executable(pid))? {
        bail!("slackline {other} is working on process {pid}: wait until it ends, or end it");
    }
    // An execve: another program, of which nothing is known.
    let is_current = |(session, _): &(Session, Driver)| session.cache.process.is_current();
    if watched.get(&key).is_some_and(|known| !is_current(known)) {
        watched.remove(&key);
    }
    let known = RelayoutStatus::load(store, pid, start_time);
    let is_kept = known.as_ref().is_some_and(RelayoutStatus::is_kept);
    let (session, driver) = match watched.entry(key) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(place) => match open(store, pid, with, is_kept) {
            Ok(session) => place.insert((session, Driver::with_kept_profiles(with.settings))),
            Err(error) => return declined(store, key, error, log),
        },
    };
    let mut last = known.as_ref().map(line).unwrap_or_default();
    // What an earlier Slackline has verified stays: it is verified anew only by one that watches,
    // and not in a quiet moment, in which nothing can be shown.
    if let Some(mut known) = known.filter(RelayoutStatus::is_kept)
        && driver.state() == ProcessState::Monitoring
        && session.cache.manifest.generation != 0
        && (is_once || session.is_idle()?)
    {
        known.read(Some(&session.cache.manifest));
        return Ok(known);
    }
    let mut is_interrupted = || interrupt.signal().is_some();
    let mut show = |status: &RelayoutStatus| {
        // A look that changed nothing is not worth a line.
        let line = line(status);
        if line != last {
            log.say(&line);
            last = line;
        }
    };
    let driven = drive(store, session, driver, with, &mut is_interrupted, &mut show);
    let Err(error) = driven else {
        return driven.map_err(Into::into);
    };
    // A process is not left in what is not on record as verified, whatever went wrong (a full disk,
    // say).
    if !RelayoutStatus::load(store, pid, start_time).is_some_and(|status| status.is_kept()) {
        match session.roll_back() {
            Ok(()) => log.say(&format!("process {pid} runs its original code")),
            Err(RelayoutError::Gone { .. }) => {}
            Err(error) => {
                // The next round, or slackline restore, begins with the way back.
                watched.remove(&key);
                let error = RelayoutError::NotUndone {
                    pid,
                    why: error.to_string(),
                };
                return declined(store, key, error, log);
            }
        }
    }
    declined(store, key, error, log)
}

/// Opens a process, and undoes what one who was killed, or could not undo it, left in it: it was
/// not shown to be better.
fn open(
    store: &ManifestStore,
    pid: u32,
    with: &Drive,
    is_kept: bool,
) -> Result<Session, RelayoutError> {
    let mut session = Session::open(store, pid, with.method)?;
    if !is_kept && !session.cache.manifest.generations.is_empty() {
        session.roll_back()?;
    }
    Ok(session)
}

/// A signal has come.
fn ended_by(signal: i32, seen: &BTreeMap<(u32, u64), RelayoutStatus>) -> CommandOutcome {
    match seen.values().any(is_left) {
        true => CommandOutcome::RestoreFailed,
        false => CommandOutcome::Signal(signal),
    }
}

/// Whether a process runs in a layout that nobody has shown to be better and nobody drives any
/// more.
fn is_left(status: &RelayoutStatus) -> bool {
    let roots = host::Roots::default();
    status.generation != 0
        && !status.is_kept()
        && host::is_running(&roots, status.pid, status.start_time)
}

/// What is said of a process that is left alone, or that has gone: then nothing of it stays on
/// record. Whatever else went wrong, or a privilege that is missing, is an error all the same.
fn declined(
    store: &ManifestStore,
    (pid, start_time): (u32, u64),
    error: RelayoutError,
    log: &Log,
) -> anyhow::Result<RelayoutStatus> {
    let reason = match &error {
        RelayoutError::Declined { reason, .. } => reason.to_string(),
        RelayoutError::NotUndone { .. } => error.to_string(),
        RelayoutError::Gone { .. } => {
            // Something of ours may have been in its code.
            let meanwhile = match store.load(pid, start_time)? {
                Some(_) => "while it was being counted or laid out",
                None => "meanwhile",
            };
            undo::forget_gone(store, pid, start_time)?;
            format!("it ended, or executed another program, {meanwhile}")
        }
        _ => return Err(error.into()),
    };
    let mut exe = executable(pid);
    if exe.is_empty() {
        // With it goes the way to its name.
        exe = RelayoutStatus::load(store, pid, start_time).map_or(exe, |known| known.exe);
    }
    let mut status = RelayoutStatus::new(pid, start_time, &exe);
    status.state = ProcessState::Declined;
    status.reason = Some(reason);
    // Where what an earlier Slackline left could not be undone, it is still in force.
    status.read(store.load(pid, start_time)?.as_ref());
    status.save(store)?;
    if error.is_missing_privilege() {
        return Err(error.into());
    }
    log.say(&line(&status));
    Ok(status)
}

/// Its file; the name of one that has none, or whose file may not be known.
fn executable(pid: u32) -> String {
    match fs::read_link(format!("/proc/{pid}/exe")) {
        Ok(exe) => exe.to_string_lossy().into_owned(),
        Err(_) => fs::read_to_string(format!("/proc/{pid}/comm"))
            .unwrap_or_default()
            .trim_end()
            .to_owned(),
    }
}

/// The processes to watch now.
fn find(whom: &Watched) -> anyhow::Result<Vec<u32>> {
    let mut pids = whom.pids.clone();
    if !whom.exe.is_empty() {
        let mut found = Vec::new();
        for pid in host::all_pids(&host::Roots::default())? {
            let Ok(exe) = fs::read_link(format!("/proc/{pid}/exe")) else {
                continue;
            };
            let name = exe.file_name().unwrap_or_default().to_string_lossy();
            // An upgrade has replaced it: its process is to be told of, not to be overlooked
            // (proc_pid_exe(5)).
            let name = name.strip_suffix(" (deleted)").unwrap_or(&name);
            let uid = || fs::metadata(format!("/proc/{pid}")).map(|metadata| metadata.uid());
            let is_wanted = |watch: &Watch| {
                watch.exe == name && watch.uid.is_none_or(|wanted| uid().ok() == Some(wanted))
            };
            if whom.exe.iter().any(is_wanted) {
                found.push((pid, exe));
            }
        }
        // What a server has forked belongs to it.
        let is_forked = |(pid, exe): &(u32, PathBuf)| {
            let parent = host::parent(&host::Roots::default(), *pid);
            parent.is_some_and(|parent| found.iter().any(|other| *other == (parent, exe.clone())))
        };
        let own = found.iter().filter(|process| !is_forked(process));
        pids.extend(own.map(|(pid, _)| *pid));
    }
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}
