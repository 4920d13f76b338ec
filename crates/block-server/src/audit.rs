//! The audit log: which tenants were admitted, changed, removed and refused, one JSON line each.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::Access;
use serde::Serialize;

use crate::config::{Backing, BlockConfig, ConfigError, Place};
use crate::device::{identity_of, status_of};
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

/// What the log's file is for otherwise.
fn other_use(config: &BlockConfig, place: &Place, log: &Path) -> Option<String> {
    let identity = |path: &Path| {
        let (status, is_block) = status_of(path).ok()?;
        Some(identity_of(&status, is_block))
    };
    let own = identity(log);
    let is_log = |path: &Path| path == log || (own.is_some() && identity(path) == own);
    if is_log(&place.file) {
        return Some("the configuration".to_owned());
    }
    for device in &config.devices {
        if matches!(&device.backing, Backing::Path { path, .. } if is_log(path)) {
            return Some(format!("the device {:?}", device.name));
        }
        if device.calibration_path().is_some_and(is_log) {
            return Some(format!("the calibration of {:?}", device.name));
        }
    }
    let tls = config.tls.as_ref()?;
    let files = [
        (Some(&tls.certificate), "tls.certificate"),
        (Some(&tls.key), "tls.key"),
        (tls.client_ca.as_ref(), "tls.client_ca"),
    ];
    let mut files = files.into_iter();
    let (_, key) = files.find(|(file, _)| file.is_some_and(|file| is_log(&file.path)))?;
    Some(format!("the file of `{key}`"))
}

/// Does something with the path of a configuration's log, where it has one of its own.
fn with_log<T>(
    config: &BlockConfig,
    act: impl Fn(&Path) -> std::io::Result<T>,
) -> Result<Option<T>, ConfigError> {
    let (Some(log), Some(place)) = (&config.audit_log, config.place_of("audit_log")) else {
        return Ok(None);
    };
    if let Some(other) = other_use(config, place, log) {
        let log = log.display();
        let text = format!("{log} is {other}, which the log would damage: name a file of its own");
        return Err(place.error(text));
    }
    let done = act(log)
        .map_err(|error| place.error(format!("{} cannot be opened: {error}", log.display())))?;
    Ok(Some(done))
}

/// Writes a line whole or not at all.
fn append(file: &mut File, line: &[u8]) -> std::io::Result<()> {
    let before = file.metadata()?.len();
    file.write_all(line).inspect_err(|_| {
        // Whatever the next line is, it does not follow half a line.
        let _ = file.set_len(before);
    })
}

/// The log, or none.
#[derive(Debug)]
pub(crate) struct Audit {
    file: Option<(File, PathBuf)>,
    /// Lines in a row that could not be written, and why.
    lost: u64,
    error: Option<std::io::Error>,
}

impl Audit {
    /// Opens the log of a configuration to append to it.
    ///
    /// # Errors
    /// The log cannot be opened, or is a file that has another use.
    pub(crate) fn open(config: &BlockConfig) -> Result<Self, ConfigError> {
        let open = |path: &Path| {
            let file = File::options().append(true).create(true).open(path)?;
            Ok((file, path.to_path_buf()))
        };
        Ok(Self {
            file: with_log(config, open)?,
            lost: 0,
            error: None,
        })
    }

    /// Whether the log could be opened. A log that does not exist is not made.
    ///
    /// # Errors
    /// See [`Audit::open`].
    pub(crate) fn check(config: &BlockConfig) -> Result<(), ConfigError> {
        with_log(config, Self::check_path).map(drop)
    }

    /// Whether the log is a file of its own.
    ///
    /// # Errors
    /// The log is a device, the configuration, or another file that it names.
    pub(crate) fn check_is_alone(config: &BlockConfig) -> Result<(), ConfigError> {
        with_log(config, |_| Ok(())).map(drop)
    }

