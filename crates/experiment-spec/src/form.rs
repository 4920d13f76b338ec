//! The form of single texts: names, commands and addresses.

use super::locate::Source;
use crate::error::SpecError;
use crate::template;
use crate::text::is_deceptive;

/// Whether it is one line of text, which says something.
#[must_use]
pub fn is_line(text: &str) -> bool {
    let is_odd = |it: char| it.is_control() || is_deceptive(it);
    !text.trim().is_empty() && !text.chars().any(is_odd)
}

/// A name stands in tables, pages and messages: it is one line, which says something.
pub(super) fn check_name(key: &str, name: &str, source: &Source) -> Result<(), SpecError> {
    if !is_line(name) {
        return Err(source.error(
            key,
            format!("{name:?} must be a line of text that is not empty"),
        ));
    }
    Ok(())
}

/// Names that templates use for something else.
pub(super) const RESERVED: [&str; 5] = ["port", "dir", "side", "spec_dir", "duration_s"];

pub(super) fn is_word(name: &str) -> bool {
    name.chars()
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A command begins with its program.
pub(super) fn check_command(
    key: &str,
    command: Option<&Vec<String>>,
    source: &Source,
) -> Result<(), SpecError> {
    match command.map(|words| words.first().map(String::as_str)) {
        Some(None | Some("")) => Err(source.error(key, "the command is empty")),
        _ => Ok(()),
    }
}

/// An address of HTTP, in which names in braces may stand; where it begins with one, that may be
/// all of it.
pub(super) fn check_url(key: &str, url: &str, source: &Source) -> Result<(), SpecError> {
    if url.starts_with('{') {
        return Ok(());
    }
    // Any value that may stand anywhere; names that there are not are another check's.
    let values = template::names(url).map(|name| (name, "1".to_owned()));
    let url = template::fill(url, &values.collect()).unwrap_or_else(|_| url.to_owned());
    http_client::check_url(&url).map_err(|why| source.error(key, why))
}
