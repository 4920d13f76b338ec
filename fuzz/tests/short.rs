//! A few seconds of each target, without feedback from coverage: all seeds, then mutated ones from
//! a fixed number on.
//!
//! `SLACKLINE_FUZZ_S` says for how many seconds. `SLACKLINE_FUZZ_INPUT` names a file: only this
//! input is run then.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on ends there, and says how many inputs it ran"
)]

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fuzz::mutation::Mutator;
use fuzz::{Target, repository};

/// How long the mutated inputs of one target take.
const MUTATED_S: f64 = 4.0;
/// One input may take this long.
const INPUT_MAX: Duration = Duration::from_secs(30);
/// Where the mutations begin.
const NUMBER: u64 = 1;

/// Runs inputs of one target, each of which lies in a file while it is run: whatever happens then,
/// to this process too, the input is there.
struct Runner {
    target: Target,
    path: PathBuf,
    file: File,
}

impl Runner {
    fn new(target: Target, folder: &Path) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        let path = folder.join(format!("{}.input", target.name));
        let file = File::create(&path).unwrap();
        Self { target, path, file }
    }

    fn run(&self, what: &str, input: &[u8]) -> bool {
        self.file.set_len(0).unwrap();
        self.file.write_all_at(input, 0).unwrap();
        let start = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| self.target.check(input)));
        let took = start.elapsed();
        let (name, path) = (self.target.name, self.path.display());
        let again = format!(
            "to run it again: SLACKLINE_FUZZ_INPUT={path} cargo test -p fuzz --test short -- --exact {name}"
        );
        assert!(
            took < INPUT_MAX,
            "{name}: {what} took {took:?}, and lies in {path}; {again}"
        );
        // What is wrong was printed when it panicked.
        result.unwrap_or_else(|_| panic!("{name}: {what} fails, and lies in {path}; {again}"))
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn short(target: Target) {
    if let Some(path) = std::env::var_os("SLACKLINE_FUZZ_INPUT") {
        let input = std::fs::read(&path).unwrap();
        // The panic itself is seen.
        println!("accepted: {}", target.check(&input));
        return;
    }
    let runner = Runner::new(target, &repository().join("target/fuzz"));
    let seconds = std::env::var("SLACKLINE_FUZZ_S").map_or(MUTATED_S, |it| it.parse().unwrap());
    let seeds = (target.seeds)();
    let accepted = (0..).zip(&seeds);
    let accepted =
        accepted.filter(|(index, seed): &(u64, _)| runner.run(&format!("seed {index}"), seed));
    let accepted = accepted.count();
    // Damage to what is refused anyway shows little.
    assert!(
        2 * accepted >= seeds.len(),
        "{accepted} of {} seeds accepted",
        seeds.len()
    );
    let mut mutator = Mutator::new(NUMBER, seeds);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let (mut inputs, mut accepted) = (0_u64, 0_u64);
    while Instant::now() < end {
        let input = mutator.input();
        inputs += 1;
        if runner.run(&format!("input {inputs} from {NUMBER}"), &input) {
            accepted += 1;
            mutator.keep(input);
        }
    }
    println!("{}: {inputs} inputs, {accepted} accepted", target.name);
    assert!(accepted > 0, "no mutated input was accepted");
}

/// A test for each target, by its name.
macro_rules! tests {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                short(fuzz::$name::TARGET);
            }
        )*

        /// The tests that there are.
        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

tests! { elf unwind lsda hsperf perf reports specification nbd nvme frames memcached rings }

#[test]
fn each_target_has_a_test_and_a_program() {
    let names: Vec<&str> = fuzz::TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(names, TESTED);
    let programs = std::fs::read_dir(repository().join("fuzz/src/bin")).unwrap();
    let stem = |path: PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
    let mut programs: Vec<String> = programs.map(|entry| stem(entry.unwrap().path())).collect();
    programs.sort();
    let mut sorted = names;
    sorted.sort_unstable();
    assert_eq!(programs, sorted);
}

fn fails(data: &[u8]) -> bool {
    assert!(!data.contains(&b'x'), "an x");
    true
}

#[test]
fn a_failing_input_is_kept_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let target = Target {
        name: "fails",
        run: fails,
        seeds: Vec::new,
        memory_max_bytes: 1 << 20,
    };
    let message = catch_unwind(|| Runner::new(target, folder.path()).run("input 7", b"a x"));
    let message = message.unwrap_err();
    let message = message.downcast_ref::<String>().unwrap();
    let path = folder.path().join("fails.input");
    assert!(
        message.contains("input 7") && message.contains(path.to_str().unwrap()),
        "{message}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), b"a x");
    // One that does not fail leaves nothing.
    assert!(Runner::new(target, folder.path()).run("input 8", b"a"));
    assert!(!path.exists());
}

#[test]
fn memory_without_bound_fails() {
    let target = Target {
        name: "grows",
        run: |data| std::hint::black_box(vec![7_u8; 1000 * data.len()]).len() == 1,
        seeds: Vec::new,
        memory_max_bytes: 1 << 20,
    };
    assert!(!target.check(&[0; 100]));
    assert!(catch_unwind(|| target.check(&[0; 2000])).is_err());
}
