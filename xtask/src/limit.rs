//! The time limit of a test. `cargo xtask test` has cargo start each test program through here: a
//! program whose test does not end is ended, and the test is named. A test that fails is run again
//! alone.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::flaky::{self, Failed};

/// The verb that starts a program with this limit, not for people.
pub(crate) const VERB: &str = "limited";

/// From libtest's notice on. libtest gives it after a minute.
const AFTER_NOTICE: Duration = Duration::from_secs(9 * 60);

/// How often the tests are looked at while the program prints nothing.
const LOOK: Duration = Duration::from_secs(1);

/// What processes get to restore the machine in, before they are killed.
const GRACE: Duration = Duration::from_secs(10);

/// Tests that libtest called long, and since when.
#[derive(Default)]
struct LongTests(BTreeMap<String, Instant>);

impl LongTests {
    /// Takes a line that a test program printed. The two layouts are those of
    /// `library/test/src/formatters/pretty.rs` in Rust's source.
    fn read(&mut self, line: &str, now: Instant) {
        let Some((_, test)) = line.split_once("test ") else {
            return;
        };
        if let Some((name, _)) = test.split_once(" has been running for over ") {
            self.0.insert(name.to_owned(), now);
        } else if let Some((name, _result)) = test.split_once(" ... ") {
            self.0.remove(name);
        }
    }

    /// Tests that have had more than their time.
    fn over(&self, now: Instant) -> Vec<&str> {
        let over = |since: &Instant| now.duration_since(*since) >= AFTER_NOTICE;
        let tests = self.0.iter().filter(|(_, since)| over(since));
        tests.map(|(name, _)| name.as_str()).collect()
    }
}

/// Has cargo start its test programs through this program.
pub(crate) fn set_for(cargo: &mut Command) -> anyhow::Result<()> {
    let own = std::env::current_exe().context("the path of xtask is not known")?;
    let runner = format!("{} {VERB}", own.display());
    // cargo has no variable for "whatever the target is".
    cargo.args([
        "--config",
        &format!("target.'cfg(all())'.runner = {runner:?}"),
    ]);
    Ok(())
}

/// Runs a test program and passes on what it prints. A test that runs for ten minutes ends it.
/// Tests that fail are run again alone.
pub(crate) fn run(program: &str, arguments: &[&str]) -> anyhow::Result<ExitCode> {
    let list = flaky::list();
    run_to(&mut std::io::stdout(), list.as_deref(), program, arguments)
}

