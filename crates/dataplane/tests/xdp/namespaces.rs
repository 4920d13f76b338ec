//! Two network namespaces joined by a veth pair, removed when dropped.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace of `ip netns`.
#[derive(Clone, Debug)]
pub(super) struct Namespace {
    pub(super) name: String,
}

impl Namespace {
    /// Runs something on a thread inside of the namespace.
    pub(super) fn run<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> T {
        self.spawn(act).join().unwrap()
    }

    pub(super) fn spawn<T: Send + 'static>(
        &self,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        let file = File::open(format!("/var/run/netns/{}", self.name)).unwrap();
        std::thread::spawn(move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            act()
        })
    }

    /// A command's output inside of the namespace.
    pub(super) fn command(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.prepare(program, arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn prepare(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.name, program])
            .args(arguments);
        command
    }

    /// The example `echo_server` inside of the namespace.
    pub(super) fn example(&self, arguments: &[&str]) -> Output {
        let program = example_path();
        self.prepare(program.to_str().unwrap(), arguments)
            .output()
            .unwrap()
    }

    pub(super) fn spawn_example(&self, arguments: &[&str]) -> Child {
        let program = example_path();
        self.prepare(program.to_str().unwrap(), arguments)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// The same as nobody, without any capability.
    pub(super) fn example_without_privilege(&self, arguments: &[&str]) -> Output {
        // Nobody may not enter root's directories: the program is copied to a place of its own.
        let copy = std::env::temp_dir().join(format!("slackline-xdp-{}", std::process::id()));
        std::fs::copy(example_path(), &copy).unwrap();
        let mut all = vec!["--reuid=65534", "--regid=65534", "--clear-groups", "--"];
        all.push(copy.to_str().unwrap());
        all.extend_from_slice(arguments);
        let output = self.prepare("setpriv", &all).output().unwrap();
        std::fs::remove_file(&copy).unwrap();
        output
    }
}

/// Cargo builds examples along with the tests, beside them.
fn example_path() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("examples/echo_server")
}

/// Two namespaces: the client's `eth0` has 10.77.0.1, the server's `eth0` has 10.77.0.2.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) client: Namespace,
    pub(super) server: Namespace,
    /// Where the ends of a forwarder live.
    pub(super) middle: Namespace,
    /// Queues of each end, each way.
    pub(super) queues: usize,
}

fn ip(arguments: &str) -> Result<(), String> {
    let words: Vec<&str> = arguments.split_whitespace().collect();
    let output = Command::new("ip")
        .args(&words)
        .output()
        .map_err(|error| format!("ip cannot be run: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        let text = String::from_utf8_lossy(&output.stderr);
        Err(format!("ip {arguments}: {}", text.trim()))
    }
}

impl Wire {
    /// Makes namespaces and a veth pair with so many queues. Fails without privilege.
    pub(super) fn new(name: &str, queues: usize) -> Result<Wire, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("network namespaces need root".into());
        }
        let namespace = |end: &str| Namespace {
            name: format!("slx-{}-{name}-{end}", std::process::id()),
        };
        let wire = Wire {
            client: namespace("c"),
            server: namespace("s"),
            middle: namespace("m"),
            queues,
        };
        for namespace in [&wire.client, &wire.server, &wire.middle] {
            ip(&format!("netns add {}", namespace.name))?;
            ip(&format!("-n {} link set lo up", namespace.name))?;
        }
        let (client, server) = (&wire.client.name, &wire.server.name);
        let count = format!("numrxqueues {queues} numtxqueues {queues}");
        ip(&format!(
            "link add eth0 netns {client} {count} type veth peer name eth0 netns {server} {count}"
        ))?;
        wire.address()?;
        Ok(wire)
    }

    fn address(&self) -> Result<(), String> {
        for (namespace, last) in [(&self.client, 1), (&self.server, 2)] {
            let name = &namespace.name;
            ip(&format!("-n {name} address add 10.77.0.{last}/24 dev eth0"))?;
            ip(&format!(
                "-n {name} address add fd77::{last}/64 dev eth0 nodad"
            ))?;
            ip(&format!("-n {name} link set eth0 up"))?;
        }
        Ok(())
    }

    /// Replaces the wire by two, whose other ends `client` and `server` lie in the middle.
    pub(super) fn cut(&self) {
        let (client, server) = (&self.client.name, &self.server.name);
        let middle = &self.middle.name;
        let all = || -> Result<(), String> {
            ip(&format!("-n {client} link del eth0"))?;
            for (namespace, end) in [(client, "client"), (server, "server")] {
                ip(&format!(
                    "link add eth0 netns {namespace} type veth peer name {end} netns {middle}"
                ))?;
                ip(&format!("-n {middle} link set {end} up"))?;
            }
            // Segments that fit the wire: the forwarder is no device that cuts larger ones.
            ip(&format!("-n {client} link set eth0 gso_max_segs 1"))?;
            self.address()
        };
        all().unwrap();
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for namespace in [&self.client, &self.server, &self.middle] {
            let _ = ip(&format!("netns del {}", namespace.name));
        }
    }
}

/// An interface of this thread's namespace computes no checksums any more (`ETHTOOL_STXCSUM` of
/// linux/ethtool.h).
pub(super) fn compute_no_checksums(interface: &str) -> std::io::Result<()> {
    const ETHTOOL_STXCSUM: u32 = 0x17;
    let mut value = [ETHTOOL_STXCSUM, 0];
    // SAFETY: all-zero bytes are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *place = libc::c_char::from_ne_bytes([byte]);
    }
    request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
    let family = rustix::net::AddressFamily::INET;
    let socket = rustix::net::socket(family, rustix::net::SocketType::DGRAM, None)?;
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: the request is valid, and its data points to a live `ethtool_value`.
    let result = unsafe { libc::ioctl(descriptor, libc::SIOCETHTOOL, &raw mut request) };
    match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
