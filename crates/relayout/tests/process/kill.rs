//! `kill -9` of whoever writes, at random moments: the process lives on, and a later rollback
//! restores every byte.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rand::{Rng as _, SeedableRng as _};
use relayout::{ManifestStore, PatchedProcess, Process, ProfilingOptions, Session};

use crate::layout::{Throws, method};
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
    let store = ManifestStore::open(state_dir.as_ref()).unwrap();
    for round in 0_u32.. {
        let process = Process::open(pid).unwrap();
        let mut cache = PatchedProcess::open(&store, process).unwrap();
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

/// A test of this file as a process of its own.
fn victim(test: &str, pid: u32, answer: u64, state_dir: &Path) -> Command {
    let mut victim = Command::new(std::env::current_exe().unwrap());
    victim
        .args([test, "--exact", "--ignored", "--nocapture"])
        .env(TARGET, format!("{pid} {answer} {}", state_dir.display()))
        .stderr(Stdio::piped());
    victim
}

/// How often `cargo xtask stress relayout` wants it.
fn stress_kills() -> Option<usize> {
    let kills = std::env::var("SLACKLINE_STRESS_KILLS").ok()?;
    Some(kills.parse().unwrap())
}

#[test]
fn a_rollback_after_any_kill_restores_every_byte() {
    let kills = stress_kills().unwrap_or(KILLS);
    let seed = 7;
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let mut target = Target::start(2, 4);
    let mut found_changed = 0;
    let mut kill = 0;
    // On a busy machine the writer may not have come to it so soon.
    while kill < kills || (found_changed == 0 && kill < 4 * kills) {
        let mut writer = victim("kill::writer", target.pid(), target.answer, dir.path());
        let mut writer = writer.stdout(Stdio::null()).spawn().unwrap();
        let after = Duration::from_micros(random.random_range(3_000..60_000));
        std::thread::sleep(after);
        writer.kill().unwrap();
        let ended = writer.wait_with_output().unwrap();
        let context = format!("seed {seed}, kill {kill} after {after:?}");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!said.contains("panicked"), "{context}: {said}");
        target.signal();
        found_changed += usize::from(target.is_text_changed());
        let mut cache = PatchedProcess::open(&store, Process::open(target.pid()).unwrap()).unwrap();
        let (switched, kept) = cache.rollback().unwrap();
        assert!(
            switched.changed_by_others.is_empty(),
            "{context}: {switched:?}"
        );
        assert_eq!(kept.bytes, 0, "{context}: {kept:?}");
        assert!(!target.is_text_changed(), "{context}");
        assert!(!target.has_cache(), "{context}");
        target.assert_answers(2, 1);
        kill += 1;
        assert_eq!(target.counts().signals, kill as u64, "{context}");
    }
    println!("{kill} kills, {found_changed} of them with changed code");
    assert!(
        found_changed > 0,
        "no kill came in the middle of anything: the test shows nothing"
    );
    target.quit();
}

/// What a relayout consists of, in order; each line of the victim below begins one.
const PHASES: [&str; 6] = ["open", "count", "install", "switch", "rollback", "end"];

/// Those that are killed in, in turn.
const KILLED_IN: [&str; 4] = ["count", "install", "switch", "rollback"];

/// How often, and how often at most where `cargo xtask stress relayout` asks for more of the
/// others.
const LAYOUT_KILLS: usize = 4;
const LAYOUT_KILLS_MAX: usize = 200;

/// So often the same program; what memory stays in it makes each rollback longer.
const KILLS_A_PROGRAM: usize = 12;

/// The other victim: a whole relayout of a C++ program, to whose frames its unwinder is led.
#[test]
#[ignore = "started by the test below"]
fn layout_writer() {
    let Ok(text) = std::env::var(TARGET) else {
        return;
    };
    let (pid, state_dir) = text.split_once(" 0 ").unwrap();
    let store = ManifestStore::open(state_dir.as_ref()).unwrap();
    let method = ProfilingOptions {
        sampling: Duration::from_millis(100),
        counting: Duration::from_millis(5),
        object_share: 2.0,
        ..method(None)
    };
    println!("@open");
    let mut session = Session::open(&store, pid.parse().unwrap(), method).unwrap();
    // On a busy machine it may get no CPU for so long.
    while session.look().unwrap().user_samples < 10 {}
    println!("@count");
    session.count().unwrap();
    println!("@install");
    let layout = session.install().unwrap();
    println!("@switch");
    for _ in 0..10 {
        session.cache.switch(0).unwrap();
        session.cache.switch(layout.generation).unwrap();
    }
    println!("@rollback");
    session.cache.rollback().unwrap();
    println!("@end");
}

