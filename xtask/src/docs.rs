//! `cargo xtask docs`: the manual as a book.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::bail;

use crate::cargo::cargo;
use crate::{install, step};

/// The tests that write a page of the reference, where it is not what the code says.
const REFERENCE: &[(&str, &[&str])] = &[
    (
        "schemas, command line, API",
        &["--package=slackline", "--bin=slackline", "the_reference"],
    ),
    (
        "metrics",
        &["--package=slackline", "--test=blackbox", "the_reference"],
    ),
];

/// Writes the pages that the code itself makes, and builds the book into `target/book`.
///
/// # Errors
/// mdBook cannot be installed, or a program cannot be started.
pub(crate) fn run(root: &Path) -> anyhow::Result<ExitCode> {
    for (name, tests) in REFERENCE {
        let mut reference = cargo();
        reference
            .args(["test", "--quiet"])
            .args(*tests)
            .env("SLACKLINE_WRITE_DOCS", "1")
            .current_dir(root);
        if !step::run(&format!("the reference: {name}"), &mut reference)? {
            bail!("the reference could not be written");
        }
    }
    let mdbook = install::from_crates_io(root, "mdbook")?;
    let mut book = Command::new(mdbook);
    book.arg("build").arg(root.join("docs"));
    if !step::run("mdbook build", &mut book)? {
        return Ok(ExitCode::FAILURE);
    }
    println!(
        "\nThe manual is {}.",
        root.join("target/book/index.html").display()
    );
    Ok(ExitCode::SUCCESS)
}
