//! `slackline serve-block admit`: would a tenant fit, and what is left.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use block_server::config::BlockConfig;
use block_server::plan::{self, AdmissionPlan};
use qos::{Grouped, Objective};

use crate::done::CommandOutcome;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The configuration: its devices with their calibrations, and its present tenants.
    #[arg(default_value = super::run::CONFIG)]
    config: PathBuf,
    /// The device that the tenant would use. Required if the configuration has several devices.
    #[arg(long)]
    device: Option<String>,
    /// Objective: limit for the 95th percentile of the tenant's read latency, in microseconds.
    #[arg(long, value_parser = |text: &str| whole(text, qos::P95_US_MAX))]
    p95_us: u32,
    /// Highest rate at which the objective must hold, in requests of 4 KiB a second.
    #[arg(long, value_parser = |text: &str| whole(text, qos::IOPS_MAX))]
    iops: u32,
    /// Share of reads among these requests, from 0 to 1.
    #[arg(long)]
    read: f64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn whole(text: &str, max: u32) -> Result<u32, String> {
    let number = text.parse().ok();
    number
        .filter(|number| (1..=max).contains(number))
        .ok_or_else(|| format!("write a whole number from 1 to {}", Grouped(max.into())))
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<CommandOutcome> {
    anyhow::ensure!(
        (0.0..=1.0).contains(&arguments.read),
        "--read is {}: give a share from 0 to 1, such as 0.9",
        arguments.read
    );
    let config = BlockConfig::read(&arguments.config)?;
    let books = plan::books(&config)?;
    let names: Vec<&str> = books.iter().map(|book| book.device.as_str()).collect();
    let file = arguments.config.display();
    let book = match &arguments.device {
        Some(name) => books
            .iter()
            .find(|book| book.device == *name)
            .with_context(|| {
                format!(
                    "{file}: --device: there is no device {name:?}; there are: {}",
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
        crate::output::print(&(serde_json::to_string_pretty(&plan)? + "\n"))?;
    } else {
        crate::output::print(&text(&plan, &book.medium, arguments))?;
    }
    Ok(match plan.fits {
        true => CommandOutcome::Positive,
        false => CommandOutcome::Negative,
    })
}

fn text(plan: &AdmissionPlan, medium: &str, arguments: &Arguments) -> String {
    let read = format!("{:.0} % reads", 100.0 * arguments.read);
    let iops = plan
        .left_iops
        .map(|iops| format!("{} IOPS of 4 KiB at {read}", Grouped(iops)));
    if let Some(reason) = &plan.reason {
        let mut text = format!("The tenant does not fit: {reason}.\n");
        if let (Some(left), Some(p95_us)) = (plan.left_tokens_per_s, plan.rate_p95_us) {
            let objective = match plan.strictest_p95_us {
                Some(_) => "its strictest objective of ",
                None => "",
            };
            let _ = writeln!(
                text,
                "Without the tenant, {} has {} tokens/s left at {objective}{} µs{}.",
                plan.device,
                Grouped(left),
                Grouped(p95_us.into()),
                iops.map_or_else(String::new, |iops| format!(": {iops}")),
            );
        }
        if !plan.is_calibrated {
            let _ = writeln!(
                text,
                "What is left of {} is not known. Run `slackline serve-block calibrate {medium} --json FILE`, and add \
                 calibration = \"FILE\" to the device.",
                plan.device
            );
        }
        return text;
    }
    let mut rows = crate::table::narrow(&["with the tenant", "tokens/s"]);
    let mut row = |name: String, value: Option<u64>| {
        if let Some(value) = value {
            rows.add_row([name, Grouped(value).to_string()]);
        }
    };
    if let Some(p95_us) = plan.rate_p95_us {
        let p95_us = Grouped(p95_us.into());
        row(
            format!(
                "{} takes at {p95_us} µs, the strictest objective",
                plan.device
            ),
            plan.rate_tokens_per_s,
        );
    }
    row(
        "reserved by this tenant".to_owned(),
        plan.needed_tokens_per_s,
    );
    row(
        "reserved by all tenants".to_owned(),
        Some(plan.reserved_tokens_per_s),
    );
    row("left".to_owned(), plan.left_tokens_per_s);
    let left = iops.map_or_else(String::new, |iops| format!("Left: {iops}.\n"));
    format!("The tenant fits.\n{rows}\n{left}")
}
