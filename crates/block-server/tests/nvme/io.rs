//! Reads and writes, with and without digests, by capsule and by R2T.

use crate::host::{
    DATASET, Done, FLUSH, Host, Place, READ, SET_FEATURES, WRITE, ZEROES, entry, on_blocks,
};
use crate::{support, with_server};

const BLOCKS: u64 = (64 << 20) / 512;
const FUA: u32 = 1 << 30;

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| seed ^ u8::try_from((at / 7) % 251).unwrap())
        .collect()
}

fn blocks(data: &[u8]) -> u32 {
    u32::try_from(data.len() / 512).unwrap()
}

fn write(host: &mut Host, namespace: u32, first: u64, data: &[u8], place: Place) -> Done {
    let command = on_blocks(WRITE, namespace, first, blocks(data), 0);
    host.write(command, data, place)
}

fn read(host: &mut Host, namespace: u32, first: u64, len: usize) -> Vec<u8> {
    let count = u32::try_from(len / 512).unwrap();
    let done = host.execute(on_blocks(READ, namespace, first, count, 0), len);
    assert_eq!(done.status, 0);
    done.data
}

/// Runs a test with each combination of digests, with and without the queue's head, on memory and
/// on a file.
fn on_all(test: impl Fn(&mut Host, u32)) {
    with_server(|_, address| {
        for digests in 0..4 {
            let (_admin, id) = Host::admin(address, crate::host::NQN, digests);
            for (queue, namespace) in [(1, 1), (2, 2)] {
                let mut host = Host::initialized(address, digests);
                host.is_blind = digests == 1 || queue == 2;
                assert_eq!(host.connect(queue, id, crate::host::NQN, 127).status, 0);
                test(&mut host, namespace);
            }
        }
    });
}

#[test]
fn what_is_written_is_read() {
    on_all(|host, namespace| {
        for (first, len, place) in [
            (0, 512, Place::Capsule),
            (8, 8192, Place::Capsule),
            (5, 512, Place::Asked),
            (100, 65_536, Place::Asked),
            (BLOCKS - 2048, 1 << 20, Place::Asked),
        ] {
            let data = pattern(len, u8::try_from(first % 200).unwrap());
            let done = write(host, namespace, first, &data, place);
            assert_eq!(done.status, 0, "{namespace} {first} {len}");
            assert!(read(host, namespace, first, len) == data, "{first} {len}");
        }
        assert_eq!(host.execute(entry(FLUSH, namespace, &[]), 0).status, 0);
        let durable = on_blocks(WRITE, namespace, 9, 1, FUA);
        let done = host.write(durable, &[5; 512], Place::Capsule);
        assert_eq!(done.status, 0);
        assert_eq!(read(host, namespace, 9, 512), [5; 512]);
    });
}

#[test]
fn many_commands_are_under_way_at_once() {
    on_all(|host, namespace| {
        let mut asked = Vec::new();
        // 64 writes of 16 KiB, all sent before the first R2T is read.
        for at in 0..64_u8 {
            let data = pattern(16 << 10, at);
            let command = on_blocks(WRITE, namespace, u64::from(at) * 32, 32, 0);
            let cid = host.send(command, data.len());
            asked.push((cid, data));
        }
        let mut left = asked.len();
        while left > 0 {
            let pdu = host.next();
            if pdu.kind == 9 {
                let cid = u16::from_le_bytes(pdu.header[..2].try_into().unwrap());
                let (_, data) = asked.iter().find(|(other, _)| *other == cid).unwrap();
                host.send_data(&pdu, data, 3000);
            } else {
                assert_eq!((pdu.kind, &pdu.header[14..16]), (5, &[0, 0][..]));
                left -= 1;
            }
        }
        for at in 0..64_u8 {
            let data = read(host, namespace, u64::from(at) * 32, 16 << 10);
            assert!(data == pattern(16 << 10, at), "{at}");
        }
    });
}

