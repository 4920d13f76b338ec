//! The audit log: which tenants were admitted, changed, removed and refused, one JSON line each.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::Access;
use serde::Serialize;

use crate::export::{Export, Exports};

/// One line.
#[derive(Serialize)]
struct Line<'a> {
    /// Seconds since 1970.
    unix_s: u64,
    event: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    export: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    objective: Option<qos::Objective>,
    #[serde(skip_serializing_if = "Option::is_none")]
    read_only: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    /// The clients of the export before are disconnected.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    ends_connections: bool,
}

/// The log, or none.
#[derive(Debug)]
pub(crate) struct Audit(Option<File>);

impl Audit {
    /// Opens the log to append to it.
    pub(crate) fn open(path: Option<&Path>) -> std::io::Result<Self> {
        let open = |path| File::options().append(true).create(true).open(path);
        Ok(Self(path.map(open).transpose()?))
    }

    /// Whether the log could be opened. A log that does not exist is not made.
    pub(crate) fn check(path: Option<&Path>) -> std::io::Result<()> {
        let Some(path) = path else { return Ok(()) };
        match File::options().append(true).open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let parent = path
                    .parent()
                    .filter(|parent| !parent.as_os_str().is_empty());
                let writable = Access::WRITE_OK | Access::EXEC_OK;
                Ok(rustix::fs::access(
                    parent.unwrap_or(Path::new(".")),
                    writable,
                )?)
            }
            other => other.map(drop),
        }
    }

    fn write(&mut self, line: &Line<'_>) {
        if let Some(file) = &mut self.0
            && let Ok(mut text) = serde_json::to_string(line)
        {
            text.push('\n');
            // A full disk must not end the service of disks.
            let _ = file.write_all(text.as_bytes());
        }
    }

    fn tenant(&mut self, event: &str, export: &Export, ends_connections: bool) {
        self.write(&Line {
            unix_s: now_s(),
            event,
            export: Some(&export.name),
            device: Some(&export.device.name),
            objective: export.objective,
            read_only: Some(export.info.is_read_only),
            reason: None,
            ends_connections,
        });
    }

    /// A configuration is in force in place of another.
    pub(crate) fn changed(&mut self, old: &Exports, new: &Exports) {
        for export in new {
            match old.iter().find(|other| other.name == export.name) {
                None => self.tenant("admitted", export, false),
                Some(other) if !std::sync::Arc::ptr_eq(other, export) => {
                    self.tenant("changed", export, !other.goes_on_as(export));
                }
                Some(_) => {}
            }
        }
        for export in old {
            if !new.iter().any(|other| other.name == export.name) {
                self.tenant("removed", export, true);
            }
        }
    }

    /// A configuration was not taken.
    pub(crate) fn refused(&mut self, reason: &str) {
        self.write(&Line {
            unix_s: now_s(),
            event: "refused",
            export: None,
            device: None,
            objective: None,
            read_only: None,
            reason: Some(reason),
            ends_connections: false,
        });
    }
}

fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_makes_no_log() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("audit.jsonl");
        assert!(Audit::check(None).is_ok());
        assert!(Audit::check(Some(&file)).is_ok());
        assert!(!file.exists());
        assert!(Audit::check(Some(&file.join("below"))).is_err());
        Audit::open(Some(&file)).unwrap();
        assert!(Audit::check(Some(&file)).is_ok());
    }
}
