//! The backend on AF_XDP: frames go past the kernel's network stack, and TCP is [`crate::tcp`].
//!
//! The backend takes a whole queue of an interface. Frames that are not for it are dropped, and the
//! kernel sees none of the queue's frames while the process lives. The program that leads frames
//! to the socket hangs on a kernel link, which ends with the process, however it ends.
//!
//! One shard has one queue. Flows stay with their queue: the device chooses it, so that flow groups
//! do not move between shards of this backend.

mod error;
mod interface;
mod program;
mod ring;
mod socket;
mod sys;

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

pub use error::XdpError;
pub use interface::Interface;
pub use program::Program;
pub use socket::{Attached, Mode, SocketConfig};

use crate::api::{Calls, Event, FlowId, ListenerId, Time};
use crate::backend::{Backend, Polled};
use crate::error::Error;
use crate::tcp::wire::Ip;
use crate::tcp::{self, ChecksumPolicy, Config, Counters, Data, Stack};
use socket::{Frame, Socket};

/// Marks a packet that was put together from several frames.
const GATHERED: u32 = 1 << 31;
/// A packet of several frames is this large at most.
const GATHERED_MAX_BYTES: usize = 1 << 16;

/// Turns between two updates of the counters that other threads read.
const PUBLISH_TURNS: u32 = 1024;

/// Settings of the backend.
#[derive(Clone, Debug)]
pub struct XdpConfig {
    /// The socket's settings.
    pub socket: SocketConfig,
    /// Addresses to listen on. Each must be an address of the interface, or unspecified.
    pub listen: Vec<SocketAddr>,
    /// Connections at most.
    pub connections_max: usize,
    /// Addresses of this stack besides the interface's own, each with the bits of its prefix.
    pub extra_addresses: Vec<(Ip, u8)>,
}

impl XdpConfig {
    /// Checks that the interface has all addresses to listen on.
    ///
    /// # Errors
    /// An address is not the interface's.
    pub fn check(&self, interface: &Interface) -> Result<(), XdpError> {
        let mut addresses = interface.addresses.iter().chain(&self.extra_addresses);
        for address in &self.listen {
            let ip = Ip::from(address.ip());
            let is_known = addresses.clone().any(|(own, _)| *own == ip);
            if !is_known && !address.ip().is_unspecified() {
                let known: Vec<String> = addresses.by_ref().map(|(ip, _)| ip.to_string()).collect();
                return Err(XdpError::ForeignAddress {
                    address: address.ip().to_string(),
                    interface: interface.name.clone(),
                    known: known.join(", "),
                });
            }
        }
        Ok(())
    }
}

/// One shard's network: a socket of AF_XDP and a TCP stack.
#[derive(Debug)]
pub struct XdpBackend {
    calls: XdpCalls,
    socket: Socket,
    batch: Vec<Frame>,
    gathered: Vec<Vec<u8>>,
    events: Vec<tcp::Event>,
    wake: Option<OwnedFd>,
    turns: u32,
    published: Arc<Mutex<Counters>>,
}

/// The batched calls: they reach the stack at once, and the wire with [`Backend::flush`].
#[derive(Debug)]
pub struct XdpCalls {
    stack: Stack,
}

impl XdpBackend {
    /// Opens a queue of the interface. `change` may change the stack's settings before it starts.
    ///
    /// # Errors
    /// An address is not the interface's, the queue is in use, or a privilege or the kernel's
    /// support is missing. Nothing is changed then.
    pub fn open(
        interface: &Interface,
        config: &XdpConfig,
        program: Arc<Program>,
        change: &dyn Fn(&mut Config),
    ) -> Result<XdpBackend, XdpError> {
        let stack = make_stack(interface, config, change)?;
        let socket = Socket::open(interface, &config.socket, program)?;
        Ok(XdpBackend {
            calls: XdpCalls { stack },
            socket,
            batch: Vec::with_capacity(256),
            gathered: Vec::new(),
            events: Vec::new(),
            wake: None,
            turns: 0,
            published: Arc::default(),
        })
    }

    /// The mode that the socket has got.
    pub fn attached(&self) -> Attached {
        self.socket.attached()
    }

    /// The stack's counters, as other threads may read them. They are brought up to date now and
    /// then, before each sleep, and at the end.
    pub fn counters(&self) -> Arc<Mutex<Counters>> {
        Arc::clone(&self.published)
    }

    fn publish(&self) {
        let mut counters = self
            .published
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *counters = *self.calls.stack.counters();
    }

    /// The stack, for its counters.
    pub fn stack(&self) -> &Stack {
        &self.calls.stack
    }

