//! A whole program moved: C++ that throws from several threads, every movable function in random
//! order, and a counted one.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use relayout::{ManifestStore, ProfilingOptions, Session};

use crate::eventually::found_within;
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

    /// It throws and catches all the time, and each of the others, which wait for others too, does
    /// another round.
    pub(crate) fn assert_goes_on(&mut self) {
        let before = self.counts();
        std::thread::sleep(Duration::from_millis(100));
        let mut after = self.counts();
        assert!(
            after[0] > before[0] && after[1] > before[1],
            "{before:?} {after:?}"
        );
        found_within(20, || {
            let each = before.iter().zip(&after);
            if each.clone().all(|(before, after)| before != after) {
                return Ok(());
            }
            let seen = format!("{before:?} {after:?}");
            after = self.counts();
            Err(seen)
        });
    }

    pub(crate) fn is_text_changed(&self) -> bool {
        self.program.is_text_changed()
    }
}

fn is_stress() -> bool {
    std::env::var("SLACKLINE_STRESS_KILLS").is_ok()
}

pub(crate) fn method(random: Option<u64>) -> ProfilingOptions {
    ProfilingOptions {
        sampling: Duration::from_millis(500),
        counting: Duration::from_millis(50),
        resting: Duration::ZERO,
        random,
        // `cargo xtask stress relayout` moves its libraries as well, and with them the unwinder
        // itself.
        object_share: if is_stress() { 0.05 } else { 2.0 },
        ..ProfilingOptions::default()
    }
}

fn moved(name: &str, random: Option<u64>, switches: usize) {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
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

/// What libgcc's pointers to its own search hold.
fn held(session: &Session) -> Vec<u64> {
    let unwinder = session.cache.manifest.unwinder.as_ref().unwrap();
    let slots = unwinder.slots.iter();
    slots
        .map(|slot| session.cache.process.memory.word(*slot).unwrap())
        .collect()
}

fn is_led(session: &Session) -> bool {
    let regions = session.cache.manifest.regions.iter();
    let entries: Vec<u64> = regions
        .flat_map(|region| &region.lookups)
        .map(|lookup| lookup.entry)
        .collect();
    held(session).iter().all(|word| entries.contains(word))
}

fn libgcc_of_machine() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut paths = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let libgcc = paths.find(|path| path.contains("/libgcc_s.so"));
    PathBuf::from(libgcc.unwrap())
}

/// Of every movable function in random order, of a program that may not have begun its work.
fn session(store: &ManifestStore, program: &Throws, seed: u64) -> Session {
    let mut session = Session::open(store, program.pid(), method(Some(seed))).unwrap();
    session.look().unwrap();
    session.count().unwrap();
    session
}

#[test]
fn an_unwinder_is_led_before_it_has_ever_been_asked_and_leads_back_in_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let path = Throws::compile("late");
    let mut program = Throws::run(Command::new(&path).arg("late"));
    let mut session = session(&store, &program, 5);
    session.install().unwrap();
    let find = session.cache.manifest.unwinder.clone().unwrap().find;
    assert!(is_led(&session));
    session.install().unwrap();
    session.cache.switch(0).unwrap();
    assert!(is_led(&session), "somebody may be on the way");
    let (_, kept) = session.cache.rollback().unwrap();
    assert_eq!((kept.bytes, held(&session)), (0, vec![find]));
    let mut session = self::session(&store, &program, 6);
    session.install().unwrap();
    // The first exception of all.
    program.program.say("go");
    program.assert_goes_on();
    assert!(is_led(&session));
    let (_, kept) = session.cache.rollback().unwrap();
    assert_eq!(held(&session) == [find], kept.bytes == 0);
    assert!(!program.is_text_changed());
    program.assert_goes_on();
}

