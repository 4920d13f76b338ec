//! The end of a command that a source runs, asked for by another thread.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command as Process, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};

/// Ends what a source runs, from another thread.
#[derive(Clone, Debug, Default)]
pub struct Stopper(Arc<Mutex<Running>>);

#[derive(Debug, Default)]
struct Running {
    is_over: bool,
    /// The process group of the command that runs, until the command has been waited for.
    group: Option<Pid>,
}

impl Stopper {
    /// Kills what runs, with its process group. The source starts nothing more.
    pub fn stop(&self) {
        self.lock().is_over = true;
        self.kill();
    }

    pub(crate) fn kill(&self) {
        if let Some(group) = self.lock().group {
            // It may have ended by itself meanwhile.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    pub(crate) fn spawn(&self, process: &mut Process) -> io::Result<Child> {
        let mut running = self.lock();
        if running.is_over {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let child = process.process_group(0).spawn()?;
        running.group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        Ok(child)
    }

    /// The end of the command, where it has ended. From then on its number may be another
    /// process's.
    pub(crate) fn reap(&self, child: &mut Child) -> io::Result<Option<ExitStatus>> {
        let mut running = self.lock();
        let status = child.try_wait()?;
        if status.is_some() {
            running.group = None;
        }
        Ok(status)
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