    fn check_path(path: &Path) -> std::io::Result<()> {
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

    /// A line that cannot be written is counted: a full disk must not end the service of disks.
    fn write(&mut self, line: &Line<'_>) {
        if let Some((file, _)) = &mut self.file
            && let Ok(mut text) = serde_json::to_string(line)
        {
            text.push('\n');
            if let Err(error) = append(file, text.as_bytes()) {
                self.lost += 1;
                self.error = Some(error);
            }
        }
    }

    /// What to tell the operator of lines that were lost since the last call.
    pub(crate) fn take_trouble(&mut self) -> Option<String> {
        let (error, (_, path)) = (self.error.take()?, self.file.as_ref()?);
        let lost = std::mem::take(&mut self.lost);
        let lines = if lost == 1 { "line" } else { "lines" };
        let path = path.display();
        Some(format!(
            "audit_log: {lost} {lines} could not be written to {path}: {error}"
        ))
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
        let by_name = |exports: &Exports| -> HashMap<String, Arc<Export>> {
            let named = exports
                .iter()
                .map(|export| (export.name.clone(), Arc::clone(export)));
            named.collect()
        };
        let (before, now) = (by_name(old), by_name(new));
        for export in new {
            match before.get(&export.name) {
                None => self.tenant("admitted", export, false),
                Some(other) if !Arc::ptr_eq(other, export) => {
                    self.tenant("changed", export, !other.goes_on_as(export));
                }
                Some(_) => {}
            }
        }
        for export in old {
            if !now.contains_key(&export.name) {
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

    /// A disk without room, as the kernel has one.
    #[test]
    fn lines_that_are_lost_are_told() {
        let text = "audit_log = \"/dev/full\"\n[[device]]\nname = \"ram\"\nmemory = \"1MiB\"\n\
                    [[tenant]]\nexport = \"a\"\ndevice = \"ram\"\n";
        let config = BlockConfig::parse(Path::new("b.toml"), text).unwrap();
        let mut audit = Audit::open(&config).unwrap();
        assert_eq!(audit.take_trouble(), None);
        audit.refused("no");
        audit.refused("again no");
        assert_eq!(
            audit.take_trouble().as_deref(),
            Some(
                "audit_log: 2 lines could not be written to /dev/full: No space left on device \
                 (os error 28)"
            )
        );
        assert_eq!(audit.take_trouble(), None);
    }

    #[test]
    fn the_log_is_a_file_of_its_own_and_a_check_makes_none() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["blocks.toml", "disk", "cert", "ca", "curve"] {
            std::fs::write(at(name), "").unwrap();
        }
        std::fs::hard_link(at("disk"), at("link")).unwrap();
        let parse = |log: &str| {
            let text = format!(
                "audit_log = {:?}\n[tls]\ncertificate = {:?}\nkey = \"/no/key\"\nclient_ca = {:?}\n\
                 [[device]]\npath = {:?}\ncalibration = {:?}\n[[device]]\npath = {:?}\n\
                 create = \"1MiB\"\n[[tenant]]\nexport = \"a\"\ndevice = {3:?}\n",
                at(log),
                at("cert"),
                at("ca"),
                at("disk"),
                at("curve"),
                at("new")
            );
            BlockConfig::parse(&at("blocks.toml"), &text).unwrap()
        };
        let is_good = |log: &str| Audit::check(&parse(log)).is_ok();
        assert!(is_good("audit.jsonl"));
        assert!(!at("audit.jsonl").exists());
        Audit::open(&parse("audit.jsonl")).unwrap();
        assert!(is_good("audit.jsonl"));
        for (log, expected) in [
            ("audit.jsonl/below", "cannot be opened: Not a directory"),
            ("blocks.toml", "is the configuration"),
            ("disk", "is the device"),
            ("link", "is the device"),
            ("new", "is the device"),
            ("curve", "is the calibration of"),
            ("cert", "is the file of `tls.certificate`"),
            ("ca", "is the file of `tls.client_ca`"),
        ] {
            let error = Audit::open(&parse(log)).unwrap_err().to_string();
            let place = format!("{}:1: audit_log: ", at("blocks.toml").display());
            assert!(
                error.starts_with(&place) && error.contains(expected),
                "{error}"
            );
            assert!(error.contains(&at(log).display().to_string()), "{error}");
            assert!(Audit::check(&parse(log)).is_err());
        }
        assert!(!at("new").exists());
    }
}
