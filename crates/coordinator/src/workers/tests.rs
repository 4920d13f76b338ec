//! Tests of which workers are there and what they give back.

use tuner::protocol::{Instance, Reply};

use super::*;

#[test]
fn a_class_is_its_labels_and_nothing_else() {
    let of = |pairs: &[(&str, &str)]| {
        let pairs = pairs
            .iter()
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()));
        class_of(&pairs.collect())
    };
    assert_eq!(of(&[("a", "1"), ("b", "2")]), of(&[("b", "2"), ("a", "1")]));
    assert_ne!(of(&[("a", "1")]), of(&[("a", "2")]));
    assert_ne!(of(&[("a", "1b")]), of(&[("a1", "b")]));
    assert_eq!(of(&[]).len(), 16);
}

fn ticket(experiment: i64, number: usize) -> Ticket {
    Ticket {
        experiment,
        verification: 0,
        arm: 0,
        number,
    }
}

fn workers_named(names: &[&str], lease: Duration) -> Workers {
    let mut workers = Workers::new();
    workers.set_lease(lease);
    for name in names {
        greet(&workers, name, 1);
    }
    workers
}

fn greet(workers: &Workers, name: &str, started_ns: u64) {
    let welcome = workers.welcome(Hello {
        name: name.into(),
        labels: BTreeMap::new(),
        version: String::new(),
        instance: Some(Instance {
            boot_id: "a".into(),
            started_ns,
        }),
    });
    assert!(matches!(welcome, Reply::Welcome { .. }));
}

fn give_back(workers: &Workers, worker: &str, times: usize) {
    for _ in 0..times {
        workers.heard_of(ticket(1, 1), 1, worker.into());
        workers.release(ticket(1, 1), 1, Some("no".into()));
    }
}

#[test]
fn none_can_measure_only_where_all_have_long_said_so_and_nobody_measures() {
    let lease = Duration::from_millis(100);
    let labels = BTreeMap::new();
    let workers = workers_named(&["bad", "good"], lease);
    let none_can = || workers.given_back_by_all(1, &labels);
    give_back(&workers, "bad", 3);
    // Longer than it takes to be no more thought of as here.
    std::thread::sleep(lease * GIVEN_BACK_LEASES);
    give_back(&workers, "bad", 1);
    assert_eq!(none_can(), None, "the other is cut off, or says nothing");
    give_back(&workers, "good", 3);
    assert_eq!(none_can(), None, "that one has just begun to");
    std::thread::sleep(lease * GIVEN_BACK_LEASES);
    give_back(&workers, "good", 1);
    workers.heard_of(ticket(1, 2), 1, "unknown since the start".into());
    assert_eq!(none_can(), None, "somebody measures it");
    workers.forget(ticket(1, 2));
    assert_eq!(none_can().as_deref(), Some("\"good\": no"));
    assert_eq!(workers.able_with(1, &labels), Vec::<String>::new());
    greet(&workers, "good", 2);
    assert_eq!(none_can(), None, "it was started again");
    give_back(&workers, "good", 3);
    std::thread::sleep(lease * GIVEN_BACK_LEASES);
    give_back(&workers, "good", 1);
    assert!(none_can().is_some());
    workers.measures(1, "good");
    assert_eq!(none_can(), None, "a block of it was measured");
    assert_eq!(workers.able_with(1, &labels), ["good"]);
}

#[test]
fn what_is_wrong_is_said_once_and_of_its_experiment_only() {
    let workers = workers_named(&["w"], Duration::from_secs(30));
    let give_back = |experiment, why: &str| {
        workers.heard_of(ticket(experiment, 1), 1, "w".into());
        workers.release(ticket(experiment, 1), 1, Some(why.into()));
    };
    let said = |experiment: i64, why: &str| {
        format!("worker \"w\" cannot measure experiment {experiment}: {why}")
    };
    give_back(1, "no control");
    give_back(2, "no file");
    let with = |id| workers.complaint_with(id, &BTreeMap::new());
    assert_eq!(with(1), Some(said(1, "no control")));
    assert_eq!(with(2), Some(said(2, "no file")));
    assert_eq!(with(3), None);
    assert_eq!(workers.complaints(), [said(2, "no file")], "the last");
    assert_eq!(workers.new_complaints().len(), 2);
    give_back(1, "no control");
    give_back(2, "another");
    assert_eq!(workers.new_complaints(), [said(2, "another")]);
}
