//! The files that say where NATS is, and what a worker may do.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use host::hex;
use serde::Deserialize;
use tuner::SpecError;
use tuner::spec::{Source, is_line};

use crate::error::Error;

/// Where NATS is, and who we are to it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nats {
    /// `tls://host:4222`, or `nats://…` without encryption.
    pub url: String,
    /// Certificates (PEM) of the authority that signed the server's; the system's by default.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// Our own certificate and its key (PEM), where the server asks for one.
    #[serde(default)]
    pub certificate: Option<PathBuf>,
    /// See `certificate`.
    #[serde(default)]
    pub key: Option<PathBuf>,
    /// User name.
    #[serde(default)]
    pub user: Option<String>,
    /// File that holds the user's password, or, without `user`, a token.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
}

/// `slackline serve --workers FILE`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Where NATS is.
    pub nats: Nats,
    /// A worker that is silent for that long has lost what it measures, in seconds.
    #[serde(default = "lease_s")]
    pub lease_s: f64,
}

fn lease_s() -> f64 {
    30.0
}

impl ServerConfig {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// What is wrong with it, with file, line and key.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let source = Source::read(path)?;
        let config: Self = source.parse()?;
        if !(1.0..=3600.0).contains(&config.lease_s) {
            return Err(source.error("lease_s", "must be between 1 and 3600").into());
        }
        config.nats.check(&source)?;
        Ok(config)
    }

    /// The lease.
    pub fn lease(&self) -> Duration {
        Duration::from_secs_f64(self.lease_s)
    }
}

/// Labels that every worker sets itself, by what its host is.
pub(crate) const OWN_LABELS: [&str; 3] = ["kernel", "cpu", "arch"];

/// `slackline worker FILE`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerConfig {
    /// The worker's name; the host's by default. No two workers may have the same: the coordinator
    /// refuses the second.
    #[serde(default)]
    pub name: Option<String>,
    /// Where NATS is.
    pub nats: Nats,
    /// Public keys of coordinators (64 hexadecimal digits, `signing.pub` in their state directory)
    /// whose specifications are run as they are.
    #[serde(default)]
    pub coordinator_keys: Vec<String>,
    /// Labels beside `kernel`, `cpu` and `arch`, which it sets itself.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// What specifications without a known signature may do.
    #[serde(default)]
    pub allow: Allow,
}

/// What this host does for anybody.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Allow {
    /// Commands, word for word as in the specification: `["nginx", "-c", "{dir}/nginx.conf"]`.
    /// Allow no shell script into which a parameter is filled.
    pub commands: Vec<Vec<String>>,
    /// Knobs: `"net.core.somaxconn"`, as `slackline check` names them.
    pub knobs: Vec<String>,
    /// URLs, word for word as in the specification: `"http://127.0.0.1:{port}/"`.
    pub urls: Vec<String>,
    /// Files that the specification reads, by their whole path: templates, lists of requests and
    /// arrival times.
    pub files: Vec<PathBuf>,
}

impl WorkerConfig {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// What is wrong with it, with file, line and key.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let source = Source::read(path)?;
        let config: Self = source.parse()?;
        for (index, key) in config.coordinator_keys.iter().enumerate() {
            if hex::decode(key.trim()).is_none_or(|bytes| bytes.len() != 32) {
                let why = "a key is 64 hexadecimal digits, as in the file signing.pub of `slackline serve`";
                return Err(source
                    .error(&format!("coordinator_keys[{index}]"), why)
                    .into());
            }
        }
        if config.coordinator_keys.is_empty() && config.allow.commands.is_empty() {
            let why = "there are neither coordinator_keys nor allow.commands: this worker would run nothing";
            return Err(source.error("", why).into());
        }
        if let Some(name) = &config.name
            && !is_line(name)
        {
            let why = format!("is {name:?}: it has to be a line of text");
            return Err(source.error("name", why).into());
        }
        for label in OWN_LABELS {
            if config.labels.contains_key(label) {
                let why = "the worker sets this label itself, by what its host is: choose another name for your own";
                return Err(source.error(&format!("labels.{label}"), why).into());
            }
        }
        config.nats.check(&source)?;
        Ok(config)
    }
}

