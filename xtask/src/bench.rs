//! `cargo xtask bench tuners`: Slackline's optimiser and its peers on the same noisy draws.
//! `cargo xtask bench warm-start`: what earlier experiments, which help or mislead, make of it.
//! `cargo xtask bench relayout`: servers as they are, re-laid out, and laid out by others.
//! `cargo xtask bench throttle`: what the model of throttling predicts against what is seen.
//! `cargo xtask bench pools`: what `throttle advise` recommends for pools of workers, under load.
//! `cargo xtask bench published`: published results, reproduced by the examples.
//! `cargo xtask bench newcomer`: a newcomer's first experiments, each to its verdict.
//! `cargo xtask bench agent`: what the agent itself uses. `cargo xtask bench load`: the load
//! generator against wrk and oha. `cargo xtask bench continuous`: months, simulated.
//! `cargo xtask bench wire-latency`: latencies read off the wire against the truth.
//! `cargo xtask bench isolate`: services beside batch work under each policy.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::bail;

use crate::cargo::{build_release, cargo};
use crate::install::Need;
use crate::{install, step, venv};

const USAGE: &str = "\
usage: cargo xtask bench tuners [--data DIR] [--out DIR] [--problems A,B] [--tools A,B] [--seeds N] [--jobs N]

  as root where swig or g++ are missing; the peers come from PyPI, some gigabytes. Slackline alone takes minutes, all peers two days
  --data DIR      tables of real systems, every configuration measured (CSV: a column a parameter, then `mean`, where less is
                  better), such as those of the collection timm/moot; without them only what needs no tables runs
  --out DIR       where runs are kept, as raw/tuners.jsonl.gz, and table and picture go; docs/results by default. What is kept is not
                  run again: after a change of the optimiser give an empty folder
  --problems A,B  all by default; a wrong name lists them
  --tools A,B     likewise
  --seeds N       20 by default
  --jobs N        runs at once; as many as there are cores by default

usage: cargo xtask bench warm-start [--data DIR] [--out DIR] [--problems A,B] [--seeds N] [--jobs N]

  options as above, the runs in raw/warm-start.jsonl.gz; Slackline with and without earlier experiments, about half an hour

usage: cargo xtask bench relayout [PART…]
       cargo xtask bench relayout PART OPTIONS-OF-ITS-SCRIPT

  as root, with nothing else on the machine, about an hour for all parts, each into a file of docs/results/:
  side-by-side  a server that is re-laid out beside one that is never touched
  peers         untouched, Slackline, BOLT with the same counts, and huge pages, in turns
  programs      what the command itself shows or declines: MariaDB, PostgreSQL, SQLite, nginx, memcached, Redis, CPython
  profiling     throughput while the server is profiled
  second-start  a server by the profile that the last one left, under the same and under another workload: half an hour, in pieces
                with --minutes M; writes a page, too
  connections   how long MariaDB with 4, 50 and 500 busy connections stands still
  pauses        how long processes of 51, 501 and 5,001 threads stand still (printed only)

usage: cargo xtask bench throttle [--repetitions N] [--seconds S]

  as root, about 12 minutes; writes docs/results/throttle-model.{json,md}

usage: cargo xtask bench pools [--services A,B] [--repeats N] [--seconds S] [--record-s S] [--minutes M] [--again]

  as root, with nothing else on the machine, about 1.5 hours; writes docs/results/pools.{json,md}. What is kept in the JSON file is not
  run again: with --minutes the bench ends before that time, and goes on when it is started again; --again forgets what is kept
  --services A,B  of 'Node.js cluster', gunicorn, uvicorn, Puma, PHP-FPM, PostgreSQL, nginx, 'Rust (Tokio)'

usage: cargo xtask bench agent [--seconds S]

  as root, about 7 minutes; writes docs/results/agent.md

usage: cargo xtask bench load [--repetitions N] [--seconds S] [--parts A,B]

  as root, about 18 minutes, and 5 more the first time, to build oha; writes docs/results/load.{json,md}
  --parts A,B     of capacity, rate, directions, stalls, sysbench; what the others found earlier stays

usage: cargo xtask bench wire-latency [truth] [cost] [servers]

  as root, about 6 minutes; writes docs/results/wire-latency.md; of parts alone, what the others found earlier stays

