//! How to run, and who is told what happens.

use std::path::PathBuf;
use std::time::Duration;

use crate::status::IsolationStatus;

/// How to run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// A directory for the record of the run.
    pub out: Option<PathBuf>,
    /// End after so long.
    pub duration: Option<Duration>,
    /// Decide and write down, and act on nothing, whatever the configuration says.
    pub observe: bool,
}

/// Who is told what happens.
pub trait Watcher {
    /// Services, groups and sources are open, and the first step comes next. The status has names
    /// and objectives, and no figures yet.
    fn begun(&mut self, status: &IsolationStatus) {
        let _ = status;
    }

    /// A second has passed.
    fn row(&mut self, status: &IsolationStatus);

    /// A step has passed: the time to answer who waits. The status costs time, and is asked for
    /// only where somebody does.
    fn step(&mut self, status: &dyn Fn() -> IsolationStatus) {
        let _ = status;
    }

    /// Something worth a line of the log, with the time since the start.
    fn say(&mut self, text: &str);
}
