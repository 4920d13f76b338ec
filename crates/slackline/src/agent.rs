//! `slackline agent`: throttling metrics of every service of this host, for Prometheus.

use std::net::SocketAddr;

use ::agent::AgentOptions;
use anyhow::Context as _;
use tuner::process::Interrupt;

use crate::done::CommandOutcome;
use crate::output::message;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Address and port of /metrics. There is no password: use a loopback address, or put a proxy
    /// with access control in front.
    #[arg(long, default_value = "127.0.0.1:9753", value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Also report control groups whose path matches this pattern, such as `batch/*`. `NAME=`
    /// before the pattern names the service. By default systemd units and containers are services.
    /// Repeatable.
    #[arg(long, value_name = "[NAME=]GLOB")]
    service: Vec<String>,
    /// Largest number of services. Further services are not reported, only counted. Each service
    /// has at most 35 series.
    #[arg(long, default_value_t = 1000, value_name = "N")]
    max_services: usize,
    /// Length of one trace of the scheduler, in seconds. 0 turns tracing off.
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    trace_s: f64,
    /// Shortest time from one trace to the next, in seconds.
    #[arg(long, default_value_t = 10.0, value_name = "S")]
    trace_every_s: f64,
    /// CPU that the agent may use, in cores. If it needs more, it traces less often.
    #[arg(long, default_value_t = 0.005, value_name = "CORES")]
    cpu_budget: f64,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<CommandOutcome> {
    check(arguments)?;
    let options = AgentOptions {
        listen: arguments.listen,
        services: arguments.service.clone(),
        services_max: arguments.max_services,
        trace_s: arguments.trace_s,
        trace_every_s: arguments.trace_every_s,
        cpu_budget: arguments.cpu_budget,
    };
    let interrupt = Interrupt::on_signals().context("signals cannot be caught")?;
    ::agent::run(&options, &|| interrupt.signal().is_some(), &message)?;
    Ok(CommandOutcome::Signal(interrupt.signal().unwrap_or(0)))
}

fn check(arguments: &Arguments) -> anyhow::Result<()> {
    let (trace_s, every_s) = (arguments.trace_s, arguments.trace_every_s);
    anyhow::ensure!(
        (0.0..=60.0).contains(&trace_s),
        "--trace-s must be between 0 and 60"
    );
    anyhow::ensure!(
        every_s >= trace_s && every_s <= 3600.0,
        "--trace-every-s must be between --trace-s and 3600"
    );
    anyhow::ensure!(
        arguments.cpu_budget > 0.0 && arguments.cpu_budget <= 1.0,
        "--cpu-budget must be above 0 and at most 1"
    );
    anyhow::ensure!(
        (1..=100_000).contains(&arguments.max_services),
        "--max-services must be between 1 and 100000"
    );
    Ok(())
}
