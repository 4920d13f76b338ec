//! `slackline serve-cache`: how it starts, what it answers, how it ends.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.arg("serve-cache").stderr(Stdio::piped());
    command
}

/// A server that says it is ready, and what it says. `None` without io_uring.
#[expect(clippy::print_stdout, reason = "a skipped test says why")]
fn start(arguments: &[&str]) -> Option<(Child, BufReader<std::process::ChildStderr>)> {
    let mut child = command().args(arguments).spawn().unwrap();
    let mut messages = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    messages.read_line(&mut line).unwrap();
    if line.contains("io_uring cannot be used") {
        println!("SKIP: {line}");
        assert_eq!(child.wait().unwrap().code(), Some(3));
        return None;
    }
    assert!(line.contains("serving memcached's protocol on"), "{line}");
    Some((child, messages))
}

fn signal(child: &Child, name: &str) {
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
