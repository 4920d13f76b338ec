//! Experiments measured by workers: a coordinator, a queue that may be down or deliver twice, and
//! workers in threads, whose services are simulated.

#![expect(clippy::unwrap_used, reason = "test code: a panic is a failure")]

#[path = "../../host/tests/support/eventually.rs"]
mod eventually;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use coordinator::store::{Location, State, Store};
use coordinator::{Bus, Coordinator};
use tuner::assignment::{self, EvaluationResult};
use tuner::ledger::LedgerEvent;
use tuner::protocol::{Hello, Instance, Reply, Ticket, WorkOrder, WorkerMessage};
use tuner::simulation::{Noise, SimulatedService, pooled_service};

use eventually::{eventually, found_within};

const LEASE: Duration = Duration::from_millis(1500);

/// A queue in memory.
#[derive(Default)]
struct Queue {
    orders: Mutex<VecDeque<WorkOrder>>,
    is_down: AtomicBool,
    /// Every order is delivered that often.
    copies: AtomicUsize,
    /// When which experiment's orders came.
    log: Mutex<Vec<(Instant, i64)>>,
}

impl Bus for Queue {
    fn publish(&self, _: &str, order: &WorkOrder) -> Result<(), String> {
        if self.is_down.load(Ordering::Relaxed) {
            return Err("the queue is down".into());
        }
        let mut orders = self.orders.lock().unwrap();
        if !orders.iter().any(|other| other.ticket == order.ticket) {
            self.log
                .lock()
                .unwrap()
                .push((Instant::now(), order.ticket.experiment));
            for _ in 0..self.copies.load(Ordering::Relaxed).max(1) {
                orders.push_back(order.clone());
            }
        }
        Ok(())
    }
}

fn simulated(order: &WorkOrder) -> EvaluationResult {
    let text = serde_json::to_string(&order.spec).unwrap();
    let spec = tuner::spec::context(&host::Roots::default())
        .check(text, Path::new("simulated.json"))
        .unwrap();
    let seed = order.ticket.number as u64;
    let control = spec.space.default_configuration();
    let mut service = SimulatedService::new(seed, Noise::default(), control, pooled_service);
    assignment::measure(
        &spec,
        &order.assignment,
        &mut service,
        &mut |_: &LedgerEvent<'_>| (),
    )
    .unwrap()
}

fn hello(name: &str) -> WorkerMessage {
    WorkerMessage::Hello(Hello {
        name: name.into(),
        labels: [("arch".to_owned(), "x86_64".to_owned())].into(),
        version: String::new(),
        instance: None,
    })
}

/// A worker that says which process it is: on which boot of a host, and when it was started there.
fn hello_of(name: &str, boot_id: &str, started_ns: u64) -> WorkerMessage {
    let WorkerMessage::Hello(hello) = hello(name) else {
        unreachable!()
    };
    let boot_id = boot_id.to_owned();
    let instance = Some(Instance {
        boot_id,
        started_ns,
    });
    WorkerMessage::Hello(Hello { instance, ..hello })
}

/// On a host whose load fails after the first block.
fn failing(order: &WorkOrder) -> EvaluationResult {
    std::thread::sleep(Duration::from_millis(20));
    let mut measured = simulated(order);
    measured.blocks.truncate(1);
    EvaluationResult {
        blocks: measured.blocks,
        host: Some("bad".into()),
        output: None,
        ..EvaluationResult::failed("the load failed".into())
    }
}

fn claim(coordinator: &Coordinator, order: &WorkOrder, worker: &str) -> Reply {
    coordinator.answer(WorkerMessage::Claim {
        ticket: order.ticket,
        worker: worker.to_owned(),
        made_ms: order.made_ms,
    })
}

fn bring(coordinator: &Coordinator, order: &WorkOrder, attempt: i64) -> Reply {
    coordinator.answer(WorkerMessage::Result {
        ticket: order.ticket,
        attempt,
        measured: Box::new(simulated(order)),
    })
}

/// Takes, claims, measures and brings until told to end.
fn work(
    coordinator: &Coordinator,
    queue: &Queue,
    name: &str,
    measure: fn(&WorkOrder) -> EvaluationResult,
    is_over: &AtomicBool,
) {
    while !is_over.load(Ordering::Relaxed) {
        coordinator.answer(hello(name));
        let order = queue.orders.lock().unwrap().pop_front();
        let Some(order) = order else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        let Reply::Granted { attempt } = claim(coordinator, &order, name) else {
            continue;
        };
        let ticket = order.ticket;
        let measured = Box::new(measure(&order));
        loop {
            let result = WorkerMessage::Result {
                ticket,
                attempt,
                measured: measured.clone(),
            };
            match coordinator.answer(result) {
                Reply::Trouble(_) => std::thread::sleep(Duration::from_millis(20)),
                _ => break,
            }
        }
    }
}

