//! Opens very many connections by AF_XDP to an echo server, holds them, and asks all of them:
//!
//! ```text
//! hold INTERFACE ADDRESS:PORT CONNECTIONS SECONDS HOLD_S SOURCES UNDER_WAY KEEP_ALIVE_S [CPU]
//! ```
//!
//! The connections come from SOURCES addresses that follow the interface's own at a distance of 256
//! (10.77.0.1, 10.77.1.1, …). UNDER_WAY requests are under way at a time, each on the connection
//! that has waited longest, in an order that is shuffled once. The end of each stage is a line of
//! JSON: `started`; `opened`; `first`, SECONDS of requests; `rows`, the same with 16 requests in a
//! row for each connection; `held`, HOLD_S seconds with keep-alive probes alone; `last`, SECONDS of
//! requests; `answered`, one request on each connection.
#![expect(clippy::print_stdout, reason = "the result is the output")]
#![expect(clippy::print_stderr, reason = "the output of a program")]

#[path = "shared/xdp.rs"]
mod xdp;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use dataplane::idle::IdlePolicy;
use dataplane::shard::Plane;
use dataplane::tcp::wire::Ip;
use dataplane::xdp::{Interface, XdpBackend, XdpConfig};
use dataplane::{Application, Calls, Context, Event, FlowId, Shard, ShardConfig, Time};
use hdrhistogram::Histogram;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

/// What an echo server sends back: 64 bytes.
const REQUEST: &[u8; 64] = b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde\n";
/// Connections that wait for the server's answer at most: fewer than its backlog.
const OPENING_MAX: usize = 256;
/// Requests before each measurement: caches and timers are then as they stay.
const WARM_UP: Duration = Duration::from_secs(1);
/// The only timer: the stage ends.
const STAGE_ENDS: u64 = 0;

/// Requests that a connection sends in a row in the stage `rows`, before the next one has its turn.
const ROW: u32 = 16;

/// What is asked in a stage.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asks {
    Nothing,
    /// All connections in turns, so many requests in a row each.
    InTurns(u32),
    /// Each connection once.
    Once,
}

/// When a stage ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// With the first turn of the shard.
    AtOnce,
    /// When all connections are open.
    Opened,
    /// When nothing may be asked any more, and no request is under way.
    Settled,
    After(Duration),
}

/// A stage. The end of one with a name is said.
#[derive(Clone, Copy)]
struct Stage {
    name: &'static str,
    asks: Asks,
    ends: Ends,
}

/// All stages in order.
fn plan(measure: Duration, hold: Duration) -> Vec<Stage> {
    let stage = |name, asks, ends| Stage { name, asks, ends };
    let (turns, rows) = (Asks::InTurns(1), Asks::InTurns(ROW));
    let (warm_up, measured) = (Ends::After(WARM_UP), Ends::After(measure));
    vec![
        stage("started", Asks::Nothing, Ends::AtOnce),
        stage("opened", Asks::Nothing, Ends::Opened),
        stage("", turns, warm_up),
        stage("first", turns, measured),
        stage("", rows, warm_up),
        stage("rows", rows, measured),
        stage("held", Asks::Nothing, Ends::After(hold)),
        stage("", turns, warm_up),
        stage("last", turns, measured),
        stage("", Asks::Nothing, Ends::Settled),
        stage("answered", Asks::Once, Ends::Settled),
    ]
}

/// A connection's request.
#[derive(Clone, Copy, Default)]
struct Asked {
    /// Bytes of the answer that are missing. 0: no request is under way.
    missing: u32,
    /// Requests that the connection may send after this one in its turn.
    row_left: u32,
    sent: Time,
}

struct Client {
    target: SocketAddr,
    wanted: usize,
    opened: usize,
    established: usize,
    failed: usize,
    under_way_max: usize,
    /// What is left of the plan, the present stage first.
    stages: VecDeque<Stage>,
    began: Time,
    /// By the flow's index.
    asked: Vec<Asked>,
    under_way: usize,
    /// Connections without a request, the one that has waited longest first.
    idle: VecDeque<FlowId>,
    /// Turns that may still begin in this stage.
    allowed: usize,
    answered: usize,
    latency_ns: Histogram<u64>,
    plane: Arc<Plane<XdpBackend, Client>>,
}

