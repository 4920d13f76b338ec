//! The server over TCP: what a client sends and reads, and what bad clients cannot do.

#![expect(clippy::unwrap_used, reason = "test code: a panic is a failure")]

mod support;

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use support::{CACHE, Client, DISCONNECT, FLUSH, READ, STATUS, Server, TRIM, WRITE, ZEROES, start};

const FUA: u16 = 1;
const NO_HOLE: u16 = 2;
const FAST_ZERO: u16 = 16;
const PAYLOAD_LEN: u16 = 32;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EPERM: u32 = 1;

const SIZE: u64 = 64 << 20;

/// A device in memory, a file, and a part of the file that may be read only.
fn config(directory: &std::path::Path) -> String {
    let path = directory.join("disk");
    let path = path.display();
    format!(
        "[[device]]\nname = \"ram\"\nmemory = \"64MiB\"\n\
         [[device]]\npath = \"{path}\"\ncreate = \"64MiB\"\n\
         [[tenant]]\nexport = \"ram\"\ndevice = \"ram\"\n\
         [[tenant]]\nexport = \"file\"\ndevice = \"{path}\"\n\
         [[tenant]]\nexport = \"part\"\ndevice = \"{path}\"\nread_only = true\n\
         range = {{ offset = \"4095\", length = \"8193\" }}\n"
    )
}

/// Runs `test` on both kinds of devices.
fn on_both(test: impl Fn(&Server, &str)) {
    let directory = tempfile::tempdir().unwrap();
    let Some(server) = start(1, 64 << 20, &config(directory.path())) else {
        return;
    };
    test(&server, "ram");
    test(&server, "file");
    server.stop();
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| seed ^ u8::try_from((at / 7) % 251).unwrap())
        .collect()
}

#[test]
fn what_is_written_is_read() {
    on_both(|server, export| {
        let mut client = server.connect().go(export);
        // Aligned, unaligned, across blocks and chunks, at the very end.
        for (offset, len) in [
            (0, 4096),
            (4096, 1 << 20),
            (1, 1),
            (65_000, 70_001),
            (SIZE - 513, 513),
            (SIZE - 4096, 4096),
            (7, 32 << 20),
        ] {
            let bytes = pattern(len, u8::try_from(offset % 200).unwrap());
            client.write(offset, &bytes);
            assert!(client.read(offset, len) == bytes, "{export} {offset} {len}");
        }
        assert_eq!(client.exchange(0, FLUSH, (0, 0), &[]), 0);
        assert_eq!(client.exchange(FUA, WRITE, (512, 3), b"abc"), 0);
        assert_eq!(client.read(511, 5)[1..4], *b"abc");
        // The whole is one array of bytes to every connection.
        let mut other = server.connect().go(export);
        assert_eq!(other.read(512, 3), b"abc");
    });
}

#[test]
fn zeros_trims_and_hints() {
    on_both(|server, export| {
        let mut client = server.connect().go(export);
        client.write(0, &vec![7; 1 << 20]);
        for (flags, kind, offset, len) in [
            (0, ZEROES, 4096, 65_536),
            (FUA | NO_HOLE, ZEROES, 100_000, 70_000),
            (FUA, ZEROES, 200_001, 3),
            (0, TRIM, 300_000, 131_072),
            (FUA, TRIM, 500_000, 1),
        ] {
            let error = client.exchange(flags, kind, (offset, len), &[]);
            assert_eq!(error, 0, "{export} {kind} {offset}");
            let len = usize::try_from(len).unwrap();
            if kind == ZEROES {
                let read = client.read(offset - 1, len + 2);
                assert_eq!((read[0], read[len + 1]), (7, 7));
                assert!(read[1..=len].iter().all(|&byte| byte == 0), "{export}");
            }
        }
        let error = client.exchange(FAST_ZERO, ZEROES, (4096, 4096), &[]);
        assert!(error == 0 || error == 95, "{error}");
        assert_eq!(client.exchange(0, CACHE, (0, 1 << 20), &[]), 0);
    });
}

