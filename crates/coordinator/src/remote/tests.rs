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
    fn publish(&self, _: &str, _: &WorkOrder) -> Result<(), String> {
        Ok(())
    }
}

/// A session of a new experiment that nobody runs yet.
fn sit(test: impl FnOnce(&Coordinator, RemoteSession<'_>)) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("slackline.db").display().to_string();
    let store = Store::open(&Location::parse(&file)).unwrap();
    let coordinator = Coordinator::new(store, dir.path()).with_workers(Duration::from_millis(200));
    assert!(coordinator.store.try_lock().unwrap());
    let id = coordinator
        .create(SPEC, &dir.path().join("simulated.toml"), None)
        .unwrap();
    let (row, spec) = coordinator.begin_remote(id).unwrap().unwrap();
    let session = RemoteSession::new(&coordinator, &row, &spec, &NoBus).unwrap();
    test(&coordinator, session);
}

#[test]
fn a_pause_that_is_taken_back_as_it_comes_measures_nothing() {
    sit(|coordinator, mut session| {
        let id = session.id;
        // The look saw the pause; it is taken back before the session rests.
        assert!(matches!(session.rest(), Ok(Next::Wait)));
        assert_eq!(coordinator.store.evaluations(id, 1).unwrap().len(), 0);
        assert_eq!(
            coordinator.store.experiment(id).unwrap().state,
            State::Running
        );
        coordinator.pause(id).unwrap();
        assert!(matches!(session.rest(), Ok(Next::Rests)));
        assert_eq!(
            coordinator.store.experiment(id).unwrap().state,
            State::Paused
        );
    });
}

#[test]
fn time_in_which_nobody_measures_is_not_counted() {
    sit(|coordinator, mut session| {
        let look = |session: &mut RemoteSession<'_>| {
            std::thread::sleep(Duration::from_millis(60));
            assert!(matches!(session.look(), Ok(Next::Wait)));
            session.elapsed_s()
        };
        look(&mut session);
        assert_eq!(look(&mut session), 0.0, "nobody is there");
        let ticket = evaluation(session.id, 1);
        let worker = "w".to_owned();
        let request = tuner::protocol::WorkerMessage::Claim {
            ticket,
            worker,
            made_ms: None,
        };
        coordinator.workers.answer(&coordinator.store, request);
        let measured_s = look(&mut session);
        assert!(measured_s >= 0.06, "{measured_s}");
        // Longer than the lease.
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(look(&mut session), measured_s, "the worker is gone");
    });
}
