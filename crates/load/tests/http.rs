//! The generator against servers of a few lines, each with a habit of its own.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::io::{BufReader, Read as _, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use load::{Arrivals, Endpoint, HttpRequest, LoadPlan, LoadReport, Pace, run};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A request as a server read it: request line, headers, body.
#[derive(Clone, Debug, Default)]
struct Read {
    line: String,
    headers: Vec<String>,
    body: String,
}

/// The next request, or none at the end.
fn read_request(reader: &mut impl std::io::BufRead) -> Option<Read> {
    let mut request = Read::default();
    let mut line = String::new();
    while reader.read_line(&mut line).ok()? > 0 {
        let text = line.trim_end().to_owned();
        line.clear();
        if request.line.is_empty() {
            request.line = text;
        } else if !text.is_empty() {
            request.headers.push(text.to_ascii_lowercase());
        } else {
            let length = request.header("content-length").unwrap_or("0");
            let mut body = vec![0; length.parse().ok()?];
            reader.read_exact(&mut body).ok()?;
            request.body = String::from_utf8(body).ok()?;
            return Some(request);
        }
    }
    None
}

impl Read {
    fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// What a server does with a request: the bytes to send, and whether it closes then.
type Answer = dyn Fn(&Read) -> (Vec<u8>, bool) + Send + Sync;

#[derive(Clone)]
struct Server {
    answer: Arc<Answer>,
    seen: Arc<Mutex<Vec<Read>>>,
    connections: Arc<AtomicUsize>,
    url: String,
}

impl Server {
    fn start(answer: impl Fn(&Read) -> (Vec<u8>, bool) + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0", answer).unwrap()
    }

    /// It ends with the test's process.
    fn at(
        address: &str,
        answer: impl Fn(&Read) -> (Vec<u8>, bool) + Send + Sync + 'static,
    ) -> Option<Self> {
        let listener = TcpListener::bind(address).ok()?;
        let server = Self {
            answer: Arc::new(answer),
            seen: Arc::default(),
            connections: Arc::default(),
            url: format!("http://{}/", listener.local_addr().unwrap()),
        };
        let serving = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                std::thread::spawn(move || {
                    let reader = stream.try_clone().unwrap();
                    serving.serve(&mut BufReader::new(reader), stream);
                });
            }
        });
        Some(server)
    }

    fn serve(&self, reader: &mut impl std::io::BufRead, mut stream: impl Write) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        while let Some(request) = read_request(reader) {
            self.seen.lock().unwrap().push(request.clone());
            let (bytes, closes) = (self.answer)(&request);
            if stream.write_all(&bytes).is_err() || closes {
                return;
            }
        }
    }

    fn plan(&self, per_s: f64, seconds: f64) -> LoadPlan {
        let pace = Pace::Open(Arrivals::Constant { per_s });
        let endpoint = Endpoint::parse(&self.url).unwrap();
        LoadPlan {
            connections: 4,
            timeout: Duration::from_secs(30),
            repeat_max: Some(Duration::ZERO),
            ..LoadPlan::get(endpoint, pace, Duration::from_secs_f64(seconds))
        }
    }

    fn lines(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        seen.iter().map(|request| request.line.clone()).collect()
    }
}

fn loaded(plan: &LoadPlan) -> LoadReport {
    run(plan, &|| false).unwrap()
}

#[track_caller]
fn assert_all_good(report: &LoadReport, due: u64) {
    assert_eq!((report.due, report.errors), (due, 0), "{report:?}");
}

#[test]
fn every_kind_of_answer_is_read_to_its_end() {
    let answers: [&[u8]; 7] = [
        OK,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 100\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
    ];
    for answer in answers {
        let is_to_the_end = answer.ends_with(b"end");
        let server = Server::start(move |_| (answer.to_vec(), is_to_the_end));
        let report = loaded(&server.plan(100.0, 0.1));
        assert_all_good(&report, 10);
        // One request each, and none to where an answer redirects.
        assert_eq!(server.lines(), vec!["GET / HTTP/1.1"; 10]);
    }
    let server = Server::start(|_| (OK[..OK.len() - 2].to_vec(), false));
    let mut plan = server.plan(100.0, 0.1);
    plan.requests[0].method = "HEAD".to_owned();
    plan.connections = 1;
    assert_all_good(&loaded(&plan), 10);
    // One after the other on one connection.
    assert_eq!(server.connections.load(Ordering::Relaxed), 1);
}

