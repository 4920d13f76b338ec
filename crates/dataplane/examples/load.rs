//! A load generator on the runtime, for echo servers and caches. It prints one line of JSON.
//!
//! `load SHAPE ADDRESS CONNECTIONS SECONDS [RATE] [CPU] [INTERFACE]`: SHAPE is `echo` (64 bytes),
//! `http` (a GET whose answer ends with `END`), `memtier` (32-byte values, one SET for ten GETs),
//! `usr` or `etc` (Facebook's pools: Atikoglu et al., SIGMETRICS'12), one of these three in
//! Redis's protocol as `redis-memtier`, or `large` (GETs of 64 KiB). Without RATE (or with 0) every
//! connection has one request under way; with RATE, requests arrive by a Poisson process, and
//! latency counts from the arrival. With INTERFACE the connections are AF_XDP's, without it the
//! kernel's. With `FILLED` in the environment a cache has all keys already.

#![expect(clippy::print_stdout, reason = "the result is the output")]

#[path = "shared/xdp.rs"]
mod xdp;

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use dataplane::batch::{BOUND_MAX, BatchPolicy};
use dataplane::idle::IdlePolicy;
use dataplane::shard::{Command, Plane};
use dataplane::uring::{Uring, UringConfig};
use dataplane::xdp::{Interface, XdpBackend, XdpConfig};
use dataplane::{Application, Backend, Calls, Context, Event, FlowId, Shard, ShardConfig, Time};
use hdrhistogram::Histogram;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

const KEYS: u32 = 100_000;
/// Of the shape `large`, whose values are as many times as large.
const LARGE_KEYS: u32 = 1_000;
const LARGE_BYTES: u32 = 64 << 10;
const ARRIVAL: u64 = 1;
const PHASE: u64 = 2;
/// Arrivals that may wait for a connection; more mean that the server is past its capacity.
const WAITING_MAX: usize = 200_000;
const CONNECTS_AT_ONCE: usize = 256;
/// A request counts as late if this program sees its arrival later than this: a full turn takes a
/// third of it.
const LATE_NS: u64 = 100_000;

/// Longer than the end of any answer (`STORED\r\n`).
const END_BYTES: usize = 8;

/// A request under way.
#[derive(Clone, Copy)]
struct Pending {
    arrived: Time,
    /// Bytes of an echo's answer that are to come.
    left: usize,
    /// The last bytes of the answer so far. A segment may end anywhere, also within the last line.
    end: [u8; END_BYTES],
    /// Lines of the answer so far.
    lines: usize,
    /// Redis: the first line is the length of a value.
    has_length: bool,
}

impl Pending {
    fn new(arrived: Time, left: usize) -> Self {
        Self {
            arrived,
            left,
            end: [0; END_BYTES],
            lines: 0,
            has_length: false,
        }
    }

    /// Takes a piece of the answer, and says whether that was the last one.
    fn take(&mut self, shape: &str, data: &[u8]) -> bool {
        if self.end == [0; END_BYTES] {
            self.has_length = data.starts_with(b"$") && !data.starts_with(b"$-1");
        }
        self.left = self.left.saturating_sub(data.len());
        let kept = data.len().min(END_BYTES);
        self.end.copy_within(kept.., 0);
        self.end[END_BYTES - kept..].copy_from_slice(&data[data.len() - kept..]);
        match shape {
            "echo" => self.left == 0,
            // "+OK", "$-1", or a value behind its length.
            shape if shape.starts_with("redis-") => {
                self.lines += data.iter().filter(|&&byte| byte == b'\n').count();
                self.end.ends_with(b"\r\n") && (self.lines > 1 || !self.has_length)
            }
            _ => self.end.ends_with(b"END\r\n") || self.end.ends_with(b"STORED\r\n"),
        }
    }
}

struct Client<B: Backend> {
    shape: String,
    plane: Arc<Plane<B, Client<B>>>,
    address: std::net::SocketAddr,
    wanted: usize,
    opened: usize,
    flows: Vec<Option<Pending>>,
    idle: VecDeque<FlowId>,
    waiting: VecDeque<Time>,
    rate: f64,
    next_arrival: f64,
    seconds: u64,
    began: Option<Time>,
    ends: Time,
    preloaded: u32,
    latency_ns: Histogram<u64>,
    requests: u64,
    failed: u64,
    dropped: u64,
    arrived: u64,
    late: u64,
    random: StdRng,
    request: String,
}

