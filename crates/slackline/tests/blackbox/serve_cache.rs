//! `slackline serve-cache`: how it starts, what it answers, how it ends.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use crate::toy::{free_port, on_uring};

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.arg("serve-cache").stderr(Stdio::piped());
    command
}

/// A server that says it is ready, and what it says. `None` without io_uring.
fn start(arguments: &[&str]) -> Option<(Child, BufReader<std::process::ChildStderr>)> {
    let (child, line, messages) = on_uring(command().args(arguments))?;
    assert!(line.contains("serving memcached's protocol on"), "{line}");
    Some((child, messages))
}

pub(crate) fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args([name, &pid])
            .status()
            .unwrap()
            .success()
    );
}

fn exchange(stream: &mut TcpStream, request: &[u8], answer: &[u8]) {
    stream.write_all(request).unwrap();
    let mut received = vec![0; answer.len()];
    stream.read_exact(&mut received).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&received),
        String::from_utf8_lossy(answer)
    );
}

#[test]
fn it_serves_reloads_and_drains() {
    let directory = tempfile::tempdir().unwrap();
    let settings = directory.path().join("settings.toml");
    std::fs::write(&settings, "objective_p99_us = 500\n").unwrap();
    let (port, metrics) = (free_port(), free_port());
    let arguments = [
        "--listen",
        &format!("127.0.0.1:{port}"),
        "--metrics",
        &format!("127.0.0.1:{metrics}"),
        "--settings",
        settings.to_str().unwrap(),
    ];
    let Some((mut child, mut messages)) = start(&arguments) else {
        return;
    };
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    exchange(&mut client, b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");

    let mut scrape = TcpStream::connect(("127.0.0.1", metrics)).unwrap();
    scrape.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut page = String::new();
    scrape.read_to_string(&mut page).unwrap();
    for expected in [
        "slackline_cache_cmd_set_total 1\n",
        "slackline_shard_batch_events_bucket{shard=\"0\",le=\"1\"}",
    ] {
        assert!(page.contains(expected), "{page}");
    }

    let mut line = String::new();
    std::fs::write(&settings, "idle_timeout_s = 7\n").unwrap();
    signal(&child, "-HUP");
    messages.read_line(&mut line).unwrap();
    assert!(line.contains("idle timeout 7 s"), "{line}");
    std::fs::write(&settings, "memory = 7\n").unwrap();
    signal(&child, "-HUP");
    line.clear();
    messages.read_line(&mut line).unwrap();
    assert!(
        line.contains("settings.toml:1: no setting \"memory\""),
        "{line}"
    );

    // A command under way ends before the server does.
    client.write_all(b"set b 0 0 5\r\nab").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    signal(&child, "-TERM");
    std::thread::sleep(Duration::from_millis(200));
    exchange(&mut client, b"cde\r\n", b"STORED\r\n");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// As systemd does it: a socket that outlives the service, and starts the service again. The socket
/// is the descriptor 3.
const SYSTEMD: &str = "import os, socket, sys, time\n\
    s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n\
    os.dup2(s.fileno(), 3) if s.fileno() != 3 else os.set_inheritable(3, True)\n\
    print(s.getsockname()[1], flush=True)\n\
    for start in range(2):\n\
    \tpid = os.fork()\n\
    \tif pid == 0:\n\
    \t\tos.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')\n\
    \t\tos.execv(sys.argv[1], sys.argv[1:])\n\
    \tstatus = os.waitpid(pid, 0)[1]\n\
    \tif status != 0: sys.exit(1)\n\
    \ttime.sleep(0.5)";

#[test]
fn a_socket_of_systemd_is_served_and_keeps_clients_while_the_server_restarts() {
    // An address of its own would be refused: --listen does not count beside a socket of systemd.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let mut command = Command::new("python3");
    command
        .args([
            "-c",
            SYSTEMD,
            env!("CARGO_BIN_EXE_slackline"),
            "serve-cache",
        ])
        .args(["--listen", &taken])
        .stdout(Stdio::piped());
    let Some((mut systemd, line, mut messages)) = on_uring(&mut command) else {
        return;
    };
    let mut port = String::new();
    let mut output = BufReader::new(systemd.stdout.take().unwrap());
    output.read_line(&mut port).unwrap();
    let address = format!("127.0.0.1:{}", port.trim());
    assert!(line.contains(&format!("on {address}")), "{line}");
    let connect = || {
        let stream = TcpStream::connect(&address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
    };
    let mut client = connect();
    exchange(&mut client, b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");
    end(&mut client);
    // The server is gone, or about to go, and the socket is not: the client waits in its queue.
    let mut line = String::new();
    while !line.contains("draining") {
        line.clear();
        assert!(messages.read_line(&mut line).unwrap() > 0);
    }
    std::thread::sleep(Duration::from_millis(200));
    let mut client = connect();
    // A new server has no items.
    exchange(&mut client, b"get a\r\n", b"END\r\n");
    end(&mut client);
    assert_eq!(systemd.wait().unwrap().code(), Some(0));
}

/// Ends the server that answers: it says its process ID.
fn end(client: &mut TcpStream) {
    client.write_all(b"stats\r\n").unwrap();
    let mut lines = BufReader::new(client).lines().map(Result::unwrap);
    let pid = lines.find_map(|line| Some(line.strip_prefix("STAT pid ")?.trim().to_owned()));
    let status = Command::new("kill").args(["-TERM", &pid.unwrap()]).status();
    assert!(status.unwrap().success());
}

#[test]
fn bad_input_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (arguments, message) in [
        (&["--listen", &taken][..], taken.as_str()),
        (&["--memory", "12"], "as in 512MiB"),
        (&["--cores", "0,0"], "CPU 0 is named twice"),
        (&["--listen", "127.0.0.1:0", "--cores", "1023"], "CPU 1023"),
        (&["--settings", "/no/such/file"], "/no/such/file"),
        (&["--batch", "65"], "65"),
        (&["--listen", "203.0.113.1:1"], "203.0.113.1:1"),
    ] {
        let output = command().args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        if text.contains("io_uring cannot be used") {
            println!("SKIP: {text}");
            return;
        }
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(message), "{arguments:?}: {text}");
    }
}

/// Two network namespaces joined by a veth pair, removed when dropped.
pub(crate) struct Wire {
    pub(crate) server: String,
    pub(crate) client: String,
}

pub(crate) const XDP_SERVER: &str = "10.79.0.2:11211";

impl Wire {
    pub(crate) fn new(tag: &str) -> Option<Self> {
        Self::with_queues(tag, 1)
    }

    /// Each end has so many queues each way.
    #[expect(clippy::print_stdout, reason = "a skipped test says why")]
    pub(crate) fn with_queues(tag: &str, queues: u32) -> Option<Self> {
        let id = std::process::id();
        let wire = Self {
            server: format!("slcache-{tag}-{id}-s"),
            client: format!("slcache-{tag}-{id}-c"),
        };
        let (server, client) = (&wire.server, &wire.client);
        let count = format!("numrxqueues {queues} numtxqueues {queues}");
        for step in [
            format!("netns add {server}"),
            format!("netns add {client}"),
            format!(
                "-n {server} link add eth0 {count} type veth peer name eth0 netns {client} {count}"
            ),
            format!("-n {server} addr add 10.79.0.2/24 dev eth0"),
            format!("-n {client} addr add 10.79.0.1/24 dev eth0"),
            format!("-n {server} link set eth0 up"),
            format!("-n {client} link set eth0 up"),
        ] {
            let done = Command::new("ip").args(step.split(' ')).output();
            if !done.as_ref().is_ok_and(|done| done.status.success()) {
                println!("SKIP: ip {step}: {done:?}");
                return None;
            }
        }
        Some(wire)
    }

    pub(crate) fn inside(&self, namespace: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).args(arguments);
        command
    }

    pub(crate) fn serve(&self, arguments: &[&str]) -> Command {
        let program = env!("CARGO_BIN_EXE_slackline");
        let mut command = self.inside(&self.server, &[program, "serve-cache"]);
        command.args(arguments).stderr(Stdio::piped());
        command
    }

    /// A server with these arguments, once it serves.
    pub(crate) fn serving(&self, arguments: &[&str]) -> (Child, BufReader<ChildStderr>) {
        let mut child = self.serve(arguments).spawn().unwrap();
        let mut messages = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        messages.read_line(&mut line).unwrap();
        assert!(line.contains("on 10.79.0.2:11211"), "{line}");
        (child, messages)
    }

    /// What Linux's own TCP, in the client's namespace, gets for the bytes that `request` prints.
    pub(crate) fn ask(&self, request: &str) -> String {
        let script = format!(
            "exec 3<>/dev/tcp/10.79.0.2/11211 && {{ {request}; }} >&3 && timeout 20 cat <&3"
        );
        let output = self.inside(&self.client, &["bash", "-c", &script]).output();
        String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
    }

    pub(crate) fn link(&self) -> String {
        let output = self.inside(&self.server, &["ip", "-details", "link", "show", "eth0"]);
        let output = { output }.output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for namespace in [&self.server, &self.client] {
            let _ = Command::new("ip")
                .args(["netns", "del", namespace])
                .output();
        }
    }
}

#[test]
fn it_serves_on_an_interface_of_its_own() {
    let Some(wire) = Wire::new("serve") else {
        return;
    };
    let (mut child, _messages) = wire.serving(&["--net", "xdp:eth0", "--listen", XDP_SERVER]);
    assert!(wire.link().contains("xdp"), "{}", wire.link());
    let answer = wire.ask(r"printf 'set a 0 0 1\r\nx\r\nget a\r\nquit\r\n'");
    assert_eq!(answer, "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    // The largest values, several at once.
    let large = r"printf 'set b 0 0 1000000\r\n'; head -c 1000000 /dev/zero | tr '\0' x;
        printf '\r\nget b b b\r\nquit\r\n'";
    let answer = wire.ask(large);
    assert_eq!(answer.matches('x').count(), 3_000_000);
    assert!(answer.ends_with("END\r\n"));
    signal(&child, "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!wire.link().contains("xdp"), "{}", wire.link());
}

#[test]
fn several_cores_serve_several_queues_until_they_are_killed() {
    let Some(wire) = Wire::with_queues("queues", 2) else {
        return;
    };
    let before = wire.link();
    for round in 0..2 {
        let (mut child, _messages) = wire.serving(&[
            "--net", "xdp:eth0", "--listen", XDP_SERVER, "--cores", "0,1",
        ]);
        // Each connection takes a queue by its port.
        for key in 0..8 {
            let answer = wire.ask(&format!(
                r"printf 'set {key} 0 0 1\r\n{key}\r\nget {key}\r\nquit\r\n'"
            ));
            assert_eq!(
                answer,
                format!("STORED\r\nVALUE {key} 0 1\r\n{key}\r\nEND\r\n")
            );
        }
        if round == 0 {
            signal(&child, "-TERM");
            assert_eq!(child.wait().unwrap().code(), Some(0));
        } else {
            signal(&child, "-KILL");
            child.wait().unwrap();
        }
        assert_eq!(wire.link(), before);
    }
}

#[test]
fn missing_privileges_are_named_and_change_nothing() {
    let Some(wire) = Wire::new("less") else {
        return;
    };
    let before = wire.link();
    for (arguments, message) in [
        (
            &["--net", "xdp:eth0", "--listen", XDP_SERVER][..],
            "CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF and CAP_IPC_LOCK",
        ),
        (&["--listen", "10.79.0.2:80"], "10.79.0.2:80"),
    ] {
        let program = env!("CARGO_BIN_EXE_slackline");
        let mut command = vec!["setpriv", "--bounding-set", "-all", program, "serve-cache"];
        command.extend(arguments);
        let output = wire.inside(&wire.server, &command).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {text}");
        assert!(text.contains(message), "{arguments:?}: {text}");
        assert_eq!(wire.link(), before, "{arguments:?}");
    }
}

#[test]
fn what_an_interface_cannot_be_used_for_is_named() {
    let Some(wire) = Wire::new("bad") else { return };
    for (arguments, message) in [
        (&["--net", "xdp:eth7"][..], "eth7"),
        (&["--net", "xdp:eth0"], "10.79.0.2"),
        (&["--net", "xdp:lo", "--listen", "127.0.0.1:1"], "lo"),
        (&["--net", "xdp:eth0:77", "--listen", XDP_SERVER], "77"),
        (
            &[
                "--net", "xdp:eth0", "--listen", XDP_SERVER, "--cores", "0-1",
            ],
            "`ethtool -L eth0 rx 2 tx 2`",
        ),
        (
            &[
                "--net",
                "xdp:eth0:0",
                "--listen",
                XDP_SERVER,
                "--cores",
                "0-1",
            ],
            "one CPU",
        ),
        (&["--net", "ether"], "xdp:eth1"),
    ] {
        let output = wire.serve(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(message), "{arguments:?}: {text}");
        assert!(!wire.link().contains("xdp"), "{arguments:?}");
    }
}
