//! The backend on io_uring: connections are the kernel's, requests go in and out in batches.
//!
//! One ring a shard, one thread a ring (`SINGLE_ISSUER`), completions run when the shard asks for
//! them (`DEFER_TASKRUN`). Accepting and receiving are multishot; the kernel picks receive buffers
//! from a ring. All sends of a batch go in with the one system call that also fetches the next
//! completions.

mod buffers;
mod events;
mod files;
mod flows;
mod socket;

use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use self::buffers::Buffers;
use self::events::{Pending, Tag};
pub use self::flows::UringCalls;
use self::flows::{Bounds, Flow, Local, Receive, State};
use crate::api::{Event, FlowId, ListenerId, Time};
use crate::backend::{Backend, Polled};
use crate::error::Error;

/// Entries of the submission queue. A batch needs at most a few for each event.
const SUBMISSIONS: u32 = 1024;
/// `IORING_ENTER_GETEVENTS` of linux/io_uring.h: run completions, wait for none.
const ENTER_GETEVENTS: u32 = 1;
/// Entries of the completion queue; what does not fit waits in the kernel.
const COMPLETIONS: u32 = 8192;
/// After an accept failed (for want of descriptors, say), the next one waits this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A flow that sends nothing for this long, while memory for queues is short, is given up.
const STALL: Duration = Duration::from_secs(2);
/// Polls between two looks at the clock for that.
const SWEEP_POLLS: u32 = 4096;

/// Which groups this shard owns; a new connection of another group goes to its owner.
pub type OwnsGroup = Box<dyn Fn(u16) -> bool + Send>;

/// Where and how the backend serves.
pub struct UringConfig {
    /// Sockets to accept from, listening already; [`listen`] makes one.
    pub listeners: Vec<OwnedFd>,
    /// Flows at most; a connection past them is closed at once.
    pub flows_max: usize,
    /// Bytes that an application may hold of a flow before its receiving stops. What is under way
    /// comes on top: two batches of 64 buffers of 8 KiB at most.
    pub receive_window_bytes: usize,
    /// Bytes that one flow may queue for sending.
    pub send_queue_bytes: usize,
    /// Bytes that all flows together may queue, beside 4 KiB for each.
    pub send_memory_bytes: usize,
    /// Sends of at least this many bytes are zero-copy. `None`: none are. On loopback and veth the
    /// kernel copies such data in the end. Whether it pays elsewhere has not been measured.
    pub zero_copy_from_bytes: Option<usize>,
    /// A kernel thread takes submissions, and goes to sleep after being idle for so long.
    pub submission_thread_idle: Option<Duration>,
    /// The CPU of that thread. `None`: any.
    pub submission_thread_cpu: Option<u32>,
    /// Connections are registered with the ring, so that the kernel does not look up and count a
    /// descriptor for each request. Each connection costs two system calls more.
    pub registers_sockets: bool,
    /// Buffers of 8 KiB that received bytes come in: a power of two from 32 to 16,384. Few stay in
    /// the processor's caches; with too few, receives are interrupted under load.
    pub receive_buffers: u16,
    /// Which groups this shard owns; `None`: all.
    pub owns_group: Option<OwnsGroup>,
}

impl Default for UringConfig {
    fn default() -> Self {
        Self {
            listeners: Vec::new(),
            flows_max: 16_384,
            receive_window_bytes: 64 * 1024,
            send_queue_bytes: 256 * 1024,
            send_memory_bytes: 256 * 1024 * 1024,
            zero_copy_from_bytes: None,
            submission_thread_idle: None,
            submission_thread_cpu: None,
            registers_sockets: false,
            receive_buffers: buffers::BUFFERS,
            owns_group: None,
        }
    }
}

/// Listens on an address, with a backlog of 4096.
///
/// # Errors
/// The address is taken, not this host's, or needs a privilege.
pub fn listen(address: SocketAddr) -> Result<OwnedFd, Error> {
    socket::listen(address, 4096)
}

/// Listening sockets that systemd opened for this process, with their addresses (`LISTEN_FDS` of
/// sd_listen_fds(3)). Call it once.
///
/// # Errors
/// One of them is no listening TCP socket.
pub fn inherited() -> Result<Vec<(OwnedFd, SocketAddr)>, Error> {
    socket::inherited()
}

