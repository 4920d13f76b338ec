//! `cargo xtask bench dataplane`: the runtime and the cache beside their peers, one core each for
//! server and client, all servers in turns. Server and client are in network namespaces with a veth
//! pair between them, and the client's connections are AF_XDP's for every server, so that the
//! client costs the same for all. Writes `docs/results/dataplane.json` and a picture.

mod million;
mod report;
mod search;
mod servers;
mod steal;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use self::million::Held;
use self::search::{RateSearch, Shown};
use self::servers::{Cable, Server, Steering};
use self::steal::Stolen;
use crate::cargo::{cargo, target_directory};
use crate::{install, step};

const USAGE: &str = "\
bench dataplane [PART…] [--rounds N] [--seconds N] [--hold SECONDS]
  parts: echo (64, 1,000 and 10,000 connections), tail (25, 50 and 75 % of epoll's maximum),
  cache (memcached and Redis, closed loop), objective (the highest rate with p99 at most 500 µs),
  batch (a bound of 1, 64, adaptive), isolated (the TCP stack in a process of its own, and not),
  uring (settings of the io_uring backend), copies (answers of 64 KiB on io_uring, sent with and
  without a copy), steered (echo, with the kernel's receive work of each side
  on that side's CPU), million (1,000,000 connections, held for --hold seconds in the last round: 600);
  all by default. The JSON file keeps the parts that do not run
";
const PARTS: [&str; 10] = [
    "echo",
    "tail",
    "cache",
    "objective",
    "batch",
    "isolated",
    "uring",
    "copies",
    "steered",
    "million",
];
/// The 99th percentile that the part `objective` allows, in microseconds.
const OBJECTIVE_P99_US: f64 = 500.0;
/// An open loop below this share of the rate asked for has fallen behind.
const KEPT_UP: f64 = 0.98;
/// The client itself was late with this share of the requests: half of those that the 99th
/// percentile leaves out.
const LATE_SHARE: f64 = 0.005;
/// Steal is counted in ticks of 10 ms: one may be chance.
const STOLEN_MS: f64 = 15.0;
/// Of a closed loop's connections at least this share has a request under way.
const UNDER_WAY_SHARE: f64 = 0.8;
/// Answers on each connection without which nothing is said about requests under way.
const ANSWERS_EACH_MIN: f64 = 100.0;
/// How often a load that fails is tried.
const ATTEMPTS: usize = 3;
const PORT: u16 = 17_311;
/// Where all servers listen, in a namespace of their own.
const SERVER: &str = "10.77.0.2";
const CLIENT: &str = "10.77.0.1";
/// The veth's name, on both sides.
const INTERFACE: &str = "bench0";
/// The servers' namespace, for the bench itself, which runs in the client's.
const SERVER_NAMESPACE: &str = "SLACKLINE_BENCH_SERVERS";

#[derive(Debug, Clone, Deserialize, Serialize)]
struct Sample {
    requests_per_s: f64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    failed: u64,
    dropped: u64,
    /// Share of an open loop's requests that the client itself was late with.
    #[serde(default)]
    late_share: f64,
    /// What the hypervisor took of the two CPUs during the load, in milliseconds of CPU time.
    #[serde(default)]
    stolen_ms: f64,
    /// Of a search: loads that counted, and loads that were discarded as disturbed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    searched: Option<(u32, u32)>,
}

/// The rounds of one row. `None`: the load failed three times, or no rate held the objective.
type Rounds = Vec<Option<Sample>>;

/// One row: a server under one load, all rounds.
#[derive(Debug, Deserialize, Serialize)]
struct Row {
    part: String,
    load: String,
    server: String,
    rounds: Rounds,
    /// What holding the connections came to, in the part `million`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    held: Option<Held>,
}

struct Bench {
    target: PathBuf,
    /// The servers' namespace.
    namespace: String,
    rounds: usize,
    seconds: u32,
    hold_s: u32,
    rows: Vec<Row>,
}

/// What a server is and how it is started on CPU 0.
type Start<'a> = (&'a str, Vec<String>);

pub(crate) fn run(root: &Path, arguments: &[&str]) -> anyhow::Result<ExitCode> {
    let (mut rounds, mut seconds, mut hold_s, mut parts) = (5, 2, 600, Vec::new());
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|text| text.parse().ok());
        match *word {
            "--rounds" => rounds = number().context(USAGE)?,
            "--seconds" => seconds = u32::try_from(number().context(USAGE)?)?,
            "--hold" => hold_s = u32::try_from(number().context(USAGE)?)?,
            part if PARTS.contains(&part) => parts.push(part),
            _ => bail!("{USAGE}"),
        }
    }
    if parts.is_empty() {
        parts = PARTS.to_vec();
    }
    let Ok(namespace) = std::env::var(SERVER_NAMESPACE) else {
        return prepare(root, arguments);
    };
    let results = root.join("docs/results");
    let json = results.join("dataplane.json");
    let mut rows: Vec<Row> = match std::fs::read(&json) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| json.display().to_string())?,
        Err(_) => Vec::new(),
    };
    rows.retain(|row| !parts.contains(&row.part.as_str()));
    let mut bench = Bench {
        target: target_directory(root).join("release/examples"),
        namespace,
        rounds,
        seconds,
        hold_s,
        rows,
    };
    for part in parts {
        println!("==> {part}: {rounds} rounds of {seconds} s");
        match part {
            "echo" => bench.echo()?,
            "tail" => bench.tail()?,
            "cache" => bench.cache(),
            "objective" => bench.objective(),
            "batch" => bench.batch()?,
            "isolated" => bench.isolated()?,
            "uring" => bench.uring(),
            "copies" => bench.copies(),
            "steered" => bench.steered()?,
            _ => bench.million()?,
        }
        let text = serde_json::to_string_pretty(&bench.rows)?;
        std::fs::write(&json, text + "\n")?;
    }
    std::fs::write(results.join("dataplane.svg"), report::picture(&bench.rows))?;
    print!("{}", report::table(&bench.rows));
    Ok(ExitCode::SUCCESS)
}

