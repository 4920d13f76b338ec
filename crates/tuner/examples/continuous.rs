//! `mode = "continuous"` over ninety simulated days, and over as many in which nothing happens:
//! tables and a picture.
//!
//! ```text
//! cargo run --release -p tuner --example continuous -- docs/results
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "an example, which ends where something is wrong, and says what it found"
)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use tuner::continuous::HistoryEntry;
use tuner::continuous::simulation::{BEGIN, SPEC, Scenario, SimulatedRound, SimulatedWorld};
use tuner::spec::CheckedSpec;

/// An alarm answers a change of the scenario if it is the first of its series within so many days
/// after it.
const ANSWER_DAYS: f64 = 7.0;
/// Seeds of the scenario; the first is drawn.
const SEEDS: u64 = 12;
/// Quiet runs, for the false alarms.
const QUIET: u64 = 24;
const DAY_S: f64 = 86_400.0;

fn main() {
    let dir = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| ".".into()));
    let spec = tuner::spec::context(&host::Roots::default())
        .check(SPEC.into(), "simulated.toml".as_ref())
        .unwrap();
    let (table, log, unexplained) = changing(&spec, &dir);
    let (alarms, changes, worst) = quiet(&spec);
    let days = 90.0 * QUIET as f64;
    // Poisson, by the square root transformation (Anscombe 1948).
    let interval = [-1.96, 1.96]
        .map(|z: f64| ((alarms as f64 + 0.375).sqrt() + z / 2.0).max(0.0).powi(2) / days);
    let stated = spec
        .written()
        .continuous
        .as_ref()
        .unwrap()
        .false_alarms_per_day;
    let text = format!(
        "# `mode = \"continuous\"`: ninety simulated days\n\n\
This is a simulation: the service is a model with a simulated clock, and each run has a seed. The controller, its loop and the\n\
search are those of `slackline serve` (`tuner::continuous`). `cargo xtask bench continuous` makes this page. The scenario is\n\
`Scenario::ninety_days` in `crates/tuner/src/continuous/simulation.rs`.\n\n\
The service has a thread pool and a buffer. Its load by day is three times that of the night, less at weekends, with 5 % of noise.\n\
The CPU time per request has a noise of 2 % from block to block, and of 0.5 % from run to run. There is a round (32 s of the\n\
control) every quarter of an hour. Changes are allowed from 08:00 to 18:00 UTC, at most two a day. This happens in 90 days:\n\n\
- Deploys change which configuration is best, on days 18.4, 47.6 and 78.35.\n\
- From day 33.3 on the load is 60 % higher.\n\
- From day 66.45 on large buffers break `latency_p99_us <= 1.1 * control`.\n\
- On day 78.45 an outage of six hours begins. For two of these hours the monitoring does not answer either. In the other four hours,\n\
  and for one hour after the outage, the alert fires.\n\n\
![gain over time](continuous.svg)\n\n\
The table has the mean change of the CPU time per request against the control, over all rounds (negative is better). *Broken* is the\n\
time for which the configuration in force broke the constraint. *Never re-tuned* keeps the first promotion. *Oracle* is the best\n\
configuration that holds the constraint at each moment.\n\n\
| seed | continuous | never re-tuned | oracle | alarms | without a change | promotions | rollbacks | promotions a day | broken | broken, never re-tuned |\n\
|---|---|---|---|---|---|---|---|---|---|---|\n{table}\n\
An alarm is *without a change* unless it is the first of its series within {ANSWER_DAYS} days after a deploy or a change of the load. In\n\
{SEEDS} × 90 days there were {unexplained} such alarms. The stated rate allows {:.1}.\n\n\
## False alarms\n\n\
The setting allows at most {stated} false alarms a day, so at most {:.1} in {QUIET} × 90 days. In {QUIET} × 90 days in which nothing happens, there\n\
were {alarms} false alarms (at most {worst} in one of the {QUIET} series). This is {:.4} a day (95 % interval {:.4} to {:.4}, Poisson). The false\n\
alarms led to {changes} promotions and rollbacks. There were so few because the configuration in force stays after an alarm, unless the\n\
search shows another one to be better by 1 %. `crates/paired-stats/tests/drift.rs` tests the drift test without a controller, and\n\
measures how soon it finds a drift.\n\n\
The stated rate holds if rounds of one season are exchangeable. The rate is higher if rounds resemble the round before them (same\n\
file), or if a season is so long that the load changes within it.\n\n\
## What happened, seed 1\n\n```text\n{log}```\n\n\
The outage causes no alarm, no rollback and no promotion. Rounds that could not be measured do not count. While the alert fires or\n\
cannot be queried, all changes wait.\n",
        stated * 90.0 * SEEDS as f64,
        stated * days,
        alarms as f64 / days,
        interval[0],
        interval[1],
    );
    println!("{table}\nfalse alarms: {alarms} in {days} days, {interval:?}");
    std::fs::write(dir.join("continuous.md"), text).unwrap();
}