#[test]
fn a_thread_that_has_its_unwinder_looked_up_by_the_dynamic_linker_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let auditor = talk::compile("cc", "audit.c", "audit.so", &["-shared", "-fPIC"]);
    let path = Throws::compile("asking");
    let (asking, go_on) = (dir.path().join("asking"), dir.path().join("go-on"));
    let mut program = Throws::run(
        Command::new(&path)
            .arg("late")
            .env("LD_AUDIT", auditor)
            .envs([("ASKING", &asking), ("GO_ON", &go_on)]),
    );
    let mut session = session(&store, &program, 7);
    program.program.say("go");
    while !asking.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let error = session.install().unwrap_err().to_string();
    assert!(error.contains("dynamic linker"), "{error}");
    std::fs::write(&go_on, "").unwrap();
    found_within(20, || session.install());
    assert!(is_led(&session));
    program.assert_goes_on();
    assert!(is_led(&session));
    session.cache.rollback().unwrap();
    program.assert_goes_on();
}

#[test]
fn files_that_are_replaced_while_a_layout_is_in_force_do_not_keep_it_from_being_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let path = dir.path().join("throws");
    std::fs::copy(Throws::compile("replaced"), &path).unwrap();
    let libgcc = dir.path().join("libgcc_s.so.1");
    std::fs::copy(libgcc_of_machine(), &libgcc).unwrap();
    let mut program = Throws::run(Command::new(&path).env("LD_LIBRARY_PATH", dir.path()));
    program.assert_goes_on();
    let text = |session: &Session| -> Vec<Vec<u8>> {
        let process = &session.cache.process;
        let objects = process.objects().unwrap();
        let maps = objects.iter().flat_map(|object| &object.mappings);
        maps.filter(|map| map.is_executable)
            .map(|map| {
                let bytes = usize::try_from(map.bytes()).unwrap();
                process.memory.read(map.start, bytes).unwrap()
            })
            .collect()
    };
    let mut session = session(&store, &program, 8);
    let before = text(&session);
    let generation = session.install().unwrap().generation;
    let unwinder = session.cache.manifest.unwinder.as_ref().unwrap();
    assert_eq!(unwinder.object.path, libgcc.to_str().unwrap());
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(&libgcc).unwrap();
    program.assert_goes_on();
    session.cache.switch(0).unwrap();
    assert!(text(&session) == before);
    session.cache.switch(generation).unwrap();
    program.assert_goes_on();
    let (switched, _) = session.cache.rollback().unwrap();
    assert!(
        switched.is_whole() && switched.closed.is_empty(),
        "{switched:?}"
    );
    assert!(text(&session) == before);
    program.assert_goes_on();
}

#[test]
fn a_member_that_was_forked_before_throws_through_moved_code_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let path = Throws::compile("family");
    let mut program = Throws::run(Command::new(&path).arg("family"));
    program.assert_goes_on();
    let mut session = session(&store, &program, 9);
    let layout = session.install().unwrap();
    // Those that throw and end at once may be gone by then.
    assert!(layout.processes >= 2, "{layout:?}");
    for _ in 0..5 {
        program.assert_goes_on();
        session.cache.switch(0).unwrap();
        session.cache.switch(layout.generation).unwrap();
    }
    session.cache.rollback().unwrap();
    program.assert_goes_on();
}

#[test]
fn a_program_with_an_unwinder_of_its_own_is_declined() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let options = [
        "-std=c++20",
        "-fnon-call-exceptions",
        "-static-libgcc",
        "-static-libstdc++",
    ];
    let path = talk::compile("c++", "throws.cpp", "throws-static", &options);
    // Loaded, but not asked.
    let mut program = Throws::run(Command::new(&path).env("LD_PRELOAD", libgcc_of_machine()));
    program.assert_goes_on();
    let mut session = Session::open(&store, program.pid(), method(Some(1))).unwrap();
    let error = session.look().unwrap_err().to_string();
    assert!(error.contains("unwinder of its own"), "{error}");
    program.assert_goes_on();
}

