//! Commands of the user's.

use anyhow::ensure;

/// Runs a command of the user's to its end; its standard output.
pub(super) fn shell(command: &str) -> anyhow::Result<String> {
    let output = std::process::Command::new("sh")
        .args(["-c", command])
        .output()?;
    let (error, printed) = (
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&output.stdout),
    );
    // sysbench complains on standard output.
    let said = match error.trim() {
        "" => printed.trim(),
        error => error,
    };
    let said = match said.lines().collect::<Vec<_>>().as_slice() {
        [] => "it said nothing".to_owned(),
        [only] => (*only).to_owned(),
        [first, last] => format!("{first} | {last}"),
        [first, .., last] => format!("{first} | … | {last}"),
    };
    ensure!(
        output.status.success(),
        "{command:?} ended with {}: {said}",
        output.status
    );
    Ok(printed.into_owned())
}
