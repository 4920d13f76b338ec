//! `slackline load`, `throttle loadtest` and `workload.http` against a server of a few lines.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use serde_json::{Value, json};

use crate::eventually::eventually;
use crate::openssl::make_server;
use crate::toy::{Ended, Toy};

/// Answers one request after the other, each after as many microseconds as a file says; `/bad` with
/// status 500.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    paths: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(crate) fn start(service_us: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            paths: Arc::default(),
        };
        let paths = Arc::clone(&server.paths);
        let service_us = service_us.to_owned();
        // A queue, not a lock: a lock does not serve those who wait for it in the order of their
        // arrival.
        let (queue, turns) = mpsc::channel::<mpsc::Sender<()>>();
        std::thread::spawn(move || {
            for turn in turns {
                let us = std::fs::read_to_string(&service_us).unwrap();
                // A knob may be empty for a moment, while it is written.
                let us = us.trim().parse().unwrap_or(0);
                std::thread::sleep(Duration::from_micros(us));
                let _ = turn.send(());
            }
        });
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (paths, queue) = (Arc::clone(&paths), queue.clone());
                std::thread::spawn(move || {
                    let mut reader = BufReader::new(stream.try_clone().unwrap());
                    let mut stream = stream;
                    let (mut path, mut body) = (String::new(), 0);
                    let mut line = String::new();
                    while reader.read_line(&mut line).is_ok_and(|length| length > 0) {
                        let words: Vec<&str> = line.split_whitespace().collect();
                        match words.as_slice() {
                            [_, target, "HTTP/1.1"] => path = (*target).to_owned(),
                            [name, length] if name.eq_ignore_ascii_case("content-length:") => {
                                body = length.parse().unwrap();
                            }
                            _ => {}
                        }
                        let is_end = words.is_empty();
                        line.clear();
                        if !is_end {
                            continue;
                        }
                        reader.read_exact(&mut vec![0; body]).unwrap();
                        body = 0;
                        paths.lock().unwrap().push(path.clone());
                        let (done, served) = mpsc::channel();
                        queue.send(done).unwrap();
                        served.recv().unwrap();
                        let status = if path == "/bad" { "500 Bad" } else { "200 OK" };
                        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok");
                        if stream.write_all(answer.as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        server
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

fn service_file(toy: &Toy, us: u64) -> PathBuf {
    let file = toy.path("service_us");
    std::fs::write(&file, us.to_string()).unwrap();
    file
}

fn load(toy: &Toy, server: &Server, arguments: &[&str]) -> Value {
    let mut command = toy.slackline(&["load", "--url", &server.url(), "--repeat-s", "0"]);
    command.args(arguments);
    let ended = Ended::of(command);
    serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{}", ended.stderr))
}

#[test]
fn latency_counts_from_the_scheduled_arrival() {
    let toy = Toy::new();
    // Ten requests in a second, one after the other, each of which takes 300 ms: a generator that
    // waits for its answers would measure 300 ms, ten times.
    let server = Server::start(&service_file(&toy, 300_000));
    let rate = [
        "--rate",
        "10",
        "--duration-s",
        "1",
        "--constant",
        "--connections",
        "20",
    ];
    let report = load(&toy, &server, &rate);
    assert_eq!((&report["due"], &report["errors"]), (&json!(10), &json!(0)));
    let us = |name: &str| report[name].as_f64().unwrap();
    // The n-th is due at n · 100 ms and answered at (n + 1) · 300 ms.
    assert!(us("latency_max_us") > 2_000_000.0, "{report}");
    assert!(
        (1_100_000.0..2_000_000.0).contains(&us("latency_p50_us")),
        "{report}"
    );
    // With one connection the wait for it counts just the same.
    let one = load(&toy, &server, &[&rate[..6], &["1"]].concat());
    assert!(
        one["latency_max_us"].as_f64().unwrap() > 2_000_000.0,
        "{one}"
    );
    assert!(one["waited_share"].as_f64().unwrap() > 0.8, "{one}");
}

#[test]
fn a_list_is_replayed_in_order_and_bad_answers_are_errors() {
    let toy = Toy::new();
    let server = Server::start(&service_file(&toy, 0));
    let list = toy.path("requests");
    std::fs::write(&list, "GET /a\nPOST /b x y\nGET /bad\n").unwrap();
    let list = list.to_str().unwrap();
    let report = load(
        &toy,
        &server,
        &[
            "--requests",
            list,
            "--rate",
            "60",
            "--duration-s",
            "0.1",
            "--constant",
            "--connections",
            "1",
        ],
    );
    assert_eq!(report["due"], 6, "{report}");
    assert_eq!(report["error_kinds"], json!({ "status 500": 2 }));
    let asked = server.paths.lock().unwrap();
    assert_eq!(*asked, ["/a", "/b", "/bad", "/a", "/b", "/bad"]);
}

#[test]
fn a_percentile_of_too_few_requests_is_named() {
    let toy = Toy::new();
    let server = Server::start(&service_file(&toy, 0));
    let mut command = toy.slackline(&["load", "--url", &server.url(), "--accept-late"]);
    command.args([
        "--rate",
        "2000",
        "--duration-s",
        "0.1",
        "--constant",
        "--repeat-s",
        "0",
    ]);
    let ended = Ended::of(command).with_code(0).saying(&[
        "Too few requests: latency_p99_us needs 1000 and had 200; latency_p999_us needs 10000 and had 200. ",
    ]);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(report["latency_requests"], 200, "{report}");
}

#[test]
fn the_capacity_before_and_after_a_change() {
    let toy = Toy::new();
    let file = service_file(&toy, 8000);
    let server = Server::start(&file);
    let set = |us: u64| format!("echo {us} > {}", file.display());
    let report = toy.path("report.json");
    let mut command = toy.slackline(&["throttle", "loadtest", "--url", &server.url()]);
    command.args([
        "--slo-p99-ms",
        "200",
        "--step-s",
        "1",
        "--start",
        "40",
        "--tolerance",
        "0.5",
    ]);
    command.args(["--runs", "2", "--timeout-s", "1", "--connections", "32"]);
    command.args(["--before", &set(8000), "--after", &set(1500)]);
    command.args(["--json", report.to_str().unwrap()]);
    let ended = Ended::of(command);
    let report: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    // One at a time, 8 ms each: 125 a second, and 667 with 1.5 ms; a step of 1 s is over before a
    // fifth more has waited 200 ms.
    let estimate = |index: usize| {
        report["sides"][index]["capacity_per_s"]["estimate"]
            .as_f64()
            .unwrap()
    };
    assert!((50.0..170.0).contains(&estimate(0)), "{}", ended.stderr);
    assert!((200.0..900.0).contains(&estimate(1)), "{}", ended.stderr);
    let ratio = &report["ratio"];
    assert!(ratio["estimate"].as_f64().unwrap() > 2.0, "{ratio}");
    assert!(
        ended.stdout.contains("after against before"),
        "{}",
        ended.stdout
    );
    // Left as --before makes it.
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "8000\n");
}

/// As oha would report a service that takes 300 a second, without disturbance.
const GENERATOR: &str = r#"awk -v rate={rate} 'BEGIN { p = rate < 300 ? 0.005 : 0.5;
    printf "{\"summary\":{\"successRate\":1.0,\"total\":{duration_s},\"requestsPerSec\":%f,\"sizePerSec\":1.0},", rate;
    printf "\"latencyPercentiles\":{\"p50\":0.001,\"p99\":%f},", p;
    print "\"statusCodeDistribution\":{\"200\":1000},\"errorDistribution\":{}}" }'"#;

/// A loadtest by that generator, whose `before` counts how often it is run in a file.
fn loadtest_of_a_change(toy: &Toy, before: &str, after: &str, more: &[&str]) -> (Ended, usize) {
    let count = toy.path("count");
    let before = format!("echo >> {}; {before}", count.display());
    let mut command = toy.slackline(&["throttle", "loadtest", "--command", GENERATOR]);
    command.args(["--parse", "oha", "--slo-p99-ms", "50", "--runs", "2"]);
    command
        .args(["--before", &before, "--after", after])
        .args(more);
    let ended = Ended::of(command);
    let times = std::fs::read_to_string(count).unwrap().lines().count();
    (ended, times)
}

#[test]
fn a_service_that_cannot_be_put_back_takes_no_result_with_it() {
    let toy = Toy::new();
    let fails_at = |time: usize| {
        let count = toy.path("count");
        format!(
            "test $(wc -l < {}) -ne {time} || {{ echo broken; exit 1; }}",
            count.display()
        )
    };
    let report = toy.path("report.json");
    let json = ["--json", report.to_str().unwrap()];
    let said = "The service could not be put back: --before: ";
    // A search of each side, one more of each, and the end.
    let (ended, times) = loadtest_of_a_change(&toy, &fails_at(3), "true", &json);
    assert_eq!(times, 3);
    let ended = ended.with_code(4).saying(&[said, "broken"]);
    assert!(
        ended.stdout.contains("after against before"),
        "{}",
        ended.stdout
    );
    let report: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert!(report["ratio"].is_object(), "{report}");
    // What went wrong before that is said as well.
    std::fs::remove_file(toy.path("count")).unwrap();
    let (ended, _) = loadtest_of_a_change(&toy, &fails_at(2), "echo worse; exit 1", &[]);
    let earlier = "slackline: --after: \"echo worse; exit 1\" ended with exit status: 1: worse";
    ended.with_code(4).saying(&[said, earlier]);
    // Before anything was changed, nothing is to be put back.
    std::fs::remove_file(toy.path("count")).unwrap();
    let (ended, times) = loadtest_of_a_change(&toy, &fails_at(1), "true", &[]);
    let ended = ended.with_code(2).saying(&["--before: ", "broken"]);
    assert!(!ended.stderr.contains("put back"), "{}", ended.stderr);
    assert_eq!(times, 1);
}

#[test]
fn a_step_is_as_long_as_a_run_may_be() {
    let toy = Toy::new();
    let mut command = toy.slackline(&["throttle", "loadtest", "--url", "http://127.0.0.1:1/"]);
    command.args(["--slo-p99-ms", "5", "--step-s", "1e300"]);
    Ended::of(command)
        .with_code(2)
        .saying(&["'1e300' for '--step-s", "from 0.001 to 604800"]);
}

#[test]
fn a_group_that_is_not_there_is_known_before_any_load() {
    let toy = Toy::new();
    let (ended, times) = loadtest_of_a_change(&toy, "true", "true", &["--cgroup", "no/such-group"]);
    let ended = ended.with_code(2).saying(&["no control group"]);
    assert!(!ended.stderr.contains("search 1"), "{}", ended.stderr);
    assert_eq!(times, 1);
}

#[test]
fn another_generator_finds_the_same_capacity_in_every_search() {
    let toy = Toy::new();
    let generator = GENERATOR;
    let loadtest = |command: &str| {
        let mut loadtest = toy.slackline(&["throttle", "loadtest", "--command", command]);
        loadtest.args([
            "--parse",
            "oha",
            "--slo-p99-ms",
            "50",
            "--step-s",
            "1",
            "--json",
            "-",
        ]);
        Ended::of(loadtest)
    };
    let ended = loadtest(generator).with_code(0);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let side = &report["sides"][0];
    for capacity in side["capacities_per_s"].as_array().unwrap() {
        let capacity = capacity.as_f64().unwrap();
        assert!((capacity / 300.0 - 1.0).abs() < 0.05, "{capacity}");
    }
    let of = |bound: &str| side["capacity_per_s"][bound].as_f64().unwrap();
    assert!(of("low") < 300.0 && of("high") > 300.0, "{side}");
    // A generator that gives up where too much is due, as sysbench does.
    let gives_up = format!(
        "awk 'BEGIN {{ exit !({{rate}} < 350) }}' || {{ echo 'FATAL: the queue is full'; exit 1; }}; {generator}"
    );
    let ended = loadtest(&gives_up).with_code(0);
    ended.saying(&[
        "ended with exit status: 1: FATAL: the queue is full",
        "fails (the generator gave up)",
    ]);
    loadtest("exit 3 # {rate}")
        .with_code(2)
        .saying(&["--command: \"exit 3 # 100.000\" ended with exit status: 3: it said nothing"]);
    loadtest("echo nothing at {rate}")
        .with_code(2)
        .saying(&["--command: "]);
    // What has no rate holds at every one.
    loadtest(&generator.replace("{rate}", "1"))
        .with_code(2)
        .saying(&["write {rate} there"]);
}

#[test]
fn a_service_that_always_fails_has_no_capacity() {
    let toy = Toy::new();
    let server = Server::start(&service_file(&toy, 20_000));
    let bad = format!("{}/bad", server.url());
    let mut command = toy.slackline(&["throttle", "loadtest", "--url", &bad]);
    command.args(["--slo-p99-ms", "5", "--start", "4", "--step-s", "0.5"]);
    // Down to rates at which nothing is due, and so nothing failed.
    Ended::of(command)
        .with_code(2)
        .saying(&["no request succeeded: status 500", "no request was due"]);
}

#[test]
fn a_tune_can_use_the_generator() {
    let mut toy = Toy::attached();
    let server = Server::start(&toy.path("service"));
    // The knob's first value is 50: the service is slow whatever it says, so that a busy machine
    // does not matter.
    std::fs::write(toy.path("service"), "30000").unwrap();
    toy.spec["parameters"][0]["high"] = json!(90);
    toy.spec["workload"] = json!({ "http": { "url": server.url(), "rate": 20, "connections": 8 } });
    toy.spec["objective"] = json!({ "metric": "latency_p50_us" });
    toy.spec["evaluation"]["block_s"] = json!(0.3);
    toy.spec["budget"]["evaluations"] = json!(2);
    toy.spec["verification"]["runs"] = json!(2);
    let ended = Ended::of(toy.tune(&["--json", "-"]));
    let report: Value =
        serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{}", ended.stderr));
    let mut blocks = Vec::new();
    for evaluation in report["evaluations"].as_array().unwrap() {
        assert_eq!(evaluation["outcome"], "completed", "{evaluation}");
        for block in evaluation["blocks"].as_array().unwrap() {
            assert_eq!(block["control"]["errors"], 0.0);
            blocks.push((
                block["control"]["requests"].clone(),
                block["experiment"]["requests"].clone(),
            ));
        }
    }
    // The same arrivals for both sides, but for seconds that were disturbed and repeated.
    let same = blocks
        .iter()
        .filter(|(control, experiment)| control == experiment);
    assert!(2 * same.count() >= blocks.len(), "{blocks:?}");
    toy.spec["workload"]["http"]["schedule"] = json!("recorded");
    Ended::of(toy.tune(&[]))
        .with_code(2)
        .saying(&["workload.http.rate: give exactly one of rate, schedule and closed"]);
    toy.spec["workload"]["parse"] = json!("wrk");
    Ended::of(toy.tune(&[]))
        .with_code(2)
        .saying(&["workload.http: is itself the load generator"]);
}

#[test]
fn what_cannot_be_loaded_is_an_error() {
    let toy = Toy::new();
    let file = toy.path("list");
    std::fs::write(&file, "GET a\n").unwrap();
    let list = file.to_str().unwrap();
    let url = ["load", "--url", "http://127.0.0.1:1"];
    for (arguments, words) in [
        (vec!["--rate", "0"], "rate: must be above 0"),
        (
            vec!["--rate", "1", "--connections", "0"],
            "connections: must be 1 to 28000",
        ),
        (
            vec!["--rate", "1", "--requests", list],
            "list:1: \"GET a\" is not METHOD /PATH",
        ),
        (
            vec!["--schedule", "/nonexistent"],
            "/nonexistent: No such file",
        ),
        (vec![], "--rate"),
        (
            vec!["--rate", "1", "--timeout-s", "1e-320"],
            "it has to be from 0.001 to 604800",
        ),
        // An end that no clock reaches was a panic in every thread.
        (
            vec!["--rate", "1", "--timeout-s", "1.5e19"],
            "it has to be from 0.001 to 604800",
        ),
        (vec!["--rate", "1e-9"], "no request was due: raise --rate"),
    ] {
        let mut command = toy.slackline(&url);
        command.args(arguments);
        Ended::of(command).with_code(2).saying(&[words]);
    }
    // Nobody listens: every request is an error, and said to be one.
    let mut command = toy.slackline(&url);
    command.args(["--rate", "20", "--duration-s", "0.2", "--constant"]);
    command.args(["--repeat-s", "0"]);
    let refused = "no request succeeded: connection refused (";
    let ended = Ended::of(command).saying(&[refused]);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(report["error_kinds"], json!({ "connection refused": 4 }));
    let mut command = toy.slackline(&["throttle", "loadtest", "--url", "http://127.0.0.1:1"]);
    command.args(["--slo-p99-ms", "10", "--start", "20", "--step-s", "0.2"]);
    Ended::of(command)
        .with_code(2)
        .saying(&["at 20.0 requests/s no request succeeded: connection refused ("]);
    let command = toy.slackline(&["load", "--url", "127.0.0.1:1", "--rate", "1"]);
    Ended::of(command)
        .with_code(2)
        .saying(&["it has to begin with http://"]);
    let command = toy.slackline(&["load", "--url", "http://h/a b", "--rate", "1"]);
    Ended::of(command)
        .with_code(2)
        .saying(&["a space has to be written as %20"]);
    let mut command = toy.slackline(&["throttle", "loadtest", "--url", "http://127.0.0.1:1"]);
    command.args(["--slo-p99-ms", "10", "--runs", "1"]);
    Ended::of(command)
        .with_code(2)
        .saying(&["--runs must be at least 2"]);
    for share in ["nan", "-1", "1"] {
        let mut command = toy.slackline(&["throttle", "loadtest", "--url", "http://127.0.0.1:1"]);
        command.args(["--slo-p99-ms", "10", &format!("--errors-max={share}")]);
        Ended::of(command)
            .with_code(2)
            .saying(&["--errors-max must be at least 0"]);
    }
}

/// nginx with HTTP/1.1 and HTTP/2, each with and without TLS; `None` where something is missing
/// here.
struct Nginx {
    dir: tempfile::TempDir,
    process: std::process::Child,
    ports: [u16; 3],
}

impl Nginx {
    fn start() -> Option<Self> {
        let dir = tempfile::Builder::new()
            .prefix("slackline-nginx")
            .tempdir_in("/var/tmp");
        let dir = dir.unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let (certificate, key) = (dir.path().join("certificate"), dir.path().join("key"));
        if make_server("here", &certificate, &key).is_none() {
            crate::toy::skip(&"openssl is missing here");
            return None;
        }
        let ports = [(); 3].map(|()| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().port()
        });
        let [plain, tls, http2] = ports;
        let configuration = format!(
            "daemon off; pid pid; error_log stderr error; worker_processes 1; events {{ }}
            http {{
                access_log off; keepalive_requests 20;
                client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
                uwsgi_temp_path uwsgi; scgi_temp_path scgi;
                ssl_certificate certificate; ssl_certificate_key key;
                server {{
                    listen 127.0.0.1:{plain}; listen 127.0.0.1:{tls} ssl http2; listen 127.0.0.1:{http2} http2;
                    location / {{ return 200 \"$server_protocol\"; }}
                }}
            }}"
        );
        std::fs::write(dir.path().join("nginx.conf"), configuration).unwrap();
        let mut command = std::process::Command::new("nginx");
        command.args(["-p", &path(""), "-e", "stderr", "-c", "nginx.conf"]);
        let Ok(process) = command.stderr(std::process::Stdio::null()).spawn() else {
            crate::toy::skip(&"nginx is missing here");
            return None;
        };
        let listens = || std::net::TcpStream::connect(("127.0.0.1", http2)).is_ok();
        eventually(20, listens, || "nginx does not listen");
        Some(Self {
            dir,
            process,
            ports,
        })
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.process.wait();
    }
}

#[test]
fn tls_and_http2_of_a_real_server() {
    let Some(nginx) = Nginx::start() else { return };
    let toy = Toy::new();
    let certificate = nginx.dir.path().join("certificate");
    let [plain, tls, http2] = nginx.ports;
    let cases: [(&str, u16, &[&str]); 4] = [
        ("http", plain, &[]),
        ("https", tls, &[]),
        ("https", tls, &["--http2", "--streams", "4"]),
        (
            "http",
            http2,
            &["--http2", "--method", "POST", "--body", "x"],
        ),
    ];
    for (scheme, port, more) in cases {
        let url = format!("{scheme}://127.0.0.1:{port}/");
        let mut command = toy.slackline(&["load", "--url", &url, "--rate", "200", "--constant"]);
        command.args([
            "--duration-s",
            "0.5",
            "--repeat-s",
            "0",
            "--connections",
            "4",
        ]);
        command.args(["--accept-late"]).args(more);
        command.env("SSL_CERT_FILE", &certificate);
        let ended = Ended::of(command).with_code(0);
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(
            (&report["due"], &report["errors"]),
            (&json!(100), &json!(0)),
            "{url} {report}"
        );
        // nginx ends a connection after 20 requests.
        assert!(
            report["connections_opened"].as_u64().unwrap() >= 5,
            "{url} {report}"
        );
    }
    // Nobody vouches for the certificate.
    let url = format!("https://127.0.0.1:{tls}/");
    let mut command =
        toy.slackline(&["load", "--url", &url, "--rate", "20", "--duration-s", "0.2"]);
    command
        .args(["--repeat-s", "0", "--accept-late"])
        .env_remove("SSL_CERT_FILE");
    command.env_remove("SSL_CERT_DIR");
    Ended::of(command)
        .with_code(1)
        .saying(&["no request succeeded: TLS: "]);
}
