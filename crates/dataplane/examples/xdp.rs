//! Echo server and load generator on AF_XDP, to try the backend and to measure it:
//!
//! ```text
//! xdp echo INTERFACE ADDRESS:PORT [CPU [spin [KEEP_ALIVE_S]]]
//! xdp load INTERFACE ADDRESS:PORT CONNECTIONS SECONDS BYTES [CPU [SOURCES [IN_FLIGHT]]]
//! ```
//!
//! `load` keeps IN_FLIGHT requests of BYTES in flight, each on a connection of its own (default: on
//! all), from SOURCES addresses that follow the interface's own. It prints requests a second and
//! the latency's percentiles as JSON. `echo` probes connections that were silent for KEEP_ALIVE_S
//! seconds (default: two hours).
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the output of a program"
)]

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use dataplane::idle::IdlePolicy;
use dataplane::shard::Plane;
use dataplane::tcp::KeepAlive;
use dataplane::tcp::wire::Ip;
use dataplane::xdp::{Interface, Program, SocketConfig, XdpBackend, XdpConfig, XdpMode};
use dataplane::{Application, Calls, Context, Error, Event, FlowId, Shard, ShardConfig, Time};

/// Sends back what arrives. What cannot be sent yet is kept, and counts against the window.
#[derive(Default)]
struct Echo {
    unsent: HashMap<FlowId, Vec<u8>>,
}

impl Application for Echo {
    type FlowState = ();

    fn on_event<C: Calls>(&mut self, event: Event<'_>, context: &mut Context<'_, C>) {
        let calls = &mut *context.calls;
        match event {
            Event::Knock { flow, .. } => calls.accept(flow),
            Event::Recv { flow, data } => {
                let is_waiting = !self.unsent.is_empty() && self.unsent.contains_key(&flow);
                let sent = if is_waiting {
                    0
                } else {
                    calls.send(flow, data)
                };
                calls.recv_done(flow, sent);
                if sent < data.len() {
                    self.unsent
                        .entry(flow)
                        .or_default()
                        .extend_from_slice(&data[sent..]);
                }
            }
            Event::Sent { flow } => {
                if let Some(mut rest) = self.unsent.remove(&flow) {
                    let sent = calls.send(flow, &rest);
                    calls.recv_done(flow, sent);
                    rest.drain(..sent);
                    if !rest.is_empty() {
                        self.unsent.insert(flow, rest);
                    }
                }
            }
            Event::PeerFinished { flow } => calls.close(flow),
            Event::Dead { flow, .. } => drop(self.unsent.remove(&flow)),
            Event::Connected { .. }
            | Event::Filled { .. }
            | Event::Timer { .. }
            | Event::File { .. } => {}
        }
    }

    fn detach(&mut self, _flow: FlowId) {}

    fn attach<C: Calls>(&mut self, _flow: FlowId, (): (), _context: &mut Context<'_, C>) {}
}

/// One request in flight on each connection.
struct Load {
    target: SocketAddr,
    connections: usize,
    opened: usize,
    established: usize,
    failed: usize,
    request: Vec<u8>,
    /// By the flow's index: bytes of the answer that came, and when the request went out.
    pending: Vec<(usize, Time)>,
    /// Connections without a request, the one that has waited longest first.
    idle: VecDeque<FlowId>,
    in_flight_max: usize,
    measure_from: Option<Time>,
    measure: Duration,
    latencies: Vec<u32>,
    plane: Arc<Plane<XdpBackend, Load>>,
}

/// Frames for 10,000 requests in flight: a ring that overflows loses requests.
const SOCKET: SocketConfig = SocketConfig {
    queue: 0,
    frames: 1 << 14,
    busy_poll_us: None,
};
/// Connections that are opened in one turn.
const OPENED_PER_TURN: usize = 64;

impl Load {
    fn ask<C: Calls>(&mut self, flow: FlowId, context: &mut Context<'_, C>) {
        let at = flow.index as usize;
        if self.pending.len() <= at {
            self.pending.resize(at + 1, (0, Time::default()));
        }
        self.pending[at] = (0, context.now());
        context.calls.send(flow, &self.request);
    }

