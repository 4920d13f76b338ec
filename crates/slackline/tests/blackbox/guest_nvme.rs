//! `serve-block` and Linux' own host of NVMe/TCP, which runs in a guest.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::machine::{Machine, found};
use crate::toy::{free_port, skip};

const TIMEOUT: Duration = Duration::from_secs(300);
const NQN: &str = "nqn.2026-11.example:guest";
const INIT: &str = include_str!("guest/nvme.sh");
const MODULES: &[&str] = &[
    "drivers/virtio/virtio_ring.ko",
    "drivers/virtio/virtio.ko",
    "drivers/virtio/virtio_pci_legacy_dev.ko",
    "drivers/virtio/virtio_pci_modern_dev.ko",
    "drivers/virtio/virtio_pci.ko",
    "net/core/failover.ko",
    "drivers/net/net_failover.ko",
    "drivers/net/virtio_net.ko",
    "drivers/nvme/host/nvme-fabrics.ko",
    "drivers/nvme/host/nvme-tcp.ko",
];

fn configuration(directory: &Path, port: u16, more: &str) -> std::path::PathBuf {
    let path = directory.join("blocks.toml");
    let disk = directory.join("disk");
    let text = format!(
        "listen = []\nnvme = {{ listen = [\"127.0.0.1:{port}\"], subsystem = \"{NQN}\" }}\n\
         [[device]]\npath = \"{0}\"\ncreate = \"64MiB\"\n\
         [[device]]\nname = \"ram\"\nmemory = \"16MiB\"\n\
         [[tenant]]\nexport = \"disk\"\ndevice = \"{0}\"\n\
         [[tenant]]\nexport = \"fixed\"\ndevice = \"ram\"\nread_only = true\n{more}",
        disk.display()
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// A server that is ended with the test.
struct Server(Child);

impl Server {
    /// Starts it, and waits until it serves. `None` without io_uring.
    fn start(configuration: &Path) -> Option<Self> {
        let mut child = Command::new(assert_cmd::cargo::cargo_bin!("slackline"))
            .args(["serve-block", "run"])
            .arg(configuration)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut messages = BufReader::new(child.stderr.take().unwrap());
        let server = Self(child);
        let mut line = String::new();
        messages.read_line(&mut line).unwrap();
        if line.contains("io_uring cannot be used") {
            skip(&line);
            return None;
        }
        assert!(line.contains("serving NVMe/TCP on 127.0.0.1"), "{line}");
        // Nobody reads the rest, and the pipe must not fill up.
        std::thread::spawn(move || std::io::copy(&mut messages, &mut std::io::sink()));
        Some(server)
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([name, &self.0.id().to_string()])
            .status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn linux_connects_works_outlives_a_restart_and_leaves() {
    let Some(machine) = Machine::new(INIT) else {
        return;
    };
    for program in ["nvme", "mkfs.ext4", "e2fsck"] {
        match found(program) {
            Ok(program) => machine.install(&program),
            Err(why) => return skip(&why),
        }
    }
    if !MODULES.iter().all(|module| machine.module(module)) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let port = free_port();
    machine.write("settings", &format!("PORT={port}\nNQN={NQN}\n"));
    let path = configuration(directory.path(), port, "");
    let Some(server) = Server::start(&path) else {
        return;
    };
    let mut guest = machine.boot(
        "",
        &[
            "-netdev",
            "user,id=net",
            "-device",
            "virtio-net-pci,netdev=net",
        ],
    );
    let mut server = Some(server);
    if guest.wait_for("killme", TIMEOUT) {
        // The host writes. It notices, and connects again when the server is back.
        std::thread::sleep(Duration::from_secs(1));
        drop(server.take());
        std::thread::sleep(Duration::from_secs(1));
        server = Server::start(&path);
        if guest.wait_for("hangup", TIMEOUT) {
            let more = "[[tenant]]\nexport = \"new\"\ndevice = \"ram\"\nread_only = true\n";
            configuration(directory.path(), port, more);
            server.as_ref().unwrap().signal("-HUP");
        }
    }
    let steps = guest.finish(TIMEOUT);
    for (step, expected) in [
        (
            "discover",
            &["trtype:  tcp", NQN, "subtype: nvme subsystem"][..],
        ),
        ("connect", &[]),
        ("list", &["/dev/nvme0n1", "Slackline serve-block"]),
        (
            "id_ctrl",
            &["subnqn    : nqn.2026-11.example:guest", "mdts      : 8"],
        ),
        ("id_ns", &["nsze    : 0x20000"]),
        ("sizes", &["131072\n512\nwrite back\n1\nuuid."]),
        ("smart", &["available_spare				: 100%"]),
        (
            "features",
            &["Number of IO Submission Queues Allocated (NSQA): 64"],
        ),
        ("errors", &[]),
        ("firmware", &["afi  : 0x1"]),
        ("effects", &[]),
        ("flush", &["NVMe Flush: success"]),
        ("verify", &["4096 KiB are the same"]),
        ("verify_long", &["4096 KiB are the same"]),
        ("zeroes", &["0"]),
        ("discard", &[]),
        ("file_system", &["the file is the same"]),
        ("outlive", &["connection lost\nstate live\nwrites go on"]),
        ("reload", &["/dev/nvme0n3"]),
        ("disconnect", &["disconnected 1 controller(s)"]),
        ("connect_digests", &[]),
        ("verify_digests", &["1024 KiB are the same"]),
        ("disconnect_digests", &["disconnected 1 controller(s)"]),
        ("gone", &[]),
    ] {
        let output = steps.with_code(step, 0);
        for part in expected {
            assert!(output.contains(part), "{step}: {output}\n{}", steps.console);
        }
    }
    // The host's kernel or the server refuses these.
    for step in ["beyond", "read_only"] {
        steps.with_code(step, 1);
    }
}
