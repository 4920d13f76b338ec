//! The server as a process: signals, reloads, devices in use, sudden death.

#![expect(clippy::unwrap_used, reason = "test code: a panic is a failure")]

mod support;

use std::io::{BufRead as _, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rand::{Rng as _, SeedableRng as _};
use support::{Client, FLUSH, WRITE, free_port, page, signal, start_process, start_ready};

/// The server itself, when another test started it.
#[test]
fn server_process() {
    support::be_server();
}

fn write_config(directory: &Path, port: u16, rest: &str) -> std::path::PathBuf {
    let path = directory.join("blocks.toml");
    let text = format!("listen = [\"127.0.0.1:{port}\"]\ndrain_s = 2\n{rest}");
    std::fs::write(&path, text).unwrap();
    path
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

const TENANT: &str = "[[device]]\nname = \"ram\"\nmemory = \"1MiB\"\n\
                      [[tenant]]\nexport = \"a\"\ndevice = \"ram\"\n";
const READ_ONLY: &str = "[[tenant]]\nexport = \"same\"\ndevice = \"ram\"\nread_only = true\n";

/// A reload that asks for more than the device has is refused; what was reserved stays, and the
/// log says so. One that fits is in force on both cores.
#[test]
fn a_reload_that_reserves_too_much_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (port, metrics) = (free_port(), free_port());
    let at = |name: &str| directory.path().join(name).display().to_string();
    let curve = "[{\"p95_us\": 100.0, \"tokens_per_s\": 1000000.0}]";
    let curve = format!("{{\"mixed\": {curve}, \"read_only\": {curve}}}");
    let curve = format!("{{\"write_cost\": 1000, \"curve\": {curve}}}");
    std::fs::write(at("curve"), curve).unwrap();
    let cpus = rustix::thread::sched_getaffinity(None).unwrap();
    let cpus: Vec<usize> = (0..1024).filter(|cpu| cpus.is_set(*cpu)).take(2).collect();
    let write = |iops: u32| {
        let text = format!(
            "metrics = \"127.0.0.1:{metrics}\"\naudit_log = {:?}\ncores = {cpus:?}\n\
             [[device]]\nname = \"ram\"\nmemory = \"1MiB\"\ncalibration = {:?}\n\
             [[tenant]]\nexport = \"db\"\ndevice = \"ram\"\n\
             objective = {{ p95_us = 5000, iops = {iops}, read_share = 1.0 }}\n",
            at("audit"),
            at("curve")
        );
        write_config(directory.path(), port, &text)
    };
    // What the server says is reserved, of the device and of the tenant. Its shards follow a
    // reload within a second.
    let reserves = |iops: u64| {
        let reserved = || {
            let page = page(metrics, "/status");
            let body = page.split_once("\r\n\r\n").unwrap().1;
            let status: serde_json::Value = serde_json::from_str(body).unwrap();
            let tokens = status["devices"][0]["reserved_tokens_per_s"].as_u64();
            let iops = status["tenants"][0]["objective"]["iops"].as_u64();
            (
                tokens.unwrap(),
                iops.unwrap(),
                status["not_reloaded"].clone(),
            )
        };
        let mut seen = reserved();
        for _ in 0..100 {
            if (seen.0, seen.1) == (100 * iops, iops) {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
            seen = reserved();
        }
        assert_eq!((seen.0, seen.1), (100 * iops, iops));
        seen.2
    };
    let Some((mut child, mut messages)) = start_ready(&write(2000)) else {
        return;
    };
    let mut reload = |iops: u32| {
        write(iops);
        signal(&child, "-HUP");
        let mut line = String::new();
        messages.read_line(&mut line).unwrap();
        line
    };
    assert!(reserves(2000).is_null());
    let mut client = Client::connect(address(port)).go("db");
    let line = reload(11_000);
    let reason = "is refused: the tenant needs 1,100,000 tokens/s";
    assert!(
        line.contains("NotReloaded") && line.contains(reason),
        "{line}"
    );
    let said = reserves(2000);
    assert!(said.as_str().unwrap().contains(reason), "{said}");
    let log = std::fs::read_to_string(at("audit")).unwrap();
    let last = log.lines().last().unwrap();
    assert!(
        last.contains("\"refused\"") && last.contains(reason),
        "{log}"
    );
    assert_eq!(log.lines().count(), 2, "{log}");
    client.read(0, 4096);
    // What fits is taken: the tenant's own reservation is free for it.
    let line = reload(9_000);
    assert!(
        line.contains("Reloaded") && line.contains("ended: []"),
        "{line}"
    );
    assert!(reserves(9_000).is_null());
    let log = std::fs::read_to_string(at("audit")).unwrap();
    assert!(log.lines().last().unwrap().contains("\"changed\""), "{log}");
    client.read(0, 4096);
    signal(&child, "-TERM");
    child.wait().unwrap();
}

/// The metrics and the audit log after the first reload, and after one that was refused.
fn counts_and_logs(metrics: u16, audit: &Path) {
    let page = page(metrics, "/metrics");
    for expected in [
        "slackline_block_writes_total{export=\"b\"} 1\n",
        "slackline_block_read_latency_ns_count{export=\"a\"}",
        // From before the reload, too.
        "slackline_block_writes_total{export=\"a\"} 1\n",
        "slackline_block_reads_total{export=\"same\"} 2\n",
        "slackline_shard_batch_events_bucket{shard=\"0\",le=\"1\"}",
    ] {
        assert!(page.contains(expected), "{page}");
    }
    let log = std::fs::read_to_string(audit).unwrap();
    let events: Vec<&str> = log.lines().collect();
    let ends = ",\"ends_connections\":true}";
    for (at, expected, does_end) in [
        (0, "\"admitted\",\"export\":\"a\"", false),
        (1, "\"admitted\",\"export\":\"same\"", false),
        (2, "\"changed\",\"export\":\"a\"", true),
        (3, "\"changed\",\"export\":\"same\"", false),
        (4, "\"admitted\",\"export\":\"b\"", false),
        (5, "\"refused\",\"reason\":", false),
    ] {
        assert!(events[at].contains(expected), "{log}");
        assert_eq!(events[at].ends_with(ends), does_end, "{log}");
    }
    assert_eq!(events.len(), 6, "{log}");
}

#[test]
fn it_reloads_without_dropping_and_drains() {
    let directory = tempfile::tempdir().unwrap();
    let (port, metrics) = (free_port(), free_port());
    let audit = directory.path().join("audit");
    let with_metrics = |rest: &str| {
        format!(
            "metrics = \"127.0.0.1:{metrics}\"\naudit_log = \"{}\"\n{rest}",
            audit.display()
        )
    };
    let first = with_metrics(&format!("{TENANT}{READ_ONLY}"));
    let config = write_config(directory.path(), port, &first);
    let Some((mut child, mut messages)) = start_ready(&config) else {
        return;
    };
    let mut old = Client::connect(address(port)).go("a");
    let mut same = Client::connect(address(port)).go("same");
    old.write(0, b"before");
    let mut next = || {
        let mut line = String::new();
        messages.read_line(&mut line).unwrap();
        line
    };
    let more = format!(
        "connections_max = 9\n{TENANT}read_only = true\n{READ_ONLY}description = \"new\"\n\
         [[device]]\npath = \"{}\"\ncreate = \"1MiB\"\n\
         [[tenant]]\nexport = \"b\"\ndevice = \"{0}\"\n",
        directory.path().join("new").display()
    );
    write_config(directory.path(), port, &with_metrics(&more));
    signal(&child, "-HUP");
    let line = next();
    let expected =
        "ended: [\"a (read-only)\"], restart_refuses: None, after_restart: [\"connections_max\"] }";
    assert!(line.contains(expected), "{line}");
    // Who might write and may not any more is gone; the other one goes on. A new connection sees
    // the new configuration, and the same data.
    assert!(old.is_closed());
    assert_eq!(same.read(0, 6), b"before");
    let mut new = Client::connect(address(port)).go("a");
    assert_eq!(new.read(0, 6), b"before");
    assert_eq!(new.exchange(0, WRITE, (0, 1), b"x"), 1);
    Client::connect(address(port)).go("b").write(0, b"b");
    write_config(directory.path(), port, &more.replace("1MiB", "1MB"));
    signal(&child, "-HUP");
    let line = next();
    assert!(
        line.contains("NotReloaded") && line.contains("blocks.toml:6"),
        "{line}"
    );
    assert_eq!(same.read(0, 6), b"before");
    counts_and_logs(metrics, &audit);
    write_config(directory.path(), port, &with_metrics(TENANT));
    signal(&child, "-HUP");
    let line = next();
    let expected = "changed: [\"a (read_only from true to false)\"], ended: [\"same (gone)\", \"b (gone)\"], restart_refuses: None, after_restart: [] }";
    assert!(line.contains(expected), "{line}");
    assert!(same.is_closed());
    let log = std::fs::read_to_string(&audit).unwrap();
    let removed = "\"removed\",\"export\":\"b\"";
    assert!(
        log.lines().skip(6).any(|line| line.contains(removed)),
        "{log}"
    );
    // The device of the removed tenant is free again, with its data.
    write_config(directory.path(), port, &with_metrics(&more));
    signal(&child, "-HUP");
    let line = next();
    assert!(line.contains("exports: [\"a\", \"same\", \"b\"]"), "{line}");
    assert_eq!(Client::connect(address(port)).go("b").read(0, 1), b"b");
    std::fs::remove_file(directory.path().join("new")).unwrap();
    signal(&child, "-HUP");
    let mut line = next();
    if line.contains("new was deleted") {
        // The reload before looked at its files only now.
        line = next();
    }
    assert!(line.contains("Reloaded {"), "{line}");
    let line = next();
    assert!(line.contains("new was deleted"), "{line}");
    signal(&child, "-TERM");
    assert!(new.is_closed());
    assert!(child.wait().unwrap().success());
}

/// Requests that wait for tokens are answered; then nobody writes to what another one has now, or
/// to another disk under the old name.
#[test]
fn a_renamed_or_moved_tenant_s_client_cannot_write_any_more() {
    let other = "[[device]]\nname = \"other\"\nmemory = \"1MiB\"\n";
    let before = format!("{other}{TENANT}");
    let renamed = before.replace("\"a\"", "\"b\"");
    let moved = before.replace("device = \"ram\"", "device = \"other\"");
    for (after, export, found) in [(renamed, "b", b"old"), (moved, "a", &[0; 3])] {
        let directory = tempfile::tempdir().unwrap();
        let port = free_port();
        let config = write_config(directory.path(), port, &before);
        let Some((mut child, mut messages)) = start_ready(&config) else {
            return;
        };
        let mut old = Client::connect(address(port)).go("a");
        let mut half = Client::connect(address(port)).go("a");
        // The first half of a write: it is never carried out.
        half.send(0, WRITE, 0, 1 << 19, &[9; 1 << 18]);
        old.write(0, b"old");
        write_config(directory.path(), port, &after);
        signal(&child, "-HUP");
        let mut line = String::new();
        messages.read_line(&mut line).unwrap();
        assert!(
            line.contains("ended: [\"a (gone)\"]")
                || line.contains("ended: [\"a (on another device)\"]"),
            "{line}"
        );
        // No time for the shard to look at its connections by itself.
        old.send(0, WRITE, 0, 3, b"bad");
        assert!(old.is_closed() && half.is_closed());
        let mut new = Client::connect(address(port)).go(export);
        assert_eq!(&new.read(0, 3), found);
        signal(&child, "-TERM");
        assert!(child.wait().unwrap().success());
    }
}

/// `/status` says that the server ends, since when, and what is left.
#[test]
fn a_drain_says_what_it_waits_for() {
    let directory = tempfile::tempdir().unwrap();
    let (port, metrics) = (free_port(), free_port());
    let text = format!("metrics = \"127.0.0.1:{metrics}\"\n{TENANT}");
    let config = write_config(directory.path(), port, &text);
    // Longer than a busy machine takes to look.
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("drain_s = 2", "drain_s = 60")).unwrap();
    let Some((mut child, mut messages)) = start_ready(&config) else {
        return;
    };
    let status = || -> serde_json::Value {
        let page = page(metrics, "/status");
        serde_json::from_str(page.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    let mut client = Client::connect(address(port)).go("a");
    let idle = Client::connect(address(port)).go("a");
    let now = status();
    assert_eq!(
        (&now["draining"], &now["connections"]),
        (&serde_json::Value::Null, &2.into())
    );
    // Half of a write: the drain waits for the rest.
    client.send(0, WRITE, 0, 6, b"hal");
    let before_unix_s = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    signal(&child, "-TERM");
    let mut line = String::new();
    messages.read_line(&mut line).unwrap();
    assert!(line.contains("Draining"), "{line}");
    let mut now = status();
    for _ in 0..2000 {
        if now["connections"] == 1 && !now["draining"].is_null() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        now = status();
    }
    let draining = &now["draining"];
    assert_eq!(
        (&now["connections"], &draining["requests"]),
        (&1.into(), &1.into()),
        "{now}"
    );
    let left_s = draining["left_s"].as_u64().unwrap();
    assert!((1..=60).contains(&left_s), "{now}");
    let since_unix_s = draining["since_unix_s"].as_u64().unwrap();
    assert!(
        (before_unix_s..before_unix_s + 30).contains(&since_unix_s),
        "{now}"
    );
    client.stream.write_all(b"hal").unwrap();
    assert_eq!(client.simple().0, 0);
    assert!(client.is_closed());
    drop(idle);
    assert!(child.wait().unwrap().success());
}

/// The kernel releases address and file of a killed server a moment late: the next one waits.
#[test]
fn a_killed_server_starts_again_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let (port, metrics) = (free_port(), free_port());
    let text = format!(
        "metrics = \"127.0.0.1:{metrics}\"\n[[device]]\npath = \"{}\"\ncreate = \"1MiB\"\n\
         [[tenant]]\nexport = \"a\"\ndevice = \"{0}\"\n",
        directory.path().join("disk").display()
    );
    let config = write_config(directory.path(), port, &text);
    for _ in 0..5 {
        let Some((mut child, _messages)) = start_ready(&config) else {
            return;
        };
        let mut client = Client::connect(address(port)).go("a");
        client.write(0, b"x");
        signal(&child, "-KILL");
        child.wait().unwrap();
    }
}

/// What is in the way of a start is in the audit log, and nobody was admitted.
#[test]
fn a_start_that_fails_admits_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let text = format!("audit_log = \"{}\"\n{TENANT}", audit.display());
    let config = write_config(directory.path(), port, &text);
    let Some((mut child, line, mut messages)) = start_process(&config) else {
        return;
    };
    assert!(line.contains(&port.to_string()), "{line}");
    let mut refused = String::new();
    messages.read_line(&mut refused).unwrap();
    assert!(
        refused.contains("blocks.toml:1: listen: ") && refused.contains("`ss -ltnp`"),
        "{refused}"
    );
    assert_eq!(child.wait().unwrap().code(), Some(2));
    let log = std::fs::read_to_string(&audit).unwrap();
    assert!(log.contains("\"refused\",\"reason\":"), "{log}");
    assert_eq!(log.lines().count(), 1, "{log}");
}

#[test]
fn what_cannot_be_served_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    std::fs::write(&image, [0; 4096]).unwrap();
    let file = format!(
        "[[device]]\npath = \"{}\"\n[[tenant]]\nexport = \"a\"\ndevice = \"{0}\"\n",
        image.display()
    );
    let _lock = {
        let file = std::fs::File::open(&image).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockShared).unwrap();
        file
    };
    let locked = format!("is locked by process {} (", std::process::id());
    for (rest, expected) in [
        (file.as_str(), "blocks.toml:4: device.path: "),
        (file.as_str(), &locked),
        (
            "[[device]]\npath = \"/no/such\"\n[[tenant]]\nexport = \"a\"\ndevice = \"/no/such\"\n",
            "blocks.toml:4: device.path: /no/such cannot be opened",
        ),
    ] {
        let config = write_config(directory.path(), free_port(), rest);
        let Some((mut child, line, _messages)) = start_process(&config) else {
            return;
        };
        assert!(line.contains(expected), "{line}");
        assert_eq!(child.wait().unwrap().code(), Some(2));
    }
}

