//! Variables of a command's environment.

use std::path::Path;

/// What a file holds as the value of a variable: its text without the end of the last line.
pub fn secret_in(file: &Path) -> Result<String, String> {
    let wrong = |why: String| format!("{}: {why}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    if text.contains('\0') {
        return Err(wrong("it holds a NUL, which no variable can".into()));
    }
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
}

/// Whether a shell passes a variable of that name on (POSIX, "Name").
pub fn is_variable(name: &str) -> Result<(), String> {
    let is_name = name
        .bytes()
        .all(|it| it.is_ascii_alphanumeric() || it == b'_')
        && name.bytes().next().is_some_and(|it| !it.is_ascii_digit());
    match is_name {
        true => Ok(()),
        false => Err("a value from a file needs a name of letters, digits and _".into()),
    }
}
