//! The small C program, compiled once a run, and what can be asked of it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use relayout::manifest::Bytes;
use relayout::{AppliedPatch, HEADER_BYTES, PatchedProcess, Process};

use crate::talk::{Program, compile};

pub(crate) struct Target {
    program: Program,
    pub(crate) answer: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) calls: u64,
    pub(crate) ones: u64,
    pub(crate) twos: u64,
    pub(crate) signals: u64,
    pub(crate) sleeps: u64,
}

fn path() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let name = format!("target-{}", std::process::id());
        compile("cc", "target.c", &name, &["-O1"])
    })
    .clone()
}

impl Target {
    pub(crate) fn start(workers: u32, sleepers: u32) -> Self {
        Self::with(workers, sleepers, &[])
    }

    pub(crate) fn with(workers: u32, sleepers: u32, more: &[&str]) -> Self {
        let mut command = Command::new(path());
        command
            .args([workers.to_string(), sleepers.to_string()])
            .args(more);
        let mut program = Program::run(&mut command);
        let answer = program.address();
        assert_ne!(answer, 0);
        Self { program, answer }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.program.pid()
    }

    pub(crate) fn counts(&mut self) -> Counts {
        let numbers: Vec<u64> = self.program.numbers("c");
        let [calls, ones, twos, signals, sleeps] = numbers[..] else {
            panic!("the target ended: {numbers:?}");
        };
        Counts {
            calls,
            ones,
            twos,
            signals,
            sleeps,
        }
    }

    /// Waits until it answers `wanted` (1 or 2), and only that.
    pub(crate) fn assert_answers(&mut self, _before: u64, wanted: u64) {
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            let a = self.counts();
            std::thread::sleep(Duration::from_millis(10));
            let b = self.counts();
            let (ones, twos) = (b.ones > a.ones, b.twos > a.twos);
            if (ones, twos) == (wanted == 1, wanted == 2) {
                assert!(b.sleeps >= a.sleeps && b.calls > a.calls);
                return;
            }
            assert!(Instant::now() < end, "{a:?} {b:?}");
        }
    }

    fn kill(&self, signal: &str) {
        let status = Command::new("kill")
            .args([signal, &self.pid().to_string()])
            .status();
        assert!(status.unwrap().success());
    }

    /// Sends a queued signal, which the target counts.
    pub(crate) fn signal(&self) {
        // SIGRTMIN as glibc gives it to programs; `kill` knows it by that name.
        let pid = rustix_pid(self.pid());
        let signal = libc::SIGRTMIN();
        // SAFETY: kill(2) takes two numbers.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    pub(crate) fn stop(&self) {
        self.kill("-STOP");
        while !self.is_stopped() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn go_on(&self) {
        self.kill("-CONT");
        while self.is_stopped() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        status.lines().any(|line| line.starts_with("State:\tT"))
    }

    pub(crate) fn is_text_changed(&self) -> bool {
        self.program.is_text_changed()
    }

    /// Whether there is executable memory without a file.
    pub(crate) fn has_cache(&self) -> bool {
        let maps = Process::open(self.pid()).unwrap().maps().unwrap();
        maps.iter()
            .any(|map| map.is_anonymous() && map.is_executable)
    }

    pub(crate) fn quit(mut self) {
        self.program.say("q");
        assert!(self.program.child.wait().unwrap().success());
    }
}

fn rustix_pid(pid: u32) -> libc::pid_t {
    libc::pid_t::try_from(pid).unwrap()
}

/// Announces a generation in which `answer` gives 2. Its number.
pub(crate) fn two(cache: &mut PatchedProcess, answer: u64) -> u32 {
    two_instead_of([0xb8, 1, 0, 0, 0], cache, answer)
}

/// The same of an `answer` that begins with other bytes.
pub(crate) fn two_instead_of(old: [u8; 5], cache: &mut PatchedProcess, answer: u64) -> u32 {
    let region = cache.map((answer, answer), 4096, true).unwrap();
    let code = region.address + HEADER_BYTES;
    // mov eax, 2; ret
    cache
        .process
        .memory
        .write(code, &[0xb8, 2, 0, 0, 0, 0xc3])
        .unwrap();
    let distance = i32::try_from(code.cast_signed() - (answer + 5).cast_signed()).unwrap();
    let mut jump = vec![0xe9];
    jump.extend(distance.to_le_bytes());
    let patch = AppliedPatch {
        address: answer,
        old: Bytes(old.to_vec()),
        new: Bytes(jump),
    };
    let (number, left_out) = cache.announce(vec![patch], &[region]).unwrap();
    assert_eq!(left_out, 0);
    number
}