/// Reads until the victim says that it begins `wanted`.
fn wait_for(victim: &mut Child, stdout: &mut BufReader<ChildStdout>, wanted: &str) {
    for line in stdout.lines() {
        if line.unwrap().ends_with(&format!("@{wanted}")) {
            return;
        }
    }
    let mut said = String::new();
    let stderr = victim.stderr.take().unwrap();
    BufReader::new(stderr).read_to_string(&mut said).unwrap();
    panic!("it ended before {wanted}: {said}");
}

/// The phase that a killed victim was in, from what it had said after `known`.
fn last_phase(victim: Child, mut stdout: BufReader<ChildStdout>, known: &str) -> String {
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    let ended = victim.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!said.contains("panicked"), "{said}");
    let mut later = rest.lines().filter_map(|line| line.split_once('@'));
    later
        .next_back()
        .map_or(known, |(_, phase)| phase)
        .to_owned()
}

#[test]
fn a_rollback_after_a_kill_in_any_phase_of_a_relayout_restores_every_byte() {
    let kills = stress_kills().map_or(LAYOUT_KILLS, |kills| kills.min(LAYOUT_KILLS_MAX));
    let seed = 11;
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let mut program = Throws::start("killed");
    let start = |pid: u32| {
        let mut victim = victim("kill::layout_writer", pid, 0, dir.path());
        let mut victim = victim.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(victim.stdout.take().unwrap());
        (victim, stdout)
    };
    // How long each phase takes where nobody is killed.
    let mut lengths: BTreeMap<&str, Duration> = BTreeMap::new();
    let (mut victim, mut stdout) = start(program.pid());
    wait_for(&mut victim, &mut stdout, "count");
    for phases in PHASES[1..].windows(2) {
        let begun = Instant::now();
        wait_for(&mut victim, &mut stdout, phases[1]);
        lengths.insert(phases[0], begun.elapsed());
    }
    assert_eq!(last_phase(victim, stdout, "end"), "end");
    let (mut killed_in, mut found_changed): (BTreeMap<String, usize>, usize) = Default::default();
    let mut kept_bytes = 0;
    for kill in 0..kills {
        let phase = KILLED_IN[kill % KILLED_IN.len()];
        let after = lengths[phase].mul_f64(random.random_range(0.0..1.0));
        if kill > 0 && kill % KILLS_A_PROGRAM == 0 {
            println!("{kill} kills in {killed_in:?}, {found_changed} of them with changed code");
            program = Throws::start("killed");
        }
        let pid = program.pid();
        let (mut victim, mut stdout) = start(pid);
        wait_for(&mut victim, &mut stdout, phase);
        std::thread::sleep(after);
        victim.kill().unwrap();
        let context = format!("seed {seed}, kill {kill} in {phase} after {after:?}");
        *killed_in
            .entry(last_phase(victim, stdout, phase))
            .or_default() += 1;
        program.assert_goes_on();
        found_changed += usize::from(program.is_text_changed());
        let mut cache = PatchedProcess::open(&store, Process::open(pid).unwrap()).unwrap();
        let (switched, kept) = cache.rollback().unwrap();
        assert!(switched.is_whole(), "{context}: {switched:?}");
        assert!(!program.is_text_changed(), "{context}");
        assert_eq!(kept.why, None, "{context}");
        kept_bytes = kept.bytes;
        program.assert_goes_on();
    }
    println!(
        "{kills} kills in {killed_in:?}, {found_changed} of them with changed code, {kept_bytes} bytes kept at the end"
    );
    // Of so few a phase may be missed by chance.
    if kills > LAYOUT_KILLS {
        // Some ended before the kill came.
        let missed = KILLED_IN.map(|phase| !killed_in.contains_key(phase));
        assert_eq!(missed, [false; KILLED_IN.len()], "{killed_in:?}");
        assert!(found_changed > 0);
    }
}