/// A connection on its way to another shard.
#[derive(Debug)]
pub struct UringTransfer {
    socket: OwnedFd,
    peer: Option<SocketAddr>,
    listener: ListenerId,
    pending: Vec<u8>,
    held_bytes: usize,
    has_finished: bool,
}

/// One listening socket.
struct Listener {
    socket: OwnedFd,
    is_armed: bool,
    retry_at: Time,
}

/// The backend. The field `ring` comes first, so that it is closed before the memory that it knows.
pub struct Uring {
    ring: IoUring,
    calls: UringCalls,
    buffers: Buffers,
    listeners: Vec<Listener>,
    is_listening: bool,
    config: UringConfig,
    pending: Vec<Pending>,
    departing: Vec<u32>,
    foreign: std::collections::VecDeque<(u16, UringTransfer)>,
    has_unsubmitted: bool,
    next_sweep: Time,
    polls: u32,
}

impl Uring {
    /// Sets the ring up on the calling thread, which must be the one that runs the shard.
    ///
    /// # Errors
    /// The kernel lacks io_uring or one of its features, or forbids it.
    pub fn new(mut config: UringConfig) -> Result<Self, Error> {
        let mut builder = IoUring::builder();
        builder
            .setup_single_issuer()
            .setup_cqsize(COMPLETIONS)
            .setup_submit_all()
            .dontfork();
        match config.submission_thread_idle {
            Some(idle) => {
                builder.setup_sqpoll(u32::try_from(idle.as_millis()).unwrap_or(u32::MAX));
                if let Some(cpu) = config.submission_thread_cpu {
                    builder.setup_sqpoll_cpu(cpu);
                }
            }
            None => {
                builder.setup_defer_taskrun().setup_taskrun_flag();
            }
        }
        let ring = builder.build(SUBMISSIONS).map_err(Error::no_uring)?;
        let buffers = Buffers::new(&ring.submitter(), config.receive_buffers)?;
        if config.registers_sockets {
            let places = u32::try_from(config.flows_max).unwrap_or(u32::MAX);
            let registered = ring.submitter().register_files_sparse(places);
            registered.map_err(Error::no_uring)?;
        }
        let listeners = std::mem::take(&mut config.listeners)
            .into_iter()
            .map(|socket| Listener {
                socket,
                is_armed: false,
                retry_at: Time::default(),
            })
            .collect();
        let mut uring = Self {
            ring,
            calls: UringCalls::new(Bounds {
                flows_max: config.flows_max,
                receive_window_bytes: config.receive_window_bytes,
                send_queue_bytes: config.send_queue_bytes,
                send_memory_bytes: config.send_memory_bytes,
            }),
            buffers,
            listeners,
            is_listening: true,
            config,
            pending: Vec::with_capacity(crate::batch::BOUND_MAX),
            departing: Vec::new(),
            foreign: std::collections::VecDeque::new(),
            has_unsubmitted: false,
            next_sweep: Time::now(),
            polls: 0,
        };
        uring.arm_listeners();
        Ok(uring)
    }

    /// Queues one request for the kernel.
    fn push(&mut self, entry: squeue::Entry) {
        loop {
            // SAFETY: every entry made in this module points to memory that lives until its
            // completion: send buffers and addresses stay in their flow, receive buffers in
            // `Buffers`, buffers of files in `Files`.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            self.has_unsubmitted = true;
            if pushed.is_ok() {
                return;
            }
            // Full: hand over what is there. An error shows again at the next flush.
            let _ = self.ring.submit();
        }
    }

    fn arm_listeners(&mut self) {
        if !self.is_listening {
            return;
        }
        for index in 0..self.listeners.len() {
            let listener = &self.listeners[index];
            if listener.is_armed
                || (listener.retry_at > Time::default() && listener.retry_at > Time::now())
            {
                continue;
            }
            let fd = Fd(listener.socket.as_raw_fd());
            self.listeners[index].is_armed = true;
            let index = u32::try_from(index).unwrap_or(0);
            let accept = opcode::AcceptMulti::new(fd)
                .flags(libc::SOCK_CLOEXEC)
                .build();
            self.push(accept.user_data(Tag::Accept.encode(index)));
        }
    }

