//! Profiles on disk, by the build-id of the executable: a second process of the same program is
//! laid out at once, by what was measured in the first. Whether that is better in it is verified as
//! always.
//!
//! `STATE_DIR/relayout/profiles/BUILD-ID.json`. A wrong profile costs speed, never correctness:
//! what is emitted by it is checked as ever. Nevertheless only files of our own user that nobody
//! else may write are read.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::PathBuf;

use code_layout::{BuildId, Profile};
use serde::{Deserialize, Serialize};

use crate::{RelayoutError, Store};

/// The version of the format.
const VERSION: u32 = 1;

/// A profile of a server with 4,000 counted functions is about 2 MB.
const BYTES_MAX: u64 = 64 << 20;

/// What a process left for the next one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kept {
    version: u32,
    /// Of the executable.
    build_id: BuildId,
    /// Of the executable and its libraries, each with its own build-id.
    pub(crate) profiles: Vec<Profile>,
}

impl Kept {
    pub(crate) fn new(build_id: BuildId, profiles: Vec<Profile>) -> Self {
        Self {
            version: VERSION,
            build_id,
            profiles,
        }
    }

    fn path(store: &Store, build_id: &BuildId) -> PathBuf {
        let directory = store.directory().join("profiles");
        directory.join(format!("{build_id}.json"))
    }

    /// Reads that of an executable; `None` where there is none.
    ///
    /// # Errors
    /// [`RelayoutError::KeptProfile`] naming the file: damaged, of another format or program, or
    /// writable by others.
    pub(crate) fn load(store: &Store, build_id: &BuildId) -> Result<Option<Self>, RelayoutError> {
        if build_id.0.is_empty() {
            return Ok(None);
        }
        let path = Self::path(store, build_id);
        let refused = |why: String| RelayoutError::KeptProfile {
            path: path.clone(),
            why,
        };
        let metadata = match fs::symlink_metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(refused(error.to_string())),
        };
        let own = rustix::process::geteuid().as_raw();
        if !metadata.is_file() {
            return Err(refused("it is no file".into()));
        }
        if metadata.uid() != own || metadata.mode() & 0o022 != 0 {
            return Err(refused(format!(
                "it belongs to uid {} with mode {:o}, and must be uid {own}'s and nobody else's to write",
                metadata.uid(),
                metadata.mode() & 0o777
            )));
        }
        if metadata.len() > BYTES_MAX {
            return Err(refused(format!(
                "{} bytes, of {BYTES_MAX} at most",
                metadata.len()
            )));
        }
        let bytes = fs::read(&path).map_err(|error| refused(error.to_string()))?;
        let kept: Self =
            serde_json::from_slice(&bytes).map_err(|error| refused(format!("damaged: {error}")))?;
        if kept.version != VERSION {
            return Err(refused(format!(
                "format {}, and this Slackline knows {VERSION}",
                kept.version
            )));
        }
        if kept.build_id != *build_id {
            return Err(refused(format!(
                "it is of the program with build-id {}",
                kept.build_id
            )));
        }
        Ok(Some(kept))
    }

    /// Keeps it for the next process of the program.
    ///
    /// # Errors
    /// [`HostError::Journal`](host::HostError::Journal).
    pub(crate) fn save(&self, store: &Store) -> Result<(), RelayoutError> {
        let path = Self::path(store, &self.build_id);
        let failed = |error: &std::io::Error| host::HostError::journal_io(&path, error);
        let directory = store.directory().join("profiles");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(|error| failed(&error))?;
        let text = serde_json::to_vec(self).map_err(|error| failed(&error.into()))?;
        Ok(host::replace_synced(&path, &text)?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_profile_is_found_again_and_what_is_damaged_foreign_or_open_to_others_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let build_id = BuildId(vec![0xab, 0xcd]);
        assert_eq!(Kept::load(&store, &build_id).unwrap(), None);
        let mut profile = Profile::default();
        profile.add_sample(0x1234, 5);
        let kept = Kept::new(build_id.clone(), vec![profile]);
        kept.save(&store).unwrap();
        assert_eq!(Kept::load(&store, &build_id).unwrap(), Some(kept));
        let path = Kept::path(&store, &build_id);
        let good = fs::read_to_string(&path).unwrap();
        for (text, said) in [
            (good[..good.len() / 2].to_owned(), "damaged"),
            (good.replace("\"version\":1", "\"version\":9"), "format 9"),
            (good.replace("\"abcd\"", "\"1234\""), "build-id 1234"),
            (good.replace("\"profiles\"", "\"other\""), "damaged"),
            ("\u{0}\u{1}".to_owned(), "damaged"),
        ] {
            fs::write(&path, text).unwrap();
            let error = Kept::load(&store, &build_id).unwrap_err().to_string();
            assert!(
                error.contains(said) && error.contains("abcd.json"),
                "{error}"
            );
        }
        fs::write(&path, good).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let error = Kept::load(&store, &build_id).unwrap_err().to_string();
        assert!(error.contains("mode 666"), "{error}");
    }
}
