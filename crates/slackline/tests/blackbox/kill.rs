//! `kill -9` of a whole tune, and `slackline restore` afterwards.

use std::time::Duration;

use rand::{Rng as _, SeedableRng as _};
use serde_json::json;

use crate::eventually::eventually;
use crate::signals::HANG_ON_EXPERIMENT;
use crate::toy::{Ended, FIRST, Toy};

/// The kills of the torture, in this many threads at once.
const THREADS: u64 = 4;
const KILLS_PER_THREAD: usize = 26;

#[test]
fn a_restore_after_any_of_100_kills_leaves_nothing() {
    std::thread::scope(|scope| {
        for seed in 0..THREADS {
            scope.spawn(move || torture(seed));
        }
    });
}

fn torture(seed: u64) {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let mut toys = [Toy::new(), Toy::attached()];
    for toy in &mut toys {
        // No model to think about: as many starts, writes and stops as there is time for.
        toy.spec["search"] = json!({ "strategy": "random" });
        toy.spec["budget"]["evaluations"] = json!(1000);
        toy.spec["evaluation"]["blocks"] = json!(2);
        toy.load_with(r#"echo '{"requests": 1000, "latency_p99_us": 1000}'"#);
        // On a slow machine the first one is killed before it could make it, of which a restore
        // says something else.
        std::fs::create_dir(toy.path("state")).unwrap();
    }
    for kill in 0..KILLS_PER_THREAD {
        let toy = &toys[kill % 2];
        let mut tune = toy.tune_in_background();
        let after = Duration::from_millis(rng.random_range(5..400));
        std::thread::sleep(after);
        tune.kill().unwrap();
        tune.wait().unwrap();
        let context = format!("seed {seed}, kill {kill}, after {after:?}");
        let restored = toy.restore();
        assert_eq!(restored.code, 0, "{context}: {}", restored.stderr);
        // Killed is not yet gone: the kernel is given the time.
        toy.wait_for_end(&context);
        toy.assert_as_before(&context);
        if let Ok(text) = std::fs::read_to_string(toy.path("service.conf")) {
            assert_eq!(text, "x = first\n", "{context}");
        }
    }
}

#[test]
fn a_restore_where_nothing_was_ever_done_says_so_and_makes_no_directory() {
    let toy = Toy::new();
    let state = toy.path("state");
    assert!(!state.exists());
    for more in [&["--dry-run"][..], &[]] {
        Ended::of(toy.slackline(&[&["restore"], more].concat()))
            .with_code(0)
            .saying(&["does not exist, so nothing was changed with it"]);
        assert!(!state.exists());
    }
    // In a directory that is there, commands that only look make nothing either.
    std::fs::create_dir(&state).unwrap();
    for verb in [
        &["restore", "--dry-run"][..],
        &["promotions", "ls"],
        &["doctor"],
        &["isolate", "status"],
        &["relayout", "status"],
        &["experiments", "ls"],
    ] {
        let ended = Ended::of(toy.slackline(verb));
        assert!(!ended.stderr.contains("unrecognized"), "{}", ended.stderr);
        let made: Vec<_> = std::fs::read_dir(&state).unwrap().flatten().collect();
        assert!(made.is_empty(), "{verb:?}: {made:?}");
    }
    Ended::of(toy.slackline(&["restore", "--dry-run"])).with_code(0);
}

/// A record of a relayout that cannot be read does not hide what was done, nor keep the rest from
/// being done.
#[test]
fn a_damaged_record_of_a_relayout_is_one_failure_among_the_rest() {
    let (toy, _) = killed();
    let relayouts = toy.path("state/relayout");
    std::fs::create_dir_all(&relayouts).unwrap();
    std::fs::write(relayouts.join("4711-99.json"), r#"{"version":2}"#).unwrap();
    let restored = Ended::of(toy.slackline(&["restore"])).with_code(4);
    for part in [
        &format!("restored to {FIRST}"),
        "code of process 4711: COULD NOT BE RESTORED",
        "4711-99.json",
    ] {
        assert!(
            restored.stdout.contains(part),
            "{part}: {}",
            restored.stdout
        );
    }
    assert_eq!(toy.knob(), FIRST);
    std::fs::remove_dir_all(&relayouts).unwrap();
    std::fs::write(&relayouts, "no directory").unwrap();
    Ended::of(toy.slackline(&["restore"]))
        .with_code(4)
        .saying(&["relayout"]);
    std::fs::remove_file(&relayouts).unwrap();
    toy.restore().with_code(0);
}

#[test]
fn restore_dry_run_says_and_changes_nothing() {
    let (toy, changed) = killed();
    let journal = std::fs::read(toy.path("state/journal.jsonl")).unwrap();
    let dry = Ended::of(toy.slackline(&["restore", "--dry-run"])).with_code(0);
    assert!(
        dry.stdout
            .contains(&format!("would be restored to {FIRST}")),
        "{}",
        dry.stdout
    );
    let of_processes = || dry.stdout.lines().filter(|it| it.starts_with("process "));
    assert!(of_processes().count() > 0, "{}", dry.stdout);
    assert!(
        of_processes().all(|it| it.ends_with("would be ended")),
        "{}",
        dry.stdout
    );
    assert_eq!(toy.knob(), changed);
    assert_eq!(
        std::fs::read(toy.path("state/journal.jsonl")).unwrap(),
        journal
    );
    assert!(
        toy.processes()
            .iter()
            .any(|process| process.contains("sleep 1000")),
        "{:?}",
        toy.processes()
    );
    // A new tune does not start on a host that is half changed.
    Ended::of(toy.tune(&[]))
        .with_code(2)
        .saying(&["run `slackline --state-dir ", " restore` first"]);
    assert_eq!(toy.knob(), changed);
    let restored = toy.restore().with_code(0);
    assert!(
        restored.stdout.contains(&format!("restored to {FIRST}")),
        "{}",
        restored.stdout
    );
    assert_eq!(toy.knob(), FIRST);
    // The load generator too, which would have gone on for half a minute.
    toy.wait_for_end("after a restore");
    toy.assert_clean("after a restore");
    toy.restore()
        .with_code(0)
        .saying(&["no run has left anything to undo"]);
}

#[test]
fn a_process_that_no_journal_names_is_found() {
    let toy = Toy::new();
    std::fs::create_dir_all(toy.path("state.run/1/control")).unwrap();
    let mut stray = std::process::Command::new("sleep")
        .arg("1000")
        .env("SLACKLINE_INSTANCE", toy.path("state.run/1/control"))
        .spawn()
        .unwrap();
    let named = format!("process {}", stray.id());
    Ended::of(toy.tune(&[]))
        .with_code(2)
        .saying(&[&named, " restore` first"]);
    let dry = Ended::of(toy.slackline(&["restore", "--dry-run"])).with_code(0);
    assert!(dry.stdout.contains("would be ended"), "{}", dry.stdout);
    assert!(stray.try_wait().unwrap().is_none());
    let restored = toy.restore().with_code(0);
    assert!(restored.stdout.contains(&named), "{}", restored.stdout);
    assert!(!stray.wait().unwrap().success());
    toy.assert_as_before("after a stray");
}

#[test]
fn a_knob_that_someone_else_changed_is_left_alone() {
    let (toy, _) = killed();
    std::fs::write(toy.path("knob"), "777\n").unwrap();
    let restored = toy.restore();
    assert!(
        restored.stdout.contains("left alone: someone else changed")
            && restored.stdout.contains("777"),
        "{}",
        restored.stdout
    );
    assert_eq!(toy.knob(), "777");
}

#[test]
fn a_service_that_an_apply_step_restarted_stays() {
    let mut toy = Toy::attached();
    toy.spec["target"]["apply"] =
        json!([{ "command": ["sh", "-c", "setsid sleep 900 >/dev/null 2>&1 &"] }]);
    toy.spec["budget"]["evaluations"] = json!(1);
    toy.load_after(HANG_ON_EXPERIMENT);
    let mut tune = toy.tune_in_background();
    toy.wait_for("measuring");
    tune.kill().unwrap();
    tune.wait().unwrap();
    toy.restore().with_code(0);
    let is_load = |process: &String| !process.contains("sleep 900");
    let is_alone = || !toy.processes().iter().any(is_load);
    eventually(20, is_alone, || format!("{:?}", toy.processes()));
    assert!(!toy.processes().is_empty());
}

/// A toy whose tune was killed while the knob was changed, and the value it was left with.
fn killed() -> (Toy, String) {
    let mut toy = Toy::new();
    toy.load_after(HANG_ON_EXPERIMENT);
    let mut tune = toy.tune_in_background();
    toy.wait_for("measuring");
    tune.kill().unwrap();
    tune.wait().unwrap();
    let changed = toy.knob();
    assert_ne!(changed, FIRST);
    (toy, changed)
}
