//! Tests of what is found on the host before a round.

use std::collections::BTreeMap;

use bayes_opt::Value;
use host::Knob;
use tuner::continuous::{HistoryEntry, Promoted};

use super::*;
use crate::store::{Location, Store};

const SPEC: &str = r#"
name = "knob"
mode = "continuous"
parameters = [{ name = "x", type = "int", low = 20, high = 50, file = "KNOB" }]
objective = { metric = "latency_p99_us" }
evaluation = { warm_up_s = 0, block_s = 0.05, blocks = 2 }
continuous = { control_share = 0.5, seasons = 1, gain_seasons = 1 }

[target]
start = ["sleep", "1000"]
ready = { command = ["true"], timeout_s = 1 }

[workload]
command = ["echo", '{"n": 1000, "us": 9}']
json = { requests = "n", latency_p99_us = "us" }
"#;

/// Keeps that a search has promoted this configuration, and how the host was just after that.
pub(super) fn keep_promoted(store: &Store, id: i64, configuration: Configuration, host: HostThen) {
    let now = Timestamp::now();
    let promotion = Promotion {
        is_complete: true,
        done: Changes {
            changed: vec!["x = 20".into()],
            ..Changes::default()
        },
        left: Vec::new(),
        at: now,
    };
    let state = Known {
        promoted: Some(Promoted {
            configuration,
            gain: -0.1,
            since: now,
            host: Some(host),
        }),
        search_reason: None,
        ..Known::new(now)
    };
    store
        .keep_continuous(id, &state, None, &[], Some(Some(&promotion)))
        .unwrap();
}

/// `x = 20` was promoted on that boot, and the knob reads 50. What happens until the rounds can
/// be measured, where the knob is put right as soon as `then` says so.
fn changed_since(
    boot_id: &str,
    then: impl Fn(&[HistoryEntry], &std::path::Path),
) -> Vec<HistoryEntry> {
    let dir = tempfile::tempdir().unwrap();
    let knob = dir.path().join("knob");
    std::fs::write(&knob, "50\n").unwrap();
    let text = SPEC.replace("KNOB", knob.to_str().unwrap());
    let location = Location::parse(dir.path().join("store.db").to_str().unwrap());
    let store = Store::open(&location).unwrap();
    let coordinator = Coordinator::new(store, &dir.path().join("state"));
    let id = coordinator
        .create(&text, &dir.path().join("spec.toml"), None)
        .unwrap();
    let configuration = Configuration([("x".to_owned(), Value::Int(20))].into());
    let host = HostThen {
        boot_id: boot_id.to_owned(),
        knobs: [(Knob::File(knob.clone()).to_string(), "20".to_owned())].into(),
        files: BTreeMap::new(),
    };
    keep_promoted(&coordinator.store, id, configuration, host);
    let end = Instant::now() + Duration::from_secs(20);
    std::thread::scope(|scope| {
        scope.spawn(|| coordinator.run(&|_| ()).unwrap());
        loop {
            let entries = coordinator.store.entries(id, 9).unwrap();
            let rounds = coordinator.store.rounds(id).unwrap();
            then(&entries, &knob);
            let is_measured = |round: &Round| matches!(round.seen, Seen::Measured(_));
            let is_over = rounds.last().is_some_and(is_measured);
            if is_over || Instant::now() > end {
                coordinator.end();
                assert!(is_over, "{entries:?} {rounds:?}");
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    assert_eq!(std::fs::read_to_string(&knob).unwrap().trim(), "20");
    let kept = coordinator.store.continuous(id).unwrap().unwrap();
    let promoted = kept.promoted.unwrap();
    let current_run = host::boot_id(&host::Roots::default());
    assert_eq!(promoted.host.unwrap().boot_id, current_run);
    assert_eq!(kept.promotions, 0, "nothing else was promoted");
    coordinator.store.entries(id, 9).unwrap()
}

#[test]
fn a_knob_that_a_boot_has_reset_is_put_back() {
    let entries = changed_since("an earlier one", |_, _| ());
    let texts: Vec<&str> = entries.iter().map(|entry| entry.text.as_str()).collect();
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(texts[0].starts_with("The host has been started again: "));
    assert!(
        texts[0].ends_with(" is 50, not 20. Slackline has put it back."),
        "{texts:?}"
    );
}

#[test]
fn a_knob_that_somebody_else_has_changed_holds_the_rounds() {
    let current_run = host::boot_id(&host::Roots::default());
    let is_right = std::cell::Cell::new(false);
    let entries = changed_since(&current_run, |entries, knob| {
        if !entries.is_empty() && !is_right.replace(true) {
            // At once: a file that is written is empty for a moment.
            let next = knob.with_extension("next");
            std::fs::write(&next, "20\n").unwrap();
            std::fs::rename(&next, knob).unwrap();
        }
    });
    let kinds: Vec<&str> = entries.iter().map(|entry| entry.kind.as_str()).collect();
    assert_eq!(kinds, ["measured", "changed"], "{entries:?}");
    assert!(
        entries[1]
            .text
            .contains(" is 50, not 20. Restore it, or roll back")
    );
}

#[test]
fn a_clock_that_is_set_back_ends_a_wait_and_one_that_goes_on_does_not() {
    let start: Timestamp = "2026-03-02T12:00:00Z".parse().unwrap();
    let later = |s: i64| start.checked_add(SignedDuration::from_secs(s)).unwrap();
    let monotonic = Instant::now();
    let waiting = Waiting::begin(later(60), start, monotonic);
    let left =
        |clock_s: i64, s: u64| waiting.left(later(clock_s), monotonic + Duration::from_secs(s));
    assert_eq!(left(10, 10), Some(Duration::from_secs(50)));
    assert_eq!(left(60, 60), None);
    // Slewed, or set forward.
    assert_eq!(left(9, 10), Some(Duration::from_secs(50)));
    assert_eq!(left(3600, 10), None);
    // Set back by three hours: at once, and not in three hours.
    assert_eq!(left(10 - 3 * 3600, 10), None);
    // The end comes by the monotonic clock.
    assert_eq!(left(59, 60), None);
}