/// A row for each seed of the scenario, the first seed's history, and the alarms without a change.
/// Draws the first seed's picture.
fn changing(spec: &CheckedSpec, dir: &Path) -> (String, String, usize) {
    let mut table = String::new();
    let mut log = String::new();
    let mut unexplained = 0;
    for seed in 1..=SEEDS {
        let scenario = Scenario {
            seed,
            ..Scenario::ninety_days()
        };
        let mut world = SimulatedWorld::new(spec, &scenario, seed);
        world.go_on().unwrap();
        let oracle = oracle(spec, &scenario, &world.samples);
        let mean = |of: &dyn Fn(&SimulatedRound) -> f64| {
            100.0 * world.samples.iter().map(of).sum::<f64>() / world.samples.len() as f64
        };
        let state = world.kept.clone().unwrap();
        let without = without_a_change(&scenario, &world.entries);
        let broken = |of: &dyn Fn(&SimulatedRound) -> bool| {
            // A round stands for a quarter of an hour.
            world.samples.iter().filter(|sample| of(sample)).count() as f64 / 4.0
        };
        writeln!(
            table,
            "| {seed} | {:.1} % | {:.1} % | {:.1} % | {} | {without} | {} | {} | {:.2} | {:.1} h | {:.1} h |",
            mean(&|sample| sample.gain),
            mean(&|sample| sample.never),
            100.0 * oracle.iter().sum::<f64>() / oracle.len() as f64,
            state.alarms,
            state.promotions,
            state.rollbacks,
            state.promotions as f64 / scenario.days,
            broken(&|sample| sample.is_broken),
            broken(&|sample| sample.is_never_broken),
        )
        .unwrap();
        unexplained += without;
        if seed == 1 {
            for entry in &world.entries {
                let day = entry.at.duration_since(BEGIN).as_secs_f64() / DAY_S;
                writeln!(log, "day {day:6.2}  {:<10} {}", entry.kind, entry.text).unwrap();
            }
            std::fs::write(
                dir.join("continuous.svg"),
                picture(&scenario, &world.samples, &oracle),
            )
            .unwrap();
        }
    }
    (table, log, unexplained)
}

/// Alarms, changes after the first, and the most alarms of one run, of runs in which nothing
/// happens.
fn quiet(spec: &CheckedSpec) -> (usize, usize, usize) {
    let (mut alarms, mut changes, mut worst) = (0, 0, 0);
    for seed in 1..=QUIET {
        let scenario = Scenario {
            seed,
            ..Scenario::quiet(90.0)
        };
        let mut world = SimulatedWorld::new(spec, &scenario, 1000 + seed);
        world.go_on().unwrap();
        let state = world.kept.as_ref().unwrap();
        alarms += state.alarms;
        worst = worst.max(state.alarms);
        // The first is what it is for.
        changes += state.promotions.saturating_sub(1) + state.rollbacks;
    }
    (alarms, changes, worst)
}

