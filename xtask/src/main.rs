//! The project's own tasks, run as `cargo xtask VERB`: test, tidy, demo, examples, bench,
//! fuzz, stress, msrv, aarch64, docs, accept, dist, install.
//!
//! Each prints what it is about to do, so that its output can be read as a log, and says before
//! anything else what it installs on this machine.
#![expect(
    clippy::print_stdout,
    reason = "the headings and results of a task are its output"
)]

mod awake;
mod bench;
mod bench_dataplane;
mod bench_fleet;
mod bench_micro;
mod cargo;
mod demo;
mod dist;
mod docs;
mod flaky;
mod fuzz;
mod fuzz_api;
mod install;
mod limit;
mod simulated_fleet;
mod step;
mod test;
mod tidy;
mod toolchains;
mod venv;
mod workers;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;

const USAGE: &str = "\
usage: cargo xtask VERB

  test              install what the tests need, then format, lint, test, document and tidy checks
  tidy              only the house rules: allowed edges between crates, file lengths, forbidden text
  demo              install nginx and wrk, build, and tune nginx for five to seven minutes
  examples [NAME…]  run the examples (all, or those named) and keep their reports in docs/results/
  bench tuners      the optimiser against its peers from PyPI, on the same draws, into docs/results/
  bench warm-start  the optimiser after earlier experiments that help or mislead, into docs/results/
  bench fleet       what ranking 500 services of 100 shards costs a Prometheus, into docs/results/
  bench throttle    what the model of throttling predicts against what is seen, into docs/results/
  bench pools       what `throttle advise` recommends for pools of workers against two alternatives, into docs/results/
  bench published   published tuning results, reproduced by the examples, into docs/results/
  bench newcomer    HAProxy, Redis, A/A and sysctls of the live host, each to a verdict, into docs/results/
  bench agent       what the agent itself uses on a host of 10 to 1,000 services, into docs/results/
  bench isolate     services beside batch work under each policy, and killed controllers, into docs/results/
  bench load        the load generator against wrk, oha and known latencies, into docs/results/
  bench relayout [PART…]  servers as they are, re-laid out, and laid out by others, into docs/results/
  bench wire-latency  latencies read off the wire against the truth and real servers' load generators, into docs/results/
  bench continuous  ninety simulated days of the continuous mode, into docs/results/
  bench dataplane [PART…]  the network runtime and the cache beside epoll, io_uring, memcached and Redis, into docs/results/
  bench block [PART…]  remote disks beside nbdkit, qemu-nbd and qemu-storage-daemon, into docs/results/
  bench conclusions how often a verification is wrong, by simulation, into docs/results/
  bench workers [SCENE…]  2,000 simulated workers and 100 experiments against one coordinator (random, bayesian), and whether a
                    slow `ask` holds up others (slow-ask), into docs/results/
  bench micro [--keep | NAME]  `ask`, code layout, statistics and simulators by criterion, beside the baseline in
                    docs/results/micro.json; --keep makes the figures the new baseline
  fuzz api [--minutes N]  the JSON interface of `slackline serve`, fuzzed from its description by schemathesis: once, or that long
  fuzz NAME [--minutes N]  parsers of foreign bytes, coverage-guided by libFuzzer, that long each (60): the target elf, unwind, lsda,
                    hsperf, perf, reports, specification, nbd, nvme, frames, memcached or rings, or a group of them:
                    layout (elf, unwind, lsda), block (nbd, nvme), dataplane (frames, memcached, rings), all
  stress relayout [N]  kill -9 of the writer at N random points (1000), and whole programs in random order under their own test suites
  stress workers [--minutes N]  eight workers, NATS, PostgreSQL and coordinator, killed and cut off at random (30)
  stress block [N]  kill -9 of `serve-block` at N random points (100): what was answered is there, and no block is torn;
                     and 10 power cuts of a guest that serves its disk
  stress dataplane  the TCP stack of its own against Linux's: 10⁹ bytes each way through a bad wire, in namespaces
  msrv              cargo check with the oldest Rust that Cargo.toml promises; rustup installs it
  aarch64           cargo check for aarch64; rustup installs the target, apt-get its C compiler
  docs              the manual as a book, into target/book; the reference is written anew from the code first
  accept            take for right what the code says now: the reference, and the snapshots of messages, tables, help and pages
  dist [--check]    the Debian package, into target/dist; --check installs, uses and removes it in a minimal Debian
  install [SET]     only install: test (the default), demo, examples, relayout, isolate, dataplane or block
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            println!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &[&str]) -> anyhow::Result<ExitCode> {
    let root = repository();
    match arguments {
        ["test"] => test::run(&root),
        ["tidy"] => tidy::run(&root),
        ["demo"] => demo::run(&root),
        ["examples", names @ ..] => demo::run_examples(&root, names),
        ["bench", arguments @ ..] => {
            let _awake = awake::idle_cpus_poll();
            match arguments {
                ["workers", scenes @ ..] => workers::bench(&root, scenes),
                ["fleet", options @ ..] => bench_fleet::run(&root, options),
                ["dataplane", options @ ..] => bench_dataplane::run(&root, options),
                ["micro"] => bench_micro::run(&root, None, false),
                ["micro", "--keep"] => bench_micro::run(&root, None, true),
                ["micro", name] => bench_micro::run(&root, Some(name), false),
                _ => bench::run(&root, arguments),
            }
        }
        ["fuzz", "api"] => fuzz_api::run(&root, None),
        ["fuzz", "api", "--minutes", minutes] => fuzz_api::run(&root, Some(minutes)),
        ["fuzz", name] => fuzz::guided(&root, name, "60"),
        ["fuzz", name, "--minutes", minutes] => fuzz::guided(&root, name, minutes),
        ["stress", "relayout"] => test::stress_relayout(&root, "1000"),
        ["stress", "relayout", kills] => test::stress_relayout(&root, kills),
        ["stress", "block"] => test::stress_block(&root, "100"),
        ["stress", "block", kills] => test::stress_block(&root, kills),
        ["stress", "dataplane"] => test::stress_dataplane(&root),
        ["stress", "workers"] => workers::stress(&root, "30"),
        ["stress", "workers", "--minutes", minutes] => workers::stress(&root, minutes),
        [limit::VERB, program, arguments @ ..] => limit::run(program, arguments),
        ["msrv"] => toolchains::msrv(&root),
        ["aarch64"] => toolchains::aarch64(&root),
        ["docs"] => docs::run(&root),
        ["accept"] => docs::accept(&root),
        ["dist"] => dist::run(&root, false),
        ["dist", "--check"] => dist::run(&root, true),
        ["install"] => run(&["install", "test"]),
        ["install", set] => {
            let needs = match *set {
                "test" => install::TEST,
                "demo" => install::DEMO,
                "examples" => install::EXAMPLES,
                "relayout" => install::RELAYOUT,
                "isolate" => install::ISOLATE,
                "dataplane" => install::BENCH_DATAPLANE,
                "block" => install::BLOCK,
                _ => {
                    bail!(
                        "no set {set:?} to install; there are test, demo, examples, relayout, isolate, dataplane and block"
                    )
                }
            };
            install::install(needs)?;
            if *set == "test" {
                install::guest_kernel(&root)?;
                install::axe(&root, install::is_ci())?;
            }
            Ok(ExitCode::SUCCESS)
        }
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            print!("{USAGE}");
            Ok(ExitCode::from(2))
        }
    }
}

/// The repository's root: the directory above this crate's, which cargo names when it runs this
/// task (what it was when this was compiled may be another clone's, where clones share a target
/// directory).
fn repository() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    here.parent().unwrap_or(&here).to_path_buf()
}
