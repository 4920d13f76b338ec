//! `slackline serve-block` with a thousand tenants and ten thousand connections.

use std::process::Command;
use std::time::Duration;

use block_load::generator::{AccessPattern, ArrivalProcess, LoadSpec, run as load};
use block_load::nbd::Nbd;
use http_client::{Client, Url};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;

use crate::toy::{free_port, on_uring, skip};

const TENANTS: usize = 1000;
/// A tenant has 1 to 19 connections, so that a thousand tenants have about ten thousand.
const CONNECTIONS_MAX: usize = 19;
/// Reads a second of all tenants together: far less than a core can do.
const READS_PER_S: u64 = 6_000;
const DEVICE_MIB: usize = TENANTS + 1;

/// As many descriptors as there are connections, here and in the server. False: there may not be.
fn raise_descriptor_limit() -> bool {
    let wanted = 12_000;
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = getrlimit(Resource::Nofile).current;
    let limit = Rlimit {
        current: current.map(|current| current.max(wanted)),
        maximum,
    };
    maximum.is_none_or(|maximum| maximum >= wanted) && setrlimit(Resource::Nofile, limit).is_ok()
}

/// Tenants without an objective ask for more than there is. One with an objective stands beside
/// them: without it nothing would be limited.
fn configuration(port: u16, metrics: u16, curve: &std::path::Path) -> String {
    let tokens_per_s = 100 * READS_PER_S;
    let points = format!("[{{\"p95_us\": 100.0, \"tokens_per_s\": {tokens_per_s}.0}}]");
    let columns = format!("{{\"mixed\": {points}, \"read_only\": {points}}}");
    let calibration = format!("{{\"write_cost\": 100, \"curve\": {columns}}}");
    std::fs::write(curve, calibration).unwrap();
    let mut text = format!(
        "listen = [\"127.0.0.1:{port}\"]\nmetrics = \"127.0.0.1:{metrics}\"\n[[device]]\nname = \"d\"\n\
         memory = \"{DEVICE_MIB}MiB\"\ncalibration = {curve:?}\n"
    );
    let tenant = |index: usize| {
        format!(
            "[[tenant]]\nexport = \"t{index}\"\ndevice = \"d\"\nrange = {{ offset = \"{index}MiB\", length = \"1MiB\" }}\n"
        )
    };
    for index in 0..TENANTS {
        text += &tenant(index);
    }
    text += &tenant(TENANTS);
    text += "objective = { p95_us = 1000000, iops = 1, read_share = 1.0 }\n";
    text
}

/// Jain's index: 1 if all are the same, 1/n if one has everything.
fn jain(each: &[f64]) -> f64 {
    let sum: f64 = each.iter().sum();
    let squares: f64 = each.iter().map(|number| number * number).sum();
    sum * sum / (each.len() as f64 * squares)
}

#[test]
fn a_thousand_tenants_with_ten_thousand_connections_share_alike() {
    if !raise_descriptor_limit() {
        return skip(&"the limit of open descriptors (`ulimit -Hn`) is below 12,000");
    }
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("blocks.toml");
    let (port, metrics) = (free_port(), free_port());
    let text = configuration(port, metrics, &directory.path().join("curve.json"));
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.args(["serve-block", "run"]).arg(&config);
    let Some((mut child, line, _messages)) = on_uring(&mut command) else {
        return;
    };
    assert!(line.contains("serving"), "{line}");
    let client = Client::new(Duration::from_secs(60));
    let url = Url::parse(&format!("http://127.0.0.1:{metrics}/status")).unwrap();
    let status = || -> Value {
        let text = client.text(&url, 16 << 20).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let reads = || -> Vec<f64> {
        let status = status();
        let tenants = status["tenants"].as_array().unwrap().iter();
        let reads = tenants.map(|tenant| tenant["reads"].as_f64().unwrap());
        reads.take(TENANTS).collect()
    };
    let names: Vec<String> = (0..TENANTS).map(|index| format!("t{index}")).collect();
    let connections = names.iter().enumerate().flat_map(|(index, name)| {
        let own = 1 + index % CONNECTIONS_MAX;
        std::iter::repeat_n(name.as_str(), own)
    });
    let connections: Vec<&str> = connections.collect();
    assert!(connections.len() > 9_900);
    let address = ([127, 0, 0, 1], port).into();
    let mut nbd = Nbd::connect_each(address, &connections).unwrap();
    assert_eq!(status()["connections"], connections.len());
    let all_at_once = LoadSpec {
        arrivals: ArrivalProcess::Closed {
            depth: u32::try_from(connections.len()).unwrap(),
        },
        read_share: 1.0,
        len_bytes: 4096,
        read_area: 0..1 << 20,
        write_area: None,
        order: AccessPattern::Random,
        warm_up: Duration::ZERO,
        duration: Duration::from_secs(8),
        is_polling: false,
        seed: 1,
    };
    // Both looks are while everybody asks. At the end of the load, who has many connections has
    // many answers to come.
    let (before, after, outcome) = std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(2));
            let before = reads();
            std::thread::sleep(Duration::from_secs(5));
            (before, reads())
        });
        let outcome = load(&mut nbd, &all_at_once).unwrap();
        let (before, after) = looks.join().unwrap();
        (before, after, outcome)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(outcome.errors, 0);
    let each: Vec<f64> = after
        .iter()
        .zip(&before)
        .map(|(after, before)| after - before)
        .collect();
    let sum: f64 = each.iter().sum();
    assert!(sum > 3.0 * READS_PER_S as f64, "{sum} reads");
    let index = jain(&each);
    println!(
        "{} connections, {sum} reads, Jain's index {index:.4}",
        connections.len()
    );
    assert!(index >= 0.99, "{index}");
}
