//! The part `million`: 1,000,000 connections to one AF_XDP server, on one machine.
//!
//! The client keeps 1,000 requests under way in all cases. With 1,000 connections each of them has
//! one. With more the next request goes to the connection that has waited longest, so that all
//! connections take part. An answer is then acknowledged by a segment of its own, after 40 ms,
//! where an active connection acknowledges it with its next request: with 20,000 connections as
//! with 1,000,000. Between those two the difference is that nothing of a connection is in a cache
//! when its turn comes. A further row has 16 requests in a row for each connection.

use std::io::BufReader;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;

use super::measure::Bench;
use super::row::{Held, Rounds, Row, Sample};
use super::servers::{INTERFACE, PORT, SERVER, Server};

/// The few connections with which the many are compared.
pub(super) const CONTROL: &str = "1,000 connections";
const SOME: &str = "20,000 connections";
const MANY: &str = "1,000,000 connections";
const FEW_CONNECTIONS: u32 = 1_000;
const SOME_CONNECTIONS: u32 = 20_000;
pub(super) const MANY_CONNECTIONS: u32 = 1_000_000;
const UNDER_WAY: u32 = 1_000;
/// Addresses of the client. Each has 16,384 ports of its own.
const SOURCES: u32 = 80;
/// Silence after which either side sends a keep-alive probe, in seconds. Both sides probe several
/// times while the connections are held.
const KEEP_ALIVE_S: u32 = 60;

/// A line of the client, at the end of each of its stages.
#[derive(Debug, Deserialize)]
struct Stage {
    stage: String,
    seconds: f64,
    connections: u64,
    failed: u64,
    answered: u64,
    requests_per_s: f64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
}

impl Stage {
    fn sample(&self) -> Sample {
        Sample {
            requests_per_s: self.requests_per_s,
            mean_us: self.mean_us,
            p50_us: self.p50_us,
            p99_us: self.p99_us,
            p999_us: self.p999_us,
            failed: self.failed,
            dropped: 0,
            late_share: 0.0,
            stolen_ms: 0.0,
            searched: None,
        }
    }
}

/// Variables of the environment, as `NAME=value`, for one run.
#[derive(Clone, Copy, Default)]
pub(super) struct Settings<'a> {
    pub(super) server: &'a [&'a str],
    pub(super) client: &'a [&'a str],
}

/// One run of the client.
pub(super) struct Run {
    pub(super) first: Sample,
    rows: Sample,
    last: Sample,
    held: Held,
}

/// The load of all rows.
pub(super) fn load_name() -> String {
    format!("{UNDER_WAY} requests under way")
}

