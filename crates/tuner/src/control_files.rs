//! What files held before a promotion, kept on disk while it is in force, so that a rollback
//! restores that; and what the control's files are, for a promotion that did not keep what was
//! there.

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
    /// What was there before; none, where that was not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<Before>,
    /// The promotion came to its end: what is in the file now was not there before.
    #[serde(default)]
    pub(crate) is_in_force: bool,
}

/// What was at a file's path before a promotion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Before {
    /// A file of text.
    Text(String),
    /// A file that is not UTF-8.
    Bytes(Vec<u8>),
    /// No file; the value is always null.
    Nothing {
        /// So that it is told from the others.
        absent: (),
    },
}

impl Before {
    /// What is there now.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn at(path: &Path) -> std::io::Result<Self> {
        match std::fs::read(path) {
            Ok(bytes) => Ok(String::from_utf8(bytes)
                .map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Ok(Self::Nothing { absent: () })
            }
            Err(error) => Err(error),
        }
    }

    /// What the file held; `None` where there was none.
    pub(crate) fn contents(&self) -> Option<&[u8]> {
        match self {
            Self::Text(text) => Some(text.as_bytes()),
            Self::Bytes(bytes) => Some(bytes),
            Self::Nothing { .. } => None,
        }
    }
}

/// All of them, by their paths: also those of other experiments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ControlFiles(BTreeMap<PathBuf, ControlFile>);

fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("control.json")
}

impl ControlFiles {
    /// What promotions have kept.
    ///
    /// # Errors
    /// In words: the file cannot be read, or is damaged, with the line.
    pub(crate) fn kept_in(state_dir: &Path) -> Result<Self, String> {
        let path = file(state_dir);
        let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| failed(&format!("{error}: the file is damaged; move it away"))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Takes one in, in place of what was kept for the same path.
    pub(crate) fn insert(&mut self, path: PathBuf, file: ControlFile) {
        self.0.insert(path, file);
    }

    /// What was kept of a file that is made from that template with those values.
    pub(crate) fn of(
        &self,
        path: &Path,
        template: &Path,
        control: &Configuration,
    ) -> Option<&ControlFile> {
        let kept = self.0.get(path);
        kept.filter(|kept| kept.template == template && kept.control == *control)
    }

    /// These files have what was promoted.
    pub(crate) fn come_into_force(&mut self, paths: &[PathBuf]) {
        for path in paths {
            if let Some(kept) = self.0.get_mut(path) {
                kept.is_in_force = true;
            }
        }
    }

    /// A file was rolled back: what it held before is not needed any more. A link to the file is
    /// the file.
    pub(crate) fn roll_back(&mut self, path: &Path) {
        let target = host::target(path);
        for (known, kept) in &mut self.0 {
            if known == path || host::target(known) == target {
                (kept.before, kept.is_in_force) = (None, false);
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_before_is_read_back_also_as_it_was_kept_at_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("service.conf");
        let kept = |before: &Before| serde_json::to_string(before).unwrap();
        let read = |text: &str| serde_json::from_str::<Before>(text).unwrap();
        let nothing = Before::at(&path).unwrap();
        assert_eq!(nothing.contents(), None);
        assert_eq!(read(&kept(&nothing)), nothing);
        std::fs::write(&path, b"caf\xe9").unwrap();
        let bytes = Before::at(&path).unwrap();
        assert_eq!(bytes.contents(), Some(&b"caf\xe9"[..]));
        assert_eq!(read(&kept(&bytes)), bytes);
        std::fs::write(&path, "x = 50\n").unwrap();
        let text = Before::at(&path).unwrap();
        assert_eq!(kept(&text), r#""x = 50\n""#);
        assert_eq!(read(&kept(&text)), text);
        assert!(Before::at(dir.path()).is_err());
    }
}
