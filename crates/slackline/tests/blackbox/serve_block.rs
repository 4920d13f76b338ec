//! `slackline serve-block`: how it starts, what it says of itself, how it ends.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::Duration;

use block_load::generator::{AccessPattern, ArrivalProcess, LoadSpec, run as load};
use block_load::nvme::Nvme;

use crate::toy::{free_port, on_terminal, on_uring, skip};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.arg("serve-block").args(arguments);
    command
}

fn run(verb: &str, config: &Path, more: &[&str]) -> Output {
    let mut arguments = vec![verb, config.to_str().unwrap()];
    arguments.extend(more);
    command(&arguments).output().unwrap()
}

/// Starts a server: its first message, and what it says from then on. `None` without io_uring.
fn start(config: &Path) -> Option<(Child, String, BufReader<ChildStderr>)> {
    on_uring(&mut command(&["run", config.to_str().unwrap()]))
}

#[test]
fn it_serves_says_how_it_is_and_drains() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("blocks.toml");
    let (port, metrics) = (free_port(), free_port());
    let text = format!(
        "listen = [\"127.0.0.1:{port}\"]\nmetrics = \"127.0.0.1:{metrics}\"\n[[device]]\n\
         name = \"ram\"\nmemory = \"1MiB\"\n[[tenant]]\nexport = \"a\"\ndevice = \"ram\"\n"
    );
    std::fs::write(&config, &text).unwrap();
    let checked = run("run", &config, &["--check"]);
    assert_eq!(checked.status.code(), Some(0));
    let said = String::from_utf8_lossy(&checked.stderr);
    let expected = format!("would serve NBD on 127.0.0.1:{port}: a (ram)");
    assert!(said.contains(&expected), "{said}");
    let asked = run("status", &config, &[]);
    assert_eq!(asked.status.code(), Some(2));
    let said = String::from_utf8_lossy(&asked.stderr);
    let expected = format!("no `serve-block` answers at 127.0.0.1:{metrics}: ");
    assert!(
        said.contains(&expected) && said.contains("Connection refused"),
        "{said}"
    );

    let Some((mut child, line, _messages)) = start(&config) else {
        return;
    };
    assert!(line.contains(&format!("serving NBD on 127.0.0.1:{port}: a")));
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut greeting = [0; 8];
    client.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"NBDMAGIC");
    // What answers there speaks another protocol.
    let asked = command(&["status", "--address", &format!("127.0.0.1:{port}")])
        .output()
        .unwrap();
    assert_eq!(asked.status.code(), Some(2));
    let said = String::from_utf8_lossy(&asked.stderr);
    assert!(said.contains("no `serve-block` answers"), "{said}");
    let asked = run("status", &config, &["--json"]);
    let status: serde_json::Value = serde_json::from_slice(&asked.stdout).unwrap();
    assert_eq!(status["connections"], 1);
    assert_eq!(status["tenants"][0]["export"], "a");
    let shown = status["tenants"][0].as_object().unwrap();
    for key in [
        "objective",
        "window_p95_us",
        "iops",
        "credit_tokens",
        "spent_tokens_per_s",
        "given_tokens_per_s",
        "received_tokens_per_s",
        "refused_requests",
        "refused_clients",
        "in_deficit",
    ] {
        assert!(shown.contains_key(key), "{key}: {status}");
    }
    let asked = run("status", &config, &[]);
    assert!(String::from_utf8_lossy(&asked.stdout).contains("Connections: 1"));
    live(&config);
    // Whatever is in the file by now, the server says how it is.
    std::fs::write(
        &config,
        format!("metrics = \"127.0.0.1:{metrics}\"\nx = = 1\n"),
    )
    .unwrap();
    let asked = run("status", &config, &[]);
    assert!(String::from_utf8_lossy(&asked.stdout).contains("Connections: 1"));
    let address = format!("127.0.0.1:{metrics}");
    let asked = command(&["status", "--address", &address])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&asked.stdout).contains("Connections: 1"));
    let pid = child.id().to_string();
    Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Both servers give up the call that opens a socket before they are ready, and tell systemd all
