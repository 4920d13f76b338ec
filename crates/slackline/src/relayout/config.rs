//! The configuration file of `slackline relayout start --config`: whom to watch, how often, and
//! where to write what happens.
//!
//! ```toml
//! every_s = 30
//! hold_off_s = 300
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
use std::path::{Path, PathBuf};

use ::relayout::DriverSettings;
use schemars::JsonSchema;
use serde::Deserialize;
use tuner::SpecError;
use tuner::spec::Source;

/// The configuration of `slackline relayout start`.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Relayout")]
#[serde(deny_unknown_fields)]
struct File {
    /// `true`: end when every process is optimised, declined or rolled back, as with `--once`.
    #[serde(default)]
    once: bool,
    /// How often to look for processes, in seconds. `--every-s` takes precedence.
    #[schemars(range(min = 1, max = 86_400), extend("default" = EVERY_S))]
    every_s: Option<f64>,
    /// Shortest time between two relayouts of one process, in seconds. `--hold-off-s` takes
    /// precedence.
    #[schemars(range(min = 0, max = 86_400), extend("default" = DriverSettings::default().hold_off.as_secs_f64()))]
    hold_off_s: Option<f64>,
    /// The processes to watch. At least one entry is needed.
    #[schemars(length(min = 1))]
    #[serde(default)]
    watch: Vec<Entry>,
    /// Where messages go. By default to standard error.
    log: Option<LogFile>,
}

/// Processes to watch.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Watch")]
#[serde(deny_unknown_fields)]
struct Entry {
    /// The name of the executable, without its directory.
    #[schemars(regex(pattern = "^[^/]+$"))]
    exe: String,
    /// Watch only processes of this user: a name in /etc/passwd, or a uid in quotes. By default
    /// the processes of all users.
    user: Option<String>,
}

/// A log file.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Log")]
#[serde(deny_unknown_fields)]
struct LogFile {
    /// The absolute path of the log.
    file: PathBuf,
    /// Size in MiB at which a new file begins. The old file stays beside it.
    #[schemars(range(min = 1, max = 10_000), extend("default" = LOG_MIB))]
    size_max_mib: Option<u64>,
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
    pub(super) hold_off_s: Option<f64>,
    pub(super) watch: Vec<Watch>,
    /// Where messages go, and the size in bytes at which a new file is begun.
    pub(super) log: Option<(PathBuf, u64)>,
}

/// How often the processes are looked for where nobody says, in seconds.
pub(super) const EVERY_S: f64 = 30.0;

/// A log begins a new file at this size where the configuration does not say.
const LOG_MIB: u64 = 10;

/// Reads a configuration file.
///
/// # Errors
/// Each names file, line and key.
pub(super) fn read(path: &Path) -> Result<Config, SpecError> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    understand(&Source::read(path)?, &passwd)
}

/// The JSON Schema of a configuration file.
pub(crate) fn schema() -> serde_json::Value {
    schemars::schema_for!(File).to_value()
}

/// Reads a configuration file as on a host that has these users.
///
/// # Errors
/// As [`read`].
#[cfg(test)]
pub(crate) fn check(path: &Path, passwd: &str) -> Result<(), SpecError> {
    understand(&Source::read(path)?, passwd).map(drop)
}

/// What is wrong with an executable's name, if anything: nothing would ever have that name.
pub(super) fn why_no_name(exe: &str) -> Option<&'static str> {
    let is_name = !exe.is_empty() && !exe.contains('/');
    (!is_name).then_some("must be an executable's name without its directory")
}

