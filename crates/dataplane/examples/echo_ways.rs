//! Ways to echo on io_uring, without this runtime, to see what each of them is worth:
//! `echo_ways ADDRESS CPU [WAY…]`.
//!
//! Without a way, each connection has one receive or one send under way, as with `echo_peer uring`.
//!
//! | way | what it changes |
//! |---|---|
//! | `lean` | the ring has no array of indices, and the process names it without a descriptor |
//! | `direct` | sockets are in the ring's own table, and have no descriptor |
//! | `linked` | a send starts the next receive, and completes without a word if it succeeds |
//! | `multi` | one receive takes all messages of a connection, in buffers that the kernel picks |
//! | `call` | answers go out by send(2), a system call for each |
//! | `poll` | a receive waits for data at once, without a first look |
//!
//! `linked` goes with neither `multi` nor `call`, and `call` not with `direct`.

#![expect(
    clippy::unwrap_used,
    reason = "a peer in a measurement ends when something is wrong"
)]

use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::{BufRingEntry, Fd, Fixed};
use io_uring::{IoUring, cqueue, opcode, squeue};

const MESSAGE_BYTES: usize = 2048;
const CONNECTIONS_MAX: u32 = 16_384;
const BUFFERS: u16 = 1024;
const GROUP: u16 = 0;
/// The token of the accept. Other tokens have a kind, a buffer and a place: see [`token`].
const ACCEPT: u64 = u64::MAX;
const RECEIVE: u64 = 0;
const SEND: u64 = 1;
const CLOSE: u64 = 2;
/// `IORING_RECVSEND_POLL_FIRST` of linux/io_uring.h.
const POLL_FIRST: u16 = 1;

/// Which ways are gone.
#[derive(Clone, Copy, Debug, Default)]
struct Ways {
    is_lean: bool,
    is_direct: bool,
    is_linked: bool,
    is_multi: bool,
    is_call: bool,
    is_poll: bool,
}

impl Ways {
    fn parse(words: &[String]) -> Ways {
        let mut ways = Ways::default();
        for word in words {
            match word.as_str() {
                "lean" => ways.is_lean = true,
                "direct" => ways.is_direct = true,
                "linked" => ways.is_linked = true,
                "multi" => ways.is_multi = true,
                "call" => ways.is_call = true,
                "poll" => ways.is_poll = true,
                other => panic!("no way {other}"),
            }
        }
        assert!(!(ways.is_linked && (ways.is_multi || ways.is_call)));
        assert!(!(ways.is_direct && ways.is_call));
        ways
    }
}

/// Kind, buffer and place in one number.
fn token(kind: u64, buffer: u16, place: u32) -> u64 {
    kind << 48 | u64::from(buffer) << 32 | u64::from(place)
}

/// Buffers that the kernel picks from, of the way `multi`. They live until the process ends.
struct Buffers {
    ring: *mut BufRingEntry,
    memory: *mut u8,
    tail: u16,
}

impl Buffers {
    fn register(ring: &IoUring) -> Buffers {
        let map = |length: usize| {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
            let null = std::ptr::null_mut();
            // SAFETY: an anonymous private mapping at an address of the kernel's choice.
            let start = unsafe { libc::mmap(null, length, protection, flags, -1, 0) };
            assert!(start != libc::MAP_FAILED);
            start
        };
        let entries = map(usize::from(BUFFERS) * size_of::<BufRingEntry>());
        let mut buffers = Buffers {
            ring: entries.cast(),
            memory: map(usize::from(BUFFERS) * MESSAGE_BYTES).cast(),
            tail: 0,
        };
        // SAFETY: the mapping has the size that is named, and is never unmapped.
        let registered = unsafe {
            let submitter = ring.submitter();
            submitter.register_buf_ring_with_flags(entries as u64, BUFFERS, GROUP, 0)
        };
        registered.unwrap();
        for buffer in 0..BUFFERS {
            buffers.give_back(buffer);
        }
        buffers.publish();
        buffers
    }

