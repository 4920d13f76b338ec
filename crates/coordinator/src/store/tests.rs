//! The store on SQLite and on PostgreSQL: the same tests on both.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bayes_opt::{Configuration, Value};
use host::Roots;
use tempfile::TempDir;
use tuner::assignment::EvaluationResult;
use tuner::begun::{Begun, ControlRun};
use tuner::evaluation::{Block, Measurement, Outcome, SideOrder};
use tuner::ledger::{PlannedArm, VerificationRun};
use tuner::live::Changes;
use tuner::report::{EvaluationRecord, Failure};
use tuner::spec::{BudgetSpec, ExperimentMode, TargetSpec};

use super::row::set;
use super::{
    EvaluationRow, ExperimentRow, Location, NewExperiment, Promotion, RunningEvaluation, State,
    Store, UserRequest, now_ms,
};
use crate::error::Error;

const SPEC: &str = r#"
parameters = [{ name = "x", type = "int", low = 0, high = 9, default = 5 }]
target = { start = ["true"] }
workload = { command = ["true"], json = { requests = "requests", latency_p99_us = "p99" } }
objective = { metric = "latency_p99_us" }
"#;

/// A PostgreSQL server of the test's own, on a socket in its directory; it ends with the test.
struct Server {
    dir: TempDir,
    bin: PathBuf,
}

impl Server {
    /// `None` where there is no server to start; a test without one says so.
    fn start() -> Option<Self> {
        let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
        let bin = versions
            .map(|version| version.path().join("bin"))
            .find(|bin| bin.join("initdb").exists())?;
        let dir = tempfile::Builder::new()
            .prefix("slackline-pg")
            .tempdir_in("/var/tmp")
            .unwrap();
        let server = Self { dir, bin };
        if rustix::process::geteuid().is_root() {
            // The server refuses to run as root.
            assert!(
                Command::new("chown")
                    .arg("postgres")
                    .arg(server.dir.path())
                    .status()
                    .unwrap()
                    .success()
            );
        }
        server.run("initdb", &["-A", "trust", "-U", "postgres", "--no-sync"]);
        let socket = format!(
            "-c listen_addresses='' -c unix_socket_directories='{}'",
            server.dir.path().display()
        );
        let log = server.dir.path().join("log").display().to_string();
        server.run("pg_ctl", &["-w", "-l", &log, "-o", &socket, "start"]);
        Some(server)
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let mut command = if rustix::process::geteuid().is_root() {
            let mut command = Command::new("setpriv");
            command
                .args(["--reuid=postgres", "--regid=postgres", "--clear-groups"])
                .arg(self.bin.join(program));
            command
        } else {
            Command::new(self.bin.join(program))
        };
        let data = self.dir.path().join("data");
        command.arg("-D").arg(data).args(arguments).current_dir("/");
        let ended = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(ended.success(), "{program} {arguments:?}");
    }

    fn restart(&self) {
        self.run("pg_ctl", &["-w", "-m", "immediate", "stop"]);
        let socket = format!(
            "-c listen_addresses='' -c unix_socket_directories='{}'",
            self.dir.path().display()
        );
        let log = self.dir.path().join("log").display().to_string();
        self.run("pg_ctl", &["-w", "-l", &log, "-o", &socket, "start"]);
    }

    fn location(&self) -> Location {
        Location::Postgres(format!(
            "postgresql:///postgres?host={}&user=postgres",
            self.dir.path().display()
        ))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.run("pg_ctl", &["-w", "-m", "immediate", "stop"]);
    }
}

/// Runs a test on both kinds of store.
pub(super) fn on_both(test: impl Fn(&Location)) {
    let dir = tempfile::tempdir().unwrap();
    test(&Location::Sqlite(dir.path().join("slackline.db")));
    match Server::start() {
        Some(server) => test(&server.location()),
        None => {
            assert!(
                std::env::var_os("SLACKLINE_CI").is_none(),
                "PostgreSQL's server is not installed"
            );
            println!("SKIP: PostgreSQL's server is not installed");
        }
    }
}

