//! `slackline serve-block`: arguments, and what the server says while it runs.

mod admit;
mod calibrate;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use block_server::config::Config;
use block_server::launch::{Notice, Options};
use block_server::metrics::Status;
use dataplane::idle::IdlePolicy;
use http_client::{Client, Url};
use sd_notify::NotifyState;

use crate::{Done, message};

/// How long a server may take to say how it is.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Far above what 16,384 tenants need.
const ANSWER_MAX_BYTES: u64 = 64 << 20;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Export the devices of a configuration file over NBD and NVMe/TCP.
    Run(Run),
    /// Show the tenants of a running server: requests, bytes, errors, latency.
    Status(StatusArguments),
    /// Measure a device: latency against rate at several shares of reads. Nothing is written
    /// without --write-area.
    Calibrate(calibrate::Arguments),
    /// Would a tenant with an objective fit, and what is left? Exit code 1: the tenant does not
    /// fit.
    Admit(admit::Arguments),
}

#[derive(clap::Args)]
pub(crate) struct Run {
    /// The configuration: devices and tenants. SIGHUP has it read again.
    config: PathBuf,
    /// Read the configuration, open the devices, say what would be exported, and end.
    #[arg(long)]
    check: bool,
    /// What an idle shard does: spin for a learnt time and then sleep; spin always, for the lowest
    /// latency and one CPU second each second; or sleep at once.
    #[arg(long, value_enum, default_value = "learn")]
    idle: Idle,
    /// Keep capabilities and all system calls.
    #[arg(long)]
    no_sandbox: bool,
}

#[derive(clap::Args)]
pub(crate) struct StatusArguments {
    /// The configuration of the server, which must have `metrics`.
    config: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Idle {
    Learn,
    Spin,
    Sleep,
}

pub(crate) fn run(command: &Command) -> anyhow::Result<Done> {
    match command {
        Command::Run(arguments) => serve(arguments),
        Command::Status(arguments) => status(arguments),
        Command::Calibrate(arguments) => calibrate::run(arguments),
        Command::Admit(arguments) => admit::run(arguments),
    }
}

fn serve(arguments: &Run) -> anyhow::Result<Done> {
    if arguments.check {
        let exports = block_server::launch::check(&arguments.config)?;
        message(&format!("would export {}", exports.join(", ")));
        return Ok(Done::Positive);
    }
    let options = Options {
        config: arguments.config.clone(),
        idle: match arguments.idle {
            Idle::Learn => IdlePolicy::Learn,
            Idle::Spin => IdlePolicy::Spin,
            Idle::Sleep => IdlePolicy::Sleep,
        },
        is_sandboxed: !arguments.no_sandbox,
    };
    let connections_max = Config::read(&options.config)
        .map(|config| config.connections_max)
        .unwrap_or_default();
    crate::serve_cache::raise_descriptor_limit(connections_max);
    let signal = block_server::launch::serve(&options, &mut say)?;
    Ok(if signal == rustix::process::Signal::TERM.as_raw() {
        Done::Positive
    } else {
        Done::Signal(signal)
    })
}

fn say(notice: Notice) {
    match notice {
        Notice::Ready {
            addresses,
            nvme,
            exports,
        } => {
            let served: Vec<String> = [("NBD", addresses), ("NVMe/TCP", nvme)]
                .into_iter()
                .filter(|(_, addresses)| !addresses.is_empty())
                .map(|(protocol, addresses)| {
                    let addresses: Vec<String> =
                        addresses.iter().map(ToString::to_string).collect();
                    format!("{protocol} on {}", addresses.join(", "))
                })
                .collect();
            message(&format!(
                "serving {}: {}",
                served.join(" and "),
                exports.join(", ")
            ));
            let _ = sd_notify::notify(&[NotifyState::Ready]);
        }
        Notice::Reloaded(exports) => message(&format!(
            "configuration read again: new connections see {}",
            exports.join(", ")
        )),
        Notice::NotReloaded(reason) => message(&format!("the old configuration stays: {reason}")),
        Notice::Tenant(text) => message(&text),
        Notice::Draining => {
            let _ = sd_notify::notify(&[NotifyState::Stopping]);
            message("draining: no new connections; a second signal ends it at once");
        }
    }
}

fn status(arguments: &StatusArguments) -> anyhow::Result<Done> {
    let config = Config::read(&arguments.config)?;
    let address = config.metrics.with_context(|| {
        format!(
            "{}: `metrics` is missing: status is asked for at that address",
            arguments.config.display()
        )
    })?;
    let url = Url::parse(&format!("http://{address}/status")).map_err(anyhow::Error::msg)?;
    let text = Client::new(ANSWER_TIMEOUT)
        .text(&url, ANSWER_MAX_BYTES)
        .with_context(|| format!("no server answers at {address}"))?;
    if arguments.json {
        crate::print(&(text + "\n"))?;
        return Ok(Done::Positive);
    }
    let status: Status =
        serde_json::from_str(&text).context("the server answers in another format")?;
    crate::print(&table(&status))?;
    Ok(Done::Positive)
}

fn table(status: &Status) -> String {
    let mut rows = crate::table::narrow(&[
        "export",
        "objective",
        "p95 now",
        "reads",
        "p95 µs",
        "writes",
        "p95 µs",
        "queued",
        "errors",
    ]);
    for tenant in &status.tenants {
        rows.add_row([
            tenant.export.clone(),
            tenant.objective.map_or_else(
                || "best effort".to_owned(),
                |objective| format!("{} µs, {} IOPS", objective.p95_us, objective.iops),
            ),
            tenant
                .window_p95_us
                .map_or_else(|| "–".to_owned(), |p95_us| format!("{p95_us:.0}")),
            tenant.reads.to_string(),
            format!("{:.0}", tenant.read_p95_us),
            tenant.writes.to_string(),
            format!("{:.0}", tenant.write_p95_us),
            tenant.queued.to_string(),
            tenant.errors.to_string(),
        ]);
    }
    format!("{}\nconnections: {}\n", rows, status.connections)
}
