//! `slackline isolate run`: the controller in the foreground, under systemd where there is one.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use isolate_run::{IsolationStatus, RunOptions, Watcher};
use sd_notify::NotifyState;

use super::{metrics, text};
use crate::done::CommandOutcome;
use crate::output::message;
use crate::state_dir::with_state_dir;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The configuration (TOML, or JSON with the ending .json). Send SIGHUP to read it again.
    config: PathBuf,
    /// Record the run in this directory, for `isolate report`. A directory that has a recording is
    /// refused. If the recording cannot be written, for example because the disk is full, it
    /// pauses, and the controller goes on. The recording ends at 512 MiB, after about a week.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// End after this time, in seconds. By default the controller runs until a signal.
    #[arg(long, value_name = "S")]
    duration_s: Option<f64>,
    /// Decide, but change nothing. `isolate status` shows the decisions, and --out records them.
    #[arg(long)]
    observe: bool,
    /// Serve metrics for Prometheus at this address and port, at /metrics.
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
}

struct Teller<'a> {
    state_dir: &'a Path,
    listener: Option<TcpListener>,
    duration: Option<Duration>,
    is_ready: bool,
}

impl Watcher for Teller<'_> {
    fn begun(&mut self, status: &IsolationStatus) {
        let listener = self.listener.as_ref();
        let metrics = listener.and_then(|listener| listener.local_addr().ok());
        message(&text::begun(status, self.duration, metrics));
    }

    fn row(&mut self, status: &IsolationStatus) {
        let first = (!self.is_ready).then_some(NotifyState::Ready);
        self.is_ready = true;
        let line = text::line(status);
        let states: Vec<NotifyState<'_>> = first
            .into_iter()
            .chain([NotifyState::Watchdog, NotifyState::Status(&line)])
            .collect();
        // Without systemd there is nobody to tell.
        let _ = sd_notify::notify(&states);
    }

    fn step(&mut self, status: &dyn Fn() -> IsolationStatus) {
        if let Some(listener) = &self.listener {
            agent::answer_all(listener, || metrics::page(&status()));
        }
    }

    fn say(&mut self, text: &str) {
        message(&with_state_dir(text, self.state_dir));
    }
}

pub(super) fn run(arguments: &Arguments, state_dir: &Path) -> anyhow::Result<CommandOutcome> {
    let duration = match arguments.duration_s {
        Some(seconds) if seconds > 0.0 && seconds < 1e9 => Some(Duration::from_secs_f64(seconds)),
        Some(seconds) => {
            anyhow::bail!("--duration-s {seconds}: must be above 0 and below 1000000000")
        }
        None => None,
    };
    let listener = match arguments.metrics {
        Some(address) => {
            let listener =
                TcpListener::bind(address).with_context(|| format!("--metrics {address}"))?;
            listener.set_nonblocking(true)?;
            Some(listener)
        }
        None => None,
    };
    let options = RunOptions {
        out: arguments.out.clone(),
        duration,
        observe: arguments.observe,
    };
    let mut teller = Teller {
        state_dir,
        listener,
        duration,
        is_ready: false,
    };
    let finish = isolate_run::run(&arguments.config, state_dir, &options, &mut teller)?;
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    message(&text::ended(&finish.status));
    for item in finish.restored.changed_by_others() {
        message(&format!(
            "{}: left alone, because somebody else has changed it",
            item.named()
        ));
    }
    if !finish.restored.is_complete() {
        for line in crate::restore::lines(&finish.restored, false) {
            message(&line);
        }
        return Ok(CommandOutcome::RestoreFailed);
    }
    Ok(finish
        .signal
        .map_or(CommandOutcome::Positive, CommandOutcome::Signal))
}