pub(super) fn new_experiment() -> NewExperiment {
    let spec = tuner::spec::context(&Roots::default())
        .check(SPEC.into(), Path::new("store.toml"))
        .unwrap();
    NewExperiment {
        name: "store \u{2212} \"quoted\" \\".into(),
        dir: "/tmp".into(),
        source: SPEC.into(),
        spec: spec.pinned(),
        prior: Vec::new(),
        parent: None,
        report: tuner::experiment::begin(&spec),
        once: None,
        state: State::Queued,
    }
}

pub(super) fn at(x: i64) -> Configuration {
    Configuration([("x".to_owned(), Value::Int(x))].into())
}

fn record(number: usize, outcome: Outcome) -> EvaluationRecord {
    EvaluationRecord {
        number,
        configuration: at(3),
        outcome,
        reason: Some("because \u{2212}".into()),
        measurement: (outcome == Outcome::Completed).then(|| Measurement {
            score: -0.125,
            score_variance: 1e-5,
            ratio: None,
            excess: [("a <= 1".to_owned(), -0.5)].into(),
            excess_variance: [("a <= 1".to_owned(), 0.0)].into(),
        }),
        failure: (outcome == Outcome::Failed).then_some(Failure::Unmeasured),
        blocks: Vec::new(),
        duration_s: 1.5,
        own_cpu_s: 0.01,
        host: None,
        output: Some(format!("line {number}")),
        note: None,
        begun: Some(Begun {
            control: Some(ControlRun {
                started_s: 2.5,
                evaluations: 3,
                restarted: None,
            }),
            warm_up: None,
        }),
        crash: None,
    }
}

fn block() -> Block {
    Block {
        start_s: 0.5,
        order: SideOrder::ExperimentFirst,
        control: [("requests".to_owned(), 1000.0)].into(),
        experiment: [("requests".to_owned(), 999.5)].into(),
    }
}