#[test]
fn requests_are_sent_as_they_were_given() {
    let server = Server::start(|_| (OK.to_vec(), false));
    let request = |method: &str, path: &str, body: &str| HttpRequest {
        method: method.to_owned(),
        path: path.to_owned(),
        body: body.as_bytes().to_vec(),
    };
    let plan = LoadPlan {
        requests: vec![
            request("PURGE", "/a?b=c", ""),
            request("PROPFIND", "/dav", "<x/>"),
            request("POST", "/empty", ""),
        ],
        headers: vec!["X-Key: 1".to_owned(), "Host: other".to_owned()],
        connections: 1,
        ..server.plan(60.0, 0.1)
    };
    assert_all_good(&loaded(&plan), 6);
    let seen = server.seen.lock().unwrap();
    let lines: Vec<_> = seen.iter().map(|request| request.line.as_str()).collect();
    let list = [
        "PURGE /a?b=c HTTP/1.1",
        "PROPFIND /dav HTTP/1.1",
        "POST /empty HTTP/1.1",
    ];
    assert_eq!(lines, [list, list].concat());
    assert_eq!(seen[1].body, "<x/>");
    assert_eq!(seen[0].header("content-length"), None);
    assert_eq!(seen[2].header("content-length"), Some("0"));
    for request in seen.iter() {
        assert_eq!(request.header("x-key"), Some("1"));
        assert_eq!(request.header("host"), Some("other"));
    }
}

#[test]
fn a_connection_that_was_closed_as_idle_is_no_error() {
    // It closes after each answer, and does not say so.
    let server = Server::start(|_| (OK.to_vec(), true));
    let report = loaded(&server.plan(200.0, 0.25));
    assert_all_good(&report, 50);
    assert_eq!(server.lines().len(), 50);
    // Closed just when the request comes: it was not looked at.
    let turn = AtomicUsize::new(0);
    let server = Server::start(move |_| match turn.fetch_add(1, Ordering::Relaxed) % 3 {
        1 => (Vec::new(), true),
        _ => (OK.to_vec(), false),
    });
    let mut plan = server.plan(100.0, 0.1);
    plan.connections = 1;
    let report = loaded(&plan);
    assert_all_good(&report, 10);
    assert!(report.resent > 2, "{report:?}");
    // What may have been done must not be done twice.
    plan.requests[0].method = "POST".to_owned();
    let report = loaded(&plan);
    assert!(report.errors > 0 && report.resent == 0, "{report:?}");
    let kind = report.error_kinds.keys().next().unwrap();
    assert!(
        ["unexpected end of file", "connection reset"].contains(&kind.as_str()),
        "{report:?}"
    );
}

#[test]
fn connections_end_after_as_many_requests_as_they_may_have() {
    let server =
        Server::start(|request| (OK.to_vec(), request.header("connection") == Some("close")));
    let plan = LoadPlan {
        requests_per_connection: Some(3),
        connections: 1,
        ..server.plan(100.0, 0.12)
    };
    let report = loaded(&plan);
    assert_all_good(&report, 12);
    assert_eq!(report.connections_opened, 4);
    assert_eq!(server.connections.load(Ordering::Relaxed), 4);
}

#[test]
fn an_open_loop_opens_connections_where_all_are_busy() {
    // None is answered before all have come.
    let all = Arc::new(Barrier::new(4));
    let server = Server::start(move |_| {
        all.wait();
        (OK.to_vec(), false)
    });
    // All at once.
    let plan = LoadPlan {
        pace: Pace::Open(Arrivals::Recorded { at_s: vec![0.0; 4] }),
        ..server.plan(1.0, 1.0)
    };
    let report = loaded(&plan);
    assert_all_good(&report, 4);
    assert_eq!(report.connections_opened, 4);
}

#[test]
fn a_closed_loop_keeps_its_connections_busy() {
    let server = Server::start(|_| {
        std::thread::sleep(Duration::from_millis(10));
        (OK.to_vec(), false)
    });
    let plan = LoadPlan {
        pace: Pace::Closed,
        threads: 2,
        ..server.plan(1.0, 0.5)
    };
    let report = loaded(&plan);
    assert_eq!(
        (report.errors, report.connections_opened),
        (0, 4),
        "{report:?}"
    );
    // Four at a time, 10 ms each: 400 a second, less on a busy machine.
    assert!((5.0..420.0).contains(&report.requests_per_s), "{report:?}");
}

#[test]
fn sockets_of_the_file_system_and_ipv6() {
    if let Some(server) = Server::at("[::1]:0", |_| (OK.to_vec(), false)) {
        assert_all_good(&loaded(&server.plan(100.0, 0.1)), 10);
        assert!(
            server.seen.lock().unwrap()[0]
                .header("host")
                .unwrap()
                .starts_with("[::1]:")
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let server = Server::start(|_| (OK.to_vec(), false));
    let serving = server.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let reader = stream.try_clone().unwrap();
            serving.serve(&mut BufReader::new(reader), stream);
        }
    });
    let endpoint = Endpoint::parse("http://a.name/x")
        .unwrap()
        .by_unix_socket(&path);
    let plan = LoadPlan {
        requests: vec![HttpRequest::get(endpoint.path())],
        endpoint,
        connections: 1,
        ..server.plan(100.0, 0.1)
    };
    assert_all_good(&loaded(&plan), 10);
    assert_eq!(server.lines()[0], "GET /x HTTP/1.1");
    let gone = LoadPlan {
        endpoint: Endpoint::parse("http://a.name/x")
            .unwrap()
            .by_unix_socket(&dir.path().join("nobody")),
        ..plan
    };
    let report = loaded(&gone);
    assert_eq!(report.error_kinds["entity not found"], 10, "{report:?}");
    assert!(report.reached_nobody());
}

