//! What is shown of a controller that stands still, and of a service that does not run.

use std::io::{Read as _, Write as _};
use std::process::Command;

use serde_json::Value;

use super::{Bench, signal};
use crate::eventually::eventually;
use crate::toy::{Ended, free_port, kill};

#[test]
fn a_controller_that_stands_still_is_said_with_the_age_of_its_last_step() {
    let Some(bench) = Bench::new("still") else {
        return;
    };
    let mut child = bench.start();
    let is_new = |status: &Value| status["age_s"].as_f64().is_some_and(|age_s| age_s < 5.0);
    let status = bench.until("batch work", Bench::is_on);
    assert!(is_new(&status), "{status}");
    signal(child.id().into(), rustix::process::Signal::STOP);
    let shown = || Ended::of(bench.toy.slackline(&["isolate", "status"]));
    let is_said = || {
        let shown = shown();
        let said = shown.stdout.starts_with("The last step was ");
        assert_eq!(shown.code, i32::from(said), "{}", shown.stdout);
        said && shown.stdout.contains(&format!("(process {})", child.id()))
    };
    eventually(60, is_said, || "nothing is said of the standstill");
    assert!(bench.status().unwrap()["age_s"].as_f64() > Some(5.0));
    signal(child.id().into(), rustix::process::Signal::CONT);
    bench.until("another step", is_new);
    assert!(shown().stdout.starts_with("Policy "));
    signal(child.id().into(), rustix::process::Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    bench.assert_restored();
}

/// The page at `/metrics`.
fn metrics(port: u16) -> String {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

#[test]
fn a_service_that_does_not_run_has_no_figures() {
    let Some(bench) = Bench::new("figures") else {
        return;
    };
    let mut service = Command::new("sleep").arg("1000").spawn().unwrap();
    let work = format!("name = \"{}\"\ncommand = [\"sleep\", \"1000\"]", bench.name);
    bench.config_of(&format!("pid = {}", service.id()), &work, "");
    let port = free_port();
    let mut child = bench
        .run(&["--metrics", &format!("127.0.0.1:{port}")])
        .spawn()
        .unwrap();
    bench.will_end(&child);
    bench.until("figures", |status| {
        status["services"][0]["latency_ms"].is_f64()
    });
    let series = |name: &str| format!("slackline_isolate_{name}{{service=\"web\"}}");
    let page = metrics(port);
    for name in ["latency_seconds", "slack_ratio", "requests_per_second"] {
        assert!(page.contains(&series(name)), "{name}: {page}");
    }
    assert!(
        page.contains(&format!("{} 1", series("has_data"))),
        "{page}"
    );
    kill([&mut service]);
    let is_gone = |status: &Value| status["services"][0]["is_running"] == false;
    let status = bench.until("its end", is_gone);
    let row = &status["services"][0];
    for key in [
        "latency_ms",
        "fresh_ms",
        "slack",
        "requests",
        "requests_per_s",
    ] {
        assert!(row[key].is_null(), "{key}: {row}");
    }
    assert_eq!(row["no_data"], "it does not run");
    let shown = Ended::of(bench.toy.slackline(&["isolate", "status"])).with_code(0);
    let mut lines = shown.stdout.lines();
    let line = lines.find(|line| line.starts_with(" web ")).unwrap();
    assert!(line.contains("does not run"), "{line}");
    assert!(!line.contains('%'), "{line}");
    let page = metrics(port);
    for name in ["latency_seconds", "slack_ratio", "requests_per_second"] {
        assert!(!page.contains(&series(name)), "{name}: {page}");
    }
    assert!(
        page.contains(&format!("{} 0", series("has_data"))),
        "{page}"
    );
    signal(child.id().into(), rustix::process::Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    bench.assert_restored();
}
