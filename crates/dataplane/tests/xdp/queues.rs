//! Several queues of an interface, and several shards.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dataplane::xdp::{Division, Interface, Program, XdpBackend, XdpError, XdpMode};

use super::eventually::eventually;
use super::exchange::{Server, ServerOptions, config, exchange};
use super::namespaces::Wire;
use super::{SERVER, connect, wire_with_queues};

const TWO: ServerOptions = ServerOptions {
    mode: XdpMode::Auto,
    shards: 2,
    leaves_checksums: false,
};

/// Gives the queues to the first `active` shards, and waits until they have them.
fn resize(server: &Server, active: u8) {
    assert!(server.plane.resize(active));
    let is_settled = || !server.plane.is_moving();
    eventually(10, is_settled, || "the queues do not arrive");
}

/// Streams that exchange `total` bytes each way, at the same time.
fn exchange_all(streams: &[TcpStream], total: usize) {
    std::thread::scope(|scope| {
        for (key, stream) in (0..).zip(streams) {
            scope.spawn(move || exchange(stream, total, key));
        }
    });
}

#[test]
fn connections_are_spread_over_queues_and_shards() {
    let Some(wire) = wire_with_queues("spread", 2) else {
        return;
    };
    let server = Server::start(&wire, TWO);
    resize(&server, 2);
    let mut streams: Vec<TcpStream> = (0..12).map(|_| connect(&wire, SERVER)).collect();
    streams.extend((0..12).map(|_| connect(&wire, "fd77::2")));
    exchange_all(&streams, 300_000);
    drop(streams);
    let counters = server.stop();
    for shard in &counters {
        assert!(shard.accepted > 0, "{counters:?}");
        assert_eq!(shard.resets_sent, 0, "{counters:?}");
    }
    assert_eq!(counters.iter().map(|shard| shard.accepted).sum::<u64>(), 24);
}

#[test]
fn a_shard_is_added_and_given_back_under_load_and_nothing_is_lost() {
    let Some(wire) = wire_with_queues("elastic", 2) else {
        return;
    };
    let server = Server::start(&wire, TWO);
    let streams: Vec<TcpStream> = (0..12).map(|_| connect(&wire, SERVER)).collect();
    let is_done = AtomicBool::new(false);
    let moves = std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            let mut moves = 0;
            while !is_done.load(Ordering::Relaxed) {
                resize(&server, 2 - moves % 2);
                moves += 1;
                std::thread::sleep(Duration::from_millis(3));
            }
            moves
        });
        exchange_all(&streams, 5_000_000);
        is_done.store(true, Ordering::Relaxed);
        mover.join().unwrap()
    });
    // New connections while there are others in TIME-WAIT.
    let more: Vec<TcpStream> = (0..12).map(|_| connect(&wire, SERVER)).collect();
    exchange_all(&more, 1000);
    drop((streams, more));
    let arrived: Vec<u64> = (server.plane.stats.iter())
        .map(|stats| stats.arrived.load(Ordering::Relaxed))
        .collect();
    assert!(
        arrived.iter().all(|flows| *flows > 0),
        "{arrived:?} in {moves}"
    );
    let counters = server.stop();
    assert!(counters[1].frames_received > 0, "{counters:?}");
    for shard in &counters {
        assert_eq!(shard.resets_sent, 0, "{counters:?}");
    }
}

/// Has the client's frames take the queue of the CPU that sends them. False where that cannot be.
fn queue_by_cpu(wire: &Wire) -> bool {
    let script = "set -e; cd /sys/class/net/eth0/queues
        echo 1 >tx-0/xps_cpus; echo 2 >tx-1/xps_cpus; echo done";
    wire.client.command("sh", &["-c", script]).contains("done")
}

#[test]
fn a_connection_that_changes_its_queue_goes_on() {
    let Some(wire) = wire_with_queues("astray", 2) else {
        return;
    };
    if !queue_by_cpu(&wire) || std::thread::available_parallelism().unwrap().get() < 2 {
        eprintln!("SKIP: the client's queue cannot be chosen by its CPU");
        return;
    }
    let server = Server::start(&wire, TWO);
    resize(&server, 2);
    wire.client.run(|| {
        let mut stream = TcpStream::connect((SERVER, super::PORT)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let total = 200_u64;
        stream.write_all(&total.to_be_bytes()).unwrap();
        stream.write_all(&7_u64.to_be_bytes()).unwrap();
        let mut answer = vec![0; 200];
        stream.read_exact(&mut answer).unwrap();
        let data = super::exchange::pattern(7);
        for (at, byte) in (0..200).zip(&data) {
            dataplane::shard::bind(at % 2).unwrap();
            stream.write_all(&[*byte]).unwrap();
            // The kernel keeps to a queue until all is acknowledged.
            std::thread::sleep(Duration::from_millis(if at % 2 == 0 { 45 } else { 1 }));
            if at == 20 {
                break;
            }
        }
        stream.write_all(&data[21..200]).unwrap();
        assert_eq!(stream.read(&mut answer).unwrap(), 0);
    });
    let counters = server.stop();
    let handed_over: u64 = counters.iter().map(|shard| shard.frames_handed_over).sum();
    assert!(handed_over > 0, "{counters:?}");
    assert_eq!(counters.iter().map(|shard| shard.accepted).sum::<u64>(), 1);
    assert!(counters.iter().all(|shard| shard.resets_sent == 0));
}

#[test]
fn a_queue_that_is_taken_or_not_there_is_named() {
    let Some(wire) = wire_with_queues("taken", 2) else {
        return;
    };
    wire.server.run(|| {
        let interface = Interface::find("eth0").unwrap();
        assert_eq!(interface.queues.receive, 2);
        let program = Arc::new(Program::attach(&interface, 2, XdpMode::Auto).unwrap());
        let change = |_: &mut dataplane::tcp::Config| ();
        let first = XdpBackend::open(&interface, &config(1), Arc::clone(&program), &change);
        let division = |shards| Division {
            queues: 2,
            shards,
            owner: &|_| 0,
        };
        let open = |shards| {
            XdpBackend::open_all(&interface, &config(0), &program, division(shards), &change)
        };
        let error = open(2).unwrap_err();
        assert!(
            matches!(error, XdpError::QueueInUse { queue: 1, .. }),
            "{error}"
        );
        assert!(matches!(open(3), Err(XdpError::TooFewQueues { .. })));
        // The queue of a server that was killed is free a moment later.
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(300));
                drop(first);
            });
            assert_eq!(open(2).unwrap().len(), 2);
        });
    });
}
