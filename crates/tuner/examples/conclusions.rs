//! How often a verification is wrong, by simulation under seeds with the truth known: `cargo xtask
//! bench conclusions` writes `docs/results/conclusions.md` with it.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program that prints a table, and fails by panicking"
)]

use bayes_opt::{Configuration, Value};
use host::Roots;
use tuner::TunerError;
use tuner::conclusion::{ConstraintVerdict, Guard, GuardVerdict};
use tuner::evaluation::EvaluationRules;
use tuner::experiment::run;
use tuner::ledger::{Ledger, LedgerEvent, PlannedArm, ResumeState};
use tuner::report::{ArmResult, Finding, Report};
use tuner::simulation::{Noise, SimulatedService, Truth, number};
use tuner::spec::{CheckedSpec, context};

const SPEC: &str = r#"
parameters = [{ name = "x", type = "int", low = 0, high = 1, default = 0 }]
constraints = ["latency_p99_us <= 1.05 * control"]
target = { start = ["sleep", "9"] }
workload = { command = ["wrk"], closed_loop = true, json = { requests = "r", requests_per_s = "s", latency_p99_us = "p" } }
objective = { metric = "cpu_s_per_request" }
evaluation = { block_s = 5, blocks = 6 }
"#;

/// How the candidate really is, as ratios to the control.
#[derive(Clone, Copy)]
struct Candidate {
    name: &'static str,
    cpu: f64,
    latency: f64,
    throughput: f64,
}

const CANDIDATES: [Candidate; 6] = [
    of("no difference at all", 1.0, 1.0, 1.0),
    of("CPU −10 %", 0.9, 1.0, 1.0),
    of("CPU −10 %, p99 exactly at its limit", 0.9, 1.05, 1.0),
    of("CPU −10 %, p99 +10 %", 0.9, 1.10, 1.0),
    of("CPU −10 %, throughput −18 %", 0.9, 1.0, 0.82),
    of("CPU −2 %", 0.98, 1.0, 1.0),
];

const fn of(name: &'static str, cpu: f64, latency: f64, throughput: f64) -> Candidate {
    Candidate {
        name,
        cpu,
        latency,
        throughput,
    }
}

