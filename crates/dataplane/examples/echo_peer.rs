//! The smallest honest echo servers without this runtime, to compare with:
//! `echo_peer epoll|epoll-spin|uring ADDRESS [CPU]`.
//!
//! `epoll` waits for up to 64 events and reads and writes each socket; `epoll-spin` is the same
//! with a timeout of 0. `uring` uses one receive and one send request at a time for each
//! connection.

#![expect(
    clippy::unwrap_used,
    reason = "a peer in a measurement ends when something is wrong"
)]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;

use io_uring::types::Fd;
use io_uring::{IoUring, opcode};
use rustix::event::epoll;

const BUFFER_BYTES: usize = 16 * 1024;

fn serve_epoll(listener: &TcpListener, spins: bool) {
    listener.set_nonblocking(true).unwrap();
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let read = epoll::EventFlags::IN;
    epoll::add(&poll, listener, epoll::EventData::new_u64(u64::MAX), read).unwrap();
    let mut streams: Vec<Option<TcpStream>> = Vec::new();
    let mut events = Vec::with_capacity(64);
    let mut buffer = vec![0; BUFFER_BYTES];
    let zero = rustix::time::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    loop {
        let timeout = spins.then_some(&zero);
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), timeout).unwrap();
        for event in events.drain(..) {
            let token: epoll::Event = event;
            if token.data.u64() == u64::MAX {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).unwrap();
                    stream.set_nodelay(true).unwrap();
                    let fd = usize::try_from(stream.as_raw_fd()).unwrap();
                    epoll::add(&poll, &stream, epoll::EventData::new_u64(fd as u64), read).unwrap();
                    if streams.len() <= fd {
                        streams.resize_with(fd + 1, || None);
                    }
                    streams[fd] = Some(stream);
                }
                continue;
            }
            let slot = &mut streams[usize::try_from(token.data.u64()).unwrap()];
            let Some(stream) = slot else { continue };
            let alive = match stream.read(&mut buffer) {
                Ok(0) => false,
                // Messages are small: a socket that takes less than all of one is full, and its
                // peer gone.
                Ok(len) => stream.write(&buffer[..len]).is_ok_and(|sent| sent == len),
                Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
            };
            if !alive {
                *slot = None;
            }
        }
    }
}

fn serve_uring(listener: &TcpListener) {
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_cqsize(32_768)
        .build(4096)
        .unwrap();
    let mut streams: Vec<Option<(TcpStream, Box<[u8; 2048]>)>> = Vec::new();
    let accept = || {
        opcode::AcceptMulti::new(Fd(listener.as_raw_fd()))
            .build()
            .user_data(u64::MAX)
    };
    let mut queue = vec![accept()];
    loop {
        for entry in queue.drain(..) {
            // SAFETY: buffers are boxed and live as long as their stream, which is kept until its
            // request has ended.
            while unsafe { ring.submission().push(&entry) }.is_err() {
                ring.submit().unwrap();
            }
        }
        ring.submit_and_wait(1).unwrap();
        let done: Vec<_> = ring
            .completion()
            .map(|entry| (entry.user_data(), entry.result()))
            .collect();
        for (token, result) in done {
            if token == u64::MAX {
                // SAFETY: the kernel made the descriptor in this accept.
                let stream: TcpStream = unsafe { std::os::fd::FromRawFd::from_raw_fd(result) };
                stream.set_nodelay(true).unwrap();
                let fd = usize::try_from(result).unwrap();
                if streams.len() <= fd {
                    streams.resize_with(fd + 1, || None);
                }
                let mut buffer = Box::new([0; 2048]);
                let receive = opcode::Recv::new(Fd(result), buffer.as_mut_ptr(), 2048).build();
                queue.push(receive.user_data(fd as u64 * 2));
                streams[fd] = Some((stream, buffer));
                continue;
            }
            let (fd, is_send) = (usize::try_from(token / 2).unwrap(), token % 2 == 1);
            let Some((stream, buffer)) = &mut streams[fd] else {
                continue;
            };
            let raw = Fd(stream.as_raw_fd());
            match u32::try_from(result) {
                Ok(0) | Err(_) => streams[fd] = None,
                Ok(_) if is_send => {
                    let receive = opcode::Recv::new(raw, buffer.as_mut_ptr(), 2048).build();
                    queue.push(receive.user_data(token - 1));
                }
                Ok(len) => {
                    let send = opcode::Send::new(raw, buffer.as_ptr(), len).build();
                    queue.push(send.user_data(token + 1));
                }
            }
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(cpu) = arguments.get(2) {
        dataplane::shard::bind(cpu.parse().unwrap()).unwrap();
    }
    let socket = dataplane::uring::listen(arguments[1].parse().unwrap()).unwrap();
    let listener = TcpListener::from(socket);
    match arguments[0].as_str() {
        "epoll" => serve_epoll(&listener, false),
        "epoll-spin" => serve_epoll(&listener, true),
        "uring" => serve_uring(&listener),
        other => panic!("no peer {other}"),
    }
}
