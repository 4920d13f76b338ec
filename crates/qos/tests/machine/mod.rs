//! A simulated machine: tenants, threads with a scheduler each or none, and a simulated flash
//! device. Everything it shows is simulated.
#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "shared by tests and the benchmark, each of which uses a part"
)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use qos::simulated::{Flash, p3600_model};
use qos::{
    DeviceModel, LatencyWindow, Objective, Operation, Scheduler, SharedDevice, TenantId,
    TenantRequest, TenantSpec,
};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

pub(crate) const SECOND_NS: u64 = 1_000_000_000;
/// Without a scheduler the thread looks for requests this often.
const POLL_NS: u64 = 25_000;
/// The threads' rounds begin so long after one another.
const PHASE_NS: u64 = 1_000;

/// Requests that a client with an open load has under way at most, as a connection has. Others wait
/// in the client, and their latency counts from there.
const UNDER_WAY_MAX: u32 = 256;

/// How a tenant loads the device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    /// Requests of 4 KiB at random times, so many a second.
    Open { iops: f64, read_share: f64 },
    /// So many requests of so many bytes at any time: as soon as one is answered the next one
    /// comes.
    Closed {
        depth: u32,
        len_bytes: u32,
        read_share: f64,
    },
}

/// A latency-critical tenant's promise.
pub(crate) const OBJECTIVE: Objective = Objective {
    p95_us: 500,
    iops: 20_000,
    read_share: 0.9,
};
/// The load of a tenant that keeps to the promise.
pub(crate) const CRITICAL: Load = Load::Open {
    iops: 19_000.0,
    read_share: 0.9,
};
/// A writer that takes all it gets.
pub(crate) const GREEDY: Load = Load::Closed {
    depth: 256,
    len_bytes: 4096,
    read_share: 0.0,
};

/// A second of a tenant.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Second {
    pub(crate) p95_us: f64,
    pub(crate) requests: u32,
    pub(crate) tokens: u64,
}

struct Client {
    load: Load,
    /// Its tenant on each thread.
    ids: Vec<TenantId>,
    /// The threads that its connections are on.
    threads: Vec<usize>,
    under_way: u32,
    /// When each request came that waits in the client.
    line: VecDeque<u64>,
    window: LatencyWindow,
    requests: u32,
    tokens: u64,
    seconds: Vec<Second>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Completed {
        client: usize,
        thread: usize,
        is_read: bool,
        arrived_ns: u64,
        sent_ns: u64,
        submitted_ns: u64,
        len_bytes: u32,
    },
    Arrival {
        client: usize,
    },
    Round {
        thread: usize,
    },
}

#[derive(Clone, Copy)]
struct Io {
    client: usize,
    thread: usize,
    operation: Operation,
    len_bytes: u32,
    arrived_ns: u64,
    sent_ns: u64,
}

/// The machine.
pub(crate) struct Machine {
    pub(crate) device: Arc<SharedDevice>,
    /// One a thread.
    pub(crate) schedulers: Vec<Scheduler<Tagged>>,
    pub(crate) flash: Flash,
    is_scheduled: bool,
    /// Threads without work sleep. `None`: they look for it all the time.
    sleeping: Option<Vec<bool>>,
    clients: Vec<Client>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    random: ChaCha8Rng,
    now_ns: u64,
}

/// What the scheduler knows a request by.
pub(crate) struct Tagged(Io);

impl Machine {
    pub(crate) fn new(is_scheduled: bool, seed: u64) -> Self {
        Self::with_model(p3600_model(), is_scheduled, seed)
    }

    pub(crate) fn with_model(model: DeviceModel, is_scheduled: bool, seed: u64) -> Self {
        Self::build(model, is_scheduled, 1, seed)
    }

    /// Several threads, which sleep while they have no work.
    pub(crate) fn with_threads(threads: usize, seed: u64) -> Self {
        let mut machine = Self::build(p3600_model(), true, threads, seed);
        machine.sleeping = Some(vec![false; threads]);
        machine
    }

    fn build(model: DeviceModel, is_scheduled: bool, threads: usize, seed: u64) -> Self {
        let most = u32::try_from(threads).unwrap();
        let device = Arc::new(SharedDevice::for_threads(Some(model), most));
        let scheduler = || Scheduler::new(Arc::clone(&device)).unwrap();
        let mut machine = Self {
            schedulers: (0..threads).map(|_| scheduler()).collect(),
            device,
            flash: Flash::new(p3600_model(), seed),
            is_scheduled,
            sleeping: None,
            clients: Vec::new(),
            events: BinaryHeap::new(),
            number: 0,
            random: ChaCha8Rng::seed_from_u64(seed),
            now_ns: 0,
        };
        for thread in 0..threads {
            let at_ns = POLL_NS + PHASE_NS * u64::try_from(thread).unwrap();
            machine.push(at_ns, Event::Round { thread });
        }
        machine
    }