fn run_to(
    output: &mut dyn Write,
    list: Option<&Path>,
    program: &str,
    arguments: &[&str],
) -> anyhow::Result<ExitCode> {
    let (code, failed) = run_once(output, program, arguments)?;
    let names = failed.to_run_again();
    if code == ExitCode::SUCCESS || names.is_empty() {
        return Ok(code);
    }
    writeln!(
        output,
        "\nnote: these tests failed and are run again alone: {names:?}"
    )?;
    for name in names {
        if run_once(output, program, &["--exact", name])?.0 != ExitCode::SUCCESS {
            return Ok(code);
        }
    }
    if let Some(list) = list {
        for name in names {
            flaky::note(list, name)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The exit code, and the failed tests.
fn run_once(
    output: &mut dyn Write,
    program: &str,
    arguments: &[&str],
) -> anyhow::Result<(ExitCode, Failed)> {
    // Whoever starts the tests may ignore signals, as nohup and some CI systems do. A shell cannot
    // handle a signal that was ignored when it started.
    let mut child = Command::new("env")
        .args(["--default-signal=HUP,INT,QUIT,TERM", program])
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{program} cannot be run"))?;
    let printed = child.stdout.take().context("no pipe")?;
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut printed = BufReader::new(printed);
        let mut line = Vec::new();
        while printed
            .read_until(b'\n', &mut line)
            .is_ok_and(|read| read > 0)
        {
            let text = String::from_utf8_lossy(&line).into_owned();
            if sender.send(text).is_err() {
                return;
            }
            line.clear();
        }
    });
    let (mut tests, mut failed) = (LongTests::default(), Failed::default());
    loop {
        match lines.recv_timeout(LOOK) {
            Ok(line) => {
                output.write_all(line.as_bytes())?;
                tests.read(&line, Instant::now());
                failed.read(&line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            // What a test left behind may keep the pipe open.
            Err(RecvTimeoutError::Timeout) if child.try_wait()?.is_some() => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let over = tests.over(Instant::now());
        if !over.is_empty() {
            let below = descendants(&child.id().to_string());
            writeln!(
                output,
                "\nerror: these tests have not ended within 10 minutes: {}. Their program is ended.\n\
                 note: what the program has started, by ps:\n{}",
                over.join(", "),
                describe(&below),
            )?;
            end(&mut child)?;
            return Ok((ExitCode::FAILURE, Failed::default()));
        }
    }
    let code = child
        .wait()?
        .code()
        .and_then(|code| u8::try_from(code).ok());
    Ok((code.map_or(ExitCode::FAILURE, ExitCode::from), failed))
}

/// These processes as a tree.
fn describe(processes: &[String]) -> String {
    let output = Command::new("ps")
        .args(["--forest", "-o", "pid,ppid,stat,wchan:20,etimes,args", "-p"])
        .arg(processes.join(","))
        .output();
    output.map_or_else(
        |error| format!("ps cannot be run: {error}"),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

/// Ends a program and all that it started: first by a request, so that whoever has changed the
/// machine restores it.
fn end(child: &mut Child) -> anyhow::Result<()> {
    let below = descendants(&child.id().to_string());
    kill("-TERM", &below);
    let asked = Instant::now();
    while below.iter().any(|process| is_running(process)) && asked.elapsed() < GRACE {
        std::thread::sleep(GRACE / 100);
    }
    kill("-KILL", &below);
    child.kill()?;
    child.wait()?;
    Ok(())
}

/// Whether there is such a process that is not a zombie.
fn is_running(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

fn kill(signal: &str, processes: &[String]) {
    // Some have ended by now, which is no fault.
    let _ = Command::new("kill")
        .arg(signal)
        .args(processes)
        .stderr(Stdio::null())
        .status();
}

fn descendants(process: &str) -> Vec<String> {
    let mut found = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{process}/task"))
        .into_iter()
        .flatten()
    {
        let children = task.map(|task| task.path().join("children"));
        let children = children
            .and_then(std::fs::read_to_string)
            .unwrap_or_default();
        for child in children.split_whitespace() {
            found.push(child.to_owned());
            found.extend(descendants(child));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_without_a_result_is_named_after_its_time() {
        let mut tests = LongTests::default();
        let start = Instant::now();
        tests.read("test a::ends has been running for over 60 seconds\n", start);
        tests.read(
            "test a::hangs has been running for over 60 seconds\n",
            start,
        );
        let later = start + AFTER_NOTICE;
        assert_eq!(tests.over(later - LOOK), [""; 0]);
        // What a child of a test prints may stand before the result.
        tests.read("no line of its own test a::ends ... ok\n", later);
        assert_eq!(tests.over(later), ["a::hangs"]);
    }

    #[test]
    fn an_end_takes_what_a_program_started() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 1000 & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(shell.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        end(&mut shell).unwrap();
        assert!(!is_running(line.trim()));
    }

    #[test]
    fn the_program_s_exit_code_is_passed_on() {
        let code = run("sh", &["-c", "exit 101"]).unwrap();
        assert_eq!(code, ExitCode::from(101));
    }

    #[test]
    fn a_test_that_passes_alone_does_not_fail_the_program() {
        let fails = "printf 'failures:\\n    a::one\\n\\ntest result: FAILED. 0 passed; 1 failed; \\n'; exit 101";
        // Alone, the program is given the name.
        let busy = format!("[ \"$1\" = a::one ] || {{ {fails}; }}");
        let code = run_script(&busy);
        assert_eq!(code, ExitCode::SUCCESS);
        assert_eq!(run_script(fails), ExitCode::from(101));
    }

    /// A test program that is this shell script.
    fn run_script(script: &str) -> ExitCode {
        let path = std::env::temp_dir().join(format!("slackline-limit-{}", std::process::id()));
        // A program cannot be started while a process has its file open for writing. So a shell
        // writes it.
        let mut write = Command::new("sh");
        write.args(["-c", "printf %s \"$1\" > \"$2\" && chmod +x \"$2\"", "sh"]);
        write
            .arg(format!("#!/bin/sh\nshift\n{script}\n"))
            .arg(&path);
        assert!(write.status().unwrap().success());
        let (mut printed, program) = (Vec::new(), path.to_str().unwrap());
        let code = run_to(&mut printed, None, program, &["--exact", "all"]).unwrap();
        std::fs::remove_file(&path).unwrap();
        code
    }
}