fn spec(strategy: &str, evaluations: usize, at_once: usize) -> String {
    serde_json::json!({
        "parameters": [
            { "name": "threads", "type": "int", "low": 1, "high": 64, "default": 16 },
            { "name": "buffer_kib", "type": "int", "low": 4, "high": 300, "default": 16 },
            { "name": "a", "type": "float", "low": 0, "high": 1, "default": 0.5 },
            { "name": "b", "type": "float", "low": 0, "high": 1, "default": 0.5 },
        ],
        "target": { "start": ["true"] },
        "workload": { "command": ["true"], "json": { "requests": "r", "latency_p99_us": "p" } },
        "objective": { "metric": "cpu_s_per_request" },
        "evaluation": { "blocks": 3, "early_abort": false },
        "budget": { "evaluations": evaluations },
        "search": { "strategy": strategy },
        "workers": { "at_once": at_once },
    })
    .to_string()
}

/// Runs a coordinator and workers around `test`.
fn with_workers(workers: usize, queue: &Queue, test: impl FnOnce(&Coordinator)) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("slackline.db").display().to_string();
    let store = Store::open(&Location::parse(&file)).unwrap();
    let coordinator = Coordinator::new(store, dir.path()).with_workers(LEASE);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| coordinator.run(&|message| say(message)).unwrap());
        scope.spawn(|| coordinator.run_workers(queue, &|message| say(message)));
        for index in 0..workers {
            let (coordinator, is_over) = (&coordinator, &is_over);
            let name = format!("w{index}");
            scope.spawn(move || work(coordinator, queue, &name, simulated, is_over));
        }
        let tested = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&coordinator)));
        is_over.store(true, Ordering::Relaxed);
        coordinator.end();
        if let Err(panic) = tested {
            std::panic::resume_unwind(panic);
        }
    });
}

fn say(message: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{message}\n").as_bytes());
}

fn wait_for(coordinator: &Coordinator, id: i64, state: State) {
    found_within(60, || {
        let row = coordinator.store().experiment(id).unwrap();
        let what = format!("{id} is {}: {:?}", row.state, row.message);
        (row.state == state).then_some(()).ok_or(what)
    });
}

#[test]
fn orders_delivered_twice_are_measured_into_one_result() {
    let queue = Queue::default();
    queue.copies.store(2, Ordering::Relaxed);
    with_workers(4, &queue, |coordinator| {
        let path = Path::new("/tmp/simulated.json");
        let create = |_| {
            coordinator
                .create(&spec("random", 12, 4), path, None)
                .unwrap()
        };
        let made: Vec<i64> = (0..3).map(create).collect();
        for id in &made {
            wait_for(coordinator, *id, State::Done);
            let report = coordinator.export(*id).unwrap();
            let numbers: Vec<usize> = report.evaluations.iter().map(|it| it.number).collect();
            assert_eq!(numbers, (1..=12).collect::<Vec<_>>());
            assert!(report.evaluations.iter().all(|it| it.blocks.len() == 3));
            assert_eq!(report.verification[0].runs, 3);
            assert!(coordinator.store().assignments(*id).unwrap().is_empty());
        }
        let counts = coordinator.workers().counts();
        assert_eq!(counts.accepted, 3 * (12 + 3), "{counts:?}");
        assert!(counts.declined > 0, "the copies: {counts:?}");
    });
}

/// Two configurations beside the control. Both are slower, and nothing keeps to the constraint.
const NOTHING_FEASIBLE: &str = r#"
parameters = [{ name = "threads", type = "int", low = 16, high = 32, step = 8, default = 16 }]
target = { start = ["true"] }
workload = { command = ["true"], json = { requests = "r", latency_p99_us = "p" } }
objective = { metric = "cpu_s_per_request" }
constraints = ["latency_p99_us <= 0.5 * control"]
evaluation = { blocks = 3, early_abort = false }
budget = { evaluations = 30 }
workers = { at_once = 2 }
"#;

