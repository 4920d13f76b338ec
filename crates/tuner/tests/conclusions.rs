//! What a verification concludes, against services whose truth is known.
//! `cargo xtask bench conclusions` has the rates.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, Ordering};

use bayes_opt::{Configuration, Value};
use host::Roots;
use tuner::TunerError;
use tuner::conclusion::{ConstraintVerdict, Guard, GuardVerdict};
use tuner::evaluation::Outcome;
use tuner::experiment::run;
use tuner::ledger::{Ledger, LedgerEvent, PlannedArm, ResumeState};
use tuner::report::{Finding, Report};
use tuner::simulation::{Noise, SimulatedService, Truth, number, pooled_service};
use tuner::spec::{CheckedSpec, context};

fn spec(rules: &str) -> CheckedSpec {
    spec_with("latency_p99_us <= 1.05 * control", rules)
}

/// With a constraint of its own.
fn spec_with(constraint: &str, rules: &str) -> CheckedSpec {
    let text = format!(
        r#"
parameters = [{{ name = "x", type = "int", low = 0, high = 9, default = 0 }}]
constraints = ["{constraint}"]
target = {{ start = ["sleep", "9"] }}
workload = {{ command = ["wrk"], json = {{ requests = "r", requests_per_s = "s", latency_p99_us = "p" }} }}
objective = {{ metric = "cpu_s_per_request" }}
verification = {{ {rules} }}
"#
    );
    context(&Roots::default())
        .check(text, "simulated.toml".as_ref())
        .unwrap()
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

/// The verification of a candidate that is so much of the control in CPU time, p99 and throughput.
fn verify(spec: &CheckedSpec, noise: Noise, seed: u64, ratios: [f64; 3]) -> Report {
    verify_after(spec, noise, seed, ratios, false)
}

/// As [`verify`]; the candidate's first run may crash.
fn verify_after(
    spec: &CheckedSpec,
    noise: Noise,
    seed: u64,
    ratios: [f64; 3],
    first_run_crashes: bool,
) -> Report {
    let at = |x: i64| Configuration([("x".to_owned(), Value::Int(x))].into());
    let crashes = AtomicBool::new(first_run_crashes);
    let truth = move |configuration: &Configuration| {
        let control = Truth::default();
        let is_candidate = number(configuration, "x", 0.0) > 0.0;
        let [cpu, latency, throughput] = if is_candidate { ratios } else { [1.0; 3] };
        Truth {
            cpu_us_per_request: control.cpu_us_per_request * cpu,
            latency_p99_us: control.latency_p99_us * latency,
            requests_per_s: control.requests_per_s * throughput,
            crashes: is_candidate && crashes.swap(false, Ordering::Relaxed),
            ..control
        }
    };
    let mut service = SimulatedService::new(seed, noise, at(0), truth);
    let top = spec.written().verification.top;
    let plan = (1_u8..).take(top);
    let plan = plan.map(|x| PlannedArm::candidate(x.into(), at(x.into())));
    let mut ledger = Planned(ResumeState {
        plan: Some(plan.collect()),
        ..ResumeState::default()
    });
    run(spec, &mut service, &mut ledger).unwrap()
}

const NOISY: Noise = Noise {
    block_sd: 0.08,
    run_sd: 0.03,
    ..Noise::NONE
};

fn verdict(report: &Report) -> ConstraintVerdict {
    report.verification[0].constraints[0].verdict
}

#[test]
fn a_constraint_at_its_limit_is_seldom_called_held_or_broken() {
    let spec = spec("");
    let reports: Vec<Report> = (0..60)
        .map(|seed| verify(&spec, NOISY, seed, [0.7, 1.05, 1.0]))
        .collect();
    let open = reports
        .iter()
        .filter(|report| verdict(report) == ConstraintVerdict::NotDecidable);
    // 5 % of 60 are 3; more than 8 would come about in 1 % of correct implementations.
    assert!(open.count() >= 52);
    let undecided = reports.iter().find(|it| it.finding == Finding::Undecided);
    let undecided = undecided.unwrap();
    assert_eq!(undecided.verification[0].runs, 9, "it went on to its limit");
    assert!(
        undecided
            .sentence
            .contains("Not decidable: latency_p99_us <= 1.05 * control ("),
        "{}",
        undecided.sentence
    );
}

#[test]
fn more_runs_decide_what_three_did_not() {
    let spec = spec("");
    let decided = (0..20)
        .map(|seed| verify(&spec, NOISY, seed, [0.8, 0.95, 1.0]))
        .filter(|report| report.finding == Finding::Improvement);
    let runs: Vec<usize> = decided.map(|report| report.verification[0].runs).collect();
    assert!(runs.len() >= 14, "{runs:?}");
    assert!(runs.iter().any(|runs| *runs > 3), "{runs:?}");
    let broken = verify(&spec, Noise::default(), 1, [0.8, 1.3, 1.0]);
    assert_eq!(broken.finding, Finding::ConstraintViolated);
    assert_eq!(broken.verification[0].runs, 3, "more is of no use");
    assert!(broken.settings.is_empty(), "nothing to copy");
}

/// The p99 of the control is 2 ms.
#[test]
fn a_constraint_that_the_control_breaks_is_not_blamed_on_the_candidate_alone() {
    let limit = "latency_p99_us <= 1500";
    let spec = spec_with(limit, "");
    let both = verify(&spec, Noise::default(), 1, [0.7, 1.0, 1.0]);
    assert_eq!(both.finding, Finding::ConstraintViolated);
    let said = format!(" The control itself breaks {limit}.");
    assert!(both.sentence.contains(&said), "{}", both.sentence);
    let mended = verify(&spec, Noise::default(), 1, [0.7, 0.5, 1.0]);
    assert_eq!(mended.finding, Finding::Improvement, "{}", mended.sentence);
    assert!(mended.sentence.contains(&said), "{}", mended.sentence);
    // Of a limit beside the control's own value nothing of the kind is said.
    let beside = verify(&self::spec(""), Noise::default(), 1, [0.7, 1.3, 1.0]);
    assert!(!beside.sentence.contains("control itself"));
    // No candidate could keep to it, so none is verified.
    let mut service = SimulatedService::new(
        1,
        Noise::default(),
        spec.space.default_configuration(),
        |_: &Configuration| Truth::default(),
    );
    let searched = run(&spec, &mut service, &mut |_: &LedgerEvent<'_>| {}).unwrap();
    assert_eq!(searched.finding, Finding::NoDifference);
    assert!(
        searched
            .sentence
            .starts_with(&format!("The control itself breaks {limit} (")),
        "{}",
        searched.sentence
    );
}

#[test]
fn a_confidence_that_candidates_share_is_explained() {
    let two = verify(&spec("top = 2"), Noise::default(), 1, [0.7, 1.0, 1.0]);
    assert_eq!(two.verification.len(), 2);
    let shared = "97.5 % confidence, as 2 candidates share the 5 % of error that were asked for";
    assert!(two.sentence.contains(shared), "{}", two.sentence);
    let one = verify(&spec(""), Noise::default(), 1, [0.7, 1.0, 1.0]);
    assert!(
        one.sentence.contains("(95 % confidence, "),
        "{}",
        one.sentence
    );
}

#[test]
fn a_run_that_failed_is_not_called_a_broken_constraint() {
    let failed = verify_after(
        &spec("runs = 6"),
        Noise::default(),
        1,
        [0.5, 0.5, 1.0],
        true,
    );
    let winner = &failed.verification[0];
    assert_eq!(failed.finding, Finding::ConstraintViolated);
    assert_eq!((winner.faults.len(), winner.runs), (1, 5));
    assert_eq!(verdict(&failed), ConstraintVerdict::Held);
    let sentence = &failed.sentence;
    assert!(
        sentence.starts_with("Better, but a run failed: "),
        "{sentence}"
    );
}

#[test]
fn what_an_improvement_is_paid_with_is_said_and_keeps_it_from_its_promotion() {
    let paid = verify(&spec(""), Noise::default(), 3, [0.77, 1.0, 0.82]);
    assert_eq!(paid.finding, Finding::Paid, "{}", paid.sentence);
    assert!(
        paid.sentence.contains(", paid with requests_per_s −18"),
        "{}",
        paid.sentence
    );
    let first = paid.sentence.split(". ").next().unwrap();
    assert!(
        first.contains("paid with"),
        "a list shows this alone: {first}"
    );
    // Where nothing is gained, what is worse is said all the same.
    let lost = verify(&spec(""), Noise::default(), 3, [1.0, 1.0, 0.82]);
    assert_eq!(lost.finding, Finding::NoDifference, "{}", lost.sentence);
    assert!(
        lost.sentence.contains(", and worse: requests_per_s −18"),
        "{}",
        lost.sentence
    );
    let guards = &paid.verification[0].guards;
    let of = |guard: Guard| guards.iter().find(|it| it.guard == guard).unwrap().verdict;
    assert_eq!(of(Guard::Throughput), GuardVerdict::Worse);
    assert_eq!(of(Guard::LatencyP99), GuardVerdict::Specified);
    assert_eq!(of(Guard::Memory), GuardVerdict::NotWorse);
    let allowed = spec("allow_worse = [\"throughput\"]");
    let allowed = verify(&allowed, Noise::default(), 3, [0.77, 1.0, 0.82]);
    assert_eq!(
        allowed.finding,
        Finding::Improvement,
        "{}",
        allowed.sentence
    );
    assert!(
        allowed
            .sentence
            .contains("Worse, as the specification allows: requests_per_s")
    );
    assert!(
        !allowed.sentence.contains("Capacity was not measured"),
        "wrk waits for answers"
    );
}

#[test]
fn no_difference_comes_with_the_difference_that_would_have_been_seen() {
    let report = verify(&spec(""), NOISY, 5, [1.0; 3]);
    assert_eq!(report.finding, Finding::NoDifference, "{}", report.sentence);
    let seen = report.verification[0].detectable["cpu_s_per_request"];
    assert!((1.01..1.3).contains(&seen), "{seen}");
    assert!(
        report
            .sentence
            .contains("would have been shown in four cases of five")
    );
}

/// Half of the buffers crash, at once and for one reason.
#[test]
fn what_crashed_twice_beyond_a_border_is_not_asked_for_again() {
    let text = |seed: u64| {
        format!(
            r#"
seed = {seed}
parameters = [
  {{ name = "threads", type = "int", low = 1, high = 32, default = 16 }},
  {{ name = "buffer_kib", type = "int", low = 4, high = 1024, scale = "log", default = 16 }},
]
target = {{ start = ["sleep", "9"] }}
workload = {{ command = ["true"], json = {{ requests = "r" }} }}
objective = {{ metric = "cpu_s_per_request" }}
budget = {{ evaluations = 14 }}
"#
        )
    };
    let mut repeated = 0;
    for seed in 0..20 {
        let spec = context(&Roots::default())
            .check(text(seed), "simulated.toml".as_ref())
            .unwrap();
        let control = spec.space.default_configuration();
        // The best buffer is beyond the border: much is to be gained there.
        let truth = |at: &Configuration| Truth {
            crashes: number(at, "buffer_kib", 0.0) > 60.0,
            ..pooled_service(at)
        };
        let mut service = SimulatedService::new(seed, Noise::default(), control, truth);
        let report = run(&spec, &mut service, &mut |_: &LedgerEvent<'_>| {}).unwrap();
        let mut known: Vec<f64> = Vec::new();
        for record in &report.evaluations {
            let buffer_kib = number(&record.configuration, "buffer_kib", 0.0);
            let least = known.iter().copied().fold(f64::INFINITY, f64::min);
            let is_crash = record.outcome == Outcome::Crashed;
            repeated += usize::from(is_crash && known.len() >= 2 && buffer_kib >= least);
            known.extend(is_crash.then_some(buffer_kib));
        }
    }
    assert!(
        repeated <= 10,
        "{repeated} crashes in 20 searches that could be known"
    );
}

/// The verification of a candidate under a load with a rate: its CPU time and its capacity are so
/// much of the control's.
fn verify_with_rate(rules: &str, [cpu, capacity]: [f64; 2]) -> Report {
    let text = format!(
        r#"
parameters = [{{ name = "x", type = "int", low = 0, high = 1, default = 0 }}]
target = {{ start = ["sleep", "9"] }}
workload = {{ http = {{ url = "http://127.0.0.1:1/", rate = 2000 }} }}
objective = {{ metric = "cpu_s_per_request" }}
verification = {{ {rules} }}
"#
    );
    let spec = context(&Roots::default())
        .check(text, "simulated.toml".as_ref())
        .unwrap();
    let at = |x: i64| Configuration([("x".to_owned(), Value::Int(x))].into());
    let truth = |configuration: &Configuration| {
        let control = Truth::default();
        match number(configuration, "x", 0.0) {
            0.0 => control,
            _ => Truth {
                cpu_us_per_request: control.cpu_us_per_request * cpu,
                requests_per_s: control.requests_per_s * capacity,
                ..control
            },
        }
    };
    let service = SimulatedService::new(3, Noise::default(), at(0), truth);
    let mut ledger = Planned(ResumeState {
        plan: Some(vec![PlannedArm::candidate(1, at(1))]),
        ..ResumeState::default()
    });
    run(&spec, &mut service.with_rate(2000.0), &mut ledger).unwrap()
}

#[test]
fn a_winner_under_an_open_loop_is_compared_at_saturation() {
    let paid = verify_with_rate("", [0.77, 0.82]);
    assert_eq!(paid.finding, Finding::Paid, "{}", paid.sentence);
    assert!(
        paid.sentence
            .contains(", paid with requests_per_s at saturation −18"),
        "{}",
        paid.sentence
    );
    // The rate itself was held by both.
    let candidate = &paid.verification[0];
    assert_eq!((candidate.runs, paid.verification.len()), (3, 2));
    assert_eq!(
        paid.verification[1].capacity_of.as_deref(),
        Some("candidate 1")
    );
    let free = verify_with_rate("", [0.77, 1.1]);
    assert_eq!(free.finding, Finding::Improvement, "{}", free.sentence);
    assert!(
        free.sentence.contains("requests_per_s at saturation +"),
        "{}",
        free.sentence
    );
    let unasked = verify_with_rate("capacity = false", [0.77, 0.82]);
    assert_eq!(unasked.finding, Finding::Improvement);
    assert!(
        unasked.sentence.contains("Capacity was not measured"),
        "{}",
        unasked.sentence
    );
}

#[test]
fn the_capacity_of_what_is_not_better_is_not_measured() {
    let report = verify_with_rate("", [1.3, 1.0]);
    assert_eq!(report.finding, Finding::Worse, "{}", report.sentence);
    assert_eq!(report.verification.len(), 1);
    assert!(!spec("").compares_capacity(), "wrk saturates by itself");
}
