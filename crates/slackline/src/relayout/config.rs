//! The configuration file of `slackline relayout start --config`: whom to watch, how often, and where to write what happens.
//!
//! ```toml
//! every_s = 30
//!
//! [[watch]]
//! exe = "mariadbd"
//! user = "mysql"
//!
//! [log]
//! file = "/var/log/slackline-relayout.log"
//! size_max_mib = 10
//! ```

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use serde::Deserialize;
use toml::Spanned;

/// What the file says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    once: bool,
    every_s: Option<Spanned<f64>>,
    #[serde(default)]
    watch: Vec<Entry>,
    log: Option<LogFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    exe: Spanned<String>,
    user: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LogFile {
    file: Spanned<PathBuf>,
    size_max_mib: Option<Spanned<u64>>,
}

/// Whom to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Watch {
    /// The executable's name without its directory.
    pub(super) exe: String,
    /// Only processes of this user.
    pub(super) uid: Option<u32>,
}

/// A configuration file, understood.
#[derive(Debug, PartialEq)]
pub(super) struct Config {
    pub(super) once: bool,
    pub(super) every_s: Option<f64>,
    pub(super) watch: Vec<Watch>,
    /// Where messages go, and the size in bytes at which a new file is begun.
    pub(super) log: Option<(PathBuf, u64)>,
}

/// A log begins a new file at this size where the configuration does not say.
const LOG_MIB: u64 = 10;

/// Reads a configuration file.
///
/// # Errors
/// Each names file, line and key.
pub(super) fn read(path: &Path) -> anyhow::Result<Config> {
    let text = fs::read_to_string(path).map_err(|error| anyhow!("{}: {error}", path.display()))?;
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    parse(path, &text, &passwd)
}

fn parse(path: &Path, text: &str, passwd: &str) -> anyhow::Result<Config> {
    let at = |span: Range<usize>, why: &str| {
        let before = &text[..span.start.min(text.len())];
        let number = before.matches('\n').count() + 1;
        let line = text.lines().nth(number - 1).unwrap_or_default();
        let key = line.split(['=', '#']).next().unwrap_or_default().trim();
        anyhow!("{}:{number}: {key}: {why}", path.display())
    };
    let file: File = toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or_default();
        at(span, error.message())
    })?;
    if let Some(every_s) = &file.every_s
        && !(1.0..=86_400.0).contains(every_s.get_ref())
    {
        return Err(at(every_s.span(), "must be between 1 and 86400"));
    }
    if file.watch.is_empty() {
        return Err(anyhow!(
            "{}: watch: name at least one executable: [[watch]] exe = \"mariadbd\"",
            path.display()
        ));
    }
    let mut watch = Vec::new();
    for entry in &file.watch {
        let exe = entry.exe.get_ref();
        if exe.is_empty() || exe.contains('/') {
            return Err(at(
                entry.exe.span(),
                "must be an executable's name without its directory",
            ));
        }
        let uid = match &entry.user {
            None => None,
            Some(user) => Some(uid(user.get_ref(), passwd).ok_or_else(|| {
                let why = format!("no user {:?} on this host", user.get_ref());
                at(user.span(), &why)
            })?),
        };
        let exe = exe.clone();
        watch.push(Watch { exe, uid });
    }
    let log = match file.log {
        None => None,
        Some(log) => {
            if !log.file.get_ref().is_absolute() {
                return Err(at(log.file.span(), "must be an absolute path"));
            }
            if let Some(mib) = &log.size_max_mib
                && !(1..=10_000).contains(mib.get_ref())
            {
                return Err(at(mib.span(), "must be between 1 and 10000"));
            }
            let mib = log.size_max_mib.map_or(LOG_MIB, Spanned::into_inner);
            Some((log.file.into_inner(), mib << 20))
        }
    };
    Ok(Config {
        once: file.once,
        every_s: file.every_s.map(Spanned::into_inner),
        watch,
        log,
    })
}

/// A user's number, by name or as it is (passwd(5)).
fn uid(user: &str, passwd: &str) -> Option<u32> {
    let of_line = |line: &str| {
        let mut fields = line.split(':');
        (fields.next()? == user).then(|| fields.nth(1)?.parse().ok())?
    };
    passwd
        .lines()
        .find_map(of_line)
        .or_else(|| user.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\nmysql:x:107:115::/nonexistent:/bin/false\n";

    fn error(text: &str) -> String {
        parse(Path::new("r.toml"), text, PASSWD)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_file_is_understood() {
        let text = "every_s = 5\n[[watch]]\nexe = \"mariadbd\"\nuser = \"mysql\"\n[[watch]]\nexe = \"postgres\"\n\
                    [log]\nfile = \"/var/log/x\"\nsize_max_mib = 2\n";
        let config = parse(Path::new("r.toml"), text, PASSWD).unwrap();
        let watch = |exe: &str, uid| Watch {
            exe: exe.to_owned(),
            uid,
        };
        let wanted = Config {
            once: false,
            every_s: Some(5.0),
            watch: vec![watch("mariadbd", Some(107)), watch("postgres", None)],
            log: Some(("/var/log/x".into(), 2 << 20)),
        };
        assert_eq!(config, wanted);
    }

    #[test]
    fn errors_name_file_line_and_key() {
        for (text, said) in [
            ("every_s = \"x\"\n", "r.toml:1: every_s: invalid type"),
            ("\nevery_s = 0.1\n", "r.toml:2: every_s: must be between"),
            ("\n\nevry_s = 1\n", "r.toml:3: evry_s: unknown field"),
            ("once = true\n", "r.toml: watch: name at least one"),
            ("[[watch]]\nexe = \"/bin/x\"\n", "r.toml:2: exe: must be"),
            (
                "[[watch]]\nexe = \"x\"\nuser = \"nobody-here\"\n",
                "r.toml:3: user: no user \"nobody-here\"",
            ),
            (
                "[[watch]]\nexe = \"x\"\n[log]\nfile = \"x\"\n",
                "r.toml:4: file: must be an absolute",
            ),
            (
                "[[watch]]\nexe = \"x\"\n[log]\nfile = \"/x\"\nsize_max_mib = 0\n",
                "r.toml:5: size_max_mib: must be",
            ),
            ("[[watch]\n", "r.toml:1:"),
        ] {
            let error = error(text);
            assert!(error.starts_with(said), "{error}\n{said}");
        }
    }
}
