//! Frames that no honest peer sends, from the client's side of the wire, while Linux's own TCP
//! exchanges data with the same server.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dataplane::tcp::Counters;
use dataplane::tcp::wire::segment::{ACK, RST, SYN, Segment};
use dataplane::tcp::wire::{Ip, ethernet, ip, segment};
use rustix::net::SendFlags;

use super::exchange::{Server, ServerOptions, exchange};
use super::forwarder::packet_socket;
use super::namespaces::Wire;
use super::{PORT, SERVER, connect, wire};

/// Bytes that Linux exchanges meanwhile, each way.
const EXCHANGED: usize = 3_000_000;

/// Numbers that look random: `SplitMix64` (Steele, Lea and Flood, OOPSLA'14).
struct Random(u64);

impl Random {
    fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((mixed ^ (mixed >> 31)) >> 32).unwrap()
    }
}

/// Who sends hostile frames: the hardware addresses of both ends, and a socket.
struct Attacker {
    socket: OwnedFd,
    source: ethernet::Mac,
    destination: ethernet::Mac,
    random: Random,
}

impl Attacker {
    fn new(wire: &Wire) -> Attacker {
        let mac = |text: String| {
            let mut bytes = [0; 6];
            for (byte, word) in bytes.iter_mut().zip(text.trim().split(':')) {
                *byte = u8::from_str_radix(word, 16).unwrap();
            }
            ethernet::Mac(bytes)
        };
        let address = "/sys/class/net/eth0/address";
        Attacker {
            socket: wire.client.run(|| packet_socket("eth0")),
            source: mac(wire.client.command("cat", &[address])),
            destination: mac(wire.server.command("cat", &[address])),
            random: Random(1),
        }
    }

    /// A queue that is full loses the frame, as any wire does.
    fn send(&self, frame: &[u8]) {
        let _ = rustix::net::send(&self.socket, frame, SendFlags::DONTWAIT);
    }

    fn segment(&self, from: Ipv4Addr, segment: &Segment) {
        let source = Ip::v4(from.octets());
        let destination = Ip::v4(SERVER.parse::<Ipv4Addr>().unwrap().octets());
        let mut frame = vec![0; ethernet::HEADER_BYTES + ip::V4_HEADER_BYTES + segment.bytes()];
        ethernet::Header {
            destination: self.destination,
            source: self.source,
            ethertype: ethernet::IPV4,
        }
        .write(&mut frame);
        let packet = &mut frame[ethernet::HEADER_BYTES..];
        ip::write(packet, &source, &destination, ip::TCP, segment.bytes()).unwrap();
        let tcp = &mut packet[ip::V4_HEADER_BYTES..];
        segment.write(tcp).unwrap();
        segment::fill_checksum(&source, &destination, tcp);
        self.send(&frame);
    }

    /// A SYN of a peer that is not there: it never completes the handshake.
    fn syn(&mut self) {
        let [a, b, ..] = self.random.word().to_ne_bytes();
        let syn = Segment {
            source_port: u16::from_ne_bytes([a, b]),
            destination_port: PORT,
            sequence: self.random.word(),
            flags: SYN,
            window: 60_000,
            ..Segment::default()
        };
        let host = 3 + u8::try_from(self.random.word() % 250).unwrap();
        self.segment(Ipv4Addr::new(10, 77, 0, host), &syn);
    }

    /// An RST in the name of the honest peer, with any number.
    fn reset(&mut self, of: SocketAddr) {
        let reset = Segment {
            source_port: of.port(),
            destination_port: PORT,
            sequence: self.random.word(),
            acknowledgement: self.random.word(),
            flags: RST | ACK,
            ..Segment::default()
        };
        self.segment(Ipv4Addr::new(10, 77, 0, 1), &reset);
    }

    /// Any bytes for the server, in a frame of any length, as IPv4, IPv6, ARP or something else.
    fn garbage(&mut self) {
        let length = ethernet::HEADER_BYTES + usize::try_from(self.random.word() % 1400).unwrap();
        let mut frame = vec![0; length];
        for byte in &mut frame {
            *byte = self.random.word().to_ne_bytes()[0];
        }
        let kinds = [ethernet::IPV4, ethernet::IPV6, ethernet::ARP, 0x88cc];
        ethernet::Header {
            destination: self.destination,
            source: self.source,
            ethertype: kinds[usize::try_from(self.random.word() % 4).unwrap()],
        }
        .write(&mut frame);
        // Versions and lengths that a parser looks at twice.
        if let Some(first) = frame.get_mut(ethernet::HEADER_BYTES) {
            *first = [0x45, 0x4f, 0x60, *first][usize::try_from(self.random.word() % 4).unwrap()];
        }
        self.send(&frame);
    }
}

/// An attack goes on while Linux exchanges data on a connection that was there before, and on one
/// that is opened meanwhile.
fn under_attack(name: &str, attack: fn(&mut Attacker, SocketAddr)) -> Option<Counters> {
    let wire = wire(name)?;
    let server = Server::start(&wire, ServerOptions::default());
    let before = connect(&wire, SERVER);
    let honest = before.local_addr().unwrap();
    let mut attacker = Attacker::new(&wire);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let attacking = scope.spawn(|| {
            let mut frames = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                for _ in 0..64 {
                    attack(&mut attacker, honest);
                    frames += 1;
                }
                // The two CPUs of a small machine are for the others as well.
                std::thread::sleep(Duration::from_micros(500));
            }
            frames
        });
        std::thread::sleep(Duration::from_millis(200));
        exchange(&before, EXCHANGED, 1);
        exchange(&patiently_connected(&wire), EXCHANGED, 2);
        is_over.store(true, Ordering::Relaxed);
        assert!(attacking.join().unwrap() > 1000, "hardly an attack");
    });
    drop(before);
    let counters = server.stop()[0];
    assert_eq!(counters.accepted, 2, "{counters:?}");
    Some(counters)
}

/// Linux sends a lost SYN again after a second.
fn patiently_connected(wire: &Wire) -> TcpStream {
    let began = Instant::now();
    let stream = connect(wire, SERVER);
    assert!(began.elapsed() < Duration::from_secs(20));
    stream
}

#[test]
fn a_flood_of_syns_keeps_no_honest_peer_out() {
    let Some(counters) = under_attack("syns", |attacker, _| attacker.syn()) else {
        return;
    };
    // The backlog is full of half-open connections, and further SYNs get cookies.
    assert!(counters.cookies_sent > 1000, "{counters:?}");
    assert!(counters.cookies_accepted >= 1, "{counters:?}");
}

#[test]
fn a_storm_of_resets_ends_no_connection() {
    let Some(counters) = under_attack("resets", |attacker, honest| attacker.reset(honest)) else {
        return;
    };
    // RFC 5961 §7: two a second at most, for each of two connections.
    assert!(counters.challenges < 200, "{counters:?}");
}

#[test]
fn garbage_harms_nobody() {
    let Some(counters) = under_attack("garbage", |attacker, _| attacker.garbage()) else {
        return;
    };
    assert!(counters.frames_ignored > 1000, "{counters:?}");
}