/// A client, ended when dropped.
struct Client(Child);

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Bench {
    /// The rate among 1,000 and 20,000 connections, and among 1,000,000 as soon as they are open
    /// and after they were held. Only the last round holds them.
    pub(super) fn million(&mut self) -> anyhow::Result<()> {
        let mut rates: [Rounds; 5] = Default::default();
        let mut held = None;
        for round in 1..=self.rounds {
            let hold_s = if round == self.rounds { self.hold_s } else { 0 };
            let usual = Settings::default();
            let few = self.connected(FEW_CONNECTIONS, 0, usual);
            let some = self.connected(SOME_CONNECTIONS, 0, usual);
            let many = self.connected(MANY_CONNECTIONS, hold_s, usual);
            for (name, run) in [(CONTROL, &few), (SOME, &some), (MANY, &many)] {
                match run {
                    Ok(run) => println!(
                        "{name}: {:.0}/s, in rows {:.0}/s, at the end {:.0}/s; {}",
                        run.first.requests_per_s,
                        run.rows.requests_per_s,
                        run.last.requests_per_s,
                        run.held
                    ),
                    Err(error) => println!("{name}: {error:#}"),
                }
            }
            let many = many.ok();
            rates[0].push(few.ok().map(|run| run.first));
            rates[1].push(some.ok().map(|run| run.first));
            rates[2].push(many.as_ref().map(|run| run.first.clone()));
            rates[3].push(many.as_ref().map(|run| run.rows.clone()));
            rates[4].push(many.as_ref().map(|run| run.last.clone()));
            held = many.map(|run| run.held).or(held);
        }
        let names = [
            CONTROL.to_owned(),
            SOME.to_owned(),
            MANY.to_owned(),
            format!("{MANY}, 16 requests in a row"),
            format!("{MANY}, at the end"),
        ];
        for (server, rounds) in names.into_iter().zip(rates) {
            let held = held.take_if(|_| server == MANY);
            self.rows.push(Row {
                part: "million".to_owned(),
                load: load_name(),
                server,
                rounds,
                held,
            });
        }
        Ok(())
    }

    /// Starts server and client, and follows the client through its stages.
    pub(super) fn connected(
        &self,
        connections: u32,
        hold_s: u32,
        settings: Settings<'_>,
    ) -> anyhow::Result<Run> {
        let address = format!("{SERVER}:{PORT}");
        let mut command: Vec<String> = vec!["env".into()];
        command.extend(settings.server.iter().map(|&setting| setting.into()));
        command.extend([self.example("echo_server"), "xdp".into(), INTERFACE.into()]);
        command.extend([address.clone(), "0".into(), "spin".into()]);
        command.push(KEEP_ALIVE_S.to_string());
        let server = self.start(&("dataplane xdp", command))?;
        let server_before = resident_bytes(server.id())?;
        let numbers = [
            connections,
            self.seconds,
            hold_s,
            SOURCES,
            UNDER_WAY,
            KEEP_ALIVE_S,
        ];
        let mut child = Command::new("env")
            .args(settings.client)
            .arg(self.example("hold"))
            .args([INTERFACE, &address])
            .args(numbers.map(|number| number.to_string()))
            .arg("1")
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = child.stdout.take().context("the client has no output")?;
        let client = Client(child);
        follow(BufReader::new(lines), &server, server_before, &client)
    }
}

/// Reads the lines of the client, and the memory of both processes at each of them.
fn follow(
    lines: impl std::io::BufRead,
    server: &Server,
    server_before: f64,
    client: &Client,
) -> anyhow::Result<Run> {
    let mut client_before = 0.0;
    let (mut first, mut rows, mut last) = (None, None, None);
    let (mut server_most, mut client_most) = (0.0_f64, 0.0_f64);
    let mut held = Held {
        connections: 0,
        opened_s: 0.0,
        held_s: 0.0,
        lost: 0,
        answered: 0,
        server_bytes_each: 0.0,
        client_bytes_each: 0.0,
    };
    for line in lines.lines() {
        let line = line?;
        let stage: Stage = serde_json::from_str(&line).with_context(|| line.clone())?;
        let client_now = resident_bytes(client.0.id())?;
        if stage.stage == "started" {
            client_before = client_now;
            continue;
        }
        server_most = server_most.max(resident_bytes(server.id())? - server_before);
        client_most = client_most.max(client_now - client_before);
        match stage.stage.as_str() {
            "opened" => (held.connections, held.opened_s) = (stage.connections, stage.seconds),
            "first" => first = Some(stage.sample()),
            "rows" => rows = Some(stage.sample()),
            "held" => held.held_s = stage.seconds,
            "last" => last = Some(stage.sample()),
            "answered" => {
                held.answered = stage.answered;
                held.lost = stage.failed;
                held.server_bytes_each = server_most / held.connections.max(1) as f64;
                held.client_bytes_each = client_most / held.connections.max(1) as f64;
                let skipped = "the client skipped a stage";
                return Ok(Run {
                    first: first.context(skipped)?,
                    rows: rows.context(skipped)?,
                    last: last.context(skipped)?,
                    held,
                });
            }
            _ => {}
        }
    }
    bail!("the client ended early")
}

/// Memory of a process that no file backs, in bytes.
fn resident_bytes(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB"));
    let kib: f64 = kib.context(path)?.trim().parse()?;
    Ok(kib * 1024.0)
}
