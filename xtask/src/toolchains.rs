//! `cargo xtask msrv` and `cargo xtask aarch64`: the workspace is checked by the oldest compiler
//! that it promises, and for the other processor.
//!
//! Both build every dependency anew, so they are no part of `cargo xtask test`.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};

use crate::install::{self, find_program};
use crate::step;

const AARCH64: &str = "aarch64-unknown-linux-gnu";

/// `cargo check` with the version that `rust-version` in Cargo.toml names.
///
/// # Errors
/// There is no rustup, or the toolchain cannot be installed.
pub(crate) fn msrv(root: &Path) -> anyhow::Result<ExitCode> {
    let manifest = std::fs::read_to_string(root.join("Cargo.toml"))?;
    let version = rust_version(&manifest).context("Cargo.toml has no rust-version")?;
    let installed = rustup(&["toolchain", "install", version, "--profile", "minimal"])?;
    install(&format!("toolchain {version}"), installed)?;
    let mut check = rustup(&["run", version, "cargo", "check"])?;
    check
        .args(["--workspace", "--all-targets", "--quiet"])
        .args(["--target-dir", "target/msrv"])
        .current_dir(root);
    ended(step::run(
        &format!("cargo check, Rust {version}"),
        &mut check,
    )?)
}

/// `cargo check` for aarch64.
///
/// # Errors
/// There is no rustup, or the target or its C compiler cannot be installed.
pub(crate) fn aarch64(root: &Path) -> anyhow::Result<ExitCode> {
    install::install(install::AARCH64)?;
    install(AARCH64, rustup(&["target", "add", AARCH64])?)?;
    let mut check = crate::cargo::cargo();
    check
        .args(["check", "--workspace", "--all-targets", "--quiet"])
        .args(["--target", AARCH64, "--target-dir", "target/aarch64"])
        .current_dir(root);
    ended(step::run("cargo check, aarch64", &mut check)?)
}

/// rustup, without what the cargo that runs this task says of its own toolchain.
fn rustup(arguments: &[&str]) -> anyhow::Result<Command> {
    if find_program("rustup").is_none() {
        bail!("this needs rustup, which installs other toolchains: https://rustup.rs");
    }
    let mut rustup = Command::new("rustup");
    rustup.args(arguments);
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        rustup.env_remove(name);
    }
    Ok(rustup)
}

fn install(what: &str, mut command: Command) -> anyhow::Result<()> {
    match step::run(&format!("install {what}, by rustup"), &mut command)? {
        true => Ok(()),
        false => bail!("rustup cannot install {what}"),
    }
}

fn ended(is_good: bool) -> anyhow::Result<ExitCode> {
    Ok(match is_good {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The value of `rust-version`.
fn rust_version(manifest: &str) -> Option<&str> {
    manifest.lines().find_map(|line| {
        let value = line.strip_prefix("rust-version")?.trim_start();
        Some(value.strip_prefix('=')?.trim().trim_matches('"'))
    })
}

#[cfg(test)]
mod tests {
    use super::rust_version;

    #[test]
    fn the_version_is_read() {
        let manifest = "[workspace.package]\nedition = \"2024\"\nrust-version = \"1.88\"\n";
        assert_eq!(rust_version(manifest), Some("1.88"));
        assert_eq!(rust_version("edition = \"2024\""), None);
    }
}
