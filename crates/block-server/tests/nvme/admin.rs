//! Discovery, controllers, features, log pages, events.

use std::io::Write as _;
use std::time::Duration;

use block_server::config::BlockConfig;
use block_server::export;

use crate::host::{
    ABORT, DISCOVERY, EVENT, GET_FEATURES, GET_LOG, Host, IDENTIFY, KEEP_ALIVE, NQN, Place, READ,
    SET_FEATURES, WRITE, entry, on_blocks,
};
use crate::{config, with_server};

fn log(host: &mut Host, which: u32, len: u32, offset: u32) -> Vec<u8> {
    let dwords = len / 4 - 1;
    let command = entry(GET_LOG, 0xffff_ffff, &[which | dwords << 16, 0, offset]);
    let done = host.execute(command, usize::try_from(len).unwrap());
    assert_eq!(done.status, 0, "log page {which:#x}");
    done.data
}

fn identify(host: &mut Host, which: u32, namespace: u32) -> Vec<u8> {
    let done = host.execute(entry(IDENTIFY, namespace, &[which]), 4096);
    assert_eq!(done.status, 0, "identify {which}");
    assert_eq!(done.data.len(), 4096);
    done.data
}

/// The UUID of a namespace.
pub(crate) fn uuid(host: &mut Host, namespace: u32) -> Vec<u8> {
    identify(host, 3, namespace)[4..20].to_vec()
}

/// The numbers of the namespaces that the host sees. They are below 256.
pub(crate) fn active(host: &mut Host) -> Vec<u8> {
    let list = identify(host, 2, 0);
    let numbers = list.chunks(4).map(|bytes| bytes[0]);
    numbers.take_while(|&number| number != 0).collect()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes)
        .unwrap()
        .trim_end_matches([' ', '\0'])
}

