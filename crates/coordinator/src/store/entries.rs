//! What happened in an experiment by itself, for its timeline. What people did is in the audit
//! log.

use tuner::continuous::HistoryEntry;
use tuner::spec::ExperimentMode;

use super::database::Database;
use super::row::find;
use super::to_json;
use crate::error::Error;

/// Writes an entry behind those that there are.
pub(super) fn insert(database: &mut Database, id: i64, entry: &HistoryEntry) -> Result<(), Error> {
    let written = database.execute(
        "INSERT INTO entries (experiment, number, entry) \
         SELECT $1, COALESCE(MAX(number), 0) + 1, $2 FROM entries WHERE experiment = $3",
        &[id.into(), to_json(entry)?.into(), id.into()],
    );
    written.map(drop)
}

/// Writes down what became of an experiment that ends. A continuous one has entries of its own.
pub(super) fn happened(
    database: &mut Database,
    id: i64,
    kind: &str,
    text: &str,
) -> Result<(), Error> {
    if find(database, id)?.spec.mode == ExperimentMode::Continuous {
        return Ok(());
    }
    let entry = HistoryEntry {
        at: jiff::Timestamp::now(),
        kind: kind.to_owned(),
        text: text.to_owned(),
    };
    insert(database, id, &entry)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bayes_opt::Configuration;
    use tuner::ledger::PlannedArm;

    use crate::coordinator::Coordinator;
    use crate::store::{Location, State, Store};

    #[test]
    fn an_experiment_says_when_its_verification_began_and_when_it_ended() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store.db");
        let store = Store::open(&Location::parse(store.to_str().unwrap())).unwrap();
        let coordinator = Coordinator::new(store, dir.path());
        let text = r#"
parameters = [{ name = "x", type = "int", low = 0, high = 9, default = 5 }]
target = { start = ["true"] }
workload = { command = ["true"], json = { latency_p99_us = "us" } }
objective = { metric = "latency_p99_us" }
"#;
        let path = dir.path().join("spec.toml");
        let id = coordinator.create(text, &path, None).unwrap();
        let store = coordinator.store();
        let arm = |name: &str| PlannedArm {
            name: name.into(),
            is_candidate: true,
            configuration: Configuration::default(),
            variables: BTreeMap::new(),
            capacity_of: None,
        };
        store
            .set_plan(id, &[arm("candidate 1"), arm("candidate 2")])
            .unwrap();
        let mut report = store.experiment(id).unwrap().report;
        report.sentence = "It is better.".into();
        store.session_ended(id, State::Done, None, &report).unwrap();
        store
            .session_ended(id, State::Paused, Some("waits"), &report)
            .unwrap();
        store
            .session_ended(id, State::Failed, Some("no disk"), &report)
            .unwrap();
        let entries = store.entries(id, 9).unwrap().into_iter().rev();
        let said: Vec<_> = entries.map(|entry| (entry.kind, entry.text)).collect();
        let expected = [
            (
                "verification",
                "The verification of candidate 1, candidate 2 begins.",
            ),
            ("done", "It is better."),
            ("failed", "No disk."),
        ];
        assert_eq!(
            said,
            expected.map(|(kind, text)| (kind.to_owned(), text.to_owned()))
        );
    }
}
