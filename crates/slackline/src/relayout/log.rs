//! Where a watch writes what happens: standard error, or a file that begins anew when it is full.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use crate::output::message;

/// Messages of a watch.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// The file, and its size in bytes at most. The one before it stays, with `.1` behind its name.
    file: Option<(PathBuf, u64)>,
}

impl Log {
    pub(super) fn new(file: Option<(PathBuf, u64)>) -> Self {
        Self { file }
    }

    /// Writes a message. What cannot be written to the file goes to standard error, with the
    /// reason.
    pub(super) fn say(&self, text: &str) {
        let Some((path, bytes_max)) = &self.file else {
            return message(text);
        };
        let line = format!(
            "{} {text}\n",
            jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ")
        );
        let length = fs::metadata(path).map_or(0, |metadata| metadata.len());
        if length + line.len() as u64 > *bytes_max {
            let mut before = path.clone().into_os_string();
            before.push(".1");
            let _ = fs::rename(path, before);
        }
        let written = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .and_then(|mut file| file.write_all(line.as_bytes()));
        if let Err(error) = written {
            message(&format!("{}: {error}: {text}", path.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_begins_anew_and_the_one_before_it_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = Log::new(Some((path.clone(), 200)));
        for number in 0..20 {
            log.say(&format!("message {number}"));
        }
        let before = fs::read_to_string(dir.path().join("log.1")).unwrap();
        let now = fs::read_to_string(&path).unwrap();
        assert!(now.len() <= 200 && before.len() <= 200);
        assert!(now.ends_with("message 19\n"), "{now}");
    }
}