    /// The stack, for calls that the runtime does not have.
    pub fn stack_mut(&mut self) -> &mut Stack {
        &mut self.calls.stack
    }

    /// Takes one packet that begins at `at` in the batch. Returns the frames that it has.
    fn take_packet(&mut self, at: usize) -> usize {
        let Some(first) = self.batch.get(at) else {
            return 0;
        };
        let index = u32::try_from(at).unwrap_or(0);
        if !first.is_continued {
            let Socket {
                receiver, sender, ..
            } = &mut self.socket;
            self.calls
                .stack
                .receive(index, receiver.bytes(first), sender);
            return 1;
        }
        let mut bytes = Vec::with_capacity(GATHERED_MAX_BYTES);
        let mut count = 0;
        for frame in self.batch.iter().skip(at) {
            count += 1;
            if bytes.len() < GATHERED_MAX_BYTES {
                bytes.extend_from_slice(self.socket.receiver.bytes(frame));
            }
            if !frame.is_continued {
                break;
            }
        }
        let index = GATHERED | u32::try_from(self.gathered.len()).unwrap_or(0);
        self.calls
            .stack
            .receive(index, &bytes, &mut self.socket.sender);
        self.gathered.push(bytes);
        count
    }
}

fn make_stack(
    interface: &Interface,
    config: &XdpConfig,
    change: &dyn Fn(&mut Config),
) -> Result<Stack, XdpError> {
    let mut addresses = interface.addresses.clone();
    addresses.extend_from_slice(&config.extra_addresses);
    config.check(interface)?;
    let secret = secret().map_err(|source| XdpError::of("reading random numbers", source))?;
    let mut settings = Config::new(interface.mac, interface.mtu_bytes, addresses, secret);
    settings.gateways.clone_from(&interface.gateways);
    settings.connections_max = config.connections_max;
    if interface.is_virtual() {
        settings.checksums = ChecksumPolicy::ValidOrPartial;
    }
    change(&mut settings);
    let mut stack = Stack::new(settings, Time::now().0 / 1000);
    for address in &config.listen {
        let ip = (!address.ip().is_unspecified()).then(|| Ip::from(address.ip()));
        stack.listen(ip, address.port());
    }
    Ok(stack)
}

fn secret() -> std::io::Result<(u64, u64)> {
    let mut bytes = [0u8; 16];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok((u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1])))
}

impl Backend for XdpBackend {
    type Calls = XdpCalls;
    type Transfer = ();

    fn poll(&mut self, bound: usize) -> Result<Polled, Error> {
        self.calls.stack.expire(Time::now().0 / 1000);
        self.socket.sender.reclaim();
        let bound = u32::try_from(bound).unwrap_or(u32::MAX);
        let mut waiting = self.socket.receiver.receive(bound, &mut self.batch);
        // A packet's last frame belongs to its first.
        while self.batch.last().is_some_and(|frame| frame.is_continued) && waiting > 0 {
            waiting = self.socket.receiver.receive(1, &mut self.batch);
        }
        let mut at = 0;
        while at < self.batch.len() {
            at += self.take_packet(at);
        }
        Ok(Polled {
            events: self.calls.stack.events(),
            backlog: waiting as usize,
        })
    }

    fn deliver(&mut self, handler: &mut impl FnMut(Event<'_>, &mut Self::Calls)) {
        self.calls.stack.take_events(&mut self.events);
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            self.hand_over(&event, handler);
        }
        self.events = events;
        self.socket.receiver.give_back(&self.batch);
        self.batch.clear();
        self.gathered.clear();
    }

    fn calls(&mut self) -> &mut XdpCalls {
        &mut self.calls
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(PUBLISH_TURNS) {
            self.publish();
        }
        if self.calls.stack.has_output() {
            self.calls.stack.flush(&mut self.socket.sender);
        }
        self.socket.sender.flush().map_err(|source| Error::Os {
            call: "sendto on the AF_XDP socket",
            source,
        })
    }

