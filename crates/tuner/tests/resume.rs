//! An experiment that is cut off after any event goes on from its ledger: nothing is measured twice
//! into one result, nothing that ended is measured again, and what is wanted meanwhile is done.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use bayes_opt::{Configuration, Value};
use host::Roots;
use tuner::TunerError;
use tuner::evaluation::Outcome;
use tuner::experiment::run;
use tuner::ledger::{Ledger, LedgerEvent, ResumeState, RunControl};
use tuner::report::{EvaluationRecord, Failure, Finding, Report};
use tuner::simulation::{Noise, SimulatedService, pooled_service};
use tuner::spec::{BudgetSpec, CheckedSpec, context};

const SPEC: &str = r#"
parameters = [
  { name = "threads", type = "int", low = 1, high = 32, default = 16 },
  { name = "buffer_kib", type = "int", low = 4, high = 256, default = 16, scale = "log" },
]
initial = [{ threads = 8 }]
target = { start = ["sleep", "9"] }
workload = { command = ["true"], json = { requests = "requests", latency_p99_us = "p99" } }
objective = { metric = "cpu_s_per_request" }
evaluation = { block_s = 5, blocks = 3 }
budget = { evaluations = 6 }
search = { strategy = "random" }
"#;

fn spec() -> CheckedSpec {
    context(&Roots::default())
        .check(SPEC.into(), "simulated.toml".as_ref())
        .unwrap()
}

/// A ledger in memory, whose process is cut off when it has taken so many notes.
#[derive(Default)]
struct Memory {
    kept: ResumeState,
    running: Option<(usize, Configuration)>,
    wish: RunControl,
    notes: usize,
    cut_off_at: Option<usize>,
    /// Times that anything was started, by number and arm.
    started: Vec<String>,
}

impl Ledger for Memory {
    fn kept(&mut self) -> Result<ResumeState, TunerError> {
        Ok(self.kept.clone())
    }

    fn wish(&mut self) -> Result<RunControl, TunerError> {
        let wish = self.wish.clone();
        self.wish.queued = None;
        Ok(wish)
    }

    fn note(&mut self, event: &LedgerEvent<'_>) -> Result<(), TunerError> {
        if self.cut_off_at == Some(self.notes) {
            return Err(TunerError::Ledger("cut off".into()));
        }
        self.notes += 1;
        match event {
            LedgerEvent::Started {
                number,
                configuration,
                ..
            } => {
                self.started.push(format!("evaluation {number}"));
                self.running = Some((*number, (*configuration).clone()));
            }
            LedgerEvent::Block { .. } => {}
            LedgerEvent::Ended { record, .. } => {
                self.running = None;
                self.kept.evaluations.push((*record).clone());
            }
            LedgerEvent::Planned(plan) => self.kept.plan = Some(plan.to_vec()),
            LedgerEvent::Verifying { arm, run, .. } => {
                self.started.push(format!("{arm}, run {run}"))
            }
            LedgerEvent::Verified(measured) => self.kept.runs.push((*measured).clone()),
        }
        Ok(())
    }
}

impl Memory {
    /// What a coordinator does after a restart: what was running is lost, and will be repeated.
    fn restart(&mut self) {
        self.cut_off_at = None;
        if let Some((number, configuration)) = self.running.take() {
            self.kept.evaluations.push(EvaluationRecord {
                number,
                configuration,
                outcome: Outcome::Failed,
                reason: Some("lost".into()),
                failure: Some(Failure::Lost),
                measurement: None,
                blocks: Vec::new(),
                duration_s: 0.0,
                own_cpu_s: 0.0,
                host: None,
                output: None,
                note: None,
                crash: None,
                begun: None,
            });
        }
    }

    fn run(&mut self, spec: &CheckedSpec) -> Result<Report, TunerError> {
        let control = spec.space.default_configuration();
        let noise = Noise::default();
        let seed = self.notes as u64;
        run(
            spec,
            &mut SimulatedService::new(seed, noise, control, pooled_service),
            self,
        )
    }
}

#[test]
fn cut_off_after_any_event_it_goes_on() {
    let spec = spec();
    let mut whole = Memory::default();
    whole.run(&spec).unwrap();
    assert!(whole.notes > 40, "{}", whole.notes);
    for cut_off_at in 0..whole.notes {
        let mut ledger = Memory {
            cut_off_at: Some(cut_off_at),
            ..Memory::default()
        };
        let error = ledger.run(&spec).unwrap_err();
        assert!(matches!(error, TunerError::Ledger(_)), "{error}");
        let before = ledger.kept.clone();
        ledger.restart();
        let report = ledger.run(&spec).unwrap();
        let context = format!("cut off at {cut_off_at}");
        let ended = &ledger.kept.evaluations;
        assert_eq!(
            ended[..before.evaluations.len()]
                .iter()
                .map(|record| &record.measurement)
                .collect::<Vec<_>>(),
            before
                .evaluations
                .iter()
                .map(|record| &record.measurement)
                .collect::<Vec<_>>(),
            "{context}"
        );
        let numbers: Vec<usize> = ended.iter().map(|record| record.number).collect();
        assert_eq!(
            numbers,
            (1..=ended.len()).collect::<Vec<_>>(),
            "{context}: each once"
        );
        let lost = ended
            .iter()
            .filter(|record| record.failure == Some(Failure::Lost))
            .count();
        assert_eq!(ended.len() - lost, 6, "{context}: the whole budget");
        for pair in ended.windows(2) {
            if pair[0].failure == Some(Failure::Lost) {
                assert_eq!(pair[0].configuration, pair[1].configuration, "{context}");
            }
        }
        let initial = ended
            .iter()
            .filter(|record| {
                record.failure.is_none()
                    && record.configuration.get("threads") == Some(&Value::Int(8))
                    && record.configuration.get("buffer_kib") == Some(&Value::Int(16))
            })
            .count();
        assert_eq!(initial, 1, "{context}: the initial one is measured once");
        let runs: BTreeSet<_> = ledger
            .kept
            .runs
            .iter()
            .map(|run| (run.arm, run.run))
            .collect();
        assert_eq!(runs.len(), ledger.kept.runs.len(), "{context}");
        assert_eq!(runs.len(), 3, "{context}");
        assert_eq!(report.verification[0].runs, 3, "{context}");
        assert_ne!(report.finding, Finding::Unfinished, "{context}");
    }
}