#[test]
fn what_is_written_is_read() {
    on_both(|location| {
        let store = Store::open(location).unwrap();
        assert!(store.try_lock().unwrap());
        let id = store.create(&new_experiment()).unwrap();
        assert_eq!(id, 1);
        let running = RunningEvaluation {
            number: 1,
            configuration: at(3),
        };
        store.enqueue(id, &at(3), None).unwrap();
        store.enqueue(id, &at(4), None).unwrap();
        store.started(id, &running, true).unwrap();
        assert_eq!(store.queue(id).unwrap(), [at(4)]);
        store.add_block(id, 1, 1, &block()).unwrap();
        store.ended(id, &record(1, Outcome::Completed)).unwrap();
        store.import(id, &[record(2, Outcome::Failed)]).unwrap();
        let plan = [PlannedArm::candidate(1, at(3))];
        store.set_plan(id, &plan).unwrap();
        let run = VerificationRun {
            arm: 0,
            run: 1,
            blocks: vec![block()],
            fault: None,
            host: None,
            templates: [("a.in".to_owned(), "00ff".to_owned())].into(),
            begun: None,
        };
        store.add_run(id, &run).unwrap();
        let budget = BudgetSpec {
            evaluations: 7,
            wall_time_min: Some(0.5),
        };
        store.set_budget(id, |_| budget.clone()).unwrap();
        drop(store);

        let store = Store::open(location).unwrap();
        let row = store.experiment(id).unwrap();
        assert_eq!(row.name, new_experiment().name);
        assert_eq!(row.plan.as_deref(), Some(plan.as_slice()));
        assert_eq!(row.budget().evaluations, 7);
        assert_eq!(store.runs(id).unwrap(), std::slice::from_ref(&run));
        assert_eq!(store.last_runs(id).unwrap(), Some((1, vec![run.clone()])));
        let begun = store.begun(id).unwrap();
        let served = |(number, begun): &(usize, Begun)| {
            (*number, begun.control.as_ref().map(|run| run.evaluations))
        };
        let served: Vec<(usize, Option<usize>)> = begun.iter().map(served).collect();
        assert_eq!(served, [(1, Some(3)), (2, Some(3))]);
        let mut rows = store.evaluations(id, 1).unwrap();
        assert_eq!(rows.len(), 2);
        // What services printed is read of one alone, or of those that measured nothing.
        let outputs = |rows: &[EvaluationRow]| {
            let each = rows.iter().map(|row| row.record.output.clone());
            each.collect::<Vec<_>>()
        };
        assert_eq!(outputs(&rows), [None, None]);
        let measured = store.evaluation(id, 1).unwrap();
        assert_eq!(outputs(&[measured]), [Some("line 1".into())]);
        store.fill_outputs(id, &mut rows).unwrap();
        assert_eq!(outputs(&rows), [None, Some("line 2".into())]);
        assert_eq!(
            rows[0].record.measurement,
            record(1, Outcome::Completed).measurement
        );
        assert_eq!(rows[1].record.failure, Some(Failure::Unmeasured));
        assert_eq!(rows[1].record.outcome, Outcome::Failed);
        assert_eq!(store.evaluation(id, 1).unwrap().record.blocks, [block()]);
        let (ranked, count) = store.ranked(id, 0, 10).unwrap();
        assert_eq!((ranked.len(), ranked[0].record.number, count), (2, 1, 2));
        assert_eq!(store.ranked(id, 1, 10).unwrap().0[0].record.number, 2);
        // Both have the same configuration, and one of them is the best.
        let best = store.best_of(id, &[&at(4), &at(3)]).unwrap();
        assert_eq!(best, [None, Some((1, 1))]);
        assert_eq!(store.best_of(id, &[]).unwrap(), []);
        let summary = &store.experiments().unwrap()[0];
        assert_eq!((summary.evaluations, summary.budget), (2, 7));
        assert_eq!(summary.best_score, Some(-0.125));
        // A new verification keeps the old runs, and has none of its own.
        store.new_verification(id).unwrap();
        assert_eq!(store.experiment(id).unwrap().verification, 2);
        assert_eq!(store.runs(id).unwrap(), []);
        assert_eq!(store.last_runs(id).unwrap(), Some((1, vec![run])));
        // What is deleted is gone, and its number is not given again.
        store.delete(id).unwrap();
        assert!(matches!(store.experiment(id), Err(Error::NotFound(_))));
        assert!(matches!(store.evaluation(id, 1), Err(Error::NotFound(_))));
        assert_eq!(store.create(&new_experiment()).unwrap(), 2);
    });
}

#[test]
fn after_a_restart_nothing_runs() {
    on_both(|location| {
        let store = Store::open(location).unwrap();
        let ids: Vec<i64> = (0..4)
            .map(|_| store.create(&new_experiment()).unwrap())
            .collect();
        let wishes = [None, Some(UserRequest::Stop), Some(UserRequest::Pause)];
        for (id, wish) in ids.iter().zip(wishes) {
            let running = RunningEvaluation {
                number: 1,
                configuration: at(1),
            };
            store
                .transition(*id, |_| Ok((State::Running, wish, None)))
                .unwrap();
            store.started(*id, &running, false).unwrap();
        }
        store.is_to_be_killed(ids[1], 1).unwrap();
        drop(store);
        let store = Store::open(location).unwrap();
        store.recover().unwrap();
        let state = |index: usize| store.experiment(ids[index]).unwrap().state;
        assert_eq!(state(0), State::Queued);
        assert_eq!(state(1), State::Stopped);
        assert_eq!(state(2), State::Paused);
        assert_eq!(state(3), State::Queued);
        let ended = |index: usize| store.evaluation(ids[index], 1).unwrap();
        assert!(!ended(0).is_running);
        assert_eq!(ended(0).record.failure, Some(Failure::Lost));
        assert_eq!(ended(1).record.outcome, Outcome::Killed);
        // What was begun comes before what only waits.
        assert_eq!(store.next_in_queue().unwrap(), Some(ids[0]));
        assert!(matches!(
            store.is_to_be_killed(ids[0], 1),
            Err(Error::Conflict(_))
        ));
    });
}