    fn start(&self, buffer: u16) -> *mut u8 {
        let at = usize::from(buffer % BUFFERS) * MESSAGE_BYTES;
        // SAFETY: the place lies in the mapping.
        unsafe { self.memory.add(at) }
    }

    fn give_back(&mut self, buffer: u16) {
        let start = self.start(buffer) as u64;
        // SAFETY: the place lies in the ring, and the kernel reads none behind its tail.
        let entry = unsafe { &mut *self.ring.add(usize::from(self.tail % BUFFERS)) };
        entry.set_addr(start);
        entry.set_len(u32::try_from(MESSAGE_BYTES).unwrap());
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
    }

    fn publish(&self) {
        // SAFETY: the ring's base is the address of its first entry.
        let tail = unsafe { BufRingEntry::tail(self.ring) };
        // SAFETY: the tail is two aligned bytes of the mapping that this thread alone writes.
        let tail = unsafe { &*tail.cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }
}

/// Memory of a connection, for messages that the kernel puts there. Not with `multi`.
type Message = Box<[u8; MESSAGE_BYTES]>;

struct Server {
    ways: Ways,
    /// By descriptor, or by place in the ring's table.
    messages: Vec<Option<Message>>,
    buffers: Option<Buffers>,
    queue: Vec<squeue::Entry>,
}

impl Server {
    fn file_flags(&self) -> squeue::Flags {
        match self.ways.is_direct {
            true => squeue::Flags::FIXED_FILE,
            false => squeue::Flags::empty(),
        }
    }

    fn accepted(&mut self, place: u32) {
        let at = usize::try_from(place).unwrap();
        if self.messages.len() <= at {
            self.messages.resize_with(at + 1, || None);
        }
        if !self.ways.is_multi {
            self.messages[at] = Some(Box::new([0; MESSAGE_BYTES]));
        }
        self.receive(place);
    }

    fn receive(&mut self, place: u32) {
        let fd = Fd(i32::try_from(place).unwrap());
        let at = usize::try_from(place).unwrap();
        let entry = match &mut self.messages[at] {
            None => opcode::RecvMulti::new(fd, GROUP).build(),
            Some(message) => {
                let length = u32::try_from(MESSAGE_BYTES).unwrap();
                opcode::Recv::new(fd, message.as_mut_ptr(), length)
                    .ioprio(if self.ways.is_poll { POLL_FIRST } else { 0 })
                    .build()
            }
        };
        let entry = entry.flags(self.file_flags());
        self.queue.push(entry.user_data(token(RECEIVE, 0, place)));
    }

    /// A message has come: into a buffer of the ring, or into the connection's own memory.
    fn received(&mut self, place: u32, length: u32, buffer: Option<u16>) {
        let at = usize::try_from(place).unwrap();
        let start: *const u8 = match (buffer, &self.buffers, &self.messages[at]) {
            (Some(buffer), Some(buffers), _) => buffers.start(buffer),
            (_, _, Some(message)) => message.as_ptr(),
            _ => return,
        };
        let fd = i32::try_from(place).unwrap();
        if self.ways.is_call {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: the message has `length` bytes, and the kernel does not write to it now.
            let sent = unsafe { libc::send(fd, start.cast(), length as usize, flags) };
            // Messages are small: a socket that takes less than all of one is full.
            assert!(sent < 0 || sent.cast_unsigned() == length as usize);
            self.sent(place, buffer);
            return;
        }
        let linked = squeue::Flags::IO_LINK | squeue::Flags::SKIP_SUCCESS;
        let (waits, more) = match self.ways.is_linked {
            true => (libc::MSG_WAITALL, linked),
            false => (0, squeue::Flags::empty()),
        };
        let entry = opcode::Send::new(Fd(fd), start, length)
            .flags(libc::MSG_NOSIGNAL | waits)
            .build()
            .flags(self.file_flags() | more);
        let token = token(SEND, buffer.unwrap_or(0), place);
        self.queue.push(entry.user_data(token));
        if self.ways.is_linked {
            self.receive(place);
        }
    }

