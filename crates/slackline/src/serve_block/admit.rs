//! `slackline serve-block admit`: would a tenant fit, and what is left.

use std::path::PathBuf;

use anyhow::Context as _;
use block_server::config::Config;
use block_server::plan::{self, Plan};
use qos::Objective;

use crate::Done;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The configuration: its devices with their calibrations, and the tenants that are there
    /// already.
    config: PathBuf,
    /// The device that the tenant would use. It may be left out if there is only one.
    #[arg(long)]
    device: Option<String>,
    /// 95th percentile of the latency of the tenant's reads, in microseconds.
    #[arg(long)]
    p95_us: u32,
    /// Requests of 4 KiB a second up to which the objective holds.
    #[arg(long)]
    iops: u32,
    /// Share of reads among them, 0 to 1.
    #[arg(long)]
    read: f64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Done> {
    let config = Config::read(&arguments.config)?;
    let books = plan::books(&config)?;
    let names: Vec<&str> = books.iter().map(|book| book.device.as_str()).collect();
    let file = arguments.config.display();
    let book = match &arguments.device {
        Some(name) => books
            .iter()
            .find(|book| book.device == *name)
            .with_context(|| {
                format!(
                    "{file}: --device: no device {name:?}; there are: {}",
                    names.join(", ")
                )
            })?,
        None if books.len() == 1 => &books[0],
        None => anyhow::bail!("{file}: --device: choose one of {}", names.join(", ")),
    };
    let plan = book.plan(Objective {
        p95_us: arguments.p95_us,
        iops: arguments.iops,
        read_share: arguments.read,
    })?;
    if arguments.json {
        crate::print(&(serde_json::to_string_pretty(&plan)? + "\n"))?;
    } else {
        crate::print(&text(&plan, arguments))?;
    }
    Ok(match plan.fits {
        true => Done::Positive,
        false => Done::Negative,
    })
}

fn text(plan: &Plan, arguments: &Arguments) -> String {
    let verdict = match &plan.reason {
        None => "The tenant fits.".to_owned(),
        Some(reason) => format!("The tenant does not fit: {reason}."),
    };
    let mut rows = crate::table::narrow(&["", "tokens/s"]);
    let mut row = |name: &str, value: Option<u64>| {
        if let Some(value) = value {
            rows.add_row([name.to_owned(), value.to_string()]);
        }
    };
    row("needed by the tenant", Some(plan.needed_tokens_per_s));
    let with = match plan.fits {
        true => "with the tenant",
        false => "without the tenant",
    };
    row(
        &format!("{} at its strictest objective, {with}", plan.device),
        plan.rate_tokens_per_s,
    );
    row(
        &format!("reserved, {with}"),
        Some(plan.reserved_tokens_per_s),
    );
    row("left", plan.left_tokens_per_s);
    let left = plan.left_iops.map_or_else(String::new, |iops| {
        let read = 100.0 * arguments.read;
        format!("Left at {read:.0} % reads: {iops} IOPS of 4 KiB.\n")
    });
    format!("{verdict}\n{rows}\n{left}")
}