#[test]
fn a_small_space_in_which_nothing_is_feasible_ends_as_it_does_without_workers() {
    let queue = Queue::default();
    let path = Path::new("/tmp/simulated.toml");
    let roots = host::Roots::default();
    let spec = tuner::spec::context(&roots).check(NOTHING_FEASIBLE.into(), path);
    let spec = spec.unwrap();
    let control = spec.space.default_configuration();
    let mut service = SimulatedService::new(1, Noise::default(), control, pooled_service);
    let local = tuner::experiment::run(&spec, &mut service, &mut |_: &LedgerEvent<'_>| ());
    let local = local.unwrap();
    assert!(local.evaluations.len() < 30, "nothing is left to ask");
    with_workers(2, &queue, |coordinator| {
        let id = coordinator.create(NOTHING_FEASIBLE, path, None).unwrap();
        let row = || coordinator.store().experiment(id).unwrap();
        let rests = || !matches!(row().state, State::Queued | State::Running);
        eventually(60, rests, || format!("{:?}", row().message));
        assert_eq!((row().state, row().message), (State::Done, None));
        let report = coordinator.export(id).unwrap();
        assert_eq!(report.finding, local.finding);
        // The numbers differ with the noise.
        let begin = |report: &tuner::report::Report| {
            let words = report.sentence.split(':').next();
            words.map(str::to_owned)
        };
        assert_eq!(begin(&report), begin(&local));
        assert_eq!(report.error, None);
    });
}

#[test]
fn a_queue_that_was_away_gets_what_it_missed() {
    let queue = Queue::default();
    queue.is_down.store(true, Ordering::Relaxed);
    with_workers(2, &queue, |coordinator| {
        let id = coordinator
            .create(
                &spec("random", 4, 2),
                Path::new("/tmp/simulated.json"),
                None,
            )
            .unwrap();
        let message = || {
            let row = coordinator.store().experiment(id).unwrap();
            row.message.unwrap_or_default()
        };
        let waits = || message().contains("waits for NATS: the queue is down");
        eventually(20, waits, message);
        queue.is_down.store(false, Ordering::Relaxed);
        wait_for(coordinator, id, State::Done);
        assert_eq!(message(), "");
        assert_eq!(coordinator.export(id).unwrap().evaluations.len(), 4);
    });
}

#[test]
fn an_evaluation_that_is_killed_ends_at_once_and_its_result_is_refused() {
    let queue = Queue::default();
    with_workers(0, &queue, |coordinator| {
        let id = coordinator
            .create(
                &spec("random", 4, 2),
                Path::new("/tmp/simulated.json"),
                None,
            )
            .unwrap();
        let order = order_of(&queue);
        let ticket = order.ticket;
        let claim = |worker: &str| claim(coordinator, &order, worker);
        let of_another_store = coordinator.answer(WorkerMessage::Claim {
            ticket,
            worker: "first".into(),
            made_ms: Some(1),
        });
        assert_eq!(of_another_store, Reply::Gone);
        let beat = |attempt: i64, worker: &str| {
            let (worker, blocks) = (worker.to_owned(), 0);
            coordinator.answer(WorkerMessage::Beat {
                ticket,
                attempt,
                worker,
                blocks,
            })
        };
        assert_eq!(claim("first"), Reply::Granted { attempt: 1 });
        assert_eq!(claim("second"), Reply::Later, "the first is heard of");
        assert_eq!(beat(1, "first"), Reply::GoOn);
        std::thread::sleep(LEASE + Duration::from_millis(100));
        assert_eq!(
            claim("second"),
            Reply::Granted { attempt: 2 },
            "the first is silent"
        );
        assert_eq!(beat(1, "first"), Reply::Stop);
        let bring = |attempt: i64| bring(coordinator, &order, attempt);
        assert_eq!(bring(1), Reply::Refused, "too late");
        coordinator.kill(id, ticket.number).unwrap();
        assert_eq!(beat(2, "second"), Reply::Stop);
        assert_eq!(bring(2), Reply::Refused);
        assert_eq!(claim("third"), Reply::Gone);
        let ended = coordinator.store().evaluation(id, ticket.number).unwrap();
        assert_eq!(ended.record.outcome, tuner::evaluation::Outcome::Killed);
        coordinator.stop(id).unwrap();
        wait_for(coordinator, id, State::Stopped);
        let rows = coordinator.store().evaluations(id, 1).unwrap();
        assert!(
            rows.iter().all(|row| !row.is_running),
            "nothing is left running"
        );
    });
}

/// Runs one more worker around `test`.
fn with_worker(
    coordinator: &Coordinator,
    queue: &Queue,
    name: &str,
    measure: fn(&WorkOrder) -> EvaluationResult,
    test: impl FnOnce(),
) {
    /// Ends the worker also where the test fails.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = End(&is_over);
        scope.spawn(|| work(coordinator, queue, name, measure, &is_over));
        test();
    });
}

