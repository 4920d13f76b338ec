//! `serve-block` and Linux' own clients of NVMe/TCP and NBD, which run in a guest.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::machine::{Machine, found, run};
use crate::toy::{free_port, postgres_programs, skip};

const TIMEOUT: Duration = Duration::from_secs(300);
const NQN: &str = "nqn.2026-11.example:guest";
const INIT: &str = include_str!("guest/block.sh");
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
    "drivers/block/nbd.ko",
];

fn configuration(directory: &Path, [nvme, nbd]: [u16; 2], more: &str) -> std::path::PathBuf {
    let path = directory.join("blocks.toml");
    let disk = directory.join("disk");
    let text = format!(
        "listen = [\"127.0.0.1:{nbd}\"]\nnvme = {{ listen = [\"127.0.0.1:{nvme}\"], subsystem = \"{NQN}\" }}\n\
         [[device]]\npath = \"{0}\"\ncreate = \"64MiB\"\n\
         [[device]]\nname = \"ram\"\nmemory = \"16MiB\"\n\
         [[tenant]]\nexport = \"disk\"\ndevice = \"{0}\"\n\
         [[device]]\npath = \"{1}\"\n\
         [[tenant]]\nexport = \"fixed\"\ndevice = \"ram\"\nread_only = true\n\
         [[tenant]]\nexport = \"database\"\ndevice = \"{1}\"\n{more}",
        disk.display(),
        directory.join("database").display()
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// Puts PostgreSQL into the guest, and a file system with its data directory into a file of
/// `directory`. False: something is missing, which says SKIP.
fn add_database(machine: &Machine, directory: &Path) -> bool {
    let Some(programs) = postgres_programs() else {
        skip(&"PostgreSQL's server is missing: cargo xtask install");
        return false;
    };
    for program in ["postgres", "psql"] {
        machine.install(&programs.join(program));
    }
    let version = programs.parent().unwrap().file_name().unwrap();
    let zones = Path::new("/usr/share/postgresql").join(version);
    let zones = zones.join("timezonesets/Default");
    let text = std::fs::read_to_string(&zones).unwrap();
    machine.write(zones.to_str().unwrap().trim_start_matches('/'), &text);
    let tree = directory.join("tree");
    std::fs::create_dir(&tree).unwrap();
    // PostgreSQL does not run as root.
    let mut initdb = if rustix::process::geteuid().is_root() {
        run(Command::new("chmod").arg("755").arg(directory));
        run(Command::new("chown").arg("postgres").arg(&tree));
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
        command.arg(programs.join("initdb"));
        command
    } else {
        Command::new(programs.join("initdb"))
    };
    run(initdb
        .arg("-D")
        .arg(tree.join("data"))
        .args(["-A", "trust", "-U", "postgres", "--no-sync"])
        .args(["--locale=C", "--encoding=UTF8", "--data-checksums"])
        .arg("--wal-segsize=1")
        // The only time zone that needs no files in the guest.
        .env("TZ", "GMT")
        .current_dir("/"));
    let owner = std::fs::metadata(tree.join("data")).unwrap().uid();
    machine.write(
        "etc/passwd",
        &format!("root:x:0:0::/:/bin/sh\npg:x:{owner}:{owner}::/tmp:/bin/sh\n"),
    );
    run(Command::new(found("mkfs.ext4").unwrap())
        .args(["-q", "-F", "-d"])
        .arg(&tree)
        .arg(directory.join("database"))
        .arg("96M"));
    std::fs::remove_dir_all(&tree).unwrap();
    true
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
        assert!(line.contains("NVMe/TCP on 127.0.0.1"), "{line}");
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

/// The steps of the guest that succeed, with parts of what each prints.
const STEPS: &[(&str, &[&str])] = &[
    (
        "discover",
        &["trtype:  tcp", NQN, "subtype: nvme subsystem"],
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
    ("fio", &["fio verified what it wrote"]),
    ("zeroes", &["0"]),
    ("discard", &[]),
    ("file_system", &["the file is the same"]),
    ("database", &["PostgreSQL answers"]),
    (
        "outlive",
        &[
            "connection lost\nstate live\nfio goes on\ncommits go on",
            "fio verified what it wrote",
            "\nwrites go on",
        ],
    ),
    (
        "database_crash",
        &["PostgreSQL answers\nall committed rows are there"],
    ),
    ("reload", &["/dev/nvme0n4"]),
    ("disconnect", &["disconnected 1 controller(s)"]),
    ("connect_digests", &[]),
    ("verify_digests", &["1024 KiB are the same"]),
    ("disconnect_digests", &["disconnected 1 controller(s)"]),
    ("gone", &[]),
    ("nbd_connect", &[]),
    ("nbd_sizes", &["131072\nwrite back\n1\n0\n"]),
    ("nbd_verify", &["4096 KiB are the same"]),
    ("nbd_verify_long", &["4096 KiB are the same"]),
    ("nbd_fio", &["fio verified what it wrote"]),
    ("nbd_file_system", &["the file is the same"]),
    ("nbd_discard", &["0"]),
    ("nbd_disconnect", &[]),
    ("nbd_connect_read_only", &[]),
    ("nbd_read_only", &["1\n"]),
    ("nbd_disconnect_read_only", &[]),
];

#[test]
fn linux_connects_works_outlives_a_restart_and_leaves() {
    let Some(machine) = Machine::new(INIT) else {
        return;
    };
    for program in ["nvme", "nbd-client", "fio", "mkfs.ext4", "e2fsck"] {
        match found(program) {
            Ok(program) => machine.install(&program),
            Err(why) => return skip(&why),
        }
    }
    if !MODULES.iter().all(|module| machine.module(module)) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    if !add_database(&machine, directory.path()) {
        return;
    }
    let ports = [free_port(), free_port()];
    let [nvme, nbd] = ports;
    let settings = format!("NVME_PORT={nvme}\nNBD_PORT={nbd}\nNQN={NQN}\n");
    machine.write("settings", &settings);
    let path = configuration(directory.path(), ports, "");
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
            configuration(directory.path(), ports, more);
            server.as_ref().unwrap().signal("-HUP");
        }
    }
    let steps = guest.finish(TIMEOUT);
    for (step, expected) in STEPS {
        let output = steps.with_code(step, 0);
        for part in *expected {
            assert!(output.contains(part), "{step}: {output}\n{}", steps.console);
        }
    }
    // The host's kernel or the server refuses these.
    for step in ["beyond", "read_only", "nbd_no_such_export", "nbd_connected"] {
        steps.with_code(step, 1);
    }
}
