//! Gives the version of the binary the commit that it was built from.

use std::process::Command;

fn main() {
    let version = env!("CARGO_PKG_VERSION");
    let text = match commit() {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    };
    println!("cargo::rustc-env=SLACKLINE_VERSION={text}");
    // A debug build is made again and again: its commit may be that of an earlier one.
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo::rerun-if-changed=../../.git/logs/HEAD");
    }
}

/// `a1b2c3d4e5`; `None` of sources without a repository, such as a package's.
fn commit() -> Option<String> {
    let output = Command::new("git")
        .args(["rev-parse", "--short=10", "HEAD"])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
