//! Errors of the file layer: each is an error of its own request.

#![expect(clippy::unwrap_used, reason = "test code: a panic is a failure")]

#[expect(dead_code, reason = "it is shared with the tests of NVMe/TCP")]
#[path = "nvme/host.rs"]
mod host;
mod support;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use block_server::config::BlockConfig;
use block_server::export;
use block_server::nvme::controller::Subsystem;
use block_server::server::{BlockService, Shared};
use dataplane::backend::Polled;
use dataplane::file::FileAction;
use dataplane::shard::Plane;
use dataplane::uring::{Uring, UringCalls, UringConfig, UringTransfer, listen};
use dataplane::{Backend, Error, Event, FlowId, Shard, ShardConfig};
use host::{Host, NQN, Place, on_blocks};
use support::{Client, FLUSH, READ, WRITE};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const BLOCK: usize = 4096;
const BLOCKS: usize = 256;
const FUA: u16 = 1;

/// What is to go wrong, and what did.
#[derive(Default)]
struct Faults {
    /// Every operation of this number fails. 0: none.
    every: AtomicU32,
    /// With this `errno`; 0: half of the bytes are moved, and now and then the call is interrupted.
    errno: AtomicI32,
    operations: AtomicU32,
    injected: AtomicU32,
}

impl Faults {
    fn set(&self, every: u32, errno: i32) {
        self.errno.store(errno, Ordering::SeqCst);
        self.injected.store(0, Ordering::SeqCst);
        self.every.store(every, Ordering::SeqCst);
    }

    fn injected(&self) -> usize {
        self.injected.load(Ordering::SeqCst) as usize
    }

    fn apply(&self, action: FileAction, result: Result<usize, i32>) -> Result<usize, i32> {
        let number = self.operations.fetch_add(1, Ordering::SeqCst);
        let every = self.every.load(Ordering::SeqCst);
        if every == 0 || !number.is_multiple_of(every) {
            return result;
        }
        let moves_data = matches!(action, FileAction::Read | FileAction::Write { .. });
        match (self.errno.load(Ordering::SeqCst), result) {
            (0, _) if number.is_multiple_of(2 * every) => Err(libc::EINTR),
            (0, Ok(moved)) if moves_data && moved >= 1024 => Ok(moved / 1024 * 512),
            (0, result) => result,
            (errno, _) => {
                self.injected.fetch_add(1, Ordering::SeqCst);
                Err(errno)
            }
        }
    }
}

/// The real backend, whose file operations sometimes end otherwise than they did.
struct Faulty {
    inner: Uring,
    faults: Arc<Faults>,
}

impl Backend for Faulty {
    type Calls = UringCalls;
    type Transfer = UringTransfer;

    fn poll(&mut self, bound: usize) -> Result<Polled, Error> {
        self.inner.poll(bound)
    }

