//! Where `slackline isolate` reads the latency, and what it does when there is none.

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::{Bench, signal};
use crate::eventually::eventually;
use crate::toy::{Ended, kill};

#[test]
fn a_port_that_nobody_listens_on_and_a_source_that_never_answers_are_no_data() {
    let Some(bench) = Bench::new("silent") else {
        return;
    };
    let service = format!("pid = {}", bench.service.id());
    let work = format!("name = \"{}\"\ncommand = [\"sleep\", \"1000\"]", bench.name);
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    for (source, said) in [
        (format!("wire = {{ port = {port} }}"), "listens"),
        ("command = [\"sleep\", \"15\"]".to_owned(), "started"),
    ] {
        bench.config_with_source(&service, &source, &work, "");
        let child = bench.start();
        let says_so = |status: &Value| {
            let why = status["services"][0]["no_data"].as_str();
            why.is_some_and(|why| why.contains(said)) && Bench::is_off(status)
        };
        let status = bench.until(said, says_so);
        assert_eq!(status["groups"][0]["reason"], "no_data");
        if said == "listens" {
            let file = bench.toy.path("isolate.toml").display().to_string();
            let checked = Ended::of(bench.toy.slackline(&["isolate", "check", &file]));
            let checked = checked.with_code(1);
            let problem = format!("no data: nobody listens on TCP port {port}");
            assert!(checked.stdout.contains(&problem), "{}", checked.stdout);
            // The log says it, too, after five seconds.
            let since = status["at_s"].as_f64().unwrap();
            let is_later = |status: &Value| status["at_s"].as_f64() > Some(since + 8.0);
            bench.until("a while", is_later);
        }
        signal(child.id().into(), rustix::process::Signal::TERM);
        let ended = Ended::from(child.wait_with_output().unwrap());
        let is_logged = ended
            .stderr
            .contains("no data of its latency: nobody listens");
        assert_eq!(is_logged, said == "listens", "{}", ended.stderr);
        bench.assert_restored();
        bench.assert_no_process("sleep 15");
    }
    // A controller that is killed can end nothing itself.
    let mut child = bench.start();
    let runs = || bench.has_process("sleep 15");
    eventually(120, runs, || "the source does not run");
    kill([&mut child]);
    bench.assert_no_process("sleep 15");
    bench.assert_restored();
}

#[test]
fn a_service_s_own_histogram_is_a_source_and_its_end_is_no_data() {
    let Some(bench) = Bench::new("scrape") else {
        return;
    };
    // A service whose every request takes 1 ms: 500 more at each look.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let is_up = Arc::new(AtomicBool::new(true));
    let up = Arc::clone(&is_up);
    let serving = std::thread::spawn(move || {
        for looks in 1_u64.. {
            let (mut stream, _) = listener.accept().unwrap();
            if !up.load(Ordering::Relaxed) {
                return;
            }
            let _ = stream.read(&mut [0; 4096]);
            let count = 500 * looks;
            let body = format!(
                "web_seconds_bucket{{le=\"0.001\"}} {count}\nweb_seconds_bucket{{le=\"+Inf\"}} {count}\n"
            );
            let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length:";
            let _ = write!(stream, "{head} {}\r\n\r\n{body}", body.len());
        }
    });
    let source = format!(
        "scrape = {{ url = \"http://127.0.0.1:{port}/metrics\", histogram = \"web_seconds\" }}"
    );
    let work = format!(
        "name = \"{}\"\ncommand = [\"sh\", \"-c\", \"while :; do :; done\"]",
        bench.name
    );
    bench.config_with_source(&format!("pid = {}", bench.service.id()), &source, &work, "");
    let mut child = bench.start();
    let status = bench.until("batch work", Bench::is_on);
    let latency_ms = status["services"][0]["latency_ms"].as_f64().unwrap();
    assert!((0.9..=1.0).contains(&latency_ms), "{status}");
    is_up.store(false, Ordering::Relaxed);
    let status = bench.until("no data", |status| {
        Bench::is_off(status) && status["groups"][0]["reason"] == "no_data"
    });
    assert!(status["services"][0]["no_data"].is_string(), "{status}");
    serving.join().unwrap();
    signal(child.id().into(), rustix::process::Signal::TERM);
    child.wait().unwrap();
    bench.assert_restored();
}
