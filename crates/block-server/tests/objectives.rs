//! Tenants with objectives, from the configuration to the requests.

#![expect(clippy::unwrap_used, reason = "test code: a panic is a failure")]

mod support;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use block_server::config::Config;
use block_server::export;
use support::{READ, Server, start};

/// A device that takes a million tokens a second, which are 10,000 reads, at any latency.
fn config(directory: &Path, objective: &str) -> String {
    let path = directory.join("calibration.json");
    let curve = "[{\"p95_us\": 100.0, \"tokens_per_s\": 1000000.0}]";
    let text = format!(
        "{{\"write_cost\": 1000, \"curve\": {{\"mixed\": {curve}, \"read_only\": {curve}}}, \"more\": 1}}"
    );
    std::fs::write(&path, text).unwrap();
    format!(
        "[[device]]\nname = \"ram\"\nmemory = \"16MiB\"\ncalibration = \"{}\"\n\
         [[tenant]]\nexport = \"critical\"\ndevice = \"ram\"\nread_only = true\n{objective}\n\
         [[tenant]]\nexport = \"greedy\"\ndevice = \"ram\"\n",
        path.display()
    )
}

const OBJECTIVE: &str = "objective = { p95_us = 100000, iops = 2000, read_share = 1.0 }";

/// Reads until `ends`, with 64 requests under way; gives their number.
fn greedy(server: &Server, ends: &AtomicBool) -> u64 {
    let mut client = server.connect().go("greedy");
    let mut sum = 0;
    for _ in 0..64 {
        client.send(0, READ, 0, 4096, &[]);
    }
    while !ends.load(Ordering::Relaxed) {
        assert_eq!(client.simple().0, 0);
        let mut data = [0; 4096];
        std::io::Read::read_exact(&mut client.stream, &mut data).unwrap();
        sum += 1;
        client.send(0, READ, 0, 4096, &[]);
    }
    sum
}

#[test]
fn a_greedy_tenant_gets_what_the_objective_leaves() {
    let directory = tempfile::tempdir().unwrap();
    let Some(server) = start(1, 64 << 20, &config(directory.path(), OBJECTIVE)) else {
        return;
    };
    let (ends, took) = (AtomicBool::new(false), AtomicU64::new(0));
    let (sum, reads) = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let begun = Instant::now();
            let sum = greedy(&server, &ends);
            let elapsed = u64::try_from(begun.elapsed().as_millis()).unwrap();
            took.store(elapsed, Ordering::Relaxed);
            sum
        });
        let mut client = server.connect().go("critical");
        let begun = Instant::now();
        let mut reads = 0_u64;
        // A tenth of what it reserved.
        while begun.elapsed() < Duration::from_secs(3) {
            client.read(0, 4096);
            reads += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
        ends.store(true, Ordering::Relaxed);
        (load.join().unwrap(), reads)
    });
    let rate = sum as f64 * 1000.0 / took.load(Ordering::Relaxed) as f64;
    // 10,000 less 2,000, and most of what the other does not use.
    assert!((3_000.0..11_000.0).contains(&rate), "{rate} reads/s");
    assert!(reads > 50, "{reads}");
    let status = server.shared.status();
    let critical = &status.tenants[0];
    assert_eq!(critical.objective.unwrap().iops, 2000);
    assert!(critical.spent_tokens > 0 && status.tenants[1].spent_tokens > 0);
    let page = server.shared.metrics_page();
    for expected in [
        "slackline_block_objective_p95_us{export=\"critical\"} 100000\n",
        "slackline_block_device_reserved_tokens_per_second{device=\"",
        "slackline_block_device_tokens_per_second{device=\"",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    server.stop();
    // Without an objective nothing is limited.
    let Some(server) = start(1, 64 << 20, &config(directory.path(), "")) else {
        return;
    };
    let ends = AtomicBool::new(false);
    let free = std::thread::scope(|scope| {
        let load = scope.spawn(|| greedy(&server, &ends));
        std::thread::sleep(Duration::from_secs(1));
        ends.store(true, Ordering::Relaxed);
        load.join().unwrap()
    });
    assert!(
        free as f64 > 1.3 * rate,
        "{free} reads/s, {rate} with the objective"
    );
    server.stop();
}

#[test]
fn what_cannot_be_promised_is_refused_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let open = |objective: &str| {
        let text = config(directory.path(), objective);
        let config = Config::parse(Path::new("b.toml"), &text).unwrap();
        export::open(&config, &Vec::new(), 1)
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    assert_eq!(open(OBJECTIVE), Ok(()));
    let error = open(&OBJECTIVE.replace("2000", "20000")).unwrap_err();
    assert!(
        error.starts_with(
            "b.toml:9: tenant.objective: \"critical\" is refused: the tenant needs 2,000,000 tokens/s"
        ),
        "{error}"
    );
    let error = open(&OBJECTIVE.replace("100000", "10")).unwrap_err();
    assert!(error.contains("below what the device does"), "{error}");
    let text = config(directory.path(), OBJECTIVE);
    std::fs::write(directory.path().join("calibration.json"), "{").unwrap();
    let broken = Config::parse(Path::new("b.toml"), &text).unwrap();
    let error = export::open(&broken, &Vec::new(), 1)
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.starts_with("b.toml:4: device.calibration: "),
        "{error}"
    );
}