usage: cargo xtask bench isolate [--parts A,B] [--services A,B] [--antagonists A,B] [--policies A,B] [--repeats N] [--seconds S]
                                 [--minutes M] [--again NAME] [--kills N]

  as root, with nothing else on the machine, about 4 hours; writes docs/results/isolate.{json,md,svg}. What is kept in the JSON file
  is not run again: with --minutes the bench ends before that time, and goes on when it is started again
  --parts A,B     of services, reserved, reaction, kills, simulated; all by default
  --services A,B  of memcached, nginx, mariadb, jvm; --antagonists A,B of cpu, memory, disk, network, ffmpeg, compiler, zstd
  --again NAME    forgets the kept runs of a policy, or of a part. A run that fails ends nothing: the next piece tries it
                  again, and the exit code is 1

usage: cargo xtask bench block [PART…]

  as root, with nothing else on the machine, about 15 minutes; writes docs/results/block.{json,svg} and prints tables
  parts: ram, fio, disk, qd1, qd1-fio, sequential, curve, objectives, scale, scheduler; all by default. `picture` alone
  draws what was measured before. ROUNDS (5) and SECONDS_EACH (1) in the environment say how often and how long,
  OBJECTIVES_US the objectives, which otherwise are 1000,2200,5000 and one that the slowest second of the disk alone holds

usage: cargo xtask bench published [--parts A,B] [--minutes M] [--again]

  as root, with nothing else on the machine, about 9 hours; writes docs/results/published.{json,md} and a report for each part. What is
  kept is not run again: with --minutes (60 at least) the bench ends before that time, and goes on when it is started again
  --parts A,B     of graal-inlining, graal-inlining-experiment-c2, nginx-proxy-ei, nginx-proxy-ucb, nginx-proxy-poi, throttled-go and
                  throttled-jvm

usage: cargo xtask bench newcomer [--experiments A,B] [--minutes M] [--again]

  as root, about half an hour; writes docs/results/newcomer.{json,md} and a report for each of haproxy, redis, nginx-workers-aa and
  nginx-live. What is kept is not run again, unless --again is given. The exit code is 1 if an evaluation failed

usage: cargo xtask bench continuous
usage: cargo xtask bench conclusions
usage: cargo xtask bench fleet
usage: cargo xtask bench workers [SCENE…]
";

/// Benches that are one script: what is installed for it, and where it is.
const SCRIPTS: [(&str, &[Need], &str); 6] = [
    ("throttle", install::BENCH_THROTTLE, "throttle/model.py"),
    ("pools", install::BENCH_POOLS, "pools/run.py"),
    ("published", install::BENCH_PUBLISHED, "published/run.py"),
    ("newcomer", install::BENCH_NEWCOMER, "newcomer/run.py"),
    ("agent", install::BENCH_AGENT, "fleet/agent.py"),
    ("isolate", install::ISOLATE, "isolate/run.py"),
];

/// Runs what is not done yet and writes the table and picture into `docs/results/`.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> anyhow::Result<ExitCode> {
    if arguments.contains(&"--help") {
        print!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    }
    if let [name, options @ ..] = arguments
        && let Some((_, needs, path)) = SCRIPTS.iter().find(|(each, ..)| each == name)
    {
        install::install(needs)?;
        return script(root, path, "", options);
    }
    match arguments {
        ["tuners", options @ ..] => tuners(root, options, &TUNERS),
        ["warm-start", options @ ..] => tuners(root, options, &WARM_START),
        ["relayout", arguments @ ..] => relayout(root, arguments),
        ["load", options @ ..] => {
            install::install(install::BENCH_LOAD)?;
            let oha = oha(root)?;
            let with_oha = oha.as_deref().map(|oha| ["--oha", oha]);
            let with_oha = with_oha.as_ref().map_or(&[][..], |words| words);
            script(root, "load/run.py", "", &[options, with_oha].concat())
        }
        ["block", parts @ ..] => block(root, parts),
        ["continuous"] => example(root, "tuner", "continuous", &[]),
        ["conclusions"] => conclusions(root),
        ["wire-latency", parts @ ..] => {
            install::install(install::BENCH_WIRE)?;
            example(root, "wire-latency", "bench", parts)
        }
        _ => bail!("no such bench: {}\n\n{USAGE}", arguments.join(" ")),
    }
}

