//! How a running service is told of its own configuration again, kept on disk while another one is
//! in force.
//!
//! The undo journal puts files back; that the service must be reloaded to notice, or that a request
//! had set something, it does not know. So the `apply` steps with the control's values lie in the
//! state directory from before the first change until after the restore.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_client::Url;
use serde::{Deserialize, Serialize};

use crate::client::client;
use crate::process::{Interrupt, Launch};

/// No `apply` or `prepare` command may take longer.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_secs(300);

/// The `apply` steps of the control, filled in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reapply {
    /// Working directory of the commands.
    pub(crate) dir: PathBuf,
    /// Environment of the commands.
    pub(crate) env: BTreeMap<String, String>,
    /// More of it: the files that hold the values, which are kept nowhere else.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) env_files: BTreeMap<String, PathBuf>,
    pub(crate) steps: Vec<Step>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    /// A command.
    Command(Vec<String>),
    /// An HTTP request.
    Request {
        method: String,
        #[serde(with = "http_client::exposed")]
        url: Url,
        body: String,
    },
}

/// A step in a list is cut there: a script may have a hundred lines.
const STEP_CHARS_MAX: usize = 120;

impl Step {
    /// The command line without its secrets, or the method and the address of the request.
    pub(crate) fn in_words(&self) -> String {
        let text = match self {
            Self::Command(argv) => {
                let launch = Launch {
                    argv: argv.clone(),
                    ..Launch::default()
                };
                launch.command_line()
            }
            Self::Request { method, url, .. } => format!("{method} {url}"),
        };
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        match line.char_indices().nth(STEP_CHARS_MAX) {
            Some((end, _)) => format!("{}…", &line[..end]),
            None => line,
        }
    }

    pub(crate) fn request(method: &str, url: &Url, body: &str) -> Result<(), String> {
        let sent = client().send(method, url, body);
        sent.map_err(|error| format!("{method} {error}"))
    }
}

fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("apply.json")
}

impl Reapply {
    /// No command among the steps may take longer.
    pub const STEP_MAX: Duration = COMMAND_TIMEOUT;

    /// What a run left to be applied again; `None` where there is nothing.
    ///
    /// # Errors
    /// In words, with the file.
    pub fn left_in(state_dir: &Path) -> Result<Option<Self>, String> {
        let path = file(state_dir);
        match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|error| {
                    format!(
                        "{}: {error}: the file is damaged; it says how a running service is told of its own configuration: \
                         reload that service yourself, then move the file away",
                        path.display()
                    )
                }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// Puts it on disk.
    pub(crate) fn save(&self, state_dir: &Path) -> Result<(), String> {
        let path = file(state_dir);
        serde_json::to_vec(self)
            .map_err(std::io::Error::from)
            .and_then(|text| host::replace_private(&path, &text))
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Forgets it: the present configuration stays.
    pub(crate) fn forget(state_dir: &Path) {
        let _ = std::fs::remove_file(file(state_dir));
    }

    /// Applies every step, and forgets them where all went well.
    ///
    /// # Errors
    /// In words: the first step that failed; it stays on disk.
    pub fn run(&self, state_dir: &Path) -> Result<(), String> {
        for step in &self.steps {
            match step {
                Step::Request { method, url, body } => Step::request(method, url, body)?,
                Step::Command(argv) => {
                    let launch = Launch {
                        argv: argv.clone(),
                        env: self.env.clone(),
                        env_files: self.env_files.clone(),
                        dir: self.dir.clone(),
                        cpus: None,
                        log: state_dir.join("apply"),
                        may_outlive_run: true,
                    };
                    let ran = launch.run(COMMAND_TIMEOUT, &Interrupt::default(), || Ok(()));
                    for stream in ["out", "err"] {
                        let _ = std::fs::remove_file(launch.log_file(stream));
                    }
                    ran.map_err(|error| error.to_string())?;
                }
            }
        }
        Self::forget(state_dir);
        Ok(())
    }

    /// What it is, in words.
    #[must_use]
    pub fn describe(&self) -> String {
        let each = self.steps.iter().map(Step::in_words);
        format!("apply: {}", each.collect::<Vec<_>>().join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_told_in_a_line_without_its_secrets() {
        let command = |words: &[&str]| {
            let argv = words.iter().map(|&word| word.to_owned()).collect();
            Step::Command(argv).in_words()
        };
        assert_eq!(command(&["nginx", "-s", "reload"]), "nginx -s reload");
        let said = command(&["sh", "-c", "set -e\nmysqladmin --password=s3cr3t reload"]);
        assert_eq!(said, "sh -c 'set -e mysqladmin --password=… reload'");
        let long = command(&["sh", "-c", &"true; ".repeat(100)]);
        assert_eq!(long.chars().count(), STEP_CHARS_MAX + 1);
    }
}
