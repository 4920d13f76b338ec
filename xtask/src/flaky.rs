//! Tests that fail beside others and pass alone. Many tests measure time, and all share the CPUs of
//! the machine: a failed test is run once more with nothing beside it. If it passes then, it does
//! not fail the run, but the run names it at its end.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file that collects the names: `cargo xtask test` sets this variable for the programs that it
/// has cargo start.
const LIST: &str = "SLACKLINE_FLAKY_TESTS";

/// With more failed tests in one program than this, the fault is not a busy machine.
const MOST: usize = 3;

/// Names of the failed tests that a test program printed.
#[derive(Default)]
pub(crate) struct Failed {
    names: Vec<String>,
    is_list: bool,
    /// From the program's last line.
    count: Option<usize>,
}

impl Failed {
    /// Takes a line that a test program printed. `library/test/src/formatters/pretty.rs` in Rust's
    /// source prints the word `failures:` twice: before what the tests printed, and before the
    /// names.
    pub(crate) fn read(&mut self, line: &str) {
        let line = line.trim_end_matches('\n');
        if line == "failures:" {
            self.names.clear();
            self.is_list = true;
        } else if let Some(result) = line.strip_prefix("test result: FAILED. ") {
            self.is_list = false;
            self.count = result
                .split("; ")
                .find_map(|part| part.strip_suffix(" failed")?.parse().ok());
        } else if let Some(name) = line.strip_prefix("    ")
            && self.is_list
        {
            self.names.push(name.to_owned());
        }
    }

    /// The tests to run again: none if the names are not certain.
    pub(crate) fn to_run_again(&self) -> &[String] {
        let is_certain = self.count == Some(self.names.len())
            && self.names.len() <= MOST
            && !self
                .names
                .iter()
                .any(|name| name.contains(char::is_whitespace));
        if is_certain { &self.names } else { &[] }
    }
}

/// The list for one run of `cargo xtask test`, empty at first.
pub(crate) struct List(PathBuf);

impl List {
    /// An empty list that the test programs of this command write to.
    pub(crate) fn of(root: &Path, test: &mut Command) -> Self {
        let path = root.join("target/flaky-tests.txt");
        // There may be none yet.
        let _ = std::fs::remove_file(&path);
        test.env(LIST, &path);
        Self(path)
    }

    /// The tests that failed beside others and passed alone.
    pub(crate) fn names(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// The list of whoever started this program, if there is one.
pub(crate) fn list() -> Option<PathBuf> {
    std::env::var_os(LIST).map(PathBuf::from)
}

/// Puts a test in the list.
pub(crate) fn note(list: &Path, name: &str) -> anyhow::Result<()> {
    let mut text = std::fs::read_to_string(list).unwrap_or_default();
    writeln!(text, "{name}")?;
    Ok(std::fs::write(list, text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Failed {
        let mut failed = Failed::default();
        for line in lines {
            failed.read(&format!("{line}\n"));
        }
        failed
    }

    #[test]
    fn the_names_are_those_of_the_second_list() {
        let failed = read(&[
            "test a::one ... FAILED",
            "failures:",
            "---- a::one stdout ----",
            "    left: 1",
            "failures:",
            "    a::one",
            "    a::two",
            "",
            "test result: FAILED. 322 passed; 2 failed; 2 ignored; 0 measured; 0 filtered out",
        ]);
        assert_eq!(failed.to_run_again(), ["a::one", "a::two"]);
    }

    #[test]
    fn what_is_not_certain_is_not_run_again() {
        let result = "test result: FAILED. 1 passed; 2 failed; 0 ignored";
        assert!(
            read(&["failures:", "    a::one", result])
                .to_run_again()
                .is_empty()
        );
        assert!(
            read(&["failures:", "    a::one", "    a::two"])
                .to_run_again()
                .is_empty()
        );
        let names = ["    a", "    b", "    c", "    d"];
        let result = "test result: FAILED. 1 passed; 4 failed; 0 ignored";
        let many: Vec<&str> = ["failures:"]
            .into_iter()
            .chain(names)
            .chain([result])
            .collect();
        assert!(read(&many).to_run_again().is_empty());
        // A test of an example in a comment has a name that a test program does not take.
        let result = "test result: FAILED. 1 passed; 1 failed; 0 ignored";
        let example = read(&["failures:", "    src/lib.rs - parse (line 3)", result]);
        assert!(example.to_run_again().is_empty());
    }
}