    /// Runs beside so many best-effort tenants that take all they get, of different sizes, depths
    /// and mixtures: Jain's index of the tokens that they got.
    pub(crate) fn jain_of_greedy(&mut self, tenants: u32, seconds: u64) -> f64 {
        let load = |number: u32| Load::Closed {
            depth: 4 + number % 29,
            len_bytes: 4096 << (number % 3),
            read_share: f64::from(number % 5) / 4.0,
        };
        let greedy: Vec<usize> = (0..tenants)
            .map(|number| self.add(None, load(number)))
            .collect();
        self.run(seconds);
        let tokens_of = |client: &usize| {
            let seconds = self.seconds(*client)[2..].iter();
            seconds.map(|second| second.tokens).sum::<u64>() as f64
        };
        let tokens: Vec<f64> = greedy.iter().map(tokens_of).collect();
        jain(&tokens)
    }

    pub(crate) fn add(&mut self, objective: Option<Objective>, load: Load) -> usize {
        self.add_on(&[0], objective, load)
    }

    /// Adds a client with connections on these threads.
    pub(crate) fn add_on(
        &mut self,
        threads: &[usize],
        objective: Option<Objective>,
        load: Load,
    ) -> usize {
        let spec = objective.map_or_else(TenantSpec::best_effort, TenantSpec::latency_critical);
        self.device.check(&spec).unwrap();
        let name = self.clients.len().to_string();
        let schedulers = self.schedulers.iter_mut();
        let ids = schedulers.map(|scheduler| scheduler.add_admitted(&name, spec).unwrap());
        let ids = ids.collect();
        self.clients.push(Client {
            load,
            ids,
            threads: threads.to_vec(),
            under_way: 0,
            line: VecDeque::new(),
            window: LatencyWindow::default(),
            requests: 0,
            tokens: 0,
            seconds: Vec::new(),
        });
        let client = self.clients.len() - 1;
        self.begin(client, load);
        client
    }

    /// The client does this from now on. One with an open load sends one more request.
    pub(crate) fn set_load(&mut self, client: usize, load: Load) {
        self.clients[client].load = load;
        self.begin(client, load);
    }

    fn begin(&mut self, client: usize, load: Load) {
        match load {
            Load::Open { .. } => self.push(self.now_ns + 1, Event::Arrival { client }),
            Load::Closed { depth, .. } => {
                for _ in 0..depth {
                    self.push(self.now_ns + 1, Event::Arrival { client });
                }
            }
        }
    }

    pub(crate) fn id(&self, client: usize) -> TenantId {
        self.clients[client].ids[0]
    }

    /// New requests come in on these threads.
    pub(crate) fn reconnect(&mut self, client: usize, threads: &[usize]) {
        self.clients[client].threads = threads.to_vec();
    }

    /// Wakes a thread that sleeps.
    fn wake(&mut self, thread: usize) {
        let sleeping = self.sleeping.as_mut();
        if sleeping.is_some_and(|all| std::mem::take(&mut all[thread])) {
            self.push(self.now_ns, Event::Round { thread });
        }
    }

    pub(crate) fn seconds(&self, client: usize) -> &[Second] {
        &self.clients[client].seconds
    }

