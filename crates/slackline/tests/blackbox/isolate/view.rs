//! What `isolate run` and `isolate status --live` show.

use std::process::{Command, Stdio};

use super::{Bench, signal};
use crate::toy::{Ended, Toy, on_terminal};

/// `script` without a terminal of its own makes one of 0 columns and 0 rows.
#[test]
fn a_terminal_that_does_not_know_its_size_is_drawn_on_all_the_same() {
    let toy = Toy::new();
    let status = toy.slackline(&["isolate", "status", "--live"]);
    let mut words = vec![status.get_program().to_string_lossy().into_owned()];
    words.extend(
        status
            .get_args()
            .map(|word| word.to_string_lossy().into_owned()),
    );
    let line = format!(
        "stty rows 0 cols 0; timeout --foreground --preserve-status 5 {}; echo ended=$?",
        words.join(" ")
    );
    let text = on_terminal(&line);
    // Blanks between words are none in the bytes: the cursor moves.
    for expected in ["worst", "highest", "quits", "--state-dir.", "ended=143"] {
        assert!(text.contains(expected), "{expected}: {text:?}");
    }
}

/// Starts a program on a terminal, takes the terminal away, and says whether the program ends.
const WITHOUT_TERMINAL: &str = "
import os, pty, signal, sys, time
pid, terminal = pty.fork()
if pid == 0:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.execv(sys.argv[1], sys.argv[1:])
while b'quits' not in os.read(terminal, 65536):
    pass
os.close(terminal)
end = time.time() + 20
while time.time() < end:
    if os.waitpid(pid, os.WNOHANG)[0]:
        print('ended')
        sys.exit()
    time.sleep(0.05)
os.kill(pid, signal.SIGKILL)
print('runs on')
";

#[test]
fn a_view_ends_with_its_terminal() {
    let toy = Toy::new();
    let status = toy.slackline(&["isolate", "status", "--live"]);
    let output = Command::new("python3")
        .args(["-c", WITHOUT_TERMINAL])
        .arg(status.get_program())
        .args(status.get_args())
        .env("TERM", "xterm")
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        "ended",
        "{output:?}"
    );
}

#[test]
fn a_run_says_what_runs_and_when_something_happens_and_what_was_done() {
    let Some(bench) = Bench::new("says") else {
        return;
    };
    bench.config("name = \"none\"", "");
    let child = bench
        .run(&["--metrics", "127.0.0.1:0", "--duration-s", "600"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    bench.will_end(&child);
    bench.pass(1);
    signal(child.id().into(), rustix::process::Signal::HUP);
    bench.pass(3);
    signal(child.id().into(), rustix::process::Signal::TERM);
    let ended = Ended::from(child.wait_with_output().unwrap());
    let lines: Vec<&str> = ended.stderr.lines().collect();
    let begun = format!(
        "Policy none runs for web (p99 below 5 ms) with best-effort work {}. It ends after 600 s or by Ctrl-C, and then \
         restores every setting. Metrics: http://127.0.0.1:",
        bench.name
    );
    assert!(lines[0].starts_with(&begun), "{lines:?}");
    assert!(!lines[0].ends_with(":0/metrics"), "{lines:?}");
    let reload = lines
        .iter()
        .find_map(|line| line.strip_suffix(" s: the configuration was read again"));
    assert!(
        reload.is_some_and(|at_s| at_s.parse::<f64>().is_ok()),
        "{lines:?}"
    );
    let last = lines.last().unwrap();
    let work = last.split_once(&format!("; {}: ", bench.name)).unwrap().1;
    let cpu_s = work.strip_suffix(" CPU seconds of work").unwrap();
    assert!(last.starts_with("Ended after "), "{last}");
    assert!(cpu_s.parse::<f64>().is_ok(), "{last}");
    bench.assert_restored();
}