    fn deliver(&mut self, handler: &mut impl FnMut(Event<'_>, &mut UringCalls)) {
        let faults = Arc::clone(&self.faults);
        self.inner.deliver(&mut |event, calls| {
            let event = match event {
                Event::File {
                    token,
                    action,
                    result,
                    buffer,
                } => Event::File {
                    token,
                    action,
                    result: faults.apply(action, result),
                    buffer,
                },
                other => other,
            };
            handler(event, calls);
        });
    }

    fn calls(&mut self) -> &mut UringCalls {
        self.inner.calls()
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.inner.flush()
    }

    fn sleep(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        self.inner.sleep(timeout)
    }

    fn watch(&mut self, wake: BorrowedFd<'_>) -> Result<(), Error> {
        self.inner.watch(wake)
    }

    fn stop_listening(&mut self) {
        self.inner.stop_listening();
    }

    fn flows(&self) -> usize {
        self.inner.flows()
    }

    fn abort_all(&mut self) {
        self.inner.abort_all();
    }

    fn begin_departure(&mut self, group: u16) {
        self.inner.begin_departure(group);
    }

    fn take_departed(&mut self) -> Option<(FlowId, u16, UringTransfer)> {
        self.inner.take_departed()
    }

    fn is_departing(&self) -> bool {
        self.inner.is_departing()
    }

    fn arrive(&mut self, group: u16, transfer: UringTransfer) -> Option<FlowId> {
        self.inner.arrive(group, transfer)
    }

    fn take_foreign(&mut self) -> Option<(u16, UringTransfer)> {
        self.inner.take_foreign()
    }

    fn knock(&mut self, group: u16, transfer: UringTransfer) {
        self.inner.knock(group, transfer);
    }
}

/// Runs `test` against a server whose file operations fail as `Faults` says. The file's blocks hold
/// their own numbers. The test gets the addresses for NBD and for NVMe/TCP.
#[expect(clippy::print_stdout, reason = "a skipped test says why")]
fn with_server(test: impl FnOnce([SocketAddr; 2], &Faults, &Shared)) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let bytes: Vec<u8> = (0..BLOCKS).flat_map(block).collect();
    std::fs::write(&path, bytes).unwrap();
    let text = format!(
        "[[device]]\nname = \"d\"\npath = {path:?}\n[[tenant]]\nexport = \"a\"\ndevice = \"d\"\n"
    );
    let config = BlockConfig::parse(Path::new("test.toml"), &text).unwrap();
    let exports = export::open(&config, &Vec::new(), 1).unwrap();
    let plane = Arc::new(Plane::<Faulty, BlockService>::new(1, 1).unwrap());
    let listeners =
        [(); 2].map(|()| TcpListener::from(listen(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap()));
    let addresses = [0, 1].map(|at: usize| listeners[at].local_addr().unwrap());
    let subsystem = Subsystem::new(NQN, vec![addresses[1]], &exports);
    let shared = Shared::new(exports, Arc::clone(&plane.stats), 64 << 20).with_nvme(subsystem, 1);
    let shared = Arc::new(shared);
    let faults = Arc::new(Faults::default());
    let (ready, is_ready) = std::sync::mpsc::channel();
    let thread = {
        let (plane, faults) = (Arc::clone(&plane), Arc::clone(&faults));
        let shared = Arc::clone(&shared);
        std::thread::spawn(move || {
            let uring = Uring::new(UringConfig {
                listeners: listeners.into_iter().map(Into::into).collect(),
                flows_max: 16,
                ..UringConfig::default()
            });
            ready.send(uring.is_ok()).unwrap();
            let Ok(inner) = uring else { return };
            let backend = Faulty { inner, faults };
            let block = BlockService::new(shared, 0);
            Shard::new(ShardConfig::default(), backend, block, plane)
                .unwrap()
                .run()
                .unwrap();
        })
    };
    if !is_ready.recv().unwrap() {
        println!("SKIP: no io_uring on this kernel");
        return;
    }
    test(addresses, &faults, &shared);
    plane.drain(Duration::from_secs(5));
    thread.join().unwrap();
}

fn block(number: usize) -> Vec<u8> {
    let word = u32::try_from(number).unwrap().to_le_bytes();
    word.iter().copied().cycle().take(BLOCK).collect()
}

/// Sends a request for each block at once, and gives the error of each.
fn all(client: &mut Client, flags: u16, kind: u16, base: usize) -> Vec<u32> {
    use std::io::{Read as _, Write as _};
    let mut bytes = Vec::new();
    let mut first = 0;
    for number in 0..BLOCKS {
        let request = client.request(flags, kind, (number * BLOCK) as u64, BLOCK as u64);
        if number == 0 {
            first = u64::from_be_bytes(request[8..16].try_into().unwrap());
        }
        bytes.extend(request);
        if kind == WRITE {
            bytes.extend(block(base + number));
        }
    }
    let mut stream = client.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || stream.write_all(&bytes).unwrap());
    let mut errors = vec![u32::MAX; BLOCKS];
    for _ in 0..BLOCKS {
        let (error, cookie) = client.simple();
        let number = usize::try_from(cookie - first).unwrap();
        assert_eq!(
            errors[number],
            u32::MAX,
            "block {number} was answered twice"
        );
        errors[number] = error;
        if kind == READ && error == 0 {
            let mut data = vec![0; BLOCK];
            client.stream.read_exact(&mut data).unwrap();
            assert!(
                data == block(base + number),
                "block {number} holds something else"
            );
        }
    }
    sender.join().unwrap();
    errors
}

