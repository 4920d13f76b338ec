//! Metrics that are a latency of requests.

use host::Roots;

use crate::{SOUND, error_in, expect, load};

/// A running service under its users' load.
const LIVE: &str = r#"name = "live"
[[parameters]]
name = "threads"
type = "int"
low = 1
high = 32
default = 16
[target]
apply = [{ command = ["true"] }]
[metrics.p99]
wire = { port = 8080 }
[objective]
metric = "p99"
"#;

#[track_caller]
fn expect_live(from: &str, to: &str, error: &str) {
    assert!(LIVE.contains(from), "{from}");
    let found = error_in("spec.toml", &LIVE.replacen(from, to, 1), &Roots::default());
    assert_eq!(found, error);
}

/// The error of the sound specification, whose service Slackline starts, with this metric.
#[track_caller]
fn expect_started(metric: &str, error: &str) {
    expect(
        "[objective]",
        &format!("[metrics.p99]\n{metric}\n[objective]"),
        error,
    );
}

#[test]
fn a_live_service_needs_no_workload() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("live.toml");
    std::fs::write(&path, LIVE).unwrap();
    let checked = load(&path, &Roots::default()).unwrap();
    assert!(checked.workload().is_of_users());
    assert!(checked.saturated.is_none());
    // The number of requests is a metric, and so is what is derived from it.
    for metric in [
        "p99_requests",
        "requests",
        "requests_per_s",
        "p99_requests_per_s",
    ] {
        std::fs::write(&path, LIVE.replace("\"p99\"", &format!("{metric:?}"))).unwrap();
        load(&path, &Roots::default()).unwrap();
    }
    expect_live(
        "wire = { port = 8080 }",
        "command = [\"true\"]",
        "spec.toml: workload: [workload] is missing; where the service's own users are the load, a metric must read their \
         latency: metrics.p99.wire = { port = 8080 }, or scrape, or push",
    );
}

#[test]
fn the_sides_of_a_started_service_are_told_apart() {
    let apart = "is the same for the control's and the candidate's instance, whose requests could not be told apart: write";
    expect_started(
        "wire = { port = 8080 }",
        &format!("spec.toml:14: metrics.p99.wire.port: \"8080\" {apart} \"{{port}}\""),
    );
    expect_started(
        "scrape = { url = \"http://127.0.0.1:9/metrics\", histogram = \"h\" }",
        &format!(
            "spec.toml:14: metrics.p99.scrape.url: \"http://127.0.0.1:9/metrics\" {apart} {{port}}, {{dir}} or {{side}} in it"
        ),
    );
    expect_started(
        "push = { udp = \"127.0.0.1:8125\" }",
        &format!(
            "spec.toml:14: metrics.p99.push.udp: \"127.0.0.1:8125\" {apart} {{port}}, {{dir}} or {{side}} in it"
        ),
    );
    for good in [
        "wire = {}",
        "wire = { port = \"{port}\", percentile = 99.9, protocol = \"redis\" }",
        "scrape = { url = \"http://127.0.0.1:{port}/metrics\", histogram = \"h\" }",
        "push = { unix = \"{dir}/timers\" }",
        "push = { udp = \"127.0.0.1:{port}\", timer = \"web\" }",
    ] {
        expect_started(good, "no error");
    }
    expect_live(
        "8080",
        "\"{port}\"",
        "spec.toml:11: metrics.p99.wire.port: Slackline starts no service whose {port} it could be: write the port's number",
    );
}

#[test]
fn what_cannot_be_meant_is_named() {
    for (from, to, error) in [
        ("8080", "0", "11: metrics.p99.wire.port: 0 is no port"),
        (
            "8080",
            "70000",
            "11: metrics.p99.wire.port: \"70000\" is not a port: 1 to 65535",
        ),
        (
            "8080",
            "\"{prot}\"",
            "11: metrics.p99.wire.port: {prot} is neither a parameter nor a variable (known: dir, port, side, spec_dir, threads); \
             write {{prot}} for the text itself",
        ),
        (
            "8080",
            "8080, percentile = 100",
            "11: metrics.p99.wire.percentile: 100 must be above 0 and below 100",
        ),
        (
            "8080",
            "8080, minimum_requests = 0",
            "11: metrics.p99.wire.minimum_requests: must be above 0",
        ),
        (
            "8080",
            "8080, cpu_budget_cores = 0.0",
            "11: metrics.p99.wire.cpu_budget_cores: must be above 0 and at most 1",
        ),
        (
            "wire = { port = 8080 }",
            "wire = { port = 8080 }\ncounter = true",
            "12: metrics.p99.counter: a latency is no counter: leave it out",
        ),
        (
            "wire = { port = 8080 }",
            "wire = { port = 8080 }\ncommand = [\"true\"]",
            "10: metrics.p99: give exactly one of prometheus (with query), command, wire, scrape and push",
        ),
        (
            "wire = { port = 8080 }",
            "scrape = { url = \"x\", histogram = \"h\" }",
            "11: metrics.p99.scrape.url: it has to begin with http:// or https://",
        ),
        (
            "wire = { port = 8080 }",
            "push = { udp = \"here\" }",
            "11: metrics.p99.push.udp: \"here\" is not an address such as 127.0.0.1:8125",
        ),
        (
            "wire = { port = 8080 }",
            "push = { udp = \"10.1.1.1:8125\" }",
            "11: metrics.p99.push.udp: 10.1.1.1:8125 is not on the loopback interface: anybody could send timers",
        ),
        (
            "wire = { port = 8080 }",
            "push = { udp = \"127.0.0.1:0\" }",
            "11: metrics.p99.push.udp: 0 is no port that a service could send to: write one, such as 127.0.0.1:8125",
        ),
        (
            "wire = { port = 8080 }",
            "push = { unix = \"\" }",
            "11: metrics.p99.push.unix: name a path, such as /run/web/timers.sock",
        ),
        (
            "wire = { port = 8080 }",
            "push = {}",
            "11: metrics.p99.push: give either udp or unix",
        ),
        (
            "[objective]",
            "[metrics.p99_requests]\ncommand = [\"true\"]\n[objective]",
            "12: metrics.p99_requests: this name is taken by the number of requests of metrics.p99: choose another name",
        ),
        (
            "wire = { port = 8080 }",
            "push = { udp = \"127.0.0.1:1\", timer = \"a\" }\n[metrics.q]\npush = { udp = \"127.0.0.1:1\", timer = \"b\" }",
            "13: metrics.q.push.timer: metrics.p99 reads this socket for another timer: give each timer its own socket",
        ),
    ] {
        expect_live(from, to, &format!("spec.toml:{error}"));
    }
    // Two percentiles of one source share it.
    expect_live(
        "[objective]",
        "[metrics.p50]\nwire = { port = 8080, percentile = 50 }\n[objective]",
        "no error",
    );
    assert!(SOUND.contains("start"));
}