    fn open_more<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        for _ in 0..OPENED_PER_TURN {
            let waiting = self.opened - self.established - self.failed;
            if self.opened >= self.connections || waiting >= OPENED_PER_TURN {
                return;
            }
            match context.calls.connect(self.target) {
                Some(_) => self.opened += 1,
                None => return,
            }
        }
    }

    fn report(&mut self, seconds: f64) {
        self.latencies.sort_unstable();
        let count = self.latencies.len();
        let at = |per_mille: usize| {
            let place = (count * per_mille / 1000).min(count.saturating_sub(1));
            f64::from(self.latencies.get(place).copied().unwrap_or(0)) / 1000.0
        };
        println!(
            "{{\"connections\": {}, \"failed\": {}, \"requests_per_second\": {:.0}, \"p50_us\": {:.1}, \"p99_us\": {:.1}, \"p999_us\": {:.1}}}",
            self.established,
            self.failed,
            count as f64 / seconds,
            at(500),
            at(990),
            at(999),
        );
    }
}

impl Application for Load {
    type FlowState = ();

    fn on_event<C: Calls>(&mut self, event: Event<'_>, context: &mut Context<'_, C>) {
        match event {
            Event::Connected { flow } => {
                self.established += 1;
                if self.established <= self.in_flight_max {
                    self.ask(flow, context);
                } else {
                    self.idle.push_back(flow);
                }
            }
            Event::Recv { flow, data } => {
                context.calls.recv_done(flow, data.len());
                let entry = &mut self.pending[flow.index as usize];
                entry.0 += data.len();
                if entry.0 >= self.request.len() {
                    let nanoseconds = context.now().since_ns(entry.1);
                    if self.measure_from.is_some_and(|from| entry.1 >= from) {
                        self.latencies
                            .push(u32::try_from(nanoseconds).unwrap_or(u32::MAX));
                    }
                    self.idle.push_back(flow);
                    let next = self.idle.pop_front().unwrap_or(flow);
                    self.ask(next, context);
                }
            }
            Event::Dead { reason, .. } => {
                self.failed += 1;
                if self.failed < 5 {
                    eprintln!("a connection ended: {reason:?}");
                }
            }
            Event::Timer { .. } => {
                let seconds = self.measure.as_secs_f64();
                self.report(seconds);
                self.plane.drain(Duration::ZERO);
            }
            _ => {}
        }
    }

    fn on_batch_end<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        if self.opened < self.connections {
            self.open_more(context);
        }
        if self.measure_from.is_none() && self.established + self.failed >= self.connections {
            // A warm-up of a tenth, then the measurement.
            let warm_up = self.measure / 10;
            self.measure_from = Some(context.now().after(warm_up));
            context.set_timer(0, warm_up + self.measure);
        }
    }

    fn detach(&mut self, _flow: FlowId) {}

    fn attach<C: Calls>(&mut self, _flow: FlowId, (): (), _context: &mut Context<'_, C>) {}
}

fn echo(interface: &Interface, listen: SocketAddr, rest: &[String]) -> Result<(), Failure> {
    let config = XdpConfig {
        socket: SOCKET,
        listen: vec![listen],
        connections_max: 1 << 20,
        extra_addresses: Vec::new(),
    };
    let backend = open(interface, &config, number(rest.get(2))?)?;
    eprintln!(
        "echo on {} of {}: {:?}",
        listen,
        interface.name,
        backend.attached()
    );
    let idle = if rest.get(1).is_some_and(|word| word == "spin") {
        IdlePolicy::Spin
    } else {
        IdlePolicy::Learn
    };
    let shard = ShardConfig {
        cpu: number(rest.first())?,
        idle,
        ..ShardConfig::default()
    };
    let plane = Arc::new(Plane::new(1, 1)?);
    Shard::new(shard, backend, Echo::default(), plane)?.run()?;
    Ok(())
}

