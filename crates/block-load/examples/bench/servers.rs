//! The servers that are compared, each pinned to CPU 0.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use crate::Fallible;

/// The subsystem of NVMe/TCP.
pub(crate) const NQN: &str = "nqn.2026-11.com.example:bench";

/// Where the first server listens. Each has three ports of its own, so that none waits for
/// another's old connections.
static NEXT_PORT: AtomicU16 = AtomicU16::new(17_810);

/// The port of the server that is started next. Those after it are for its metrics and NVMe/TCP.
pub(crate) fn next_port() -> u16 {
    NEXT_PORT.load(Ordering::Relaxed)
}
/// How long a server may take to listen.
const START: Duration = Duration::from_secs(10);

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `slackline serve-block`, with what an idle shard does.
    Ours(&'static str),
    /// The same over NVMe/TCP.
    OursNvme,
    Nbdkit,
    QemuNbd,
    StorageDaemon,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours("spin") => "serve-block, spinning",
            Self::Ours(_) => "serve-block",
            Self::OursNvme => "serve-block, NVMe/TCP",
            Self::Nbdkit => "nbdkit",
            Self::QemuNbd => "qemu-nbd",
            Self::StorageDaemon => "qemu-storage-daemon",
        }
    }
}

/// What is exported.
#[derive(Clone, Debug)]
pub(crate) enum Disk {
    /// Memory: `slackline` and nbdkit have a device for that, QEMU gets a file on tmpfs.
    Ram { size_bytes: u64, tmpfs: PathBuf },
    /// A file, with `O_DIRECT` where the server has that.
    File(PathBuf),
}

/// A running server, ended when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts a server of one export, `a`.
    pub(crate) fn start(kind: Kind, disk: &Disk, work: &Path, slackline: &Path) -> Fallible<Self> {
        let port = next_port().to_string();
        let mut words: Vec<String> = Vec::new();
        let mut add = |text: &[&str]| words.extend(text.iter().map(|word| (*word).to_owned()));
        match (kind, disk) {
            (Kind::Ours(_) | Kind::OursNvme, _) => {
                let idle = match kind {
                    Kind::Ours(idle) => idle,
                    _ => "learn",
                };
                let device = match disk {
                    Disk::Ram { size_bytes, .. } => {
                        format!("name = \"d\"\nmemory = \"{size_bytes}\"\n")
                    }
                    Disk::File(path) => format!("name = \"d\"\npath = {path:?}\n"),
                };
                let config =
                    format!("[[device]]\n{device}[[tenant]]\nexport = \"a\"\ndevice = \"d\"\n");
                return Self::ours(&config, idle, work, slackline);
            }
            (Kind::Nbdkit, _) => {
                add(&["nbdkit", "-f", "-i", "127.0.0.1", "-p", &port]);
                match disk {
                    Disk::Ram { size_bytes, .. } => add(&["memory", &size_bytes.to_string()]),
                    Disk::File(path) => add(&["file", &path.display().to_string(), "cache=none"]),
                }
            }
            (Kind::QemuNbd, _) => {
                let (path, cache, aio) = file_of(disk);
                add(&[
                    "qemu-nbd",
                    "-t",
                    "-e",
                    "64",
                    "-f",
                    "raw",
                    "-b",
                    "127.0.0.1",
                    "-p",
                    &port,
                ]);
                add(&["-x", "a", cache, aio, &path]);
            }
            (Kind::StorageDaemon, _) => {
                let (path, _, _) = file_of(disk);
                let how = match disk {
                    Disk::Ram { .. } => "aio=threads",
                    Disk::File(_) => "aio=io_uring,cache.direct=on",
                };
                let blockdev = format!("driver=file,node-name=f,filename={path},{how}");
                let server = format!(
                    "addr.type=inet,addr.host=127.0.0.1,addr.port={port},max-connections=0"
                );
                add(&[
                    "qemu-storage-daemon",
                    "--blockdev",
                    &blockdev,
                    "--nbd-server",
                    &server,
                ]);
                add(&["--export", "type=nbd,id=e,node-name=f,name=a,writable=on"]);
            }
        }
        Self::spawn(&words)
    }

    /// Starts `slackline` with a configuration of devices and tenants.
    pub(crate) fn ours(config: &str, idle: &str, work: &Path, slackline: &Path) -> Fallible<Self> {
        let file = work.join("blocks.toml");
        let port = next_port();
        let head = format!(
            "listen = [\"127.0.0.1:{port}\"]\nmetrics = \"127.0.0.1:{}\"\ncores = [0]\nmemory = \"1GiB\"\n\
             nvme = {{ listen = [\"127.0.0.1:{}\"], subsystem = \"{NQN}\" }}\n",
            port + 1,
            port + 2
        );
        fs::write(&file, head + config)?;
        let words = [
            &slackline.display().to_string(),
            "serve-block",
            "run",
            &file.display().to_string(),
            "--idle",
            idle,
        ];
        Self::spawn(&words.map(str::to_owned))
    }

    /// Starts any server that listens at [`next_port`].
    pub(crate) fn spawn(words: &[String]) -> Fallible<Self> {
        let mut command = Command::new("taskset");
        command.args(["-c", "0"]).args(words);
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let address = SocketAddr::from(([127, 0, 0, 1], NEXT_PORT.fetch_add(3, Ordering::Relaxed)));
        let mut server = Self { child, address };
        let end = Instant::now() + START;
        while TcpStream::connect(address).is_err() {
            if let Some(status) = server.child.try_wait()? {
                return Err(format!("{words:?} ended: {status}").into());
            }
            if Instant::now() > end {
                return Err(format!("{words:?} does not listen").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Where our own server serves NVMe/TCP.
    pub(crate) fn nvme(&self) -> SocketAddr {
        SocketAddr::new(self.address.ip(), self.address.port() + 2)
    }

    /// The process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU time of all threads, also of those that have ended, to 10 ms.
    pub(crate) fn cpu_s(&self) -> f64 {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = fs::read_to_string(path).unwrap_or_default();
        // The name, in parentheses, may hold anything; user and system time are the 12th and 13th
        // field behind it.
        let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
        let times = fields.split_whitespace().skip(11).take(2);
        let ticks: f64 = times.filter_map(|field| field.parse::<f64>().ok()).sum();
        ticks / rustix::param::clock_ticks_per_second() as f64
    }
}

fn file_of(disk: &Disk) -> (String, &'static str, &'static str) {
    match disk {
        Disk::Ram { tmpfs, .. } => (
            tmpfs.display().to_string(),
            "--cache=writeback",
            "--aio=threads",
        ),
        Disk::File(path) => (path.display().to_string(), "--cache=none", "--aio=io_uring"),
    }
}