impl Client {
    fn open_more<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        let under_way = |client: &Self| {
            let ended = client.established + client.failed;
            client.opened.saturating_sub(ended)
        };
        while self.opened < self.wanted && under_way(self) < OPENING_MAX {
            if context.calls.connect(self.target).is_none() {
                self.failed += 1;
            }
            self.opened += 1;
        }
    }

    fn in_a_row(&self) -> u32 {
        match self.stages.front().map(|stage| stage.asks) {
            Some(Asks::InTurns(row)) => row,
            _ => 1,
        }
    }

    /// Lets connections begin their turns, as long as the stage allows it.
    fn ask<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        let row_left = self.in_a_row() - 1;
        while self.allowed > 0 && self.under_way < self.under_way_max {
            let Some(flow) = self.idle.pop_front() else {
                return;
            };
            self.allowed -= 1;
            self.send(flow, row_left, context);
        }
    }

    fn send<C: Calls>(&mut self, flow: FlowId, row_left: u32, context: &mut Context<'_, C>) {
        // A connection that has ended takes nothing.
        if context.calls.send(flow, REQUEST) == REQUEST.len() {
            self.asked[flow.index as usize] = Asked {
                missing: 64,
                row_left,
                sent: Time::now(),
            };
            self.under_way += 1;
        }
    }

    fn take<C: Calls>(&mut self, flow: FlowId, len: usize, context: &mut Context<'_, C>) {
        let asked = &mut self.asked[flow.index as usize];
        let is_asked = asked.missing > 0;
        asked.missing = asked
            .missing
            .saturating_sub(u32::try_from(len).unwrap_or(u32::MAX));
        if !is_asked || asked.missing > 0 {
            return;
        }
        let (now, Asked { row_left, sent, .. }) = (Time::now(), *asked);
        self.under_way -= 1;
        if sent >= self.began {
            self.answered += 1;
            self.latency_ns.saturating_record(now.since_ns(sent).max(1));
        }
        if row_left > 0 && self.allowed > 0 {
            self.send(flow, row_left - 1, context);
        } else {
            self.idle.push_back(flow);
        }
        self.ask(context);
    }

    fn lost<C: Calls>(&mut self, flow: FlowId, context: &mut Context<'_, C>) {
        self.failed += 1;
        if let Some(asked) = self.asked.get_mut(flow.index as usize)
            && asked.missing > 0
        {
            asked.missing = 0;
            self.under_way -= 1;
            self.ask(context);
        }
    }

    /// Says what the stage came to, and begins the next one.
    fn end_stage<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        if let Some(ended) = self.stages.pop_front() {
            if !ended.name.is_empty() {
                self.report(ended.name);
            }
            if ended.ends == Ends::Opened {
                // Else neighbours in memory would have their turns one after the other.
                let mut random = StdRng::seed_from_u64(1);
                self.idle.make_contiguous().shuffle(&mut random);
            }
        }
        let Some(next) = self.stages.front() else {
            self.plane.drain(Duration::ZERO);
            return;
        };
        self.began = Time::now();
        self.answered = 0;
        self.latency_ns.reset();
        self.allowed = match next.asks {
            Asks::Nothing => 0,
            Asks::InTurns(_) => usize::MAX,
            Asks::Once => self.idle.len(),
        };
        if let Ends::After(length) = next.ends {
            context.set_timer(STAGE_ENDS, length);
        }
        self.ask(context);
    }

    fn report(&self, name: &str) {
        let seconds = Time::now().since_ns(self.began) as f64 / 1e9;
        let quantile = |share: f64| self.latency_ns.value_at_quantile(share) as f64 / 1000.0;
        println!(
            "{{\"stage\":\"{name}\",\"seconds\":{seconds:.3},\"connections\":{},\"failed\":{},\"answered\":{},\"requests_per_s\":{:.0},\"mean_us\":{:.2},\"p50_us\":{:.2},\"p99_us\":{:.2},\"p999_us\":{:.2}}}",
            self.established,
            self.failed,
            self.answered,
            self.answered as f64 / seconds,
            self.latency_ns.mean() / 1000.0,
            quantile(0.5),
            quantile(0.99),
            quantile(0.999),
        );
    }
}

impl Application for Client {
    type FlowState = ();

