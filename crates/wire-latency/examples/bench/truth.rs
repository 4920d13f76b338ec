//! A service whose service times are known, and an open-loop load on it.

use std::collections::BinaryHeap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use wire_latency::Fine;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const CONNECTIONS: usize = 128;

/// Pseudo-random numbers (xorshift64*, Vigna 2016).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Above 0, at most 1.
    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        (bits as f64 + 1.0) / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean_s: f64) -> f64 {
        -mean_s * self.uniform().ln()
    }

    /// Log-normal: median 0.5 ms, 95th percentile 2.6 ms, 99th percentile 5.1 ms.
    fn service(&mut self) -> Duration {
        let (a, b) = (self.uniform(), self.uniform());
        let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
        Duration::from_secs_f64(0.000_5 * normal.exp())
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Serves until `ends`; what each request took until it was answered: from being read, and from its
/// arrival at the socket. It never sleeps, so that a request is read as soon as it comes.
fn serve(listener: &TcpListener, ends: &AtomicBool) -> (Fine, Fine) {
    let (mut took, mut with_wait) = (Fine::default(), Fine::default());
    let mut random = Random(7);
    let mut streams: Vec<TcpStream> = Vec::new();
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
    let mut due: BinaryHeap<std::cmp::Reverse<(Instant, Instant, usize, Duration)>> =
        BinaryHeap::new();
    while streams.len() < CONNECTIONS {
        let (stream, _) = listener.accept().expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        stamp_arrivals(&stream);
        let data = epoll::EventData::new_u64(streams.len() as u64);
        epoll::add(&poll, &stream, data, epoll::EventFlags::IN).expect("a descriptor");
        streams.push(stream);
    }
    let mut events = Vec::with_capacity(CONNECTIONS);
    let mut buffer = [0; 256];
    while !ends.load(Ordering::Relaxed) {
        events.clear();
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        epoll::wait(
            &poll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&none),
        )
        .expect("events");
        for event in &events {
            let which = usize::try_from(event.data.u64()).expect("an index");
            let began = Instant::now();
            if let Some(arrived) = receive(&streams[which], &mut buffer) {
                let end = began + random.service();
                due.push(std::cmp::Reverse((end, began, which, arrived)));
            }
        }
        while let Some(std::cmp::Reverse((at, began, which, arrived))) = due.peek().copied() {
            let now = Instant::now();
            if at > now {
                break;
            }
            due.pop();
            took.record_ns(ns(now - began));
            with_wait.record_ns(ns(realtime().saturating_sub(arrived)));
            streams[which].write_all(ANSWER).expect("an answer");
        }
    }
    (took, with_wait)
}

/// The clock of the kernel's time stamps.
fn realtime() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Duration::try_from(time).expect("a time")
}

/// Has the kernel say when each request arrived (socket(7), SO_TIMESTAMPNS).
fn stamp_arrivals(stream: &TcpStream) {
    let on: libc::c_int = 1;
    let length = libc::socklen_t::try_from(size_of_val(&on)).expect("4");
    // SAFETY: the descriptor is open, and `on` is an int of the length that is given.
    let code = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPNS,
            (&raw const on).cast(),
            length,
        )
    };
    assert_eq!(code, 0, "time stamps");
}

/// Reads a request; when it arrived. `None` at the end of the connection.
fn receive(stream: &TcpStream, buffer: &mut [u8]) -> Option<Duration> {
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let mut control = [0_u64; 8];
    // SAFETY: all zeros are a message header without any part.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: the header points to a buffer and to room for control data, with their lengths.
    let length = unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, 0) };
    if length <= 0 {
        return None;
    }
    // SAFETY: the kernel has filled in the header.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    assert!(!first.is_null(), "a request has a time stamp");
    // SAFETY: it points to the first control message, a timespec as that was asked for alone.
    let time: libc::timespec = unsafe { std::ptr::read_unaligned(libc::CMSG_DATA(first).cast()) };
    let seconds = u64::try_from(time.tv_sec).expect("after 1970");
    Some(Duration::new(
        seconds,
        u32::try_from(time.tv_nsec).expect("below a second"),
    ))
}

/// Sends requests at random moments, so many a second on average.
fn load(address: SocketAddr, per_s: f64, duration: Duration, wait: Duration) -> Fine {
    let mut streams: Vec<TcpStream> = Vec::new();
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
    for index in 0..CONNECTIONS {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        let data = epoll::EventData::new_u64(index as u64);
        epoll::add(&poll, &stream, data, epoll::EventFlags::IN).expect("a descriptor");
        streams.push(stream);
    }
    std::thread::sleep(wait);
    let mut took = Fine::default();
    let mut random = Random(11);
    let mut idle: Vec<usize> = (0..CONNECTIONS).collect();
    let mut sent = vec![Instant::now(); CONNECTIONS];
    let (began, mut buffer) = (Instant::now(), [0; 256]);
    let mut next = began;
    let mut events = Vec::with_capacity(CONNECTIONS);
    while idle.len() < CONNECTIONS || began.elapsed() < duration {
        while next <= Instant::now() && began.elapsed() < duration {
            let Some(which) = idle.pop() else { break };
            sent[which] = Instant::now();
            streams[which].write_all(REQUEST).expect("a request");
            next += Duration::from_secs_f64(random.exponential(1.0 / per_s));
        }
        events.clear();
        let left = next
            .saturating_duration_since(Instant::now())
            .min(Duration::from_millis(10));
        let left = Timespec::try_from(left).expect("a short time");
        let space = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(&poll, space, Some(&left)).expect("events");
        for event in &events {
            let which = usize::try_from(event.data.u64()).expect("an index");
            if streams[which]
                .read(&mut buffer)
                .is_ok_and(|length| length > 0)
            {
                took.record_ns(ns(sent[which].elapsed()));
                idle.push(which);
            }
        }
    }
    took
}

/// Keeps the calling thread, and those that it starts, on one CPU.
pub(crate) fn stay_on(cpu: usize) {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    rustix::thread::sched_setaffinity(None, &cpus).expect("a second CPU");
}

/// What the service and its client measured themselves.
pub(crate) struct Truth {
    /// From reading a request to writing the answer.
    pub(crate) service: Fine,
    /// The same from the request's arrival, with what it waited unread.
    pub(crate) server: Fine,
    pub(crate) client: Fine,
}

/// Runs the load on the service at a port; `begin` is called when the connections are there.
pub(crate) fn run(listener: TcpListener, per_s: f64, duration: Duration) -> Truth {
    let address = listener.local_addr().expect("an address");
    let ends = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&ends);
    // The reader is on the client's CPU, as it was started by the thread that is the client.
    let server = std::thread::spawn(move || {
        stay_on(1);
        // Other threads that want this CPU wait: what the service does not count is the time from a
        // request's arrival until the service runs.
        let own = Some(rustix::thread::gettid());
        rustix::process::setpriority_process(own, -20).expect("root");
        serve(&listener, &is_over)
    });
    let client = load(address, per_s, duration, Duration::from_millis(500));
    ends.store(true, Ordering::Relaxed);
    let (service, server) = server.join().expect("a server");
    Truth {
        service,
        server,
        client,
    }
}
