//! The io_uring backend with the kernel's TCP at the other end.

#![expect(clippy::unwrap_used, reason = "test code: a panic is a failure")]
#![expect(clippy::print_stdout, reason = "a skipped test says why")]

#[path = "../examples/shared/echo.rs"]
mod echo;
#[path = "support/shards.rs"]
mod shards;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dataplane::shard::{Command, Plane};
use dataplane::uring::{Uring, UringConfig, listen};
use dataplane::{Backend as _, Calls as _, Event};

use echo::Echo;
use shards::start_shards;

type EchoPlane = Arc<Plane<Uring, Echo>>;

struct Server {
    plane: EchoPlane,
    address: SocketAddr,
    threads: Vec<JoinHandle<Option<Echo>>>,
}

fn start(shards: u8, flows_max: usize) -> Option<Server> {
    start_with(shards, flows_max, |_| {})
}

/// The same with settings that `change` makes.
fn start_with(shards: u8, flows_max: usize, change: fn(&mut UringConfig)) -> Option<Server> {
    let plane: EchoPlane = Arc::new(Plane::new(shards, 1).unwrap());
    let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = probe.local_addr().unwrap();
    drop(probe);
    let listeners = vec![listen(address).unwrap()];
    let configure = move |config: &mut UringConfig| {
        config.flows_max = flows_max;
        change(config);
    };
    let echo = |_| Echo::default();
    let threads = start_shards(&plane, shards, listeners, configure, echo, |echo| echo)?;
    Some(Server {
        plane,
        address,
        threads,
    })
}

impl Server {
    fn stop(self) -> Vec<Echo> {
        self.plane.drain(Duration::from_secs(5));
        self.threads
            .into_iter()
            .map(|thread| thread.join().unwrap().unwrap())
            .collect()
    }

    fn flows(&self) -> u64 {
        self.plane
            .stats
            .iter()
            .map(|stats| stats.flows.load(Ordering::Relaxed))
            .sum()
    }
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| u8::try_from((at * 31 + seed * 7 + at / 251) % 256).unwrap())
        .collect()
}

#[test]
fn bytes_come_back_in_order_from_many_connections() {
    let Some(server) = start(1, 1000) else { return };
    exchange_many(&server);
    server.stop();
}

/// Settings that are there to be measured.
const SETTINGS: [fn(&mut UringConfig); 3] = [
    |config| config.submission_thread_idle = Some(Duration::from_millis(50)),
    |config| config.registers_sockets = true,
    |config| config.receive_buffers = 32,
];

#[test]
fn bytes_come_back_in_order_with_other_settings() {
    for setting in SETTINGS {
        let Some(server) = start_with(1, 1000, setting) else {
            return;
        };
        exchange_many(&server);
        // The submission thread sleeps after a while, and is woken.
        std::thread::sleep(Duration::from_millis(200));
        exchange_many(&server);
        server.stop();
    }
}

/// Set in a process that runs one test alone.
const ALONE: &str = "SLACKLINE_TEST_ALONE";

/// The CPUs that the submission thread of this process may use. `None` without such a thread.
fn submission_thread() -> Option<String> {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok())
        .find(|status| status.starts_with("Name:\tiou-sqp-"))
        .and_then(|status| {
            let mut lines = status.lines();
            let cpus = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            cpus.map(|cpus| cpus.trim().to_owned())
        })
}