    /// The memory of a message is free again.
    fn sent(&mut self, place: u32, buffer: Option<u16>) {
        match (buffer, &mut self.buffers) {
            (Some(buffer), Some(buffers)) => buffers.give_back(buffer),
            _ => self.receive(place),
        }
    }

    fn ended(&mut self, place: u32) {
        self.messages[usize::try_from(place).unwrap()] = None;
        let entry = match self.ways.is_direct {
            true => opcode::Close::new(Fixed(place)).build(),
            false => opcode::Close::new(Fd(i32::try_from(place).unwrap())).build(),
        };
        self.queue.push(entry.user_data(token(CLOSE, 0, place)));
    }

    fn completed(&mut self, entry: &cqueue::Entry) {
        let (token, result) = (entry.user_data(), entry.result());
        if token == ACCEPT {
            self.accepted(u32::try_from(result).unwrap());
            return;
        }
        let place = u32::try_from(token & 0xffff_ffff).unwrap();
        let buffer = u16::try_from(token >> 32 & 0xffff).unwrap();
        match (token >> 48, u32::try_from(result)) {
            (RECEIVE, Ok(0)) => self.ended(place),
            (RECEIVE, Ok(length)) => {
                self.received(place, length, cqueue::buffer_select(entry.flags()));
                if self.ways.is_multi && !cqueue::more(entry.flags()) {
                    self.receive(place);
                }
            }
            (RECEIVE, Err(_)) if result == -libc::ENOBUFS => self.receive(place),
            (RECEIVE, Err(_)) => self.ended(place),
            // The receive that is linked with it is cancelled, and ends the connection.
            (SEND, Err(_)) if self.ways.is_linked => {}
            (SEND, _) => self.sent(place, self.ways.is_multi.then_some(buffer)),
            _ => {}
        }
    }
}

fn make_ring(ways: Ways) -> IoUring {
    let mut builder = IoUring::builder();
    builder
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_cqsize(32_768);
    if ways.is_lean {
        builder.setup_no_sqarray();
    }
    let ring: IoUring = builder.build(4096).unwrap();
    if ways.is_direct {
        let submitter = ring.submitter();
        submitter.register_files_sparse(CONNECTIONS_MAX).unwrap();
    }
    ring
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ways = Ways::parse(&arguments[2..]);
    dataplane::shard::bind(arguments[1].parse().unwrap()).unwrap();
    let listener = dataplane::uring::listen(arguments[0].parse().unwrap()).unwrap();
    let mut ring = make_ring(ways);
    let accept = opcode::AcceptMulti::new(Fd(listener.as_raw_fd()))
        .allocate_file_index(ways.is_direct)
        .build();
    let mut server = Server {
        ways,
        messages: Vec::new(),
        buffers: ways.is_multi.then(|| Buffers::register(&ring)),
        queue: vec![accept.user_data(ACCEPT)],
    };
    let (mut submitter, mut submissions, mut completions) = ring.split();
    if ways.is_lean {
        submitter.register_ring_fd().unwrap();
    }
    let mut done: Vec<cqueue::Entry> = Vec::new();
    loop {
        for entry in server.queue.drain(..) {
            // SAFETY: what an entry points to lives until its completion: buffers of the ring for
            // ever, and a message until the connection's last request has ended.
            while unsafe { submissions.push(&entry) }.is_err() {
                submissions.sync();
                submitter.submit().unwrap();
                submissions.sync();
            }
        }
        submissions.sync();
        submitter.submit_and_wait(1).unwrap();
        submissions.sync();
        completions.sync();
        done.extend(completions.by_ref());
        completions.sync();
        for entry in done.drain(..) {
            server.completed(&entry);
        }
        if let Some(buffers) = &server.buffers {
            buffers.publish();
        }
    }
}