#[test]
fn wrong_requests_are_answered_and_harm_nobody() {
    on_both(|server, export| {
        let refused = || {
            let status = server.shared.status();
            let tenant = status.tenants.iter().find(|tenant| tenant.export == export);
            tenant.unwrap().refused_requests
        };
        let before = refused();
        let mut client = server.connect().go(export);
        client.write(0, b"kept");
        for (flags, kind, range, payload, error) in [
            (0, READ, (SIZE, 1), 0, EINVAL),
            (0, READ, (u64::MAX, 1), 0, EINVAL),
            (0, READ, (0, (32 << 20) + 1), 0, EINVAL),
            (0, WRITE, (SIZE - 1, 2), 2, ENOSPC),
            (0, WRITE, (u64::MAX - 4, 4096), 4096, ENOSPC),
            (0, ZEROES, (SIZE, 1), 0, ENOSPC),
            (0, TRIM, (SIZE, 1), 0, EINVAL),
            (1 << 12, WRITE, (0, 9), 9, EINVAL),
            (NO_HOLE, READ, (0, 9), 0, EINVAL),
            (0, STATUS, (0, 9), 0, EINVAL),
            (0, 99, (0, 9), 0, EINVAL),
            (0, FLUSH, (1, 0), 0, EINVAL),
            (0, READ, (0, 0), 0, 0),
            (0, WRITE, (0, 0), 0, 0),
            (FUA, TRIM, (5, 0), 0, 0),
            (0, ZEROES, (SIZE, 0), 0, 0),
        ] {
            let payload = vec![1; payload];
            let answer = client.exchange(flags, kind, range, &payload);
            assert_eq!(answer, error, "{export} {flags} {kind} {range:?}");
        }
        assert_eq!(refused() - before, 12);
        assert_eq!(client.read(0, 4), b"kept");
        client.send(0, DISCONNECT, 0, 0, &[]);
        assert!(client.is_closed());
    });
}

#[test]
fn a_read_only_part_is_where_it_should_be() {
    on_both(|server, _| {
        let mut whole = server.connect().go("file");
        let bytes = pattern(20_000, 3);
        whole.write(0, &bytes);
        let mut part = server.connect().go("part");
        assert!(part.read(0, 8193) == bytes[4095..4095 + 8193]);
        assert_eq!(part.exchange(0, READ, (8193, 1), &[]), EINVAL);
        assert_eq!(part.exchange(0, WRITE, (0, 1), b"x"), EPERM);
        assert_eq!(part.exchange(0, TRIM, (0, 1), &[]), EPERM);
        assert_eq!(part.exchange(0, ZEROES, (0, 1), &[]), EPERM);
    });
}

#[test]
fn extended_headers_carry_large_ranges_and_extents() {
    on_both(|server, export| {
        let mut client = server.connect().go_extended(export);
        client.send(0, ZEROES, 0, SIZE, &[]);
        assert_eq!(client.extended(), (0, vec![]));
        client.send(PAYLOAD_LEN, WRITE, 1 << 20, 65_536, &[9; 65_536]);
        assert_eq!(client.extended(), (0, vec![]));
        client.send(0, FLUSH, 0, 0, &[]);
        assert_eq!(client.extended().0, 0);
        client.send(0, READ, 1 << 20, 4096, &[]);
        let (kind, payload) = client.extended();
        assert_eq!((kind, payload.len()), (1, 8 + 4096));
        assert_eq!(payload[..8], (1_u64 << 20).to_be_bytes());
        assert!(payload[8..].iter().all(|&byte| byte == 9));
        client.send(0, STATUS, 0, SIZE, &[]);
        let (kind, payload) = client.extended();
        assert_eq!(kind, 6);
        let mut sum = 0;
        let mut data = 0;
        for extent in payload[8..].chunks_exact(16) {
            let len = u64::from_be_bytes(extent[..8].try_into().unwrap());
            sum += len;
            if extent[15] == 0 {
                data += len;
            }
        }
        assert_eq!(sum, SIZE);
        assert!(
            (65_536..1 << 20).contains(&data),
            "{export}: {data} bytes of data"
        );
        // A payload that the command does not have is skipped.
        client.send(PAYLOAD_LEN, STATUS, 0, 12, &[0; 12]);
        assert_eq!(client.extended().0, 0x8001);
        client.send(0, WRITE, 0, 512, &[]);
        assert_eq!(client.extended().0, 0x8001);
        client.send(0, READ, 0, 0, &[]);
        assert_eq!(client.extended(), (0, vec![]));
    });
}

#[test]
fn garbage_and_half_requests_end_one_connection_only() {
    on_both(|server, export| {
        let mut good = server.connect().go(export);
        good.write(0, b"good");
        let mut bad = server.connect().go(export);
        bad.stream.write_all(&[0x55; 100]).unwrap();
        assert!(bad.is_closed());
        let mut absurd = server.connect().go(export);
        absurd.send(0, WRITE, 0, u32::MAX.into(), &[]);
        assert!(absurd.is_closed());
        let mut early = server.connect();
        early.stream.write_all(&[0xaa; 40]).unwrap();
        assert!(early.is_closed());
        // Gone in the middle of a header, of a payload, and of an answer.
        for cut in [5, 28, 28 + 4096, 28 + (1 << 20)] {
            let mut half = server.connect().go(export);
            let mut bytes = half.request(0, WRITE, 8192, 4 << 20);
            bytes.resize(cut, 0xee);
            half.stream.write_all(&bytes).unwrap();
        }
        let mut half = server.connect().go(export);
        half.send(0, READ, 0, 32 << 20, &[]);
        half.stream.read_exact(&mut [0; 100]).unwrap();
        drop(half);
        assert_eq!(good.read(0, 4), b"good");
        assert_eq!(good.read(8192, 1), [0], "half a write was carried out");
        // A client that sends no more still gets its answers.
        let mut done = server.connect().go(export);
        for _ in 0..50 {
            done.send(0, READ, 0, 65_536, &[]);
        }
        done.stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        done.stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest.len(), 50 * (16 + 65_536));
    });
}

