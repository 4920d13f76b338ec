//! Services under their users' load: no load generator, latency read off the wire, scraped or
//! pushed, by `tune` and `throttle`.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use host::{CgroupReader, Roots};
use serde_json::{Value, json};

use crate::load::Server;
use crate::throttle::Group;
use crate::toy::{Ended, Toy, skip};

/// A user sends a request, waits for the answer, and pauses.
const PAUSE: Duration = Duration::from_millis(2);

/// Users who load services for as long as the value lives.
struct Users {
    are_gone: Arc<AtomicBool>,
}

impl Users {
    /// Two users for each address, who come back when a service is not there. `timers` is where the
    /// service of the first address sends how long each request took: these users do it for the
    /// service.
    fn of(addresses: &[SocketAddr], timers: Option<PathBuf>) -> Self {
        let are_gone = Arc::new(AtomicBool::new(false));
        for address in addresses.iter().flat_map(|address| [*address; 2]) {
            let (are_gone, timers) = (Arc::clone(&are_gone), timers.clone());
            std::thread::spawn(move || {
                let socket = UnixDatagram::unbound().unwrap();
                while !are_gone.load(Ordering::Relaxed) {
                    if let Ok(mut stream) = TcpStream::connect(address) {
                        while !are_gone.load(Ordering::Relaxed) {
                            let Some(took) = request(&mut stream) else {
                                break;
                            };
                            if let Some(timers) = &timers {
                                let ms = took.as_secs_f64() * 1000.0;
                                let _ = socket.send_to(format!("web:{ms}|ms").as_bytes(), timers);
                            }
                            std::thread::sleep(PAUSE);
                        }
                    }
                    std::thread::sleep(PAUSE);
                }
            });
        }
        Self { are_gone }
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        self.are_gone.store(true, Ordering::Relaxed);
    }
}

/// How long the answer took; `None` where the service is gone.
fn request(stream: &mut TcpStream) -> Option<Duration> {
    let began = Instant::now();
    let request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(request).ok()?;
    // The head and the body, which is "ok", may come apart.
    let (mut answer, mut buffer) = (Vec::new(), [0; 1024]);
    while !answer.ends_with(b"\r\n\r\nok") {
        let length = stream.read(&mut buffer).ok().filter(|length| *length > 0)?;
        answer.extend_from_slice(&buffer[..length]);
    }
    Some(began.elapsed())
}

/// A running service, whose only knob is how long a request takes: 10 ms, where 1 ms is possible.
fn live(toy: &mut Toy) -> Server {
    let knob = toy.path("service_us");
    std::fs::write(&knob, "10000").unwrap();
    let server = Server::start(&knob);
    toy.spec["parameters"] =
        json!([{ "name": "x", "type": "int", "low": 1000, "high": 10_000, "file": knob }]);
    toy.spec["target"] = json!({});
    toy.spec.as_object_mut().unwrap().remove("workload");
    toy.spec["objective"] = json!({ "metric": "p50" });
    toy.spec["evaluation"] =
        json!({ "warm_up_s": 0.1, "block_s": 0.6, "blocks": 2, "early_abort": false });
    toy.spec["verification"] = json!({ "runs": 2, "max_runs": 2 });
    server
}

/// Runs `tune` of one configuration. `None` where no packets can be read.
fn tune(toy: &Toy, only: &str) -> Option<(Ended, Value)> {
    let report = toy.path("report.json");
    let ended = Ended::of(toy.tune(&["--only", only, "--json", report.to_str().unwrap()]));
    if ended.code == 3 {
        skip(&ended.stderr);
        return None;
    }
    let text = std::fs::read_to_string(&report).unwrap_or_default();
    let report = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{}", ended.stderr));
    Some((ended, report))
}

/// The blocks of the verification.
fn blocks(report: &Value) -> Vec<Value> {
    let runs = report["verification"][0]["runs_blocks"].as_array().unwrap();
    let blocks = runs.iter().flat_map(|run| run.as_array().unwrap());
    blocks.cloned().collect()
}

/// Each side's latency is its own: 10 ms at least on the control.
fn assert_apart(blocks: &[Value], metric: &str) {
    assert!(!blocks.is_empty());
    for block in blocks {
        let us = |side: &str| block[side][metric].as_f64().unwrap();
        let requests = |side: &str| block[side][format!("{metric}_requests")].as_f64().unwrap();
        assert!(us("control") > 9_900.0, "{block}");
        assert!(us("experiment") > 900.0, "{block}");
        assert!(us("experiment") < us("control"), "{block}");
        for side in ["control", "experiment"] {
            assert!(requests(side) >= 10.0, "{block}");
            assert!(
                block[side]["requests"].as_f64().unwrap() >= requests(side),
                "{block}"
            );
        }
    }
}

