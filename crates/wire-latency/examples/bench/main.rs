//! `cargo xtask bench wire-latency`: latencies read off the wire against the truth, and what that
//! costs.
//!
//! The truth is a service that knows its service times, and real servers beside what their load
//! generators print. Writes `wire-latency.md` into the folder that is its first argument. Further
//! arguments name parts; what the other parts found earlier stays.
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
use std::time::{Duration, Instant};

use wire_latency::{Fine, Monitor, Reading, SourceSpec, Surroundings, WindowRules, WireSpec};

/// Runs at each rate and budget.
const REPEATS: usize = 3;
const SECONDS: u64 = 8;
const RATES: [f64; 2] = [1000.0, 10_000.0];
/// CPU time that reading may use, in cores: the default, and the share that `isolate` has by
/// default.
const BUDGETS: [(f64, &str); 2] = [(DEFAULT_BUDGET, "0.01"), (0.0025, "0.0025")];
/// CPU time that other processes may use during a run, in cores; beyond, the run is repeated.
const OTHERS_MAX: f64 = 0.1;
const ATTEMPTS: usize = 4;
/// What a source has where nothing is said of it.
pub(crate) const DEFAULT_BUDGET: f64 = 0.01;
/// What is allowed: a share, or microseconds.
const ERROR_SHARE: f64 = 0.05;
const ERROR_US: f64 = 50.0;

/// Reads a port for as long as the value lives.
pub(crate) fn monitor(port: u16, budget_cores: f64) -> Monitor {
    let rules = WindowRules {
        length: Duration::from_secs(600),
        minimum_requests: 1,
        stale_after: Duration::from_secs(60),
    };
    let spec = SourceSpec::Wire(WireSpec {
        cpu_budget_cores: Some(budget_cores),
        ..WireSpec::of_port(port)
    });
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

/// A part of the results: its name, its heading, and what measures it.
type Part = (&'static str, &'static str, fn() -> String);

const PARTS: [Part; 3] = [
    ("truth", "## Against the truth\n", truth_table),
    ("cost", "## Cost for the whole machine\n", cost_table),
    ("servers", "## Real servers\n", servers::table),
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let out: PathBuf = arguments.next().expect("a folder for the results").into();
    let file = out.join("wire-latency.md");
    let wanted: Vec<String> = arguments.collect();
    let unknown = |name: &&String| PARTS.iter().all(|(part, ..)| part != name);
    assert!(
        wanted.iter().find(unknown).is_none(),
        "parts: truth, cost, servers"
    );
    for (name, heading, measure) in PARTS {
        if wanted.is_empty() || wanted.iter().any(|part| part == name) {
            let section = format!("{heading}{}", measure());
            let earlier = std::fs::read_to_string(&file).unwrap_or_default();
            std::fs::write(&file, with_section(&earlier, heading, &section))
                .expect("the results are written");
        }
    }
}

/// The file with this section in place of the earlier one, and the parts in their order.
fn with_section(earlier: &str, heading: &str, section: &str) -> String {
    let mut text = String::from("# Latency read off the wire, against the truth\n");
    for (_, of, _) in PARTS {
        let found = earlier.find(of).map(|at| {
            let rest = &earlier[at + of.len()..];
            let end = rest.find("\n## ").unwrap_or(rest.len());
            format!("{of}{}", &rest[..end])
        });
        let part = match of == heading {
            true => Some(section.to_owned()),
            false => found,
        };
        if let Some(part) = part {
            let _ = write!(text, "\n{}\n", part.trim_end());
        }
    }
    text
}

/// The machine, in a few words.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("a CPU", |model| model.trim_start_matches([' ', '\t', ':']));
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cpus} virtual CPUs of {model}, Linux {}", release.trim())
}