/// The parts by name: script and where its results go.
const RELAYOUT: &[(&str, &str, &str)] = &[
    ("side-by-side", "relayout/run.py", "relayout.json"),
    ("peers", "relayout/peers.py", "relayout-peers.json"),
    ("programs", "relayout/programs.py", "relayout-programs.json"),
    (
        "profiling",
        "relayout/profiling.py",
        "relayout-profiling.json",
    ),
    (
        "second-start",
        "relayout/second_start.py",
        "relayout-second-start.json",
    ),
    (
        "connections",
        "relayout/connections.py",
        "relayout-connections.json",
    ),
    (PAUSES, "", ""),
];
const PAUSES: &str = "pauses";

fn relayout(root: &Path, arguments: &[&str]) -> anyhow::Result<ExitCode> {
    let is_option = |word: &&str| word.starts_with("--");
    let first = arguments.iter().position(is_option);
    let (names, options) = arguments.split_at(first.unwrap_or(arguments.len()));
    if !options.is_empty() && names.len() != 1 {
        bail!("options are those of one part: name it before them\n{USAGE}");
    }
    let known = |name: &&&str| RELAYOUT.iter().any(|(part, ..)| part == *name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        bail!("no part {unknown:?}\n{USAGE}");
    }
    install::install(install::RELAYOUT)?;
    install::install(install::BENCH_RELAYOUT)?;
    let mut code = ExitCode::SUCCESS;
    let is_wanted = |name: &str| names.is_empty() || names.contains(&name);
    for (name, path, out) in RELAYOUT.iter().filter(|(name, ..)| is_wanted(name)) {
        let is_done = match *name {
            PAUSES => pauses(root)?,
            _ => script(root, path, out, options)? == ExitCode::SUCCESS,
        };
        if !is_done {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

fn pauses(root: &Path) -> anyhow::Result<bool> {
    let mut pauses = cargo();
    pauses
        .args([
            "test",
            "--release",
            "--package",
            "relayout",
            "--test",
            "process",
        ])
        .args(["pauses", "--", "--ignored", "--nocapture"])
        .current_dir(root);
    step::run("bench relayout: pauses", &mut pauses)
}

/// Runs an example of a crate, which writes into `docs/results/`.
fn example(root: &Path, package: &str, name: &str, options: &[&str]) -> anyhow::Result<ExitCode> {
    let mut bench = cargo();
    bench
        .args(["run", "--release", "--package", package])
        .args(["--example", name, "--"])
        .arg(root.join("docs/results"))
        .args(options)
        .current_dir(root);
    Ok(match step::run(&format!("bench {name}"), &mut bench)? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// `serve-block` beside its peers, in a network namespace whose loopback has the congestion control
/// that Linux has by default.
fn block(root: &Path, parts: &[&str]) -> anyhow::Result<ExitCode> {
    install::install(install::BLOCK)?;
    let slackline = build_release(root)?;
    let mut build = cargo();
    build
        .args(["build", "--release", "--package", "block-load"])
        .args(["--example", "bench"])
        .current_dir(root);
    if !step::run("build the load (release)", &mut build)? {
        bail!("the build failed");
    }
    let namespace = format!("slackline-bench-{}", std::process::id());
    ip(&format!("netns add {namespace}"))?;
    let run = || -> anyhow::Result<bool> {
        ip(&format!("-n {namespace} link set lo up"))?;
        for to in ["127.0.0.0/8", "127.0.0.1"] {
            ip(&format!(
                "-n {namespace} route replace local {to} dev lo proto kernel scope host \
                 src 127.0.0.1 table local congctl cubic"
            ))?;
        }
        let mut bench = Command::new("ip");
        bench
            .args(["netns", "exec", &namespace])
            .arg(slackline.with_file_name("examples").join("bench"))
            .arg(root.join("docs/results"))
            .arg(&slackline)
            .args(parts)
            .current_dir(root);
        step::run("bench block", &mut bench)
    };
    let outcome = run();
    ip(&format!("netns delete {namespace}"))?;
    Ok(match outcome? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// `ip` of iproute2, with these words.
pub(crate) fn ip(words: &str) -> anyhow::Result<()> {
    let output = Command::new("ip").args(words.split(' ')).output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(
        output.status.success(),
        "ip {words}: is this root? {}",
        text.trim()
    );
    Ok(())
}

/// The table of what verifications conclude, whose example prints it.
fn conclusions(root: &Path) -> anyhow::Result<ExitCode> {
    let path = root.join("docs/results/conclusions.md");
    let mut bench = cargo();
    let arguments = [
        "run",
        "--release",
        "--package",
        "tuner",
        "--example",
        "conclusions",
    ];
    let printed = bench.args(arguments).current_dir(root).output()?;
    if !printed.status.success() {
        bail!("{}", String::from_utf8_lossy(&printed.stderr));
    }
    std::fs::write(&path, printed.stdout)?;
    println!("==> {}", path.display());
    Ok(ExitCode::SUCCESS)
}

/// oha from crates.io, built once; where it is, or nothing where it cannot be built.
fn oha(root: &Path) -> anyhow::Result<Option<String>> {
    let to = root.join("target/bench/oha");
    let mut install = cargo();
    install
        .args(["install", "oha", "--version", "^1", "--locked", "--quiet"])
        .arg("--root")
        .arg(&to);
    if !step::run("oha", &mut install)? {
        println!("SKIP: oha cannot be built, so its rows are left out");
        return Ok(None);
    }
    Ok(Some(to.join("bin/oha").display().to_string()))
}

/// A script of `xtask/bench`, told where the binary is.
pub(crate) fn python(root: &Path, name: &str, binary: &Path) -> Command {
    let mut script = Command::new("python3");
    script
        .arg(root.join("xtask/bench").join(name))
        .env("SLACKLINE", binary)
        .current_dir(root);
    script
}

/// Runs a script on the release binary, with `docs/results/`'s `out` as its first argument.
fn script(root: &Path, name: &str, out: &str, options: &[&str]) -> anyhow::Result<ExitCode> {
    let mut bench = python(root, name, &build_release(root)?);
    bench.arg(root.join("docs/results").join(out)).args(options);
    Ok(match step::run(&format!("bench {name}"), &mut bench)? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// What is run on the problems of tuners.
struct Tuners {
    /// Where runs are kept.
    lines: &'static str,
    /// The script that makes a table of them.
    report: &'static str,
    /// Options that are given where no others are.
    options: &'static [&'static str],
}

const TUNERS: Tuners = Tuners {
    lines: "raw/tuners.jsonl.gz",
    report: "report.py",
    options: &[],
};
const WARM_START: Tuners = Tuners {
    lines: "raw/warm-start.jsonl.gz",
    report: "warm_start.py",
    options: &[
        "--tools",
        "slackline,after-same,after-version,after-elsewhere,after-upside-down",
        "--problems",
        "hartmann6,ackley-mixed,rosenbrock-mixed,branin-constrained,systems,systems-crashing,services",
    ],
};

fn tuners(root: &Path, options: &[&str], what: &Tuners) -> anyhow::Result<ExitCode> {
    let mut out = root.join("docs/results");
    let mut passed = what.options.to_vec();
    let mut options = options.iter();
    while let Some(option) = options.next() {
        let Some(value) = options.next() else {
            bail!("{option} needs a value\n\n{USAGE}");
        };
        match *option {
            "--out" => out = std::path::absolute(value)?,
            "--data" | "--problems" | "--tools" | "--seeds" | "--jobs" => {
                passed.extend([*option, *value]);
            }
            _ => bail!("no such option: {option}\n\n{USAGE}"),
        }
    }
    std::fs::create_dir_all(&out)?;
    install::install(install::BENCH_TUNERS)?;
    let scripts = root.join("xtask/bench/tuners");
    let work = root.join("target/bench");
    std::fs::create_dir_all(&work)?;
    let python = venv::environment(&work.join("tuners-venv"), &scripts.join("requirements.txt"))?;
    let binary = build_release(root)?;
    // Kept with the results: hours of peers, which a table alone would lose.
    let lines = out.join(what.lines);
    let mut bench = Command::new(&python);
    bench
        .arg(scripts.join("run.py"))
        .arg(&lines)
        .args(passed)
        .env("SLACKLINE", &binary);
    if !step::run("bench tuners (what is kept is not run again)", &mut bench)? {
        bail!("the bench failed");
    }
    let mut report = Command::new(&python);
    report.arg(scripts.join(what.report)).arg(&lines).arg(&out);
    if !step::run("table", &mut report)? {
        bail!("the report failed");
    }
    Ok(ExitCode::SUCCESS)
}
