//! Tests of what users do to experiments.

use tuner::report::Report;

use super::*;
use crate::store::{Location, Store};

const SPEC: &str = r#"
parameters = [{ name = "x", type = "int", low = 0, high = 9, default = 5 }]
target = { start = ["true"] }
workload = { command = ["true"], json = { requests = "n", latency_p99_us = "us" } }
"#;

#[test]
fn a_fork_of_a_fork_has_a_name_of_bounded_length() {
    assert_eq!(forked_name("web", 1), "web (from 1)");
    assert_eq!(forked_name("web (from 1)", 22), "web (from 22)");
    assert_eq!(
        forked_name("web (from home)", 2),
        "web (from home) (from 2)"
    );
    let long = forked_name(&"é".repeat(NAME_CHARS_MAX), 7);
    assert_eq!(long.chars().count(), NAME_CHARS_MAX);
    assert!(long.ends_with(" (from 7)"), "{long}");
}

#[test]
fn what_is_kept_for_ever_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spec.toml");
    let store = dir.path().join("store.db");
    let store = Store::open(&Location::parse(store.to_str().unwrap())).unwrap();
    let coordinator = Coordinator::new(store, dir.path());
    let create = |text: &str| coordinator.create(text, &path, None);
    let named = |name: &str| {
        format!("name = \"{name}\"\n{SPEC}objective = {{ metric = \"latency_p99_us\" }}")
    };
    let long = named(&"x".repeat(NAME_CHARS_MAX + 1));
    let Err(Error::Spec(error)) = create(&long) else {
        panic!("it was made");
    };
    assert_eq!((error.key.as_str(), error.line), ("name", Some(1)));
    assert!(error.message.contains("has 101 characters"), "{error}");
    let id = create(&named(&"x".repeat(NAME_CHARS_MAX))).unwrap();
    let padded = format!("# {}\n{}", "x".repeat(SOURCE_BYTES_MAX), named("y"));
    let error = create(&padded).unwrap_err().to_string();
    assert!(error.starts_with("spec: the text has 10"), "{error}");
    // Whoever may only look reads a name.
    let masked = create(&named("of --password=s3cr3t")).unwrap();
    let row = coordinator.store().experiment(masked).unwrap();
    assert_eq!(
        (row.name.as_str(), row.report.name.as_str()),
        ("of --password=…", "of --password=…")
    );
    let mut report = coordinator.export(id).unwrap();
    report.note = Some("x".repeat(NOTE_CHARS_MAX + 1));
    let import = |report: Report| coordinator.import(report, None, None);
    let error = import(report.clone()).unwrap_err().to_string();
    assert!(error.starts_with("the report: note: "), "{error}");
    report.note = None;
    report.name = "x".repeat(NAME_CHARS_MAX + 1);
    let error = import(report).unwrap_err().to_string();
    assert!(error.starts_with("the report: name: "), "{error}");
    for _ in 0..QUEUE_MAX {
        coordinator
            .store()
            .enqueue(id, &Configuration::default(), None)
            .unwrap();
    }
    let full = coordinator.enqueue(id, &Configuration::default(), None);
    assert!(
        full.unwrap_err()
            .to_string()
            .contains("1000 configurations")
    );
}

#[test]
fn a_fork_takes_no_values_of_another_objective() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spec.toml");
    let text = |objective: &str| format!("{SPEC}[objective]\n{objective}\n");
    let store = dir.path().join("store.db");
    let store = Store::open(&Location::parse(store.to_str().unwrap())).unwrap();
    let coordinator = Coordinator::new(store, dir.path());
    let first = text("metric = \"latency_p99_us\"");
    let id = coordinator.create(&first, &path, None).unwrap();
    for other in [
        "metric = \"requests_per_s\"",
        "metric = \"latency_p99_us\"\nscale = \"absolute\"",
        "metric = \"latency_p99_us\"\ngoal = \"maximise\"",
    ] {
        let refused = coordinator.fork(id, Some((&text(other), path.clone())), None);
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("metric, scale or goal"), "{other}: {why}");
    }
    let same = text("metric = \"latency_p99_us\"\ngoal = \"minimise\"");
    coordinator.fork(id, Some((&same, path)), None).unwrap();
}

/// The key of a request, as its sender gives it again.
fn once(key: &str, fingerprint: &str) -> Option<Once> {
    Some(Once {
        key: key.into(),
        fingerprint: fingerprint.into(),
    })
}