/// The alarms that answer no change of the scenario.
fn without_a_change(scenario: &Scenario, entries: &[HistoryEntry]) -> usize {
    let mut answered: Vec<(f64, bool)> = Vec::new();
    let mut without = 0;
    for entry in entries.iter().filter(|entry| entry.kind == "drift") {
        let day = entry.at.duration_since(BEGIN).as_secs_f64() / DAY_S;
        let is_of_gain = entry.text.starts_with("the gain");
        let change = scenario.epochs[1..].iter().rev();
        let change = change.map(|epoch| epoch.day).find(|at| *at <= day);
        match change.filter(|at| day - at <= ANSWER_DAYS) {
            Some(at) if !answered.contains(&(at, is_of_gain)) => answered.push((at, is_of_gain)),
            _ => without += 1,
        }
    }
    without
}

/// The best gain at each sample; once an hour, as it takes a while.
fn oracle(spec: &CheckedSpec, scenario: &Scenario, samples: &[SimulatedRound]) -> Vec<f64> {
    let mut last = (f64::NEG_INFINITY, 0.0);
    let at = |sample: &SimulatedRound| {
        if sample.day - last.0 > 1.0 / 24.0 {
            last = (sample.day, scenario.oracle(spec, sample.day * DAY_S));
        }
        last.1
    };
    samples.iter().map(at).collect()
}

/// Daily means as lines.
fn picture(scenario: &Scenario, samples: &[SimulatedRound], oracle: &[f64]) -> String {
    let (width, height, left, top) = (900.0, 320.0, 60.0, 20.0);
    let x = |day: f64| left + day / scenario.days * (width - left - 10.0);
    let y = |gain: f64| top + (gain + 0.40) / 0.55 * (height - top - 40.0);
    let line = |of: &dyn Fn(usize) -> f64, colour: &str| {
        let mut points = String::new();
        // Six hours each.
        let bins = scenario.days * 4.0;
        let mut bin = 0.0;
        while bin < bins {
            let within = (0..samples.len()).filter(|i| (samples[*i].day * 4.0).floor() == bin);
            let values: Vec<f64> = within.map(of).collect();
            if !values.is_empty() {
                let mean = values.iter().sum::<f64>() / values.len() as f64;
                write!(points, "{:.1},{:.1} ", x((bin + 0.5) / 4.0), y(mean)).unwrap();
            }
            bin += 1.0;
        }
        format!(
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>\n"
        )
    };
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for percent in [-40, -30, -20, -10, 0, 10] {
        let at = y(f64::from(percent) / 100.0);
        writeln!(out, "<line x1=\"{left}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/><text x=\"8\" y=\"{:.1}\">{percent} %</text>", width - 10.0, at + 4.0).unwrap();
    }
    for epoch in &scenario.epochs[1..] {
        let at = x(epoch.day);
        writeln!(out, "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{}\" stroke=\"#888\" stroke-dasharray=\"4 3\"/>", height - 40.0).unwrap();
    }
    if let Some((from, until)) = scenario.outage {
        writeln!(
            out,
            "<rect x=\"{:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{}\" fill=\"#f4c7c3\"/>",
            x(from),
            x(until) - x(from),
            height - 40.0 - top
        )
        .unwrap();
    }
    out += &line(&|i| samples[i].never, "#999");
    out += &line(&|i| oracle[i], "#2a8");
    out += &line(&|i| samples[i].gain, "#15c");
    for day in [0, 15, 30, 45, 60, 75, 90] {
        writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{day}</text>",
            x(f64::from(day)),
            height - 22.0
        )
        .unwrap();
    }
    writeln!(
        out,
        "<text font-size=\"11\" x=\"{left}\" y=\"{}\">simulated (seed 1), by day; CPU time per request against the control: <tspan fill=\"#15c\">continuous</tspan>, <tspan fill=\"#777\">never re-tuned</tspan>, <tspan fill=\"#2a8\">oracle</tspan>; dashed: a change; red: the outage</text>\n</svg>",
        height - 6.0
    )
    .unwrap();
    out
}