    /// Asks the kernel for what `index` needs next: a receive, a send, a cancellation, or its end.
    fn settle(&mut self, index: u32) {
        let flow = &mut self.calls.flows[index as usize];
        flow.is_dirty = false;
        match flow.state {
            State::Free | State::Knocking => return,
            State::Connecting => {
                self.start_connect(index);
                return;
            }
            State::Open => self.register(index),
            State::Closing { is_at_once, .. } => {
                if is_at_once || flow.queued_bytes() == 0 {
                    self.finish(index);
                    return;
                }
            }
        }
        self.settle_receive(index);
        self.settle_send(index);
    }

    /// Registers an open flow's socket, if that is wanted. Without it the descriptor is used.
    fn register(&mut self, index: u32) {
        let flow = &mut self.calls.flows[index as usize];
        if !self.config.registers_sockets || flow.is_registered {
            return;
        }
        if let Some(socket) = &flow.socket {
            let socket = [socket.as_raw_fd()];
            let updated = self.ring.submitter().register_files_update(index, &socket);
            flow.is_registered = updated.is_ok_and(|count| count == 1);
        }
    }

    /// Takes the sockets of flows that are gone off the registered ones. The kernel closes them.
    fn forget_stale_places(&mut self) {
        while let Some(index) = self.calls.stale_places.pop() {
            let nobody = self.ring.submitter().register_files_update(index, &[-1]);
            debug_assert!(nobody.is_ok(), "{nobody:?}");
        }
    }

    fn settle_receive(&mut self, index: u32) {
        let window = self.config.receive_window_bytes;
        let flow = &mut self.calls.flows[index as usize];
        let is_open = flow.state == State::Open && !flow.has_finished;
        let wants = is_open && !flow.is_departing && flow.held_bytes < window;
        let Some((fd, flags)) = socket_of(flow, index) else {
            return;
        };
        match (flow.receive, &mut flow.lent) {
            // What is lent is filled whatever the window: it is the application's own memory.
            (Receive::Idle, Some(lent)) if is_open => {
                flow.receive = Receive::Lent;
                let room = &mut lent.buffer.bytes_mut()[lent.at..lent.end];
                let len = u32::try_from(room.len()).unwrap_or(u32::MAX);
                let receive = opcode::Recv::new(fd, room.as_mut_ptr(), len).build();
                let receive = receive.flags(flags);
                self.push(receive.user_data(Tag::ReceiveLent.encode(index)));
            }
            (Receive::Idle, None) if wants => {
                flow.receive = Receive::Armed;
                let receive = if flow.single_receives > 0 {
                    flow.single_receives -= 1;
                    opcode::Recv::new(fd, std::ptr::null_mut(), 0)
                        .buf_group(buffers::GROUP)
                        .build()
                        .flags(squeue::Flags::BUFFER_SELECT)
                } else {
                    opcode::RecvMulti::new(fd, buffers::GROUP).build()
                };
                let receive = receive.flags(flags);
                self.push(receive.user_data(Tag::Receive.encode(index)));
            }
            // What it receives until then is copied into what is lent.
            (Receive::Armed, Some(_)) => self.cancel_receive(index),
            (Receive::Armed, None) if !wants => self.cancel_receive(index),
            (Receive::Lent, _) if !is_open => self.cancel_receive(index),
            _ => {}
        }
    }

    /// Ends the receive that is under way. Its completion follows.
    fn cancel_receive(&mut self, index: u32) {
        let flow = &mut self.calls.flows[index as usize];
        let tag = match flow.receive {
            Receive::Armed => Tag::Receive,
            Receive::Lent => Tag::ReceiveLent,
            Receive::Idle | Receive::Cancelling => return,
        };
        flow.receive = Receive::Cancelling;
        let cancel = opcode::AsyncCancel::new(tag.encode(index)).build();
        self.push(cancel.user_data(Tag::Ignored.encode(index)));
    }

    fn settle_send(&mut self, index: u32) {
        let flow = &mut self.calls.flows[index as usize];
        if flow.is_sending || flow.is_lent {
            return;
        }
        if flow.in_flight.is_empty() {
            // What a departing flow has not begun to send goes with it.
            if flow.pending.is_empty() || flow.is_departing {
                return;
            }
            std::mem::swap(&mut flow.pending, &mut flow.in_flight);
            flow.taken_bytes = 0;
        }
        let Some((fd, flags)) = socket_of(flow, index) else {
            return;
        };
        let rest = &flow.in_flight[flow.taken_bytes..];
        let start = rest.as_ptr();
        let len = u32::try_from(rest.len()).unwrap_or(u32::MAX);
        flow.is_sending = true;
        let zero_copy = self.config.zero_copy_from_bytes;
        let entry = if zero_copy.is_some_and(|from| rest.len() >= from) {
            flow.is_lent = true;
            opcode::SendZc::new(fd, start, len)
                .flags(libc::MSG_NOSIGNAL)
                .build()
        } else {
            opcode::Send::new(fd, start, len)
                .flags(libc::MSG_NOSIGNAL)
                .build()
        };
        let entry = entry.flags(flags);
        self.push(entry.user_data(Tag::Send.encode(index)));
    }

