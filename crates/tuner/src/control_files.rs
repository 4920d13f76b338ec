//! What the control's files are, kept on disk while something else is promoted: a rollback makes them from their templates,
//! and has these where a template is gone or names what there is not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bayes_opt::Configuration;
use serde::{Deserialize, Serialize};

/// One of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ControlFile {
    /// What it was made from.
    pub(crate) template: PathBuf,
    /// With these values.
    pub(crate) control: Configuration,
    pub(crate) contents: String,
}

/// All of them, by their paths: also those of other experiments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ControlFiles(BTreeMap<PathBuf, ControlFile>);

fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("control.json")
}

impl ControlFiles {
    /// What promotions have kept. Where that cannot be read, there is nothing.
    pub(crate) fn kept_in(state_dir: &Path) -> Self {
        let bytes = std::fs::read(file(state_dir)).ok();
        let kept = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        kept.unwrap_or_default()
    }

    /// Takes one in, in place of what was kept for the same path.
    pub(crate) fn insert(&mut self, path: PathBuf, file: ControlFile) {
        self.0.insert(path, file);
    }

    /// What was made from that template with those values.
    pub(crate) fn contents(
        &self,
        path: &Path,
        template: &Path,
        control: &Configuration,
    ) -> Option<&str> {
        let kept = self.0.get(path)?;
        let is_it = kept.template == template && kept.control == *control;
        is_it.then_some(kept.contents.as_str())
    }

    /// Puts them on disk.
    pub(crate) fn keep(&self, state_dir: &Path) -> Result<(), String> {
        let path = file(state_dir);
        let written = serde_json::to_vec(self)
            .map_err(std::io::Error::from)
            .and_then(|bytes| host::replace_private(&path, &bytes));
        written.map_err(|error| format!("{}: {error}", path.display()))
    }
}