/// The next order that comes.
fn order_of(queue: &Queue) -> WorkOrder {
    let next = || queue.orders.lock().unwrap().pop_front();
    found_within(20, || next().ok_or("no order came"))
}

#[test]
fn a_result_that_is_brought_again_was_taken() {
    let queue = Queue::default();
    with_workers(0, &queue, |coordinator| {
        coordinator
            .create(
                &spec("random", 4, 1),
                Path::new("/tmp/simulated.json"),
                None,
            )
            .unwrap();
        let order = order_of(&queue);
        claim(coordinator, &order, "w");
        let bring = |attempt: i64| bring(coordinator, &order, attempt);
        assert_eq!(bring(1), Reply::Accepted);
        assert_eq!(bring(1), Reply::Accepted, "the answer was lost");
        assert_eq!(bring(0), Reply::Refused);
        let counts = coordinator.workers().counts();
        assert_eq!((counts.accepted, counts.refused), (1, 1));
    });
}

#[test]
fn a_pause_waits_for_what_is_measured_only() {
    let queue = Queue::default();
    with_workers(0, &queue, |coordinator| {
        let id = coordinator
            .create(
                &spec("random", 6, 4),
                Path::new("/tmp/simulated.json"),
                None,
            )
            .unwrap();
        let first = order_of(&queue);
        std::thread::sleep(Duration::from_millis(100));
        assert!(queue.orders.lock().unwrap().is_empty(), "nobody is there");
        // Two workers, and one order more than they take.
        for name in ["a", "b"] {
            coordinator.answer(hello(name));
        }
        let orders = [first, order_of(&queue), order_of(&queue)];
        for order in &orders[..2] {
            claim(coordinator, order, "a");
        }
        coordinator.pause(id).unwrap();
        let bring = |order: &WorkOrder| bring(coordinator, order, 1);
        assert_eq!(bring(&orders[0]), Reply::Accepted);
        let record = |order: &WorkOrder| {
            let number = order.ticket.number;
            coordinator.store().evaluation(id, number).unwrap().record
        };
        let is_withdrawn = || record(&orders[2]).failure.is_some();
        eventually(20, is_withdrawn, || "it is still wanted");
        let state = coordinator.store().experiment(id).unwrap().state;
        assert_eq!(state, State::Running, "the second is measured");
        assert_eq!(bring(&orders[1]), Reply::Accepted);
        wait_for(coordinator, id, State::Paused);
        queue.orders.lock().unwrap().clear();
        coordinator.resume(id).unwrap();
        with_worker(coordinator, &queue, "w", simulated, || {
            wait_for(coordinator, id, State::Done);
        });
        let all = coordinator.export(id).unwrap().evaluations;
        let measured = all.iter().filter(|it| it.measurement.is_some());
        assert_eq!(measured.count(), 6, "{all:?}");
    });
}

#[test]
fn what_ends_with_its_experiment_is_measured_again_and_costs_nothing() {
    let queue = Queue::default();
    with_workers(0, &queue, |coordinator| {
        let id = coordinator
            .create(
                &spec("random", 4, 2),
                Path::new("/tmp/simulated.json"),
                None,
            )
            .unwrap();
        let asked = order_of(&queue).assignment.arm.configuration;
        coordinator.stop(id).unwrap();
        wait_for(coordinator, id, State::Stopped);
        let ended = coordinator.store().evaluation(id, 1).unwrap().record;
        assert_eq!(ended.failure, Some(tuner::report::Failure::Lost));
        assert_eq!(ended.reason.as_deref(), Some("the experiment ended"));
        queue.orders.lock().unwrap().clear();
        coordinator.resume(id).unwrap();
        with_worker(coordinator, &queue, "w", simulated, || {
            wait_for(coordinator, id, State::Done);
        });
        let all = coordinator.export(id).unwrap().evaluations;
        let measured = all.iter().filter(|it| it.measurement.is_some());
        assert_eq!(measured.clone().count(), 4, "{all:?}");
        assert_eq!(measured.filter(|it| it.configuration == asked).count(), 1);
    });
}

