//! `slackline serve-block run`: arguments, and what the server says while it runs.

use std::net::SocketAddr;
use std::path::PathBuf;

use block_server::config::BlockConfig;
use block_server::launch::{BlockNotice, BlockServerOptions, address_place};
use qos::Grouped;
use sd_notify::NotifyState;

use crate::done::CommandOutcome;
use crate::idle::Idle;
use crate::output::message;
use crate::service_manager::ServiceManager;

/// Where the unit of contrib/systemd has it.
pub(super) const CONFIG: &str = "/etc/slackline/blocks.toml";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The configuration: devices and tenants. Send SIGHUP to read it again.
    #[arg(default_value = CONFIG)]
    config: PathBuf,
    /// Check the configuration and its devices, print what would be exported, and exit. Changes and
    /// locks nothing, so it also works beside a running server.
    #[arg(long)]
    check: bool,
    /// What an idle shard does.
    #[arg(long, value_enum, default_value = "learn")]
    idle: Idle,
    /// Run without the sandbox. Use this to find out whether the sandbox causes a failure.
    #[arg(long)]
    no_sandbox: bool,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<CommandOutcome> {
    if arguments.check {
        let checked = block_server::launch::check(&arguments.config)?;
        let exports: Vec<String> = checked
            .exports
            .iter()
            .map(|(export, device)| format!("{export} ({device})"))
            .collect();
        let served = served(&checked.addresses, &checked.nvme);
        message(&format!("would serve {served}: {}", exports.join(", ")));
        for (file, size_bytes) in &checked.files {
            let size_bytes = Grouped(*size_bytes);
            message(&format!(
                "would make {} with {size_bytes} bytes",
                file.display()
            ));
        }
        for (device, holders) in &checked.held {
            let holders = block_server::holders::named(holders);
            message(&format!(
                "{device} is in use by {holders}. If that is the server that you will reload, this is fine. A second server would not start"
            ));
        }
        for warning in &checked.warnings {
            message(warning);
        }
        if checked.has_objectives {
            message(
                "objectives were checked by the calibration, as at a start. A running server checks new objectives by the \
                 curve that it has learnt since its start",
            );
        }
        return Ok(CommandOutcome::Positive);
    }
    // First: until then SIGHUP ends the process.
    let signals = block_server::launch::catch_signals()?;
    let options = BlockServerOptions {
        config: arguments.config.clone(),
        idle: arguments.idle.into(),
        is_sandboxed: !arguments.no_sandbox,
    };
    let connections_max = BlockConfig::read(&options.config)
        .map(|config| config.connections_max)
        .unwrap_or_default();
    crate::descriptors::raise_limit_for(connections_max);
    let manager = ServiceManager::connect();
    let signal =
        block_server::launch::serve(&options, signals, &mut |notice| say(notice, &manager))?;
    Ok(if signal == rustix::process::Signal::TERM.as_raw() {
        CommandOutcome::Positive
    } else {
        CommandOutcome::Signal(signal)
    })
}

/// Each protocol with its addresses.
fn served(nbd: &[SocketAddr], nvme: &[SocketAddr]) -> String {
    let served: Vec<String> = [("NBD", nbd), ("NVMe/TCP", nvme)]
        .into_iter()
        .filter(|(_, addresses)| !addresses.is_empty())
        .map(|(protocol, addresses)| {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            format!("{protocol} on {}", addresses.join(", "))
        })
        .collect();
    served.join(" and ")
}

fn reloaded(
    (exports, changed, ended): (&[String], &[String], &[String]),
    after_restart: &[&str],
    restart_refuses: Option<&str>,
) -> String {
    let exports = exports.join(", ");
    let mut text = format!("configuration reloaded. Exports for new connections: {exports}");
    for (what, named) in [
        ("New or changed", changed),
        ("NBD connections that end, by export and reason", ended),
    ] {
        if !named.is_empty() {
            text += &format!(". {what}: {}", named.join(", "));
        }
    }
    if !after_restart.is_empty() {
        let keys = after_restart.join(", ");
        text += &format!(". Restart the server for the new value of {keys}");
    }
    if let Some(reason) = restart_refuses {
        text += &format!(
            ". A restart would refuse this configuration, because a start goes by the calibration and not by the curve \
             that was learnt: {reason}"
        );
    }
    text
}

fn say(notice: BlockNotice, manager: &ServiceManager) {
    match notice {
        BlockNotice::AddressInUse(held, place) => {
            message(&format!("{}{held}", address_place(place.as_ref())));
        }
        BlockNotice::Ready {
            addresses,
            nvme,
            metrics,
            exports,
        } => {
            let served = served(&addresses, &nvme);
            let metrics = metrics.map_or_else(
                || "No `metrics`: `status` cannot ask this server".to_owned(),
                |address| format!("`status` and /metrics: {address}"),
            );
            message(&format!(
                "serving {served}: {}. {metrics}",
                exports.join(", ")
            ));
            manager.tell(NotifyState::Ready);
        }
        BlockNotice::Reloaded {
            exports,
            changed,
            ended,
            restart_refuses,
            after_restart,
        } => message(&reloaded(
            (&exports, &changed, &ended),
            &after_restart,
            restart_refuses.as_deref(),
        )),
        BlockNotice::NotReloaded(reason) => message(&format!(
            "reload refused, the old configuration stays in force: {reason}"
        )),
        BlockNotice::Tenant(text) | BlockNotice::Warning(text) | BlockNotice::AuditLog(text) => {
            message(&text)
        }
        BlockNotice::Draining => {
            manager.tell(NotifyState::Stopping);
            message("draining: no new connections; a second signal ends the server at once");
        }
        BlockNotice::Drained { is_cut_off: false } => {
            message("drained: all requests were answered")
        }
        BlockNotice::Drained { is_cut_off: true } => message(
            "the time for the drain is over (`drain_s`): connections that were left are closed, and their requests were \
             not answered",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_says_whose_connections_end_and_what_needs_a_restart() {
        let names =
            |names: &[&str]| -> Vec<String> { names.iter().map(|&name| name.to_owned()).collect() };
        let text = "configuration reloaded. Exports for new connections: a, b";
        let exports = names(&["a", "b"]);
        assert_eq!(reloaded((&exports, &[], &[]), &[], None), text);
        let more = reloaded(
            (&exports, &names(&["b (new)"]), &names(&["c (gone)"])),
            &["listen", "drain_s"],
            Some("b.toml:7: no"),
        );
        assert_eq!(
            more,
            format!(
                "{text}. New or changed: b (new). NBD connections that end, by export and reason: c (gone). Restart the server for the new value of listen, drain_s. A restart would refuse this \
                 configuration, because a start goes by the calibration and not by the curve that was learnt: b.toml:7: no"
            )
        );
    }
}
