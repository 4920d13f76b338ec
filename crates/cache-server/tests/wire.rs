//! The server over TCP: what a client sends and reads, and what bad clients cannot do.

#![expect(clippy::unwrap_used, reason = "test code: a panic is a failure")]
#![expect(clippy::print_stdout, reason = "a skipped test says why")]

#[path = "../../dataplane/tests/support/shards.rs"]
mod shards;

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use cache_server::server::{Cache, SharedCache};
use dataplane::shard::Plane;
use dataplane::uring::{Uring, UringConfig, listen};

use shards::start_shards;

struct Server {
    plane: Arc<Plane<Uring, Cache>>,
    shared: Arc<SharedCache>,
    address: SocketAddr,
    threads: Vec<JoinHandle<Option<()>>>,
}

const SEND_QUEUE_BYTES: usize = 2 * ((1 << 20) + 64 * 1024);

fn start(shards: u8, memory_bytes: usize) -> Option<Server> {
    let plane = Arc::new(Plane::<Uring, Cache>::new(shards, 1).unwrap());
    let shared = Arc::new(SharedCache::new(
        memory_bytes,
        Arc::clone(&plane.stats),
        1000,
    ));
    let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = probe.local_addr().unwrap();
    drop(probe);
    let listeners = vec![listen(address).unwrap()];
    let configure = |config: &mut UringConfig| {
        config.flows_max = 1000;
        config.send_queue_bytes = SEND_QUEUE_BYTES;
        config.send_memory_bytes = 16 << 20;
    };
    let of_shards = Arc::clone(&shared);
    let cache = move |id: u8| Cache::new(Arc::clone(&of_shards), id.into());
    let threads = start_shards(&plane, shards, listeners, configure, cache, drop)?;
    Some(Server {
        plane,
        shared,
        address,
        threads,
    })
}

