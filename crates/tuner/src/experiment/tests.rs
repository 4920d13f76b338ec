//! Tests of when hosts that fail end an experiment.

use super::*;

fn spec() -> CheckedSpec {
    let text = r#"
parameters = [{ name = "threads", type = "int", low = 1, high = 32, default = 16 }]
target = { start = ["sleep", "9"] }
workload = { command = ["true"], json = { requests = "requests" } }
objective = { metric = "cpu_s_per_request" }
search = { strategy = "random" }
"#;
    let roots = host::Roots::default();
    crate::spec::context(&roots)
        .check(text.into(), "simulated.toml".as_ref())
        .unwrap()
}

/// Evaluations as they end, on hosts.
struct Ends {
    spec: CheckedSpec,
    search: TuningSearch,
    at_once: usize,
    workers: Vec<String>,
}

impl Ends {
    fn new(at_once: usize, workers: &[&str]) -> Self {
        let spec = spec();
        Self {
            search: TuningSearch::resume(&spec, &mut ResumeState::default()).unwrap(),
            spec,
            at_once,
            workers: workers.iter().map(ToString::to_string).collect(),
        }
    }

    fn on(&mut self, host: &str, failure: Option<Failure>) -> Result<(), TunerError> {
        let measurement = Measurement {
            score: 0.0,
            score_variance: 1e-4,
            ratio: None,
            excess: BTreeMap::new(),
            excess_variance: BTreeMap::new(),
        };
        let record = EvaluationRecord {
            number: self.search.records.len() + 1,
            configuration: self.search.next(&self.spec, None).unwrap().unwrap(),
            outcome: failure.map_or(Outcome::Completed, |_| Outcome::Failed),
            reason: failure.map(|_| "no load".into()),
            measurement: failure.is_none().then_some(measurement),
            failure,
            crash: None,
            blocks: Vec::new(),
            duration_s: 1.0,
            own_cpu_s: 0.0,
            host: Some(host.into()),
            output: None,
            note: None,
            begun: None,
        };
        self.search.take(record, self.at_once, &self.workers)
    }
}

#[test]
fn a_host_that_fails_ends_no_experiment_of_several() {
    for failure in [Failure::Harness, Failure::Unmeasured] {
        let mut ends = Ends::new(2, &["bad", "good"]);
        for _ in 0..12 {
            ends.on("bad", Some(failure)).unwrap();
        }
        assert_eq!(ends.search.counted(), 12, "nobody has measured anything");
        ends.on("good", None).unwrap();
        assert_eq!(ends.search.counted(), 1);
        ends.on("good", Some(failure)).unwrap();
        assert_eq!(ends.search.counted(), 2, "it is the only one that can");
    }
}

#[test]
fn hosts_that_all_fail_end_it() {
    let mut ends = Ends::new(2, &["bad", "worse"]);
    for _ in 0..3 {
        ends.on("bad", Some(Failure::Harness)).unwrap();
    }
    // That the control can be measured here says nothing of the other one.
    ends.on("worse", Some(Failure::Unmeasured)).unwrap();
    ends.on("bad", Some(Failure::Harness)).unwrap();
    let mut tries = (0..8).map(|_| ends.on("worse", Some(Failure::Unmeasured)));
    let ended = tries.find(Result::is_err).unwrap_or(Ok(()));
    assert!(
        matches!(ended, Err(TunerError::Control { attempts: 4, .. })),
        "{ended:?}"
    );
}

#[test]
fn a_single_host_that_fails_ends_it() {
    let mut ends = Ends::new(2, &["only"]);
    for _ in 0..3 {
        ends.on("only", Some(Failure::Harness)).unwrap();
    }
    let ended = ends.on("only", Some(Failure::Harness));
    assert!(
        matches!(ended, Err(TunerError::Control { attempts: 4, .. })),
        "{ended:?}"
    );
}