    fn on_event<C: Calls>(&mut self, event: Event<'_>, context: &mut Context<'_, C>) {
        match event {
            Event::Connected { flow } => {
                self.established += 1;
                let at = flow.index as usize;
                if self.asked.len() <= at {
                    self.asked.resize(at + 1, Asked::default());
                }
                self.idle.push_back(flow);
            }
            Event::Recv { flow, data } => {
                context.calls.recv_done(flow, data.len());
                self.take(flow, data.len(), context);
            }
            Event::Dead { flow, reason } => {
                if self.failed < 5 {
                    eprintln!("a connection ended: {reason:?}");
                }
                self.lost(flow, context);
            }
            Event::PeerFinished { flow } => context.calls.close(flow),
            Event::Timer { .. } => self.end_stage(context),
            _ => {}
        }
    }

    fn on_batch_end<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        let is_over = match self.stages.front().map(|stage| stage.ends) {
            Some(Ends::AtOnce) => true,
            Some(Ends::Opened) => self.established + self.failed >= self.wanted,
            Some(Ends::Settled) => self.allowed == 0 && self.under_way == 0,
            Some(Ends::After(_)) | None => false,
        };
        if is_over {
            self.end_stage(context);
        }
        if self.stages.front().map(|stage| stage.ends) == Some(Ends::Opened) {
            self.open_more(context);
        }
    }

    fn detach(&mut self, _flow: FlowId) {}

    fn attach<C: Calls>(&mut self, _flow: FlowId, (): (), _context: &mut Context<'_, C>) {}
}

type Failure = Box<dyn std::error::Error>;

/// The interface's IPv4 address, and those that follow it at a distance of 256.
fn sources(interface: &Interface, count: u32) -> Result<Vec<(Ip, u8)>, Failure> {
    let mut addresses = interface.addresses.iter();
    let own = addresses.find_map(|(ip, prefix)| match ip.std() {
        IpAddr::V4(ip) => Some((u32::from(ip), *prefix)),
        IpAddr::V6(_) => None,
    });
    let (own, prefix) = own.ok_or("the interface has no IPv4 address")?;
    let more = (1..count).map(|number| {
        let ip = Ipv4Addr::from(own + (number << 8));
        (Ip::from(IpAddr::V4(ip)), prefix)
    });
    Ok(more.collect())
}

fn seconds_of(count: u32) -> Duration {
    Duration::from_secs(count.into())
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [interface, target, numbers @ ..] = &arguments[..] else {
        return Err("hold INTERFACE ADDRESS:PORT CONNECTIONS …: see the top of the source".into());
    };
    let numbers: Vec<u32> = numbers
        .iter()
        .map(|number| number.parse())
        .collect::<Result<_, _>>()?;
    let &[
        connections,
        seconds,
        hold_s,
        source_count,
        under_way,
        keep_alive_s,
        ref cpu @ ..,
    ] = &numbers[..]
    else {
        return Err("a number is missing: see the top of the source".into());
    };
    let wanted = usize::try_from(connections)?;
    let interface = Interface::find(interface)?;
    let config = XdpConfig {
        socket: xdp::socket(),
        listen: Vec::new(),
        connections_max: wanted + 1024,
        extra_addresses: sources(&interface, source_count)?,
    };
    let backend = xdp::open(&interface, &config, Some(keep_alive_s))?;
    let plane = Arc::new(Plane::new(1, 1)?);
    let client = Client {
        target: target.parse()?,
        wanted,
        opened: 0,
        established: 0,
        failed: 0,
        under_way_max: usize::try_from(under_way)?,
        stages: plan(seconds_of(seconds), seconds_of(hold_s)).into(),
        began: Time::now(),
        asked: Vec::with_capacity(wanted),
        under_way: 0,
        idle: VecDeque::with_capacity(wanted),
        allowed: 0,
        answered: 0,
        latency_ns: Histogram::new_with_bounds(1, 60_000_000_000, 3)?,
        plane: Arc::clone(&plane),
    };
    let shard = ShardConfig {
        cpu: cpu.first().map(|&cpu| usize::try_from(cpu)).transpose()?,
        idle: IdlePolicy::Spin,
        ..ShardConfig::default()
    };
    Shard::new(shard, backend, client, plane)?.run()?;
    Ok(())
}