fn truth_table() -> String {
    let mut text = format!(
        "\n`cargo xtask bench wire-latency truth`, on {}. A service answers after a log-normal service time. The service itself measures each latency twice. Both \
         latencies end when the service writes the answer. One begins when the service reads the request, and the other when the request arrives at the \
         socket (SO_TIMESTAMPNS). The difference is the time for which the request waited unread. The latency off the wire \
         includes this time. Requests come at random moments over 128 connections (HTTP/1, loopback). The service has \
         a CPU of its own and the highest priority there. The client and the reader of packets share the other CPU. \
         There are {REPEATS} runs of {SECONDS} s each. The goal at the default budget of 0.01 core: each percentile \
         is within {:.0} % or {ERROR_US} µs of the service's own measurement from the arrival. The interval in \
         brackets is the one that the reader itself reports.\n\n\
         | requests a second | budget, cores | run | requests seen (share) | percentile | service from its read, µs | service from the arrival, µs | wire, µs (95 % interval) | \
         client, µs | error | within the goal |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
        machine(),
        100.0 * ERROR_SHARE
    );
    let mut costs = Vec::new();
    let (mut is_good, mut others_most) = (true, 0.0_f64);
    let everything = rustix::thread::sched_getaffinity(None).expect("the CPUs");
    truth::stay_on(0);
    for per_s in RATES {
        for (budget, said) in BUDGETS {
            for repeat in 1..=REPEATS {
                let (truth, reading, others) = undisturbed(per_s, budget);
                others_most = others_most.max(others);
                costs.push((per_s, said, reading.own_cpu_cores, reading.sampled_share));
                for percentile in [50.0, 95.0, 99.0] {
                    let (row, is_within) = row(&truth, &reading, percentile);
                    is_good &= is_within || said != "0.01";
                    let row = format!("| {per_s:.0} | {said} | {repeat} | {row}");
                    println!("{row}");
                    let _ = writeln!(text, "{row}");
                }
            }
        }
    }
    rustix::thread::sched_setaffinity(None, &everything).expect("the CPUs");
    let _ = writeln!(
        text,
        "\nAt the default budget, all percentiles are within the goal: {}. Other processes used at most {others_most:.2} cores \
         during a run. A run in which they used more than {OTHERS_MAX} cores was repeated.\n\n\
         | requests a second | budget, cores | CPU time of the reader, cores | share of requests that it looked at |\n|---|---|---|---|",
        if is_good { "yes" } else { "no" }
    );
    for (per_s, said, cores, share) in costs {
        let row = format!(
            "| {per_s:.0} | {said} | {cores:.4} | {:.0} % |",
            100.0 * share
        );
        println!("{row}");
        let _ = writeln!(text, "{row}");
    }
    text
}

/// A run during which other processes used little CPU time, or the last one tried; and how much
/// they used, in cores.
fn undisturbed(per_s: f64, budget: f64) -> (truth::Truth, Reading, f64) {
    let own_cpu_s = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::try_from(time).expect("a time").as_secs_f64()
    };
    let mut attempt = 1;
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let monitor = monitor(port_of(&listener), budget);
        let (began, all, own) = (Instant::now(), machine_cpu_s(), own_cpu_s());
        let truth = truth::run(listener, per_s, Duration::from_secs(SECONDS));
        let used_s = (machine_cpu_s() - all) - (own_cpu_s() - own);
        let others = used_s.max(0.0) / began.elapsed().as_secs_f64();
        let reading = reading(&monitor).expect("a reading");
        if others <= OTHERS_MAX || attempt == ATTEMPTS {
            return (truth, reading, others);
        }
        println!("repeated: other processes used {others:.2} cores");
        attempt += 1;
    }
}

/// One percentile of a run, and whether it is within the goal.
fn row(truth: &truth::Truth, reading: &Reading, percentile: f64) -> (String, bool) {
    let of = |fine: &Fine| fine.quantile_us(percentile / 100.0).expect("requests");
    let seen = reading.requests as f64 / truth.server.requests() as f64;
    let wire = reading.percentile(percentile).expect("requests");
    let error = wire.value_us - of(&truth.server);
    let is_within = error.abs() <= ERROR_US || error.abs() <= ERROR_SHARE * of(&truth.server);
    let high = wire
        .high_us
        .map_or_else(|| "–".to_owned(), |us| format!("{us:.0}"));
    let text = format!(
        "{} ({:.1} %) | p{percentile} | {:.0} | {:.0} | {:.0} ({:.0} to {high}) | {:.0} | {error:+.0} µs, {:+.1} % | {} |",
        reading.requests,
        100.0 * seen,
        of(&truth.service),
        of(&truth.server),
        wire.value_us,
        wire.low_us,
        of(&truth.client),
        100.0 * error / of(&truth.server),
        if is_within { "yes" } else { "**no**" }
    );
    (text, is_within)
}

fn cost_table() -> String {
    let (with, without) = whole_cost();
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let deviation = |of: &[f64]| {
        let squares = of.iter().map(|it| (it - mean(of)).powi(2)).sum::<f64>();
        (squares / (of.len() - 1) as f64).sqrt()
    };
    let text = format!(
        "\n`cargo xtask bench wire-latency cost`, on {}. The load is wrk on nginx, with 8 connections in a closed loop. \
         It ran with and without the reading of packets, in turns (A B B A), {} blocks of 3 s each. CPU time of the whole machine for a \
         request, kernel included: {:.1} µs (standard deviation {:.1}) with reading, {:.1} µs ({:.1}) without.\n",
        machine(),
        with.len(),
        mean(&with),
        deviation(&with),
        mean(&without),
        deviation(&without)
    );
    println!("{text}");
    text
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
            let monitor = is_read.then(|| monitor(servers::NGINX_PORT, DEFAULT_BUDGET));
            let before = machine_cpu_s();
            let requests = nginx.wrk(3).requests;
            let us = 1e6 * (machine_cpu_s() - before) / requests;
            if is_read { &mut with } else { &mut without }.push(us);
            drop(monitor);
        }
    }
    (with, without)
}