/// the same.
#[test]
fn systemd_is_told_of_a_start_and_an_end() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("blocks.toml");
    let text = format!(
        "listen = [\"127.0.0.1:{}\"]\n[[device]]\nname = \"ram\"\nmemory = \"1MiB\"\n\
         [[tenant]]\nexport = \"a\"\ndevice = \"ram\"\n",
        free_port()
    );
    std::fs::write(&config, &text).unwrap();
    let path = directory.path().join("notify");
    let systemd = UnixDatagram::bind(&path).unwrap();
    let patience = Some(Duration::from_secs(20));
    systemd.set_read_timeout(patience).unwrap();
    let told = || {
        let mut words = [0; 256];
        let length = systemd.recv(&mut words).unwrap();
        String::from_utf8_lossy(&words[..length]).trim().to_owned()
    };
    let address = format!("127.0.0.1:{}", free_port());
    for arguments in [
        ["serve-block", "run", config.to_str().unwrap()],
        ["serve-cache", "--listen", &address],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
        command.args(arguments).env("NOTIFY_SOCKET", &path);
        let Some((mut child, line, _messages)) = on_uring(&mut command) else {
            return;
        };
        assert!(line.contains("serving"), "{line}");
        assert_eq!(told(), "READY=1", "{arguments:?}");
        let pid = child.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        assert_eq!(told(), "STOPPING=1", "{arguments:?}");
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}

/// A socket that systemd opened is held to the same rule as an address of the configuration. The
/// socket is in a network namespace of its own.
#[test]
fn a_socket_of_systemd_beyond_loopback_needs_tls() {
    const SYSTEMD: &str = "import os, socket, sys\n\
        s = socket.socket(); s.bind(('0.0.0.0', 0)); s.listen()\n\
        os.set_inheritable(s.fileno(), sys.argv[1] == 'open') if s.fileno() == 3 else sys.exit(1)\n\
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')\n\
        os.execv(sys.argv[2], sys.argv[2:])";
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("blocks.toml");
    let start = |kept: &str, text: &str| {
        let tables = "[[device]]\nname = \"ram\"\nmemory = \"1MiB\"\n\
                      [[tenant]]\nexport = \"a\"\ndevice = \"ram\"\n";
        std::fs::write(&config, format!("{text}{tables}")).unwrap();
        let mut command = Command::new("unshare");
        command
            .args(["--net", "python3", "-c", SYSTEMD, kept])
            .args([env!("CARGO_BIN_EXE_slackline"), "serve-block", "run"])
            .arg(&config);
        on_uring(&mut command)
    };
    let Some((mut child, line, _messages)) = start("open", "") else {
        return;
    };
    assert!(
        line.contains("the socket 0.0.0.0:")
            && line.contains("that systemd opened is beyond loopback, and without TLS"),
        "{line}"
    );
    assert_eq!(child.wait().unwrap().code(), Some(2));
    let (mut child, line, _messages) = start("open", "plaintext_beyond_loopback = true\n").unwrap();
    assert!(line.contains("serving"), "{line}");
    let pid = child.id().to_string();
    Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let (mut child, line, _messages) = start("closed", "").unwrap();
    assert!(
        line.contains("a socket in LISTEN_FDS is no listening TCP socket"),
        "{line}"
    );
    assert_eq!(child.wait().unwrap().code(), Some(2));
}

/// The view of `status --live` in a terminal of its own, until q.
fn live(config: &Path) {
    let refused = run("status", config, &["--live"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--live needs a terminal"));
    let line = format!(
        "stty rows 40 cols 120; {} serve-block status {} --live",
        env!("CARGO_BIN_EXE_slackline"),
        config.display()
    );
    // Whatever happens, the terminal does not outlive the test for long.
    let mut child = Command::new("timeout")
        .args([
            "60",
            "script",
            "--quiet",
            "--return",
            "--command",
            &line,
            "/dev/null",
        ])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut screen = child.stdout.take().unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("Connections:") {
        let mut bytes = [0; 4096];
        let read = screen.read(&mut bytes).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend(&bytes[..read]);
    }
    child.stdin.take().unwrap().write_all(b"q").unwrap();
    std::thread::spawn(move || std::io::copy(&mut screen, &mut std::io::sink()));
    let code = child.wait().unwrap().code();
    let text = String::from_utf8_lossy(&seen);
    // Blanks between words are none in the bytes: the cursor moves.
    for expected in ["IOPS", "objective", "waiting", "refused"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert_eq!(code, Some(0));
    let line = format!(
        "timeout --foreground --preserve-status 2 {} serve-block status {} --live; echo ended=$?",
        env!("CARGO_BIN_EXE_slackline"),
        config.display()
    );
    let text = on_terminal(&line);
    let leaves_the_screen = text.rfind("\u{1b}[?1049l");
    assert!(
        leaves_the_screen.is_some() && text.contains("ended=143"),
        "{text:?}"
    );
}

/// The file is a pipe that nobody writes: the server is at its very beginning.
#[test]
fn signals_are_caught_before_the_file_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("blocks.toml");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let mut child = command(&["run", pipe.to_str().unwrap()]).spawn().unwrap();
    let has_caught = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        u64::from_str_radix(caught.unwrap().trim(), 16).unwrap() & 1 == 1
    };
    let is_caught = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(25));
        has_caught()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(is_caught);
}

