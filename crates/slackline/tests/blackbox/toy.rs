//! A service without a service: everything of it lives in one temporary directory.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::eventually::eventually;

/// The variable that marks every process which descends from a toy's command.
const MARK: &str = "SLACKLINE_TEST_TOY";

/// The first value of the knob, as the file holds it.
pub(crate) const FIRST: &str = "50";

/// What the load generator prints: a parabola in the knob with its best at 20, plus up to 2 % of
/// noise.
const PARABOLA: &str =
    r#"n=$(od -An -N1 -tu1 /dev/urandom); v=$(cat KNOB); us=$(( (v-20)*(v-20) + 1000 + n % 20 ))"#;
/// Its last line.
const REPORT: &str = r#"echo "{\"requests\": 1000, \"latency_p99_us\": $us}""#;

pub(crate) struct Toy {
    dir: TempDir,
    pub(crate) spec: Value,
}

/// Whoever started the tests may ignore signals, as nohup and some CI systems do. A program that is
/// to react to them must not inherit that.
pub(crate) const DEFAULT_SIGNALS: &[&str] = &["env", "--default-signal=HUP,INT,TERM"];

/// The command, started by another one such as `nohup`.
pub(crate) fn through(by: &[&str], command: &Command) -> Command {
    let mut whole = Command::new(by[0]);
    whole
        .args(&by[1..])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        whole.env(name, value.unwrap());
    }
    whole
}

