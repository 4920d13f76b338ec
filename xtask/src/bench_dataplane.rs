//! `cargo xtask bench dataplane`: the runtime and the cache beside their peers, one core each for
//! server and client, all servers in turns. Writes `docs/results/dataplane.json` and a picture.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::{cargo, install, step};

const USAGE: &str = "\
bench dataplane [PART…] [--rounds N] [--seconds N]
  parts: echo (64, 1,000 and 10,000 connections), tail (25, 50 and 75 % of epoll's maximum),
  cache (memcached and Redis), batch (a bound of 1, 64, adaptive); all by default
";
const PORT: u16 = 17_311;

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

/// One row: a server under one load, all rounds.
#[derive(Debug, Serialize)]
struct Row {
    part: &'static str,
    load: String,
    server: String,
    rounds: Vec<Sample>,
}

struct Bench {
    target: PathBuf,
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
            part @ ("echo" | "tail" | "cache" | "batch") => parts.push(part),
            _ => bail!("{USAGE}"),
        }
    }
    if parts.is_empty() {
        parts = vec!["echo", "tail", "cache", "batch"];
    }
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
            "--examples",
        ])
        .current_dir(root);
    if !step::run("build the servers and the client (release)", &mut build)? {
        bail!("the build failed");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
    let mut bench = Bench {
        target: root.join(target).join("release/examples"),
        rounds,
        seconds,
        rows: Vec::new(),
    };
    for part in parts {
        println!("==> {part}: {rounds} rounds of {seconds} s");
        match part {
            "echo" => bench.echo()?,
            "tail" => bench.tail()?,
            "cache" => bench.cache()?,
            _ => bench.batch()?,
        }
    }
    let results = root.join("docs/results");
    let json = serde_json::to_string_pretty(&bench.rows)?;
    std::fs::write(results.join("dataplane.json"), json + "\n")?;
    std::fs::write(results.join("dataplane.svg"), picture(&bench.rows))?;
    print!("{}", table(&bench.rows));
    Ok(ExitCode::SUCCESS)
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

    fn echo_servers(&self) -> Vec<Start<'static>> {
        let address = format!("127.0.0.1:{PORT}");
        let peer = |kind: &str| {
            vec![
                self.example("echo_peer"),
                kind.into(),
                address.clone(),
                "0".into(),
            ]
        };
        vec![
            ("epoll", peer("epoll")),
            ("epoll-spin", peer("epoll-spin")),
            ("io_uring", peer("uring")),
            (
                "dataplane",
                vec![
                    self.example("echo"),
                    address.clone(),
                    "0".into(),
                    "spin".into(),
                ],
            ),
        ]
    }

    fn cache_servers(&self) -> Vec<Start<'static>> {
        let port = PORT.to_string();
        let pinned = |words: &[&str]| {
            ["taskset", "-c", "0"]
                .iter()
                .chain(words)
                .map(|word| (*word).to_owned())
                .collect()
        };
        let user = "nobody";
        vec![
            (
                "memcached",
                pinned(&[
                    "memcached",
                    "-t",
                    "1",
                    "-m",
                    "1024",
                    "-c",
                    "16384",
                    "-u",
                    user,
                    "-l",
                    "127.0.0.1",
                    "-p",
                    &port,
                ]),
            ),
            (
                "redis",
                pinned(&[
                    "redis-server",
                    "--port",
                    &port,
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                    "--maxclients",
                    "15000",
                ]),
            ),
            (
                "serve-cache",
                vec![
                    self.example("cache"),
                    format!("127.0.0.1:{PORT}"),
                    "1024".into(),
                    "0".into(),
                    "learn".into(),
                ],
            ),
            (
                "serve-cache spin",
                vec![
                    self.example("cache"),
                    format!("127.0.0.1:{PORT}"),
                    "1024".into(),
                    "0".into(),
                    "spin".into(),
                ],
            ),
        ]
    }

    /// Starts a server, loads it, and ends it.
    fn sample(
        &self,
        command: &[String],
        variables: &[(&str, &str)],
        shape: &str,
        connections: u32,
        rate: f64,
    ) -> anyhow::Result<Sample> {
        let [program, arguments @ ..] = command else {
            bail!("no program")
        };
        let child = Command::new(program)
            .args(arguments)
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| program.clone())?;
        let _server = Server(child);
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", PORT)).is_err() {
            if Instant::now() > deadline {
                bail!("{program} does not listen on port {PORT}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let output = Command::new(self.example("load"))
            .args([
                shape,
                &format!("127.0.0.1:{PORT}"),
                &connections.to_string(),
            ])
            .args([self.seconds.to_string(), rate.to_string(), "1".into()])
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(&text).with_context(|| {
            format!(
                "load against {program}: {text}{}",
                String::from_utf8_lossy(&output.stderr)
            )
        })
    }

    /// All servers under one load, in turns; every other round in the opposite order.
    fn compare(
        &mut self,
        part: &'static str,
        load: &str,
        servers: &[Start<'_>],
        shape: &dyn Fn(&str) -> String,
        connections: u32,
        rate: f64,
    ) -> anyhow::Result<()> {
        let mut samples: BTreeMap<usize, Vec<Sample>> = BTreeMap::new();
        for round in 0..self.rounds {
            let mut order: Vec<usize> = (0..servers.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for index in order {
                let (name, command) = &servers[index];
                let variables: &[(&str, &str)] = match *name {
                    "bound 1" => &[("BATCH", "1")],
                    "bound 64" => &[("BATCH", "64")],
                    "adaptive" => &[("OBJECTIVE_US", "500")],
                    _ => &[],
                };
                let sample = self.sample(command, variables, &shape(name), connections, rate)?;
                println!(
                    "{load}, {name}: {:.0}/s, p99 {:.0} µs",
                    sample.requests_per_s, sample.p99_us
                );
                samples.entry(index).or_default().push(sample);
            }
        }
        for (index, rounds) in samples {
            let server = servers[index].0.to_owned();
            self.rows.push(Row {
                part,
                load: load.to_owned(),
                server,
                rounds,
            });
        }
        Ok(())
    }

    fn echo(&mut self) -> anyhow::Result<()> {
        let servers = self.echo_servers();
        for connections in [64, 1000, 10_000] {
            let load = format!("{connections} connections");
            self.compare(
                "echo",
                &load,
                &servers,
                &|_| "echo".into(),
                connections,
                0.0,
            )?;
        }
        Ok(())
    }

    fn tail(&mut self) -> anyhow::Result<()> {
        let servers = self.echo_servers();
        let most = self
            .sample(&servers[0].1, &[], "echo", 64, 0.0)?
            .requests_per_s;
        for percent in [25_u32, 50, 75] {
            let load = format!("{percent} % of epoll's {most:.0}/s");
            let rate = most * f64::from(percent) / 100.0;
            self.compare("tail", &load, &servers, &|_| "echo".into(), 64, rate)?;
        }
        Ok(())
    }

    fn cache(&mut self) -> anyhow::Result<()> {
        let servers = self.cache_servers();
        for (shape, connections) in [("memtier", 64), ("memtier", 1000), ("usr", 64), ("etc", 64)] {
            let load = format!("{shape}, {connections} connections");
            let of = |server: &str| match server {
                "redis" => format!("redis-{shape}"),
                _ => shape.to_owned(),
            };
            self.compare("cache", &load, &servers, &of, connections, 0.0)?;
        }
        Ok(())
    }

    fn batch(&mut self) -> anyhow::Result<()> {
        let address = format!("127.0.0.1:{PORT}");
        let command = vec![
            self.example("cache"),
            address,
            "1024".into(),
            "0".into(),
            "spin".into(),
        ];
        let servers = ["bound 1", "bound 64", "adaptive"].map(|name| (name, command.clone()));
        let most = self
            .sample(&command, &[], "memtier", 64, 0.0)?
            .requests_per_s;
        for percent in [25_u32, 50, 75, 90] {
            let load = format!("{percent} % of {most:.0}/s");
            let rate = most * f64::from(percent) / 100.0;
            self.compare("batch", &load, &servers, &|_| "memtier".into(), 64, rate)?;
        }
        self.compare(
            "batch",
            "closed loop, 64 connections",
            &servers,
            &|_| "memtier".into(),
            64,
            0.0,
        )
    }
}

/// Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom.
const T_95: [f64; 10] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
];

/// Geometric mean of paired ratios, and its 95 % interval.
fn ratio(ours: &[Sample], theirs: &[Sample], pick: fn(&Sample) -> f64) -> (f64, f64, f64) {
    let logs: Vec<f64> = ours
        .iter()
        .zip(theirs)
        .map(|(a, b)| (pick(a) / pick(b)).ln())
        .collect();
    let n = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / n;
    let spread = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    let quantile = T_95
        .get(logs.len().saturating_sub(2))
        .copied()
        .unwrap_or(1.96);
    let half = quantile * (spread / n).sqrt();
    (mean.exp(), (mean - half).exp(), (mean + half).exp())
}

fn median(samples: &[Sample], pick: fn(&Sample) -> f64) -> f64 {
    let mut values: Vec<f64> = samples.iter().map(pick).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The server with which the others of its part are compared.
fn control(part: &str) -> &'static str {
    match part {
        "echo" | "tail" => "epoll-spin",
        "cache" => "memcached",
        _ => "bound 64",
    }
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "\n| load | server | requests/s | mean µs | p99 µs | rate against control | p99 against control |\n|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let control = rows.iter().find(|other| {
            other.part == row.part && other.load == row.load && other.server == control(row.part)
        });
        let [rate, tail] = [
            (|sample: &Sample| sample.requests_per_s) as fn(&Sample) -> f64,
            |sample| sample.p99_us,
        ]
        .map(|pick| match control {
            Some(control) if control.server != row.server => {
                let (mean, low, high) = ratio(&row.rounds, &control.rounds, pick);
                format!("{mean:.2} [{low:.2}, {high:.2}]")
            }
            _ => "control".to_owned(),
        });
        let _ = writeln!(
            text,
            "| {} | {} | {:.0} | {:.1} | {:.1} | {rate} | {tail} |",
            row.load,
            row.server,
            median(&row.rounds, |sample| sample.requests_per_s),
            median(&row.rounds, |sample| sample.mean_us),
            median(&row.rounds, |sample| sample.p99_us),
        );
    }
    text
}

/// The 99th percentile against the rate, for the parts with a rate of their own.
fn picture(rows: &[Row]) -> String {
    let points: Vec<(&str, f64, f64)> = rows
        .iter()
        .filter(|row| row.part == "tail")
        .map(|row| {
            let rate = median(&row.rounds, |sample| sample.requests_per_s);
            (
                row.server.as_str(),
                rate,
                median(&row.rounds, |sample| sample.p99_us),
            )
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
            70 + index * 120
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
