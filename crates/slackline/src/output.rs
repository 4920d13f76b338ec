//! What commands write: data to standard output, messages to standard error, results to files.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Writes data to standard output; a reader that has gone away is no error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    print_bytes(text.as_bytes())
}

/// As [`print()`], for data that is no text.
pub(crate) fn print_bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("standard output"),
    }
}

/// Prints a report as text; `--json FILE` writes it too and says that `what` is there, and
/// `--json -` prints it instead.
pub(crate) fn publish(
    json: Option<&Path>,
    report: &impl serde::Serialize,
    text: &str,
    what: &str,
) -> anyhow::Result<()> {
    let Some(file) = json else {
        return print(text);
    };
    let json = serde_json::to_string_pretty(report)? + "\n";
    if file.as_os_str() == "-" {
        return print(&json);
    }
    // The text first: it is not lost where the file cannot be written.
    print(text)?;
    std::fs::write(file, json).with_context(|| format!("{}", file.display()))?;
    message(&format!("{what} is in {}.", file.display()));
    Ok(())
}

/// Files that a command writes at its end can be written: minutes or hours later is too late to
/// find out. What is in them stays until then, and those that are not there yet are not made. One
/// file is not given twice: the second would replace the first.
pub(crate) fn ensure_writable(files: &[Option<&Path>]) -> anyhow::Result<()> {
    let mut places = std::collections::HashSet::new();
    for file in files
        .iter()
        .flatten()
        .filter(|file| file.as_os_str() != "-")
    {
        let is_new = std::fs::symlink_metadata(file).is_err();
        let place = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(file)
            .and_then(|_| std::fs::canonicalize(file))
            .with_context(|| format!("{}", file.display()))?;
        // What is written to a device is not replaced.
        let is_other = !place.is_file() || places.insert(place);
        if is_new {
            std::fs::remove_file(file).with_context(|| format!("{}", file.display()))?;
        }
        anyhow::ensure!(
            is_other,
            "{} is given for two options that write a file: the second would replace the first, so give each option its own file",
            file.display()
        );
    }
    Ok(())
}

/// The file of an option whose result cannot go to standard output.
pub(crate) fn file_to_write(text: &str) -> Result<PathBuf, String> {
    match text {
        "-" => Err("this result is not printed: name a file".to_owned()),
        _ => Ok(PathBuf::from(text)),
    }
}

/// An error with its causes, but for those that the one above already tells of.
pub(crate) fn error_chain(error: &anyhow::Error) -> String {
    let causes = error.chain().map(ToString::to_string);
    causes
        .reduce(|text, cause| match text.contains(&cause) {
            true => text,
            false => format!("{text}: {cause}"),
        })
        .unwrap_or_default()
}

/// Writes a message to standard error, where nobody may be listening.
pub(crate) fn message(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

#[cfg(test)]
mod tests {
    use relayout::RelayoutError;

    use super::error_chain;

    #[test]
    fn an_error_tells_each_cause_once() {
        let error = anyhow::Error::from(RelayoutError::Refused {
            pid: 7,
            call: "mmap",
            source: std::io::Error::other("no memory"),
        });
        assert_eq!(error_chain(&error), "process 7 may not mmap: no memory");
        assert_eq!(
            error_chain(&error.context("the service")),
            "the service: process 7 may not mmap: no memory"
        );
        // Also where more is said after it.
        let error = anyhow::Error::from(perf_events::Error::Tracefs {
            source: std::io::Error::other("no permission"),
        });
        assert_eq!(error_chain(&error).matches("no permission").count(), 1);
    }
}
