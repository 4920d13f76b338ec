//! The lock that only one controller on a machine has: what a policy decides by and sets is the
//! machine's (its cores, its power, its link), so two controllers would undo each other's work. The
//! kernel releases the lock when the controller ends, however it ends.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use host::{HostError, Lock};

use crate::error::IsolateError;

/// Where the lock is. Another state directory has the same lock.
const DIRECTORY: &str = "/run/slackline";
/// The directory in its place.
const DIRECTORY_VARIABLE: &str = "SLACKLINE_RUN_DIR";
/// Where a user without privileges has such a directory (XDG Base Directory Specification): the
/// user's controllers have a lock among themselves.
const USER_VARIABLE: &str = "XDG_RUNTIME_DIR";

/// Takes the lock.
///
/// # Errors
///
/// [`HostError::Locked`] names the controller that has it; [`IsolateError::File`] and
/// [`HostError::Journal`] where its directory cannot be used.
pub(crate) fn take() -> Result<Lock, IsolateError> {
    if let Some(directory) = std::env::var_os(DIRECTORY_VARIABLE) {
        return take_in(Path::new(&directory));
    }
    let taken = take_in(Path::new(DIRECTORY));
    let user = std::env::var_os(USER_VARIABLE).map(PathBuf::from);
    match (taken, user) {
        (Err(error), Some(user)) if !is_taken(&error) => take_in(&user.join("slackline")),
        (taken, _) => taken,
    }
}

fn is_taken(error: &IsolateError) -> bool {
    matches!(error, IsolateError::Host(HostError::Locked { .. }))
}

fn take_in(directory: &Path) -> Result<Lock, IsolateError> {
    let directory = directory.join("isolate");
    let failed = |error: io::Error| IsolateError::file(&directory, error);
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(&directory)
        .map_err(failed)?;
    Ok(Lock::take(&directory)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_controller_has_the_lock_until_it_drops_it() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("run");
        let lock = take_in(&directory).unwrap();
        let error = take_in(&directory).unwrap_err();
        assert!(is_taken(&error), "{error}");
        let said = error.to_string();
        assert!(said.contains(&std::process::id().to_string()), "{said}");
        drop(lock);
        take_in(&directory).unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let error = take_in(&dir.path().join("file")).unwrap_err();
        assert!(!is_taken(&error), "{error}");
    }
}
