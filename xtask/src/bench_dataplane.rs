//! `cargo xtask bench dataplane`: the runtime and the cache beside their peers, one core each for
//! server and client, all servers in turns. Server and client are in network namespaces with a veth
//! pair between them, and the client's connections are AF_XDP's for every server, so that the
//! client costs the same for all. Writes `docs/results/dataplane.json` and a picture.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::bench::ip;
use crate::cargo::{cargo, target_directory};
use crate::{install, step};

const USAGE: &str = "\
bench dataplane [PART…] [--rounds N] [--seconds N]
  parts: echo (64, 1,000 and 10,000 connections), tail (25, 50 and 75 % of epoll's maximum),
  cache (memcached and Redis, closed loop), objective (the highest rate with p99 at most 500 µs),
  batch (a bound of 1, 64, adaptive), isolated (the TCP stack in a process of its own, and not); all by
  default. The JSON file keeps the parts that do not run
";
const PARTS: [&str; 6] = ["echo", "tail", "cache", "objective", "batch", "isolated"];
/// The 99th percentile that the part `objective` allows, in microseconds.
const OBJECTIVE_P99_US: f64 = 500.0;
/// Rates that the part `objective` tries for each server in each round, by halving.
const OBJECTIVE_STEPS: usize = 6;
/// An open loop below this share of the rate asked for has fallen behind.
const KEPT_UP: f64 = 0.98;
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
}

struct Bench {
    target: PathBuf,
    /// The servers' namespace.
    namespace: String,
    rounds: usize,
    seconds: u32,
    rows: Vec<Row>,
}

/// What a server is and how it is started on CPU 0.
type Start<'a> = (&'a str, Vec<String>);

pub(crate) fn run(root: &Path, arguments: &[&str]) -> anyhow::Result<ExitCode> {
    let (mut rounds, mut seconds, mut parts) = (5, 2, Vec::new());
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|text| text.parse().ok());
        match *word {
            "--rounds" => rounds = number().context(USAGE)?,
            "--seconds" => seconds = u32::try_from(number().context(USAGE)?)?,
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
            _ => bench.isolated()?,
        }
        let text = serde_json::to_string_pretty(&bench.rows)?;
        std::fs::write(&json, text + "\n")?;
    }
    std::fs::write(results.join("dataplane.svg"), picture(&bench.rows))?;
    print!("{}", table(&bench.rows));
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

/// Two network namespaces with a veth pair between them, removed when dropped.
struct Cable {
    server: String,
    client: String,
}