/// Other tests have such threads, too: this one runs in a process of its own.
#[test]
fn a_submission_thread_runs_where_it_should_and_only_if_wanted() {
    if std::env::var_os(ALONE).is_none() {
        let name = "a_submission_thread_runs_where_it_should_and_only_if_wanted";
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(ALONE, "1")
            .status();
        assert!(status.unwrap().success());
        return;
    }
    let Ok(without) = Uring::new(UringConfig::default()) else {
        println!("SKIP: no io_uring on this kernel");
        return;
    };
    assert_eq!(submission_thread(), None);
    drop(without);
    let config = UringConfig {
        submission_thread_idle: Some(Duration::from_secs(60)),
        submission_thread_cpu: Some(0),
        ..UringConfig::default()
    };
    let _with = Uring::new(config).unwrap();
    // The thread binds itself when it begins.
    let end = Instant::now() + Duration::from_secs(10);
    while submission_thread().as_deref() != Some("0") {
        assert!(Instant::now() < end, "{:?}", submission_thread());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// One turn of a shard that accepts all and keeps nothing. Gives the connections and the messages.
fn turn(backend: &mut Uring) -> (usize, usize) {
    backend.poll(64).unwrap();
    let (mut accepted, mut messages) = (0, 0);
    backend.deliver(&mut |event, calls| match event {
        Event::Knock { flow, .. } => {
            calls.accept(flow);
            accepted += 1;
        }
        Event::Recv { flow, data } => {
            calls.recv_done(flow, data.len());
            messages += 1;
        }
        _ => {}
    });
    backend.flush().unwrap();
    (accepted, messages)
}

/// So many peers send a message each, while no buffer is given back. Gives the messages that have
/// found one, and all that come in the end.
fn messages_in(receive_buffers: u16, peers: usize) -> Option<(usize, usize)> {
    let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = probe.local_addr().unwrap();
    drop(probe);
    let config = UringConfig {
        listeners: vec![listen(address).unwrap()],
        receive_buffers,
        ..UringConfig::default()
    };
    let Ok(mut backend) = Uring::new(config) else {
        println!("SKIP: no io_uring on this kernel");
        return None;
    };
    backend.flush().unwrap();
    let mut streams: Vec<TcpStream> = (0..peers)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let end = Instant::now() + Duration::from_secs(20);
    let mut accepted = 0;
    while accepted < peers {
        assert!(Instant::now() < end, "{accepted} of {peers} were accepted");
        accepted += turn(&mut backend).0;
    }
    for stream in &mut streams {
        stream.write_all(b"x").unwrap();
    }
    std::thread::sleep(Duration::from_millis(100));
    // The kernel runs some 20 completions a call.
    for _ in 0..20 {
        backend.sleep(Some(Duration::from_millis(1))).unwrap();
    }
    let (_, first) = turn(&mut backend);
    let mut all = first;
    while all < peers {
        assert!(Instant::now() < end, "{all} of {peers} messages came");
        all += turn(&mut backend).1;
    }
    Some((first, all))
}

#[test]
fn receives_without_a_buffer_wait_for_one() {
    let Some(few) = messages_in(32, 40) else {
        return;
    };
    assert_eq!(few, (32, 40));
    assert_eq!(messages_in(64, 40), Some((40, 40)));
    // A number that is no power of two counts as the next one.
    assert_eq!(messages_in(33, 40), Some((40, 40)));
}

/// A registered socket is held by the ring as well, and its place is used again.
#[test]
fn a_registered_socket_is_closed_with_its_flow() {
    let Some(server) = start_with(1, 4, |config| config.registers_sockets = true) else {
        return;
    };
    for round in 0..50 {
        let mut streams: Vec<TcpStream> = (0..3)
            .map(|_| TcpStream::connect(server.address).unwrap())
            .collect();
        for stream in &mut streams {
            stream
                .set_read_timeout(Some(Duration::from_secs(20)))
                .unwrap();
            stream.write_all(b"x").unwrap();
            let mut answer = [0];
            stream.read_exact(&mut answer).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(stream.read(&mut answer).unwrap(), 0, "round {round}");
        }
    }
    server.stop();
}

fn exchange_many(server: &Server) {
    let clients: Vec<_> = (0..8)
        .map(|seed| {
            let address = server.address;
            std::thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                let sent = pattern(seed, 2_000_000);
                let mut writer = stream.try_clone().unwrap();
                let copy = sent.clone();
                let writing = std::thread::spawn(move || writer.write_all(&copy).unwrap());
                let mut received = vec![0; sent.len()];
                stream.read_exact(&mut received).unwrap();
                assert!(received == sent, "{seed}: bytes differ");
                writing.join().unwrap();
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
}

#[test]
fn a_peer_that_does_not_read_stops_the_flow_and_no_other() {
    let Some(server) = start(1, 1000) else { return };
    let mut slow = TcpStream::connect(server.address).unwrap();
    slow.set_write_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let chunk = pattern(1, 64 * 1024);
    let mut written = 0;
    // A write that times out may have taken a part.
    while let Ok(len) = slow.write(&chunk[written % chunk.len()..]) {
        written += len;
        assert!(written < 100_000_000, "nothing stops the sender");
    }
    let mut other = TcpStream::connect(server.address).unwrap();
    other.write_all(b"hello").unwrap();
    let mut answer = [0; 5];
    other.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hello");
    // The slow one gets everything in the end.
    slow.shutdown(std::net::Shutdown::Write).unwrap();
    let expected: Vec<u8> = chunk.iter().copied().cycle().take(written).collect();
    let mut received = Vec::new();
    slow.read_to_end(&mut received).unwrap();
    assert!(received.len() <= written);
    assert!(expected.starts_with(&received), "bytes differ");
    drop((slow, other));
    let echo = server.stop().remove(0);
    // The window, and two batches of buffers that came before the receive was cancelled.
    assert!(
        echo.unsent_max <= 64 * 1024 + 2 * 64 * 8192,
        "{}",
        echo.unsent_max
    );
}

#[test]
fn flows_move_between_shards_under_load_and_nothing_is_lost() {
    let Some(server) = start(2, 1000) else { return };
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let clients: Vec<_> = (0..32)
        .map(|seed| {
            let (address, stop) = (server.address, Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                stream
                    .set_read_timeout(Some(Duration::from_secs(20)))
                    .unwrap();
                let mut rounds = 0;
                while !stop.load(Ordering::Relaxed) {
                    let sent = pattern(seed + rounds, 1 + rounds * 997 % 9000);
                    stream.write_all(&sent).unwrap();
                    let mut received = vec![0; sent.len()];
                    stream.read_exact(&mut received).unwrap();
                    assert!(received == sent, "{seed}: bytes differ in round {rounds}");
                    rounds += 1;
                }
                rounds
            })
        })
        .collect();
    for active in [2, 1, 2, 1, 2, 1, 2] {
        std::thread::sleep(Duration::from_millis(150));
        server.plane.resize(active);
    }
    std::thread::sleep(Duration::from_millis(150));
    let before = server.plane.stats[1].busy_ns.load(Ordering::Relaxed);
    assert!(before > 0, "the second shard did nothing");
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        assert!(client.join().unwrap() > 0);
    }
    let moved: u64 = server
        .plane
        .stats
        .iter()
        .map(|s| s.arrived.load(Ordering::Relaxed))
        .sum();
    assert!(moved >= 32, "{moved} flows moved");
    server.stop();
}

#[test]
fn a_full_table_refuses_and_recovers() {
    let Some(server) = start(1, 4) else { return };
    let first: Vec<_> = (0..4)
        .map(|_| TcpStream::connect(server.address).unwrap())
        .collect();
    let deadline = Instant::now() + Duration::from_secs(10);
    while server.flows() < 4 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut fifth = TcpStream::connect(server.address).unwrap();
    fifth
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let _ = fifth.write_all(b"x");
    let mut answer = [0];
    assert!(
        !matches!(fifth.read(&mut answer), Ok(1)),
        "a fifth flow was served"
    );
    drop(first);
    loop {
        let mut again = TcpStream::connect(server.address).unwrap();
        again
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let _ = again.write_all(b"y");
        if again.read(&mut answer).is_ok_and(|len| len == 1) {
            break;
        }
        assert!(
            Instant::now() < deadline + Duration::from_secs(20),
            "the table stays full"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    server.stop();
}

#[test]
fn a_shard_drains_when_told() {
    let Some(server) = start(1, 100) else { return };
    let idle = TcpStream::connect(server.address).unwrap();
    let began = Instant::now();
    let _ = server.plane.mailboxes[0].send(Command::Drain(Duration::from_millis(300)));
    for thread in server.threads {
        thread.join().unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(20));
    drop(idle);
    assert!(
        TcpStream::connect(server.address).is_err(),
        "it still listens"
    );
}