/// What is said of a service that answers so, and then says nothing more, or closes.
fn said_of(answer: &'static str, closes: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let (mut stream, _): (TcpStream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
        if !closes {
            // Until the generator has given up.
            let _ = stream.read(&mut [0; 1]);
        }
    });
    let pace = Pace::Open(Arrivals::Recorded { at_s: vec![0.0] });
    let plan = LoadPlan {
        connections: 1,
        timeout: Duration::from_secs(2),
        ..LoadPlan::get(Endpoint::parse(&url).unwrap(), pace, Duration::from_secs(1))
    };
    let report = loaded(&plan);
    serving.join().unwrap();
    assert_eq!((report.due, report.errors), (1, 1));
    report.error_kinds.into_keys().next().unwrap()
}

#[test]
fn an_answer_that_stalls_midway_did_not_come_in_time() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nok";
    assert_eq!(said_of(head, false), "no answer in time");
    assert_eq!(said_of("", false), "no answer in time");
    assert_eq!(said_of(head, true), "unexpected end of file");
    let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n";
    assert_eq!(said_of(chunks, true), "a chunk of the answer has no size");
    let kind = said_of("SSH-2.0-OpenSSH_9.2\r\n", true);
    assert!(kind.starts_with("the answer is no HTTP/1.1"), "{kind}");
}

/// Requests that a server saw, by path and length.
type Seen = Arc<Mutex<Vec<(String, usize)>>>;

/// A server of HTTP/2 that ends each connection after `requests_max` requests, as nginx does.
fn http2_server(requests_max: usize) -> (String, Seen) {
    let seen: Seen = Arc::default();
    let kept = Arc::clone(&seen);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let kept = Arc::clone(&kept);
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(stream).await.unwrap();
                    let mut requests = 0;
                    while let Some(Ok((request, mut respond))) = connection.accept().await {
                        requests += 1;
                        if requests == requests_max {
                            connection.graceful_shutdown();
                        }
                        let kept = Arc::clone(&kept);
                        tokio::spawn(async move {
                            let line = format!("{} {}", request.method(), request.uri().path());
                            let mut body = request.into_body();
                            let mut length = 0;
                            while let Some(Ok(data)) = body.data().await {
                                length += data.len();
                                let _ = body.flow_control().release_capacity(data.len());
                            }
                            kept.lock().unwrap().push((line, length));
                            let answer = http::Response::new(());
                            let mut stream = respond.send_response(answer, false).unwrap();
                            stream.send_data(vec![b'a'; 100_000].into(), true).unwrap();
                        });
                    }
                });
            }
        });
    });
    (format!("http://{}/", told.recv().unwrap()), seen)
}

#[test]
fn http2_goes_on_where_the_server_ends_a_connection() {
    let (url, seen) = http2_server(7);
    let pace = Pace::Open(Arrivals::Constant { per_s: 200.0 });
    let mut plan = LoadPlan {
        http2: true,
        repeat_max: Some(Duration::ZERO),
        connections: 1,
        streams: 10,
        ..LoadPlan::get(
            Endpoint::parse(&url).unwrap(),
            pace,
            Duration::from_millis(250),
        )
    };
    plan.requests.push(HttpRequest {
        method: "POST".to_owned(),
        path: "/b".to_owned(),
        body: vec![b'x'; 300_000],
    });
    let report = loaded(&plan);
    assert_all_good(&report, 50);
    assert!(report.connections_opened > 5, "{report:?}");
    assert!(report.bytes_per_s * report.duration_s > 5e6, "{report:?}");
    {
        let seen = seen.lock().unwrap();
        let posts = seen.iter().filter(|(line, _)| line == "POST /b");
        assert!(posts.clone().all(|(_, length)| *length == 300_000));
        assert_eq!((seen.len(), posts.count()), (50, 25));
    }
    // A closed loop fills the streams of each connection; it ends them by itself, too.
    let closed = LoadPlan {
        pace: Pace::Closed,
        connections: 2,
        requests_per_connection: Some(5),
        ..plan
    };
    let report = loaded(&closed);
    assert!(report.errors == 0 && report.requests > 20, "{report:?}");
    assert!(
        report.connections_opened as f64 >= report.requests as f64 / 5.0,
        "{report:?}"
    );
}

#[test]
fn http2_of_a_server_without_it_is_said() {
    let server = Server::start(|_| (OK.to_vec(), false));
    let plan = LoadPlan {
        http2: true,
        ..server.plan(20.0, 0.1)
    };
    let report = loaded(&plan);
    assert_eq!(report.errors, 2, "{report:?}");
}
