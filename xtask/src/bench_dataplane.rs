//! `cargo xtask bench dataplane`: the runtime and the cache beside their peers, one core each for
//! server and client, all servers in turns. Server and client are in network namespaces with a veth
//! pair between them, and the client's connections are AF_XDP's for every server, so that the
//! client costs the same for all. They run before all else on the machine. Writes
//! `docs/results/dataplane.json` and pictures.

mod curve;
mod measure;
mod million;
mod parts;
mod peers;
mod priority;
mod report;
mod row;
mod search;
mod servers;
mod steal;
mod ways;

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use self::measure::Bench;
use self::priority::{HIGHEST, Raised};
use self::row::Row;
use self::servers::Cable;
use crate::cargo::{cargo, target_directory};
use crate::{install, step};

const USAGE: &str = "\
bench dataplane [PART…] [--rounds N] [--seconds N] [--hold SECONDS]
  parts: echo (64, 1,000 and 10,000 connections), tail (25, 50 and 75 % of epoll's maximum),
  cache (memcached and Redis, closed loop), objective (the highest rate with p99 at most 500 µs),
  curve (latency of caches against the load, and its picture),
  batch (a bound of 1, 64, adaptive), isolated (the TCP stack in a process of its own, and not; on a
  CPU of its own, too, where there are three),
  uring (settings of the io_uring backend), copies (answers of 64 KiB on io_uring, sent with and
  without a copy), steered (echo, with the kernel's receive work of each side
  on that side's CPU), million (1,000,000 connections, held for --hold seconds in the last round: 600);
  all by default. Only if named: ways-uring, ways-xdp and ways-million (more ways to goals that were
  missed). The JSON file keeps the parts that do not run
";
const PARTS: [&str; 11] = [
    "echo",
    "tail",
    "cache",
    "objective",
    "curve",
    "batch",
    "isolated",
    "uring",
    "copies",
    "steered",
    "million",
];
/// Parts that run if they are named: settings that no server of `slackline` has.
const WAYS: [&str; 3] = ["ways-uring", "ways-xdp", "ways-million"];
/// The servers' namespace, for the bench itself, which runs in the client's.
const SERVER_NAMESPACE: &str = "SLACKLINE_BENCH_SERVERS";

pub(crate) fn run(root: &Path, arguments: &[&str]) -> anyhow::Result<ExitCode> {
    let (mut rounds, mut seconds, mut hold_s, mut parts) = (5, 2, 600, Vec::new());
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|text| text.parse().ok());
        match *word {
            "--rounds" => rounds = number().context(USAGE)?,
            "--seconds" => seconds = u32::try_from(number().context(USAGE)?)?,
            "--hold" => hold_s = u32::try_from(number().context(USAGE)?)?,
            part if PARTS.contains(&part) || WAYS.contains(&part) => parts.push(part),
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
        client_frames: None,
        rows,
    };
    for part in parts {
        println!("==> {part}: {rounds} rounds of {seconds} s");
        match part {
            "echo" => bench.echo()?,
            "tail" => bench.tail()?,
            "cache" => bench.cache(),
            "objective" => bench.objective(),
            "curve" => bench.curve()?,
            "batch" => bench.batch()?,
            "isolated" => bench.isolated()?,
            "uring" => bench.uring(),
            "copies" => bench.copies(),
            "steered" => bench.steered()?,
            "ways-uring" => bench.ways_uring(),
            "ways-xdp" => bench.ways_xdp(),
            "ways-million" => bench.ways_million(),
            _ => bench.million()?,
        }
        let text = serde_json::to_string_pretty(&bench.rows)?;
        std::fs::write(&json, text + "\n")?;
    }
    std::fs::write(results.join("dataplane.svg"), report::picture(&bench.rows))?;
    if let Some(svg) = curve::picture(&bench.rows) {
        std::fs::write(results.join("dataplane-cache.svg"), svg)?;
    }
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
    let _raised = Raised::new()?;
    let status = Command::new("nice")
        .args(["-n", HIGHEST, "ip", "netns", "exec", &cable.client])
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
