//! `slackline serve-block`: arguments, and what the server says while it runs.

mod admit;
mod calibrate;
mod status;

use std::path::PathBuf;

use block_server::config::Config;
use block_server::launch::{Notice, Options};
use dataplane::idle::IdlePolicy;
use sd_notify::NotifyState;

use crate::{Done, message};

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Export the devices of a configuration file over NBD and NVMe/TCP.
    Run(Run),
    /// Show the tenants of a running server: objective, latency, requests and tokens now, what was
    /// refused, and who leaves tokens to whom.
    Status(status::Arguments),
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

#[derive(Clone, Copy, clap::ValueEnum)]
enum Idle {
    Learn,
    Spin,
    Sleep,
}

pub(crate) fn run(command: &Command) -> anyhow::Result<Done> {
    match command {
        Command::Run(arguments) => serve(arguments),
        Command::Status(arguments) => status::run(arguments),
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