/// A loop device, which is detached in the end. `None` without the privilege.
struct Loop(String);

impl Loop {
    #[expect(clippy::print_stdout, reason = "a skipped test says why")]
    fn attach(image: &Path) -> Option<Self> {
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(image)
            .output()
            .ok()?;
        if !output.status.success() {
            println!(
                "SKIP: no loop device: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            return None;
        }
        Some(Self(
            String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        ))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_block_device_is_served_and_a_mounted_one_refused() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    std::fs::File::create(&image)
        .unwrap()
        .set_len(16 << 20)
        .unwrap();
    let Some(device) = Loop::attach(&image) else {
        return;
    };
    let tenant = format!(
        "[[device]]\npath = \"{}\"\n[[tenant]]\nexport = \"a\"\ndevice = \"{0}\"\n",
        device.0
    );
    let port = free_port();
    let config = write_config(directory.path(), port, &tenant);
    let Some((mut child, _messages)) = start_ready(&config) else {
        return;
    };
    let mut client = Client::connect(address(port)).go("a");
    for (offset, len) in [(0, 4096), (512, 512), (5, 1000), ((16 << 20) - 1, 1)] {
        client.write(offset, &vec![9; len]);
        assert_eq!(client.read(offset, len), vec![9; len]);
    }
    assert_eq!(client.exchange(1, 6, (0, 1 << 20), &[]), 0);
    assert_eq!(client.exchange(1, 6, (100, 1000), &[]), 0);
    assert_eq!(client.exchange(1, 4, (1 << 20, 1 << 20), &[]), 0);
    assert!(client.read(0, 4096).iter().all(|&byte| byte == 0));
    assert_eq!(client.exchange(0, FLUSH, (0, 0), &[]), 0);
    signal(&child, "-TERM");
    assert!(child.wait().unwrap().success());
    // A server that has the image keeps another one from the loop device.
    let lock = std::fs::File::open(&image).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let (mut child, line, _messages) = start_process(&config).unwrap();
    let expected = format!("{} is a loop device on {}", device.0, image.display());
    assert!(line.contains(&expected), "{line}");
    assert_eq!(child.wait().unwrap().code(), Some(2));
    drop(lock);
    // The image behind the loop device is in use, too.
    let own = format!(
        "[[device]]\npath = \"{}\"\n[[tenant]]\nexport = \"a\"\ndevice = \"{0}\"\n",
        image.display()
    );
    let config = write_config(directory.path(), port, &own);
    let (mut child, line, _messages) = start_process(&config).unwrap();
    assert!(
        line.contains(&format!("in use by the loop device {}", device.0)),
        "{line}"
    );
    child.wait().unwrap();
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-F", &device.0])
        .status();
    if !made.is_ok_and(|status| status.success()) {
        return skip("mkfs.ext4 cannot be run");
    }
    let mount = directory.path().join("mnt");
    std::fs::create_dir(&mount).unwrap();
    let mounted = Command::new("mount").arg(&device.0).arg(&mount).status();
    if !mounted.unwrap().success() {
        return skip("a file system cannot be mounted here");
    }
    let config = write_config(directory.path(), port, &tenant);
    let (mut child, line, _messages) = start_process(&config).unwrap();
    Command::new("umount").arg(&mount).status().unwrap();
    let expected = format!("{} is mounted on {}", device.0, mount.display());
    assert!(line.contains(&expected), "{line}");
    assert_eq!(child.wait().unwrap().code(), Some(2));
}

#[expect(clippy::print_stdout, reason = "a skipped test says why")]
fn skip(why: &str) {
    println!("SKIP: {why}");
}

/// Blocks of 4 KiB that one connection of the load owns.
const OWN_BLOCKS: u64 = 256;
const BLOCK: usize = 4096;

fn block(number: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    for word in bytes.chunks_exact_mut(16) {
        word[..8].copy_from_slice(&number.to_le_bytes());
        word[8..].copy_from_slice(&version.to_le_bytes());
    }
    bytes
}

/// What one connection knows of its blocks: the version that is surely there, and the newest that
/// may be.
struct Ledger {
    durable: Vec<u64>,
    newest: Vec<u64>,
}

/// Writes until the server is gone. Half of the writes have FUA; the others count once a flush that
/// came after their answer is answered.
fn load(port: u16, lane: u64, seed: u64, ledger: &mut Ledger) {
    let mut random = rand_chacha(seed ^ lane);
    let Ok(stream) = std::panic::catch_unwind(|| Client::connect(address(port)).go("disk")) else {
        return;
    };
    let mut client = stream;
    let mut unflushed: Vec<(usize, u64)> = Vec::new();
    let answer = |client: &mut Client| {
        let mut header = [0; 16];
        match client.stream.read_exact(&mut header) {
            Ok(()) => {
                assert_eq!(header[4..8], [0; 4]);
                true
            }
            Err(_) => false,
        }
    };
    loop {
        let own = random.random_range(0..OWN_BLOCKS);
        let at = usize::try_from(own).unwrap();
        let number = lane * OWN_BLOCKS + own;
        let version = ledger.newest[at] + 1;
        let is_durable = random.random_bool(0.5);
        let mut bytes = client.request(
            u16::from(is_durable),
            WRITE,
            number * BLOCK as u64,
            BLOCK as u64,
        );
        bytes.extend(block(number, version));
        ledger.newest[at] = version;
        if client.stream.write_all(&bytes).is_err() || !answer(&mut client) {
            return;
        }
        if is_durable {
            ledger.durable[at] = version;
            unflushed.retain(|&(other, _)| other != at);
        } else {
            unflushed.push((at, version));
        }
        if random.random_bool(0.05) {
            let bytes = client.request(0, FLUSH, 0, 0);
            if client.stream.write_all(&bytes).is_err() || !answer(&mut client) {
                return;
            }
            for (at, version) in unflushed.drain(..) {
                ledger.durable[at] = ledger.durable[at].max(version);
            }
        }
    }
}

fn rand_chacha(seed: u64) -> rand::rngs::StdRng {
    rand::rngs::StdRng::seed_from_u64(seed)
}

/// What was answered is there after the server was killed, and no block is torn or another's.
#[test]
fn nothing_answered_is_lost_when_the_server_is_killed() {
    const LANES: u64 = 4;
    let rounds: u64 = std::env::var("SLACKLINE_KILLS")
        .ok()
        .map_or(6, |text| text.parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk");
    let port = free_port();
    let tenant = format!(
        "[[device]]\npath = \"{}\"\ncreate = \"8MiB\"\n[[tenant]]\nexport = \"disk\"\ndevice = \"{0}\"\n",
        disk.display()
    );
    let config = write_config(directory.path(), port, &tenant);
    let mut ledgers: Vec<Ledger> = (0..LANES)
        .map(|_| Ledger {
            durable: vec![0; OWN_BLOCKS.try_into().unwrap()],
            newest: vec![0; OWN_BLOCKS.try_into().unwrap()],
        })
        .collect();
    let mut random = rand_chacha(48);
    for round in 0..rounds {
        let Some((mut child, _messages)) = start_ready(&config) else {
            return;
        };
        std::thread::scope(|scope| {
            for (ledger, lane) in ledgers.iter_mut().zip(0..) {
                scope.spawn(move || load(port, lane, round * 1000, ledger));
            }
            std::thread::sleep(Duration::from_millis(random.random_range(20..400)));
            signal(&child, "-KILL");
        });
        child.wait().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let bytes = std::fs::read(&disk).unwrap();
        for (ledger, lane) in ledgers.iter_mut().zip(0..) {
            for at in 0..usize::try_from(OWN_BLOCKS).unwrap() {
                let number = lane * OWN_BLOCKS + at as u64;
                let start = usize::try_from(number).unwrap() * BLOCK;
                let found = &bytes[start..start + BLOCK];
                let version = u64::from_le_bytes(found[8..16].try_into().unwrap());
                let (durable, newest) = (ledger.durable[at], ledger.newest[at]);
                assert!(
                    (durable..=newest).contains(&version),
                    "round {round}: block {number} has version {version}, not {durable} to {newest}"
                );
                let is_whole = version == 0 || found == block(number, version);
                assert!(is_whole, "round {round}: block {number} is torn");
                // What is on the disk now is not lost any more. A write that was under way at the
                // kill may still come, as the kernel ends a killed process's requests later.
                ledger.durable[at] = version;
            }
        }
    }
    let answered: u64 = ledgers.iter().flat_map(|ledger| &ledger.durable).sum();
    assert!(answered > rounds, "the load wrote {answered} versions only");
}

/// A sparse file on a full file system: the request that needs the space fails, and nothing else.
#[test]
fn a_full_disk_is_an_error_of_its_own_request() {
    let directory = tempfile::tempdir().unwrap();
    let mount = directory.path().join("small");
    std::fs::create_dir(&mount).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=4m", "none"])
        .arg(&mount)
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        return skip("a file system cannot be mounted here");
    }
    let port = free_port();
    let tenant = format!(
        "[[device]]\npath = \"{}\"\ncreate = \"64MiB\"\n[[tenant]]\nexport = \"disk\"\ndevice = \"{0}\"\n",
        mount.join("disk").display()
    );
    let config = write_config(directory.path(), port, &tenant);
    let started = start_ready(&config);
    if let Some((mut child, _messages)) = started {
        let mut client = Client::connect(address(port)).go("disk");
        client.write(0, &vec![1; 1 << 20]);
        let range = (8 << 20, 8 << 20);
        let error = client.exchange(0, WRITE, range, &vec![2; 8 << 20]);
        assert_eq!(error, 28);
        assert!(client.read(0, 1 << 20).iter().all(|&byte| byte == 1));
        // Zeros where there is nothing need no space.
        assert_eq!(client.exchange(0, 6, (32 << 20, 1 << 20), &[]), 0);
        // A trim makes room again.
        assert_eq!(client.exchange(0, 4, (8 << 20, 8 << 20), &[]), 0);
        client.write(40 << 20, &vec![3; 1 << 20]);
        signal(&child, "-TERM");
        assert!(child.wait().unwrap().success());
    }
    Command::new("umount").arg(&mount).status().unwrap();
}
