//! What becomes of templated files that a promotion wrote, where files and templates do not stay as
//! they were.

use std::path::PathBuf;
use std::time::Instant;

use bayes_opt::Value;
use tempfile::TempDir;
use tuner::continuous::HistoryEntry;

use super::tests::keep_promoted;
use super::*;
use crate::store::{Location, Store};

const SPEC: &str = r#"
name = "file"
mode = "continuous"
parameters = [
  { name = "x", type = "int", low = 20, high = 50, default = 50 },
  { name = "y", type = "int", low = 20, high = 50, file = "DIR/knob" },
]
objective = { metric = "latency_p99_us" }
evaluation = { warm_up_s = 0, block_s = 0.05, blocks = 2 }
continuous = { control_share = 0.5, seasons = 1, gain_seasons = 1 }

[target]
files = [{ template = "service.in", path = "DIR/service.conf" }]
apply = [{ command = ["cp", "DIR/service.conf", "DIR/live"] }]

[workload]
command = ["echo", '{"n": 1000, "us": 9}']
json = { requests = "n", latency_p99_us = "us" }
"#;

/// A service that runs by itself, on which `x = 20` and `y = 20` were promoted.
struct Service {
    dir: TempDir,
    coordinator: Coordinator,
    id: i64,
}

/// Ends it, also where an assertion fails: its thread is waited for.
struct Ends<'a>(&'a Coordinator);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Service {
    /// That was on this boot, or on the one of that number.
    fn promoted(boot_id: Option<&str>) -> Self {
        Self::promoted_over(Some(b"x = 50\n"), SPEC, boot_id)
    }