#[test]
fn a_program_with_a_library_that_unwinds_by_itself_is_declined() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let options = [
        "-std=c++20",
        "-shared",
        "-fPIC",
        "-static-libgcc",
        "-static-libstdc++",
        "-Wl,--exclude-libs,ALL",
    ];
    let library = talk::compile("c++", "throws.cpp", "throws-library.so", &options);
    let path = Throws::compile("beside");
    let mut program = Throws::run(Command::new(&path).env("LD_PRELOAD", &library));
    program.assert_goes_on();
    let mut session = Session::open(&store, program.pid(), method(Some(1))).unwrap();
    let error = session.look().unwrap_err().to_string();
    let named = error.contains("throws-library.so") && error.contains("unwinder of its own");
    assert!(named, "{error}");
    program.assert_goes_on();
}

#[test]
fn a_program_with_a_gs_base_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let path = Throws::compile("gs-base");
    let mut program = Throws::run(Command::new(&path).arg("gs"));
    let mut session = Session::open(&store, program.pid(), method(None)).unwrap();
    session.look().unwrap();
    session.count().unwrap();
    program.assert_goes_on();
    assert!(session.install().unwrap().functions > 0);
    program.assert_goes_on();
    session.cache.rollback().unwrap();
    assert!(!program.is_text_changed());
    program.assert_goes_on();
}

#[test]
fn a_second_process_of_the_program_is_laid_out_by_the_first_ones_profile() {
    // Long enough for a busy machine: a function that the first profile misses by chance is not
    // covered.
    let long = || ProfilingOptions {
        sampling: Duration::from_secs(2),
        counting: Duration::from_millis(500),
        ..method(None)
    };
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let path = Throws::compile("kept");
    let first = Throws::run(&mut Command::new(&path));
    let mut session = Session::open(&store, first.pid(), long()).unwrap();
    session.look().unwrap();
    assert_eq!(session.consider_kept(&store), (Vec::new(), Vec::new()));
    session.count().unwrap();
    let layout = session.install().unwrap();
    // The second one is of the same workload: it takes the place of the first.
    for _ in 0..2 {
        assert!(session.keep_profile(&store, None).unwrap().is_empty());
    }
    drop((session, first));
    let mut second = Throws::run(&mut Command::new(&path));
    second.assert_goes_on();
    let mut session = Session::open(&store, second.pid(), long()).unwrap();
    session.look().unwrap();
    let start = Instant::now();
    let (candidates, notes) = session.consider_kept(&store);
    assert_eq!((candidates.len(), notes.len()), (1, 0));
    // How many samples it is of depends on how much of the time is its own. A layout that is shown
    // to cover less is not taken (`COVER_MIN`).
    assert!(!candidates[0].cover.is_below(0.9), "{candidates:?}");
    let again = session.install_kept(0).unwrap();
    println!("installed by a kept profile in {:?}", start.elapsed());
    let kept = again.kept.clone().unwrap();
    assert!(kept.file.exists() && kept.made.is_some(), "{kept:?}");
    assert_eq!(
        (again.functions, again.code_bytes),
        (layout.functions, layout.code_bytes)
    );
    assert!(second.is_text_changed());
    second.assert_goes_on();
    // What runs in the code cache counts for the functions that it comes from.
    session.look().unwrap();
    let cover = session.cover().unwrap();
    assert!(!cover.is_below(0.9), "{cover}");
    session.cache.rollback().unwrap();
    assert!(!second.is_text_changed());
    second.assert_goes_on();
}

/// As libunwind is, where it is linked before libgcc or loaded first.
#[test]
fn a_program_that_another_object_unwinds_is_declined() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let options = ["-shared", "-fPIC"];
    let other = talk::compile("cc", "unwinds.c", "unwinds.so", &options);
    let path = Throws::compile("led");
    let mut program = Throws::run(Command::new(path).env("LD_PRELOAD", other));
    program.assert_goes_on();
    let mut session = Session::open(&store, program.pid(), method(Some(4))).unwrap();
    let error = session.look().unwrap_err().to_string();
    assert!(
        error.contains("its unwinder is not libgcc_s.so.1"),
        "{error}"
    );
    program.assert_goes_on();
}
