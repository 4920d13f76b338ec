//! A coordinator with PostgreSQL and NATS, and workers in network namespaces, all real, all removed
//! with the test.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::eventually::{eventually, found_within};
use crate::openssl::{make_root, sign};

/// The variable that marks every process which descends from a cluster.
const MARK: &str = "SLACKLINE_TEST_CLUSTER";

/// The knob of each namespace, and its value there.
const KNOB: &str = "/proc/sys/net/ipv4/tcp_fin_timeout";
const FIRST: &str = "60";

/// Something that can be taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Worker(usize),
    Link(usize),
    Coordinator,
    Nats,
    Postgres,
}

pub(crate) struct Cluster {
    dir: TempDir,
    /// Distinguishes the names of devices and namespaces of tests that run at once.
    tag: String,
    /// 10.X.Y of the bridge.
    subnet: String,
    bin: PathBuf,
    nats: Option<Child>,
    coordinator: Option<Child>,
    workers: Vec<Option<Child>>,
    cut: Vec<bool>,
    has_postgres: bool,
}

fn does(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn ip(arguments: &str) -> bool {
    does("ip", &arguments.split(' ').collect::<Vec<_>>())
}

fn must(is_done: bool, what: &str) {
    assert!(is_done, "{what}");
}

impl Cluster {
    /// `None` where this machine lacks something; the test says what.
    pub(crate) fn start(workers: usize, lease_s: f64) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        // With what follows it, 15 bytes at most (IFNAMSIZ).
        let tag = format!("sl{}n{number}", pid % 100_000);
        let place = pid + number;
        let bin = crate::toy::postgres_programs();
        let lacks = match &bin {
            None => Some("PostgreSQL's server"),
            Some(_) if !does("nats-server", &["--version"]) => Some("nats-server"),
            Some(_) if !does("openssl", &["version"]) => Some("openssl"),
            Some(_) if !ip(&format!("link add {tag}b type bridge")) => Some("network namespaces"),
            Some(_) => None,
        };
        if let Some(what) = lacks {
            crate::toy::skip(&format!("{what} is missing here"));
            return None;
        }
        let dir = tempfile::Builder::new()
            .prefix("slackline-cluster")
            .tempdir_in("/var/tmp")
            .unwrap();
        let mut cluster = Self {
            dir,
            tag,
            subnet: format!("10.{}.{}", 200 + place % 50, place / 50 % 250),
            bin: bin?,
            nats: None,
            coordinator: None,
            workers: (0..workers).map(|_| None).collect(),
            cut: vec![false; workers],
            has_postgres: false,
        };
        cluster.make_network();
        cluster.make_certificates();
        cluster.make_configuration(lease_s);
        cluster.start_postgres(true);
        cluster.bring_back(Part::Nats);
        cluster.bring_back(Part::Coordinator);
        for index in 0..workers {
            let key = std::fs::read_to_string(cluster.path("state/signing.pub")).unwrap();
            cluster.configure_worker(index, key.trim());
            cluster.bring_back(Part::Worker(index));
        }
        Some(cluster)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn namespace(&self, index: usize) -> String {
        format!("{}w{index}", self.tag)
    }

    fn make_network(&self) {
        let (tag, subnet) = (&self.tag, &self.subnet);
        must(ip(&format!("addr add {subnet}.1/24 dev {tag}b")), "address");
        must(ip(&format!("link set {tag}b up")), "bridge");
        for index in 0..self.workers.len() {
            let space = self.namespace(index);
            let of_worker = index + 10;
            for step in [
                format!("netns add {space}"),
                format!("link add {tag}v{index} type veth peer name eth0 netns {space}"),
                format!("link set {tag}v{index} master {tag}b"),
                format!("link set {tag}v{index} up"),
                format!("-n {space} addr add {subnet}.{of_worker}/24 dev eth0"),
                format!("-n {space} link set eth0 up"),
                format!("-n {space} link set lo up"),
            ] {
                must(ip(&step), &step);
            }
            assert_eq!(
                self.knob(index),
                FIRST,
                "a new namespace has the kernel's default"
            );
        }
    }

    /// An authority of the test's own, and the server's certificate.
    fn make_certificates(&self) {
        let names = format!("subjectAltName=IP:{}.1\n", self.subnet);
        let directory = self.dir.path();
        let made =
            make_root(directory).and_then(|()| sign(directory, directory, "nats", "nats", &names));
        must(made.is_some(), "certificates");
    }

    fn make_configuration(&self, lease_s: f64) {
        let subnet = &self.subnet;
        let port = crate::toy::free_port();
        self.write("password", "correct horse\n");
        self.write(
            "nats.conf",
            &format!(
                "listen: \"{subnet}.1:{port}\"\nping_interval: \"2s\"\njetstream {{ store_dir: \"{}\" }}\n\
                 authorization {{ user: slackline, password: \"correct horse\" }}\n\
                 tls {{ cert_file: \"{}\", key_file: \"{}\" }}\n",
                self.text("jetstream"),
                self.text("nats-cert.pem"),
                self.text("nats-key.pem")
            ),
        );
        let nats = format!(
            "[nats]\nurl = \"tls://{subnet}.1:{port}\"\nca = \"{}\"\nuser = \"slackline\"\npassword_file = \"{}\"\n",
            self.text("ca-cert.pem"),
            self.text("password")
        );
        self.write("nats.toml", &nats);
        self.write("workers.toml", &format!("lease_s = {lease_s:?}\n{nats}"));
    }

    /// With the only coordinator whose orders it runs.
    pub(crate) fn configure_worker(&self, index: usize, key: &str) {
        let nats = std::fs::read_to_string(self.path("nats.toml")).unwrap();
        self.write(
            &format!("worker{index}.toml"),
            &format!("name = \"w{index}\"\ncoordinator_keys = [\"{key}\"]\nlabels = {{ rack = \"test\" }}\n{nats}"),
        );
    }

    fn postgres(&self, program: &str, arguments: &[&str]) -> bool {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=postgres", "--regid=postgres", "--clear-groups"])
            .arg(self.bin.join(program))
            .arg("-D")
            .arg(self.path("pg/data"))
            .args(arguments)
            .current_dir("/")
            .env(MARK, self.dir.path());
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    fn start_postgres(&mut self, is_first: bool) {
        if is_first {
            std::fs::create_dir(self.path("pg")).unwrap();
            // It refuses to run as root.
            must(does("chown", &["postgres", &self.text("pg")]), "chown");
            must(does("chmod", &["755", &self.text("")]), "chmod");
            must(
                self.postgres("initdb", &["-A", "trust", "-U", "postgres", "--no-sync"]),
                "initdb",
            );
        }
        let socket = format!(
            "-c listen_addresses='' -c unix_socket_directories='{}'",
            self.text("pg")
        );
        let log = self.text("pg/log");
        must(
            self.postgres("pg_ctl", &["-w", "-l", &log, "-o", &socket, "start"]),
            "PostgreSQL",
        );
        self.has_postgres = true;
    }

    /// `slackline`, with what it says in a file.
    fn slackline(&self, state: &str, log: &str, space: Option<usize>) -> Command {
        let program = assert_cmd::cargo::cargo_bin!("slackline");
        let mut command = match space {
            Some(index) => {
                let mut command = Command::new("ip");
                // It becomes the program: its pid is the worker's.
                command
                    .args(["netns", "exec", &self.namespace(index)])
                    .arg(program);
                command
            }
            None => Command::new(program),
        };
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.path(log))
            .unwrap();
        command
            .env(MARK, self.dir.path())
            .arg("--state-dir")
            .arg(self.path(state))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        command
    }

    pub(crate) fn is_there(&self, part: Part) -> bool {
        match part {
            Part::Worker(index) => self.workers[index].is_some(),
            Part::Link(index) => !self.cut[index],
            Part::Coordinator => self.coordinator.is_some(),
            Part::Nats => self.nats.is_some(),
            Part::Postgres => self.has_postgres,
        }
    }

    /// Kills it (-9), or takes its link down.
    pub(crate) fn take_away(&mut self, part: Part) {
        let child = match part {
            Part::Worker(index) => self.workers[index].take(),
            Part::Coordinator => self.coordinator.take(),
            Part::Nats => self.nats.take(),
            Part::Link(index) => {
                must(
                    ip(&format!("link set {}v{index} down", self.tag)),
                    "link down",
                );
                self.cut[index] = true;
                None
            }
            Part::Postgres => {
                self.has_postgres = !self.postgres("pg_ctl", &["-w", "-m", "immediate", "stop"]);
                None
            }
        };
        if let Some(mut child) = child {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub(crate) fn bring_back(&mut self, part: Part) {
        match part {
            Part::Worker(index) => {
                let mut worker =
                    self.slackline(&format!("w{index}"), &format!("w{index}.log"), Some(index));
                worker
                    .arg("worker")
                    .arg(self.path(&format!("worker{index}.toml")));
                self.workers[index] = Some(worker.spawn().unwrap());
            }
            Part::Link(index) => {
                must(ip(&format!("link set {}v{index} up", self.tag)), "link up");
                self.cut[index] = false;
            }
            // A coordinator that was started meanwhile had it started.
            Part::Postgres if self.has_postgres => {}
            Part::Postgres => self.start_postgres(false),
            Part::Nats => {
                let mut nats = Command::new("nats-server");
                let log = self.text("nats.log");
                nats.arg("--config")
                    .arg(self.path("nats.conf"))
                    .args(["--log", &log]);
                nats.env(MARK, self.dir.path())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null());
                self.nats = Some(nats.spawn().unwrap());
            }
            Part::Coordinator => {
                let store = format!(
                    "postgresql:///postgres?host={}&user=postgres",
                    self.text("pg")
                );
                let mut serve = self.slackline("state", "serve.log", None);
                serve
                    .args([
                        "serve",
                        "--listen",
                        "127.0.0.1:0",
                        "--rate",
                        "10000",
                        "--store",
                        &store,
                        "--workers",
                    ])
                    .arg(self.path("workers.toml"));
                // Where PostgreSQL is away, it ends, and is started again, as systemd would.
                let end = Instant::now() + Duration::from_secs(30);
                let _ = std::fs::remove_file(self.path("state/serve.json"));
                loop {
                    let mut child = serve.spawn().unwrap();
                    let is_up = loop {
                        if self.try_get("/experiments").is_some() {
                            break true;
                        }
                        if child.try_wait().unwrap().is_some() {
                            break false;
                        }
                        assert!(
                            Instant::now() < end,
                            "the coordinator does not answer: {}",
                            self.log("serve.log")
                        );
                        std::thread::sleep(Duration::from_millis(20));
                    };
                    if is_up {
                        self.coordinator = Some(child);
                        return;
                    }
                    if !self.has_postgres {
                        self.start_postgres(false);
                    }
                    assert!(
                        Instant::now() < end,
                        "the coordinator ends: {}",
                        self.log("serve.log")
                    );
                    std::thread::sleep(Duration::from_millis(200));
                }
            }
        }
    }

    /// Another worker of the same configuration, on the same host, with a state directory of its
    /// own.
    pub(crate) fn twin(&self, index: usize) -> Child {
        let mut worker = self.slackline("twin", "twin.log", Some(index));
        let file = self.path(&format!("worker{index}.toml"));
        worker.arg("worker").arg(file).spawn().unwrap()
    }

    pub(crate) fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// How often the workers said this.
    pub(crate) fn said(&self, text: &str) -> usize {
        let workers = 0..self.workers.len();
        workers
            .map(|index| self.log(&format!("w{index}.log")).matches(text).count())
            .sum()
    }

    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Option<Value> {
        let access = std::fs::read_to_string(self.path("state/serve.json")).ok()?;
        let access: Value = serde_json::from_str(&access).ok()?;
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!(
                "http://{}/api/v1{path}",
                access["address"].as_str()?
            ))
            .header(
                "authorization",
                format!("Bearer {}", access["write_token"].as_str()?),
            )
            .header("content-type", "application/json")
            .body(body.map_or_else(String::new, Value::to_string))
            .ok()?;
        let mut answer = ureq::run(request).ok()?;
        let text = answer
            .body_mut()
            .with_config()
            .limit(1 << 30)
            .read_to_string()
            .ok()?;
        serde_json::from_str(&text).ok()
    }

    fn try_get(&self, path: &str) -> Option<Value> {
        self.request("GET", path, None)
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        let read = || self.try_get(path);
        found_within(30, || {
            read().ok_or_else(|| format!("{path} cannot be read"))
        })
    }

    pub(crate) fn export(&self, id: i64) -> Value {
        self.get(&format!("/experiments/{id}/export?format=json"))
    }

    /// Where the server cannot say now, it may have been made or not.
    pub(crate) fn create(&self, spec: &Value) {
        let body = serde_json::json!({ "spec": spec.to_string(), "format": "json", "dir": "/tmp", "name": "stress" });
        let _ = self.request("POST", "/experiments", Some(&body));
    }

    /// Experiments that have not come to rest.
    pub(crate) fn unfinished(&self) -> Option<usize> {
        let all = self.try_get("/experiments")?;
        let is_resting = |it: &&Value| !matches!(it["state"].as_str(), Some("queued" | "running"));
        let all = all.as_array()?;
        Some(all.len() - all.iter().filter(is_resting).count())
    }

    /// Every experiment comes to rest within that time.
    pub(crate) fn wait_until_all_rest(&self, limit: Duration) {
        let what = || {
            let (serve, worker) = (self.log("serve.log"), self.log("w0.log"));
            format!("{}\n{serve}\n{worker}", self.get("/experiments"))
        };
        eventually(limit.as_secs(), || self.unfinished() == Some(0), what);
    }

    pub(crate) fn knob(&self, index: usize) -> String {
        let read = Command::new("ip")
            .args(["netns", "exec", &self.namespace(index), "cat", KNOB])
            .output()
            .unwrap();
        String::from_utf8(read.stdout).unwrap().trim().to_owned()
    }

    /// Ends everything in good order; nothing is left changed.
    pub(crate) fn end(mut self) {
        for index in 0..self.workers.len() {
            let mut worker = self.workers[index].take().unwrap();
            assert_eq!(
                asked_to_end(&mut worker),
                128 + 15,
                "{}",
                self.log(&format!("w{index}.log"))
            );
            assert_eq!(self.knob(index), FIRST, "the knob of worker {index}");
            let mut restore = self.slackline(
                &format!("w{index}"),
                &format!("restore{index}.log"),
                Some(index),
            );
            assert!(restore.arg("restore").status().unwrap().success());
            let said = self.log(&format!("restore{index}.log"));
            assert!(said.contains("no run has left anything to undo"), "{said}");
            assert!(
                !self.path(&format!("w{index}.run")).exists(),
                "scratch of worker {index}"
            );
        }
        let mut coordinator = self.coordinator.take().unwrap();
        assert_eq!(
            asked_to_end(&mut coordinator),
            128 + 15,
            "{}",
            self.log("serve.log")
        );
        self.take_away(Part::Nats);
        self.take_away(Part::Postgres);
        assert_eq!(self.processes(), Vec::<u32>::new(), "processes are left");
    }

    /// Processes that descend from this cluster.
    fn processes(&self) -> Vec<u32> {
        let mark = format!("{MARK}={}", self.dir.path().display());
        let of = |entry: std::fs::DirEntry| {
            let environment = std::fs::read(entry.path().join("environ")).ok()?;
            let is_ours = environment
                .split(|byte| *byte == 0)
                .any(|it| it == mark.as_bytes());
            is_ours.then(|| entry.file_name().to_str()?.parse().ok())?
        };
        std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(of)
            .collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self
            .workers
            .iter_mut()
            .chain([&mut self.coordinator, &mut self.nats])
        {
            if let Some(mut child) = child.take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
        if self.has_postgres {
            self.postgres("pg_ctl", &["-w", "-m", "immediate", "stop"]);
        }
        for pid in self.processes() {
            does("kill", &["-9", &pid.to_string()]);
        }
        for index in 0..self.workers.len() {
            ip(&format!("netns del {}", self.namespace(index)));
        }
        ip(&format!("link del {}b", self.tag));
    }
}

/// Asks a process to end; its exit code.
fn asked_to_end(child: &mut Child) -> i32 {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    child.wait().unwrap().code().unwrap_or(-1)
}
