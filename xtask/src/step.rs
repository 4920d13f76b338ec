//! One step of a task: a heading, a command whose output is seen, and how long it took.

use std::process::Command;
use std::time::Instant;

use anyhow::Context;

/// Runs the command under a heading and tells whether it ended well.
///
/// # Errors
/// The program could not be started at all.
pub(crate) fn run(name: &str, command: &mut Command) -> anyhow::Result<bool> {
    println!("\n==> {name}");
    let start = Instant::now();
    let status = command
        .status()
        .with_context(|| format!("{} cannot be run", command.get_program().display()))?;
    let verdict = if status.success() {
        "passed".to_owned()
    } else {
        format!("FAILED ({status})")
    };
    println!(
        "==> {name}: {verdict} in {:.1} s",
        start.elapsed().as_secs_f64()
    );
    Ok(status.success())
}