#[test]
fn a_clock_that_is_set_back_lets_nobody_overtake() {
    on_both(|location| {
        let store = Store::open(location).unwrap();
        let [turn, waiting] = [(); 2].map(|()| store.create(&new_experiment()).unwrap());
        let ahead_ms = now_ms() + 3 * 3_600_000;
        store
            .change(|database| set(database, waiting, "queued_ms", ahead_ms.into()))
            .unwrap();
        for state in [State::Running, State::Queued] {
            store.transition(turn, |_| Ok((state, None, None))).unwrap();
        }
        let made = store.create(&new_experiment()).unwrap();
        for next in [waiting, turn, made] {
            assert_eq!(store.next_in_queue().unwrap(), Some(next));
            store
                .transition(next, |_| Ok((State::Running, None, None)))
                .unwrap();
        }
    });
}

#[test]
fn a_verification_that_has_begun_is_no_wish_any_more() {
    on_both(|location| {
        let store = Store::open(location).unwrap();
        let id = store.create(&new_experiment()).unwrap();
        let stands = || {
            let row = store.experiment(id).unwrap();
            let all = store.experiments().unwrap();
            (all[0].wish, row.is_verifying())
        };
        let asks = |_: &ExperimentRow| Ok((State::Running, Some(UserRequest::Verify), None));
        store.transition(id, asks).unwrap();
        assert_eq!(stands(), (Some(UserRequest::Verify), false));
        let plan = [PlannedArm::candidate(1, at(3))];
        store.set_plan(id, &plan).unwrap();
        assert_eq!(stands(), (None, true));
        // A server that starts again knows what was asked for.
        assert_eq!(
            store.experiment(id).unwrap().wish,
            Some(UserRequest::Verify)
        );
        let stops = |_: &ExperimentRow| Ok((State::Running, Some(UserRequest::Stop), None));
        store.transition(id, stops).unwrap();
        assert_eq!(stands(), (Some(UserRequest::Stop), true));
    });
}

#[test]
fn a_queued_experiment_says_what_it_waits_for() {
    on_both(|location| {
        let store = Store::open(location).unwrap();
        let mut endless = new_experiment();
        endless.spec.mode = ExperimentMode::Continuous;
        let endless = store.create(&endless).unwrap();
        let queued = store.create(&new_experiment()).unwrap();
        let waits = |id| {
            let all = store.experiments().unwrap();
            all.into_iter().find(|it| it.id == id).unwrap().waits
        };
        assert_eq!(waits(queued), None);
        store
            .transition(endless, |_| Ok((State::Running, None, None)))
            .unwrap();
        let why = waits(queued).unwrap();
        assert!(
            why.contains(&format!("waits for experiment {endless}"))
                && why.contains(&format!("pause experiment {endless}")),
            "{why}"
        );
        assert_eq!(waits(endless), None);
        // A pause is enough: the two share no service that runs by itself.
        let promotion = Promotion {
            is_complete: true,
            done: Changes {
                changed: vec!["x = 1".into()],
                ..Changes::default()
            },
            left: Vec::new(),
            at: jiff::Timestamp::now(),
        };
        store.set_promotion(endless, Some(&promotion)).unwrap();
        let why = waits(queued).unwrap();
        assert!(
            why.ends_with(&format!("pause experiment {endless}")),
            "{why}"
        );
        let attached = r#"{ "apply": [{ "command": ["true"] }] }"#;
        let attached: TargetSpec = serde_json::from_str(attached).unwrap();
        for id in [endless, queued] {
            let mut spec = store.experiment(id).unwrap().spec;
            spec.target = Some(attached.clone());
            let spec = serde_json::to_string(&spec).unwrap();
            let spec = super::Cell::from(spec);
            store
                .change(|database| set(database, id, "spec", spec))
                .unwrap();
        }
        let why = waits(queued).unwrap();
        let end = format!(
            "roll experiment {endless} back: the rollback also pauses experiment {endless}"
        );
        assert!(why.ends_with(&end), "{why}");
        // One that was paused for it is told of the rollback.
        let barred = super::for_rollback(endless, "/etc/app.conf");
        store
            .transition(queued, |_| Ok((State::Paused, None, Some(barred))))
            .unwrap();
        let said = || store.experiment(queued).unwrap().message.unwrap();
        assert!(said().contains("Roll back experiment"), "{}", said());
        store.set_promotion(endless, None).unwrap();
        assert!(said().ends_with("resume this experiment"), "{}", said());
        assert!(!said().contains("Roll back"), "{}", said());
        store
            .transition(queued, |_| Ok((State::Queued, None, None)))
            .unwrap();
        store
            .transition(endless, |_| Ok((State::Paused, None, None)))
            .unwrap();
        assert_eq!(waits(queued), None);
        let measured = store.create(&new_experiment()).unwrap();
        store
            .transition(measured, |_| Ok((State::Running, None, None)))
            .unwrap();
        assert_eq!(
            waits(queued),
            Some(format!("waits for experiment {measured}"))
        );
    });
}

