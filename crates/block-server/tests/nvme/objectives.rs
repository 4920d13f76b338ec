//! Objectives of namespaces on two cores. One queue has several namespaces, and one namespace is
//! used by queues of both cores.

use std::time::{Duration, Instant};

use crate::host::{self, Host, READ, on_blocks};
use crate::support::start;

/// Namespace 1 has reserved 2,000 of 10,000 reads a second, and 2 takes all it gets.
fn config(directory: &std::path::Path) -> String {
    let path = directory.join("curve.json");
    let curve = "[{\"p95_us\": 100.0, \"tokens_per_s\": 1000000.0}]";
    let curve = format!("{{\"mixed\": {curve}, \"read_only\": {curve}}}");
    std::fs::write(
        &path,
        format!("{{\"write_cost\": 1000, \"curve\": {curve}}}"),
    )
    .unwrap();
    format!(
        "nvme = {{ listen = [\"127.0.0.1:4420\"], subsystem = \"{}\" }}\n\
         [[device]]\nname = \"ram\"\nmemory = \"16MiB\"\ncalibration = {path:?}\n\
         [[tenant]]\nexport = \"critical\"\ndevice = \"ram\"\nread_only = true\n\
         objective = {{ p95_us = 100000, iops = 2000, read_share = 1.0 }}\n\
         [[tenant]]\nexport = \"greedy\"\ndevice = \"ram\"\n",
        host::NQN
    )
}

/// Keeps 32 reads of each namespace under way until `end`. Gives the number of each.
fn read(mut host: Host, end: Instant) -> [u64; 2] {
    let mut sums = [0, 0];
    let command = |namespace| on_blocks(READ, namespace, 0, 8, 0);
    // Which namespace the command with a number is for.
    let mut namespaces = std::collections::HashMap::new();
    for number in 0..64 {
        let namespace = 1 + number % 2;
        namespaces.insert(host.send(command(namespace), 4096), namespace);
    }
    while Instant::now() < end {
        let pdu = host.next();
        if pdu.kind != 5 {
            continue;
        }
        assert_eq!(pdu.header[14..16], [0, 0], "{pdu:?}");
        let number = u16::from_le_bytes([pdu.header[12], pdu.header[13]]);
        let namespace = namespaces.remove(&number).unwrap();
        sums[namespace as usize - 1] += 1;
        namespaces.insert(host.send(command(namespace), 4096), namespace);
    }
    sums
}

#[test]
fn a_reservation_counts_once_on_queues_of_two_cores() {
    let directory = tempfile::tempdir().unwrap();
    let Some(server) = start(2, 64 << 20, &config(directory.path())) else {
        return;
    };
    let address = server.nvme.unwrap();
    let (_admin, id) = Host::admin(address, host::NQN, 0);
    let mut number = 0;
    let mut queue = |shard| {
        let connect = || Host::initialized(address, 0);
        let mut host = server.on_shard(shard, connect, |host| &host.stream);
        number += 1;
        let done = host.connect(number, id, host::NQN, 127);
        assert_eq!(done.status, 0, "{done:?}");
        host
    };
    for shards in [&[0][..], &[0, 1]] {
        let queues: Vec<Host> = shards.iter().map(|&shard| queue(shard)).collect();
        let end = Instant::now() + Duration::from_secs(3);
        let sums = std::thread::scope(|scope| {
            let running = queues
                .into_iter()
                .map(|host| scope.spawn(move || read(host, end)));
            let running: Vec<_> = running.collect();
            let ended = running.into_iter().map(|thread| thread.join().unwrap());
            ended.fold([0, 0], |sums, more| [sums[0] + more[0], sums[1] + more[1]])
        });
        // 1,000 at once, which are its debt, and what it may take back of the time before.
        assert!((5_500..10_000).contains(&sums[0]), "{sums:?} on {shards:?}");
        assert!(sums[1] >= 14_000, "{sums:?} on {shards:?}");
    }
    let status = server.shared.status();
    assert_eq!(status.devices[0].reserved_tokens_per_s, 200_000);
    server.stop();
}