#[test]
fn a_wrong_configuration_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("blocks.toml");
    std::fs::write(&config, "[[device]]\nmemory = \"1MiB\"\n").unwrap();
    let output = run("run", &config, &[]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("blocks.toml:2: device.memory: "), "{text}");
}

/// The notice about an address that another process has names the line and the key, and so does the
/// error in the end.
#[test]
fn an_address_in_use_is_named_with_its_line() {
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let held = held.local_addr().unwrap();
    let nqn = "nqn.2026-11.example:held";
    let cases = [
        ("listen", format!("\n\nlisten = [\"{held}\"]\n")),
        (
            "metrics",
            format!(
                "listen = [\"127.0.0.1:{}\"]\n\nmetrics = \"{held}\"\n",
                free_port()
            ),
        ),
        (
            "nvme.listen",
            format!("listen = []\n\nnvme = {{ listen = [\"{held}\"], subsystem = \"{nqn}\" }}\n"),
        ),
    ];
    std::thread::scope(|scope| {
        for (key, text) in cases {
            scope.spawn(move || {
                let directory = tempfile::tempdir().unwrap();
                let config = directory.path().join("blocks.toml");
                let tables = "[[device]]\nname = \"ram\"\nmemory = \"1MiB\"\n\
                              [[tenant]]\nexport = \"a\"\ndevice = \"ram\"\n";
                std::fs::write(&config, text + tables).unwrap();
                let Some((mut child, line, mut messages)) = start(&config) else {
                    return;
                };
                let place = format!("blocks.toml:3: {key}: ");
                let expected = format!("{place}{held} is in use: trying again for 2 s");
                assert!(line.contains(&expected), "{line}");
                let mut error = String::new();
                messages.read_line(&mut error).unwrap();
                assert!(
                    error.contains(&place) && error.contains("`ss -ltnp`"),
                    "{error}"
                );
                assert_eq!(child.wait().unwrap().code(), Some(2));
            });
        }
    });
}

#[test]
fn a_check_changes_nothing_and_names_what_a_start_would_refuse() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("blocks.toml");
    let (disk, log) = (directory.path().join("disk"), directory.path().join("log"));
    let text = |first: &str| {
        format!(
            "{first}\naudit_log = {log:?}\n[[device]]\nname = \"d\"\npath = {disk:?}\ncreate = \"1MiB\"\n\
             [[tenant]]\nexport = \"a\"\ndevice = \"d\"\n"
        )
    };
    let check = |first: &str| {
        std::fs::write(&config, text(first)).unwrap();
        let output = run("run", &config, &["--check"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!disk.exists() && !log.exists(), "{said}");
        (output.status.code(), said)
    };
    let (code, said) = check("");
    assert_eq!(code, Some(0), "{said}");
    let expected = format!("would make {} with 1,048,576 bytes", disk.display());
    assert!(said.contains(&expected), "{said}");
    let (code, said) = check("cores = [1023]");
    assert_ne!(code, Some(0));
    let expected = "blocks.toml:1: cores: cannot run on CPU 1023";
    assert!(said.contains(expected), "{said}");
    let (code, said) = check("memory = \"100000TiB\"");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("blocks.toml:1: memory: "), "{said}");
    check("cores = [1023]");
    // A start that is refused makes no disk either, and the audit log says why.
    let refused = run("run", &config, &[]);
    assert_ne!(refused.status.code(), Some(0));
    assert!(!disk.exists());
    let audit = std::fs::read_to_string(&log).unwrap();
    assert!(
        audit.contains("\"refused\"") && audit.contains(expected),
        "{audit}"
    );
}

