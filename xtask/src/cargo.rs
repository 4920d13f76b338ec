//! Cargo, called by tasks.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::step;

/// The cargo that runs this task, without what it says to this task of itself: a build script that
/// goes by those variables (ring's) would run anew after each call from a shell, and whatever hangs
/// on it.
pub(crate) fn cargo() -> std::process::Command {
    let mut command =
        std::process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let of_this_task = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if of_this_task
            .iter()
            .any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
        {
            command.env_remove(name);
        }
    }
    command
}

/// Where cargo builds.
pub(crate) fn target_directory(root: &Path) -> PathBuf {
    root.join(std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from))
}

/// Builds the release binary and gives its path.
pub(crate) fn build_release(root: &Path) -> anyhow::Result<PathBuf> {
    let mut build = cargo();
    build
        .args(["build", "--release", "--package", "slackline"])
        .current_dir(root);
    if !step::run("build slackline (release)", &mut build)? {
        bail!("the build failed");
    }
    let binary = target_directory(root).join("release/slackline");
    std::fs::metadata(&binary)
        .with_context(|| format!("{} is not there after the build", binary.display()))?;
    Ok(binary)
}