    fn start_connect(&mut self, index: u32) {
        let flow = &mut self.calls.flows[index as usize];
        let (None, Some(peer), Some(socket)) = (&flow.address, flow.peer, &flow.socket) else {
            return;
        };
        let address = flow.address.insert(socket::encode(peer));
        let connect = opcode::Connect::new(
            Fd(socket.as_raw_fd()),
            (&raw const address.0).cast(),
            address.1,
        );
        self.push(connect.build().user_data(Tag::Connect.encode(index)));
    }

    /// Brings a closing flow to its end as soon as the kernel knows no request of it.
    fn finish(&mut self, index: u32) {
        let id = self.calls.id(index);
        let flow = &mut self.calls.flows[index as usize];
        let State::Closing { reason, is_at_once } = flow.state else {
            return;
        };
        if flow.is_quiet() {
            self.calls.free_slot(index);
            self.calls.locals.push_back(Local::Dead(id, reason));
            return;
        }
        self.cancel_receive(index);
        if is_at_once {
            let flow = &self.calls.flows[index as usize];
            // A send or connect under way ends with an error.
            if let Some(socket) = &flow.socket {
                let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
            }
        }
    }

    /// While memory for queues is short, gives up flows that make no progress.
    fn sweep(&mut self) {
        let now = Time::now();
        if now < self.next_sweep {
            return;
        }
        self.next_sweep = now.after(STALL);
        self.calls.sweep = self.calls.sweep.wrapping_add(1);
        let is_short = self.calls.queued_bytes > self.config.send_memory_bytes / 2;
        for index in 0..self.calls.flows.len() {
            let flow = &mut self.calls.flows[index];
            let stalled = self.calls.sweep.wrapping_sub(flow.progress);
            if flow.queued_bytes() == 0 {
                flow.progress = self.calls.sweep;
            } else if is_short && stalled >= 2 && flow.queued_bytes() > flows::RESERVE_BYTES {
                let id = self.calls.id(u32::try_from(index).unwrap_or(0));
                crate::api::Calls::abort(&mut self.calls, id);
            }
        }
    }

    /// Has the kernel bring completions for which the queue had no room.
    fn fetch_overflown(&mut self) -> std::io::Result<usize> {
        if !self.ring.submission().cq_overflow() {
            return Ok(0);
        }
        // SAFETY: no argument is passed, and nothing is submitted.
        unsafe {
            let submitter = self.ring.submitter();
            submitter.enter::<libc::sigset_t>(0, 0, ENTER_GETEVENTS, None)
        }
    }

    /// Whether a system call would bring completions.
    fn has_more(&mut self) -> bool {
        let queue = self.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// One system call: hands over what is queued and runs what completed.
    fn enter(&mut self) -> Result<(), Error> {
        self.has_unsubmitted = false;
        let queued = self.ring.submission().len();
        let entered = if self.config.submission_thread_idle.is_some() {
            // The kernel's thread takes the queue; it is woken if it sleeps.
            self.ring.submit().and_then(|_| self.fetch_overflown())
        } else {
            let queued = u32::try_from(queued).unwrap_or(u32::MAX);
            // SAFETY: no argument is passed, and the queue holds only entries made by `push`.
            unsafe {
                self.ring
                    .submitter()
                    .enter::<libc::sigset_t>(queued, 0, ENTER_GETEVENTS, None)
            }
        };
        match entered {
            Ok(_) => Ok(()),
            // The completion queue is full, or a signal came: the next turn goes on.
            Err(error) if is_passing(&error) => Ok(()),
            Err(source) => Err(Error::Os {
                call: "io_uring_enter",
                source,
            }),
        }
    }
}

/// How a request names the flow's socket: by its place among the registered ones, or by its
/// descriptor.
fn socket_of(flow: &Flow, index: u32) -> Option<(Fd, squeue::Flags)> {
    let socket = flow.socket.as_ref()?;
    match i32::try_from(index) {
        Ok(place) if flow.is_registered => Some((Fd(place), squeue::Flags::FIXED_FILE)),
        _ => Some((Fd(socket.as_raw_fd()), squeue::Flags::empty())),
    }
}

fn is_passing(error: &std::io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EBUSY | libc::EAGAIN | libc::EINTR | libc::ETIME)
    )
}