#[test]
fn clients_that_do_not_read_or_do_not_end_are_bounded() {
    on_both(|server, export| {
        let mut deaf: Vec<Client> = (0..8).map(|_| server.connect().go(export)).collect();
        for client in &mut deaf {
            client.stream.set_nonblocking(true).unwrap();
            let request = client.request(0, READ, 0, 8 << 20);
            for _ in 0..2000 {
                if client.stream.write_all(&request).is_err() {
                    break;
                }
            }
        }
        // Payloads that never end.
        let mut slow: Vec<Client> = (0..4).map(|_| server.connect().go(export)).collect();
        for client in &mut slow {
            client.send(0, WRITE, 0, 32 << 20, &[1; 1000]);
        }
        let mut good = server.connect().go(export);
        let begun = std::time::Instant::now();
        for round in 0..20 {
            good.write(4096, &[round; 4096]);
            assert_eq!(good.read(4096, 1), [round]);
        }
        assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    });
}

/// Each is gone before its turn for memory comes.
#[test]
fn clients_that_are_gone_take_no_memory() {
    on_both(|server, export| {
        let mut good = server.connect().go(export);
        let gone: Vec<Client> = (0..60).map(|_| server.connect().go(export)).collect();
        for mut client in gone {
            client.send(0, WRITE, 0, 32 << 20, &[1; 1000]);
        }
        let begun = Instant::now();
        good.write(4096, &[5; 4096]);
        let mut large = server.connect().go(export);
        assert!(large.read(0, 8 << 20)[4096..8192] == [5; 4096]);
        assert!(
            // Less than a stalled connection keeps memory that others wait for.
            begun.elapsed() < Duration::from_secs(5),
            "{:?}",
            begun.elapsed()
        );
    });
}

/// Each asks for much and reads nothing: others go on.
#[test]
fn clients_that_do_not_read_leave_memory_to_others() {
    const MIB: usize = 1 << 20;
    let directory = tempfile::tempdir().unwrap();
    let Some(server) = start(1, 128 * MIB, &config(directory.path())) else {
        return;
    };
    let mut deaf: Vec<Client> = (0..32).map(|_| server.connect().go("file")).collect();
    for client in &mut deaf {
        for _ in 0..16 {
            client.send(0, READ, 0, MIB as u64, &[]);
        }
    }
    let mut good = server.connect().go("file");
    let begun = Instant::now();
    for _ in 0..20 {
        good.read(0, MIB);
    }
    assert!(begun.elapsed() < Duration::from_secs(4));
    server.stop();
}

/// Large writes whose connection waits again and again for memory of its own requests.
#[test]
fn many_large_writes_with_little_memory_are_all_written() {
    const LEN: usize = 256 << 10;
    let directory = tempfile::tempdir().unwrap();
    let Some(server) = start(1, 4 << 20, &config(directory.path())) else {
        return;
    };
    std::thread::scope(|scope| {
        for number in 0..4_u8 {
            let mut client = server.connect().go("file");
            scope.spawn(move || {
                let offset = u64::from(number) * LEN as u64;
                let bytes = pattern(LEN, number);
                let mut requests = Vec::new();
                for _ in 0..100 {
                    requests.extend(client.request(0, WRITE, offset, LEN as u64));
                    requests.extend_from_slice(&bytes);
                }
                let mut stream = client.stream.try_clone().unwrap();
                let writes = std::thread::spawn(move || stream.write_all(&requests).unwrap());
                for _ in 0..100 {
                    assert_eq!(client.simple().0, 0);
                }
                writes.join().unwrap();
                assert!(client.read(offset, LEN) == bytes);
            });
        }
    });
    server.stop();
}

