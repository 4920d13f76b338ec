//! Commands of the user's.

use crate::error::ThrottleError;

/// Runs the command of an option to its end; its standard output.
pub(crate) fn shell(option: &'static str, command: &str) -> Result<String, ThrottleError> {
    let output = std::process::Command::new("sh")
        .args(["-c", command])
        .output()
        .map_err(|source| ThrottleError::Shell { option, source })?;
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
    if !output.status.success() {
        return Err(ThrottleError::Command {
            option,
            command: command.to_owned(),
            status: output.status,
            said,
        });
    }
    Ok(printed.into_owned())
}

#[cfg(test)]
mod tests {
    use super::shell;

    #[test]
    fn a_command_that_fails_is_named_with_what_it_said() {
        assert_eq!(shell("--metric", "echo 7").unwrap(), "7\n");
        let error = shell("--metric", "echo a; echo b; echo c; false").unwrap_err();
        assert_eq!(
            error.to_string(),
            "--metric: \"echo a; echo b; echo c; false\" ended with exit status: 1: a | … | c"
        );
        let error = shell("--before", "false").unwrap_err();
        assert!(error.to_string().ends_with(": it said nothing"), "{error}");
    }
}
