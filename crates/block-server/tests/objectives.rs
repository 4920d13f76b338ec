//! Tenants with objectives, from the configuration to the requests.

#![expect(clippy::unwrap_used, reason = "test code: a panic is a failure")]

mod support;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use block_server::config::BlockConfig;
use block_server::export;
use support::{Client, READ, Server, start};

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

/// How often a rate is measured that a busy machine may hold up.
const TRIES: usize = 5;

const OBJECTIVE: &str = "objective = { p95_us = 100000, iops = 2000, read_share = 1.0 }";

/// Reads until `ends`, with 64 requests under way; gives their number.
fn greedy(mut client: Client, ends: &AtomicBool) -> u64 {
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
            let sum = greedy(server.connect().go("greedy"), &ends);
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
    let free = || {
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let load = scope.spawn(|| greedy(server.connect().go("greedy"), &ends));
            std::thread::sleep(Duration::from_secs(1));
            ends.store(true, Ordering::Relaxed);
            load.join().unwrap()
        })
    };
    // A busy machine holds up a second, and not every one.
    let most = (0..TRIES)
        .map(|_| free() as f64)
        .find(|it| *it > 1.3 * rate);
    assert!(most.is_some(), "{rate} reads/s with the objective");
    server.stop();
}

/// Reads with 64 requests under way on each connection, for so long: their number by export, those
/// of `critical` first.
fn reads_on(server: &Server, connections: &[(&str, u8)], time: Duration) -> [u64; 2] {
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let running: Vec<_> = connections
            .iter()
            .map(|&(export, shard)| {
                let client = server.on_shard(shard, || server.connect(), |it| &it.stream);
                let ends = &ends;
                let client = client.go(export);
                (export, scope.spawn(move || greedy(client, ends)))
            })
            .collect();
        std::thread::sleep(time);
        ends.store(true, Ordering::Relaxed);
        let mut sums = [0, 0];
        for (export, thread) in running {
            sums[usize::from(export != "critical")] += thread.join().unwrap();
        }
        sums
    })
}

/// On two cores a tenant has its reservation of 2,000 reads a second once and whole, whether its
/// connections are on one of them or on both.
#[test]
fn a_reservation_counts_once_on_two_cores() {
    let directory = tempfile::tempdir().unwrap();
    let Some(server) = start(2, 64 << 20, &config(directory.path(), OBJECTIVE)) else {
        return;
    };
    let greedy = [("greedy", 0), ("greedy", 1)];
    for places in [&[0][..], &[1], &[0, 1]] {
        let critical = places.iter().map(|&shard| ("critical", shard));
        let all: Vec<_> = critical.chain(greedy).collect();
        let mut seen = Vec::new();
        // 1,000 at once, which are its debt, and what it may take back of the time before.
        let is_right = (0..TRIES).any(|_| {
            let [critical, greedy] = reads_on(&server, &all, Duration::from_secs(3));
            seen.push([critical, greedy]);
            (5_500..10_000).contains(&critical) && greedy >= 14_000
        });
        assert!(is_right, "{seen:?} on {places:?}");
    }
    let status = server.shared.status();
    assert_eq!(status.devices[0].reserved_tokens_per_s, 200_000);
    let spent: u64 = status.tenants.iter().map(|it| it.spent_tokens).sum();
    assert!(spent > 0);
    server.stop();
}

#[test]
fn what_cannot_be_promised_is_refused_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let open = |objective: &str| {
        let text = config(directory.path(), objective);
        let config = BlockConfig::parse(Path::new("b.toml"), &text).unwrap();
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
    let broken = BlockConfig::parse(Path::new("b.toml"), &text).unwrap();
    let error = export::open(&broken, &Vec::new(), 1)
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.starts_with("b.toml:4: device.calibration: "),
        "{error}"
    );
}
