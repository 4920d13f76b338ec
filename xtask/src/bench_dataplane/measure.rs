//! A server is started, loaded and ended, and all servers of a comparison are measured in turns.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;

use super::row::{Rounds, Row, Sample};
use super::search::{RateSearch, Shown};
use super::servers::{INTERFACE, PORT, SERVER, Server};
use super::steal::Stolen;

/// The 99th percentile that the part `objective` allows, in microseconds.
pub(super) const OBJECTIVE_P99_US: f64 = 500.0;
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

/// The bench with what it has measured.
pub(super) struct Bench {
    pub(super) target: PathBuf,
    /// The servers' namespace.
    pub(super) namespace: String,
    pub(super) rounds: usize,
    pub(super) seconds: u32,
    pub(super) hold_s: u32,
    /// Frames of the client's socket each way, if not as many as it has by default. The CPU of the
    /// server writes to those that the client receives by.
    pub(super) client_frames: Option<u32>,
    pub(super) rows: Vec<Row>,
}

/// What a server is and how it is started on CPU 0.
pub(super) type Start<'a> = (&'a str, Vec<String>);

impl Sample {
    /// Little's law: in a closed loop as many requests are under way as there are connections.
    /// Fewer say that the client lost sight of some. Where a connection had few answers, too much
    /// of its time lies outside of the seconds that were measured.
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
    pub(super) fn example(&self, name: &str) -> String {
        self.target.join(name).display().to_string()
    }

    /// Starts a server in its namespace, and waits until it answers.
    pub(super) fn start(&self, (_, command): &Start<'_>) -> anyhow::Result<Server> {
        let log = self.target.join("bench-server.log");
        Server::start(&self.namespace, command, &log)
    }

    /// Loads the server that runs. A rate of 0 is a closed loop.
    pub(super) fn load(&self, shape: &str, connections: u32, rate: f64) -> anyhow::Result<Sample> {
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
        if let Some(frames) = self.client_frames {
            command.env("FRAMES", frames.to_string());
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
    pub(super) fn highest_rate(
        &self,
        shape: &str,
        connections: u32,
    ) -> anyhow::Result<Option<Sample>> {
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
    pub(super) fn compare(
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

    /// What a server does of a shape with 64 connections in a closed loop, in requests a second.
    pub(super) fn most(&self, server: &Start<'_>, shape: &str) -> anyhow::Result<f64> {
        let sample = self.sample(server, |bench| bench.load(shape, 64, 0.0).map(Some));
        let sample = sample.with_context(|| format!("{} was not measured", server.0))?;
        Ok(sample.requests_per_s)
    }
}