impl Cable {
    fn new() -> anyhow::Result<Self> {
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
            ip(&format!(
                "-n {namespace} address add {address}/24 dev {INTERFACE}"
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

/// A server process, ended when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
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
            (
                "dataplane xdp",
                example("xdp", &["echo", INTERFACE, &address, "0", "spin"]),
            ),
        ])
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
        let [program, arguments @ ..] = &command[..] else {
            bail!("no program")
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        // The kernel closes the sockets of an io_uring a moment after its process has ended.
        while TcpStream::connect((SERVER, PORT)).is_ok() {
            if Instant::now() > deadline {
                bail!("something listens on {SERVER}:{PORT} already");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let child = Command::new("ip")
            .args(["netns", "exec", &self.namespace])
            .arg(program)
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| program.clone())?;
        let server = Server(child);
        while TcpStream::connect((SERVER, PORT)).is_err() {
            if Instant::now() > deadline {
                bail!("{program} does not listen on port {PORT}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Loads the server that runs. A rate of 0 is a closed loop.
    fn load(&self, shape: &str, connections: u32, rate: f64) -> anyhow::Result<Sample> {
        let output = Command::new(self.example("load"))
            .args([shape, &format!("{SERVER}:{PORT}"), &connections.to_string()])
            .args([self.seconds.to_string(), rate.to_string(), "1".into()])
            .arg(INTERFACE)
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(&text).with_context(|| {
            let errors = String::from_utf8_lossy(&output.stderr);
            format!("the load failed: {text}{errors}")
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

    /// The highest rate at which the 99th percentile holds [`OBJECTIVE_P99_US`], and what was
    /// measured there.
    fn highest_rate(&self, shape: &str, connections: u32) -> anyhow::Result<Option<Sample>> {
        let most = self.load(shape, connections, 0.0)?.requests_per_s;
        let (mut low, mut high, mut best) = (0.0, most, None);
        for _ in 0..OBJECTIVE_STEPS {
            let rate = f64::midpoint(low, high);
            let sample = self.load(shape, connections, rate)?;
            let holds = sample.p99_us <= OBJECTIVE_P99_US
                && sample.requests_per_s >= KEPT_UP * rate
                && sample.dropped == 0;
            match holds {
                true => (low, best) = (rate, Some(sample)),
                false => high = rate,
            }
        }
        Ok(best)
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
        servers.retain(|(name, _)| *name != "nginx");
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
        let servers = self.cache_servers();
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

/// Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom.
const T_95: [f64; 10] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
];

/// Geometric mean of paired ratios, and its 95 % interval. `None` with less than two pairs.
fn ratio(
    ours: &[Option<Sample>],
    theirs: &[Option<Sample>],
    pick: fn(&Sample) -> f64,
) -> Option<(f64, f64, f64)> {
    let pairs = ours.iter().zip(theirs);
    let pairs = pairs.filter_map(|(a, b)| a.as_ref().zip(b.as_ref()));
    let logs: Vec<f64> = pairs.map(|(a, b)| (pick(a) / pick(b)).ln()).collect();
    let n = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / n;
    let spread = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let degrees = logs.len().checked_sub(2)?;
    let quantile = T_95.get(degrees).copied().unwrap_or(1.96);
    let half = quantile * (spread / n).sqrt();
    Some((mean.exp(), (mean - half).exp(), (mean + half).exp()))
}

/// `None` without a sample.
fn median(samples: &[Option<Sample>], pick: fn(&Sample) -> f64) -> Option<f64> {
    let mut values: Vec<f64> = samples.iter().flatten().map(pick).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The server with which the others of its part are compared.
fn control(part: &str) -> &'static str {
    match part {
        "echo" | "tail" => "epoll-spin",
        "cache" | "objective" => "memcached",
        "isolated" => "one process",
        _ => "bound 64",
    }
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "\n| load | server | rounds | requests/s | mean µs | p99 µs | rate against control | p99 against control |\n|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let control = rows.iter().find(|other| {
            other.part == row.part && other.load == row.load && other.server == control(&row.part)
        });
        let [rate, tail] = [
            (|sample: &Sample| sample.requests_per_s) as fn(&Sample) -> f64,
            |sample| sample.p99_us,
        ]
        .map(|pick| match control {
            Some(control) if control.server != row.server => {
                ratio(&row.rounds, &control.rounds, pick).map_or_else(
                    || "–".to_owned(),
                    |(mean, low, high)| format!("{mean:.2} [{low:.2}, {high:.2}]"),
                )
            }
            _ => "control".to_owned(),
        });
        let cell = |digits: usize, pick: fn(&Sample) -> f64| {
            let value = median(&row.rounds, pick);
            value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} of {} | {} | {} | {} | {rate} | {tail} |",
            row.load,
            row.server,
            row.rounds.iter().flatten().count(),
            row.rounds.len(),
            cell(0, |sample| sample.requests_per_s),
            cell(1, |sample| sample.mean_us),
            cell(1, |sample| sample.p99_us),
        );
    }
    text
}

/// The 99th percentile against the rate, for the parts with a rate of their own.
fn picture(rows: &[Row]) -> String {
    let points: Vec<(&str, f64, f64)> = rows
        .iter()
        .filter(|row| row.part == "tail")
        .filter_map(|row| {
            let rate = median(&row.rounds, |sample| sample.requests_per_s)?;
            let tail = median(&row.rounds, |sample| sample.p99_us)?;
            Some((row.server.as_str(), rate, tail))
        })
        .collect();
    let most = points.iter().map(|point| point.1).fold(1.0, f64::max);
    let highest = points
        .iter()
        .map(|point| point.2)
        .fold(100.0, f64::max)
        .log10()
        .ceil();
    let x = |rate: f64| 60.0 + 560.0 * rate / most;
    let y = |tail: f64| 330.0 - 300.0 * tail.max(1.0).log10() / highest;
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 680 390\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>99th percentile of an echo against the rate</title><rect width=\"680\" height=\"390\" fill=\"white\"/>\n",
    );
    for decade in 0..=6 {
        let tail = 10_f64.powi(decade);
        if f64::from(decade) <= highest {
            let _ = writeln!(
                svg,
                "<line x1=\"60\" x2=\"620\" y1=\"{0:.0}\" y2=\"{0:.0}\" stroke=\"#ddd\"/><text x=\"4\" y=\"{0:.0}\">{tail} µs</text>",
                y(tail)
            );
        }
    }
    let colours = [
        ("epoll", "#888"),
        ("epoll-spin", "#4878a8"),
        ("io_uring", "#5a9a5a"),
        ("dataplane", "#c2502e"),
        ("dataplane xdp", "#7a3ea8"),
    ];
    for (index, (name, colour)) in colours.iter().enumerate() {
        let line: Vec<String> = points
            .iter()
            .filter(|point| point.0 == *name)
            .map(|point| format!("{:.1},{:.1}", x(point.1), y(point.2)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            line.join(" ")
        );
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"20\" fill=\"{colour}\">{name}</text>",
            70 + index * 110
        );
    }
    for step in 0..=4 {
        let rate = most * f64::from(step) / 4.0;
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"350\">{:.0}k</text>",
            x(rate) - 12.0,
            rate / 1000.0
        );
    }
    svg + "<text x=\"250\" y=\"376\">requests/s, server on one core</text>\n</svg>\n"
}
