//! One step of a task: a heading, a command whose output is seen, and how long it took.

use std::process::{Child, Command};
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

/// A server that ends with the task.
pub(crate) struct Started(pub(crate) Child);

impl Drop for Started {
    fn drop(&mut self) {
        // It is asked to end by its own signal handler's signal, so that it restores what it
        // changed.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}
