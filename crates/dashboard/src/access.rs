//! Who may do what: the tokens of the state directory, the names under which the server may be
//! called, and who asks. [`crate::admission`] goes by these.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::proxy::OF_PROXY;
use crate::role::Role;
use crate::secret::{digest, random_hex};

/// The names of the two tokens of `serve.json`: that for everything and that for looking.
const BUILT_IN: [&str; 2] = ["owner", "reader"];

/// Whether that is the name of a token of `serve.json`.
pub(crate) fn is_built_in(name: &str) -> bool {
    BUILT_IN.contains(&name)
}

/// Whether a token may not have that name, because the audit log shows something else by it.
pub(crate) fn is_reserved(name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase();
    BUILT_IN.contains(&name.as_str())
        || name.starts_with(OF_PROXY)
        || [crate::audit::NOBODY, crate::audit::ITSELF].contains(&name.as_str())
}

/// The tokens of the state directory, and the names under which the server may be called.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Access {
    /// Admits to everything.
    pub write_token: String,
    /// Admits to looking.
    pub read_token: String,
    /// Where the server listens, for the command line: `127.0.0.1:8431`.
    pub address: String,
    /// Host names beside the address, `localhost` and loopback addresses.
    #[serde(default)]
    pub names: Vec<String>,
}

/// A file of tokens cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {message}")]
pub struct AccessError {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    pub message: String,
}

impl Access {
    fn file(state_dir: &Path) -> PathBuf {
        state_dir.join("serve.json")
    }

    /// What a running or past server left for the command line.
    ///
    /// # Errors
    /// The file is not there, is damaged, or may have been written by somebody else.
    pub fn read(state_dir: &Path) -> Result<Self, AccessError> {
        let path = Self::file(state_dir);
        let failed = |message: String| AccessError {
            path: path.clone(),
            message,
        };
        let text = crate::private::read(&path).map_err(|error| failed(error.to_string()))?;
        let go_on = "move it away, and start `slackline serve` again: it makes new tokens";
        serde_json::from_str(&text).map_err(|error| failed(crate::private::damage(&error, go_on)))
    }

    /// The tokens of the state directory, made where there are none. Of two servers that start at
    /// once, both have the same. The address is written down by [`write`](Self::write) alone.
    ///
    /// # Errors
    /// The file cannot be read or made.
    pub fn at(state_dir: &Path, address: &str, names: &[String]) -> Result<Self, AccessError> {
        let path = Self::file(state_dir);
        if !path.exists() {
            let made = Self {
                write_token: random_hex(),
                read_token: random_hex(),
                address: address.to_owned(),
                names: names.to_vec(),
            };
            let text = serde_json::to_vec_pretty(&made).map_err(std::io::Error::from);
            text.and_then(|text| crate::private::create(&path, &text))
                .map_err(|error| AccessError {
                    path,
                    message: error.to_string(),
                })?;
        }
        Ok(Self {
            address: address.to_owned(),
            names: names.to_vec(),
            ..Self::read(state_dir)?
        })
    }

    /// Writes the tokens and the address down for the command line. Only one server of a state
    /// directory may do so: the one that commands are to reach.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, state_dir: &Path) -> Result<(), AccessError> {
        let path = Self::file(state_dir);
        serde_json::to_vec_pretty(self)
            .map_err(std::io::Error::from)
            .and_then(|text| host::replace_private(&path, &text))
            .map_err(|error| AccessError {
                path,
                message: error.to_string(),
            })
    }

    /// The name and role of a token of `serve.json`, by its digest.
    pub(crate) fn built_in(&self, given: &str) -> Option<(&'static str, Role)> {
        let [owner, reader] = BUILT_IN;
        if digest(&self.write_token) == given {
            Some((owner, Role::Write))
        } else if digest(&self.read_token) == given {
            Some((reader, Role::Read))
        } else {
            None
        }
    }

    /// Whether the server may be called so. Neither a port nor upper case matters.
    pub(crate) fn is_ours(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        let name = crate::web::without_port(&host);
        let own = self.address.rsplit_once(':').map_or("", |(name, _)| name);
        matches!(name, "localhost" | "127.0.0.1" | "[::1]")
            || name == own
            || self
                .names
                .iter()
                .any(|ours| ours.eq_ignore_ascii_case(name))
    }
}

/// Who asks, for the pages.
#[derive(Clone, Debug)]
pub(crate) struct Visitor {
    pub(crate) role: Role,
    /// The second secret of a change; empty for a program.
    pub(crate) csrf: String,
    pub(crate) name: String,
    /// It is a session, which can be ended.
    pub(crate) may_sign_out: bool,
    /// By what the request was admitted.
    pub(crate) credential: Credential,
}

/// By what a request was admitted; an answer that goes on for long asks whether that still holds.
#[derive(Clone, Debug)]
pub(crate) enum Credential {
    /// A token, by its digest.
    Token(String),
    /// A session, and the token that it was signed in with.
    Session {
        /// The second secret, which stays when the cookie is replaced.
        csrf: String,
        /// The token's digest.
        token: String,
    },
    /// A trusted proxy's word for this request.
    Proxy,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> Access {
        Access {
            write_token: "w".repeat(64),
            read_token: "r".repeat(64),
            address: "10.0.0.1:8431".into(),
            names: vec!["Tuner.example".into()],
        }
    }

    #[test]
    fn tokens_admit_to_their_role_and_nothing_else() {
        let access = access();
        let role = |token: &str| access.built_in(&digest(token));
        assert_eq!(role(&"w".repeat(64)), Some(("owner", Role::Write)));
        assert_eq!(role(&"r".repeat(64)), Some(("reader", Role::Read)));
        for wrong in ["", "w", &"w".repeat(65)] {
            assert_eq!(role(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_our_names_are_ours_in_any_case() {
        let access = access();
        for ours in [
            "localhost:1",
            "LocalHost:1",
            "127.0.0.1",
            "[::1]:8431",
            "10.0.0.1:8431",
            "tuner.EXAMPLE",
        ] {
            assert!(access.is_ours(ours), "{ours}");
        }
        for other in [
            "",
            "evil.example",
            "localhost.evil.example:8431",
            "127.0.0.1.evil.example",
        ] {
            assert!(!access.is_ours(other), "{other}");
        }
    }

    #[test]
    fn the_tokens_stay_and_are_nobody_elses_to_read() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let first = Access::at(dir.path(), "127.0.0.1:1", &[]).unwrap();
        first.write(dir.path()).unwrap();
        // A second server waits, and does not take the address away.
        let second = Access::at(dir.path(), "127.0.0.1:2", &[]).unwrap();
        assert_eq!(first.write_token, second.write_token);
        assert_ne!(first.write_token, first.read_token);
        assert_eq!(Access::read(dir.path()).unwrap().address, "127.0.0.1:1");
        let mode = std::fs::metadata(Access::file(dir.path()))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_token_s_name_shows_nobody_else_in_the_log() {
        for reserved in ["owner", "Reader", "proxy:anna", " PROXY:x", "unknown user"] {
            assert!(is_reserved(reserved), "{reserved}");
        }
        assert!(!is_reserved("anna") && !is_reserved("proxy"));
    }
}