impl<B: Backend> Client<B> {
    /// Puts the next request into `self.request`, and gives the length of an echo's answer.
    fn compose(&mut self, preload: Option<u32>) -> usize {
        self.request.clear();
        if self.shape == "echo" {
            self.request
                .push_str("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde\n");
            return 64;
        }
        if self.shape == "http" {
            self.request
                .push_str("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
            return 0;
        }
        let key = preload.unwrap_or_else(|| self.random.random_range(0..self.keys()));
        let is_redis = self.shape.starts_with("redis-");
        let shape = self.shape.trim_start_matches("redis-").to_owned();
        let share = match shape.as_str() {
            "memtier" => 1.0 / 11.0,
            "usr" => 0.002,
            "large" => 0.0,
            _ => 0.03,
        };
        let key = match shape.as_str() {
            "memtier" => format!("memtier-{key}"),
            _ => format!("{key:0>31}"),
        };
        if preload.is_some() || self.random.random_bool(share) {
            // ETC: the generalised Pareto distribution of the paper, up to 4 KiB.
            let len = match shape.as_str() {
                "memtier" => 32,
                "usr" => 2,
                "large" => LARGE_BYTES,
                _ => {
                    let uniform: f64 = self.random.random();
                    let size = 214.476 * ((1.0 - uniform).powf(-0.348_238) - 1.0) / 0.348_238;
                    (1..4096)
                        .find(|&len| f64::from(len) >= size)
                        .unwrap_or(4096)
                }
            };
            let len = usize::try_from(len).unwrap_or(1);
            if is_redis {
                let keys = key.len();
                let _ = write!(
                    self.request,
                    "*3\r\n$3\r\nSET\r\n${keys}\r\n{key}\r\n${len}\r\n{:x<len$}\r\n",
                    ""
                );
                return 0;
            }
            let _ = write!(self.request, "set {key} 0 0 {len}\r\n");
            self.request.extend(std::iter::repeat_n('x', len));
            self.request.push_str("\r\n");
        } else if is_redis {
            let keys = key.len();
            let _ = write!(self.request, "*2\r\n$3\r\nGET\r\n${keys}\r\n{key}\r\n");
        } else {
            let _ = write!(self.request, "get {key}\r\n");
        }
        0
    }

    fn keys(&self) -> u32 {
        match self.shape.as_str() {
            "large" => LARGE_KEYS,
            _ => KEYS,
        }
    }

    fn is_preloading(&self) -> bool {
        self.preloaded < self.keys() && !matches!(self.shape.as_str(), "echo" | "http")
    }

    fn send<C: Calls>(&mut self, flow: FlowId, arrived: Time, calls: &mut C) {
        let preload = self.is_preloading().then_some(self.preloaded);
        self.preloaded += u32::from(preload.is_some());
        let left = self.compose(preload);
        calls.send(flow, self.request.as_bytes());
        self.flows[flow.index as usize] = Some(Pending::new(arrived, left));
    }

    fn open<C: Calls>(&mut self, calls: &mut C) {
        if self.opened < self.wanted {
            self.opened += 1;
            if calls.connect(self.address).is_none() {
                self.failed += 1;
            }
        }
    }

    fn answered<C: Calls>(&mut self, flow: FlowId, arrived: Time, context: &mut Context<'_, C>) {
        let now = Time::now();
        if self.began.is_some_and(|began| arrived >= began) && now <= self.ends {
            self.requests += 1;
            self.latency_ns
                .saturating_record(now.since_ns(arrived).max(1));
        }
        if self.rate == 0.0 || self.began.is_none() || self.is_preloading() {
            self.send(flow, now, context.calls);
        } else if let Some(arrived) = self.waiting.pop_front() {
            self.send(flow, arrived, context.calls);
        } else {
            self.idle.push_back(flow);
        }
    }

    fn arrive<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        let now = Time::now();
        let began = self.began.unwrap_or(now);
        while self.next_arrival <= now.since_ns(began) as f64 {
            let offset = Duration::from_secs_f64(self.next_arrival / 1e9);
            let arrived = began.after(offset);
            self.next_arrival -= (1.0 - self.random.random::<f64>()).ln() / self.rate * 1e9;
            self.arrived += 1;
            self.late += u64::from(now.since_ns(arrived) > LATE_NS);
            match self.idle.pop_front() {
                Some(flow) => self.send(flow, arrived, context.calls),
                None if self.waiting.len() < WAITING_MAX => self.waiting.push_back(arrived),
                None => self.dropped += 1,
            }
        }
        context.set_timer(ARRIVAL, Duration::ZERO);
    }

    fn report(&self) {
        let quantile = |share: f64| self.latency_ns.value_at_quantile(share) as f64 / 1000.0;
        println!(
            "{{\"requests_per_s\":{:.0},\"mean_us\":{:.2},\"p50_us\":{:.2},\"p99_us\":{:.2},\"p999_us\":{:.2},\"failed\":{},\"dropped\":{},\"late_share\":{:.4}}}",
            self.requests as f64 / self.seconds as f64,
            self.latency_ns.mean() / 1000.0,
            quantile(0.5),
            quantile(0.99),
            quantile(0.999),
            self.failed,
            self.dropped + self.waiting.len() as u64,
            self.late as f64 / self.arrived.max(1) as f64,
        );
    }
}

