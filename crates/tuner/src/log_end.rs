//! The beginning and the end of a log, for messages and reports.

use std::fs::File;
use std::path::Path;

use crate::spec::is_deceptive;

/// How much of the end of a log is read for a message, which shows a few lines of it.
const TAIL_BYTES: u64 = 4096;

/// How much of the end of a service's log is kept: of one that failed, and of one that was
/// measured. Ten thousand evaluations are kept, most of them measured.
const KEPT_LINES: usize = 200;
pub(crate) const FAILED_BYTES: u64 = 64 << 10;
pub(crate) const MEASURED_BYTES: u64 = 8 << 10;
/// How many lines of the beginning and of the end of a log a message shows, and of the end a
/// report.
const HEAD_LINES: usize = 3;
const TAIL_LINES: usize = 5;
pub(crate) const OUTPUT_LINES: usize = 20;

/// What a program has printed, as a text that looks like what it is and can be kept.
fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace(is_deceptive, "\u{fffd}")
}

/// The end of a file, and whether something was before it.
fn read_end(path: &Path, most_bytes: u64) -> Option<(String, bool)> {
    use std::io::{Read as _, Seek as _};
    let mut file = File::open(path).ok()?;
    let length_bytes = file.metadata().ok()?.len();
    let skipped_bytes = length_bytes.saturating_sub(most_bytes);
    file.seek(std::io::SeekFrom::Start(skipped_bytes)).ok()?;
    let mut bytes = Vec::new();
    file.take(most_bytes).read_to_end(&mut bytes).ok()?;
    Some((text_of(&bytes), skipped_bytes > 0))
}

/// The last whole lines of a log.
pub(crate) fn end_of_file(path: &Path, most_bytes: u64) -> Option<String> {
    let (text, is_cut) = read_end(path, most_bytes)?;
    let mut lines: Vec<&str> = text.lines().collect();
    if is_cut && lines.len() > 1 {
        lines.remove(0);
    }
    let last = &lines[lines.len().saturating_sub(KEPT_LINES)..];
    let text = last.join("\n");
    (!text.trim().is_empty()).then_some(text)
}

/// The last lines of a log that are not empty.
pub(crate) fn last_lines(path: &Path, count: usize) -> Option<Vec<String>> {
    let (text, _) = read_end(path, TAIL_BYTES)?;
    let mut lines: Vec<String> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(str::to_owned)
        .collect();
    let tail = lines.split_off(lines.len().saturating_sub(count));
    (!tail.is_empty()).then_some(tail)
}

/// The first and the last lines of a log: a tool often says first what it was asked for, and last
/// why it gave up.
pub(crate) fn extract(path: &Path) -> Option<String> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    let length_bytes = file.metadata().ok()?.len();
    file.take(TAIL_BYTES).read_to_end(&mut bytes).ok()?;
    let text = text_of(&bytes);
    let first: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    if length_bytes <= TAIL_BYTES && first.len() <= HEAD_LINES + TAIL_LINES {
        return (!first.is_empty()).then(|| first.join(" | "));
    }
    let last = last_lines(path, TAIL_LINES)?;
    let first = &first[..first.len().min(HEAD_LINES)];
    Some(format!("{} | … | {}", first.join(" | "), last.join(" | ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_log_looks_like_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "a\0b \u{202e}c\n").unwrap();
        let shown = "a\u{fffd}b \u{fffd}c";
        assert_eq!(end_of_file(&path, MEASURED_BYTES).as_deref(), Some(shown));
        assert_eq!(extract(&path).as_deref(), Some(shown));
    }
}