#[test]
fn a_reload_makes_the_file_of_a_new_device() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("blocks.toml");
    let disk = directory.path().join("disk");
    let before = format!(
        "listen = [\"127.0.0.1:{}\"]\n[[device]]\nname = \"ram\"\nmemory = \"1MiB\"\n\
         [[tenant]]\nexport = \"a\"\ndevice = \"ram\"\n",
        free_port()
    );
    std::fs::write(&config, &before).unwrap();
    let Some((mut child, _, mut messages)) = start(&config) else {
        return;
    };
    let more = format!(
        "[[device]]\nname = \"d\"\npath = {disk:?}\ncreate = \"1MiB\"\n\
         [[tenant]]\nexport = \"b\"\ndevice = \"d\"\n"
    );
    std::fs::write(&config, before + &more).unwrap();
    let pid = child.id().to_string();
    Command::new("kill").args(["-HUP", &pid]).status().unwrap();
    let mut line = String::new();
    messages.read_line(&mut line).unwrap();
    let is_made = std::fs::metadata(&disk).is_ok_and(|file| file.len() == 1 << 20);
    let checked = run("run", &config, &["--check"]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.contains("configuration reloaded"), "{line}");
    assert!(is_made);
    // An edited file can be checked beside the server.
    let said = String::from_utf8_lossy(&checked.stderr);
    assert_eq!(checked.status.code(), Some(0), "{said}");
    let expected = format!("d is in use by process {pid} (slackline). If that is the server");
    assert!(said.contains(&expected), "{said}");
}

/// Reads and writes of so many bytes from `from` on.
fn blocks(from: u64, duration_ms: u64) -> LoadSpec {
    LoadSpec {
        arrivals: ArrivalProcess::Closed { depth: 48 },
        read_share: 0.5,
        len_bytes: 4096,
        read_area: from..from + (1 << 20),
        write_area: Some(from..from + (1 << 20)),
        order: AccessPattern::Random,
        warm_up: Duration::ZERO,
        duration: Duration::from_millis(duration_ms),
        is_polling: false,
        seed: 1,
    }
}

#[test]
fn the_load_generators_own_host_of_nvme_reads_and_writes() {
    const NQN: &str = "nqn.2026-11.example:load";
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("blocks.toml");
    let port = free_port();
    let text = format!(
        "listen = []\nnvme = {{ listen = [\"127.0.0.1:{port}\"], subsystem = \"{NQN}\" }}\n\
         [[device]]\nname = \"ram\"\nmemory = \"1MiB\"\n[[tenant]]\nexport = \"a\"\ndevice = \"ram\"\n"
    );
    std::fs::write(&config, text).unwrap();
    let Some((mut child, _, _messages)) = start(&config) else {
        return;
    };
    let address = ([127, 0, 0, 1], port).into();
    for queues in [1, 3] {
        let mut nvme = Nvme::connect(address, NQN, 1, queues).unwrap();
        let outcome = load(&mut nvme, &blocks(0, 200)).unwrap();
        assert_eq!((outcome.errors, outcome.unanswered), (0, 0));
        assert!(!outcome.read_ns.is_empty() && !outcome.write_ns.is_empty());
        // Beyond the end: an error of each command, and the connection stays.
        let outcome = load(&mut nvme, &blocks(1 << 20, 20)).unwrap();
        assert!(outcome.errors > 0 && outcome.answered == 0, "{outcome:?}");
    }
    assert!(Nvme::connect(address, "nqn.other", 1, 1).is_err());
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Files and a database on a remote disk, over TLS between two hosts, while the server is killed.
#[test]
fn the_example_works_and_leaves_nothing_behind() {
    if !rustix::process::geteuid().is_root() {
        return skip(&"network namespaces need root");
    }
    let namespaces = || {
        let output = Command::new("ip").args(["netns", "list"]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let directory = tempfile::tempdir().unwrap();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/serve-block/run");
    let output = Command::new(example)
        .env("SLACKLINE", env!("CARGO_BIN_EXE_slackline"))
        .env("TMPDIR", directory.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(3) {
        return skip(&said);
    }
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("rows that were committed are there"),
        "{said}"
    );
    assert!(
        said.contains("50 files came back as they were written"),
        "{said}"
    );
    assert!(
        !namespaces().contains("slackline-block"),
        "{}",
        namespaces()
    );
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