#[test]
fn nothing_is_written_to_a_file_that_is_not_where_it_was() {
    for name in ["slackline.db", "slackline.db-wal", "slackline.db-shm"] {
        let dir = tempfile::tempdir().unwrap();
        let location = Location::Sqlite(dir.path().join("slackline.db"));
        let store = Store::open(&location).unwrap();
        let id = store.create(&new_experiment()).unwrap();
        let (file, away) = (dir.path().join(name), dir.path().join("away"));
        std::fs::rename(&file, &away).unwrap();
        let refused = |said: &str| {
            let error = store.create(&new_experiment()).unwrap_err();
            assert!(matches!(error, Error::Unavailable(_)), "{error}");
            let path = file.display().to_string();
            let error = error.to_string();
            assert!(error.contains(&path) && error.contains(said), "{error}");
            // What is there can still be read: pages say so, and a rollback works.
            assert_eq!(store.experiment(id).unwrap().id, id);
        };
        refused("was moved away or removed");
        std::fs::write(&file, "").unwrap();
        refused("was replaced");
        std::fs::rename(&away, &file).unwrap();
        store.create(&new_experiment()).unwrap();
    }
}

#[test]
fn one_coordinator_has_a_store() {
    on_both(|location| {
        let first = Store::open(location).unwrap();
        let second = Store::open(location).unwrap();
        assert!(first.try_lock().unwrap());
        assert!(first.try_lock().unwrap(), "it has it already");
        assert!(!second.try_lock().unwrap());
        if let Location::Sqlite(_) = location {
            assert_eq!(second.lock_holder(), Some(std::process::id()));
        }
        drop(first);
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !second.try_lock().unwrap() {
            assert!(std::time::Instant::now() < end, "the lock is not freed");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    });
}

#[test]
fn many_that_open_a_new_store_at_once_make_it_together() {
    for _ in 0..5 {
        let dir = tempfile::tempdir().unwrap();
        let location = Location::Sqlite(dir.path().join("slackline.db"));
        let all_there = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            let opened = [(); 8].map(|()| {
                scope.spawn(|| {
                    all_there.wait();
                    Store::open(&location)?.experiments()
                })
            });
            for opened in opened {
                assert!(opened.join().unwrap().unwrap().is_empty());
            }
        });
        assert!(Store::open(&location).unwrap().try_lock().unwrap());
    }
}

#[test]
fn a_store_without_tables_gets_them_from_who_has_its_lock() {
    let dir = tempfile::tempdir().unwrap();
    let location = Location::Sqlite(dir.path().join("slackline.db"));
    let running = Store::open(&location).unwrap();
    super::schema::pretend(&mut running.connection().unwrap(), 0).unwrap();
    assert!(running.try_lock().unwrap());
    let waiting = std::thread::spawn(move || Store::open(&location).map(drop));
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(!waiting.is_finished(), "it waits for the one that runs");
    let present = super::schema::VERSION;
    super::schema::pretend(&mut running.connection().unwrap(), present).unwrap();
    waiting.join().unwrap().unwrap();
}

#[test]
fn a_store_of_another_version_is_left_alone() {
    on_both(|location| {
        for (version, made_by) in [(99, "made by a later Slackline"), (1, "never released")] {
            let store = Store::open(location).unwrap();
            super::schema::pretend(&mut store.connection().unwrap(), version).unwrap();
            let Err(error) = Store::open(location) else {
                panic!("it was opened");
            };
            assert!(error.to_string().contains(made_by), "{error}");
            let present = super::schema::VERSION;
            super::schema::pretend(&mut store.connection().unwrap(), present).unwrap();
        }
    });
}