#[test]
fn a_host_that_fails_midway_costs_the_others_nothing() {
    fn slow(order: &WorkOrder) -> EvaluationResult {
        std::thread::sleep(Duration::from_millis(300));
        let host = Some("good".into());
        EvaluationResult {
            host,
            ..simulated(order)
        }
    }
    let queue = Queue::default();
    with_workers(0, &queue, |coordinator| {
        with_worker(coordinator, &queue, "good", slow, || {
            with_worker(coordinator, &queue, "bad", failing, || {
                let id = coordinator
                    .create(
                        &spec("random", 4, 2),
                        Path::new("/tmp/simulated.json"),
                        None,
                    )
                    .unwrap();
                let evaluations = || coordinator.store().evaluations(id, 1).unwrap();
                let is_of = |host: &str| {
                    let rows = evaluations();
                    let of_host = rows
                        .iter()
                        .filter(|it| it.record.host.as_deref() == Some(host));
                    of_host.count()
                };
                let are_enough = || {
                    let row = coordinator.store().experiment(id).unwrap();
                    assert_ne!(row.state, State::Failed, "{:?}", row.message);
                    is_of("good") >= 4
                };
                eventually(20, are_enough, || format!("{:?}", evaluations()));
                assert!(is_of("bad") >= 4, "{}", is_of("bad"));
                let shown = coordinator.store().experiments().unwrap();
                assert_eq!(shown[0].evaluations, 4, "those of the budget");
                coordinator.stop(id).unwrap();
                wait_for(coordinator, id, State::Stopped);
            });
        });
    });
}

#[test]
fn a_second_worker_of_a_name_is_refused_while_the_first_lives() {
    let queue = Queue::default();
    with_workers(0, &queue, |coordinator| {
        let is_active = || coordinator.is_active();
        eventually(20, is_active, || "it does not get the store");
        // What is in the way; empty where it is welcome.
        let greet = |boot_id: &str, started_ns| match coordinator
            .answer(hello_of("w", boot_id, started_ns))
        {
            Reply::Welcome { .. } => String::new(),
            Reply::Trouble(why) => why,
            reply => panic!("{reply:?}"),
        };
        assert_eq!(greet("a", 5), "");
        assert_eq!(greet("a", 5), "", "it is itself");
        assert_eq!(coordinator.workers().complaints(), Vec::<String>::new());
        let why = greet("b", 9);
        assert!(
            why.starts_with(
                "another worker named \"w\" is alive, on another host. If the other worker has just ended, wait"
            ),
            "{why}"
        );
        let complaint = &coordinator.workers().complaints()[0];
        assert!(complaint.contains("two workers are named \"w\""));
        assert_eq!(
            coordinator.workers().list()[0].complaint.as_ref(),
            Some(complaint)
        );
        assert_eq!(greet("a", 5), "");
        assert_eq!(coordinator.workers().complaints().len(), 1, "it stays");
        let id = coordinator
            .create(
                &spec("random", 4, 2),
                Path::new("/tmp/simulated.json"),
                None,
            )
            .unwrap();
        let message = || coordinator.store().experiment(id).unwrap().message;
        let is_said = || {
            let is_said = message().as_ref() == Some(complaint);
            assert_eq!(greet("a", 5), "");
            assert_ne!(greet("b", 9), "");
            is_said
        };
        eventually(20, is_said, || format!("{:?}", message()));
        coordinator.stop(id).unwrap();
        assert_eq!(greet("a", 7), "", "killed and started again on its host");
        let why = greet("a", 5);
        assert!(
            why.contains("is alive, started later on this host"),
            "{why}"
        );
        assert!(
            matches!(coordinator.answer(hello("w")), Reply::Welcome { .. }),
            "one that does not say who it is"
        );
        assert_eq!(greet("a", 7), "");
        // Without an id of its boot no host is the same as another.
        let unknown = |started_ns| coordinator.answer(hello_of("u", "", started_ns));
        assert!(matches!(unknown(1), Reply::Welcome { .. }));
        assert!(matches!(unknown(2), Reply::Trouble(_)));
        // Longer than the lease, and than the least that a name is kept.
        std::thread::sleep(Duration::from_millis(3100));
        assert_eq!(greet("b", 9), "", "the first is silent");
        let shown = coordinator.workers().list();
        let it = shown.iter().find(|it| it.name == "w").unwrap();
        assert_eq!(it.complaint, None);
        assert_ne!(greet("a", 7), "");
    });
}

#[test]
fn without_workers_an_experiment_for_them_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("slackline.db").display().to_string();
    let coordinator = Coordinator::new(Store::open(&Location::parse(&file)).unwrap(), dir.path());
    let refused = coordinator.create(
        &spec("random", 4, 2),
        Path::new("/tmp/simulated.json"),
        None,
    );
    assert!(refused.unwrap_err().to_string().contains("--workers"));
    let ticket = Ticket {
        experiment: 1,
        verification: 0,
        arm: 0,
        number: 1,
    };
    let reply = coordinator.answer(WorkerMessage::Claim {
        ticket,
        worker: "w".into(),
        made_ms: None,
    });
    assert!(
        matches!(reply, Reply::Trouble(_)),
        "it does not have the store: {reply:?}"
    );
}
