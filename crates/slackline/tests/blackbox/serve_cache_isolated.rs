//! `slackline serve-cache --isolate-stack`: what two processes serve, what each of them may do, and
//! how they end. Linux's own TCP is the client.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use crate::eventually::eventually;
use crate::serve_cache::{Wire, XDP_SERVER, signal};

/// What `--settings` leaves to the application's main thread: `CAP_DAC_READ_SEARCH`.
const READS_ONLY: &str = "0000000000000004";
const NONE: &str = "0000000000000000";

/// A server whose stack is a process of its own, and the stack's number.
struct Server {
    application: Child,
    stack: u32,
    messages: BufReader<ChildStderr>,
}

impl Server {
    fn start(wire: &Wire, more: &[&str]) -> Self {
        let mut arguments = vec![
            "--net",
            "xdp:eth0",
            "--listen",
            XDP_SERVER,
            "--isolate-stack",
        ];
        arguments.extend(more);
        let (application, messages) = wire.serving(&arguments);
        let stack = children(application.id());
        assert_eq!(stack.len(), 1, "{stack:?}");
        Self {
            application,
            stack: stack[0],
            messages,
        }
    }

    fn both(&self) -> [u32; 2] {
        [self.application.id(), self.stack]
    }

    /// Waits until both processes have ended. Gives the application's exit code, and what it said.
    fn wait(mut self) -> (Option<i32>, String) {
        let code = self.application.wait().unwrap().code();
        eventually(20, || !runs(self.stack), || "the stack runs on");
        let mut said = String::new();
        self.messages.read_to_string(&mut said).unwrap();
        (code, said)
    }

    /// Ends both processes by SIGTERM, which is no failure.
    fn drain(self) {
        signal(&self.application, "-TERM");
        let (code, said) = self.wait();
        assert_eq!(code, Some(0), "{said}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.application.kill();
        let _ = self.application.wait();
    }
}

/// Whether a process is there and is no zombie.
fn runs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/status"))
        .is_ok_and(|status| !status.contains("State:\tZ"))
}

fn children(of: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else {
            continue;
        };
        let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        if status.lines().any(|line| line == format!("PPid:\t{of}")) {
            found.push(pid);
        }
    }
    found
}

/// A field of `status`, for each thread of a process.
fn of_threads(pid: u32, field: &str) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let value = |path: std::path::PathBuf| {
        let status = std::fs::read_to_string(path.join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.unwrap().trim_start_matches(':').trim().to_owned()
    };
    threads
        .map(|thread| value(thread.unwrap().path()))
        .collect()
}

/// What the descriptors of a process are.
fn descriptors(pid: u32) -> Vec<String> {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .map(|fd| std::fs::read_link(fd.unwrap().path()).unwrap())
        .map(|target| target.to_string_lossy().into_owned())
        .collect()
}

/// Descriptors of sockets that are no Unix sockets.
fn foreign_sockets(pid: u32) -> Vec<String> {
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap();
    let unix: BTreeSet<&str> = table
        .lines()
        .filter_map(|line| line.split_whitespace().nth(6))
        .collect();
    let mut found = descriptors(pid);
    found.retain(|target| {
        let inode = target.strip_prefix("socket:[");
        inode.is_some_and(|inode| !unix.contains(inode.trim_end_matches(']')))
    });
    found
}

