//! A wire that loses, reorders, duplicates and corrupts frames: two packet sockets and a thread.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dataplane::tcp::wire::{ethernet, ip, segment};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::namespaces::Wire;

/// What happens to frames, in parts of 10,000.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trouble {
    pub(super) loss: u64,
    pub(super) reordering: u64,
    pub(super) duplication: u64,
    pub(super) corruption: u64,
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) forwarded: u64,
    pub(super) lost: u64,
    pub(super) delayed: u64,
    pub(super) duplicated: u64,
    pub(super) corrupted: u64,
}

/// A running forwarder.
pub(super) struct Forwarder {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Counts>,
}

impl Forwarder {
    /// Cuts the wire and puts a forwarder in between.
    pub(super) fn start(wire: &Wire, trouble: Trouble, seed: u64) -> Forwarder {
        wire.cut();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = wire.middle.spawn(move || {
            let ends = [packet_socket("client"), packet_socket("server")];
            ready.send(()).unwrap();
            forward(&ends, trouble, seed, &stopped)
        });
        is_ready.recv().unwrap();
        Forwarder { stop, thread }
    }

    pub(super) fn stop(self) -> Counts {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn forward(ends: &[OwnedFd; 2], trouble: Trouble, seed: u64, stop: &AtomicBool) -> Counts {
    let mut counts = Counts::default();
    let mut random = seed;
    let mut happens = |parts: u64| -> Option<u64> {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let value = random >> 33;
        (value % 10_000 < parts).then_some(value / 10_000)
    };
    let mut late: VecDeque<(Instant, usize, Vec<u8>)> = VecDeque::new();
    let mut buffer = vec![0u8; 1 << 16];
    while !stop.load(Ordering::Relaxed) {
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: if late.is_empty() {
                20_000_000
            } else {
                1_000_000
            },
        };
        let mut watched =
            [0, 1].map(|end: usize| PollFd::from_borrowed_fd(ends[end].as_fd(), PollFlags::IN));
        let _ = rustix::event::poll(&mut watched, Some(&timeout));
        for from in 0..2 {
            for _ in 0..64 {
                let Ok((length, _)) = rustix::net::recv(
                    &ends[from],
                    &mut buffer[..],
                    rustix::net::RecvFlags::DONTWAIT,
                ) else {
                    break;
                };
                let frame = &mut buffer[..length];
                finish_checksum(frame);
                if happens(trouble.loss).is_some() {
                    counts.lost += 1;
                    continue;
                }
                if let Some(at) = happens(trouble.corruption) {
                    // Not in the Ethernet header, which a real wire protects by itself.
                    let at = 14 + usize::try_from(at).unwrap() % (length - 14);
                    frame[at] ^= 0x10;
                    counts.corrupted += 1;
                }
                if happens(trouble.reordering).is_some() {
                    counts.delayed += 1;
                    let when = Instant::now() + Duration::from_millis(2);
                    late.push_back((when, 1 - from, frame.to_vec()));
                    continue;
                }
                send(&ends[1 - from], frame);
                counts.forwarded += 1;
                if happens(trouble.duplication).is_some() {
                    send(&ends[1 - from], frame);
                    counts.duplicated += 1;
                }
            }
        }
        while late
            .front()
            .is_some_and(|(when, _, _)| *when <= Instant::now())
        {
            let (_, to, frame) = late.pop_front().unwrap();
            send(&ends[to], &frame);
            counts.forwarded += 1;
        }
    }
    counts
}

/// A full queue loses the frame, as a switch would.
fn send(end: &OwnedFd, frame: &[u8]) {
    let _ = rustix::net::send(end, frame, rustix::net::SendFlags::DONTWAIT);
}

/// Completes the checksum of a TCP segment that the kernel has left to the device.
fn finish_checksum(frame: &mut [u8]) {
    let Some(header) = ethernet::Header::parse(frame) else {
        return;
    };
    let packet = &mut frame[ethernet::HEADER_BYTES..];
    let parsed = match header.ethertype {
        ethernet::IPV4 => ip::parse_v4(packet),
        ethernet::IPV6 => ip::parse_v6(packet),
        _ => None,
    };
    if let Some(parsed) = parsed.filter(|parsed| parsed.protocol == ip::TCP) {
        let tcp = &mut packet[parsed.payload_start..parsed.payload_end];
        if segment::verify(&parsed.source, &parsed.destination, tcp)
            == segment::ChecksumVerdict::Partial
        {
            tcp[16..18].fill(0);
            segment::fill_checksum(&parsed.source, &parsed.destination, tcp);
        }
    }
}

/// A socket that sees all frames which come in on an interface.
pub(super) fn packet_socket(interface: &str) -> OwnedFd {
    let protocol = u16::to_be(0x0003);
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: `socket` has no conditions.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(protocol)) };
    assert!(
        fd >= 0,
        "packet socket: {}",
        std::io::Error::last_os_error()
    );
    // SAFETY: the descriptor is new and ours.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let name = std::ffi::CString::new(interface).unwrap();
    // SAFETY: the name is a terminated string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    assert!(index > 0, "no interface {interface}");
    let address = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).unwrap(),
        sll_protocol: protocol,
        sll_ifindex: i32::try_from(index).unwrap(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let one = 1i32;
    // SAFETY: the option's value is a live integer of the length that is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_IGNORE_OUTGOING,
            (&raw const one).cast(),
            4,
        )
    };
    assert_eq!(result, 0);
    let length = u32::try_from(size_of_val(&address)).unwrap();
    // SAFETY: the address is live and has the length that is given.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    assert_eq!(result, 0, "bind: {}", std::io::Error::last_os_error());
    let bytes = 8 << 20;
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, bytes).unwrap();
    socket
}