impl Server {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
    }

    fn stop(self) {
        self.plane.drain(Duration::from_secs(5));
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

/// Sends `request` and expects exactly `answer`.
fn exchange(stream: &mut TcpStream, request: &[u8], answer: &[u8]) {
    stream.write_all(request).unwrap();
    let mut received = vec![0; answer.len()];
    let read = stream.read_exact(&mut received);
    let (received, answer) = (
        String::from_utf8_lossy(&received),
        String::from_utf8_lossy(answer),
    );
    assert!(
        read.is_ok() && received == answer,
        "{}: {received:?} instead of {answer:?}",
        String::from_utf8_lossy(&request[..request.len().min(200)])
    );
}

#[test]
fn commands_have_memcacheds_answers() {
    let Some(server) = start(1, 64 << 20) else {
        return;
    };
    let mut client = server.connect();
    for (request, answer) in [
        ("get a\r\n", "END\r\n"),
        ("set a 7 0 3\r\nabc\r\n", "STORED\r\n"),
        ("get a\r\n", "VALUE a 7 3\r\nabc\r\nEND\r\n"),
        ("add a 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("replace b 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("append a 0 0 2\r\nde\r\n", "STORED\r\n"),
        ("prepend a 0 0 1\r\n-\r\n", "STORED\r\n"),
        ("get a b\r\n", "VALUE a 7 6\r\n-abcde\r\nEND\r\n"),
        ("set n 0 0 2\r\n98\r\n", "STORED\r\n"),
        ("incr n 5\r\n", "103\r\n"),
        ("decr n 200\r\n", "0\r\n"),
        ("get n\r\n", "VALUE n 0 3\r\n0  \r\nEND\r\n"),
        (
            "incr a 1\r\n",
            "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
        ),
        ("incr nil 1\r\n", "NOT_FOUND\r\n"),
        ("cas nil 0 0 1 5\r\nx\r\n", "NOT_FOUND\r\n"),
        ("cas a 0 0 1 99999\r\nx\r\n", "EXISTS\r\n"),
        ("touch a 100\r\n", "TOUCHED\r\n"),
        ("gat 0 a\r\n", "VALUE a 7 6\r\n-abcde\r\nEND\r\n"),
        ("touch nil 1\r\n", "NOT_FOUND\r\n"),
        ("set e 0 -1 1\r\nx\r\n", "STORED\r\n"),
        ("get e\r\n", "END\r\n"),
        ("delete a\r\n", "DELETED\r\n"),
        ("delete a\r\n", "NOT_FOUND\r\n"),
        (
            "set q 0 0 1 noreply\r\nq\r\nget q\r\n",
            "VALUE q 0 1\r\nq\r\nEND\r\n",
        ),
        (
            "set bad 0 0 3\r\nabcde\r\n",
            "CLIENT_ERROR bad data chunk\r\nERROR\r\n",
        ),
        ("verbosity 1\r\n", "OK\r\n"),
        ("flush_all\r\n", "OK\r\n"),
        ("get q n\r\n", "END\r\n"),
        ("nonsense\r\n", "ERROR\r\n"),
        ("mn\r\n", "MN\r\n"),
    ] {
        exchange(&mut client, request.as_bytes(), answer.as_bytes());
    }
    exchange(&mut client, b"ms k 2 T60 F5 O9\r\nhi\r\n", b"HD O9\r\n");
    exchange(
        &mut client,
        b"mg k v f s t k Oq\r\n",
        b"VA 2 f5 s2 t60 kk Oq\r\nhi\r\n",
    );
    exchange(&mut client, b"mg k h\r\n", b"HD h1\r\n");
    exchange(&mut client, b"mg nil v\r\n", b"EN\r\n");
    exchange(&mut client, b"mg nil v q\r\nmn\r\n", b"MN\r\n");
    exchange(&mut client, b"ma num N0 J13 v\r\n", b"VA 2\r\n13\r\n");
    exchange(&mut client, b"ma num v D2\r\n", b"VA 2\r\n15\r\n");
    exchange(&mut client, b"md k q\r\nmn\r\n", b"MN\r\n");
    exchange(&mut client, b"md k\r\n", b"NF\r\n");
    exchange(&mut client, b"ms Zm9v 1 b\r\nx\r\n", b"HD b\r\n");
    exchange(
        &mut client,
        b"get foo\r\n",
        b"VALUE foo 0 1\r\nx\r\nEND\r\n",
    );
    client.write_all(b"quit\r\n").unwrap();
    assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
    server.stop();
}

/// The answer to `stats` with an argument: names and values.
fn stats(client: &mut TcpStream, argument: &str) -> HashMap<String, String> {
    client
        .write_all(format!("stats{argument}\r\n").as_bytes())
        .unwrap();
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"END\r\n") {
        client.read_exact(&mut byte).unwrap();
        text.push(byte[0]);
    }
    let text = String::from_utf8(text).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("STAT "));
    lines
        .map(|line| {
            let (name, value) = line.split_once(' ').unwrap();
            (name.to_owned(), value.to_owned())
        })
        .collect()
}