#[test]
fn zeros_and_deallocation() {
    on_all(|host, namespace| {
        for at in 0..4 {
            let data = vec![7; 256 << 10];
            assert_eq!(
                write(host, namespace, at * 512, &data, Place::Asked).status,
                0
            );
        }
        let deallocates = 1 << 25;
        for (first, count, control) in [(8, 128, 0), (301, 3, FUA), (600, 512, deallocates)] {
            let command = on_blocks(ZEROES, namespace, first, count, control);
            assert_eq!(host.execute(command, 0).status, 0);
            let len = usize::try_from(count).unwrap() * 512;
            let around = read(host, namespace, first - 1, len + 1024);
            assert!(around[..512].iter().all(|&byte| byte == 7));
            assert!(around[512..512 + len].iter().all(|&byte| byte == 0));
            assert!(around[512 + len..].iter().all(|&byte| byte == 7));
        }
        // Two ranges to deallocate; then hints only.
        let range = |first: u64, count: u32| {
            let mut bytes = vec![0; 4];
            bytes.extend(count.to_le_bytes());
            bytes.extend(first.to_le_bytes());
            bytes
        };
        let ranges = [range(1200, 128), range(1500, 8)].concat();
        let deallocate = entry(DATASET, namespace, &[1, 1 << 2]);
        assert_eq!(host.write(deallocate, &ranges, Place::Capsule).status, 0);
        assert_eq!(host.write(deallocate, &ranges, Place::Asked).status, 0);
        // Linux sends room for 256 ranges, whatever their number.
        let mut room = ranges.clone();
        room.resize(4096, 0xff);
        assert_eq!(host.write(deallocate, &room, Place::Asked).status, 0);
        assert_eq!(host.write(deallocate, &room, Place::Capsule).status, 0);
        for len in [16, 4112] {
            let done = host.write(deallocate, &vec![0; len], Place::Asked);
            assert_eq!(done.status, 0x0f, "{len}");
        }
        let around = read(host, namespace, 1199, 512);
        assert_eq!(around, [7; 512]);
        let beyond = [range(0, 1), range(BLOCKS, 1)].concat();
        assert_eq!(host.write(deallocate, &beyond, Place::Capsule).status, 0x80);
        let hints = entry(DATASET, namespace, &[1, 1]);
        assert_eq!(host.write(hints, &ranges, Place::Capsule).status, 0);
    });
}

#[test]
fn wrong_commands_are_answered_and_harm_nobody() {
    on_all(|host, namespace| {
        assert_eq!(
            write(host, namespace, 0, &[1; 512], Place::Capsule).status,
            0
        );
        for (command, len, expected) in [
            (on_blocks(READ, namespace, BLOCKS, 1, 0), 512, 0x80),
            (on_blocks(READ, namespace, u64::MAX, 1, 0), 512, 0x80),
            (on_blocks(READ, namespace, BLOCKS - 1, 2, 0), 1024, 0x80),
            (on_blocks(ZEROES, namespace, BLOCKS - 1, 2, 0), 0, 0x80),
            // More than the controller moves at once; an SGL of another length.
            (on_blocks(READ, namespace, 0, 2049, 0), 2049 * 512, 0x02),
            (on_blocks(READ, namespace, 0, 2, 0), 512, 0x0f),
            (on_blocks(READ, namespace, 0, 1, 0), 1024, 0x0f),
            (on_blocks(READ, 99, 0, 1, 0), 512, 0x0b),
            (on_blocks(READ, 0, 0, 1, 0), 512, 0x0b),
            (entry(FLUSH, 0xffff_ffff, &[]), 0, 0x0b),
            (entry(0x05, namespace, &[]), 512, 0x01),
            (entry(0xc0, namespace, &[]), 0, 0x01),
        ] {
            let done = host.execute(command, len);
            assert_eq!(done.status, expected, "{command:?}");
        }
        let done = write(host, namespace, BLOCKS, &[1; 512], Place::Asked);
        assert_eq!(done.status, 0x80);
        let done = write(host, namespace, BLOCKS, &[1; 512], Place::Capsule);
        assert_eq!(done.status, 0x80);
        // The part that may only be read has 16 blocks: the rest of 8,193 bytes is none.
        let done = write(host, 3, 0, &[1; 512], Place::Capsule);
        assert_eq!(done.status, 0x20);
        let zeroes = host.execute(on_blocks(ZEROES, 3, 0, 1, 0), 0);
        assert_eq!(zeroes.status, 0x20);
        assert_eq!(read(host, 3, 15, 512).len(), 512);
        let beyond = host.execute(on_blocks(READ, 3, 16, 1, 0), 512);
        assert_eq!(beyond.status, 0x80);
        assert_eq!(read(host, namespace, 0, 512), [1; 512]);
    });
}

