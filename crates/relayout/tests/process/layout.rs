//! A whole program moved: C++ that throws from several threads, every movable function in random order, and a counted one.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use relayout::{Method, Process, Session, Store};

use crate::talk::{self, Program};

pub(crate) struct Throws {
    program: Program,
}

impl Throws {
    pub(crate) fn start(name: &str) -> Self {
        Self::run(&mut Command::new(Self::compile(name)))
    }

    fn compile(name: &str) -> PathBuf {
        let options = ["-std=c++20", "-fnon-call-exceptions", "-O2", "-s"];
        talk::compile("c++", "throws.cpp", &format!("throws-{name}"), &options)
    }

    fn run(program: &mut Command) -> Self {
        Self {
            program: Program::run(program),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Rounds done, exceptions caught, and rounds of all the others; panics where it has aborted.
    pub(crate) fn counts(&mut self) -> [u64; 8] {
        let numbers = self.program.numbers("c");
        let ended = |_| panic!("it has ended: {:?}", self.program.child.wait());
        numbers.try_into().unwrap_or_else(ended)
    }

    /// It throws and catches all the time, and each of the others, which wait for others too, does another round.
    pub(crate) fn assert_goes_on(&mut self) {
        let before = self.counts();
        std::thread::sleep(Duration::from_millis(100));
        let mut after = self.counts();
        assert!(
            after[0] > before[0] && after[1] > before[1],
            "{before:?} {after:?}"
        );
        let end = Instant::now() + Duration::from_secs(20);
        while before
            .iter()
            .zip(&after)
            .any(|(before, after)| before == after)
        {
            assert!(Instant::now() < end, "{before:?} {after:?}");
            std::thread::sleep(Duration::from_millis(10));
            after = self.counts();
        }
    }

    pub(crate) fn is_text_changed(&self) -> bool {
        let process = Process::open(self.pid()).unwrap();
        process.objects().unwrap().iter().any(|object| {
            let file = process.file(object).unwrap();
            process.text_difference(object, &file).unwrap().is_some()
        })
    }
}

fn is_stress() -> bool {
    std::env::var("SLACKLINE_STRESS_KILLS").is_ok()
}

pub(crate) fn method(random: Option<u64>) -> Method {
    Method {
        sampling: Duration::from_millis(500),
        counting: Duration::from_millis(50),
        resting: Duration::ZERO,
        random,
        // `cargo xtask stress relayout` moves its libraries as well, and with them the unwinder itself.
        object_share: if is_stress() { 0.05 } else { 2.0 },
        ..Method::default()
    }
}

fn moved(name: &str, random: Option<u64>, switches: usize) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let mut program = Throws::start(name);
    program.assert_goes_on();
    let mut session = Session::open(&store, program.pid(), method(random)).unwrap();
    session.look().unwrap();
    session.count().unwrap();
    program.assert_goes_on();
    assert!(
        !program.is_text_changed(),
        "counting leaves nothing in force"
    );
    let layout = session.install().unwrap();
    println!("{name}: {layout:?}");
    assert!(layout.functions > 0 && layout.is_unwinder_led);
    assert!(program.is_text_changed());
    program.assert_goes_on();
    let perf_map = format!("/tmp/perf-{}.map", program.pid());
    let names = std::fs::read_to_string(&perf_map).unwrap();
    assert_eq!(names.lines().count(), layout.functions, "{names}");
    let maps = session.cache.process.maps().unwrap();
    for line in names.lines() {
        let start = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
        let map = maps.iter().find(|map| map.contains(start)).unwrap();
        assert!(map.is_executable && map.is_anonymous(), "{line}");
    }
    for _ in 0..switches {
        session.cache.switch(0).unwrap();
        session.cache.switch(layout.generation).unwrap();
    }
    program.assert_goes_on();
    let (switched, kept) = session.cache.rollback().unwrap();
    assert!(switched.changed_by_others.is_empty() && switched.occupied.is_empty());
    assert!(!std::path::Path::new(&perf_map).exists());
    println!("{name}: {kept:?} kept, {:?}", program.counts());
    assert!(!program.is_text_changed());
    program.assert_goes_on();
}

#[test]
fn exceptions_pass_through_counted_and_reordered_code() {
    moved("profiled", None, 20);
}

#[test]
fn exceptions_pass_through_a_program_in_random_order() {
    for seed in 1..=if is_stress() { 5 } else { 1 } {
        moved(&format!("random-{seed}"), Some(seed), 10);
    }
}

#[test]
fn an_unwinder_is_led_before_it_has_ever_been_asked_and_leads_back_in_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let path = Throws::compile("late");
    let mut program = Throws::run(Command::new(&path).arg("late"));
    let mut session = Session::open(&store, program.pid(), method(Some(5))).unwrap();
    session.look().unwrap();
    session.count().unwrap();
    let unwinder = |session: &Session| session.cache.manifest.unwinder.clone().unwrap();
    let held = |session: &Session| {
        let slots = unwinder(session).slots;
        let memory = &session.cache.process.memory;
        let held: Vec<u64> = slots
            .iter()
            .map(|slot| memory.word(slot.address).unwrap())
            .collect();
        held
    };
    let leads_to_regions = |session: &Session| {
        let regions = &session.cache.manifest.regions;
        held(session).iter().all(|word| {
            let mut lookups = regions.iter().flat_map(|region| &region.lookups);
            lookups.any(|lookup| lookup.entry == *word)
        })
    };
    session.install().unwrap();
    let slots = unwinder(&session).slots;
    let first: Vec<u64> = slots.iter().map(|slot| slot.first).collect();
    assert!(!first.contains(&unwinder(&session).find), "never asked");
    assert!(leads_to_regions(&session));
    let generation = session.install().unwrap().generation;
    session.cache.switch(0).unwrap();
    assert!(leads_to_regions(&session), "somebody may be on the way");
    let (_, kept) = session.cache.rollback().unwrap();
    assert_eq!((kept.bytes, held(&session)), (0, first.clone()));
    let mut session = Session::open(&store, program.pid(), method(Some(6))).unwrap();
    session.look().unwrap();
    session.count().unwrap();
    assert!(session.install().unwrap().generation <= generation);
    // The first exception of all.
    program.program.say("go");
    program.assert_goes_on();
    assert!(leads_to_regions(&session), "the dynamic linker wrote there");
    let (_, kept) = session.cache.rollback().unwrap();
    assert_eq!(held(&session) == first, kept.bytes == 0);
    assert!(!program.is_text_changed());
    program.assert_goes_on();
}

