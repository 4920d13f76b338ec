//! Regular expressions that find a number in a text.

use regex::{Regex, RegexBuilder};

/// Whether a pattern compiles and has a group to read the number from, for checking a spec before
/// anything runs.
///
/// # Errors
/// What is wrong with it.
///
/// ```
/// assert!(experiment_spec::check_regex(r"tps = ([0-9.]+)").is_ok());
/// assert!(experiment_spec::check_regex(r"tps = [0-9.]+").is_err());
/// ```
pub fn check_regex(pattern: &str) -> Result<(), String> {
    compile_regex(pattern).map(|_| ())
}

/// The pattern, where `^` and `$` match at lines.
///
/// # Errors
/// What is wrong with it.
pub fn compile_regex(pattern: &str) -> Result<Regex, String> {
    let regex = RegexBuilder::new(pattern)
        .multi_line(true)
        .build()
        .map_err(|error| error.to_string())?;
    if regex.captures_len() < 2 {
        return Err(
            "it has no group: put the number in parentheses, like `rate: ([0-9.]+)`".to_owned(),
        );
    }
    Ok(regex)
}