#[test]
fn a_host_discovers_the_subsystem() {
    with_server(|_, address| {
        let (mut host, _) = Host::admin(address, DISCOVERY, 0);
        let controller = identify(&mut host, 1, 0);
        assert_eq!(controller[111], 2);
        assert_eq!(text(&controller[768..1024]), DISCOVERY);
        let head = log(&mut host, 0x70, 1024, 0);
        assert_eq!(head[..16], [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        let record = log(&mut host, 0x70, 1024, 1024);
        // TCP, IPv4, NVM subsystem.
        assert_eq!(record[..3], [3, 1, 2]);
        assert_eq!(text(&record[32..64]), address.port().to_string());
        assert_eq!(text(&record[256..512]), NQN);
        assert_eq!(text(&record[512..768]), "127.0.0.1");
        // It has no namespaces and no other log pages.
        let refused = host.execute(entry(IDENTIFY, 0, &[2]), 4096);
        assert_eq!(refused.status, 0x02);
        let refused = host.execute(entry(GET_LOG, 0, &[2 | 127 << 16]), 512);
        assert_eq!(refused.status, 0x109);
        assert_eq!(host.execute(entry(ABORT, 0, &[]), 0).status, 0x01);
    });
}

#[test]
fn a_controller_says_what_it_is() {
    with_server(|server, address| {
        let mut host = Host::initialized(address, 3);
        // Before Connect, and before the controller is enabled.
        assert_eq!(host.execute(entry(IDENTIFY, 0, &[1]), 4096).status, 0x0c);
        assert_eq!(host.connect(0, 0xffff, NQN, 31).status, 0);
        assert_eq!(host.execute(entry(IDENTIFY, 0, &[1]), 4096).status, 0x0c);
        assert_eq!(host.property(0, true), 127 | 1 << 16 | 15 << 24 | 1 << 37);
        assert_eq!(host.property(8, false), 0x0001_0400);
        assert_eq!(host.property(0x1c, false), 0);
        host.set_property(0x14, 0x0045_0001);
        // Sizes of entries that do not exist: a fatal status.
        assert_eq!(host.property(0x1c, false), 2);
        host.set_property(0x14, 0);
        host.set_property(0x14, 0x0046_0001);
        assert_eq!(host.property(0x1c, false), 1);
        assert_eq!(host.property(0x14, false), 0x0046_0001);
        let controller = identify(&mut host, 1, 0);
        assert_eq!(text(&controller[24..64]), "Slackline serve-block");
        assert_eq!(text(&controller[768..1024]), NQN);
        assert_eq!(controller[4..24].len(), text(&controller[4..24]).len());
        // MDTS: 1 MiB; I/O capsules of 64 + 8,192 bytes.
        assert_eq!(controller[77], 8);
        assert_eq!(controller[1792..1796], 516_u32.to_le_bytes());
        let active = identify(&mut host, 2, 0);
        assert_eq!(
            active[..16],
            [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(identify(&mut host, 2, 2)[..8], [3, 0, 0, 0, 0, 0, 0, 0]);
        let namespace = identify(&mut host, 0, 3);
        assert_eq!((namespace[0], namespace[99], namespace[130]), (16, 1, 9));
        assert!(identify(&mut host, 0, 9).iter().all(|&byte| byte == 0));
        let descriptors = identify(&mut host, 3, 1);
        assert_eq!(descriptors[..4], [3, 16, 0, 0]);
        assert_ne!(descriptors[4..20], identify(&mut host, 3, 2)[4..20]);
        for (which, namespace, status) in [(3, 9, 0x0b), (0, 0, 0x0b), (0x1f, 0, 0x02)] {
            let done = host.execute(entry(IDENTIFY, namespace, &[which]), 4096);
            assert_eq!(done.status, status, "{which} {namespace}");
        }
        assert_eq!(host.execute(entry(IDENTIFY, 0, &[1]), 4092).status, 0x0f);
        let page = server.shared.metrics_page();
        assert!(
            page.contains("\nslackline_block_nvme_controllers 1\n"),
            "{page}"
        );
        // Shutdown.
        host.set_property(0x14, 0x0046_4001);
        assert_eq!(host.property(0x1c, false), 8);
    });
}

#[test]
fn features_and_log_pages() {
    with_server(|_, address| {
        let (mut host, id) = Host::admin(address, NQN, 0);
        let get = |host: &mut Host, feature| host.execute(entry(GET_FEATURES, 0, &[feature]), 0);
        let set = |host: &mut Host, feature, value| {
            host.execute(entry(SET_FEATURES, 0, &[feature, value]), 0)
        };
        let queues = set(&mut host, 7, 7 | 7 << 16);
        assert_eq!((queues.status, queues.result), (0, 63 | 63 << 16));
        assert_eq!(set(&mut host, 7, 0xffff).status, 0x02);
        for feature in [1, 2, 4, 5, 6, 7, 0x0a, 0x0b, 0x0f] {
            assert_eq!(get(&mut host, feature).status, 0, "{feature}");
        }
        assert_eq!(get(&mut host, 6).result, 1);
        assert_eq!(set(&mut host, 0x0f, 30_000).status, 0);
        assert_eq!(get(&mut host, 0x0f).result, 30_000);
        assert_eq!(get(&mut host, 0x55).status, 0x02);
        assert_eq!(set(&mut host, 6 | 1 << 31, 1).status, 0x10d);
        let host_id = host.execute(entry(GET_FEATURES, 0, &[0x81, 1]), 16);
        assert_eq!(host_id.data, [7; 16]);
        assert_eq!(host.execute(entry(KEEP_ALIVE, 0, &[]), 0).status, 0);
        let mut io = Host::io(address, id, 1, 0);
        assert_eq!(io.execute(on_blocks(READ, 1, 0, 8, 0), 4096).status, 0);
        assert_eq!(io.execute(on_blocks(READ, 9, 5, 1, 0), 512).status, 0x0b);
        let health = log(&mut host, 2, 512, 0);
        assert_eq!((health[3], health[32], health[64]), (100, 1, 1));
        let errors = log(&mut host, 1, 64, 0);
        // The newest: queue 1, Invalid Namespace and Do Not Retry, block 5, namespace 9.
        assert_eq!(errors[8..10], [1, 0]);
        assert_eq!(errors[12..14], (0x8000_u16 | 0x0b << 1).to_le_bytes());
        assert_eq!((errors[16], errors[24]), (5, 9));
        assert_eq!(log(&mut host, 3, 512, 0)[0], 1);
        let commands = log(&mut host, 5, 4096, 0);
        assert_eq!((commands[4 * 6], commands[1024 + 4]), (1, 3));
        for (which, len, offset) in [(9, 512, 0), (2, 512, 3), (2, 512, 516)] {
            let dwords = len / 4 - 1;
            let command = entry(GET_LOG, 0, &[which | dwords << 16, 0, offset]);
            let done = host.execute(command, usize::try_from(len).unwrap());
            assert!([0x02, 0x109].contains(&done.status), "{which} {offset}");
        }
    });
}

/// A tenant whose `allow` leaves the client's address out, over both protocols.
#[test]
fn an_address_that_is_not_allowed_sees_nothing_and_gets_nothing() {
    let text = format!(
        "nvme = {{ listen = [\"127.0.0.1:4420\"], subsystem = \"{NQN}\" }}\n\
         [[device]]\nname = \"ram\"\nmemory = \"1MiB\"\n\
         [[tenant]]\nexport = \"near\"\ndevice = \"ram\"\n\
         range = {{ offset = \"0\", length = \"4KiB\" }}\n\
         allow = {{ addresses = [\"127.0.0.1/32\"] }}\n\
         [[tenant]]\nexport = \"far\"\ndevice = \"ram\"\n\
         range = {{ offset = \"4KiB\", length = \"4KiB\" }}\n\
         allow = {{ addresses = [\"127.0.0.2/32\"] }}\n"
    );
    let Some(server) = crate::start(1, 64 << 20, &text) else {
        return;
    };
    let address = server.nvme.unwrap();
    let (mut admin, id) = Host::admin(address, NQN, 0);
    let mut io = Host::io(address, id, 1, 0);
    assert_eq!(active(&mut admin), [1]);
    assert!(
        identify(&mut admin, 0, 2).iter().all(|&byte| byte == 0),
        "the size of a hidden namespace"
    );
    let read = |io: &mut Host, number| io.execute(on_blocks(READ, number, 0, 1, 0), 512).status;
    assert_eq!((read(&mut io, 1), read(&mut io, 2)), (0, 0x0b));
    let write = io.write(on_blocks(WRITE, 2, 0, 1, 0), &[1; 512], Place::Capsule);
    assert_eq!(write.status, 0x0b);

    // NBD: an export that is hidden and one that does not exist get the same answer.
    let unknown = |name: &str| {
        let mut data = u32::try_from(name.len()).unwrap().to_be_bytes().to_vec();
        data.extend(name.as_bytes());
        data.extend([0, 0]);
        let (kind, text) = server.connect().option(7, &data);
        (kind, String::from_utf8(text).unwrap().replace(name, "NAME"))
    };
    let (kind, text) = unknown("far");
    assert_eq!(kind, 1 << 31 | 6, "{text}");
    assert_eq!(unknown("none"), (kind, text));
    let mut allowed = server.connect().go("near");
    assert_eq!(allowed.read(0, 4096), [0; 4096]);
    drop(allowed);
    server.stop();
}

#[test]
fn a_reload_is_told_by_an_event() {
    let directory = tempfile::tempdir().unwrap();
    let text = config(directory.path());
    let Some(server) = crate::start(1, 64 << 20, &text) else {
        return;
    };
    let address = server.nvme.unwrap();
    let (mut host, id) = Host::admin(address, NQN, 0);
    let mut io = Host::io(address, id, 1, 0);
    assert_eq!(io.execute(on_blocks(READ, 2, 0, 1, 0), 512).status, 0);
    let wanted = host.execute(entry(SET_FEATURES, 0, &[0x0b, 1 << 8]), 0);
    assert_eq!(wanted.status, 0);
    for _ in 0..4 {
        host.send(entry(EVENT, 0, &[]), 0);
    }
    assert_eq!(host.execute(entry(EVENT, 0, &[]), 0).status, 0x105);
    // A request can be taken back: it is answered so, and the abort succeeds.
    let abort = host.send(entry(ABORT, 0, &[8 << 16]), 0);
    let mut answers = [host.next(), host.next()];
    answers.sort_by_key(|pdu| pdu.header[12]);
    let done = |pdu: &crate::host::Pdu| {
        let number = u16::from_le_bytes(pdu.header[12..14].try_into().unwrap());
        let status = u16::from_le_bytes(pdu.header[14..16].try_into().unwrap());
        (number, status >> 1 & 0x7ff)
    };
    assert_eq!(done(&answers[1]), (abort, 0));
    assert_eq!(answers[1].header[0], 0);
    assert_eq!(done(&answers[0]), (8, 0x07));

    // Without the file, and with one more in memory.
    let more = text.replacen("export = \"file\"", "export = \"new\"", 1);
    let new = BlockConfig::parse(std::path::Path::new("b.toml"), &more).unwrap();
    let exports = export::open(&new, &server.shared.exports(), 1).unwrap();
    assert_eq!(io.execute(on_blocks(READ, 2, 0, 1, 0), 512).status, 0);
    server.shared.set_exports(exports);
    // At once, before the shard looks at its connections by itself.
    assert_eq!(io.execute(on_blocks(READ, 2, 0, 1, 0), 512).status, 0x0b);
    let event = host.next();
    assert_eq!(event.header[..4], 0x0004_0002_u32.to_le_bytes());
    let changed = log(&mut host, 4, 4096, 0);
    assert_eq!(changed[..12], [2, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    let active = identify(&mut host, 2, 0);
    assert_eq!(
        active[..16],
        [1, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(io.execute(on_blocks(READ, 4, 0, 1, 0), 512).status, 0);
    assert_eq!(io.execute(on_blocks(READ, 1, 0, 1, 0), 512).status, 0);
    server.stop();
}

/// Another disk is another namespace: a host that is connected cannot write to it under the number
/// that it knows.
#[test]
fn a_moved_tenant_is_another_namespace() {
    let directory = tempfile::tempdir().unwrap();
    let text = config(directory.path());
    let Some(server) = crate::start(1, 64 << 20, &text) else {
        return;
    };
    let address = server.nvme.unwrap();
    let (mut host, id) = Host::admin(address, NQN, 0);
    let mut io = Host::io(address, id, 1, 0);
    let before: Vec<Vec<u8>> = (1..4).map(|number| uuid(&mut host, number)).collect();
    let reload = |text: &str| {
        let new = BlockConfig::parse(std::path::Path::new("b.toml"), text).unwrap();
        let exports = export::open(&new, &server.shared.exports(), 1).unwrap();
        server.shared.set_exports(exports);
    };
    // The data of this write come after the reload.
    let data = [9; 16 << 10];
    let write = io.numbered(on_blocks(WRITE, 2, 0, 32, 0), data.len(), Place::Asked);
    let capsule = io.capsule(&write, &[]);
    io.stream.write_all(&capsule).unwrap();
    let asked = io.next();

    // "ram" is shorter, "file" is on another device, "part" begins elsewhere.
    let path = directory.path().join("disk").display().to_string();
    let moved = text
        .replacen(
            "export = \"ram\"\ndevice = \"ram\"",
            "export = \"ram\"\ndevice = \"ram\"\nrange = { length = \"1MiB\" }",
            1,
        )
        .replacen(
            &format!("export = \"file\"\ndevice = \"{path}\""),
            "export = \"file\"\ndevice = \"ram\"\nrange = { offset = \"1MiB\" }",
            1,
        )
        .replacen("offset = \"4KiB\"", "offset = \"8KiB\"", 1);
    reload(&moved);
    io.send_data(&asked, &data, data.len());
    assert_eq!(io.done().status, 0x0b);
    for number in [2, 3] {
        let write = io.write(on_blocks(WRITE, number, 0, 1, 0), &[9; 512], Place::Capsule);
        assert_eq!(write.status, 0x0b, "{number}");
    }
    assert_eq!(active(&mut host), [1, 4, 5]);
    let read = io.execute(on_blocks(READ, 4, 0, 32, 0), data.len());
    assert_eq!((read.status, read.data), (0, vec![0; data.len()]));
    assert_eq!(uuid(&mut host, 1), before[0]);
    assert_ne!(uuid(&mut host, 4), before[1]);
    assert_ne!(uuid(&mut host, 5), before[2]);

    // Back again: the old number stays gone, and the UUID says that the disk is the old one.
    reload(&text);
    assert_eq!(active(&mut host), [1, 6, 7]);
    assert_eq!(uuid(&mut host, 6), before[1]);
    assert_eq!(io.execute(on_blocks(READ, 2, 0, 1, 0), 512).status, 0x0b);
    server.stop();
}

#[test]
fn a_silent_host_and_its_queues_are_cut_off() {
    with_server(|server, address| {
        let mut silent = Host::initialized(address, 0);
        let done = silent.connect_for(0, 0xffff, NQN, (31, 500));
        let id = u16::try_from(done.result).unwrap();
        silent.set_property(0x14, 0x0046_0001);
        let mut queue = Host::io(address, id, 1, 0);
        assert!(silent.is_closed() && queue.is_closed());
        // A host that reads lives, although its admin queue is silent.
        let mut host = Host::initialized(address, 0);
        let done = host.connect_for(0, 0xffff, NQN, (31, 2000));
        let id = u16::try_from(done.result).unwrap();
        host.set_property(0x14, 0x0046_0001);
        let mut queue = Host::io(address, id, 1, 0);
        for _ in 0..12 {
            std::thread::sleep(Duration::from_millis(500));
            assert_eq!(queue.execute(on_blocks(READ, 1, 0, 1, 0), 512).status, 0);
        }
        // The admin queue goes, and the others go with it.
        drop(host);
        assert!(queue.is_closed());
        let subsystem = server.shared.nvme().unwrap();
        assert_eq!(subsystem.controllers(), 0);
    });
}