impl Backend for Uring {
    type Calls = UringCalls;
    type Transfer = UringTransfer;

    fn poll(&mut self, bound: usize) -> Result<Polled, Error> {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(SWEEP_POLLS) {
            self.sweep();
        }
        if self.ring.completion().is_empty() && self.has_more() {
            self.enter()?;
        }
        self.collect(bound);
        if self.pending.len() < bound && self.has_more() {
            // The kernel runs about 20 completions a call; more are ready.
            self.enter()?;
            self.collect(bound);
        }
        let mut backlog = self.ring.completion().len() + self.calls.locals.len();
        // The flag is a hint: the kernel may set it after the work that it stands for is done.
        // Where this turn found nothing, nothing is left, and commands need not wait.
        if backlog == 0 && !self.pending.is_empty() && self.ring.submission().taskrun() {
            backlog = 1;
        }
        Ok(Polled {
            events: self.pending.len(),
            backlog,
        })
    }

    fn deliver(&mut self, handler: &mut impl FnMut(Event<'_>, &mut Self::Calls)) {
        let mut pending = std::mem::take(&mut self.pending);
        let mut has_freed = false;
        for event in pending.drain(..) {
            match event {
                Pending::Received {
                    flow,
                    buffer,
                    len_bytes,
                } => {
                    let data = self.buffers.filled(buffer, len_bytes);
                    self.calls.received(flow, data, handler);
                    self.buffers.give_back(buffer);
                    has_freed = true;
                }
                Pending::Filled(flow) => self.calls.filled(flow, handler),
                Pending::Connected(flow) => {
                    handler(Event::Connected { flow }, &mut self.calls);
                }
                Pending::PeerFinished(flow) => {
                    handler(Event::PeerFinished { flow }, &mut self.calls);
                }
                Pending::Local(Local::Knock(flow)) => {
                    let Some(found) = self.calls.get(flow) else {
                        continue;
                    };
                    let (listener, peer) = (found.listener, found.peer);
                    handler(
                        Event::Knock {
                            flow,
                            listener,
                            peer,
                        },
                        &mut self.calls,
                    );
                }
                Pending::Local(Local::Room(flow)) => {
                    if self.calls.get(flow).is_none() {
                        continue;
                    }
                    handler(Event::Sent { flow }, &mut self.calls);
                }
                Pending::Local(Local::Dead(flow, reason)) => {
                    handler(Event::Dead { flow, reason }, &mut self.calls);
                }
                Pending::File { index, result } => {
                    files::deliver(&mut self.calls, index, result, handler);
                }
            }
        }
        if has_freed {
            self.buffers.publish();
        }
        self.pending = pending;
    }

    fn calls(&mut self) -> &mut Self::Calls {
        &mut self.calls
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.forget_stale_places();
        let mut dirty = std::mem::take(&mut self.calls.dirty);
        for index in dirty.drain(..) {
            self.settle(index);
        }
        // What became dirty meanwhile comes at the next flush: nothing does that today.
        dirty.append(&mut self.calls.dirty);
        self.calls.dirty = dirty;
        self.start_files();
        if self.listeners.iter().any(|listener| !listener.is_armed) {
            self.arm_listeners();
        }
        self.calls.tell_waiting();
        if self.has_unsubmitted {
            self.enter()?;
        }
        Ok(())
    }

    fn sleep(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        self.sweep();
        if !self.calls.locals.is_empty() || !self.calls.dirty.is_empty() {
            return Ok(());
        }
        let mut timeout = timeout.unwrap_or(Duration::from_secs(1));
        if self.is_listening && self.listeners.iter().any(|listener| !listener.is_armed) {
            timeout = timeout.min(ACCEPT_PAUSE);
        }
        let timespec = Timespec::from(timeout);
        let arguments = SubmitArgs::new().timespec(&timespec);
        self.has_unsubmitted = false;
        match self.ring.submitter().submit_with_args(1, &arguments) {
            Ok(_) => Ok(()),
            Err(error) if is_passing(&error) => Ok(()),
            Err(source) => Err(Error::Os {
                call: "io_uring_enter",
                source,
            }),
        }
    }

    fn watch(&mut self, wake: BorrowedFd<'_>) -> Result<(), Error> {
        let readable = u32::try_from(libc::POLLIN).unwrap_or(1);
        let poll = opcode::PollAdd::new(Fd(wake.as_raw_fd()), readable).multi(true);
        self.push(poll.build().user_data(Tag::Wake.encode(0)));
        self.enter()
    }

    fn stop_listening(&mut self) {
        self.is_listening = false;
        for index in 0..self.listeners.len() {
            let index = u32::try_from(index).unwrap_or(0);
            let cancel = opcode::AsyncCancel::new(Tag::Accept.encode(index)).build();
            self.push(cancel.user_data(Tag::Ignored.encode(index)));
        }
    }

    fn flows(&self) -> usize {
        self.calls.live
    }

    fn abort_all(&mut self) {
        for index in 0..self.calls.flows.len() {
            let id = self.calls.id(u32::try_from(index).unwrap_or(0));
            crate::api::Calls::abort(&mut self.calls, id);
        }
    }

    fn begin_departure(&mut self, group: u16) {
        for index in 0..self.calls.flows.len() {
            let flow = &mut self.calls.flows[index];
            let moves = matches!(flow.state, State::Open | State::Knocking);
            if flow.group != group || !moves || flow.is_departing {
                continue;
            }
            flow.is_departing = true;
            let index = u32::try_from(index).unwrap_or(0);
            self.calls.mark_dirty(index);
            self.departing.push(index);
        }
    }

    fn take_departed(&mut self) -> Option<(FlowId, u16, Self::Transfer)> {
        let mut at = 0;
        while let Some(&index) = self.departing.get(at) {
            let flow = &mut self.calls.flows[index as usize];
            if !flow.is_departing || !matches!(flow.state, State::Open | State::Knocking) {
                // It was closed meanwhile.
                self.departing.swap_remove(at);
                continue;
            }
            let is_free = flow.is_quiet() && flow.in_flight.is_empty() && flow.lent.is_none();
            if is_free && flow.state == State::Open {
                self.departing.swap_remove(at);
                let id = self.calls.id(index);
                let flow = &mut self.calls.flows[index as usize];
                let group = flow.group;
                let pending = std::mem::take(&mut flow.pending);
                self.calls.queued_bytes -= pending.len();
                let transfer = UringTransfer {
                    socket: flow.socket.take()?,
                    peer: flow.peer,
                    listener: flow.listener,
                    pending,
                    held_bytes: flow.held_bytes,
                    has_finished: flow.has_finished,
                };
                self.calls.free_slot(index);
                return Some((id, group, transfer));
            }
            at += 1;
        }
        None
    }

    fn is_departing(&self) -> bool {
        !self.departing.is_empty()
    }

    fn arrive(&mut self, group: u16, transfer: Self::Transfer) -> Option<FlowId> {
        let index = self.install(group, transfer, State::Open)?;
        self.calls.mark_dirty(index);
        // Whoever waited for room asks again.
        let id = self.calls.id(index);
        self.calls.locals.push_back(Local::Room(id));
        Some(id)
    }

    fn take_foreign(&mut self) -> Option<(u16, Self::Transfer)> {
        self.foreign.pop_front()
    }

    fn knock(&mut self, group: u16, transfer: Self::Transfer) {
        if let Some(index) = self.install(group, transfer, State::Knocking) {
            let id = self.calls.id(index);
            self.calls.locals.push_back(Local::Knock(id));
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // The kernel forgets every request before the memory that they name goes.
        let any = io_uring::types::CancelBuilder::any();
        let _ = self.ring.submitter().register_sync_cancel(None, any);
        let _ = self.enter();
        self.calls.files.leak();
        for flow in &mut self.calls.flows {
            if flow.is_sending || flow.is_lent {
                // Still not done: rather lost than read after it was freed.
                std::mem::forget(std::mem::take(&mut flow.in_flight));
            }
            if flow.receive != Receive::Idle {
                std::mem::forget(flow.lent.take());
            }
        }
    }
}
