//! The watchdog: a process in a session of its own that holds the other end of a pipe. When the
//! controller dies, however it dies, the kernel closes the pipe, and the watchdog restores
//! everything.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use host::{HostError, Journal, Lock, RestoreReport, Roots};

use crate::error::IsolateError;
use crate::machine_lock;

/// What the watchdog says when it is in its own session.
const READY: &str = "ready";
/// What the controller says before it ends in good order.
const BYE: u8 = b'q';
/// Another controller may start and restore before the watchdog has the lock: then there is nothing
/// left to do.
const LOCK_WAIT: Duration = Duration::from_secs(30);
const LOCK_POLL: Duration = Duration::from_millis(50);
const START_WAIT: Duration = Duration::from_secs(10);

/// A running watchdog, as the controller sees it.
pub(crate) struct Watchdog {
    state_dir: PathBuf,
    child: Child,
    stdin: Option<ChildStdin>,
    /// Whoever has something to restore has the machine.
    _lock: Lock,
}

impl Watchdog {
    /// Starts `slackline isolate watchdog` and waits until it stands by itself. `lock` is the
    /// machine's: it is released when everything has been restored.
    pub(crate) fn start(state_dir: &Path, lock: Lock) -> Result<Self, IsolateError> {
        let (child, stdin) = Self::spawn(state_dir)?;
        Ok(Self {
            state_dir: state_dir.to_owned(),
            child,
            stdin,
            _lock: lock,
        })
    }

    fn spawn(state_dir: &Path) -> Result<(Child, Option<ChildStdin>), IsolateError> {
        let failed = |why: String| IsolateError::Watchdog(why);
        let own = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
        let mut child = Command::new(own)
            .arg("--state-dir")
            .arg(state_dir)
            .args(["isolate", "watchdog"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            if let Some(stdout) = stdout {
                let _ = BufReader::new(stdout).read_line(&mut line);
            }
            let _ = sender.send(line);
        });
        let said = receiver.recv_timeout(START_WAIT).unwrap_or_default();
        if said.trim() != READY {
            let _ = child.kill();
            let _ = child.wait();
            return Err(failed("it did not answer".to_owned()));
        }
        Ok((child, stdin))
    }

    /// Starts another one where this one has died; true if so.
    pub(crate) fn renew(&mut self) -> Result<bool, IsolateError> {
        if matches!(self.child.try_wait(), Ok(None)) {
            return Ok(false);
        }
        (self.child, self.stdin) = Self::spawn(&self.state_dir)?;
        Ok(true)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it in good order: everything has been restored.
    pub(crate) fn dismiss(mut self) {
        if let Some(mut stdin) = self.stdin.take() {
            let _ = stdin.write_all(&[BYE]);
        }
        let _ = self.child.wait();
    }
}

/// The watchdog's own life: returns what was restored, or `None` where the controller ended in good
/// order.
///
/// # Errors
///
/// [`IsolateError::Watchdog`] where it cannot leave its session; [`IsolateError::Host`] where the
/// journal cannot be opened.
pub fn watchdog(state_dir: &Path) -> Result<Option<RestoreReport>, IsolateError> {
    let failed = |why: String| IsolateError::Watchdog(why);
    rustix::process::setsid().map_err(|errno| failed(errno.to_string()))?;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{READY}")
        .and_then(|()| stdout.flush())
        .map_err(|error| failed(error.to_string()))?;
    drop(stdout);
    let mut last = None;
    let mut bytes = [0; 16];
    let mut stdin = std::io::stdin().lock();
    loop {
        match stdin.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => last = Some(bytes[count - 1]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    if last == Some(BYE) {
        return Ok(None);
    }
    restore(state_dir, &Roots::default()).map(Some)
}

/// Restores what a dead controller left. A new controller that has taken the lock meanwhile does so
/// itself.
fn restore(state_dir: &Path, roots: &Roots) -> Result<RestoreReport, IsolateError> {
    // So that no other controller begins meanwhile. Where one has begun, this is restored all the
    // same.
    let _lock = machine_lock::take().ok();
    let give_up = Instant::now() + LOCK_WAIT;
    loop {
        match Journal::open(state_dir) {
            Ok(mut journal) => return Ok(journal.restore(roots, false)?),
            Err(HostError::Locked { .. }) if Instant::now() < give_up => {
                if Journal::peek(state_dir)?.is_empty() {
                    return Ok(RestoreReport::default());
                }
                std::thread::sleep(LOCK_POLL);
            }
            Err(error) => return Err(error.into()),
        }
    }
}