fn load(interface: &Interface, target: SocketAddr, rest: &[String]) -> Result<(), Failure> {
    let [connections, seconds, bytes, ..] = rest else {
        return Err(Failure::Usage);
    };
    let connections: usize = connections.parse().map_err(|_| Failure::Usage)?;
    let seconds: u64 = seconds.parse().map_err(|_| Failure::Usage)?;
    let bytes: usize = bytes.parse().map_err(|_| Failure::Usage)?;
    let sources: u32 = number(rest.get(4))?.unwrap_or(1);
    let own = interface
        .addresses
        .iter()
        .find_map(|(ip, prefix)| match ip.std() {
            IpAddr::V4(ip) => Some((ip, *prefix)),
            IpAddr::V6(_) => None,
        });
    let (own, prefix) = own.ok_or(Failure::Usage)?;
    let extra = (1..sources).map(|more| {
        let ip = Ipv4Addr::from(u32::from(own) + (more << 8));
        (Ip::from(IpAddr::V4(ip)), prefix)
    });
    let config = XdpConfig {
        socket: SOCKET,
        listen: Vec::new(),
        connections_max: connections + 1024,
        extra_addresses: extra.collect(),
    };
    let backend = open(interface, &config, None)?;
    let plane = Arc::new(Plane::new(1, 1)?);
    let application = Load {
        target,
        connections,
        opened: 0,
        established: 0,
        failed: 0,
        request: vec![b'x'; bytes],
        pending: Vec::new(),
        idle: VecDeque::new(),
        in_flight_max: number(rest.get(5))?.unwrap_or(connections).max(1),
        measure_from: None,
        measure: Duration::from_secs(seconds),
        latencies: Vec::with_capacity(1 << 24),
        plane: Arc::clone(&plane),
    };
    let shard = ShardConfig {
        cpu: number(rest.get(3))?,
        idle: IdlePolicy::Spin,
        ..ShardConfig::default()
    };
    Shard::new(shard, backend, application, plane)?.run()?;
    Ok(())
}

fn open(
    interface: &Interface,
    config: &XdpConfig,
    keep_alive_s: Option<u32>,
) -> Result<XdpBackend, Error> {
    config.check(interface)?;
    let program = Arc::new(Program::attach(interface, 1, XdpMode::Auto)?);
    let change = |stack: &mut dataplane::tcp::Config| {
        if let Some(seconds) = keep_alive_s {
            stack.keep_alive = Some(KeepAlive {
                idle_ms: seconds.saturating_mul(1000),
                interval_ms: 10_000,
                probes: 9,
            });
        }
    };
    Ok(XdpBackend::open(interface, config, program, &change)?)
}

fn number<T: std::str::FromStr>(word: Option<&String>) -> Result<Option<T>, Failure> {
    word.map(|word| word.parse().map_err(|_| Failure::Usage))
        .transpose()
}

enum Failure {
    Usage,
    Dataplane(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Dataplane(error)
    }
}

fn run(arguments: &[String]) -> Result<(), Failure> {
    let [verb, interface, address, rest @ ..] = arguments else {
        return Err(Failure::Usage);
    };
    let interface = Interface::find(interface).map_err(Error::from)?;
    let address: SocketAddr = address.parse().map_err(|_| Failure::Usage)?;
    match verb.as_str() {
        "echo" => echo(&interface, address, rest),
        "load" => load(&interface, address, rest),
        _ => Err(Failure::Usage),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage) => {
            eprintln!(
                "usage: xdp echo|load INTERFACE ADDRESS:PORT …: see the top of examples/xdp.rs"
            );
            ExitCode::from(2)
        }
        Err(Failure::Dataplane(error)) => {
            eprintln!("xdp: {error}");
            ExitCode::from(if error.is_missing_privilege() { 3 } else { 2 })
        }
    }
}
