//! Where servers and client run, and how a server starts.

use std::fs::File;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::bench::ip;

pub(super) const PORT: u16 = 17_311;
/// Where all servers listen, in a namespace of their own.
pub(super) const SERVER: &str = "10.77.0.2";
const CLIENT: &str = "10.77.0.1";
/// The veth's name, on both sides.
pub(super) const INTERFACE: &str = "bench0";
/// How long the last server's port may stay in use: the kernel closes the sockets of an io_uring,
/// and 10,000 connections, a moment after their process has ended.
const FREE_WITHIN: Duration = Duration::from_secs(20);
/// How long a server may take until it answers.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// An attempt to connect takes this long at most. Without a bound one lost SYN costs a second, and
/// four cost 15.
const CONNECT_WITHIN: Duration = Duration::from_millis(250);
const RETRY_EVERY: Duration = Duration::from_millis(20);
/// Lines of a server's messages that a failure shows.
const LINES_SHOWN: usize = 8;

/// Two network namespaces with a veth pair between them, removed when dropped.
pub(super) struct Cable {
    pub(super) server: String,
    pub(super) client: String,
}

impl Cable {
    pub(super) fn new() -> anyhow::Result<Self> {
        let id = std::process::id();
        let [server, client] = ["s", "c"].map(|side| format!("slackline-bench-{id}{side}"));
        let cable = Self { server, client };
        let (server, client) = (&cable.server, &cable.client);
        ip(&format!("netns add {server}"))?;
        ip(&format!("netns add {client}"))?;
        ip(&format!(
            "link add {INTERFACE} netns {server} type veth peer name {INTERFACE} netns {client}"
        ))?;
        for (namespace, address) in [(server, SERVER), (client, CLIENT)] {
            // The part `million` connects from many addresses of the client's network.
            ip(&format!(
                "-n {namespace} address add {address}/16 dev {INTERFACE}"
            ))?;
            // AF_XDP takes packets as they would be on a cable, not the kernel's larger ones.
            ip(&format!(
                "-n {namespace} link set {INTERFACE} gso_max_segs 1 up"
            ))?;
            ip(&format!("-n {namespace} link set lo up"))?;
        }
        Ok(cable)
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for namespace in [&self.server, &self.client] {
            let _ = ip(&format!("netns delete {namespace}"));
        }
    }
}

/// The kernel's receive work of each side runs on that side's CPU until this is dropped
/// (Documentation/networking/scaling.rst, RPS), as with a device whose interrupts go there.
pub(super) struct Steering {
    namespace: String,
}

impl Steering {
    /// Called in the client's namespace.
    pub(super) fn start(namespace: &str) -> anyhow::Result<Self> {
        let steering = Self {
            namespace: namespace.to_owned(),
        };
        // Masks of CPUs: the server has CPU 0, and the client CPU 1.
        steering.set("1", "2")?;
        Ok(steering)
    }

    fn set(&self, server: &str, client: &str) -> anyhow::Result<()> {
        let path = format!("/sys/class/net/{INTERFACE}/queues/rx-0/rps_cpus");
        std::fs::write(&path, client).with_context(|| path.clone())?;
        let status = Command::new("ip")
            .args(["netns", "exec", &self.namespace, "sh", "-c"])
            .arg(format!("echo {server} > {path}"))
            .status()?;
        anyhow::ensure!(status.success(), "{path} cannot be written");
        Ok(())
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        let _ = self.set("0", "0");
    }
}

/// A server process, ended when dropped.
pub(super) struct Server(Child);

impl Server {
    /// Starts a server in its namespace, and waits until it answers. Its messages go into `log`.
    pub(super) fn start(namespace: &str, command: &[String], log: &Path) -> anyhow::Result<Self> {
        let [program, arguments @ ..] = command else {
            bail!("no program")
        };
        wait_until_free()?;
        let messages = File::create(log).with_context(|| log.display().to_string())?;
        let child = Command::new("ip")
            .args(["netns", "exec", namespace])
            .arg(program)
            .args(arguments)
            .stdout(messages.try_clone()?)
            .stderr(messages)
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| program.clone())?;
        let mut server = Self(child);
        let deadline = Instant::now() + ANSWER_WITHIN;
        loop {
            let Err(error) = connect() else {
                return Ok(server);
            };
            if let Some(status) = server.0.try_wait()? {
                bail!("{program} ended ({status}): {}", last_lines(log));
            }
            if Instant::now() > deadline {
                bail!(
                    "{program} does not answer on port {PORT} ({error}): {}",
                    last_lines(log)
                );
            }
            std::thread::sleep(RETRY_EVERY);
        }
    }

    /// The number of the server's process.
    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn connect() -> std::io::Result<TcpStream> {
    let address: IpAddr = SERVER.parse().map_err(std::io::Error::other)?;
    TcpStream::connect_timeout(&SocketAddr::new(address, PORT), CONNECT_WITHIN)
}

/// Waits until connections to the servers' port are refused. Any other answer says that something
/// of the last server is still there.
fn wait_until_free() -> anyhow::Result<()> {
    let deadline = Instant::now() + FREE_WITHIN;
    loop {
        let what = match connect() {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(()),
            Err(error) => error.to_string(),
            Ok(_) => "something listens".into(),
        };
        if Instant::now() > deadline {
            bail!("{SERVER}:{PORT} is not free: {what}");
        }
        std::thread::sleep(RETRY_EVERY);
    }
}

fn last_lines(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let shown = &lines[lines.len().saturating_sub(LINES_SHOWN)..];
    match shown {
        [] => "it says nothing".into(),
        shown => shown.join(" | "),
    }
}
