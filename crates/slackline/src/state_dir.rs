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

/// A message whose `slackline restore` is what the user of this state directory has to type.
pub(crate) fn with_state_dir(text: &str, state_dir: &Path) -> String {
    text.replace(
        "slackline restore",
        &format!("{} restore", shell_command(state_dir)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_command_to_type() {
        let said = |dir: &str| with_state_dir("run `slackline restore` first", Path::new(dir));
        assert_eq!(said(DEFAULT_STATE_DIR), "run `slackline restore` first");
        assert_eq!(
            said("/tmp/a b"),
            "run `slackline --state-dir '/tmp/a b' restore` first"
        );
    }
}