#[test]
fn a_request_that_is_sent_again_makes_nothing_and_checks_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spec.toml");
    let template = dir.path().join("service.in");
    std::fs::write(&template, "x = {x}\n").unwrap();
    let store = dir.path().join("store.db");
    let store = Store::open(&Location::parse(store.to_str().unwrap())).unwrap();
    let coordinator = Coordinator::new(store, dir.path());
    let files = r#"files = [{ template = "service.in", path = "{dir}/x" }], start"#;
    let text = SPEC.replacen("start", files, 1);
    let text = format!("{text}objective = {{ metric = \"latency_p99_us\" }}");
    let create = |key: &str| coordinator.create(&text, &path, once(key, "create"));
    let fork = |id: i64, key: &str| coordinator.fork(id, None, once(key, "fork"));
    let created = create("a").unwrap();
    let forked = fork(created, "b").unwrap();
    let mut report = coordinator.export(created).unwrap();
    report.evaluations.push(EvaluationRecord {
        number: 1,
        configuration: Configuration::default(),
        outcome: tuner::evaluation::Outcome::Failed,
        reason: None,
        measurement: None,
        failure: Some(tuner::report::Failure::Unmeasured),
        blocks: Vec::new(),
        duration_s: 1.0,
        own_cpu_s: 0.0,
        host: None,
        output: None,
        note: None,
        crash: None,
        begun: None,
    });
    report.note = Some("of elsewhere".into());
    let import = |key: &str| coordinator.import(report.clone(), None, once(key, "import"));
    let imported = import("c").unwrap();
    let values = Configuration::default();
    let queued = once("d", "enqueue");
    let enqueue = || coordinator.enqueue(imported, &values, queued.as_ref());
    enqueue().unwrap();
    std::fs::remove_file(&template).unwrap();
    assert_eq!(create("a").unwrap(), created);
    assert_eq!(fork(created, "b").unwrap(), forked);
    assert_eq!(import("c").unwrap(), imported);
    let other = coordinator.create(&text, &path, once("c", "create"));
    let why = other.unwrap_err().to_string();
    assert!(why.contains("came with another request"), "{why}");
    // A key outlives its experiment.
    coordinator.delete(imported).unwrap();
    for again in [import("c").map(drop), enqueue().map(drop)] {
        let Err(Error::Gone(why)) = again else {
            panic!("{again:?}");
        };
        assert!(
            why.contains(&format!("experiment {imported}, which was deleted")),
            "{why}"
        );
    }
    let other = coordinator.create(&text, &path, once("c", "create"));
    assert!(matches!(other, Err(Error::Invalid(_))), "{other:?}");
    assert_eq!(coordinator.store().experiments().unwrap().len(), 2);
}

#[test]
fn a_used_up_budget_is_raised_before_a_resume() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spec.toml");
    let store = dir.path().join("store.db");
    let store = Store::open(&Location::parse(store.to_str().unwrap())).unwrap();
    let coordinator = Coordinator::new(store, dir.path());
    let text = format!("{SPEC}objective = {{ metric = \"latency_p99_us\" }}");
    let id = coordinator.create(&text, &path, None).unwrap();
    let end = |state| {
        let ended = |_: &_| Ok((state, None, None));
        coordinator.store.transition(id, ended).unwrap();
    };
    end(State::Done);
    // Nothing is measured yet: it may go on.
    coordinator.resume(id).unwrap();
    let nothing = |_: &ExperimentRow| BudgetSpec {
        evaluations: 0,
        wall_time_min: None,
    };
    coordinator.store.set_budget(id, nothing).unwrap();
    end(State::Done);
    let why = coordinator.resume(id).unwrap_err().to_string();
    assert!(
        why.contains("is done: its budget of 0 evaluations is used up"),
        "{why}"
    );
    let way = format!("`slackline experiments budget {id} --evaluations N`");
    assert!(why.contains(&way), "{why}");
    let mut row = coordinator.store.experiment(id).unwrap();
    assert_eq!((row.state, row.verification), (State::Done, 1));
    // Minutes are as good a budget.
    row.budget = Some(BudgetSpec {
        evaluations: 9,
        wall_time_min: Some(2.0),
    });
    assert_eq!(row.nothing_to_resume(8, 100.0), None);
    let why = row.nothing_to_resume(8, 119.0).unwrap();
    assert!(
        why.starts_with("its budget of 2 min of measuring is used up"),
        "{why}"
    );
    let way = format!("budget {id} --evaluations 9 --wall-time-min MINUTES`");
    assert!(why.contains(&way), "{why}");
    row.state = State::Stopped;
    assert_eq!(row.nothing_to_resume(8, 121.0), None);
    // A verification that was cut short goes on.
    end(State::Stopped);
    coordinator.resume(id).unwrap();
    let mut row = coordinator.store.experiment(id).unwrap();
    row.report.finding = tuner::report::Finding::Improvement;
    let why = row.not_promotable().unwrap();
    assert!(why.starts_with("it waits to be measured again"), "{why}");
}

#[test]
fn a_fork_says_that_nothing_carries_over() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store.db");
    let store = Store::open(&Location::parse(store.to_str().unwrap())).unwrap();
    let coordinator = Coordinator::new(store, dir.path());
    let text = format!("{SPEC}objective = {{ metric = \"latency_p99_us\" }}");
    let path = dir.path().join("spec.toml");
    let id = coordinator.create(&text, &path, None).unwrap();
    let mut row = coordinator.store.experiment(id).unwrap();
    assert_eq!(row.carries_nothing_over(), None);
    let observed = |name: &str| {
        let values = [(name.to_owned(), bayes_opt::Value::Int(1))];
        Observation::now(
            Configuration(values.into()),
            bayes_opt::ObservedOutcome::Crashed,
        )
    };
    row.prior = vec![observed("y")];
    assert!(row.carries_nothing_over().is_some());
    row.prior.push(observed("x"));
    assert_eq!(row.carries_nothing_over(), None);
}
