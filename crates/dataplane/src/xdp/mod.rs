//! The backend on AF_XDP: frames go past the kernel's network stack, and TCP is [`crate::tcp`].
//!
//! The backend takes a whole queue of an interface. Frames that are not for it are dropped, and the
//! kernel sees none of the queue's frames while the process lives. The program that leads frames
//! to the socket hangs on a kernel link, which ends with the process, however it ends.
//!
//! The device spreads connections over the queues that the backend's shards have taken. A queue is
//! a flow group here: it moves between shards with its connections. A frame that comes to a shard
//! without its connection is handed over.

mod calls;
mod config;
mod error;
mod interface;
mod program;
mod queues;
mod ring;
mod socket;
mod sys;

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

pub use calls::XdpCalls;
pub use config::XdpConfig;
pub use error::XdpError;
pub use interface::{Interface, Queues as QueueCounts};
pub use program::{Program, XdpMode};
pub use queues::{Queue, XdpTransfer};
pub use socket::{Attached, SocketConfig};

use crate::api::{Event, FlowId, ListenerId, Time};
use crate::backend::{Backend, Polled};
use crate::error::Error;
use crate::lock::lock;
use crate::tcp::{self, Config, Counters, Data, Directory, GROUPS_MAX, Stack};
use config::{make_stack, secret};
use queues::Queues;
use socket::{Frame, Receiver, Sender, Socket};

/// Marks a packet that was put together from several frames.
const GATHERED: u32 = 1 << 31;
/// A packet of several frames is this large at most.
const GATHERED_MAX_BYTES: usize = 1 << 16;

/// Turns between two updates of the counters that other threads read.
const PUBLISH_TURNS: u32 = 1024;

/// How the queues of an interface are divided among shards. Queue `first + group` is a flow group.
#[derive(Clone, Copy)]
pub struct Division<'a> {
    /// Queues to take, from [`SocketConfig::queue`] on: one for each shard at least.
    pub queues: u32,
    /// Shards.
    pub shards: u8,
    /// Which shard has a group at first.
    pub owner: &'a dyn Fn(u16) -> u8,
}

/// One shard's network: the queues that it has, and a TCP stack.
#[derive(Debug)]
pub struct XdpBackend {
    calls: XdpCalls,
    queues: Queues,
    sender: Sender,
    attached: Attached,
    /// Keeps the program attached.
    _program: Arc<Program>,
    batch: Vec<Frame>,
    gathered: Vec<Vec<u8>>,
    events: Vec<tcp::Event>,
    /// What ends a sleep beside the sockets.
    wakes: Vec<OwnedFd>,
    turns: u32,
    published: Arc<Mutex<Counters>>,
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
        let secret = secret()?;
        let stack = make_stack(interface, config, secret, change)?;
        let Socket {
            receiver,
            sender,
            attached,
        } = Socket::open(interface, &config.socket, &program)?;
        receiver.lead(&program)?;
        let mut backend = XdpBackend::new(stack, sender, attached, program);
        backend.add(0, receiver);
        Ok(backend)
    }

    /// Opens several queues of the interface for several shards, whose stacks have the same secrets
    /// and settings. The program must be attached for all of these queues.
    ///
    /// # Errors
    /// As [`XdpBackend::open`], or there are fewer queues than shards. Nothing is changed then.
    pub fn open_all(
        interface: &Interface,
        config: &XdpConfig,
        program: &Arc<Program>,
        division: Division<'_>,
        change: &dyn Fn(&mut Config),
    ) -> Result<Vec<XdpBackend>, XdpError> {
        interface.check_shards(division.shards)?;
        let secret = secret()?;
        let groups = (division.queues as usize).min(GROUPS_MAX);
        let shards = usize::from(division.shards);
        let directory = Arc::new(Directory::new(config.connections_max * shards));
        let mut backends = Vec::with_capacity(shards);
        let mut receivers = Vec::with_capacity(groups);
        // Every queue is ours before a frame of any is led away from the kernel.
        for (group, queue) in (0..groups).zip(config.socket.queue..) {
            let settings = SocketConfig {
                queue,
                ..config.socket
            };
            let socket = Socket::open(interface, &settings, program)?;
            receivers.push(socket.receiver);
            if group < shards {
                let mut stack = make_stack(interface, config, secret, change)?;
                if groups > 1 {
                    stack.share(Arc::clone(&directory), groups);
                }
                let (sender, attached) = (socket.sender, socket.attached);
                backends.push(XdpBackend::new(
                    stack,
                    sender,
                    attached,
                    Arc::clone(program),
                ));
            }
        }
        for (group, receiver) in (0..).zip(receivers) {
            receiver.lead(program)?;
            if let Some(backend) = backends.get_mut(usize::from((division.owner)(group))) {
                backend.add(group, receiver);
            }
        }
        Ok(backends)
    }

    fn new(stack: Stack, sender: Sender, attached: Attached, program: Arc<Program>) -> XdpBackend {
        XdpBackend {
            calls: XdpCalls { stack },
            queues: Queues::default(),
            sender,
            attached,
            _program: program,
            batch: Vec::with_capacity(256),
            gathered: Vec::new(),
            events: Vec::new(),
            wakes: Vec::new(),
            turns: 0,
            published: Arc::default(),
        }
    }

    fn add(&mut self, group: u16, receiver: Receiver) {
        self.queues.add(group, receiver, &mut self.calls.stack);
    }

    /// The mode that the socket has got.
    pub fn attached(&self) -> Attached {
        self.attached
    }

    /// The stack's counters, as other threads may read them. They are brought up to date now and
    /// then, before each sleep, and at the end.
    pub fn counters(&self) -> Arc<Mutex<Counters>> {
        Arc::clone(&self.published)
    }

    fn publish(&self) {
        *lock(&self.published) = *self.calls.stack.counters();
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
        let stack = &mut self.calls.stack;
        stack.arrive_by(self.queues.group(first), false);
        if !first.is_continued {
            stack.receive(index, self.queues.bytes(first), &mut self.sender);
            return 1;
        }
        let mut bytes = Vec::with_capacity(GATHERED_MAX_BYTES);
        let mut count = 0;
        for frame in self.batch.iter().skip(at) {
            count += 1;
            if bytes.len() < GATHERED_MAX_BYTES {
                bytes.extend_from_slice(self.queues.bytes(frame));
            }
            if !frame.is_continued {
                break;
            }
        }
        self.receive_gathered(bytes);
        count
    }

    /// Takes a packet that has memory of its own.
    fn receive_gathered(&mut self, bytes: Vec<u8>) {
        let index = GATHERED | u32::try_from(self.gathered.len()).unwrap_or(0);
        let stack = &mut self.calls.stack;
        stack.receive(index, &bytes, &mut self.sender);
        self.gathered.push(bytes);
    }

    /// Takes frames that other shards have handed over, at most so many. Returns their number.
    fn take_handed_over(&mut self, most: u32) -> u32 {
        for count in 0..most {
            let Some((group, frame)) = self.queues.take_kept() else {
                return count;
            };
            self.calls.stack.arrive_by(group, true);
            self.receive_gathered(frame.into_vec());
        }
        most
    }
}