#[test]
fn stats_count_what_was_done() {
    let Some(server) = start(1, 64 << 20) else {
        return;
    };
    let mut client = server.connect();
    for (request, answer) in [
        ("set a 0 0 1\r\n1\r\n", "STORED\r\n"),
        ("get a b\r\n", "VALUE a 0 1\r\n1\r\nEND\r\n"),
        ("incr a 1\r\n", "2\r\n"),
        ("decr b 1\r\n", "NOT_FOUND\r\n"),
        ("touch a 100\r\n", "TOUCHED\r\n"),
        ("cas a 0 0 1 99\r\n3\r\n", "EXISTS\r\n"),
        ("delete b\r\n", "NOT_FOUND\r\n"),
    ] {
        exchange(&mut client, request.as_bytes(), answer.as_bytes());
    }
    let general = stats(&mut client, "");
    for (name, value) in [
        ("pid", std::process::id().to_string().as_str()),
        ("curr_connections", "1"),
        ("total_connections", "1"),
        ("cmd_get", "2"),
        ("cmd_set", "2"),
        ("cmd_touch", "1"),
        ("get_hits", "1"),
        ("get_misses", "1"),
        ("incr_hits", "1"),
        ("decr_misses", "1"),
        ("touch_hits", "1"),
        ("cas_badval", "1"),
        ("delete_misses", "1"),
        ("curr_items", "1"),
        ("limit_maxbytes", "67108864"),
        ("threads", "1"),
        // One request at a time.
        ("batch_events_p50", "1"),
        ("batch_bound", "64"),
    ] {
        let found = general.get(name).map(String::as_str);
        assert_eq!(found, Some(value), "{name}");
    }
    for name in ["service_ns_p50", "service_ns_p99", "sojourn_ns_p99"] {
        assert!(general[name].parse::<u64>().unwrap() > 0, "{name}");
    }
    assert_eq!(stats(&mut client, " settings")["maxbytes"], "67108864");
    // The smallest size has the only item.
    assert_eq!(stats(&mut client, " items")["items:1:number"], "1");
    assert_eq!(stats(&mut client, " slabs")["1:used_chunks"], "1");
    exchange(&mut client, b"stats reset\r\n", b"RESET\r\n");
    exchange(&mut client, b"stats nonsense\r\n", b"ERROR\r\n");
    server.stop();
}

/// One line of an answer, without its end.
fn line(client: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n") {
        client.read_exact(&mut byte).unwrap();
        text.push(byte[0]);
    }
    String::from_utf8(text).unwrap().trim_end().to_owned()
}

/// Asks for a number of the item `a` by the meta protocol.
fn number_of_a(client: &mut TcpStream, flag: char) -> u64 {
    client
        .write_all(format!("mg a {flag}\r\n").as_bytes())
        .unwrap();
    let answer = line(client);
    let number = answer.strip_prefix(&format!("HD {flag}")).unwrap();
    number.parse().unwrap()
}

#[test]
fn touch_moves_the_expiry_and_a_cas_succeeds_once() {
    let Some(server) = start(1, 64 << 20) else {
        return;
    };
    let mut client = server.connect();
    exchange(&mut client, b"set a 0 100 1\r\n1\r\n", b"STORED\r\n");
    assert!((90..=100).contains(&number_of_a(&mut client, 't')));
    exchange(&mut client, b"touch a 500\r\n", b"TOUCHED\r\n");
    assert!((490..=500).contains(&number_of_a(&mut client, 't')));
    let cas = number_of_a(&mut client, 'c');
    let replace = format!("cas a 0 0 1 {cas}\r\n2\r\n");
    exchange(&mut client, replace.as_bytes(), b"STORED\r\n");
    exchange(&mut client, replace.as_bytes(), b"EXISTS\r\n");
    exchange(&mut client, b"get a\r\n", b"VALUE a 0 1\r\n2\r\nEND\r\n");
    server.stop();
}