    fn push(&mut self, at_ns: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((at_ns, self.number, event)));
    }

    /// Lets so many seconds pass.
    pub(crate) fn run(&mut self, seconds: u64) {
        let end_ns = self.now_ns + seconds * SECOND_NS;
        while let Some(Reverse((at_ns, _, _))) = self.events.peek() {
            if *at_ns >= end_ns {
                break;
            }
            let Some(Reverse((at_ns, _, event))) = self.events.pop() else {
                break;
            };
            if at_ns / SECOND_NS != self.now_ns / SECOND_NS {
                self.end_second();
            }
            self.now_ns = at_ns;
            self.happens(event);
        }
        self.end_second();
        self.now_ns = end_ns;
    }

    fn end_second(&mut self) {
        for client in &mut self.clients {
            client.seconds.push(Second {
                p95_us: client.window.p95_us().unwrap_or(0.0),
                requests: client.requests,
                tokens: client.tokens,
            });
            client.window.clear();
            (client.requests, client.tokens) = (0, 0);
        }
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Arrival { client } => self.arrives(client),
            Event::Round { thread } => {
                let mut submitted = Vec::new();
                self.schedulers[thread]
                    .round(self.now_ns, &mut |_, io: Tagged| submitted.push(io.0));
                for io in submitted {
                    self.submit(io);
                }
                let due_ns = self.schedulers[thread].due_ns();
                if let (None, Some(sleeping)) = (due_ns, &mut self.sleeping) {
                    sleeping[thread] = true;
                    return;
                }
                let due_ns = due_ns.unwrap_or(POLL_NS).min(POLL_NS);
                self.push(self.now_ns + due_ns, Event::Round { thread });
            }
            Event::Completed {
                client,
                thread,
                is_read,
                arrived_ns,
                sent_ns,
                submitted_ns,
                len_bytes,
            } => {
                let latency_ns = self.now_ns - arrived_ns;
                let operation = if is_read {
                    Operation::Read
                } else {
                    Operation::Write
                };
                let id = self.clients[client].ids[thread];
                if self.is_scheduled {
                    let (since_sent_ns, on_device_ns) =
                        (self.now_ns - sent_ns, self.now_ns - submitted_ns);
                    self.schedulers[thread].completed(
                        id,
                        Some(operation),
                        since_sent_ns,
                        on_device_ns,
                    );
                    self.wake(thread);
                }
                let costs = p3600_model().costs;
                let ended = &mut self.clients[client];
                ended.requests += 1;
                ended.tokens += u64::from(costs.of(operation, len_bytes));
                if is_read {
                    ended.window.record(latency_ns);
                }
                match ended.load {
                    Load::Closed { .. } => self.arrives(client),
                    Load::Open { .. } => match ended.line.pop_front() {
                        Some(arrived_ns) => self.send(client, arrived_ns),
                        None => ended.under_way -= 1,
                    },
                }
            }
        }
    }

    fn arrives(&mut self, client: usize) {
        match self.clients[client].load {
            Load::Open { iops, .. } => {
                let gap_s = -(1.0 - self.random.random::<f64>()).ln() / iops;
                let gap_ns = std::time::Duration::from_secs_f64(gap_s).as_nanos();
                let gap_ns = u64::try_from(gap_ns).unwrap();
                self.push(self.now_ns + gap_ns, Event::Arrival { client });
                let found = &mut self.clients[client];
                if found.under_way >= UNDER_WAY_MAX {
                    found.line.push_back(self.now_ns);
                    return;
                }
                found.under_way += 1;
            }
            Load::Closed { .. } => {}
        }
        self.send(client, self.now_ns);
    }

    /// Sends a request that came at `arrived_ns`.
    fn send(&mut self, client: usize, arrived_ns: u64) {
        let (len_bytes, read_share) = match self.clients[client].load {
            Load::Open { read_share, .. } => (4096, read_share),
            Load::Closed {
                len_bytes,
                read_share,
                ..
            } => (len_bytes, read_share),
        };
        let operation = match self.random.random::<f64>() < read_share {
            true => Operation::Read,
            false => Operation::Write,
        };
        let thread = match self.clients[client].threads[..] {
            [only] => only,
            ref all => all[self.random.random_range(0..all.len())],
        };
        let io = Io {
            client,
            thread,
            operation,
            len_bytes,
            arrived_ns,
            sent_ns: self.now_ns,
        };
        if !self.is_scheduled {
            self.submit(io);
            return;
        }
        let request = TenantRequest {
            operation,
            len_bytes,
            token: Tagged(io),
        };
        // No client has more under way than a queue has room for.
        let id = self.clients[client].ids[thread];
        let _ = self.schedulers[thread].enqueue(id, request, self.now_ns);
        self.wake(thread);
    }

    fn submit(&mut self, io: Io) {
        let done_ns = self.flash.submit(io.operation, io.len_bytes, self.now_ns);
        let event = Event::Completed {
            client: io.client,
            thread: io.thread,
            is_read: io.operation == Operation::Read,
            arrived_ns: io.arrived_ns,
            sent_ns: io.sent_ns,
            submitted_ns: self.now_ns,
            len_bytes: io.len_bytes,
        };
        self.push(done_ns, event);
    }
}

/// Jain's index of fairness: 1 where all are equal, 1/n where one has everything.
pub(crate) fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    sum * sum / (values.len() as f64 * squares)
}