impl Backend for XdpBackend {
    type Calls = XdpCalls;
    type Transfer = XdpTransfer;

    fn poll(&mut self, bound: usize) -> Result<Polled, Error> {
        self.calls.stack.expire(Time::now().0 / 1000);
        self.sender.reclaim();
        let bound = u32::try_from(bound).unwrap_or(u32::MAX);
        let left = bound - self.take_handed_over(bound);
        let waiting = self.queues.receive(left, &mut self.batch) + self.queues.kept();
        let mut at = 0;
        while at < self.batch.len() {
            at += self.take_packet(at);
        }
        Ok(Polled {
            events: self.calls.stack.events(),
            backlog: waiting,
        })
    }

    fn deliver(&mut self, handler: &mut impl FnMut(Event<'_>, &mut Self::Calls)) {
        self.calls.stack.take_events(&mut self.events);
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            self.hand_over(&event, handler);
        }
        self.events = events;
        self.queues.give_back(&self.batch);
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
            self.calls.stack.flush(&mut self.sender);
        }
        self.sender.flush().map_err(|source| Error::Os {
            call: "sendto on the AF_XDP socket",
            source,
        })
    }

    fn sleep(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        let is_busy = self.calls.stack.has_output()
            || self.calls.stack.events() > 0
            || self.queues.kept() > 0
            || self.sender.has_unsent();
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
        let sockets = self.queues.receivers().map(Receiver::descriptor);
        let mut watched: Vec<PollFd<'_>> = sockets
            .map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN))
            .collect();
        let wakes = self.wakes.iter();
        watched.extend(wakes.map(|wake| PollFd::new(wake, PollFlags::IN)));
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
        self.wakes.push(wake);
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

    fn begin_departure(&mut self, group: u16) {
        self.queues.begin_departure(group, &mut self.calls.stack);
    }

    fn take_departed(&mut self) -> Option<(FlowId, u16, XdpTransfer)> {
        let (flow, group, moved) = self.queues.take_departed(&mut self.calls.stack)?;
        Some((flow, group, XdpTransfer::Flow(Box::new(moved))))
    }

    fn take_departed_group(&mut self) -> Option<(u16, XdpTransfer)> {
        let (group, queue) = self.queues.take_departed_queue()?;
        Some((group, XdpTransfer::Queue(queue)))
    }

    fn arrive_group(&mut self, group: u16, transfer: XdpTransfer) {
        if let XdpTransfer::Queue(queue) = transfer {
            self.queues.arrive(group, *queue, &mut self.calls.stack);
        }
    }

    fn is_departing(&self) -> bool {
        self.queues.is_departing()
    }

    fn arrive(&mut self, _group: u16, transfer: XdpTransfer) -> Option<FlowId> {
        match transfer {
            XdpTransfer::Flow(moved) => self.calls.stack.arrive(*moved),
            XdpTransfer::Queue(_) | XdpTransfer::Frame(_) => None,
        }
    }

    fn take_foreign(&mut self) -> Option<(u16, XdpTransfer)> {
        let (group, frame) = self.calls.stack.take_foreign()?;
        Some((group, XdpTransfer::Frame(frame)))
    }

    fn knock(&mut self, group: u16, transfer: XdpTransfer) {
        if let XdpTransfer::Frame(frame) = transfer {
            self.queues.keep(group, frame);
        }
    }
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
                                .map_or(&[][..], |frame| self.queues.bytes(frame))
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

impl From<XdpError> for Error {
    fn from(error: XdpError) -> Error {
        Error::Xdp(error)
    }
}