#[test]
fn both_protocols_see_the_same_data() {
    with_server(|server, address| {
        let (_admin, id) = Host::admin(address, crate::host::NQN, 0);
        let mut host = Host::io(address, id, 1, 0);
        for (namespace, export) in [(1, "ram"), (2, "file")] {
            let mut client = server.connect().go(export);
            client.write(4096, &[3; 1000]);
            let data = read(&mut host, namespace, 8, 1024);
            assert!(data[..1000].iter().all(|&byte| byte == 3));
            let done = write(&mut host, namespace, 9, &[4; 512], Place::Asked);
            assert_eq!(done.status, 0);
            assert_eq!(client.read(4096 + 512, 512), [4; 512]);
            assert_eq!(client.exchange(0, support::FLUSH, (0, 0), &[]), 0);
            let stats = &server.shared.exports()[usize::try_from(namespace - 1).unwrap()].stats;
            let writes = stats[0].writes.load(std::sync::atomic::Ordering::Relaxed);
            assert_eq!(writes, 2);
        }
    });
}

#[test]
fn the_cache_can_be_turned_off() {
    with_server(|_, address| {
        let (mut admin, id) = Host::admin(address, crate::host::NQN, 0);
        let mut host = Host::io(address, id, 1, 0);
        let off = entry(SET_FEATURES, 0, &[6, 0]);
        assert_eq!(admin.execute(off, 0).status, 0);
        let data = pattern(4096, 1);
        assert_eq!(write(&mut host, 2, 0, &data, Place::Capsule).status, 0);
        assert!(read(&mut host, 2, 0, 4096) == data);
    });
}

/// More commands than there are numbers for them, over a queue that goes round hundreds of times.
#[test]
fn tens_of_thousands_of_commands_on_one_queue() {
    let commands: u64 = std::env::var("SLACKLINE_COMMANDS")
        .ok()
        .map_or(70_000, |text| text.parse().unwrap());
    with_server(|_, address| {
        let (_admin, id) = Host::admin(address, crate::host::NQN, 0);
        let mut host = Host::io(address, id, 1, 0);
        for number in 0..commands / 2 {
            let data = number.to_le_bytes().repeat(64);
            let done = write(&mut host, 1, number % 1000, &data, Place::Capsule);
            assert_eq!(done.status, 0, "{number}");
            assert!(read(&mut host, 1, number % 1000, 512) == data, "{number}");
        }
    });
}

#[test]
fn overlapping_writes_of_two_queues_leave_whole_sectors() {
    const LEN: usize = 64 << 10;
    with_server(|_, address| {
        for namespace in [1, 2] {
            let (_admin, id) = Host::admin(address, crate::host::NQN, 0);
            std::thread::scope(|scope| {
                for queue in [1, 2] {
                    let mut host = Host::io(address, id, queue, 0);
                    scope.spawn(move || {
                        let data = [u8::try_from(queue).unwrap(); LEN];
                        for round in 0..50 {
                            let first = u64::from(queue) * 8 + round % 8 * 16;
                            let done = write(&mut host, namespace, first, &data, Place::Asked);
                            assert_eq!(done.status, 0);
                        }
                    });
                }
            });
            let mut host = Host::io(address, id, 3, 0);
            let all = read(&mut host, namespace, 8, LEN + 8 * 16 * 512);
            for sector in all.chunks(512) {
                assert!([0, 1, 2].contains(&sector[0]));
                let is_whole = sector.iter().all(|byte| *byte == sector[0]);
                assert!(is_whole, "{namespace}: a torn sector");
            }
        }
    });
}