fn understand(source: &Source, passwd: &str) -> Result<Config, SpecError> {
    let file: File = source.parse()?;
    if file
        .every_s
        .is_some_and(|every_s| !(1.0..=86_400.0).contains(&every_s))
    {
        return Err(source.error("every_s", "must be between 1 and 86400"));
    }
    if file
        .hold_off_s
        .is_some_and(|hold_off_s| !(0.0..=86_400.0).contains(&hold_off_s))
    {
        return Err(source.error("hold_off_s", "must be between 0 and 86400"));
    }
    if file.watch.is_empty() {
        let why = "name at least one executable: [[watch]] exe = \"mariadbd\"";
        return Err(source.error("watch", why));
    }
    let mut watch = Vec::new();
    for (index, entry) in file.watch.into_iter().enumerate() {
        let key = |key: &str| format!("watch[{index}].{key}");
        if let Some(why) = why_no_name(&entry.exe) {
            return Err(source.error(&key("exe"), why));
        }
        let uid = match &entry.user {
            None => None,
            Some(user) => Some(uid(user, passwd).ok_or_else(|| {
                let why = format!("no user {user:?} in /etc/passwd; you may also give a uid");
                source.error(&key("user"), why)
            })?),
        };
        let exe = entry.exe;
        watch.push(Watch { exe, uid });
    }
    let log = match file.log {
        None => None,
        Some(log) => {
            if !log.file.is_absolute() {
                return Err(source.error("log.file", "must be an absolute path"));
            }
            let mib = log.size_max_mib.unwrap_or(LOG_MIB);
            if !(1..=10_000).contains(&mib) {
                return Err(source.error("log.size_max_mib", "must be between 1 and 10000"));
            }
            Some((log.file, mib << 20))
        }
    };
    Ok(Config {
        once: file.once,
        every_s: file.every_s,
        hold_off_s: file.hold_off_s,
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

    fn parse(text: &[u8]) -> Result<Config, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.toml");
        fs::write(&path, text).unwrap();
        let understood = Source::read(&path).and_then(|source| understand(&source, PASSWD));
        understood.map_err(|error| {
            let error = error.to_string();
            error.replace(&format!("{}/", dir.path().display()), "")
        })
    }

    #[test]
    fn a_file_is_understood() {
        let text = "every_s = 5\nhold_off_s = 60\n[[watch]]\nexe = \"mariadbd\"\nuser = \"mysql\"\n[[watch]]\nexe = \"postgres\"\n\
                    [log]\nfile = \"/var/log/x\"\nsize_max_mib = 2\n";
        let config = parse(text.as_bytes()).unwrap();
        let watch = |exe: &str, uid| Watch {
            exe: exe.to_owned(),
            uid,
        };
        let wanted = Config {
            once: false,
            every_s: Some(5.0),
            hold_off_s: Some(60.0),
            watch: vec![watch("mariadbd", Some(107)), watch("postgres", None)],
            log: Some(("/var/log/x".into(), 2 << 20)),
        };
        assert_eq!(config, wanted);
    }

    #[test]
    fn errors_name_file_line_and_key() {
        for (text, said) in [
            ("every_s = \"x\"\n", "r.toml:1: every_s: invalid type"),
            (
                "\nevery_s = 0.1\n[[watch]]\nexe = \"x\"",
                "r.toml:2: every_s: must be between",
            ),
            (
                "hold_off_s = -1\n[[watch]]\nexe = \"x\"",
                "r.toml:1: hold_off_s: must be between 0 and",
            ),
            ("\n\nevry_s = 1\n", "r.toml:3: evry_s: unknown key"),
            ("once = true\n", "r.toml: watch: name at least one"),
            ("watch = []\n", "r.toml:1: watch: name at least one"),
            (
                "[[watch]]\nexe = \"/bin/x\"\n",
                "r.toml:2: watch[0].exe: must be",
            ),
            (
                "watch = [{ exe = \"x\" }, { exe = \"/x\" }]\n",
                "r.toml:1: watch[1].exe: must be",
            ),
            (
                "watch = [{ exe = \"x\", usr = \"root\" }]\n",
                "r.toml:1: watch[0].usr: unknown key",
            ),
            (
                "[[watch]]\nexe = \"x\"\nuser = \"nobody-here\"\n",
                "r.toml:3: watch[0].user: no user \"nobody-here\" in /etc/passwd",
            ),
            (
                "[[watch]]\nexe = \"x\"\n[log]\nfile = \"x\"\n",
                "r.toml:4: log.file: must be an absolute",
            ),
            (
                "[[watch]]\nexe = \"x\"\n[log]\nfile = \"/x\"\nsize_max_mib = 0\n",
                "r.toml:5: log.size_max_mib: must be",
            ),
            ("[[watch]\n", "r.toml:1:"),
            ("", "r.toml: the file is empty"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(error.starts_with(said), "{error}\n{said}");
        }
        let error = parse(b"every_s = 5\n# \xff\n").unwrap_err();
        assert_eq!(error, "r.toml:2: is not UTF-8 text");
    }
}
