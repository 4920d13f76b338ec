//! A server on the backend that checks a stream and sends one, and Linux's side of that.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use dataplane::shard::Plane;
use dataplane::tcp::Counters;
use dataplane::xdp::{Division, Interface, Program, SocketConfig, XdpBackend, XdpConfig, XdpMode};
use dataplane::{Application, Calls, Context, Event, FlowId, Shard, ShardConfig};

use super::PORT;
use super::namespaces::Wire;

/// The pattern repeats after a prime number of bytes, so that no lost segment keeps it in step.
const PERIOD: usize = 65_521;

/// Two periods of a stream's pattern.
pub(super) fn pattern(key: u64) -> Vec<u8> {
    (0..PERIOD * 2)
        .map(|at| {
            let place = (at % PERIOD) as u64 * 0x9e37_79b9;
            let value = place.wrapping_add(key.wrapping_mul(0x85eb_ca6b));
            u8::try_from(value >> 13 & 0xff).unwrap()
        })
        .collect()
}

/// A stream starts with its length and key, in 16 bytes. The same comes back, then the pattern.
#[derive(Default)]
pub(super) struct Stream {
    head: Vec<u8>,
    total: usize,
    received: usize,
    sent: usize,
    patterns: Option<(Vec<u8>, Vec<u8>)>,
}

impl Stream {
    fn receive(&mut self, mut data: &[u8]) {
        if self.patterns.is_none() {
            let wanted = (16 - self.head.len()).min(data.len());
            self.head.extend_from_slice(&data[..wanted]);
            data = &data[wanted..];
            if self.head.len() < 16 {
                return;
            }
            let word = |at: usize| u64::from_be_bytes(self.head[at..at + 8].try_into().unwrap());
            self.total = usize::try_from(word(0)).unwrap();
            self.patterns = Some((pattern(word(8)), pattern(!word(8))));
        }
        let (expected, _) = self.patterns.as_ref().unwrap();
        check(expected, self.received, data);
        self.received += data.len();
    }

    fn send<C: Calls>(&mut self, flow: FlowId, calls: &mut C) {
        let Some((_, own)) = &self.patterns else {
            return;
        };
        while self.sent < self.total {
            let at = self.sent % PERIOD;
            let length = (self.total - self.sent).min(32_768);
            let taken = calls.send(flow, &own[at..at + length]);
            self.sent += taken;
            if taken < length {
                return;
            }
        }
        if self.received == self.total {
            calls.close(flow);
        }
    }
}

fn check(pattern: &[u8], start: usize, mut data: &[u8]) {
    let mut at = start;
    while !data.is_empty() {
        let length = data.len().min(PERIOD);
        let expected = &pattern[at % PERIOD..at % PERIOD + length];
        assert!(data[..length] == *expected, "wrong bytes after {at}");
        data = &data[length..];
        at += length;
    }
}

#[derive(Default)]
pub(super) struct Exchange {
    streams: Vec<Stream>,
}

impl Exchange {
    fn stream(&mut self, flow: FlowId) -> &mut Stream {
        let at = flow.index as usize;
        if self.streams.len() <= at {
            self.streams.resize_with(at + 1, Stream::default);
        }
        &mut self.streams[at]
    }
}

impl Application for Exchange {
    type FlowState = Stream;

    fn on_event<C: Calls>(&mut self, event: Event<'_>, context: &mut Context<'_, C>) {
        let calls = &mut *context.calls;
        match event {
            Event::Knock { flow, .. } => {
                *self.stream(flow) = Stream::default();
                calls.accept(flow);
            }
            Event::Recv { flow, data } => {
                let stream = self.stream(flow);
                stream.receive(data);
                stream.send(flow, calls);
                calls.recv_done(flow, data.len());
            }
            Event::Sent { flow } => self.stream(flow).send(flow, calls),
            Event::PeerFinished { flow } => {
                let stream = self.stream(flow);
                if stream.sent == stream.total {
                    calls.close(flow);
                }
            }
            Event::Connected { .. }
            | Event::Filled { .. }
            | Event::Dead { .. }
            | Event::Timer { .. }
            | Event::File { .. } => {}
        }
    }