#[test]
fn a_live_service_is_tuned_by_what_the_wire_shows() {
    let mut toy = Toy::new();
    let server = live(&mut toy);
    let port = server.address.port();
    toy.spec["metrics"] = json!({
        "p50": { "wire": { "port": port, "percentile": 50, "minimum_requests": 10 } },
        "p90": { "wire": { "port": port, "percentile": 90, "minimum_requests": 10 } },
    });
    let _users = Users::of(&[server.address], None);
    let Some((ended, report)) = tune(&toy, "x=1000") else {
        return;
    };
    assert!(ended.code <= 1, "{}", ended.stderr);
    let blocks = blocks(&report);
    assert_apart(&blocks, "p50");
    for block in &blocks {
        let us = |metric: &str| block["control"][metric].as_f64().unwrap();
        assert!(us("p90") >= us("p50"), "{block}");
    }
    let said = "p50: each side of a block has";
    assert!(ended.stdout.contains(said), "{}", ended.stdout);
    // The knob of the live service is back.
    let knob = std::fs::read_to_string(toy.path("service_us")).unwrap();
    assert_eq!(knob.trim(), "10000");
}

#[test]
fn timers_of_a_live_service_are_a_metric() {
    let mut toy = Toy::new();
    let server = live(&mut toy);
    let socket = toy.path("timers");
    toy.spec["metrics"] = json!({
        "p50": { "push": { "unix": socket, "timer": "web", "percentile": 50, "minimum_requests": 10 } },
    });
    let _users = Users::of(&[server.address], Some(socket.clone()));
    let Some((ended, report)) = tune(&toy, "x=1000") else {
        return;
    };
    assert!(ended.code <= 1, "{}", ended.stderr);
    assert_apart(&blocks(&report), "p50");
    assert!(!socket.exists());
}

#[test]
fn no_request_and_too_few_are_no_figure() {
    let mut toy = Toy::new();
    let server = live(&mut toy);
    toy.spec["evaluation"]["block_s"] = json!(0.3);
    let port = server.address.port();
    let wire = |minimum: u64| json!({ "p50": { "wire": { "port": port, "percentile": 50, "minimum_requests": minimum } } });
    toy.spec["metrics"] = wire(10);
    let ended = Ended::of(toy.tune(&[]));
    if ended.code == 3 {
        skip(&ended.stderr);
        return;
    }
    let control = "the control could not be measured (3 attempts)";
    ended
        .with_code(2)
        .saying(&[control, "metrics.p50: no data: no request within the last"]);
    let _users = Users::of(&[server.address], None);
    toy.spec["metrics"] = wire(100_000);
    Ended::of(toy.tune(&[])).with_code(2).saying(&[
        control,
        "metrics.p50: no data: only",
        "100000 are needed",
    ]);
    // Nobody's port.
    drop(server);
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    toy.spec["metrics"]["p50"]["wire"]["port"] = json!(port);
    toy.spec["evaluation"]["block_s"] = json!(1.5);
    toy.spec["evaluation"]["blocks"] = json!(2);
    Ended::of(toy.tune(&[])).with_code(2).saying(&[&format!(
        "metrics.p50: no data: nobody listens on TCP port {port}"
    )]);
}

