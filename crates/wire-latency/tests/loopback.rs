//! Real packets over the loopback interface, beside what the server and the client measure
//! themselves.
//!
//! On the wire a request takes longer than in the server, which sees it later and answers earlier,
//! and shorter than in the client.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test's helpers fail with it, and say what is left out"
)]

#[path = "../../host/tests/support/eventually.rs"]
mod eventually;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use wire_latency::{Fine, Monitor, NoData, SourceSpec, Surroundings, WindowRules, WireSpec};

use eventually::{eventually, found_within};

const RULES: WindowRules = WindowRules {
    length: Duration::from_secs(600),
    minimum_requests: 1,
    stale_after: Duration::from_secs(60),
};
const EVERY: Duration = Duration::from_millis(50);
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// `None`, with a line on standard output, where packets may not be read.
fn monitor(port: u16) -> Option<Monitor> {
    let spec = SourceSpec::Wire(WireSpec::of_port(port));
    match Monitor::start(&spec, &Surroundings::default(), RULES, EVERY) {
        Ok(monitor) => Some(monitor),
        Err(error) if error.is_missing_privilege() => {
            assert!(std::env::var_os("SLACKLINE_CI").is_none(), "{error}");
            println!("SKIP: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap()
}

/// A server that takes 1 to 9 ms for a request, and counts how long it took itself.
fn server(address: &str) -> Option<(SocketAddr, Arc<Mutex<Fine>>)> {
    let listener = TcpListener::bind(address).ok()?;
    let address = listener.local_addr().unwrap();
    let took = Arc::new(Mutex::new(Fine::default()));
    let shared = Arc::clone(&took);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, took) = (stream.unwrap(), Arc::clone(&shared));
            std::thread::spawn(move || {
                let mut buffer = [0; 1024];
                let mut count = 0_u64;
                while stream.read(&mut buffer).is_ok_and(|length| length > 0) {
                    let began = Instant::now();
                    count += 1;
                    std::thread::sleep(Duration::from_millis(1 + count % 9));
                    took.lock().unwrap().record_ns(ns(began.elapsed()));
                    stream.write_all(OK).unwrap();
                }
            });
        }
    });
    Some((address, took))
}

/// So many requests over each of four connections; how long they took for the client.
fn ask(address: SocketAddr, requests: usize) -> Fine {
    let one = move || {
        let (mut stream, mut took) = (TcpStream::connect(address).unwrap(), Fine::default());
        stream.set_nodelay(true).unwrap();
        let mut buffer = [0; 1024];
        for _ in 0..requests {
            let began = Instant::now();
            stream.write_all(GET).unwrap();
            assert!(stream.read(&mut buffer).unwrap() > 0);
            took.record_ns(ns(began.elapsed()));
        }
        took
    };
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(one)).collect();
    let mut all = Fine::default();
    for thread in threads {
        all.merge(&thread.join().unwrap());
    }
    all
}

fn is_between_server_and_client(address: &str) {
    let Some((address, in_server)) = server(address) else {
        println!("SKIP: no address {address}");
        return;
    };
    let Some(monitor) = monitor(address.port()) else {
        return;
    };
    let in_client = ask(address, 50);
    let reading = found_within(20, || match monitor.look() {
        Ok(reading) if reading.requests == 200 => Ok(reading),
        look => Err(format!("{look:?}")),
    });
    let counts = reading.counts;
    assert_eq!(
        (
            counts.dropped,
            counts.ambiguous,
            counts.bounded,
            reading.waiting
        ),
        (0, 0, 0, 0)
    );
    assert_eq!(reading.sampled_share, 1.0);
    let in_server = in_server.lock().unwrap();
    for percentile in [10.0, 50.0, 90.0, 99.0] {
        let of = |fine: &Fine| fine.quantile_us(percentile / 100.0).unwrap();
        let on_wire = reading.percentile(percentile).unwrap().value_us;
        // Histograms are off by a thousandth.
        assert!(
            on_wire * 1.002 >= of(&in_server),
            "p{percentile}: {on_wire}"
        );
        assert!(
            on_wire <= of(&in_client) * 1.002,
            "p{percentile}: {on_wire}"
        );
    }
}

#[test]
fn over_ipv4_the_wire_is_between_server_and_client() {
    is_between_server_and_client("127.0.0.1:0");
}

#[test]
fn over_ipv6_the_wire_is_between_server_and_client() {
    is_between_server_and_client("[::1]:0");
}

/// How often the calling thread has waited for something.
fn waits() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

#[test]
fn beside_few_packets_a_poll_wakes_once() {
    const POLLS: u32 = 5;
    let (address, _) = server("127.0.0.1:0").unwrap();
    if monitor(address.port()).is_none() {
        return;
    }
    let spec = SourceSpec::Wire(WireSpec::of_port(address.port()));
    let mut source = wire_latency::open(&spec, &Surroundings::default()).unwrap();
    let load = std::thread::spawn(move || ask(address, 200));
    let (before, mut requests) = (waits(), 0);
    for _ in 0..POLLS {
        let slice = source.poll(Instant::now() + Duration::from_millis(200));
        requests += slice.unwrap().distribution.requests();
    }
    let woken = waits() - before;
    assert!(requests > 0);
    // A block of the ring that is not full ages within 40 ms: one that waits for it wakes 30 times.
    assert!(woken <= u64::from(2 * POLLS), "{woken}");
    load.join().unwrap();
}

#[test]
fn a_load_that_begins_after_a_pause_is_seen_whole() {
    let (address, _) = server("127.0.0.1:0").unwrap();
    if monitor(address.port()).is_none() {
        return;
    }
    let spec = SourceSpec::Wire(WireSpec {
        // Less than a look at the kernel's table of sockets costs in a second.
        cpu_budget_cores: Some(0.001),
        ..WireSpec::of_port(address.port())
    });
    let mut source = wire_latency::open(&spec, &Surroundings::default()).unwrap();
    for _ in 0..5 {
        let slice = source
            .poll(Instant::now() + Duration::from_secs(1))
            .unwrap();
        assert!((slice.sampled_share - 1.0).abs() < 1e-9, "{slice:?}");
    }
    let asked = ask(address, 20).requests();
    let mut seen = 0;
    for _ in 0..20 {
        let slice = source
            .poll(Instant::now() + Duration::from_millis(100))
            .unwrap();
        seen += slice.distribution.requests();
    }
    assert_eq!(seen, asked);
}

#[test]
fn a_port_without_a_listener_is_said() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let Some(monitor) = monitor(port) else {
        return;
    };
    let is_said =
        || matches!(monitor.look(), Err(NoData::NobodyListens { port: of }) if of == port);
    eventually(20, is_said, || format!("{:?}", monitor.look()));
}

#[test]
fn a_service_that_hangs_is_stalled_and_one_without_requests_is_idle() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let Some(monitor) = monitor(address.port()) else {
        return;
    };
    let until = |is_it: fn(&NoData) -> bool| {
        let is_so = || monitor.look().as_ref().is_err_and(is_it);
        eventually(20, is_so, || format!("{:?}", monitor.look()));
    };
    until(|no_data| matches!(no_data, NoData::Idle { .. }));
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(GET).unwrap();
    until(|no_data| matches!(no_data, NoData::Stalled { waiting: 1, oldest_s } if *oldest_s > 0.0));
}