impl<B: Backend> Application for Client<B> {
    type FlowState = ();

    fn on_event<C: Calls>(&mut self, event: Event<'_>, context: &mut Context<'_, C>) {
        match event {
            Event::Connected { flow } => {
                let index = flow.index as usize;
                if self.flows.len() <= index {
                    self.flows.resize(index + 1, None);
                }
                self.send(flow, Time::now(), context.calls);
                self.open(context.calls);
            }
            Event::Recv { flow, data } => {
                context.calls.recv_done(flow, data.len());
                let Some(Some(pending)) = self.flows.get_mut(flow.index as usize) else {
                    return;
                };
                if pending.take(&self.shape, data) {
                    let arrived = pending.arrived;
                    self.answered(flow, arrived, context);
                }
            }
            Event::Timer { token: PHASE } => {
                if self.began.is_some() {
                    self.report();
                    let _ = self.plane.mailboxes[0].send(Command::Drain(Duration::ZERO));
                    return;
                }
                let now = Time::now();
                if self.opened < self.wanted || self.is_preloading() {
                    context.set_timer(PHASE, Duration::from_millis(100));
                    return;
                }
                let length = Duration::from_secs(self.seconds);
                (self.began, self.ends) = (Some(now), now.after(length));
                context.set_timer(PHASE, length);
                if self.rate > 0.0 {
                    context.set_timer(ARRIVAL, Duration::ZERO);
                }
            }
            Event::Timer { .. } => self.arrive(context),
            Event::Dead { .. } => {
                self.failed += 1;
                if self.failed >= self.wanted as u64 {
                    // Without a report: whoever asked for one sees that there is none.
                    let _ = self.plane.mailboxes[0].send(Command::Drain(Duration::ZERO));
                }
            }
            Event::PeerFinished { flow } => context.calls.close(flow),
            Event::Knock { .. }
            | Event::Filled { .. }
            | Event::Sent { .. }
            | Event::File { .. } => {}
        }
    }

    fn on_batch_end<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        if self.opened == 0 {
            for _ in 0..CONNECTS_AT_ONCE {
                self.open(context.calls);
            }
            // Half a second to warm up.
            context.set_timer(PHASE, Duration::from_millis(500));
        }
    }

    fn detach(&mut self, _: FlowId) {}

    fn attach<C: Calls>(&mut self, _: FlowId, (): (), _: &mut Context<'_, C>) {}
}

fn run<B: Backend>(
    arguments: &[String],
    open: impl FnOnce(usize) -> Result<B, Failure>,
) -> Result<(), Failure> {
    let [shape, address, connections, seconds, rest @ ..] = arguments else {
        return Err("load SHAPE ADDRESS CONNECTIONS SECONDS [RATE] [CPU] [INTERFACE]".into());
    };
    let wanted: usize = connections.parse()?;
    let plane = Arc::new(Plane::new(1, 1)?);
    let client = Client {
        shape: shape.clone(),
        plane: Arc::clone(&plane),
        address: address.parse()?,
        wanted,
        opened: 0,
        flows: Vec::new(),
        idle: VecDeque::new(),
        waiting: VecDeque::new(),
        rate: rest.first().map_or(Ok(0.0), |rate| rate.parse())?,
        next_arrival: 0.0,
        seconds: seconds.parse()?,
        began: None,
        ends: Time::default(),
        preloaded: std::env::var_os("FILLED").map_or(0, |_| KEYS),
        latency_ns: Histogram::new_with_bounds(1, 60_000_000_000, 3)?,
        requests: 0,
        failed: 0,
        dropped: 0,
        arrived: 0,
        late: 0,
        random: StdRng::seed_from_u64(1),
        request: String::new(),
    };
    let cpu = rest.get(1).map(|cpu| cpu.parse()).transpose()?;
    let config = ShardConfig {
        id: 0,
        cpu,
        batch: BatchPolicy::Fixed(BOUND_MAX),
        idle: IdlePolicy::Spin,
    };
    Shard::new(config, open(wanted + 1)?, client, plane)?.run()?;
    Ok(())
}

type Failure = Box<dyn std::error::Error>;

fn by_kernel(flows_max: usize) -> Result<Uring, Failure> {
    Ok(Uring::new(UringConfig {
        flows_max,
        ..UringConfig::default()
    })?)
}

fn by_xdp(interface: &str, flows_max: usize) -> Result<XdpBackend, Failure> {
    let interface = Interface::find(interface)?;
    let config = XdpConfig {
        socket: xdp::socket(),
        listen: Vec::new(),
        connections_max: flows_max,
        extra_addresses: Vec::new(),
    };
    Ok(xdp::open(&interface, &config, None)?)
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.get(6) {
        Some(interface) => run(&arguments, |flows| by_xdp(interface, flows)),
        None => run(&arguments, by_kernel),
    }
}
