//! Hosts that send garbage, stop in the middle, or never read.

use std::io::Write as _;
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::host::{Host, NQN, Place, READ, WRITE, on_blocks};
use crate::with_server;

/// The server still serves: on a connection that was there before, and on a new one.
fn is_served(old: &mut Host, address: SocketAddr) {
    let read = on_blocks(READ, 1, 0, 8, 0);
    assert_eq!(old.execute(read, 4096).status, 0);
    let (_admin, id) = Host::admin(address, NQN, 0);
    let mut new = Host::io(address, id, 1, 0);
    let done = new.execute(read, 4096);
    assert!(
        done.data.iter().all(|&byte| byte == 7),
        "{:?}",
        &done.data[..16]
    );
}

/// Runs a test beside a connection whose data must stay.
fn beside(test: impl FnOnce(SocketAddr, u16)) {
    with_server(|_, address| {
        let (_admin, id) = Host::admin(address, NQN, 0);
        let mut good = Host::io(address, id, 64, 0);
        let write = on_blocks(WRITE, 1, 0, 8, 0);
        assert_eq!(good.write(write, &[7; 4096], Place::Capsule).status, 0);
        test(address, id);
        is_served(&mut good, address);
    });
}

#[test]
fn what_is_no_pdu_is_told_and_ends_one_connection() {
    beside(|address, id| {
        let mut early = Host::open(address);
        early.stream.write_all(&[4, 0, 72, 0, 72, 0, 0, 0]).unwrap();
        assert_eq!(early.terminated(), (2, 0));
        let mut text = Host::open(address);
        text.stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(text.terminated(), (1, 0));
        for (header, expected) in [
            // A PDU of the server's; a header of another length; a capsule of 4 GiB; too short.
            ([5, 0, 24, 0, 24, 0, 0, 0], (1, 0)),
            ([4, 0, 71, 0, 72, 0, 0, 0], (1, 2)),
            ([4, 0, 72, 72, 0xff, 0xff, 0xff, 0xff], (1, 4)),
            ([4, 0, 72, 0, 8, 0, 0, 0], (1, 4)),
            ([6, 4, 24, 24, 0, 0, 0x20, 0], (5, 4)),
            // Digests that were not agreed on; ICReq again.
            ([4, 1, 72, 0, 76, 0, 0, 0], (1, 1)),
            ([0, 0, 128, 0, 128, 0, 0, 0], (2, 0)),
        ] {
            let mut host = Host::io(address, id, 2, 0);
            host.stream.write_all(&header).unwrap();
            assert_eq!(host.terminated(), expected, "{header:?}");
            wait_until_free(address, id, 2);
        }
    });
}

