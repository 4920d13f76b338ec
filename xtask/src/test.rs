//! `cargo xtask test`: everything CI runs, in one command.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::cargo::{build_release, cargo};
use crate::{bench, flaky, install, limit, step, tidy};

/// The step that runs the tests.
const TESTS: &str = "cargo test";

/// Installs what the tests need and runs every check; goes on after a failed one, so that one run
/// shows all that is wrong.
pub(crate) fn run(root: &Path) -> anyhow::Result<ExitCode> {
    install::install(install::TEST)?;
    install::guest_kernel(root)?;
    let ci = install::is_ci();
    install::axe(root, ci)?;
    // A test that lacks something says SKIP; in CI that is a failure.
    let (mut passed, mut failed) = (0, Vec::new());
    let mut flaky = None;
    for (name, mut command) in cargo_steps()? {
        command.current_dir(root);
        if name == TESTS {
            flaky = Some(flaky::List::of(root, &mut command));
        }
        if ci {
            command.env("SLACKLINE_CI", "1");
            // A new random case that fails is for whoever works on that code, not for an unrelated
            // change. Outside CI every run tries new cases.
            command.env("PROPTEST_RNG_SEED", "1");
            // Nothing is built twice there, and what would be kept for it takes as much disk as all
            // else.
            command.env("CARGO_INCREMENTAL", "0");
        }
        match step::run(name, &mut command)? {
            true => passed += 1,
            false => failed.push(name),
        }
    }
    println!("\n==> tidy");
    match tidy::check(root)? {
        findings if findings.is_empty() => passed += 1,
        findings => {
            tidy::print(&findings);
            failed.push("tidy");
        }
    }
    if install::find_program("cargo-deny").is_some() {
        let mut deny = cargo();
        // Advisories need a database from the network: not a matter of this commit.
        deny.args(["deny", "check", "bans", "licenses", "sources"])
            .current_dir(root);
        match step::run("cargo deny", &mut deny)? {
            true => passed += 1,
            false => failed.push("cargo deny"),
        }
    } else {
        println!("\n==> cargo deny: cargo-deny not present: skipped");
    }
    println!();
    for name in flaky.iter().flat_map(flaky::List::names) {
        println!("flaky: {name} failed beside other tests and passed alone");
    }
    for name in &failed {
        println!("failed: {name}");
    }
    println!("steps: {passed} passed, {} failed", failed.len());
    Ok(if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The tests of writing into other processes, with so many kills of the writer; then a server under
/// load, switched and killed at.
pub(crate) fn stress_relayout(root: &Path, kills: &str) -> anyhow::Result<ExitCode> {
    install::install(install::TEST)?;
    install::install(install::RELAYOUT)?;
    install::install(install::STRESS_RELAYOUT)?;
    let mut tests = cargo();
    tests
        .args([
            "test",
            "--package",
            "relayout",
            "--test",
            "process",
            "--",
            "--nocapture",
        ])
        .env("SLACKLINE_STRESS_KILLS", kills)
        .current_dir(root);
    let is_good = step::run("stress relayout: small programs", &mut tests)?;
    let binary = build_release(root)?;
    let mut traces = bench::python(root, "relayout/crash_trace.py", &binary);
    let are_traces_good = step::run(
        "stress relayout: gdb and MariaDB's crash trace",
        &mut traces,
    )?;
    let mut server = bench::python(root, "relayout/stress.py", &binary);
    server.arg(root.join("docs/results/relayout-stress.json"));
    let is_server_good = step::run("stress relayout: MariaDB (about 30 minutes)", &mut server)?;
    let mut suites = bench::python(root, "relayout/suites.py", &binary);
    suites.arg(root.join("docs/results/relayout-suites.json"));
    let are_suites_good = step::run(
        "stress relayout: test suites of MariaDB and CPython (about an hour)",
        &mut suites,
    )?;
    Ok(
        match is_good && are_traces_good && is_server_good && are_suites_good {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        },
    )
}

/// `cargo xtask stress block [N]`: kill -9 of the server of disks at N random points under load,
/// and what was answered is there.
pub(crate) fn stress_block(root: &Path, kills: &str) -> anyhow::Result<ExitCode> {
    let mut tests = cargo();
    tests
        .args([
            "test",
            "--package",
            "block-server",
            "--test",
            "process",
            "--test",
            "nvme",
            "--test",
            "wire",
            "--",
            "--nocapture",
        ])
        .args([
            "--exact",
            "nothing_answered_is_lost_when_the_server_is_killed",
            "death::nothing_answered_is_lost_at_a_random_moment",
            "hundreds_of_thousands_of_commands_on_one_connection",
            "io::tens_of_thousands_of_commands_on_one_queue",
        ])
        .env("SLACKLINE_KILLS", kills)
        .env("SLACKLINE_COMMANDS", "1000000")
        .current_dir(root);
    let mut cut = cargo();
    cut.args(["test", "--package", "slackline", "--test", "blackbox"])
        .args(["guest_power", "--", "--ignored", "--nocapture"])
        .env("SLACKLINE_CUTS", "10")
        .current_dir(root);
    install::guest_kernel(root)?;
    let is_whole = step::run("stress block: kill -9, a million commands", &mut tests)?
        && step::run("stress block: power cuts", &mut cut)?;
    Ok(match is_whole {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The long tests of the dataplane against Linux's TCP, which need root.
pub(crate) fn stress_dataplane(root: &Path) -> anyhow::Result<ExitCode> {
    install::install(install::TEST)?;
    let mut tests = cargo();
    tests
        .args(["test", "--release", "--package", "dataplane"])
        .args(["--lib", "--test", "xdp", "--", "--ignored", "--nocapture"])
        .current_dir(root);
    Ok(match step::run("stress dataplane", &mut tests)? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn cargo_steps() -> anyhow::Result<Vec<(&'static str, Command)>> {
    let with = |arguments: &[&str]| {
        let mut command = cargo();
        command.args(arguments);
        command
    };
    let mut doc = with(&["doc", "--workspace", "--no-deps", "--quiet"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    let mut test = with(&["test", "--workspace", "--no-fail-fast"]);
    limit::set_for(&mut test)?;
    Ok(vec![
        ("cargo fmt", with(&["fmt", "--all", "--check"])),
        (
            "cargo clippy",
            with(&[
                "clippy",
                "--workspace",
                "--all-targets",
                "--quiet",
                "--",
                "-D",
                "warnings",
            ]),
        ),
        (TESTS, test),
        ("cargo doc", doc),
    ])
}