    fn sleep(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        let is_busy = self.calls.stack.has_output()
            || self.calls.stack.events() > 0
            || self.socket.sender.has_unsent();
        if is_busy {
            return Ok(());
        }
        self.publish();
        let timers = self
            .calls
            .stack
            .wait_ms()
            .map(|wait| Duration::from_millis(u64::from(wait)));
        let timeout = timeout.into_iter().chain(timers).min();
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let socket = self.socket.descriptor();
        let mut watched = vec![PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        if let Some(wake) = &self.wake {
            watched.push(PollFd::new(wake, PollFlags::IN));
        }
        match rustix::event::poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Error::Os {
                call: "poll on the AF_XDP socket",
                source: error.into(),
            }),
        }
    }

    fn watch(&mut self, wake: BorrowedFd<'_>) -> Result<(), Error> {
        let wake = wake.try_clone_to_owned().map_err(|source| Error::Os {
            call: "dup",
            source,
        })?;
        self.wake = Some(wake);
        Ok(())
    }

    fn stop_listening(&mut self) {
        self.calls.stack.stop_listening();
    }

    fn flows(&self) -> usize {
        self.calls.stack.open_connections()
    }

    fn abort_all(&mut self) {
        self.calls.stack.abort_all();
    }

    fn begin_departure(&mut self, _group: u16) {}

    fn take_departed(&mut self) -> Option<(FlowId, u16, ())> {
        None
    }

    fn is_departing(&self) -> bool {
        false
    }

    fn arrive(&mut self, _group: u16, (): ()) -> Option<FlowId> {
        None
    }

    fn take_foreign(&mut self) -> Option<(u16, ())> {
        None
    }

    fn knock(&mut self, _group: u16, (): ()) {}
}

impl XdpBackend {
    /// Gives one event of the stack to the application.
    fn hand_over(
        &mut self,
        event: &tcp::Event,
        handler: &mut impl FnMut(Event<'_>, &mut XdpCalls),
    ) {
        let calls = &mut self.calls;
        let event = match event {
            tcp::Event::Knock { flow, ends } => Event::Knock {
                flow: *flow,
                listener: ListenerId(calls.stack.listener_of(ends)),
                peer: Some(SocketAddr::new(ends.remote.std(), ends.remote_port)),
            },
            tcp::Event::Connected { flow } => Event::Connected { flow: *flow },
            tcp::Event::Received { flow, data } => {
                // The application may have closed the flow in this very batch.
                if !calls.stack.is_open(*flow) {
                    return;
                }
                let data = match data {
                    Data::Owned(bytes) => bytes,
                    Data::Frame {
                        frame_index,
                        start,
                        length,
                    } => {
                        let packet = if frame_index & GATHERED != 0 {
                            let at = (frame_index & !GATHERED) as usize;
                            self.gathered.get(at).map_or(&[][..], Vec::as_slice)
                        } else {
                            self.batch
                                .get(*frame_index as usize)
                                .map_or(&[][..], |frame| self.socket.receiver.bytes(frame))
                        };
                        packet.get(*start..start + length).unwrap_or(&[])
                    }
                };
                Event::Recv { flow: *flow, data }
            }
            tcp::Event::Sent { flow } => Event::Sent { flow: *flow },
            tcp::Event::Finished { flow } => Event::PeerFinished { flow: *flow },
            tcp::Event::Dead { flow, reason } => Event::Dead {
                flow: *flow,
                reason: *reason,
            },
        };
        handler(event, calls);
    }
}

impl Drop for XdpBackend {
    fn drop(&mut self) {
        self.publish();
    }
}

impl Calls for XdpCalls {
    fn connect(&mut self, peer: SocketAddr) -> Option<FlowId> {
        let remote = Ip::from(peer.ip());
        self.stack.connect_from_any((remote, peer.port())).ok()
    }

    fn accept(&mut self, _flow: FlowId) {}

    fn reject(&mut self, flow: FlowId) {
        self.stack.reject(flow);
    }

    fn send(&mut self, flow: FlowId, data: &[u8]) -> usize {
        self.stack.send(flow, data)
    }

    fn send_space_bytes(&mut self, flow: FlowId) -> usize {
        self.stack.send_space_bytes(flow)
    }

    fn recv_done(&mut self, flow: FlowId, len_bytes: usize) {
        self.stack.receive_done(flow, len_bytes);
    }

    fn close(&mut self, flow: FlowId) {
        self.stack.close(flow);
    }

    fn abort(&mut self, flow: FlowId) {
        self.stack.abort(flow);
    }
}

impl From<XdpError> for Error {
    fn from(error: XdpError) -> Error {
        Error::Xdp(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_address_is_refused_with_the_known_ones() {
        let interface = Interface {
            name: "eth9".into(),
            index: 9,
            mac: tcp::wire::ethernet::Mac([2, 0, 0, 0, 0, 9]),
            mtu_bytes: 1500,
            driver: "veth".into(),
            addresses: vec![(Ip::v4([10, 7, 0, 2]), 24)],
            gateways: Vec::new(),
        };
        let config = XdpConfig {
            socket: SocketConfig::default(),
            listen: vec!["10.8.0.1:11211".parse().unwrap()],
            connections_max: 10,
            extra_addresses: Vec::new(),
        };
        let error = make_stack(&interface, &config, &|_| {}).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("10.8.0.1") && text.contains("10.7.0.2"),
            "{text}"
        );
        assert!(!error.is_missing_privilege());
    }
}