/// What a shell's line writes on a terminal, which `script` makes.
pub(crate) fn on_terminal(line: &str) -> String {
    let output = Command::new("timeout")
        .args(["60", "script", "--quiet", "--command", line, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Toy {
    /// A started service (a `sleep` for each side) and one knob.
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let knob = dir.path().join("knob");
        std::fs::write(&knob, format!("{FIRST}\n")).unwrap();
        let spec = json!({
            "name": "toy",
            "seed": 1,
            "parameters": [{ "name": "x", "type": "int", "low": 0, "high": 100, "file": knob }],
            "target": {
                "start": ["sleep", "1000"],
                "ready": { "command": ["true"], "timeout_s": 1 },
                "stop": { "signal": "TERM", "grace_s": 1 },
            },
            "workload": {
                "command": [],
                "json": { "requests": "requests", "latency_p99_us": "latency_p99_us" },
            },
            "objective": { "metric": "latency_p99_us" },
            "evaluation": { "warm_up_s": 0, "block_s": 0.05, "blocks": 3, "early_abort": false },
            "budget": { "evaluations": 6 },
            "verification": { "runs": 3 },
        });
        let mut toy = Self { dir, spec };
        toy.load_after("");
        toy
    }

    /// A running system that Slackline does not start: a knob, a templated file and an `apply`
    /// step.
    pub(crate) fn attached() -> Self {
        let mut toy = Self::new();
        std::fs::write(toy.path("service.conf"), "x = first\n").unwrap();
        std::fs::write(toy.path("service.conf.in"), "x = {x}\n").unwrap();
        toy.spec["target"] = json!({
            "files": [{ "template": "service.conf.in", "path": toy.path("service.conf") }],
            "apply": [{ "command": ["true"] }],
        });
        toy
    }

    /// The shell script `first` comes before the load generator's measurement; `$v` is the knob's
    /// value.
    pub(crate) fn load_after(&mut self, first: &str) {
        let measure = PARABOLA.replace("KNOB", &self.path("knob").display().to_string());
        self.load_with(&format!("{measure}; {first}\n{REPORT}"));
    }

    /// The load generator is this shell script.
    pub(crate) fn load_with(&mut self, script: &str) {
        self.spec["workload"]["command"] = json!(["sh", "-c", script]);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn knob(&self) -> String {
        std::fs::read_to_string(self.path("knob"))
            .unwrap()
            .trim()
            .to_owned()
    }

    /// `slackline --state-dir …` with these arguments.
    pub(crate) fn slackline(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("slackline"));
        command
            .env(MARK, self.dir.path())
            .env("NO_COLOR", "1")
            // Tests of controllers run beside each other.
            .env("SLACKLINE_RUN_DIR", self.path("machine"))
            .arg("--state-dir")
            .arg(self.path("state"))
            .args(arguments);
        command
    }

    /// Writes the specification and prepares a `tune` of it.
    pub(crate) fn tune(&self, arguments: &[&str]) -> Command {
        let file = self.path("experiment.json");
        std::fs::write(&file, serde_json::to_string_pretty(&self.spec).unwrap()).unwrap();
        let mut command = self.slackline(&["tune"]);
        command.arg(file).args(arguments);
        command
    }

    /// Starts a `tune` whose output goes nowhere.
    pub(crate) fn tune_in_background(&self) -> Child {
        through(DEFAULT_SIGNALS, &self.tune(&[]))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    pub(crate) fn restore(&self) -> Ended {
        Ended::of(self.slackline(&["restore"]))
    }

    /// Waits for a file that the load generator makes.
    pub(crate) fn wait_for(&self, name: &str) {
        let is_there = || self.path(name).exists();
        eventually(20, is_there, || format!("{name} did not appear"));
    }

    /// Waits until none of this toy's processes is left: what is killed is not yet gone.
    pub(crate) fn wait_for_end(&self, context: &str) {
        let left = || format!("{context}: {:?}", self.processes());
        eventually(30, || self.processes().is_empty(), left);
    }

    /// Processes that descend from this toy's commands, however they were orphaned.
    pub(crate) fn processes(&self) -> Vec<String> {
        let mark = format!("{MARK}={}", self.dir.path().display());
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            if environment
                .split(|byte| *byte == 0)
                .any(|variable| variable == mark.as_bytes())
            {
                let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
                let words = String::from_utf8_lossy(&words).replace('\0', " ");
                found.push(format!("{}: {words}", entry.file_name().display()));
            }
        }
        found
    }

    /// Nothing is left: the knob has its first value, the journal has nothing to undo, and neither
    /// a process nor a scratch directory remains.
    pub(crate) fn assert_as_before(&self, context: &str) {
        assert_eq!(self.knob(), FIRST, "the knob: {context}");
        self.assert_clean(context);
        assert!(
            self.restore()
                .stderr
                .contains("no run has left anything to undo"),
            "the journal: {context}"
        );
    }

    /// Neither a process nor a scratch directory remains.
    pub(crate) fn assert_clean(&self, context: &str) {
        assert_eq!(self.processes(), Vec::<String>::new(), "{context}");
        assert_eq!(entries(&self.path("state.run")), 0, "scratch: {context}");
    }
}

impl Drop for Toy {
    /// A failed test leaves no process either.
    fn drop(&mut self) {
        for process in self.processes() {
            let pid = process.split(':').next().and_then(|pid| pid.parse().ok());
            if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

/// Kills processes and waits for them, whether they have ended before or not.
pub(crate) fn kill<'a>(children: impl IntoIterator<Item = &'a mut Child>) {
    for child in children {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A test that this host cannot run says why; where none may be left out, it fails.
#[expect(clippy::print_stdout, reason = "a skipped test says why")]
pub(crate) fn skip(error: &dyn std::fmt::Display) {
    assert!(std::env::var_os("SLACKLINE_CI").is_none(), "{error}");
    println!("SKIP: {error}");
}

fn entries(dir: &Path) -> usize {
    std::fs::read_dir(dir).map_or(0, Iterator::count)
}

/// A command that has ended.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    pub(crate) fn of(mut command: Command) -> Self {
        Self::from(command.stdin(Stdio::null()).output().unwrap())
    }

    /// Its exit code must be this one.
    pub(crate) fn with_code(self, code: i32) -> Self {
        assert_eq!(
            self.code, code,
            "stdout: {}\nstderr: {}",
            self.stdout, self.stderr
        );
        self
    }

    /// Its messages must contain each of these.
    pub(crate) fn saying(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(
                self.stderr.contains(text),
                "{text:?} is not in: {}",
                self.stderr
            );
        }
        self
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Where PostgreSQL's own programs are: Debian keeps those of each version in a directory.
pub(crate) fn postgres_programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    versions
        .map(|version| version.path().join("bin"))
        .find(|bin| bin.join("initdb").exists())
}

/// Starts a server on io_uring: its first message, and what it says from then on. `None` without
/// io_uring.
#[expect(clippy::print_stdout, reason = "a skipped test says why")]
pub(crate) fn on_uring(command: &mut Command) -> Option<(Child, String, BufReader<ChildStderr>)> {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut messages = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    messages.read_line(&mut line).unwrap();
    if line.contains("io_uring cannot be used") {
        println!("SKIP: {line}");
        assert_eq!(child.wait().unwrap().code(), Some(3));
        return None;
    }
    Some((child, line, messages))
}

/// A port of loopback that nothing listens on.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