/// Builds, makes the namespaces, and runs the bench in the client's.
fn prepare(root: &Path, arguments: &[&str]) -> anyhow::Result<ExitCode> {
    install::install(install::BENCH_DATAPLANE)?;
    let mut build = cargo();
    build
        .args([
            "build",
            "--release",
            "-p",
            "dataplane",
            "-p",
            "cache-server",
        ])
        .arg("--examples")
        .current_dir(root);
    if !step::run("build the servers and the client (release)", &mut build)? {
        bail!("the build failed");
    }
    let cable = Cable::new()?;
    let status = Command::new("ip")
        .args(["netns", "exec", &cable.client])
        .arg(std::env::current_exe()?)
        .args(["bench", "dataplane"])
        .args(arguments)
        .env(SERVER_NAMESPACE, &cable.server)
        .current_dir(root)
        .status()?;
    Ok(match status.success() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

impl Sample {
    /// Little's law: in a closed loop as many requests are under way as there are connections. Fewer
    /// say that the client lost sight of some. Where a connection had few answers, too much of its
    /// time lies outside of the seconds that were measured.
    fn check_under_way(&self, connections: u32, seconds: u32) -> anyhow::Result<()> {
        let connections = f64::from(connections);
        let under_way = self.requests_per_s * self.mean_us / 1e6;
        let answers_each = self.requests_per_s * f64::from(seconds) / connections;
        anyhow::ensure!(
            under_way >= UNDER_WAY_SHARE * connections || answers_each < ANSWERS_EACH_MIN,
            "{under_way:.0} requests were under way on {connections} connections"
        );
        Ok(())
    }

    /// What an open loop of this rate showed about the objective.
    fn shown(&self, rate: f64) -> Shown {
        Shown {
            is_held: self.p99_us <= OBJECTIVE_P99_US
                && self.requests_per_s >= KEPT_UP * rate
                && self.dropped == 0,
            is_disturbed: self.late_share > LATE_SHARE || self.stolen_ms > STOLEN_MS,
        }
    }
}

impl Bench {
    fn example(&self, name: &str) -> String {
        self.target.join(name).display().to_string()
    }

    fn echo_servers(&self) -> anyhow::Result<Vec<Start<'static>>> {
        let address = format!("{SERVER}:{PORT}");
        let example = |name: &str, arguments: &[&str]| {
            let mut words = vec![self.example(name)];
            words.extend(arguments.iter().map(|word| (*word).to_owned()));
            words
        };
        Ok(vec![
            ("nginx", self.nginx()?),
            ("epoll", example("echo_peer", &["epoll", &address, "0"])),
            (
                "epoll-spin",
                example("echo_peer", &["epoll-spin", &address, "0"]),
            ),
            ("io_uring", example("echo_peer", &["uring", &address, "0"])),
            ("dataplane", example("echo", &[&address, "0", "spin"])),
            ("dataplane sqpoll", self.submission_thread()?),
            (
                "dataplane xdp",
                example("echo_server", &["xdp", INTERFACE, &address, "0", "spin"]),
            ),
        ])
    }

    /// The runtime with a submission thread of the kernel. The thread has the third CPU, where
    /// there is one. Else it shares the server's, and the shard sleeps when it has nothing to do.
    fn submission_thread(&self) -> anyhow::Result<Vec<String>> {
        let (idle, setting) = match std::thread::available_parallelism()?.get() {
            0..=2 => ("learn", "sqpoll=0"),
            _ => ("spin", "sqpoll=2"),
        };
        Ok(self.uring_server(&[idle, setting]))
    }

    /// The runtime's echo server on io_uring with settings.
    fn uring_server(&self, more: &[&str]) -> Vec<String> {
        let address = format!("{SERVER}:{PORT}");
        let mut words = vec![
            self.example("echo_server"),
            "uring".into(),
            address,
            "0".into(),
        ];
        words.extend(more.iter().map(|word| (*word).to_owned()));
        words
    }

    /// nginx in one process that answers from its configuration: what a usual server does.
    fn nginx(&self) -> anyhow::Result<Vec<String>> {
        let path = self.target.join("bench-nginx.conf");
        // nginx removes the file of its process ID when it ends.
        let pid = path.with_extension("pid").display().to_string();
        let text = format!(
            "daemon off; master_process off; pid {pid}; error_log stderr emerg;\n\
             events {{ worker_connections 12000; multi_accept on; }}\n\
             http {{ access_log off; keepalive_requests 100000000;\n\
             server {{ listen {SERVER}:{PORT} backlog=4096; location / {{ return 200 \"END\\r\\n\"; }} }} }}\n"
        );
        std::fs::write(&path, text)?;
        Ok(pinned(&format!("nginx -c {}", path.display())))
    }

    fn cache_servers(&self) -> Vec<Start<'static>> {
        let cache = |more: &[&str]| {
            let mut words = vec![
                self.example("cache"),
                format!("{SERVER}:{PORT}"),
                "1024".into(),
                "0".into(),
            ];
            words.extend(more.iter().map(|word| (*word).to_owned()));
            words
        };
        vec![
            (
                "memcached",
                pinned(&format!(
                    "memcached -t 1 -m 1024 -c 16384 -u nobody -l {SERVER} -p {PORT}"
                )),
            ),
            (
                "redis",
                pinned(&format!(
                    "redis-server --bind {SERVER} --protected-mode no --port {PORT} --save  --appendonly no --maxclients 15000"
                )),
            ),
            ("serve-cache", cache(&["learn"])),
            ("serve-cache spin", cache(&["spin"])),
            ("serve-cache xdp", cache(&["learn", INTERFACE])),
            ("serve-cache xdp spin", cache(&["spin", INTERFACE])),
        ]
    }

    /// Starts a server in its namespace, and waits until it answers.
    fn start(&self, (_, command): &Start<'_>) -> anyhow::Result<Server> {
        let log = self.target.join("bench-server.log");
        Server::start(&self.namespace, command, &log)
    }

    /// Loads the server that runs. A rate of 0 is a closed loop.
    fn load(&self, shape: &str, connections: u32, rate: f64) -> anyhow::Result<Sample> {
        self.run_load(shape, connections, rate, false)
    }

    /// As [`Bench::load`]. A server that `is_filled` has all keys of the shape from a load before.
    fn run_load(
        &self,
        shape: &str,
        connections: u32,
        rate: f64,
        is_filled: bool,
    ) -> anyhow::Result<Sample> {
        let mut command = Command::new(self.example("load"));
        command
            .args([shape, &format!("{SERVER}:{PORT}"), &connections.to_string()])
            .args([self.seconds.to_string(), rate.to_string(), "1".into()])
            .arg(INTERFACE);
        if is_filled {
            command.env("FILLED", "1");
        }
        let before = Stolen::now();
        let output = command.output()?;
        let stolen_ms = Stolen::now().since_ms(before);
        let text = String::from_utf8_lossy(&output.stdout);
        let sample: Sample = serde_json::from_str(&text).with_context(|| {
            let errors = String::from_utf8_lossy(&output.stderr);
            format!("the load failed: {text}{errors}")
        })?;
        if rate == 0.0 {
            sample.check_under_way(connections, self.seconds)?;
        }
        Ok(Sample {
            stolen_ms,
            ..sample
        })
    }

    /// Starts a server, loads it, and ends it. A load that fails is tried again, and then left out.
    fn sample(
        &self,
        server: &Start<'_>,
        load: impl Fn(&Self) -> anyhow::Result<Option<Sample>>,
    ) -> Option<Sample> {
        for _ in 0..ATTEMPTS {
            match self.start(server).and_then(|_server| load(self)) {
                Ok(sample) => return sample,
                Err(error) => println!("{}: {error:#}", server.0),
            }
        }
        None
    }

    /// The highest rate at which the 99th percentile holds [`OBJECTIVE_P99_US`], with the latencies
    /// of the highest load up to that rate that held. `search` has the rules.
    fn highest_rate(&self, shape: &str, connections: u32) -> anyhow::Result<Option<Sample>> {
        // The higher one of two: a disturbed closed loop would bound the search too low.
        let first = self.load(shape, connections, 0.0)?.requests_per_s;
        let second = self.run_load(shape, connections, 0.0, true)?.requests_per_s;
        let most = first.max(second);
        let mut search = RateSearch::new();
        let mut held: Vec<(f64, Sample)> = Vec::new();
        while let Some(share) = search.next() {
            let sample = self.run_load(shape, connections, share * most, true)?;
            let shown = sample.shown(share * most);
            search.take(shown);
            if shown.is_held {
                held.push((share, sample));
            }
        }
        let Some(found) = search.found() else {
            return Ok(None);
        };
        held.retain(|(share, _)| *share <= found);
        let highest = held.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
        Ok(highest.map(|(_, sample)| Sample {
            requests_per_s: found * most,
            searched: Some((search.loads(), search.discarded())),
            ..sample
        }))
    }

    /// All servers under one load, in turns; every other round in the opposite order.
    fn compare(
        &mut self,
        part: &str,
        load: &str,
        servers: &[Start<'_>],
        measure: impl Fn(&Self, &str) -> anyhow::Result<Option<Sample>>,
    ) {
        let mut samples: BTreeMap<usize, Rounds> = BTreeMap::new();
        for round in 0..self.rounds {
            let mut order: Vec<usize> = (0..servers.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for index in order {
                let server = &servers[index];
                let name = server.0;
                let sample = self.sample(server, |bench| measure(bench, name));
                match &sample {
                    Some(sample) => println!(
                        "{load}, {name}: {:.0}/s, p99 {:.0} µs",
                        sample.requests_per_s, sample.p99_us
                    ),
                    None => println!("{load}, {name}: nothing"),
                }
                samples.entry(index).or_default().push(sample);
            }
        }
        for (index, rounds) in samples {
            let server = servers[index].0.to_owned();
            self.rows.push(Row {
                part: part.to_owned(),
                load: load.to_owned(),
                server,
                rounds,
                held: None,
            });
        }
    }

    fn echo(&mut self) -> anyhow::Result<()> {
        let servers = self.echo_servers()?;
        for connections in [64, 1000, 10_000] {
            let load = format!("{connections} connections");
            self.compare("echo", &load, &servers, |bench, server| {
                bench.load(echo_shape(server), connections, 0.0).map(Some)
            });
        }
        Ok(())
    }

    fn tail(&mut self) -> anyhow::Result<()> {
        let mut servers = self.echo_servers()?;
        // The rates are epoll's, and nginx has more to do for each.
        servers.retain(|(name, _)| !matches!(*name, "nginx" | "dataplane sqpoll"));
        let most = self.most(&servers[0], "echo")?;
        for percent in [25_u32, 50, 75] {
            let load = format!("{percent} % of epoll's {most:.0}/s");
            let rate = most * f64::from(percent) / 100.0;
            self.compare("tail", &load, &servers, |bench, server| {
                bench.load(echo_shape(server), 64, rate).map(Some)
            });
        }
        Ok(())
    }

    /// What a server does of a shape with 64 connections in a closed loop, in requests a second.
    fn most(&self, server: &Start<'_>, shape: &str) -> anyhow::Result<f64> {
        let sample = self.sample(server, |bench| bench.load(shape, 64, 0.0).map(Some));
        let sample = sample.with_context(|| format!("{} was not measured", server.0))?;
        Ok(sample.requests_per_s)
    }

    fn cache(&mut self) {
        let servers = self.cache_servers();
        for (shape, connections) in [("memtier", 64), ("memtier", 1000), ("usr", 64), ("etc", 64)] {
            let load = format!("{shape}, {connections} connections");
            self.compare("cache", &load, &servers, |bench, server| {
                let shape = cache_shape(server, shape);
                bench.load(&shape, connections, 0.0).map(Some)
            });
        }
    }

    fn objective(&mut self) {
        let mut servers = self.cache_servers();
        // In the closed loop a shard that spins has the same rate as one that may sleep.
        servers.retain(|(name, _)| !name.ends_with("spin"));
        for shape in ["memtier", "usr", "etc"] {
            let load = format!("{shape}, 64 connections, p99 at most {OBJECTIVE_P99_US} µs");
            self.compare("objective", &load, &servers, |bench, server| {
                bench.highest_rate(&cache_shape(server, shape), 64)
            });
        }
    }

    fn batch(&mut self) -> anyhow::Result<()> {
        let command = |bound: &str| {
            let cache = self.example("cache");
            let command = format!("env {bound} {cache} {SERVER}:{PORT} 1024 0 spin");
            command.split(' ').map(str::to_owned).collect()
        };
        let servers: [Start<'static>; 3] = [
            ("bound 1", command("BATCH=1")),
            ("bound 64", command("BATCH=64")),
            ("adaptive", command("OBJECTIVE_US=500")),
        ];
        let most = self.most(&servers[1], "memtier")?;
        for percent in [25_u32, 50, 75, 90] {
            let load = format!("{percent} % of {most:.0}/s");
            let rate = most * f64::from(percent) / 100.0;
            self.compare("batch", &load, &servers, |bench, _| {
                bench.load("memtier", 64, rate).map(Some)
            });
        }
        let load = "closed loop, 64 connections";
        self.compare("batch", load, &servers, |bench, _| {
            bench.load("memtier", 64, 0.0).map(Some)
        });
        Ok(())
    }

    /// The echo server of the runtime with other settings of the io_uring backend.
    fn uring(&mut self) {
        let server = |settings: &[&str]| self.uring_server(&[&["spin"], settings].concat());
        let servers: [Start<'static>; 5] = [
            ("as it is", server(&[])),
            ("registered sockets", server(&["registered"])),
            ("64 receive buffers", server(&["buffers=64"])),
            ("128 receive buffers", server(&["buffers=128"])),
            ("registered, 128", server(&["registered", "buffers=128"])),
        ];
        for connections in [64, 1000] {
            let load = format!("{connections} connections");
            self.compare("uring", &load, &servers, |bench, _| {
                bench.load("echo", connections, 0.0).map(Some)
            });
        }
    }

    /// Answers of 64 KiB, sent by SEND_ZC and not. On a veth pair the kernel copies what was sent
    /// without a copy when the other side receives it.
    fn copies(&mut self) {
        let command = |setting: &str| {
            let cache = self.example("cache");
            let command = format!("env {setting} {cache} {SERVER}:{PORT} 1024 0 learn");
            command.split(' ').map(str::to_owned).collect()
        };
        let servers: [Start<'static>; 2] = [
            ("copied", command("ZERO_COPY=1000000000")),
            ("not copied", command("ZERO_COPY=16384")),
        ];
        for connections in [1, 16] {
            let load = format!("64 KiB, {connections} connections");
            self.compare("copies", &load, &servers, |bench, _| {
                bench.load("large", connections, 0.0).map(Some)
            });
        }
    }

    /// The echo with each side's receive work on its own CPU. On a veth pair the sender's CPU does
    /// it otherwise: the client's CPU then does a part of a kernel server's TCP, and may bound all
    /// of them alike.
    fn steered(&mut self) -> anyhow::Result<()> {
        let mut servers = self.echo_servers()?;
        servers.retain(|(name, _)| !matches!(*name, "nginx" | "dataplane sqpoll"));
        let _steering = Steering::start(&self.namespace)?;
        for connections in [64, 1000] {
            let load = format!("{connections} connections");
            self.compare("steered", &load, &servers, |bench, server| {
                bench.load(echo_shape(server), connections, 0.0).map(Some)
            });
        }
        Ok(())
    }

    /// The cache with its TCP stack in the same process, and in one of its own: on the same CPU,
    /// and on another one where neither server nor client runs.
    fn isolated(&mut self) -> anyhow::Result<()> {
        let command = |stack_cpu: &str| {
            let cache = self.example("cache");
            let command = format!("{cache} {SERVER}:{PORT} 1024 0 learn {INTERFACE} {stack_cpu}");
            command.trim_end().split(' ').map(str::to_owned).collect()
        };
        let mut servers: Vec<Start<'static>> = vec![
            ("one process", command("")),
            ("two processes, one CPU", command("0")),
        ];
        if std::thread::available_parallelism()?.get() > 2 {
            servers.push(("two processes, two CPUs", command("2")));
        }
        for (shape, connections) in [
            ("memtier", 1),
            ("memtier", 64),
            ("memtier", 1000),
            ("etc", 64),
        ] {
            let load = format!("{shape}, {connections} connections");
            self.compare("isolated", &load, &servers, |bench, _| {
                bench.load(shape, connections, 0.0).map(Some)
            });
        }
        let most = self.most(&servers[1], "memtier")?;
        let load = format!("half of {most:.0}/s");
        self.compare("isolated", &load, &servers, |bench, _| {
            bench.load("memtier", 64, most / 2.0).map(Some)
        });
        Ok(())
    }
}

/// A command on the servers' CPU.
fn pinned(command: &str) -> Vec<String> {
    let words = format!("taskset -c 0 {command}");
    words.split(' ').map(str::to_owned).collect()
}

/// The shape of the load for a server of the part `echo`.
fn echo_shape(server: &str) -> &'static str {
    match server {
        "nginx" => "http",
        _ => "echo",
    }
}

/// The shape of the load for a cache: Redis has commands of its own.
fn cache_shape(server: &str, shape: &str) -> String {
    match server {
        "redis" => format!("redis-{shape}"),
        _ => shape.to_owned(),
    }
}
