//! The state directory, and how a shell names it.

use std::path::Path;

/// Where the state is, where nobody says so.
pub(crate) const DEFAULT_STATE_DIR: &str = "/var/lib/slackline";

/// What a shell calls to reach a server with this state directory.
pub(crate) fn shell_command(state_dir: &Path) -> String {
    if state_dir == Path::new(DEFAULT_STATE_DIR) {
        return "slackline".to_owned();
    }
    let dir = tuner::verification::quoted(&state_dir.display().to_string());
    format!("slackline --state-dir {dir}")
}
