//! `cargo xtask docs`: the manual as a book. `cargo xtask accept`: the texts that tests hold the
//! code against.

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

/// The tests that hold messages, tables, help and pages against snapshots.
const SNAPSHOTS: &[(&str, &[&str])] = &[
    (
        "snapshots: messages and tables",
        &[
            "--package=slackline",
            "--package=tuner",
            "--bin=slackline",
            "--lib",
            "--",
            "results_of_a_simulated_tune",
            "everything_about_the_tenants_is_said",
            "a_moment_without_a_figure_says_so",
            "a_missing_report_is_shown",
        ],
    ),
    (
        "snapshots: help, messages and pages",
        &[
            "--package=slackline",
            "--test=blackbox",
            "--",
            "help_texts",
            "usage_errors_end_with_2",
            "check_names_file_line_and_key",
            "pages_in_words",
        ],
    ),
];

/// `cargo xtask accept`: whatever the code says now is taken for right. The difference is for the
/// eyes of whoever commits it.
///
/// # Errors
/// A program cannot be started, or a test fails for another reason.
pub(crate) fn accept(root: &Path) -> anyhow::Result<ExitCode> {
    write_reference(root)?;
    for (name, tests) in SNAPSHOTS {
        let mut snapshots = cargo();
        snapshots
            .args(["test", "--quiet"])
            .args(*tests)
            .env("INSTA_UPDATE", "always")
            .current_dir(root);
        if !step::run(name, &mut snapshots)? {
            bail!("the snapshots could not be written");
        }
    }
    println!("\nRead what has changed: git diff");
    Ok(ExitCode::SUCCESS)
}

/// Writes the pages that the code itself makes.
fn write_reference(root: &Path) -> anyhow::Result<()> {
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
    Ok(())
}

/// Writes the pages that the code itself makes, and builds the book into `target/book`.
///
/// # Errors
/// mdBook cannot be installed, or a program cannot be started.
pub(crate) fn run(root: &Path) -> anyhow::Result<ExitCode> {
    write_reference(root)?;
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