/// Noises of the measurement, from quiet to hard.
fn noises() -> [(&'static str, Noise); 3] {
    let noisy = Noise {
        block_sd: 0.08,
        run_sd: 0.03,
        ..Noise::NONE
    };
    let outliers = Noise {
        outlier_probability: 0.02,
        ..Noise::default()
    };
    [
        ("quiet: blocks 2 %, runs 0.5 %", Noise::default()),
        ("noisy: blocks 8 %, runs 3 %", noisy),
        ("outliers: one side in 50 is slowed 3 to 10 times", outliers),
    ]
}

/// A ledger that has a plan already: nothing is searched for.
struct Planned(ResumeState);

impl Ledger for Planned {
    fn kept(&mut self) -> Result<ResumeState, TunerError> {
        Ok(self.0.clone())
    }

    fn note(&mut self, _: &LedgerEvent<'_>) -> Result<(), TunerError> {
        Ok(())
    }
}

fn verify(spec: &CheckedSpec, candidate: Candidate, noise: Noise, seed: u64) -> Report {
    let at = |x: i64| Configuration([("x".to_owned(), Value::Int(x))].into());
    let truth = |configuration: &Configuration| {
        let control = Truth::default();
        if number(configuration, "x", 0.0) == 0.0 {
            return control;
        }
        Truth {
            cpu_us_per_request: control.cpu_us_per_request * candidate.cpu,
            latency_p99_us: control.latency_p99_us * candidate.latency,
            requests_per_s: control.requests_per_s * candidate.throughput,
            ..control
        }
    };
    let mut service = SimulatedService::new(seed, noise, at(0), truth);
    let plan = PlannedArm::candidate(1, at(1));
    let mut ledger = Planned(ResumeState {
        plan: Some(vec![plan]),
        ..ResumeState::default()
    });
    run(spec, &mut service, &mut ledger).unwrap()
}

/// The rule of earlier versions: the mean over the blocks of the first runs is above the limit.
fn is_above_on_average(spec: &CheckedSpec, arm: &ArmResult) -> bool {
    let constraint = &spec.constraints[0];
    let blocks: Vec<_> = arm
        .runs_blocks
        .iter()
        .take(spec.written().verification.runs)
        .flatten()
        .cloned()
        .collect();
    let pairs = EvaluationRules::pairs(&blocks, &constraint.metric);
    let excess = pairs
        .iter()
        .map(|it| constraint.excess(it.control, it.experiment));
    excess.sum::<f64>() > 0.0
}

fn main() {
    let repetitions: u64 = std::env::args()
        .nth(1)
        .and_then(|it| it.parse().ok())
        .unwrap_or(2000);
    let spec = context(&Roots::default())
        .check(SPEC.into(), "simulated.toml".as_ref())
        .unwrap();
    println!(
        "{}",
        INTRODUCTION.replace("REPETITIONS", &repetitions.to_string())
    );
    for (name, noise) in noises() {
        println!("## {name}\n");
        println!(
            "| the truth | improvement | paid | not decided | no difference | worse | broken | p99 held | not decidable | p99 broken | throughput worse | runs | earlier rule: p99 violated |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
        for candidate in CANDIDATES {
            let reports: Vec<Report> = (0..repetitions)
                .map(|seed| verify(&spec, candidate, noise, seed))
                .collect();
            let share = |is: &dyn Fn(&Report) -> bool| {
                let count = reports.iter().filter(|it| is(it)).count();
                format!("{:.1} %", 100.0 * count as f64 / repetitions as f64)
            };
            let found = |finding: Finding| share(&|report: &Report| report.finding == finding);
            let p99 = |verdict: ConstraintVerdict| {
                share(&|report: &Report| report.verification[0].constraints[0].verdict == verdict)
            };
            let worse = share(&|report: &Report| {
                let mut guards = report.verification[0].guards.iter();
                guards.any(|it| it.guard == Guard::Throughput && it.verdict == GuardVerdict::Worse)
            });
            let earlier =
                share(&|report: &Report| is_above_on_average(&spec, &report.verification[0]));
            let runs = reports
                .iter()
                .map(|it| it.verification[0].runs)
                .sum::<usize>() as f64;
            println!(
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {worse} | {:.1} | {earlier} |",
                candidate.name,
                found(Finding::Improvement),
                found(Finding::Paid),
                found(Finding::Undecided),
                found(Finding::NoDifference),
                found(Finding::Worse),
                found(Finding::ConstraintViolated),
                p99(ConstraintVerdict::Held),
                p99(ConstraintVerdict::NotDecidable),
                p99(ConstraintVerdict::Broken),
                runs / repetitions as f64,
            );
        }
        println!();
    }
}

const INTRODUCTION: &str = "\
# What a verification concludes, and how often it is wrong

This is a simulation: services whose truth is invented, with a simulated clock, under seeds. The verification is the one of
`slackline tune` (`tuner::verification`, `tuner::conclusion`). Made by `cargo xtask bench conclusions`.

Each row is REPETITIONS verifications of one candidate: 3 runs of 6 pairs of blocks, and up to 9 where the objective or the
constraint `latency_p99_us <= 1.05 * control` is not decided. The objective is CPU time per request. Intervals have 95 %
confidence for all three looks together, so each tail may be wrong in 2.5 % of the verifications. The columns *improvement* to
*broken* are the finding. *p99 held* to *p99 broken* are the three outcomes of the constraint, whatever the finding.

- A false improvement is *improvement* in the first row.
- A false *held* is *p99 held* in the third row (exactly at its limit) and in the fourth (above it).
- A false *broken* is *p99 broken* in the first three rows.
- *Throughput worse* is false in every row but that with −18 %.
- The last column is what earlier versions said after 3 runs: the mean over all blocks is above the limit.
";