#[test]
fn a_program_with_a_gs_base_is_declined_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let path = Throws::compile("gs-base");
    let mut program = Throws::run(Command::new(&path).arg("gs"));
    let mut session = Session::open(&store, program.pid(), method(None)).unwrap();
    session.look().unwrap();
    let error = session.count().unwrap_err();
    assert!(error.to_string().contains("GS segment"), "{error}");
    assert!(!program.is_text_changed());
    assert!(session.cache.manifest.regions.is_empty());
    program.assert_goes_on();
}

#[test]
fn a_second_process_of_the_program_is_laid_out_at_once_by_the_first_ones_profile() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let path = Throws::compile("kept");
    let first = Throws::run(&mut Command::new(&path));
    let mut session = Session::open(&store, first.pid(), method(None)).unwrap();
    assert_eq!(session.install_kept(&store).unwrap(), None);
    session.look().unwrap();
    session.count().unwrap();
    let layout = session.install().unwrap();
    session.keep_profile(&store).unwrap();
    drop((session, first));
    let mut second = Throws::run(&mut Command::new(&path));
    second.assert_goes_on();
    let start = Instant::now();
    let mut session = Session::open(&store, second.pid(), method(None)).unwrap();
    let again = session.install_kept(&store).unwrap().unwrap();
    println!("installed by a kept profile in {:?}", start.elapsed());
    assert_eq!(
        (again.functions, again.code_bytes),
        (layout.functions, layout.code_bytes)
    );
    assert!(second.is_text_changed());
    second.assert_goes_on();
    // What runs in the code cache counts for the functions that it comes from.
    let load = session.look().unwrap();
    assert!(load.overlap.unwrap() > 0.5, "{load:?}");
    session.cache.rollback().unwrap();
    assert!(!second.is_text_changed());
    second.assert_goes_on();
}
