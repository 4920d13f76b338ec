//! `cargo xtask dist`: the Debian package; with `--check` also a test of it in a minimal Debian.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use crate::cargo::build_release;
use crate::{install, step};

/// Where the files that the package holds, and that no source file is, are generated.
const STAGE: &str = "target/dist";

/// Builds the package. With `is_checked`, installs, uses and removes it in a chroot.
///
/// # Errors
/// A tool cannot be installed or started, or a file cannot be written.
pub(crate) fn run(root: &Path, is_checked: bool) -> anyhow::Result<ExitCode> {
    install::install(install::DIST)?;
    let cargo_deb = install::from_crates_io(root, "cargo-deb")?;
    let binary = build_release(root)?;
    stage(root, &binary)?;
    let package = root.join(STAGE).join("slackline.deb");
    let mut deb = Command::new(cargo_deb);
    // The binary is built already, by the command that the manual names.
    deb.args([
        "--quiet",
        "--no-build",
        "--no-strip",
        "--package",
        "slackline",
    ])
    .arg("--output")
    .arg(&package)
    .current_dir(root);
    if !step::run("cargo deb", &mut deb)? {
        bail!("the package could not be made");
    }
    println!("\nThe package is {}.", package.display());
    if !is_checked {
        return Ok(ExitCode::SUCCESS);
    }
    match check(root, &package)? {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::FAILURE),
    }
}

/// Generates completions, man pages, schemas and systemd units.
fn stage(root: &Path, binary: &Path) -> anyhow::Result<()> {
    let stage = root.join(STAGE);
    match std::fs::remove_dir_all(&stage) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("{}", stage.display()));
        }
        _ => {}
    }
    for directory in ["man", "systemd", "schema"] {
        std::fs::create_dir_all(stage.join(directory))?;
    }
    let mut stripped = Command::new("strip");
    stripped.arg(binary).arg("-o").arg(stage.join("slackline"));
    output(&mut stripped)?;
    for (shell, file) in [
        ("bash", "slackline.bash"),
        ("zsh", "_slackline"),
        ("fish", "slackline.fish"),
    ] {
        let script = output(Command::new(binary).args(["completions", shell]))?;
        std::fs::write(stage.join(file), script)?;
    }
    output(Command::new(binary).arg("man").arg(stage.join("man")))?;
    for entry in std::fs::read_dir(stage.join("man"))? {
        output(Command::new("gzip").args(["-9n"]).arg(entry?.path()))?;
    }
    for (file, arguments) in [
        ("experiment.json", &["schema"][..]),
        ("report.json", &["schema", "--report"]),
        ("isolate.json", &["isolate", "schema"]),
        ("relayout.json", &["relayout", "schema"]),
        ("serve-block.json", &["serve-block", "schema"]),
    ] {
        let schema = output(Command::new(binary).args(arguments))?;
        std::fs::write(stage.join("schema").join(file), schema)?;
    }
    for entry in std::fs::read_dir(root.join("contrib/systemd"))? {
        let path = entry?.path();
        let (Some(name), Some("service")) =
            (path.file_name(), path.extension().and_then(OsStr::to_str))
        else {
            continue;
        };
        // A package's programs are in /usr/bin; what a person installs by hand is in /usr/local.
        let unit = std::fs::read_to_string(&path)?.replace("/usr/local/bin/", "/usr/bin/");
        std::fs::write(stage.join("systemd").join(name), unit)?;
    }
    Ok(())
}

/// What a command prints.
fn output(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let name = format!("{command:?}");
    let ended = command.output().with_context(|| name.clone())?;
    if !ended.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&ended.stderr).trim());
    }
    Ok(ended.stdout)
}

/// Installs, uses and removes the package in a minimal Debian, made anew.
fn check(root: &Path, package: &Path) -> anyhow::Result<bool> {
    let targets = output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(REPO_URI) $(RELEASE)",
        "Created-By: Packages",
    ]))?;
    // The machine's own mirror and release: the package is for the release that it was built on.
    let targets = String::from_utf8(targets)?;
    let (mirror, release) = targets
        .lines()
        .next()
        .and_then(|line| line.split_once(' '))
        .context("apt-get indextargets names no package index: run apt-get update")?;
    let mut script = Command::new("unshare");
    script
        .args(["--mount", "--pid", "--fork", "--kill-child"])
        .arg("bash")
        .arg(root.join("xtask/dist/check.sh"))
        .args([Path::new(mirror), Path::new(release), package])
        .current_dir(root);
    step::run(
        "install, use and remove the package in a minimal Debian",
        &mut script,
    )
}