/// A server that answers after so many milliseconds, and shows a histogram of it at `/metrics`.
const SERVER: &str = r#"
import http.server, sys, time
took = []
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = b"ok"
        if self.path == "/metrics":
            lines = [f'web_ms_bucket{{le="{le}"}} {sum(ms <= float(le) for ms in took)}' for le in ("5", "50", "+Inf")]
            body = "\n".join(lines).encode() + b"\n"
        else:
            time.sleep(float(sys.argv[2]) / 1000)
            took.append(float(sys.argv[2]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

#[test]
fn both_sides_at_once_are_told_apart_by_their_ports() {
    let mut toy = Toy::new();
    let script = toy.path("server.py");
    std::fs::write(&script, SERVER).unwrap();
    // Held until both are known, so that they differ.
    let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = [0, 1].map(|side: usize| free[side].local_addr().unwrap());
    drop(free);
    live(&mut toy);
    toy.spec["parameters"] =
        json!([{ "name": "ms", "type": "int", "low": 1, "high": 20, "default": 20 }]);
    toy.spec["target"] = json!({
        "start": ["python3", script, "{port}", "{ms}"],
        "ready": { "port": "{port}" },
        "ports": addresses.map(|address| address.port()),
        "pairing": "parallel",
    });
    toy.spec["metrics"] = json!({
        "p50": { "wire": { "percentile": 50, "minimum_requests": 10 } },
        "page": { "scrape": {
            "url": "http://127.0.0.1:{port}/metrics",
            "histogram": "web_ms",
            "unit": "milliseconds",
            "percentile": 50,
            "minimum_requests": 10,
        } },
    });
    let _users = Users::of(&addresses, None);
    let Some((ended, report)) = tune(&toy, "ms=1") else {
        return;
    };
    assert!(ended.code <= 1, "{}", ended.stderr);
    let blocks = blocks(&report);
    assert_apart(&blocks, "p50");
    for block in &blocks {
        assert_eq!(block["order"], "parallel");
        // All requests of a side lie in one bucket: 5 to 50 ms, or below 5 ms.
        let us = |side: &str| block[side]["page"].as_f64().unwrap();
        assert!((5_000.0..=50_000.0).contains(&us("control")), "{block}");
        assert!(us("experiment") <= 5_000.0, "{block}");
    }
}

/// A group that spins in a fifth of a core, and beside it a service with users. `None` where this
/// process may not make one.
fn group_and_service(toy: &Toy) -> Option<(Group, Server, Users)> {
    let mut group = Group::new()?;
    group.spin();
    let service_us = toy.path("service_us");
    std::fs::write(&service_us, "2000").unwrap();
    let server = Server::start(&service_us);
    let users = Users::of(&[server.address], None);
    Some((group, server, users))
}

#[test]
fn a_watch_shows_latency_beside_the_cores_in_use() {
    let toy = Toy::new();
    let Some((group, server, _users)) = group_and_service(&toy) else {
        return;
    };
    let port = server.address.port().to_string();
    let (json, page) = (toy.path("watch.json"), toy.path("watch.html"));
    let arguments = [
        "throttle",
        "watch",
        "--cgroup",
        &group.name,
        "--port",
        &port,
        "--percentile",
        "50",
        "--duration-s",
        "3.3",
        "--html",
        page.to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
    ];
    let reader = CgroupReader::open(&Roots::default(), &group.name).unwrap();
    let used_s = || reader.cpu_use().unwrap().total_s.unwrap();
    let before_s = used_s();
    let ended = Ended::of(toy.slackline(&arguments));
    if ended.code == 3 {
        skip(&ended.stderr);
        return;
    }
    let used_s = used_s() - before_s;
    let text = ended.with_code(0).stdout;
    let said = format!("Latency, the wire, TCP port {port}: p50");
    for part in [&said, "95 % interval", "cores in use", "requests"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let latency = &report["latency"];
    assert!(
        latency["whole"]["value_us"].as_f64() > Some(1_900.0),
        "{latency}"
    );
    let moments = latency["moments"].as_array().unwrap();
    assert!((2..=4).contains(&moments.len()), "{latency}");
    // How much the group gets of its quota depends on what else runs: the kernel's counter knows.
    // The last moment may be a part of a second.
    let cores = moments.iter().filter_map(|moment| moment["cores"].as_f64());
    let mean = cores.sum::<f64>() / moments.len() as f64;
    let share = 3.3 * mean / used_s;
    assert!((0.3..1.6).contains(&share), "{used_s} s used: {latency}");
    for moment in moments {
        assert!(moment["cores"].as_f64() > Some(0.0), "{moment}");
        assert!(moment["latency_us"].as_f64() > Some(1_900.0), "{moment}");
        assert!(moment["requests"].as_u64() >= Some(20), "{moment}");
    }
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("p50 of each second") && html.matches("<polyline").count() == 2);
    // Nobody asks on this port: there is no number.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port().to_string();
    let arguments = [
        "throttle",
        "watch",
        "--cgroup",
        &group.name,
        "--port",
        &port,
    ];
    let mut command = toy.slackline(&arguments);
    command.args(["--duration-s", "1"]);
    let text = Ended::of(command).with_code(0).stdout;
    assert!(text.contains("p99: no data: no request"), "{text}");
    let without = [
        "throttle",
        "watch",
        "--cgroup",
        &group.name,
        "--percentile",
        "9",
    ];
    Ended::of(toy.slackline(&without))
        .with_code(2)
        .saying(&["--port"]);
}

#[test]
fn a_limit_is_verified_by_the_latency_of_the_requests() {
    let toy = Toy::new();
    let Some((group, server, users)) = group_and_service(&toy) else {
        return;
    };
    let port = server.address.port().to_string();
    let apply = |more: &[&str]| {
        let first = [
            "throttle",
            "apply",
            "--cgroup",
            &group.name,
            "--port",
            &port,
        ];
        let mut command = toy.slackline(&first);
        command.args(["--percentile", "50", "--quota", "0.4", "--block-s", "1"]);
        command.args(more);
        Ended::of(command)
    };
    let json = toy.path("apply.json");
    let ended = apply(&["--pairs", "2", "--json", json.to_str().unwrap()]);
    if ended.code == 3 {
        skip(&ended.stderr);
        return;
    }
    assert!(ended.code <= 1, "{}", ended.stderr);
    let metric = format!("p50 of the requests on TCP port {port}, ms");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(report["metric"], metric.as_str());
    for block in report["blocks"].as_array().unwrap() {
        assert!(block["value"].as_f64() > Some(1.9), "{block}");
        assert!(block["requests"].as_u64() >= Some(20), "{block}");
    }
    // Without users there is no number, and the limit is what it was.
    drop(users);
    std::thread::sleep(Duration::from_millis(100));
    let ended = apply(&["--pairs", "2"]).with_code(2);
    ended.saying(&["--port: no data: no request within the last"]);
    Ended::of(toy.slackline(&["restore"])).saying(&["no run has left anything to undo"]);
    for other in [["--pool", "sh"], ["--metric", "true"]] {
        apply(&other).with_code(2).saying(&["cannot be used with"]);
    }
}
