//! `slackline agent`: throttling metrics of every service of this host, for Prometheus.
//!
//! Counters are read when somebody asks. The scheduler's tracepoints, one set of buffers for all
//! groups, are followed for a second now and then; the pause between follows from what the agent
//! itself costs.

mod metrics;
pub(crate) mod names;
pub(crate) mod server;
mod services;

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use host::Roots;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use throttle::Groups;
use tuner::process::Interrupt;

use self::metrics::Agent;
use self::names::Names;
use self::services::Services;
use crate::done::CommandOutcome;
use crate::output::{error_chain, message};
use crate::throttle::tracepoints::Tracepoints;

/// Pages of each CPU's buffer, as a power of two: 256 KiB hold about 2,500 switches.
const PAGES_LOG2: u32 = 6;
/// How often the buffers are emptied while tracing.
const DRAIN_EVERY: Duration = Duration::from_millis(50);
/// How often new services are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// The longest pause between two traces, whatever they cost.
const PAUSE_MAX: Duration = Duration::from_secs(300);

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
    let names = Names::parse(&arguments.service)?;
    let interrupt = Interrupt::on_signals().context("signals cannot be caught")?;
    let listener = TcpListener::bind(arguments.listen).with_context(|| {
        format!(
            "cannot listen on {}; is another agent running, or the address not of this host? choose one with --listen",
            arguments.listen
        )
    })?;
    listener.set_nonblocking(true)?;
    let roots = Roots::default();
    let services = Services::find(roots.clone(), names, arguments.max_services)?;
    let tracepoints = if arguments.trace_s > 0.0 {
        open(&roots)
    } else {
        None
    };
    message(&format!(
        "Services: {}. Metrics on http://{}/metrics, at most {} series.",
        services.all.len(),
        listener.local_addr()?,
        arguments.max_services * metrics::SERIES_PER_SERVICE + metrics::SERIES_OF_AGENT
    ));
    let mut running = Running {
        agent: Agent {
            traces: tracepoints.is_some(),
            traced_s: 0.0,
            lost_events: 0,
        },
        services,
        tracepoints,
        trace: None,
        next_trace: Instant::now(),
        next_look: Instant::now() + LOOK_EVERY,
        cpu_at_end_s: host::own_cpu_s(),
        arguments,
    };
    while interrupt.signal().is_none() {
        let timeout = running.work()?;
        wait(&listener, timeout)?;
        let (services, agent) = (&mut running.services, &running.agent);
        server::answer_all(&listener, || metrics::exposition(services, agent));
    }
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

/// The tracepoints, silent; without them, what will be missing.
fn open(roots: &Roots) -> Option<Tracepoints> {
    let opened = Tracepoints::open(roots, PAGES_LOG2).and_then(|mut tracepoints| {
        tracepoints.set_enabled(false)?;
        Ok(tracepoints)
    });
    opened
        .inspect_err(|error| {
            message(&format!(
                "{}. Counters only: no cores in use at 10 ms, no runnable threads, no run-queue delay.",
                error_chain(error)
            ));
        })
        .ok()
}

/// Waits until somebody asks, or the time is over, or a signal comes.
fn wait(listener: &TcpListener, timeout: Duration) -> anyhow::Result<()> {
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("poll"),
    }
}

/// A trace that is under way.
struct Trace {
    groups: Groups,
    start_ns: u64,
    end: Instant,
}

struct Running<'a> {
    agent: Agent,
    services: Services,
    tracepoints: Option<Tracepoints>,
    trace: Option<Trace>,
    next_trace: Instant,
    next_look: Instant,
    /// The agent's own CPU time at the end of the last trace.
    cpu_at_end_s: f64,
    arguments: &'a Arguments,
}

impl Running<'_> {
    /// Does what is due; how long there is nothing more to do.
    fn work(&mut self) -> anyhow::Result<Duration> {
        let now = Instant::now();
        // Never while tracing: what is seen then is kept by number.
        if self.trace.is_none() && now >= self.next_look {
            self.services.look_again()?;
            self.next_look = now + LOOK_EVERY;
        }
        let next_look = self.next_look.saturating_duration_since(now);
        let Some(tracepoints) = &mut self.tracepoints else {
            return Ok(next_look);
        };
        let Some(trace) = &mut self.trace else {
            if now < self.next_trace {
                return Ok(next_look.min(self.next_trace - now));
            }
            tracepoints.set_enabled(true)?;
            // What a thread did between the end of the last trace and now is of no use.
            let start_ns = tracepoints.drain(|_, _| {});
            let mut groups = Groups::new(start_ns, self.services.all.len());
            self.services
                .threads(|thread, group| groups.add(thread, group));
            self.trace = Some(Trace {
                groups,
                start_ns,
                end: now + Duration::from_secs_f64(self.arguments.trace_s),
            });
            return Ok(DRAIN_EVERY);
        };
        let end_ns = tracepoints.drain(|time_ns, event| trace.groups.take(time_ns, event));
        if now < trace.end {
            return Ok(DRAIN_EVERY.min(trace.end - now));
        }
        tracepoints.set_enabled(false)?;
        self.agent.lost_events = tracepoints.lost();
        if let Some(trace) = self.trace.take() {
            let seconds = (end_ns - trace.start_ns) as f64 / 1e9;
            let windows = trace.groups.windows(end_ns);
            self.agent.traced_s += seconds;
            self.services
                .add(&trace.groups.finish(end_ns), windows, seconds);
            self.next_trace = now + self.pause(seconds);
        }
        Ok(Duration::ZERO)
    }

    /// The pause after a trace: as long as the budget asks for, given what was used since the last
    /// one.
    fn pause(&mut self, traced_s: f64) -> Duration {
        let cpu_s = host::own_cpu_s();
        let used_s = cpu_s - self.cpu_at_end_s;
        self.cpu_at_end_s = cpu_s;
        let by_budget_s = used_s / self.arguments.cpu_budget;
        let whole_s = by_budget_s.max(self.arguments.trace_every_s);
        Duration::from_secs_f64((whole_s - traced_s).max(0.0)).min(PAUSE_MAX)
    }
}