#[test]
fn notes_are_kept_and_taken_away() {
    on_both(|location| {
        let store = Store::open(location).unwrap();
        let id = store.create(&new_experiment()).unwrap();
        let running = RunningEvaluation {
            number: 1,
            configuration: at(30),
        };
        store.started(id, &running, false).unwrap();
        let text = "odd: see http://me:s3cr3t@h/\n\tbeside a backup";
        store.note(id, Some(text)).unwrap();
        store.note_evaluation(id, 1, Some(text)).unwrap();
        // The end of an evaluation leaves its note as it is.
        store.ended(id, &record(1, Outcome::Completed)).unwrap();
        let kept = "odd: see http://\u{2026}@h/\n\tbeside a backup";
        let notes = || {
            let evaluation = store.evaluation(id, 1).unwrap().record.note;
            (store.experiment(id).unwrap().note, evaluation)
        };
        assert_eq!(notes(), (Some(kept.into()), Some(kept.into())));
        store.note(id, None).unwrap();
        store.note_evaluation(id, 1, None).unwrap();
        assert_eq!(notes(), (None, None));
        for missing in [store.note(9, None), store.note_evaluation(id, 9, None)] {
            assert!(matches!(missing, Err(Error::NotFound(_))), "{missing:?}");
        }
    });
}

#[test]
fn an_evaluation_from_elsewhere_has_no_beginning() {
    on_both(|location| {
        let store = Store::open(location).unwrap();
        let id = store.create(&new_experiment()).unwrap();
        store.import(id, &[record(1, Outcome::Completed)]).unwrap();
        assert_eq!(store.evaluation(id, 1).unwrap().started_ms, None);
        let tally = store.tally(id).unwrap();
        assert_eq!(
            (tally.ended, tally.first_ms, tally.last_ms),
            (1, None, None)
        );
        assert_eq!((tally.measured_s, tally.mean_s), (1.5, Some(1.5)));
    });
}

#[test]
fn a_refused_change_changes_nothing() {
    on_both(|location| {
        let store = Store::open(location).unwrap();
        let id = store.create(&new_experiment()).unwrap();
        let refused = store.transition(id, |_| Err(Error::Conflict("no".into())));
        assert!(matches!(refused, Err(Error::Conflict(_))));
        let twice = [record(1, Outcome::Completed), record(1, Outcome::Completed)];
        assert!(store.import(id, &twice).is_err());
        assert_eq!(store.evaluations(id, 1).unwrap().len(), 0);
        assert_eq!(store.experiment(id).unwrap().state, State::Queued);
    });
}

#[test]
fn a_server_that_was_restarted_is_asked_again() {
    let Some(server) = Server::start() else {
        return;
    };
    let store = Store::open(&server.location()).unwrap();
    assert!(store.try_lock().unwrap());
    let id = store.create(&new_experiment()).unwrap();
    server.restart();
    // The connection breaks once; the next request has a new one, and the lock with it.
    let first = store.experiment(id);
    assert!(first.is_ok() || matches!(first, Err(Error::Unavailable(_))));
    assert_eq!(store.experiment(id).unwrap().state, State::Queued);
    assert!(!Store::open(&server.location()).unwrap().try_lock().unwrap());
    // Another one was faster this time.
    server.restart();
    let other = Store::open(&server.location()).unwrap();
    assert!(other.try_lock().unwrap());
    let _ = store.experiment(id);
    assert!(matches!(store.experiment(id), Err(Error::Superseded)));
}