#[test]
fn large_values_many_keys_and_pipelining_in_pieces_of_any_size() {
    let Some(server) = start(1, 128 << 20) else {
        return;
    };
    let mut client = server.connect();
    let large: Vec<u8> = (0..1 << 20)
        .map(|at: usize| u8::try_from(at % 251).unwrap())
        .collect();
    let set = [
        format!("set large 0 0 {}\r\n", large.len()).as_bytes(),
        &large,
        b"\r\n",
    ]
    .concat();
    exchange(&mut client, &set, b"STORED\r\n");
    let answer = [
        format!("VALUE large 0 {}\r\n", large.len()).as_bytes(),
        &large,
        b"\r\nEND\r\n",
    ]
    .concat();
    for piece in [1_000_003, 4096] {
        for part in set.chunks(piece) {
            client.write_all(part).unwrap();
        }
        exchange(&mut client, b"", b"STORED\r\n");
        exchange(&mut client, b"get large\r\n", &answer);
    }
    // 20 MB of answers to one request of a client that reads late.
    let many = ["get", &" large".repeat(20), "\r\n"].concat();
    client.write_all(many.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let value = &answer[..answer.len() - 5];
    for _ in 0..20 {
        exchange(&mut client, b"", value);
    }
    exchange(&mut client, b"", b"END\r\n");
    let mut pipeline = Vec::new();
    let mut expected = Vec::new();
    let mut names = String::new();
    for number in 0..100 {
        let name = format!("key-{number}-{}", "k".repeat(200));
        pipeline.extend(format!("set {name} 1 0 4\r\n{number:04}\r\n").bytes());
        expected.extend(b"STORED\r\n");
        names = format!("{names} {name}");
    }
    pipeline.extend(format!("gets{names}\r\n").bytes());
    for part in pipeline.chunks(777) {
        client.write_all(part).unwrap();
    }
    exchange(&mut client, b"", &expected);
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    while !text.ends_with(b"END\r\n") {
        let len = client.read(&mut buffer).unwrap();
        text.extend_from_slice(&buffer[..len]);
    }
    assert_eq!(
        text.windows(6).filter(|window| window == b"VALUE ").count(),
        100
    );
    let over = [b"set large 0 0 1048577\r\n".as_slice(), &large, b"x\r\n"].concat();
    exchange(
        &mut client,
        &over,
        b"SERVER_ERROR object too large for cache\r\n",
    );
    exchange(&mut client, b"get large\r\n", b"END\r\n");
    server.stop();
}

#[test]
fn bad_clients_harm_nobody() {
    let Some(server) = start(1, 64 << 20) else {
        return;
    };
    let mut good = server.connect();
    let large = vec![b'v'; 1 << 20];
    let set = [b"set large 0 0 1048576\r\n".as_slice(), &large, b"\r\n"].concat();
    exchange(&mut good, &set, b"STORED\r\n");
    // 100 clients ask for 4 MB each and read nothing; 100 begin a large value and stop.
    let lazy: Vec<_> = (0..100)
        .map(|_| {
            let mut client = server.connect();
            client
                .write_all(b"get large large large large\r\n")
                .unwrap();
            client
        })
        .collect();
    let halting: Vec<_> = (0..100)
        .map(|number| {
            let mut client = server.connect();
            write!(client, "set slow{number} 0 0 1000000\r\nbegin").unwrap();
            client
        })
        .collect();
    let mut garbage = server.connect();
    let noise: Vec<u8> = (0..65_536_u32)
        .map(|at| u8::try_from(at.wrapping_mul(2_654_435_761) >> 24).unwrap())
        .collect();
    let _ = garbage.write_all(&noise);
    let mut binary = server.connect();
    binary
        .write_all(&[
            0x80, 0x0b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ])
        .unwrap();
    let mut endless = server.connect();
    let _ = endless.write_all(&vec![b'a'; 60_000]);
    for number in 0..200 {
        let set = format!("set good{number} 0 0 5\r\nvalue\r\n");
        exchange(&mut good, set.as_bytes(), b"STORED\r\n");
        let get = format!("get good{number}\r\n");
        exchange(
            &mut good,
            get.as_bytes(),
            format!("VALUE good{number} 0 5\r\nvalue\r\nEND\r\n").as_bytes(),
        );
    }
    drop((lazy, halting));
    let reserved = server.shared.totals().store_no_memory;
    assert!(
        reserved > 0,
        "100 unfinished values of 1 MB fit into 64 MiB"
    );
    server.stop();
}

#[test]
fn two_shards_serve_the_same_items_while_connections_move() {
    let Some(server) = start(2, 64 << 20) else {
        return;
    };
    let mut clients: Vec<_> = (0..16).map(|_| server.connect()).collect();
    for round in 0..40 {
        server.plane.resize(1 + u8::try_from(round % 2).unwrap());
        let writer = round % clients.len();
        let set = format!("set shared 0 0 6\r\n{round:06}\r\n");
        exchange(&mut clients[writer], set.as_bytes(), b"STORED\r\n");
        for client in &mut clients {
            let answer = format!("VALUE shared 0 6\r\n{round:06}\r\nEND\r\n");
            exchange(client, b"get shared\r\n", answer.as_bytes());
        }
    }
    server.stop();
}