/// Waits until a queue's number may be used again.
fn wait_until_free(address: SocketAddr, id: u16, queue: u16) {
    for _ in 0..500 {
        let mut host = Host::initialized(address, 0);
        if host.connect(queue, id, NQN, 127).status == 0 {
            drop(host);
            std::thread::sleep(std::time::Duration::from_millis(20));
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("queue {queue} is still taken");
}

#[test]
fn wrong_digests() {
    beside(|address, id| {
        let mut host = Host::io(address, id, 1, 3);
        let command = on_blocks(WRITE, 1, 0, 1, 0);
        // Data that arrive damaged fail their command, which may be tried again. Nothing is
        // written.
        let numbered = host.numbered(command, 512, Place::Capsule);
        let mut bytes = host.capsule(&numbered, &[9; 512]);
        bytes[80] ^= 1;
        host.stream.write_all(&bytes).unwrap();
        assert_eq!(host.done().status, 0x22);
        let numbered = host.numbered(command, 512, Place::Asked);
        let bytes = host.capsule(&numbered, &[]);
        host.stream.write_all(&bytes).unwrap();
        let r2t = host.next();
        let mut bytes = host.data_pdu(&r2t.header[..4], 0, &[9; 512], true);
        bytes[28] ^= 1;
        host.stream.write_all(&bytes).unwrap();
        assert_eq!(host.done().status, 0x22);
        let done = host.execute(on_blocks(READ, 1, 0, 1, 0), 512);
        assert_eq!(done.data, [7; 512]);
        // A damaged header ends the connection.
        let numbered = host.numbered(command, 512, Place::Asked);
        let mut bytes = host.capsule(&numbered, &[]);
        bytes[20] ^= 1;
        host.stream.write_all(&bytes).unwrap();
        assert_eq!(host.terminated().0, 3);
    });
}

#[test]
fn data_that_were_not_asked_for() {
    beside(|address, id| {
        // Another tag, another command, an offset ahead, too many data, an end too early.
        for (case, expected) in [
            (0, (1, 10)),
            (1, (1, 8)),
            (2, (4, 12)),
            (3, (4, 16)),
            (4, (1, 1)),
        ] {
            let queue = 10 + case;
            let mut host = Host::io(address, id, queue, 0);
            host.send(on_blocks(WRITE, 1, 0, 16, 0), 8192);
            let r2t = host.next();
            let mut number = r2t.header[..4].to_vec();
            let (mut at, mut len) = (0, 8192);
            match case {
                0 => number[2] ^= 1,
                1 => number[0] ^= 1,
                2 => at = 512,
                3 => len = 8704,
                _ => len = 512,
            }
            let bytes = host.data_pdu(&number, at, &vec![9; len], true);
            host.stream.write_all(&bytes[..24]).unwrap();
            assert_eq!(host.terminated(), expected, "{case}");
        }
    });
}

#[test]
fn more_commands_than_the_queue_has_entries() {
    beside(|address, id| {
        let mut host = Host::initialized(address, 0);
        assert_eq!(host.connect(1, id, NQN, 3).status, 0);
        for _ in 0..5 {
            host.send(on_blocks(WRITE, 1, 0, 8, 0), 4096);
        }
        for _ in 0..4 {
            assert_eq!(host.next().kind, 9);
        }
        assert_eq!(host.terminated(), (2, 0));
    });
}

#[test]
fn half_a_request_is_not_carried_out() {
    beside(|address, id| {
        for (queue, half) in [(1, 0), (2, 1), (3, 2)] {
            let mut host = Host::io(address, id, queue, 0);
            match half {
                0 => {
                    let command = on_blocks(WRITE, 1, 0, 8, 0);
                    let command = host.numbered(command, 4096, Place::Capsule);
                    let bytes = host.capsule(&command, &[9; 4096]);
                    host.stream.write_all(&bytes[..4000]).unwrap();
                }
                1 => {
                    host.send(on_blocks(WRITE, 1, 0, 8, 0), 4096);
                    let r2t = host.next();
                    let bytes = host.data_pdu(&r2t.header[..4], 0, &[9; 4096], true);
                    host.stream.write_all(&bytes[..4000]).unwrap();
                }
                _ => {
                    host.send(on_blocks(WRITE, 1, 0, 8, 0), 4096);
                    let _r2t = host.next();
                }
            }
            host.stream.shutdown(Shutdown::Write).unwrap();
            assert!(host.is_closed());
        }
    });
}

#[test]
fn a_host_that_never_reads_stops_nobody() {
    beside(|address, id| {
        let mut greedy = Vec::new();
        for queue in 1..9 {
            let mut host = Host::io(address, id, queue, 0);
            for _ in 0..64 {
                host.send(on_blocks(READ, 2, 0, 2048, 0), 1 << 20);
            }
            greedy.push(host);
        }
        // Writes whose data never come.
        for queue in 9..13 {
            let mut host = Host::io(address, id, queue, 0);
            for _ in 0..64 {
                host.send(on_blocks(WRITE, 2, 0, 2048, 0), 1 << 20);
            }
            greedy.push(host);
        }
        let mut other = Host::io(address, id, 20, 0);
        let begun = Instant::now();
        for _ in 0..10 {
            let read = on_blocks(READ, 2, 0, 2048, 0);
            assert_eq!(other.execute(read, 1 << 20).status, 0);
        }
        assert!(begun.elapsed() < Duration::from_secs(4));
        for at in 0..50 {
            let data = [1; 4096];
            let write = on_blocks(WRITE, 2, at * 8, 8, 0);
            assert_eq!(other.write(write, &data, Place::Capsule).status, 0);
            let write = on_blocks(WRITE, 2, at * 8, 8, 0);
            assert_eq!(other.write(write, &data, Place::Asked).status, 0);
        }
    });
}

/// Bytes that are damaged commands, or nothing at all, over real connections.
#[test]
fn any_bytes_do_no_harm() {
    beside(|address, id| {
        let mut runner = TestRunner::new(Config {
            cases: 60,
            failure_persistence: None,
            ..Config::default()
        });
        let bytes = prop::collection::vec(any::<u8>(), 1..3000);
        let what = (
            bytes,
            any::<bool>(),
            prop::collection::vec(0_usize..72, 0..4),
        );
        runner
            .run(&what, |(bytes, is_framed, damaged)| {
                let mut host = Host::initialized(address, 0);
                // The number is taken while an earlier connection is not gone yet: no matter.
                let queue = 30 + u16::from(bytes[0] % 30);
                host.connect(queue, id, NQN, 127);
                let mut bytes = bytes;
                if is_framed {
                    // Commands of 64 random bytes in capsules whose headers are nearly right. They
                    // may read, and write to the part that is read-only.
                    for entry in bytes.chunks_exact_mut(64).take(20) {
                        let mut entry: [u8; 64] = entry.try_into().unwrap();
                        entry[0] %= 16;
                        entry[4..8].copy_from_slice(&[3, 0, 0, 0]);
                        let mut capsule = host.capsule(&entry, &[]);
                        for at in &damaged {
                            capsule[*at] ^= entry[*at % 64] & 1;
                        }
                        if host.stream.write_all(&capsule).is_err() {
                            break;
                        }
                    }
                    bytes.clear();
                }
                // The server may have ended the connection.
                let _ = host.stream.write_all(&bytes);
                let _ = host.stream.shutdown(Shutdown::Write);
                prop_assert!(host.is_closed());
                Ok(())
            })
            .unwrap();
    });
}