fn failed(errors: &[u32], with: i32) -> usize {
    let others = errors
        .iter()
        .filter(|&&error| error != 0 && error != with.unsigned_abs());
    assert_eq!(others.count(), 0, "{errors:?}");
    errors.iter().filter(|&&error| error != 0).count()
}

#[test]
fn each_error_is_one_of_its_own_request() {
    with_server(|[address, _], faults, _| {
        let mut client = Client::connect(address).go("a");
        for errno in [EIO, ENOSPC] {
            faults.set(7, errno);
            let errors = all(&mut client, 0, READ, 0);
            assert_eq!(failed(&errors, errno), faults.injected());
            assert!(faults.injected() >= BLOCKS / 7);
        }
        faults.set(5, EIO);
        let errors = all(&mut client, 0, WRITE, 1000);
        assert_eq!(failed(&errors, EIO), faults.injected());
        faults.set(0, 0);
        // What was answered without an error is there. A direct write that failed is no lost flush.
        for (number, error) in errors.iter().enumerate() {
            if *error == 0 {
                assert!(client.read((number * BLOCK) as u64, BLOCK) == block(1000 + number));
            }
        }
        assert_eq!(client.exchange(0, FLUSH, (0, 0), &[]), 0);
    });
}

#[test]
fn interrupted_and_short_operations_go_on_where_they_stopped() {
    with_server(|[address, _], faults, _| {
        let mut client = Client::connect(address).go("a");
        faults.set(3, 0);
        assert_eq!(failed(&all(&mut client, 0, READ, 0), EIO), 0);
        assert_eq!(failed(&all(&mut client, FUA, WRITE, 2000), EIO), 0);
        faults.set(0, 0);
        assert_eq!(failed(&all(&mut client, 0, READ, 2000), EIO), 0);
    });
}

#[test]
fn after_a_failed_flush_no_flush_is_promised() {
    with_server(|[address, _], faults, shared| {
        let mut client = Client::connect(address).go("a");
        client.write(0, &block(7));
        assert!(!shared.status().tenants[0].has_lost_writes);
        faults.set(1, EIO);
        assert_eq!(client.exchange(0, FLUSH, (0, 0), &[]), EIO.unsigned_abs());
        faults.set(0, 0);
        // Another client's writes may be among those that were lost.
        let mut other = Client::connect(address).go("a");
        assert_eq!(other.exchange(0, FLUSH, (0, 0), &[]), EIO.unsigned_abs());
        assert!(other.read(0, BLOCK) == block(7));
        other.write(0, &block(8));
        // Whoever looks at the server is told.
        assert!(shared.status().tenants[0].has_lost_writes);
        let page = shared.metrics_page();
        assert!(
            page.contains("\nslackline_block_lost_writes{export=\"a\"} 1\n"),
            "{page}"
        );
    });
}

/// Media errors and a full device have a status of their own each; the next command is not hurt.
#[test]
fn each_error_has_its_status_over_nvme_tcp() {
    const WRITE_FAULT: u16 = 0x280;
    const READ_ERROR: u16 = 0x281;
    const CAPACITY: u16 = 0x81;
    with_server(|[_, address], faults, _| {
        let (_admin, id) = Host::admin(address, NQN, 0);
        let mut host = Host::io(address, id, 1, 0);
        let read = on_blocks(host::READ, 1, 8, 8, 0);
        let write = on_blocks(host::WRITE, 1, 8, 8, 0);
        for (errno, of_read, of_write) in
            [(EIO, READ_ERROR, WRITE_FAULT), (ENOSPC, CAPACITY, CAPACITY)]
        {
            faults.set(1, errno);
            assert_eq!(host.execute(read, BLOCK).status, of_read);
            for place in [Place::Capsule, Place::Asked] {
                assert_eq!(host.write(write, &block(5), place).status, of_write);
            }
            faults.set(0, 0);
            assert_eq!(host.write(write, &block(6), Place::Capsule).status, 0);
            assert_eq!(host.execute(read, BLOCK).data, block(6));
        }
    });
}
