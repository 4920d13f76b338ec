//! The programs under test: compiled here, and spoken to by lines on their standard input and
//! output.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use relayout::Process;

/// Ends with the test.
pub(crate) struct Program {
    pub(crate) child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

/// Compiles a file of this directory to `name`, by `compiler` with `options`.
pub(crate) fn compile(compiler: &str, source: &str, name: &str, options: &[&str]) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/process");
    let status = Command::new(compiler)
        .args(["-g0", "-pthread"])
        .args(options)
        .arg("-o")
        .arg(&path)
        .arg(directory.join(source))
        .status()
        .unwrap();
    assert!(status.success());
    path
}

impl Program {
    pub(crate) fn run(program: &mut Command) -> Self {
        let mut child = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            stdin: child.stdin.take().unwrap(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the code in memory differs from the file, of any object.
    pub(crate) fn is_text_changed(&self) -> bool {
        let process = Process::open(self.pid()).unwrap();
        process.objects().unwrap().iter().any(|object| {
            let file = process.file(object).unwrap();
            process.text_difference(object, &file).unwrap().is_some()
        })
    }

    pub(crate) fn say(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").unwrap();
    }

    /// Its next line; empty where it has ended.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// A line that is an address; 0 for any other.
    pub(crate) fn address(&mut self) -> u64 {
        u64::from_str_radix(self.line().trim_start_matches("0x"), 16).unwrap_or(0)
    }

    /// The numbers that it answers to a command; none where it has ended.
    pub(crate) fn numbers<N: std::str::FromStr>(&mut self, command: &str) -> Vec<N>
    where
        N::Err: std::fmt::Debug,
    {
        self.say(command);
        let line = self.line();
        line.split_whitespace()
            .map(|word| word.parse().unwrap())
            .collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
