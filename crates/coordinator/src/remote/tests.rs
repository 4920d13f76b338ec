//! Tests of pauses and of the time in which nobody measures.

use super::*;
use crate::store::{Location, Store};

const SPEC: &str = r#"
parameters = [{ name = "threads", type = "int", low = 1, high = 32, default = 16 }]
target = { start = ["true"] }
workload = { command = ["true"], json = { requests = "requests" } }
objective = { metric = "cpu_s_per_request" }
workers = { at_once = 2 }
"#;

struct NoBus;

impl Bus for NoBus {
    fn publish(&self, _: &str, _: &Order) -> Result<(), String> {
        Ok(())
    }
}

/// A sitting of a new experiment that nobody sits yet.
fn sit(test: impl FnOnce(&Coordinator, RemoteSitting<'_>)) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("slackline.db").display().to_string();
    let store = Store::open(&Location::parse(&file)).unwrap();
    let coordinator = Coordinator::new(store, dir.path()).with_workers(Duration::from_millis(200));
    assert!(coordinator.store.try_lock().unwrap());
    let id = coordinator
        .create(SPEC, &dir.path().join("simulated.toml"), None)
        .unwrap();
    let (row, spec) = coordinator.begin_remote(id).unwrap().unwrap();
    let sitting = RemoteSitting::new(&coordinator, &row, &spec, &NoBus).unwrap();
    test(&coordinator, sitting);
}

#[test]
fn a_pause_that_is_taken_back_as_it_comes_measures_nothing() {
    sit(|coordinator, mut sitting| {
        let id = sitting.id;
        // The look saw the pause; it is taken back before the sitting rests.
        assert!(matches!(sitting.rest(), Ok(Next::Wait)));
        assert_eq!(coordinator.store.evaluations(id, 1).unwrap().len(), 0);
        assert_eq!(
            coordinator.store.experiment(id).unwrap().state,
            State::Running
        );
        coordinator.pause(id).unwrap();
        assert!(matches!(sitting.rest(), Ok(Next::Rests)));
        assert_eq!(
            coordinator.store.experiment(id).unwrap().state,
            State::Paused
        );
    });
}

#[test]
fn time_in_which_nobody_measures_is_not_counted() {
    sit(|coordinator, mut sitting| {
        let look = |sitting: &mut RemoteSitting<'_>| {
            std::thread::sleep(Duration::from_millis(60));
            assert!(matches!(sitting.look(), Ok(Next::Wait)));
            sitting.elapsed_s()
        };
        look(&mut sitting);
        assert_eq!(look(&mut sitting), 0.0, "nobody is there");
        let ticket = evaluation(sitting.id, 1);
        let worker = "w".to_owned();
        let request = tuner::protocol::Request::Claim {
            ticket,
            worker,
            made_ms: None,
        };
        coordinator.workers.answer(&coordinator.store, request);
        let measured_s = look(&mut sitting);
        assert!(measured_s >= 0.06, "{measured_s}");
        // Longer than the lease.
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(look(&mut sitting), measured_s, "the worker is gone");
    });
}
