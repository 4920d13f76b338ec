//! The directory below which instances have theirs.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Where instances have their directories: beside the state directory, which only root may enter,
/// because services drop privileges and must reach theirs. By whatever name that is given, it is
/// the same.
pub(crate) fn scratch_root(state_dir: &Path) -> PathBuf {
    let state_dir = std::fs::canonicalize(state_dir)
        .or_else(|_| std::path::absolute(state_dir))
        .unwrap_or_else(|_| state_dir.to_owned());
    let mut name = state_dir.file_name().unwrap_or_default().to_owned();
    name.push(".run");
    state_dir.with_file_name(name)
}

/// Another scratch directory, in memory, where this one has no space: a rollback must work on a
/// full disk.
pub(crate) fn for_full_disk(scratch: &Path) -> Option<PathBuf> {
    if has_space(scratch) {
        return None;
    }
    // Nobody else can have made it: only root writes there.
    let in_memory = PathBuf::from(format!("/run/slackline-{}", std::process::id()));
    let made = std::fs::DirBuilder::new().mode(0o755).create(&in_memory);
    (made.is_ok() && has_space(&in_memory)).then_some(in_memory)
}

fn has_space(dir: &Path) -> bool {
    let probe = dir.join("probe");
    let is_written =
        std::fs::create_dir_all(dir).is_ok() && std::fs::write(&probe, [b'x'; 16 << 10]).is_ok();
    let _ = std::fs::remove_file(&probe);
    is_written
}
