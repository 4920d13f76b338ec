//! Settings that a reload can change: lines of `name = number`.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Settings that may change while the server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheSettings {
    /// The objective for the 99th percentile; `None`: batches of up to 64, whatever the tail.
    pub objective: Option<Duration>,
    /// Seconds after which an idle connection is closed; 0: never.
    pub idle_timeout_s: u32,
}

/// A settings file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// It cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A line is wrong.
    #[error("{path}:{line}: {message}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// What is wrong with it, and what is allowed.
        message: String,
    },
}

impl CacheSettings {
    /// These settings, changed by what a file says. The file is valid TOML of integers.
    ///
    /// # Errors
    /// The file cannot be read, or a line of it is wrong.
    pub fn read(self, path: &Path) -> Result<Self, SettingsError> {
        let text = std::fs::read_to_string(path).map_err(|source| SettingsError::Read {
            path: path.to_path_buf(),
            source,
        })?;
        let mut settings = self;
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            settings
                .apply(line)
                .map_err(|message| SettingsError::Line {
                    path: path.to_path_buf(),
                    line: number,
                    message,
                })?;
        }
        Ok(settings)
    }

    fn apply(&mut self, line: &str) -> Result<(), String> {
        let (key, value) = line
            .split_once('=')
            .ok_or_else(|| format!("{line:?} is no \"name = number\""))?;
        let (key, value) = (key.trim(), value.trim());
        let number: u32 = value.parse().map_err(|_| {
            format!(
                "{key} = {value}: a whole number up to {} is needed",
                u32::MAX
            )
        })?;
        match key {
            "objective_p99_us" if number == 0 => self.objective = None,
            "objective_p99_us" => self.objective = Some(Duration::from_micros(number.into())),
            "idle_timeout_s" => self.idle_timeout_s = number,
            _ => {
                return Err(format!(
                    "no setting {key:?}; there are objective_p99_us and idle_timeout_s"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_a_wrong_line_is_named() {
        let mut settings = CacheSettings::default();
        settings.apply("objective_p99_us = 500").unwrap();
        settings.apply("idle_timeout_s=7").unwrap();
        assert_eq!(settings.objective, Some(Duration::from_micros(500)));
        assert_eq!(settings.idle_timeout_s, 7);
        settings.apply("objective_p99_us = 0").unwrap();
        assert_eq!(settings.objective, None);
        assert!(
            settings
                .apply("memory = 3")
                .unwrap_err()
                .contains("\"memory\"")
        );
        assert!(
            settings
                .apply("idle_timeout_s = soon")
                .unwrap_err()
                .contains("soon")
        );
        assert!(settings.apply("idle_timeout_s").is_err());
        let path = Path::new("/no/such/file");
        assert!(
            settings
                .read(path)
                .unwrap_err()
                .to_string()
                .contains("/no/such/file")
        );
    }
}