    fn detach(&mut self, flow: FlowId) -> Stream {
        std::mem::take(self.stream(flow))
    }

    fn attach<C: Calls>(&mut self, flow: FlowId, state: Stream, _context: &mut Context<'_, C>) {
        *self.stream(flow) = state;
    }
}

/// How a server is started.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerOptions {
    pub(super) mode: XdpMode,
    /// Shards, of which the first has all queues at the start.
    pub(super) shards: u8,
    /// The kernel completes the checksums.
    pub(super) leaves_checksums: bool,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            mode: XdpMode::Auto,
            shards: 1,
            leaves_checksums: false,
        }
    }
}

/// A server on threads of its own.
pub(super) struct Server {
    pub(super) plane: Arc<Plane<XdpBackend, Exchange>>,
    threads: Vec<JoinHandle<()>>,
    counters: Vec<Arc<Mutex<Counters>>>,
}

impl Server {
    pub(super) fn start(wire: &Wire, options: ServerOptions) -> Server {
        let ServerOptions {
            mode,
            shards,
            leaves_checksums,
        } = options;
        let backends = wire.server.run(move || {
            let interface = Interface::find("eth0").unwrap();
            let queues = interface.queues.receive;
            let program = Arc::new(Program::attach(&interface, queues, mode).unwrap());
            let division = Division {
                queues,
                shards,
                owner: &|_| 0,
            };
            let mut config = config(0);
            config.socket.leaves_checksums = leaves_checksums;
            XdpBackend::open_all(&interface, &config, &program, division, &|_| {}).unwrap()
        });
        let queues = wire.queues;
        let plane = Arc::new(Plane::with_groups(queues, shards, 1).unwrap());
        let counters = backends.iter().map(XdpBackend::counters).collect();
        let threads = (0..).zip(backends).map(|(id, backend)| {
            let plane = Arc::clone(&plane);
            std::thread::spawn(move || {
                let config = ShardConfig {
                    id,
                    ..ShardConfig::default()
                };
                let shard = Shard::new(config, backend, Exchange::default(), plane);
                shard.unwrap().run().unwrap();
            })
        });
        Server {
            threads: threads.collect(),
            plane,
            counters,
        }
    }

    /// Drains the server, and gives the counters of each stack.
    pub(super) fn stop(self) -> Vec<Counters> {
        self.plane.drain(Duration::from_secs(5));
        for thread in self.threads {
            thread.join().unwrap();
        }
        let counters = self.counters.iter();
        counters.map(|counters| *counters.lock().unwrap()).collect()
    }
}

/// The server's settings, with its first queue.
pub(super) fn config(queue: u32) -> XdpConfig {
    XdpConfig {
        socket: SocketConfig {
            queue,
            ..SocketConfig::default()
        },
        listen: vec![
            format!("10.77.0.2:{PORT}").parse().unwrap(),
            format!("[fd77::2]:{PORT}").parse().unwrap(),
        ],
        connections_max: 1000,
        extra_addresses: Vec::new(),
    }
}

/// Linux's side: sends `total` bytes and reads as many, at the same time.
pub(super) fn exchange(stream: &TcpStream, total: usize, key: u64) {
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let own = pattern(key);
    let expected = pattern(!key);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = stream;
            stream.write_all(&(total as u64).to_be_bytes()).unwrap();
            stream.write_all(&key.to_be_bytes()).unwrap();
            let mut sent = 0;
            while sent < total {
                let length = (total - sent).min(32_768);
                stream
                    .write_all(&own[sent % PERIOD..sent % PERIOD + length])
                    .unwrap();
                sent += length;
            }
        });
        let mut stream = stream;
        let mut received = 0;
        let mut buffer = vec![0; 65_536];
        while received < total {
            let length = stream.read(&mut buffer).unwrap();
            assert!(length > 0, "the stream ended after {received} bytes");
            check(&expected, received, &buffer[..length]);
            received += length;
        }
        assert_eq!(received, total);
        // The server closes when it has everything.
        assert_eq!(stream.read(&mut buffer).unwrap(), 0);
    });
    stream.shutdown(Shutdown::Both).unwrap();
}