#[test]
fn a_server_that_is_restarted_in_a_transaction_has_kept_nothing_of_it() {
    let Some(server) = Server::start() else {
        return;
    };
    let store = Store::open(&server.location()).unwrap();
    let id = store.create(&new_experiment()).unwrap();
    let running = RunningEvaluation {
        number: 1,
        configuration: at(3),
    };
    let changed = store.change(|database| {
        super::evaluations::insert(database, id, 1, &at(3), 1)?;
        server.restart();
        super::evaluations::insert(database, id, 2, &at(3), 2)
    });
    assert!(matches!(changed, Err(Error::Unavailable(_))), "{changed:?}");
    assert_eq!(
        store.evaluations(id, 1).unwrap().len(),
        0,
        "whole or not at all"
    );
    store.started(id, &running, false).unwrap();
    assert_eq!(store.evaluations(id, 1).unwrap().len(), 1);
}

#[test]
fn a_result_is_taken_once_and_only_of_the_present_attempt() {
    on_both(|location| {
        let store = Store::open(location).unwrap();
        let id = store.create(&new_experiment()).unwrap();
        let running = RunningEvaluation {
            number: 1,
            configuration: at(3),
        };
        let ticket = store
            .assign_evaluation(id, &running, false, Some(-0.5))
            .unwrap();
        let measured = || EvaluationResult {
            host: Some("w1".into()),
            output: None,
            ..record_measured()
        };
        assert_eq!(store.claim(ticket, "w1").unwrap(), Some(1));
        assert_eq!(store.claim(ticket, "w2").unwrap(), Some(2));
        assert_eq!(store.attempt(ticket).unwrap(), Some((2, "w2".into())));
        assert!(
            !store.finish(ticket, 1, measured()).unwrap(),
            "an earlier attempt's"
        );
        assert_eq!(store.assignments(id).unwrap()[0].incumbent, Some(-0.5));
        assert!(store.finish(ticket, 2, measured()).unwrap());
        assert!(
            !store.finish(ticket, 2, measured()).unwrap(),
            "the same again"
        );
        assert_eq!(store.claim(ticket, "w3").unwrap(), None, "nobody needs it");
        let ended = store.evaluation(id, 1).unwrap();
        assert_eq!(ended.record.host.as_deref(), Some("w1"));
        assert_eq!((ended.is_running, ended.record.blocks.len()), (false, 1));
        // A verification: its runs, but not those that are there.
        let plan = [PlannedArm::candidate(1, at(3))];
        store
            .assign_verification(id, &plan, &[(0, 1), (0, 2)])
            .unwrap();
        let runs = store.assignments(id).unwrap();
        assert_eq!(runs.len(), 2);
        store.claim(runs[0].ticket, "w1").unwrap();
        assert!(store.finish(runs[0].ticket, 1, measured()).unwrap());
        assert_eq!(store.runs(id).unwrap()[0].host.as_deref(), Some("w1"));
        store.withdraw_all(id, "stopped").unwrap();
        assert!(store.assignments(id).unwrap().is_empty());
        store.assign_verification(id, &plan, &[(0, 2)]).unwrap();
        assert_eq!(store.assignments(id).unwrap().len(), 1, "one run is there");
    });
}

fn record_measured() -> EvaluationResult {
    let record = record(1, Outcome::Completed);
    EvaluationResult {
        outcome: record.outcome,
        reason: None,
        measurement: record.measurement,
        failure: None,
        crash: None,
        blocks: vec![block()],
        duration_s: 1.0,
        own_cpu_s: 0.1,
        signal: None,
        host: None,
        output: None,
        templates: Default::default(),
        begun: None,
    }
}

#[test]
fn a_file_that_is_no_database_is_said_to_be_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("slackline.db");
    std::fs::write(
        &path,
        "not a database, but long enough to be looked at as one".repeat(100),
    )
    .unwrap();
    let Err(error) = Store::open(&Location::Sqlite(path.clone())) else {
        panic!("it was opened");
    };
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
    assert!(
        error.to_string().contains(&path.display().to_string()),
        "{error}"
    );
}

#[test]
fn a_file_that_another_program_has_locked_is_waited_for_but_not_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("slackline.db");
    let store = Store::open(&Location::Sqlite(path.clone())).unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let Err(error) = store.create(&new_experiment()) else {
        panic!("it was written to");
    };
    assert!(error.to_string().contains("locked"), "{error}");
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(store.create(&new_experiment()).unwrap(), 1);
}
