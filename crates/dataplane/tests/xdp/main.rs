//! The AF_XDP backend against Linux's own TCP, in network namespaces that the tests make.
//!
//! The tests need root and `ip`; without them they say SKIP. The long ones are ignored by default:
//! `cargo xtask stress dataplane` runs them.
#![expect(clippy::print_stderr, reason = "a skipped test says why")]
#![expect(clippy::unwrap_used, reason = "test code: a panic is a failure")]

#[path = "../../../host/tests/support/eventually.rs"]
mod eventually;
mod exchange;
mod forwarder;
mod hostile;
mod namespaces;
mod queues;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use exchange::{Server, ServerOptions, exchange};
use forwarder::{Forwarder, Trouble};
use namespaces::Wire;

/// The server's address in every test, on port [`PORT`].
const SERVER: &str = "10.77.0.2";
const PORT: u16 = 11_211;

/// A pair of namespaces, or `None` with the reason said.
fn wire(name: &str) -> Option<Wire> {
    wire_with_queues(name, 1)
}

/// The same, where each end has several queues.
fn wire_with_queues(name: &str, queues: usize) -> Option<Wire> {
    match Wire::new(name, queues) {
        Ok(wire) => Some(wire),
        Err(reason) => {
            eprintln!("SKIP: {reason}");
            None
        }
    }
}

fn connect(wire: &Wire, address: &str) -> TcpStream {
    let address = address.to_owned();
    wire.client
        .run(move || TcpStream::connect((address.as_str(), PORT)))
        .unwrap()
}

#[test]
fn linux_exchanges_data_over_a_wire() {
    let Some(wire) = wire("plain") else { return };
    let server = Server::start(&wire, ServerOptions::default());
    let stream = connect(&wire, SERVER);
    // Frames of up to 64 KiB and unfinished checksums come, as from any peer on the same host.
    exchange(&stream, 20_000_000, 1);
    drop(stream);
    server.stop();
}

#[test]
fn linux_exchanges_data_over_ipv6() {
    let Some(wire) = wire("six") else { return };
    let server = Server::start(&wire, ServerOptions::default());
    let stream = connect(&wire, "fd77::2");
    exchange(&stream, 2_000_000, 1);
    drop(stream);
    server.stop();
}

#[test]
fn linux_exchanges_data_over_a_bad_wire() {
    let Some(wire) = wire("bad") else { return };
    let trouble = Trouble {
        loss: 100,
        reordering: 100,
        duplication: 100,
        corruption: 50,
    };
    let forwarder = Forwarder::start(&wire, trouble, 7);
    let server = Server::start(&wire, ServerOptions::default());
    let stream = connect(&wire, SERVER);
    exchange(&stream, 1_000_000, 1);
    drop(stream);
    let counters = server.stop()[0];
    let counts = forwarder.stop();
    assert!(counts.lost > 0 && counts.corrupted > 0, "{counts:?}");
    assert!(counters.checksums_wrong > 0, "{counters:?}");
    assert!(counters.retransmissions > 0, "{counters:?}");
}

/// 10⁹ bytes each way through a wire that loses, reorders, duplicates and corrupts.
#[test]
#[ignore = "minutes: cargo xtask stress dataplane"]
fn linux_exchanges_a_billion_bytes_over_a_bad_wire() {
    let Some(wire) = wire("long") else { return };
    let trouble = Trouble {
        loss: 20,
        reordering: 50,
        duplication: 20,
        corruption: 10,
    };
    let forwarder = Forwarder::start(&wire, trouble, 11);
    let server = Server::start(&wire, ServerOptions::default());
    let streams: Vec<TcpStream> = (0..8).map(|_| connect(&wire, SERVER)).collect();
    let started = Instant::now();
    std::thread::scope(|scope| {
        for (number, stream) in streams.iter().enumerate() {
            scope.spawn(move || exchange(stream, 125_000_000, number as u64));
        }
    });
    drop(streams);
    let counters = server.stop()[0];
    let counts = forwarder.stop();
    eprintln!("{:?}: {counts:?} {counters:?}", started.elapsed());
    // Of a million frames, each kind of trouble meets a thousand at least.
    for trouble in [
        counts.lost,
        counts.delayed,
        counts.duplicated,
        counts.corrupted,
    ] {
        assert!(trouble > 1000, "{counts:?}");
    }
    assert!(counters.checksums_wrong > 100, "{counters:?}");
    assert!(counters.fast_retransmits > 100, "{counters:?}");
    assert_eq!(counters.resets_sent, 0, "{counters:?}");
}

