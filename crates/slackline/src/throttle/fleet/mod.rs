//! `slackline throttle fleet`: which services could give CPU back, and where latency can be won,
//! from what the agents export.

mod page;
mod text;

use std::path::PathBuf;

use anyhow::Context as _;
use throttle_watch::FleetQuery;

use crate::done::CommandOutcome;
use crate::output::message;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Base URL of the Prometheus server that scrapes the agents, or of a store with the same API.
    /// If a login is needed, write `USER:PASSWORD@` before the host.
    #[arg(long, value_name = "URL")]
    prometheus: String,
    /// Length of the time to judge, in seconds. The time ends at --at.
    #[arg(long, default_value_t = 1800, value_name = "S")]
    window_s: u32,
    /// When the time to judge ends: seconds since 1970, or RFC 3339. By default now.
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Use only series with these labels, such as 'cluster="a",env=~"prod.*"'.
    #[arg(long = "match", default_value = "", value_name = "MATCHERS")]
    matchers: String,
    /// Number of services in each table.
    #[arg(long, default_value_t = 15, value_name = "N")]
    top: usize,
    /// Write the results to this file as JSON. `-` prints them instead of the text.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report to one HTML file, with its pictures inside.
    #[arg(long, value_name = "FILE", value_parser = crate::output::file_to_write)]
    html: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<CommandOutcome> {
    anyhow::ensure!(
        (1..=2_592_000).contains(&arguments.window_s),
        "--window-s must be between 1 and 2592000 (30 days)"
    );
    crate::output::ensure_writable(&[arguments.json.as_deref(), arguments.html.as_deref()])?;
    let query = FleetQuery {
        prometheus: arguments.prometheus.clone(),
        window_s: arguments.window_s,
        at: arguments.at.clone(),
        matchers: arguments.matchers.clone(),
    };
    let (report, warnings) = query.ask()?;
    for warning in &warnings {
        message(&format!("Prometheus: {warning}"));
    }
    if !report.missing.is_empty() {
        message(&format!(
            "Not judged, because metrics are missing: {}. Do the agents trace (slackline_agent_traces)?",
            report.missing.join(", ")
        ));
    }
    if let Some(file) = &arguments.html {
        std::fs::write(file, page::html(&report, arguments.top))
            .with_context(|| format!("{}", file.display()))?;
    }
    crate::output::publish(
        arguments.json.as_deref(),
        &report,
        &text::text(&report, arguments.top),
        "Everything",
    )?;
    Ok(CommandOutcome::Positive)
}