/// Memory of a process in MiB, without what it shares with the other one.
fn resident_mib(pid: u32) -> u64 {
    let kib = of_threads(pid, "RssAnon").remove(0);
    kib.trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

#[test]
fn two_processes_serve_as_one_does() {
    let Some(wire) = Wire::new("isolated") else {
        return;
    };
    let before = wire.link();
    let server = Server::start(&wire, &[]);
    assert!(wire.link().contains("xdp"), "{}", wire.link());
    let answer = wire.ask(r"printf 'set a 0 0 1\r\nx\r\nget a\r\nquit\r\n'");
    assert_eq!(answer, "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");

    // The largest values, several at once: more than a ring, or a flow's queue, holds.
    let large = r"printf 'set b 0 0 1048576\r\n'; head -c 1048576 /dev/zero | tr '\0' x;
        printf '\r\nget b b b b b\r\nquit\r\n'";
    let answer = wire.ask(large);
    assert_eq!(answer.matches('x').count(), 5 * 1_048_576);
    assert!(answer.starts_with("STORED\r\nVALUE b 0 1048576\r\n"));
    assert!(answer.ends_with("\r\nEND\r\n"));

    // 2,000 commands in one piece, and 100 keys in one.
    let answer = wire.ask(
        r#"for i in $(seq 1000); do
            printf 'set k%d 0 0 %d\r\n%d\r\nget k%d\r\n' $i ${#i} $i $i; done;
            printf 'gets'; printf ' k%d' $(seq 100); printf '\r\nquit\r\n'"#,
    );
    assert_eq!(answer.matches("STORED\r\n").count(), 1000);
    let values = answer.matches("VALUE k").count();
    assert_eq!(values, 1000 + 100);
    for number in [1, 100, 1000] {
        let length = number.to_string().len();
        let expected = format!("STORED\r\nVALUE k{number} 0 {length}\r\n{number}\r\nEND\r\n");
        assert!(answer.contains(&expected), "{number}");
    }

    server.drain();
    assert_eq!(wire.link(), before);
}

#[test]
fn the_application_owns_no_interface_and_neither_process_has_a_capability() {
    let Some(wire) = Wire::new("powers") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let settings = directory.path().join("settings.toml");
    std::fs::write(&settings, "idle_timeout_s = 600\n").unwrap();
    for more in [&[][..], &["--settings", settings.to_str().unwrap()]] {
        let mut server = Server::start(&wire, more);
        assert!(
            wire.ask(r"printf 'version\r\nquit\r\n'")
                .starts_with("VERSION")
        );
        let [application, stack] = server.both();
        for pid in server.both() {
            let filters = of_threads(pid, "Seccomp");
            assert!(filters.iter().all(|filter| filter == "2"), "{filters:?}");
            let privileges = of_threads(pid, "NoNewPrivs");
            assert!(privileges.iter().all(|none| none == "1"));
            for set in ["CapEff", "CapPrm", "CapInh"] {
                let reads = pid == application && !more.is_empty() && set != "CapInh";
                let allowed: &[&str] = if reads { &[NONE, READS_ONLY] } else { &[NONE] };
                let capabilities = of_threads(pid, set);
                assert!(
                    capabilities
                        .iter()
                        .all(|has| allowed.contains(&has.as_str())),
                    "{set} of {pid}: {capabilities:?}"
                );
            }
        }
        let is_of_bpf = |target: &String| target.contains("bpf");
        assert_eq!(foreign_sockets(application), Vec::<String>::new());
        assert!(!descriptors(application).iter().any(is_of_bpf));
        // The same looks find what the stack has.
        assert_eq!(foreign_sockets(stack).len(), 1, "{:?}", descriptors(stack));
        assert!(descriptors(stack).iter().any(is_of_bpf));

        if !more.is_empty() {
            std::fs::write(&settings, "idle_timeout_s = 7\n").unwrap();
            signal(&server.application, "-HUP");
            let mut line = String::new();
            server.messages.read_line(&mut line).unwrap();
            assert!(line.contains("idle timeout 7 s"), "{line}");
        }
        // As a terminal does it: both get the signal, and the application decides.
        for pid in server.both().map(|pid| pid.to_string()) {
            assert!(
                Command::new("kill")
                    .args(["-INT", &pid])
                    .status()
                    .unwrap()
                    .success()
            );
        }
        let (code, said) = server.wait();
        assert_eq!(code, Some(130), "{said}");
    }
}

#[test]
fn when_one_process_is_killed_the_other_ends_and_the_interface_is_as_it_was() {
    let Some(wire) = Wire::new("killed") else {
        return;
    };
    let before = wire.link();
    for kills_stack in [true, false] {
        let server = Server::start(&wire, &[]);
        assert!(wire.link().contains("xdp"), "{}", wire.link());
        // A client that waits for an answer that never comes.
        let client = wire
            .inside(
                &wire.client,
                &[
                    "bash",
                    "-c",
                    r"exec 3<>/dev/tcp/10.79.0.2/11211; printf 'mn\r\n' >&3; timeout 20 cat <&3",
                ],
            )
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut client = client;
        let mut answer = [0; 4];
        client
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut answer)
            .unwrap();
        assert_eq!(&answer, b"MN\r\n");

        let [application, stack] = server.both();
        let victim = if kills_stack { stack } else { application };
        let began = Instant::now();
        assert!(
            Command::new("kill")
                .args(["-KILL", &victim.to_string()])
                .status()
                .unwrap()
                .success()
        );
        let (code, said) = server.wait();
        assert!(began.elapsed() < Duration::from_secs(20));
        if kills_stack {
            assert_eq!(code, Some(2), "{said}");
            let expected =
                format!("the process of the TCP stack (PID {stack}) has ended by signal 9");
            assert!(said.contains(&expected), "{said}");
        } else {
            assert_eq!(code, None);
            // The stack resets the connections of an application that is gone.
            client.wait().unwrap();
            assert!(began.elapsed() < Duration::from_secs(30));
        }
        assert_eq!(wire.link(), before);
        let _ = client.kill();
        let _ = client.wait();
    }
}

/// The stack's process ends some tenths of a second after the application, and has the interface
/// until then.
#[test]
fn after_a_kill_the_server_starts_again_at_once() {
    let Some(wire) = Wire::new("again") else {
        return;
    };
    let mut server = Server::start(&wire, &[]);
    for round in 0..3 {
        signal(&server.application, "-KILL");
        server.application.wait().unwrap();
        server = Server::start(&wire, &[]);
        let answer = wire.ask(r"printf 'set a 0 0 1\r\nx\r\nget a\r\nquit\r\n'");
        let expected = "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n";
        assert_eq!(answer, expected, "round {round}");
    }
    server.drain();
}

/// A process of the same user, without capabilities, as an application is that was taken over.
#[test]
fn nobody_without_privileges_can_look_into_the_stack() {
    let Some(wire) = Wire::new("look") else {
        return;
    };
    let server = Server::start(&wire, &[]);
    let look = |pid: u32| {
        Command::new("setpriv")
            .args(["--bounding-set", "-all", "--inh-caps", "-all", "cat"])
            .arg(format!("/proc/{pid}/environ"))
            .output()
            .unwrap()
    };
    let [application, stack] = server.both();
    let refused = look(stack);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{text}");
    assert!(text.contains("Permission denied"), "{text}");
    // The same look is allowed where nothing forbids it.
    let seen = look(application);
    assert!(seen.status.success(), "{seen:?}");
    assert!(!seen.stdout.is_empty());
    server.drain();
}

#[test]
fn a_client_that_reads_nothing_holds_bounded_memory_and_keeps_nobody_waiting() {
    let Some(wire) = Wire::new("slow") else {
        return;
    };
    let more = ["--send-memory", "32MiB", "--memory", "16MiB"];
    let server = Server::start(&wire, &more);
    let large = r"printf 'set b 0 0 1000000\r\n'; head -c 1000000 /dev/zero | tr '\0' x;
        printf '\r\nquit\r\n'";
    assert_eq!(wire.ask(large), "STORED\r\n");
    let used = server.both().map(resident_mib);
    // 40 clients ask for 8 MB each and do not read for a while.
    let script = r"for i in $(seq 40); do
            exec {reader}<>/dev/tcp/10.79.0.2/11211
            printf 'get b b b b b b b b\r\n' >&$reader; done
        exec sleep 30";
    let mut readers = wire
        .inside(&wire.client, &["bash", "-c", script])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // One that reads late gets everything.
    let late = r"printf 'get b b b b b\r\nquit\r\n'; sleep 1";
    let mut most = [0, 0];
    for round in 0..10 {
        let answer = wire.ask(r"printf 'set a 0 0 1\r\nx\r\nget a\r\nquit\r\n'");
        assert_eq!(answer, "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n", "{round}");
        for (most, now) in most.iter_mut().zip(server.both().map(resident_mib)) {
            *most = now.max(*most);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let _ = readers.kill();
    let _ = readers.wait();
    // 320 MB were asked for.
    for (most, used) in most.into_iter().zip(used) {
        assert!(most < used + 2 * 32, "{most} MiB after {used} MiB");
    }
    let answer = wire.ask(late);
    assert_eq!(answer.matches('x').count(), 5_000_000);
    server.drain();
}

#[test]
fn several_stacks_serve_several_queues() {
    let Some(wire) = Wire::with_queues("stacks", 2) else {
        return;
    };
    let before = wire.link();
    let more = ["--cores", "0,1", "--stack-cores", "1,0"];
    let server = Server::start(&wire, &more);
    for key in 0..8 {
        let answer = wire.ask(&format!(
            r"printf 'set {key} 0 0 1\r\n{key}\r\nget {key}\r\nquit\r\n'"
        ));
        let expected = format!("STORED\r\nVALUE {key} 0 1\r\n{key}\r\nEND\r\n");
        assert_eq!(answer, expected);
    }
    server.drain();
    assert_eq!(wire.link(), before);
}

#[test]
fn what_cannot_be_isolated_is_named() {
    let Some(wire) = Wire::new("wrong") else {
        return;
    };
    let xdp = ["--net", "xdp:eth0", "--listen", XDP_SERVER];
    let isolated = [&xdp[..], &["--isolate-stack"]].concat();
    let with = |more: &[&'static str]| [&isolated[..], more].concat();
    for (arguments, message) in [
        (vec!["--isolate-stack"], "--net xdp:INTERFACE"),
        (with(&["--no-sandbox"]), "--no-sandbox"),
        (
            with(&["--stack-cores", "0,1"]),
            "--stack-cores names 2 CPUs, and 1 are needed",
        ),
        (
            [&xdp[..], &["--stack-cores", "0"]].concat(),
            "--isolate-stack",
        ),
        (with(&["--as-stack"]), "slackline starts this itself"),
        (with(&["--cores", "0-1"]), "`ethtool -L eth0 rx 2 tx 2`"),
        (vec!["--net", "xdp:eth7", "--isolate-stack"], "eth7"),
        (vec!["--net", "xdp:eth0", "--isolate-stack"], "10.79.0.2"),
        (
            vec![
                "--net",
                "xdp:eth0:77",
                "--listen",
                XDP_SERVER,
                "--isolate-stack",
            ],
            "77",
        ),
    ] {
        let output = wire
            .serve(&arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(message), "{arguments:?}: {text}");
        assert!(!wire.link().contains("xdp"), "{arguments:?}");
    }
    // Without the privileges, the exit code is that of a server in one process.
    let program = env!("CARGO_BIN_EXE_slackline");
    let mut command = vec!["setpriv", "--bounding-set", "-all", program, "serve-cache"];
    command.extend(&isolated);
    let output = wire.inside(&wire.server, &command).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("CAP_NET_RAW"), "{text}");
}
