//! The agent's one loop: answer, look for services, trace now and then.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use host::Roots;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use throttle::Groups;
use throttle_watch::{Say, ThrottleError, Tracepoints};

use crate::error::AgentError;
use crate::metrics::{self, Agent};
use crate::names::Names;
use crate::server;
use crate::services::Services;

/// Pages of each CPU's buffer, as a power of two: 256 KiB hold about 2,500 switches.
const PAGES_LOG2: u32 = 6;
/// How often the buffers are emptied while tracing.
const DRAIN_EVERY: Duration = Duration::from_millis(50);
/// How often new services are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// The longest pause between two traces, whatever they cost.
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// What the agent serves, and what it may cost.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Where /metrics is.
    pub listen: SocketAddr,
    /// Further groups that are services: `GLOB` or `NAME=GLOB`.
    pub services: Vec<String>,
    /// Services beyond so many are only counted.
    pub services_max: usize,
    /// Length of one trace, in seconds; 0 is no tracing.
    pub trace_s: f64,
    /// Shortest time from one trace to the next, in seconds.
    pub trace_every_s: f64,
    /// CPU that the agent may use, in cores.
    pub cpu_budget: f64,
}

/// Serves metrics until `is_interrupted`.
///
/// # Errors
/// A pattern is wrong, nobody can be answered, or the host refuses. Without tracepoints the agent
/// serves the counters alone.
pub fn run(
    options: &AgentOptions,
    is_interrupted: &dyn Fn() -> bool,
    say: Say<'_>,
) -> Result<(), AgentError> {
    let names = Names::parse(&options.services)?;
    let listener = TcpListener::bind(options.listen).map_err(|source| AgentError::Listen {
        address: options.listen,
        source,
    })?;
    let set = listener.set_nonblocking(true);
    set.map_err(AgentError::Listener)?;
    let roots = Roots::default();
    let services = Services::find(roots.clone(), names, options.services_max)?;
    let tracepoints = if options.trace_s > 0.0 {
        open(&roots, say)
    } else {
        None
    };
    say(&format!(
        "Services: {}. Metrics on http://{}/metrics, at most {} series.",
        services.all.len(),
        listener.local_addr().map_err(AgentError::Listener)?,
        options.services_max * metrics::SERIES_PER_SERVICE + metrics::SERIES_OF_AGENT
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
        options,
    };
    while !is_interrupted() {
        let timeout = running.work()?;
        wait(&listener, timeout)?;
        let (services, agent) = (&mut running.services, &running.agent);
        server::answer_all(&listener, || metrics::exposition(services, agent));
    }
    Ok(())
}

/// The tracepoints, silent; without them, what will be missing.
fn open(roots: &Roots, say: Say<'_>) -> Option<Tracepoints> {
    let opened = Tracepoints::open(roots, PAGES_LOG2).and_then(|mut tracepoints| {
        tracepoints
            .set_enabled(false)
            .map_err(ThrottleError::from)?;
        Ok(tracepoints)
    });
    opened
        .inspect_err(|error| {
            say(&format!(
                "{error}. Counters only: no cores in use at 10 ms, no runnable threads, no run-queue delay."
            ));
        })
        .ok()
}

/// Waits until somebody asks, or the time is over, or a signal comes.
fn wait(listener: &TcpListener, timeout: Duration) -> Result<(), AgentError> {
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(AgentError::Poll(error)),
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
    options: &'a AgentOptions,
}

impl Running<'_> {
    /// Does what is due; how long there is nothing more to do.
    fn work(&mut self) -> Result<Duration, AgentError> {
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
                end: now + Duration::from_secs_f64(self.options.trace_s),
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
        let by_budget_s = used_s / self.options.cpu_budget;
        let whole_s = by_budget_s.max(self.options.trace_every_s);
        Duration::from_secs_f64((whole_s - traced_s).max(0.0)).min(PAUSE_MAX)
    }
}