/// `cargo xtask stress block` does a million.
#[test]
fn hundreds_of_thousands_of_commands_on_one_connection() {
    let most: u32 = std::env::var("SLACKLINE_COMMANDS")
        .ok()
        .map_or(200_000, |text| text.parse().unwrap());
    on_both(|server, export| {
        let mut client = server.connect().go(export);
        let (rounds, len) = match export {
            "ram" => (most, 16),
            _ => (5_000, 512),
        };
        let mut reader = std::io::BufReader::new(client.stream.try_clone().unwrap());
        let answers = std::thread::spawn(move || {
            let (mut header, mut data) = ([0; 16], vec![0; len]);
            let mut cookies = vec![false; rounds as usize + 1];
            for _ in 0..rounds {
                reader.read_exact(&mut header).unwrap();
                assert_eq!(header[4..8], [0; 4]);
                // Every second one is a read.
                let cookie = u64::from_be_bytes(header[8..].try_into().unwrap());
                if cookie % 2 == 0 {
                    reader.read_exact(&mut data).unwrap();
                }
                let answered = &mut cookies[usize::try_from(cookie).unwrap()];
                assert!(!*answered, "{cookie} was answered twice");
                *answered = true;
            }
        });
        let mut bytes = Vec::new();
        let payload = vec![3; len];
        for round in 0..u64::from(rounds) {
            let offset = (round * 512) % (1 << 20);
            if round % 2 == 0 {
                bytes.extend(client.request(0, WRITE, offset, len as u64));
                bytes.extend(&payload);
            } else {
                bytes.extend(client.request(0, READ, offset, len as u64));
            }
            if bytes.len() > 60_000 {
                client.stream.write_all(&bytes).unwrap();
                bytes.clear();
            }
        }
        client.stream.write_all(&bytes).unwrap();
        answers.join().unwrap();
        let exports = server.shared.exports();
        let found = exports.iter().find(|found| found.name == export).unwrap();
        let reads = found.stats[0]
            .reads
            .load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(reads, u64::from(rounds / 2));
    });
}

/// Requests for the same bytes at once: each is answered, and each sector is one client's.
#[test]
fn overlapping_writes_leave_whole_sectors() {
    const LEN: usize = 64 << 10;
    on_both(|server, export| {
        let seeds = 1..=4_u8;
        std::thread::scope(|scope| {
            for seed in seeds.clone() {
                let mut client = server.connect().go(export);
                scope.spawn(move || {
                    for round in 0..50 {
                        // Whole blocks, at another distance each time.
                        let offset = u64::from(seed) * 4096 + round % 8 * 8192;
                        client.send(0, WRITE, offset, LEN as u64, &[seed; LEN]);
                        client.send(0, READ, offset, 4096, &[]);
                    }
                    let mut written = 0;
                    for _ in 0..100 {
                        let (error, cookie) = client.simple();
                        assert_eq!(error, 0);
                        if cookie % 2 == 0 {
                            client.stream.read_exact(&mut [0; 4096]).unwrap();
                        } else {
                            written += 1;
                        }
                    }
                    assert_eq!(written, 50);
                });
            }
        });
        let mut client = server.connect().go(export);
        let all = client.read(4096, LEN + 10 * 8192);
        for sector in all.chunks(512) {
            let first = sector[0];
            assert!(first == 0 || seeds.contains(&first));
            assert!(
                sector.iter().all(|&byte| byte == first),
                "{export}: a torn sector"
            );
        }
    });
}

#[test]
fn a_drain_answers_what_is_under_way() {
    on_both(|server, export| {
        if export == "ram" {
            return;
        }
        let mut idle = server.connect().go(export);
        let mut busy = server.connect().go(export);
        let request = busy.request(0, WRITE, 0, 1 << 20);
        busy.stream.write_all(&request).unwrap();
        busy.stream.write_all(&vec![5; 1000]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
        server.drain();
        assert!(idle.is_closed());
        busy.stream.write_all(&vec![5; (1 << 20) - 1000]).unwrap();
        assert_eq!(busy.simple().0, 0);
        assert!(busy.is_closed());
    });
}

#[test]
fn several_shards_serve_one_device() {
    let directory = tempfile::tempdir().unwrap();
    let Some(server) = start(2, 128 << 20, &config(directory.path())) else {
        return;
    };
    for export in ["ram", "file"] {
        let mut clients: Vec<Client> = (0..16).map(|_| server.connect().go(export)).collect();
        for (client, at) in clients.iter_mut().zip(0_u8..) {
            client.write(u64::from(at) * 8192, &[at + 1; 8192]);
        }
        assert_eq!(clients[3].exchange(0, FLUSH, (0, 0), &[]), 0);
        for client in &mut clients {
            let all = client.read(0, 16 * 8192);
            for (piece, at) in all.chunks(8192).zip(0_u8..) {
                assert!(piece.iter().all(|&byte| byte == at + 1));
            }
        }
    }
    server.stop();
}