/// Without checksums by the device, the kernel computes what the stack leaves to it, and the peer
/// looks at it.
#[test]
fn linux_accepts_the_checksums_that_are_left_to_the_kernel() {
    let Some(wire) = wire("sums") else { return };
    let off = wire.server.run(|| namespaces::compute_no_checksums("eth0"));
    off.unwrap();
    let options = ServerOptions {
        leaves_checksums: true,
        ..ServerOptions::default()
    };
    let server = Server::start(&wire, options);
    for address in [SERVER, "fd77::2"] {
        exchange(&connect(&wire, address), 2_000_000, 1);
    }
    server.stop();
    let counts = wire.client.command("cat", &["/proc/net/snmp"]);
    assert_eq!(value_of(&counts, "InCsumErrors"), 0, "{counts}");
}

/// A counter of TCP in `/proc/net/snmp`: a line of names, and one of values.
fn value_of(snmp: &str, name: &str) -> u64 {
    let mut lines = snmp.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|word| word == name).unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

/// Clients that send and receive without a pause until the server is gone. `rounds` counts.
fn load(wire: &Wire, clients: usize, rounds: &Arc<AtomicU64>) -> Vec<JoinHandle<()>> {
    let client = |_| {
        let rounds = Arc::clone(rounds);
        wire.client.spawn(move || {
            // Whoever comes only after the kill is refused by the kernel.
            let Ok(mut stream) = TcpStream::connect((SERVER, PORT)) else {
                return;
            };
            let patience = Some(Duration::from_secs(5));
            stream.set_read_timeout(patience).unwrap();
            stream.set_write_timeout(patience).unwrap();
            let mut bytes = [7; 4000];
            while stream.write_all(&bytes).is_ok() && stream.read_exact(&mut bytes).is_ok() {
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    (0..clients).map(client).collect()
}

#[test]
fn a_killed_server_leaves_the_interface_as_it_was() {
    let Some(wire) = wire("kill") else { return };
    let before = wire
        .server
        .command("ip", &["-details", "link", "show", "eth0"]);
    assert!(!before.contains("xdp"), "{before}");
    for round in 0..8 {
        let mut child = wire
            .server
            .spawn_example(&["xdp", "eth0", &format!("{SERVER}:{PORT}")]);
        let end = Instant::now() + Duration::from_secs(20);
        let mut stream = loop {
            let ended = child.try_wait().unwrap();
            assert!(
                ended.is_none(),
                "round {round}: the server ended: {ended:?}"
            );
            assert!(Instant::now() < end, "round {round}: no server");
            // The kernel of the namespace has the address, too, and refuses until the server has
            // the interface.
            match wire.client.run(|| TcpStream::connect((SERVER, PORT))) {
                Ok(stream) => break stream,
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        stream.write_all(b"hello").unwrap();
        let mut echo = [0; 5];
        stream.read_exact(&mut echo).unwrap();
        assert_eq!(&echo, b"hello", "round {round}");
        let during = wire
            .server
            .command("ip", &["-details", "link", "show", "eth0"]);
        assert!(during.contains("xdp"), "{during}");
        // Under load, and each time at another moment of it.
        let rounds = Arc::default();
        let clients = load(&wire, 4, &rounds);
        while rounds.load(Ordering::Relaxed) < 100 + 37 * round {
            assert!(Instant::now() < end, "round {round}: no load");
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let after = wire
            .server
            .command("ip", &["-details", "link", "show", "eth0"]);
        assert_eq!(after, before, "round {round}");
        for client in clients {
            client.join().unwrap();
        }
    }
}

#[test]
fn a_second_server_is_refused_and_changes_nothing() {
    let Some(wire) = wire("two") else { return };
    let server = Server::start(&wire, ServerOptions::default());
    let before = wire.server.command("ip", &["link", "show", "eth0"]);
    let listen = format!("{SERVER}:{PORT}");
    let output = wire.server.example(&["xdp", "eth0", &listen]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("eth0") && text.contains("another"), "{text}");
    let after = wire.server.command("ip", &["link", "show", "eth0"]);
    assert_eq!(after, before);
    let stream = connect(&wire, SERVER);
    exchange(&stream, 10_000, 1);
    drop(stream);
    server.stop();
}

#[test]
fn what_is_missing_is_named() {
    let Some(wire) = wire("miss") else { return };
    let listen = format!("{SERVER}:{PORT}");
    for (interface, listen, says) in [
        ("eth7", listen.as_str(), "no interface eth7"),
        ("lo", listen.as_str(), "no Ethernet interface"),
        ("eth0", "192.0.2.1:80", "192.0.2.1 is no address of eth0"),
    ] {
        let output = wire.server.example(&["xdp", interface, listen]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(says), "{text}");
    }
    let output = wire
        .server
        .example_without_privilege(&["xdp", "eth0", &listen]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("CAP_NET_RAW"), "{text}");
}
