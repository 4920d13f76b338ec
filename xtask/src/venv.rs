//! Python environments for the tools that come from PyPI.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::bail;

use crate::step;

/// A virtual environment with these packages; made once. Its Python.
pub(crate) fn environment(directory: &Path, requirements: &Path) -> anyhow::Result<PathBuf> {
    let python = directory.join("bin/python");
    let ready = directory.join("ready");
    let wanted = std::fs::read(requirements)?;
    if std::fs::read(&ready).is_ok_and(|made_for| made_for == wanted) {
        return Ok(python);
    }
    let mut make = Command::new("python3");
    make.args(["-m", "venv", "--clear"]).arg(directory);
    let mut install = Command::new(&python);
    install
        .args(["-m", "pip", "install", "--quiet", "--requirement"])
        .arg(requirements);
    if !(step::run("a Python virtual environment", &mut make)?
        && step::run("its packages, from PyPI", &mut install)?)
    {
        bail!(
            "the packages could not be installed into {}",
            directory.display()
        );
    }
    std::fs::write(ready, wanted)?;
    Ok(python)
}