    /// The service's file held that before, or was not there.
    fn promoted_over(before: Option<&[u8]>, spec: &str, boot_id: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("knob"), "50\n").unwrap();
        if let Some(before) = before {
            std::fs::write(path("service.conf"), before).unwrap();
        }
        std::fs::write(path("service.in"), "x = {x}\n").unwrap();
        let text = spec.replace("DIR", dir.path().to_str().unwrap());
        let store = Store::open(&Location::parse(path("store.db").to_str().unwrap())).unwrap();
        let coordinator = Coordinator::new(store, &path("state"));
        let id = coordinator.create(&text, &path("spec.toml"), None).unwrap();
        let row = coordinator.store.experiment(id).unwrap();
        let spec = coordinator.checked(&row).unwrap();
        let configuration = ["x", "y"].map(|name| (name.to_owned(), Value::Int(20)));
        let configuration = Configuration(configuration.into());
        let mut live = Live::new(&spec, &path("state"), Interrupt::default()).unwrap();
        live.promote(&configuration, &row.served()).unwrap();
        live.restore().unwrap();
        let mut host = live.host(&configuration);
        if let Some(boot_id) = boot_id {
            host.boot_id = boot_id.to_owned();
        }
        drop(live);
        keep_promoted(&coordinator.store, id, configuration, host);
        let service = Self {
            dir,
            coordinator,
            id,
        };
        assert_eq!(service.read("service.conf"), "x = 20\n");
        service
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// At once: a file that is written is empty for a moment.
    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path("next"), text).unwrap();
        std::fs::rename(self.path("next"), self.path(name)).unwrap();
    }

    fn known(&self) -> Known {
        let kept = self.coordinator.store.continuous(self.id).unwrap();
        kept.unwrap()
    }

    fn keep(&self, known: &Known) {
        let store = &self.coordinator.store;
        store
            .keep_continuous(self.id, known, None, &[], None)
            .unwrap();
    }

    /// Oldest first.
    fn entries(&self) -> Vec<HistoryEntry> {
        let mut entries = self.coordinator.store.entries(self.id, 99).unwrap();
        entries.reverse();
        entries
    }

    fn rounds(&self) -> Vec<Round> {
        self.coordinator.store.rounds(self.id).unwrap()
    }

    /// Runs the coordinator until that is so.
    fn run_until(&self, is_so: impl Fn(&Self) -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        let is_over = std::thread::scope(|scope| {
            let _ends = Ends(&self.coordinator);
            scope.spawn(|| self.coordinator.run(&|_| ()).unwrap());
            loop {
                let is_over = is_so(self);
                if is_over || Instant::now() > end {
                    break is_over;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        assert!(is_over, "{:?} {:?}", self.entries(), self.rounds());
    }

    /// Three rounds are held for this, and told of once; nothing that was found there is written
    /// over. Where it is put right, the next one is measured.
    fn is_held_for(&self, name: &str, what: &str) {
        let (found, knob) = (std::fs::read(self.path(name)).ok(), self.read("knob"));
        let right = match name {
            "service.in" => "x = {x}\n",
            _ => "x = 20\n",
        };
        let is_held = std::cell::Cell::new(false);
        self.run_until(|service| {
            let rounds = service.rounds();
            if rounds.len() >= 3 && !is_held.replace(true) {
                let is_externally_modified =
                    |round: &Round| matches!(round.seen, Seen::ExternallyModified(_));
                assert!(rounds.iter().all(is_externally_modified), "{rounds:?}");
                assert_eq!(service.known().doing().to_string(), "held");
                assert_eq!(std::fs::read(service.path(name)).ok(), found);
                assert_eq!(service.read("knob"), knob);
                service.write(name, right);
            }
            let last = rounds.last();
            last.is_some_and(|round| matches!(round.seen, Seen::Measured(_)))
        });
        assert!(is_held.get());
        let entries = self.entries();
        let told = entries.iter().filter(|entry| entry.text.contains(what));
        assert_eq!(told.count(), 1, "{entries:?}");
        assert_eq!(entries[0].kind, "changed", "{entries:?}");
        assert_eq!(self.known().externally_modified, None);
        assert_eq!(self.read("service.conf"), "x = 20\n");
    }
}

#[test]
fn a_file_that_somebody_else_has_changed_holds_the_rounds() {
    let service = Service::promoted(None);
    service.write("service.conf", "x = 33 # deployed\n");
    service.is_held_for(
        "service.conf",
        "/service.conf has other contents than when promoted. Restore it, or roll back",
    );
}

#[test]
fn a_file_that_is_gone_holds_the_rounds() {
    let service = Service::promoted(None);
    std::fs::remove_file(service.path("service.conf")).unwrap();
    service.is_held_for("service.conf", "/service.conf cannot be read any more");
}

/// What was promoted stays what it was: it is not what the template would give now.
#[test]
fn an_edited_template_holds_the_rounds() {
    let service = Service::promoted(None);
    service.write("service.in", "x = {x}\nmore = true\n");
    let what = "/service.in has other contents than when promoted";
    service.is_held_for("service.in", what);
}

/// What puts the knobs back would write over the file.
#[test]
fn a_boot_is_no_reason_to_write_over_a_file_of_somebody_else() {
    let service = Service::promoted(Some("an earlier one"));
    service.write("knob", "50\n");
    service.write("service.conf", "x = 33 # deployed\n");
    let what = "/service.conf has other contents than when promoted, ";
    service.is_held_for("service.conf", what);
    assert_eq!(service.read("knob"), "20\n");
}

/// Before the first promotion nothing is compared with an earlier round, and both sides of a round
/// were measured with an edit that happened in it.
#[test]
fn an_edit_during_a_round_before_the_first_promotion_is_told_and_not_measured() {
    let load = r#"command = ["echo", '{"n": 1000, "us": 9}']"#;
    let edits = r##"command = ["sh", "-c", """rm DIR/edit 2> DIR/out && echo '# edited' >> DIR/service.in; echo '{"n": 1000, "us": 9}'"""]"##;
    let spec = SPEC.replace(load, edits);
    assert_ne!(spec, SPEC);
    let service = Service::promoted_over(Some(b"x = 50\n"), &spec, None);
    let known = Known {
        promoted: None,
        ..service.known()
    };
    let store = &service.coordinator.store;
    store
        .keep_continuous(service.id, &known, None, &[], Some(None))
        .unwrap();
    service.write("edit", "");
    service.run_until(|service| service.rounds().len() >= 2);
    let rounds = service.rounds();
    let what = "/service.in has other contents than when the round began";
    assert!(
        matches!(&rounds[0].seen, Seen::Unmeasured(why) if why.ends_with(what)),
        "{rounds:?}"
    );
    assert!(matches!(rounds[1].seen, Seen::Measured(_)), "{rounds:?}");
    let entries = service.entries();
    let kinds: Vec<&str> = entries.iter().map(|entry| entry.kind.as_str()).collect();
    assert_eq!(kinds, ["unmeasured", "measured"], "{entries:?}");
}

impl Service {
    /// A rollback has begun, on this service.
    fn is_to_be_rolled_back(&self) {
        let known = Known {
            pending_change: Some(Acting::RollBack("a constraint is broken".into())),
            ..self.known()
        };
        self.keep(&known);
    }

    /// What was said of its end.
    fn rolled_back(&self) -> String {
        self.run_until(|service| service.known().pending_change.is_none());
        let known = self.known();
        let known_left = known.left.is_empty();
        assert_eq!((known.rollbacks, known.promoted), (1, None));
        assert_eq!(self.read("knob"), "50\n");
        assert_eq!(self.read("live"), self.read("service.conf"));
        let row = self.coordinator.store.experiment(self.id).unwrap();
        assert!(row.in_force().is_none());
        assert_eq!(row.promotion.is_none(), known_left);
        let said = self.entries().into_iter();
        let mut said = said.filter(|entry| {
            entry
                .text
                .starts_with("The control's configuration is in force again")
        });
        said.next().unwrap().text
    }
}

impl Service {
    /// As after a promotion by an earlier Slackline, which did not keep what files held before.
    fn forgets_what_was_before(&self) {
        let text = self.read("state/control.json");
        let text = text.replace("\"before\":\"x = 50\\n\",", "");
        assert!(!text.contains("before"), "{text}");
        self.write("state/control.json", &text);
    }
}

#[test]
fn a_rollback_without_its_template_has_what_was_kept_at_the_promotion() {
    for edit in [None, Some("x = {x}\n{nope}\n")] {
        let service = Service::promoted(None);
        service.forgets_what_was_before();
        service.is_to_be_rolled_back();
        match edit {
            None => std::fs::remove_file(service.path("service.in")).unwrap(),
            Some(edit) => service.write("service.in", edit),
        }
        let said = service.rolled_back();
        let why =
            "/service.conf with the control's values, as kept at the promotion (the template /";
        assert!(said.contains(why), "{said}");
        assert_eq!(service.read("service.conf"), "x = 50\n");
        assert!(service.known().left.is_empty());
    }
}

/// An edited template, or one that is gone, changes nothing of that.
#[test]
fn a_rollback_restores_what_was_there_before_the_promotion() {
    for edit in [None, Some("x = {x}\nmore = true\n")] {
        let service = Service::promoted(None);
        service.is_to_be_rolled_back();
        match edit {
            None => std::fs::remove_file(service.path("service.in")).unwrap(),
            Some(edit) => service.write("service.in", edit),
        }
        let said = service.rolled_back();
        assert!(!said.contains("template"), "{said}");
        assert_eq!(service.read("service.conf"), "x = 50\n");
        // The next promotion keeps anew what is there then.
        let kept = service.read("state/control.json");
        assert!(!kept.contains("before"), "{kept}");
    }
}

/// The copy may have been removed.
#[test]
fn a_rollback_without_its_template_and_without_a_copy_does_the_rest_and_says_what_is_left() {
    let service = Service::promoted(None);
    service.is_to_be_rolled_back();
    std::fs::remove_file(service.path("service.in")).unwrap();
    std::fs::remove_file(service.path("state/control.json")).unwrap();
    let said = service.rolled_back();
    assert!(said.contains(". NOT RESTORED: /"), "{said}");
    assert_eq!(service.read("service.conf"), "x = 20\n");
    let known = service.known();
    assert!(
        known.left[0].ends_with("and no copy of the control's was kept)"),
        "{:?}",
        known.left
    );
    let moment = service.coordinator.store.moment(service.id, 0).unwrap();
    let view = service.coordinator.continuous(&moment).unwrap().unwrap();
    let line = "nothing is promoted; the rollback could not restore: /";
    assert!(view.lines[0].starts_with(line), "{:?}", view.lines);
}

/// What somebody else had put there is kept, and the history says where.
#[test]
fn a_rollback_says_where_what_it_wrote_over_is_kept() {
    let service = Service::promoted(None);
    service.is_to_be_rolled_back();
    service.write("service.conf", "x = 33 # deployed\n");
    let said = service.rolled_back();
    let (_, kept) = said
        .split_once("service.conf since the promotion: their version is in ")
        .expect(&said);
    let kept = std::fs::read_to_string(kept.trim_end_matches('.')).unwrap();
    assert_eq!(kept, "x = 33 # deployed\n");
}

#[test]
fn a_rollback_by_hand_needs_no_template_either() {
    for is_kept in [true, false] {
        let service = Service::promoted(None);
        let (coordinator, id) = (&service.coordinator, service.id);
        coordinator.pause(id).unwrap();
        std::fs::remove_file(service.path("service.in")).unwrap();
        if !is_kept {
            std::fs::remove_file(service.path("state/control.json")).unwrap();
        }
        service.run_until(|_| coordinator.is_active());
        let done = coordinator.roll_back(id).map_err(|error| error.to_string());
        let changed = done.unwrap();
        assert_eq!(changed.left.is_empty(), is_kept, "{changed:?}");
        let conf = if is_kept { "x = 50\n" } else { "x = 20\n" };
        assert_eq!(service.read("service.conf"), conf);
        assert_eq!(service.read("knob"), "50\n");
        assert_eq!(service.known().promoted, None);
        assert_eq!(service.known().left.is_empty(), is_kept);
        let rollbacks = || {
            let entries = service.entries().into_iter();
            entries.filter(|entry| entry.kind == "rollback").count()
        };
        assert_eq!((rollbacks(), service.known().rollbacks), (1, 1));
        if is_kept {
            // Somebody who asks twice, or whose request was under way, rolls nothing back twice.
            let again = coordinator.roll_back(id).unwrap_err().to_string();
            assert!(again.contains("there is nothing to roll back"), "{again}");
            let row = coordinator.store.experiment(id).unwrap();
            coordinator.tell_of(&row, &Changed::default()).unwrap();
            assert_eq!((rollbacks(), service.known().rollbacks), (1, 1));
        } else {
            // Only the rest is tried again, and it is no second rollback.
            service.write("service.in", "x = {x}\n");
            service.write("knob", "33\n");
            let changed = coordinator.roll_back(id).unwrap();
            assert!(changed.left.is_empty(), "{changed:?}");
            assert_eq!(service.read("service.conf"), "x = 50\n");
            assert_eq!(service.read("knob"), "33\n");
            assert_eq!(service.known().rollbacks, 1);
            assert!(service.known().left.is_empty());
            let row = coordinator.store.experiment(id).unwrap();
            assert_eq!(row.promotion, None);
        }
    }
}

/// Two who ask at one moment.
#[test]
fn a_rollback_that_is_asked_for_twice_at_once_happens_once() {
    let service = Service::promoted(None);
    let (coordinator, id) = (&service.coordinator, service.id);
    coordinator.pause(id).unwrap();
    service.run_until(|_| coordinator.is_active());
    let done = std::thread::scope(|scope| {
        let asked = [(); 4].map(|()| scope.spawn(|| coordinator.roll_back(id).is_ok()));
        let done = asked.map(|it| usize::from(it.join().unwrap()));
        done.into_iter().sum::<usize>()
    });
    assert_eq!((done, service.known().rollbacks), (1, 1));
    let entries = service.entries();
    let told = entries.iter().filter(|it| it.kind == "rollback");
    assert_eq!(told.count(), 1, "{entries:?}");
}

/// A knob that is gone keeps nothing else from being rolled back, and comes back with the next
/// rollback.
#[test]
fn a_rollback_does_all_but_what_is_gone_and_a_second_one_does_the_rest() {
    let service = Service::promoted(None);
    let (coordinator, id) = (&service.coordinator, service.id);
    coordinator.pause(id).unwrap();
    service.run_until(|_| coordinator.is_active());
    std::fs::remove_file(service.path("knob")).unwrap();
    let changed = coordinator.roll_back(id).unwrap();
    let knob = service.path("knob").display().to_string();
    assert_eq!(changed.left.len(), 1, "{changed:?}");
    assert_eq!(changed.left[0].subject, knob);
    assert_eq!(service.read("service.conf"), "x = 50\n");
    assert_eq!(service.read("live"), "x = 50\n");
    let row = coordinator.store.experiment(id).unwrap();
    assert!(row.in_force().is_none());
    assert_eq!(row.promotion.unwrap().left, [knob]);
    service.write("knob", "20\n");
    let changed = coordinator.roll_back(id).unwrap();
    assert!(changed.left.is_empty(), "{changed:?}");
    assert_eq!(service.read("knob"), "50\n");
    assert_eq!(coordinator.store.experiment(id).unwrap().promotion, None);
}

impl Service {
    /// By hand, and nothing is left.
    fn is_rolled_back_by_hand(&self) -> Vec<String> {
        self.coordinator.pause(self.id).unwrap();
        self.run_until(|service| service.coordinator.is_active());
        let changed = self.coordinator.roll_back(self.id).unwrap();
        assert!(changed.left.is_empty(), "{changed:?}");
        assert_eq!(self.read("knob"), "50\n");
        changed.done.texts()
    }
}

/// Nothing is promoted any more, and the message does not say so.
#[test]
fn the_message_after_a_rollback_by_hand_follows_what_is_in_force() {
    for (state, before, after) in [
        (
            State::Paused,
            "paused; what was promoted stays in force, and nothing watches it",
            ROLLED_BACK,
        ),
        (
            State::Stopped,
            "stopped; what was promoted stays in force, and nothing watches it",
            "stopped; a user has rolled it back since: resume the experiment to search and promote again",
        ),
        (State::Failed, "no disk", "no disk"),
    ] {
        let service = Service::promoted(None);
        let (store, id) = (&service.coordinator.store, service.id);
        let at_rest = |_: &_| Ok((state, None, Some(before.to_owned())));
        store.transition(id, at_rest).unwrap();
        service.run_until(|service| service.coordinator.is_active());
        service.coordinator.roll_back(id).unwrap();
        let row = store.experiment(id).unwrap();
        assert_eq!(row.message.as_deref(), Some(after));
    }
}

#[test]
fn a_rollback_restores_what_is_not_text() {
    let before = b"x = 50 # caf\xe9\n";
    let service = Service::promoted_over(Some(before), SPEC, None);
    service.is_rolled_back_by_hand();
    let now = std::fs::read(service.path("service.conf")).unwrap();
    assert_eq!(now, before);
    assert_eq!(std::fs::read(service.path("live")).unwrap(), before);
}

/// The service is told of its absence.
#[test]
fn a_rollback_removes_a_file_that_was_not_there_before() {
    let apply = r#"command = ["sh", "-c", "rm -f DIR/live; ! test -e DIR/service.conf || cp DIR/service.conf DIR/live"]"#;
    let spec = SPEC.replace(r#"command = ["cp", "DIR/service.conf", "DIR/live"]"#, apply);
    let service = Service::promoted_over(None, &spec, None);
    assert_eq!(service.read("live"), "x = 20\n");
    let conf = service.path("service.conf").display().to_string();
    let done = service.is_rolled_back_by_hand();
    let removed = format!("removed {conf}, which did not exist before the promotion");
    assert!(done.contains(&removed), "{done:?}");
    assert!(!service.path("service.conf").exists());
    assert!(!service.path("live").exists());
}

/// The rest is rolled back nevertheless, and nothing is left that could never be done.
#[test]
fn a_rollback_writes_the_controls_file_where_the_service_refuses_to_be_without() {
    let service = Service::promoted_over(None, SPEC, None);
    let done = service.is_rolled_back_by_hand();
    let why = "/service.conf with the control's values (it did not exist before the promotion, but";
    assert!(done.iter().any(|it| it.contains(why)), "{done:?}");
    assert_eq!(service.read("service.conf"), "x = 50\n");
    assert_eq!(service.read("live"), "x = 50\n");
}

/// Of an experiment that is gone nobody could roll back the rest.
#[test]
fn what_a_rollback_has_left_is_neither_deleted_nor_written_over() {
    let service = Service::promoted(None);
    let (coordinator, id) = (&service.coordinator, service.id);
    coordinator.pause(id).unwrap();
    let spec = SPEC.replace("DIR", service.dir.path().to_str().unwrap());
    let create = |spec: &str| coordinator.create(spec, &service.path("spec.toml"), None);
    let same = create(&spec).unwrap();
    let other_knob = service.path("other").display().to_string();
    service.write("other", "50\n");
    let knob = service.path("knob").display().to_string();
    let other = spec
        .replace(&knob, &other_knob)
        .replace("/service.conf\" }", "/other.conf\" }");
    let other = create(&other).unwrap();
    service.run_until(|_| coordinator.is_active());
    std::fs::remove_file(service.path("knob")).unwrap();
    coordinator.roll_back(id).unwrap();
    let refused = coordinator.delete(id).unwrap_err();
    assert!(matches!(refused, Error::Conflict(_)), "{refused:?}");
    let why = refused.to_string();
    assert!(why.contains(&knob), "{why}");
    let way = "roll back the rest first, or forget it";
    assert!(why.ends_with(way), "{why}");
    service.write("knob", "20\n");
    let barred = coordinator.bars_promotion(same).unwrap().unwrap();
    let why = format!("the rollback of experiment {id} could not restore {knob}");
    assert!(barred.starts_with(&why), "{barred}");
    // What it does not touch it may promote.
    assert_eq!(coordinator.bars_promotion(other).unwrap(), None);
    assert_eq!(coordinator.bars_promotion(id).unwrap(), None);
    coordinator.roll_back(id).unwrap();
    assert_eq!(coordinator.bars_promotion(same).unwrap(), None);
    coordinator.delete(id).unwrap();
}

#[test]
fn what_a_rollback_has_left_can_be_forgotten() {
    let service = Service::promoted(None);
    let (coordinator, id) = (&service.coordinator, service.id);
    coordinator.pause(id).unwrap();
    service.run_until(|_| coordinator.is_active());
    std::fs::remove_file(service.path("knob")).unwrap();
    coordinator.roll_back(id).unwrap();
    let refused = coordinator.resume(id).unwrap_err().to_string();
    assert!(refused.contains("roll back the rest first"), "{refused}");
    let left = coordinator.forget_rest(id).unwrap();
    let knob = service.path("knob").display().to_string();
    assert!(left.len() == 1 && left[0].contains(&knob), "{left:?}");
    assert!(service.known().left.is_empty());
    let entries = coordinator.store.entries(id, 1).unwrap();
    assert_eq!(entries[0].kind, "forgotten");
    assert!(entries[0].text.contains(&knob), "{entries:?}");
    assert!(coordinator.forget_rest(id).is_err());
    coordinator.delete(id).unwrap();
}

impl Service {
    /// Makes a search due, with no round before it for an hour.
    fn search_is_due(&self) {
        let now = Timestamp::now();
        let known = Known {
            search_reason: Some("the workload changed".into()),
            next_round: now.checked_add(SignedDuration::from_hours(1)).unwrap(),
            ..self.known()
        };
        self.keep(&known);
    }

    fn evaluations(&self) -> usize {
        let store = &self.coordinator.store;
        store.evaluations(self.id, 1).unwrap().len()
    }
}

/// A load of a minute is interrupted, in a round and in a search.
#[test]
fn a_rollback_by_hand_interrupts_an_always_on_experiment_at_once() {
    let load = r#"["sh", "-c", "touch DIR/loaded; sleep 60"]"#;
    let spec = SPEC.replace(r#"["echo", '{"n": 1000, "us": 9}']"#, load);
    assert!(spec.contains(load));
    for is_search in [false, true] {
        let service = Service::promoted_over(Some(b"x = 50\n"), &spec, None);
        if is_search {
            service.search_is_due();
        }
        let took = std::cell::Cell::new(None);
        service.run_until(|service| {
            if !service.path("loaded").exists() {
                return false;
            }
            assert_eq!(service.evaluations(), usize::from(is_search));
            let asked = Instant::now();
            let changed = service.coordinator.roll_back(service.id).unwrap();
            took.set(Some(asked.elapsed()));
            assert!(changed.left.is_empty(), "{changed:?}");
            true
        });
        let took = took.get().unwrap();
        assert!(took < Duration::from_secs(10), "{is_search} {took:?}");
        assert_eq!(
            (service.read("knob"), service.read("live")),
            ("50\n".into(), "x = 50\n".into())
        );
        let known = service.known();
        assert_eq!((known.rollbacks, known.promoted), (1, None));
        let row = service.coordinator.store.experiment(service.id).unwrap();
        assert_eq!(
            (row.state, row.message.as_deref()),
            (State::Paused, Some(ROLLED_BACK))
        );
    }
}

/// What is promoted is watched while the queue is paused; a search waits until it is resumed.
#[test]
fn a_paused_queue_holds_a_search_and_no_round() {
    let service = Service::promoted(None);
    service.search_is_due();
    let coordinator = &service.coordinator;
    let known = Known {
        next_round: Timestamp::now(),
        ..service.known()
    };
    service.keep(&known);
    coordinator.pause_queue().unwrap();
    let is_resumed = std::cell::Cell::new(false);
    service.run_until(|service| {
        if service.rounds().len() >= 3 && !is_resumed.replace(true) {
            assert_eq!(service.evaluations(), 0);
            let entries = service.entries();
            let is_held = |it: &&HistoryEntry| it.kind == "held" && it.text.contains(QUEUE_PAUSED);
            assert_eq!(entries.iter().filter(is_held).count(), 1, "{entries:?}");
            coordinator.resume_queue().unwrap();
        }
        service.evaluations() > 0
    });
    assert!(is_resumed.get());
}

/// The host is free afterwards: nothing is left to be watched.
#[test]
fn a_paused_queue_holds_no_rollback() {
    let service = Service::promoted(None);
    service.coordinator.pause_queue().unwrap();
    service.is_to_be_rolled_back();
    service.rolled_back();
    let row = service.coordinator.store.experiment(service.id).unwrap();
    assert_eq!(row.state, State::Queued);
}
