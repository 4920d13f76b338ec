//! The power of a host of `serve-block` is cut: what was answered is on its disk.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use crate::machine::Machine;
use crate::toy::free_port;

const TIMEOUT: Duration = Duration::from_secs(300);
const INIT: &str = include_str!("guest/power.sh");
const MODULES: &[&str] = &[
    "drivers/virtio/virtio_ring.ko",
    "drivers/virtio/virtio.ko",
    "drivers/virtio/virtio_pci_legacy_dev.ko",
    "drivers/virtio/virtio_pci_modern_dev.ko",
    "drivers/virtio/virtio_pci.ko",
    "net/core/failover.ko",
    "drivers/net/net_failover.ko",
    "drivers/net/virtio_net.ko",
    "drivers/block/virtio_blk.ko",
];
const DISK_BYTES: u64 = 16 << 20;
/// One record each, in the middle of a block: such a write goes through the guest's page cache.
const SLOTS: usize = 64;
const SLOT_BYTES: u64 = 65_536;
const RECORD_BYTES: usize = 1000;
const INSIDE: u64 = 100;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const FUA: u16 = 1;

fn record(slot: usize, version: u64) -> Vec<u8> {
    let mut bytes = [(slot as u64).to_be_bytes(), version.to_be_bytes()].concat();
    let fill = u8::try_from((slot as u64 * 31 + version * 7) % 251).unwrap();
    bytes.resize(RECORD_BYTES, fill);
    bytes
}

/// A connection to the only export, by `NBD_OPT_EXPORT_NAME`.
fn connect(port: u16) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.read_exact(&mut [0; 18])?;
    // Fixed newstyle, no zeroes; the empty name.
    stream.write_all(&3_u32.to_be_bytes())?;
    stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0")?;
    stream.read_exact(&mut [0; 10])?;
    Ok(stream)
}

fn request(
    stream: &mut TcpStream,
    command: u16,
    flags: u16,
    at: u64,
    data: &[u8],
) -> std::io::Result<()> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend([0; 8]);
    bytes.extend(at.to_be_bytes());
    bytes.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
    bytes.extend(data);
    stream.write_all(&bytes)?;
    let mut reply = [0; 16];
    stream.read_exact(&mut reply)?;
    assert_eq!(reply[4..8], [0; 4], "the server answered with an error");
    Ok(())
}

/// What a client has written: by slot, the version that is promised, and the one written last.
struct Ledger {
    promised: Vec<u64>,
    written: Vec<u64>,
    number: u64,
}

/// Writes to every fourth slot, a third of it durable, and flushes now and then.
fn write_until_it_ends(client: usize, mut stream: TcpStream) -> Ledger {
    let mut ledger = Ledger {
        promised: vec![0; SLOTS],
        written: vec![0; SLOTS],
        number: 0,
    };
    loop {
        let number = ledger.number + 1;
        let slot = (usize::try_from(number).unwrap() * 29 * 4 + client) % SLOTS;
        let flags = if number.is_multiple_of(3) { FUA } else { 0 };
        let at = slot as u64 * SLOT_BYTES + INSIDE;
        (ledger.number, ledger.written[slot]) = (number, number);
        if request(&mut stream, WRITE, flags, at, &record(slot, number)).is_err() {
            return ledger;
        }
        if flags == FUA {
            ledger.promised[slot] = number;
        }
        if number.is_multiple_of(50) {
            if request(&mut stream, FLUSH, 0, 0, &[]).is_err() {
                return ledger;
            }
            ledger.promised.clone_from(&ledger.written);
        }
    }
}

#[test]
#[ignore = "boots a guest for each cut: cargo xtask stress block"]
fn what_was_answered_is_on_the_disk_when_the_power_is_cut() {
    let cuts = std::env::var("SLACKLINE_CUTS").map_or(3, |text| text.parse().unwrap());
    for cut in 0..cuts {
        let Some(machine) = Machine::new(INIT) else {
            return;
        };
        machine.install(assert_cmd::cargo::cargo_bin!("slackline"));
        if !MODULES.iter().all(|module| machine.module(module)) {
            return;
        }
        machine.write(
            "blocks.toml",
            "listen = [\"10.0.2.15:10809\"]\nplaintext_beyond_loopback = true\n[[device]]\npath = \"/dev/vda\"\n\
             [[tenant]]\nexport = \"disk\"\ndevice = \"/dev/vda\"\n",
        );
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("disk");
        std::fs::File::create(&image)
            .unwrap()
            .set_len(DISK_BYTES)
            .unwrap();
        let port = free_port();
        let network = format!("user,id=net,hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:10809");
        let drive = format!(
            "file={},format=raw,if=none,id=d,cache=writeback",
            image.display()
        );
        let mut guest = machine.boot(
            "",
            &[
                "-netdev",
                &network,
                "-device",
                "virtio-net-pci,netdev=net",
                "-drive",
                &drive,
                "-device",
                "virtio-blk-pci,drive=d",
            ],
        );
        assert!(
            guest.wait_for("serving", TIMEOUT),
            "{}",
            guest.finish(Duration::ZERO).console
        );
        // Four clients write at once, until the power is cut at a random moment.
        let streams = [(); 4].map(|()| connect(port).unwrap());
        let ledgers: Vec<Ledger> = std::thread::scope(|scope| {
            let clients = streams.into_iter().enumerate();
            let clients: Vec<_> = clients
                .map(|(client, stream)| scope.spawn(move || write_until_it_ends(client, stream)))
                .collect();
            std::thread::sleep(Duration::from_millis(rand::random_range(500..6000)));
            // No goodbye: the guest's memory is gone.
            drop(guest);
            let ended = clients.into_iter().map(|client| client.join().unwrap());
            ended.collect()
        });
        let disk = std::fs::File::open(&image).unwrap();
        let mut lost = 0;
        for slot in 0..SLOTS {
            let mut found = vec![0; RECORD_BYTES];
            disk.read_exact_at(&mut found, slot as u64 * SLOT_BYTES + INSIDE)
                .unwrap();
            let version = u64::from_be_bytes(found[8..16].try_into().unwrap());
            let ledger = &ledgers[slot % 4];
            let (least, most) = (ledger.promised[slot], ledger.written[slot]);
            assert!(
                (least..=most).contains(&version),
                "slot {slot}: {version}, promised {least}"
            );
            assert!(
                version == 0 || found == record(slot, version),
                "slot {slot} is torn"
            );
            lost += u64::from(version < most);
        }
        // Without a loss the cut would prove nothing.
        assert!(lost > 0, "the guest kept nothing back");
        let written: u64 = ledgers.iter().map(|ledger| ledger.number).sum();
        println!(
            "cut {cut} after {written} writes: {lost} that nobody had asked to keep are lost, no other"
        );
    }
}
