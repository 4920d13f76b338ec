//! `cargo xtask bench wire-latency`: latencies read off the wire against the truth, and what that
//! costs.
//!
//! The truth is a service that knows its service times, and real servers beside what their load
//! generators print. Writes `wire-latency.md` into the folder that is its argument.
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark ends at its first failure, and prints what it does"
)]

mod servers;
mod truth;

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use wire_latency::{Fine, Monitor, Reading, SourceSpec, Surroundings, WindowRules, WireSpec};

/// Runs at each rate.
const REPEATS: usize = 3;
const SECONDS: u64 = 8;
const RATES: [f64; 2] = [1000.0, 10_000.0];
/// What is allowed: a share, or microseconds.
const ERROR_SHARE: f64 = 0.05;
const ERROR_US: f64 = 50.0;

/// Reads a port for as long as the value lives.
pub(crate) fn monitor(port: u16) -> Monitor {
    let rules = WindowRules {
        length: Duration::from_secs(600),
        minimum_requests: 1,
        stale_after: Duration::from_secs(60),
    };
    let spec = SourceSpec::Wire(WireSpec::of_port(port));
    let every = Duration::from_millis(100);
    Monitor::start(&spec, &Surroundings::default(), rules, every).expect("packets can be read")
}

/// What was read, after the last packets have been handed over.
pub(crate) fn reading(monitor: &Monitor) -> Option<Reading> {
    std::thread::sleep(Duration::from_millis(400));
    monitor.look().ok()
}

/// Says what is being done.
pub(crate) fn say(line: &str) {
    println!("{line}");
}

fn port_of(listener: &TcpListener) -> u16 {
    listener.local_addr().expect("an address").port()
}

/// CPU time that the whole machine spent, in seconds (proc_stat(5): user, nice, system, irq,
/// softirq, steal left out).
fn machine_cpu_s() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").expect("/proc/stat");
    let first = text.lines().next().expect("a line");
    let ticks: Vec<f64> = first
        .split_whitespace()
        .skip(1)
        .filter_map(|it| it.parse().ok())
        .collect();
    (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6]) / 100.0
}

fn main() {
    let out: PathBuf = std::env::args_os()
        .nth(1)
        .expect("a folder for the results")
        .into();
    let mut text = String::from(
        "# Latency read off the wire, against the truth\n\n\
         `cargo xtask bench wire-latency`, on a virtual machine with 2 cores. A service answers after a log-normal service \
         time and counts each itself, from reading the request to writing the answer. Requests come at random moments over \
         128 connections (HTTP/1, loopback). Goal: each percentile within 5 % or 50 µs.\n\n\
         | requests a second | run | requests seen | percentile | service, µs | wire, µs | client, µs | error | within the goal |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    let mut costs = Vec::new();
    let mut is_good = true;
    for per_s in RATES {
        for repeat in 1..=REPEATS {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let monitor = monitor(port_of(&listener));
            let truth = truth::run(listener, per_s, Duration::from_secs(SECONDS));
            let reading = reading(&monitor).expect("a reading");
            costs.push((per_s, reading.own_cpu_cores, reading.sampled_share));
            let share = reading.requests as f64 / truth.server.requests() as f64;
            for percentile in [50.0, 95.0, 99.0] {
                let of = |fine: &Fine| fine.quantile_us(percentile / 100.0).expect("requests");
                let wire = reading.percentile(percentile).expect("requests").value_us;
                let error = wire - of(&truth.server);
                let is_within =
                    error.abs() <= ERROR_US || error.abs() <= ERROR_SHARE * of(&truth.server);
                is_good &= is_within;
                let row = format!(
                    "| {per_s:.0} | {repeat} | {} ({:.1} %) | p{percentile} | {:.0} | {wire:.0} | {:.0} | {error:+.0} µs, {:+.1} % | {} |",
                    reading.requests,
                    100.0 * share,
                    of(&truth.server),
                    of(&truth.client),
                    100.0 * error / of(&truth.server),
                    if is_within { "yes" } else { "**no**" }
                );
                println!("{row}");
                let _ = writeln!(text, "{row}");
            }
        }
    }
    text.push_str("\n## Cost\n\n| requests a second | CPU time of reading, cores | share looked at |\n|---|---|---|\n");
    for (per_s, cores, share) in costs {
        let _ = writeln!(text, "| {per_s:.0} | {cores:.4} | {:.0} % |", 100.0 * share);
    }
    let (with, without) = whole_cost();
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let _ = writeln!(
        text,
        "\nThe whole machine, kernel included, under wrk on nginx, in turns (A B B A): {:.1} µs of CPU time a request \
         with reading, {:.1} µs without ({} blocks of 3 s each).",
        mean(&with),
        mean(&without),
        with.len()
    );
    text.push_str(&servers::table());
    std::fs::write(out.join("wire-latency.md"), text).expect("the results are written");
    println!("all within the goal: {is_good}");
}

/// Microseconds of CPU time of the whole machine for a request, with and without reading.
fn whole_cost() -> (Vec<f64>, Vec<f64>) {
    let nginx = servers::Nginx::start();
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for pair in 0..4 {
        for is_read in if pair % 2 == 0 {
            [true, false]
        } else {
            [false, true]
        } {
            let monitor = is_read.then(|| monitor(servers::NGINX_PORT));
            let before = machine_cpu_s();
            let requests = nginx.wrk(3).requests;
            let us = 1e6 * (machine_cpu_s() - before) / requests;
            if is_read { &mut with } else { &mut without }.push(us);
            drop(monitor);
        }
    }
    (with, without)
}
