//! `kill -9` of whoever writes, at random moments: the process lives on, and a later rollback restores every byte.

use std::process::{Command, Stdio};
use std::time::Duration;

use rand::{Rng as _, SeedableRng as _};
use relayout::{CodeCache, Process, Store};

use crate::target::{Target, two};

/// How often it is killed; `cargo xtask stress relayout` asks for more.
const KILLS: usize = 25;

const TARGET: &str = "SLACKLINE_TEST_TARGET";

/// The victim: maps, announces, switches, rolls back, for ever. Runs as a process of its own.
#[test]
#[ignore = "started by the test below"]
fn writer() {
    let Ok(text) = std::env::var(TARGET) else {
        return;
    };
    let [pid, answer, state_dir] = text.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{text}");
    };
    let (pid, answer) = (pid.parse().unwrap(), answer.parse().unwrap());
    let store = Store::open(state_dir.as_ref()).unwrap();
    for round in 0_u32.. {
        let process = Process::open(pid).unwrap();
        let mut cache = CodeCache::open(&store, process).unwrap();
        let number = two(&mut cache, answer);
        for _ in 0..round % 4 {
            cache.switch(number).unwrap();
            cache.switch(0).unwrap();
        }
        cache.switch(number).unwrap();
        if round % 2 == 0 {
            cache.rollback().unwrap();
        }
    }
}

#[test]
fn a_rollback_after_any_kill_restores_every_byte() {
    let kills = std::env::var("SLACKLINE_STRESS_KILLS");
    let kills = kills.map_or(KILLS, |kills| kills.parse().unwrap());
    let seed = 7;
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let mut target = Target::start(2, 4);
    let mut found_changed = 0;
    for kill in 0..kills {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["kill::writer", "--exact", "--ignored", "--nocapture"])
            .env(
                TARGET,
                format!(
                    "{} {} {}",
                    target.pid(),
                    target.answer,
                    dir.path().display()
                ),
            )
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let after = Duration::from_micros(random.random_range(3_000..60_000));
        std::thread::sleep(after);
        writer.kill().unwrap();
        let ended = writer.wait_with_output().unwrap();
        let context = format!("seed {seed}, kill {kill} after {after:?}");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!said.contains("panicked"), "{context}: {said}");
        target.signal();
        found_changed += usize::from(target.is_text_changed());
        let mut cache = CodeCache::open(&store, Process::open(target.pid()).unwrap()).unwrap();
        let (switched, kept) = cache.rollback().unwrap();
        assert!(
            switched.changed_by_others.is_empty(),
            "{context}: {switched:?}"
        );
        assert_eq!(kept.bytes, 0, "{context}: {kept:?}");
        assert!(!target.is_text_changed(), "{context}");
        assert!(!target.has_cache(), "{context}");
        target.assert_answers(2, 1);
        assert_eq!(target.counts().signals, kill as u64 + 1, "{context}");
    }
    println!("{kills} kills, {found_changed} of them with changed code");
    assert!(
        found_changed > 0,
        "no kill came in the middle of anything: the test shows nothing"
    );
    target.quit();
}