#[test]
fn what_is_wanted_is_done() {
    let spec = spec();
    let by_hand = Configuration(
        [("threads", 5), ("buffer_kib", 100)]
            .map(|(name, value)| (name.to_owned(), Value::Int(value)))
            .into(),
    );
    let mut ledger = Memory {
        wish: RunControl {
            pause: true,
            ..RunControl::default()
        },
        ..Memory::default()
    };
    let report = ledger.run(&spec).unwrap();
    assert!(report.paused && ledger.started.is_empty());
    assert_eq!(report.sentence, "Paused after 0 evaluations.");
    ledger.wish = RunControl {
        queued: Some(by_hand.clone()),
        budget: Some(BudgetSpec {
            evaluations: 2,
            wall_time_min: None,
        }),
        pause: false,
    };
    let report = ledger.run(&spec).unwrap();
    assert_eq!(report.evaluations.len(), 2);
    assert_eq!(report.evaluations[0].configuration, by_hand);
    // More of it, and the verification anew.
    ledger.wish.budget = None;
    ledger.kept.plan = None;
    ledger.kept.runs.clear();
    let report = ledger.run(&spec).unwrap();
    assert_eq!(report.evaluations.len(), 6);
    assert_eq!(report.verification[0].runs, 3);
}

#[test]
fn the_control_is_pinned() {
    let text = SPEC.replace("default = 16, scale", "default = 20, scale");
    let spec = context(&Roots::default())
        .check(text, "simulated.toml".as_ref())
        .unwrap();
    let pinned = serde_json::to_string(&spec.pinned()).unwrap();
    let again = context(&Roots::default())
        .check(pinned, "again.json".as_ref())
        .unwrap();
    assert_eq!(again.name, "simulated");
    assert_eq!(
        again.space.default_configuration(),
        spec.space.default_configuration()
    );
}

/// A live value that means "no limit" is a value of its own, once, also if the specification names
/// it.
#[test]
fn a_live_value_without_a_limit_that_is_named_already_is_there_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("proc/sys/net/unsent");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    for (live, special, all) in [
        ("4294967295", "[4294967295]", 1),
        ("4294967295", "[-1, 4294967295]", 2),
        ("4294967295", "[-1]", 2),
        ("4294967295", "[]", 1),
        ("5000", "[4294967295]", 1),
    ] {
        std::fs::write(&file, live).unwrap();
        let text = format!(
            r#"{{ "parameters": [
                {{ "name": "unsent", "type": "int", "low": 4096, "high": 4194304, "scale": "log",
                   "special": {special}, "sysctl": "net.unsent" }}
            ],
            "target": {{ "start": ["sleep", "1000"] }},
            "workload": {{ "command": ["true"], "parse": "wrk" }},
            "objective": {{ "metric": "latency_p99_us" }} }}"#
        );
        let spec = context(&Roots::at(dir.path()))
            .check(text, "made.json".as_ref())
            .unwrap();
        let found = &spec.space.parameters()[0].special;
        assert_eq!(found.len(), all, "{live} {special}: {found:?}");
    }
}

/// The range that `check` shows is also that of every later session, of `serve` and of workers.
#[test]
fn a_live_value_outside_of_the_range_stays_the_control_once_it_is_pinned() {
    let dir = tempfile::tempdir().unwrap();
    for (name, live) in [("fin", "300"), ("share", "0.75"), ("off", "0")] {
        let file = dir.path().join("proc/sys/net").join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, live).unwrap();
    }
    let text = r#"{ "parameters": [
            { "name": "fin", "type": "int", "low": 10, "high": 120, "step": 20, "sysctl": "net.fin" },
            { "name": "share", "type": "float", "low": 0.0, "high": 0.5, "step": 0.1, "sysctl": "net.share" },
            { "name": "off", "type": "int", "low": 10, "high": 120, "special": [0], "sysctl": "net.off" }
        ],
        "target": { "start": ["sleep", "1000"] },
        "workload": { "command": ["true"], "parse": "wrk" },
        "objective": { "metric": "latency_p99_us" } }"#;
    let check = |text, roots: &Roots| context(roots).check(text, "made.json".as_ref());
    let spec = check(text.to_owned(), &Roots::at(dir.path())).unwrap();
    let pinned = serde_json::to_string(&spec.pinned()).unwrap();
    // Somebody has changed the knobs since.
    std::fs::write(dir.path().join("proc/sys/net/fin"), "50").unwrap();
    std::fs::write(dir.path().join("proc/sys/net/share"), "0.25").unwrap();
    let again = check(pinned, &Roots::at(dir.path())).unwrap();
    assert_eq!(again.space.parameters(), spec.space.parameters());
}