impl Nats {
    fn check(&self, source: &Source) -> Result<(), SpecError> {
        let wrong = |key: &str, why: &str| Err(source.error(&format!("nats.{key}"), why));
        let host = ["nats://", "tls://"]
            .iter()
            .find_map(|scheme| self.url.strip_prefix(scheme));
        match host {
            None => return wrong("url", "has to begin with nats:// or tls://"),
            Some("") => return wrong("url", "has no host: write nats://HOST:4222"),
            Some(_) => {}
        }
        if self.certificate.is_some() != self.key.is_some() {
            let missing = if self.key.is_some() {
                "key"
            } else {
                "certificate"
            };
            return wrong(missing, "nats.certificate and nats.key belong together");
        }
        if self.user.is_some() && self.password_file.is_none() {
            return wrong("user", "needs nats.password_file");
        }
        for (key, file) in [
            ("ca", &self.ca),
            ("certificate", &self.certificate),
            ("key", &self.key),
            ("password_file", &self.password_file),
        ] {
            if let Some(file) = file
                && let Err(error) = std::fs::File::open(file)
            {
                return wrong(key, &format!("{}: {error}", file.display()));
            }
        }
        match self.password_file.as_ref().map(std::fs::read_to_string) {
            Some(Ok(secret)) if secret.trim().is_empty() => {
                wrong("password_file", "the file is empty")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("worker.toml");
        std::fs::write(&path, text).unwrap();
        WorkerConfig::read(&path).unwrap_err().to_string()
    }

    #[test]
    fn a_wrong_file_is_refused_with_its_name_and_the_reason() {
        let nats = "[nats]\nurl = \"nats://127.0.0.1:4222\"\n";
        let known = format!("coordinator_keys = [\"{}\"]\n", "0".repeat(64));
        for (text, why) in [
            (nats.to_owned(), "neither coordinator_keys"),
            (
                format!("coordinator_keys = [\"12\"]\n{nats}"),
                "64 hexadecimal",
            ),
            (format!("colour = 1\n{nats}"), "unknown key `colour`"),
            (
                format!("\ncoordinator_keys = \"1\"\n{nats}"),
                "worker.toml:2: coordinator_keys: invalid type: a text, expected a list",
            ),
            ("[nats]\nurl = 1\n".to_owned(), "worker.toml:2: nats.url: "),
            (String::new(), "worker.toml: the file is empty"),
            (
                format!("{known}{nats}ca = \"/nonexistent/ca.pem\"\n"),
                "worker.toml:4: nats.ca: /nonexistent/ca.pem: No such file",
            ),
            (
                format!("{known}[nats]\nurl = \"nats://\"\n"),
                "worker.toml:3: nats.url: has no host",
            ),
            (
                format!("name = \"\"\n{known}{nats}"),
                "worker.toml:1: name: is \"\"",
            ),
            (
                format!("{known}labels = {{ rack = \"b\", kernel = \"6.1\" }}\n{nats}"),
                "worker.toml:2: labels.kernel: the worker sets this label itself",
            ),
            (
                format!("{known}{nats}[labels]\nrack = \"b\"\narch = \"arm\"\n"),
                "worker.toml:6: labels.arch: the worker sets this label itself",
            ),
            (
                format!(
                    "coordinator_keys = [\"{}\"]\n[nats]\nurl = \"10.0.0.1\"",
                    "0".repeat(64)
                ),
                "nats:// or tls://",
            ),
        ] {
            let message = refused(&text);
            assert!(message.contains("worker.toml"), "{message}");
            assert!(message.contains(why), "{message}");
        }
    }
}
