//! Named tokens: who may sign in, as what, and until when. Only a digest of a token is kept.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::access::{AccessError, is_built_in, is_reserved};
use crate::lock::lock;
use crate::role::Role;
use crate::secret::{digest, random_hex};

/// More names than this are refused: a list that nobody reads is no list.
const TOKENS_MAX: usize = 1000;
/// A name stands in tables and in the log.
const NAME_CHARS_MAX: usize = 64;

/// A token without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedToken {
    /// The person or program that has it.
    pub name: String,
    /// What it admits to.
    pub role: Role,
    /// When it was made.
    pub created: Timestamp,
    /// When it ends to admit; never, where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// SHA-256 of the token, in hexadecimal digits.
    digest: String,
}

impl NamedToken {
    /// Whether it admits at that time.
    #[must_use]
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }
}

/// The file of a state directory that holds the named tokens.
#[derive(Clone, Debug)]
pub struct TokenFile(PathBuf);

#[derive(Default, Serialize, Deserialize)]
struct Contents {
    tokens: Vec<NamedToken>,
}

impl TokenFile {
    /// That of a state directory.
    #[must_use]
    pub fn of(state_dir: &Path) -> Self {
        Self(state_dir.join("tokens.json"))
    }

    /// Every token, oldest first; none where there is no file.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or may have been written by somebody else.
    pub fn list(&self) -> Result<Vec<NamedToken>, AccessError> {
        let text = match crate::private::read(&self.0) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            text => text.map_err(|error| self.failed(error))?,
        };
        let go_on = "no named token is valid until it is mended. Else move it away, and make the tokens again with \
                     `slackline serve tokens new`";
        let contents: Contents = serde_json::from_str(&text)
            .map_err(|error| self.failed(crate::private::damage(&error, go_on)))?;
        Ok(contents.tokens)
    }

    /// Makes a token and returns its secret, which is kept nowhere.
    ///
    /// # Errors
    /// The name is taken or no line of text, or the file cannot be written.
    pub fn create(
        &self,
        name: &str,
        role: Role,
        expires: Option<Timestamp>,
    ) -> Result<String, AccessError> {
        if is_reserved(name) {
            let why = format!(
                "the name {name} is reserved, because the audit log shows somebody else by it: take another one"
            );
            return Err(self.failed(why));
        }
        // The audit log tells people apart by these names: no two of them may look alike.
        // Commands take what begins with a dash for an option.
        let is_begun = name.starts_with(|it: char| it.is_ascii_alphanumeric());
        let is_name = name.trim() == name
            && is_begun
            && (1..=NAME_CHARS_MAX).contains(&name.len())
            && name.chars().all(is_allowed);
        if !is_name {
            return Err(self.failed(no_name(name)));
        }
        let secret = random_hex();
        let token = NamedToken {
            name: name.to_owned(),
            role,
            created: Timestamp::now(),
            expires,
            digest: digest(&secret),
        };
        self.change(|tokens| {
            let same = |known: &&NamedToken| known.name.eq_ignore_ascii_case(name);
            if let Some(known) = tokens.iter().find(same) {
                let known = &known.name;
                return Err(format!("there is a token {known} already: revoke it first"));
            }
            if tokens.len() >= TOKENS_MAX {
                return Err(format!(
                    "there are {TOKENS_MAX} tokens already: revoke one first"
                ));
            }
            tokens.push(token);
            Ok(())
        })?;
        Ok(secret)
    }

    /// Revokes a token. Its sessions end with it.
    ///
    /// # Errors
    /// There is none of that name, or the file cannot be written.
    pub fn revoke(&self, name: &str) -> Result<(), AccessError> {
        self.change(|tokens| {
            let before = tokens.len();
            tokens.retain(|token| token.name != name);
            if tokens.len() == before {
                return Err(match is_built_in(name) {
                    true => "the tokens of `owner` and `reader` are in serve.json: to replace them, delete that file and start \
                             `serve` again"
                        .to_owned(),
                    false => format!("there is no token {name}"),
                });
            }
            Ok(())
        })
    }

    /// Changes the list; one process at a time.
    fn change(
        &self,
        work: impl FnOnce(&mut Vec<NamedToken>) -> Result<(), String>,
    ) -> Result<(), AccessError> {
        let lock = crate::private::open_append(&self.0.with_extension("lock"));
        let lock = lock.map_err(|error| self.failed(error))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)
            .map_err(|error| self.failed(error))?;
        let mut tokens = self.list()?;
        work(&mut tokens).map_err(|why| self.failed(why))?;
        serde_json::to_vec_pretty(&Contents { tokens })
            .map_err(std::io::Error::from)
            .and_then(|text| host::replace_private(&self.0, &text))
            .map_err(|error| self.failed(error))
    }

    fn failed(&self, error: impl std::fmt::Display) -> AccessError {
        AccessError {
            path: self.0.clone(),
            message: error.to_string(),
        }
    }
}

/// Whether a name may have this character.
fn is_allowed(it: char) -> bool {
    it.is_ascii_alphanumeric() || " -_.@".contains(it)
}

/// Why a text is no name for a token.
fn no_name(name: &str) -> String {
    let refused = name.chars().find(|it| !is_allowed(*it));
    let why = match refused {
        // Names stand in terminals and logs: what steers these is not printed.
        Some(it) => format!(
            "the character {it:?} (U+{:04X}) is not allowed, because letters of other alphabets can look the same, and the audit \
             log tells people apart by their names",
            u32::from(it)
        ),
        None if name.chars().count() > NAME_CHARS_MAX => "it is too long".to_owned(),
        None if name.is_empty() => "it is empty".to_owned(),
        None => "it begins or ends with a character that is allowed only between others".to_owned(),
    };
    format!(
        "{name:?} is no name for a token: {why}. A name has 1 to {NAME_CHARS_MAX} characters: the letters a to z and A to Z, digits, \
         `-`, `_`, `.`, `@`, and spaces inside. The first is a letter or a digit"
    )
}

/// When a file was written last, its inode and its length: a replaced file has others.
type Version = (SystemTime, u64, u64);

/// The named tokens as a server sees them: read again when the file changes.
pub(crate) struct Tokens {
    file: TokenFile,
    seen: Mutex<(Option<Version>, Vec<NamedToken>)>,
    report: fn(&str),
}

impl Tokens {
    /// Reads the file, and reports what is wrong with it.
    pub(crate) fn of(file: TokenFile, report: fn(&str)) -> Self {
        let tokens = Self {
            file,
            seen: Mutex::default(),
            report,
        };
        tokens.find("", Timestamp::now());
        tokens
    }

    /// The valid token with that digest. A file that cannot be read admits nobody.
    pub(crate) fn find(&self, digest: &str, now: Timestamp) -> Option<NamedToken> {
        let mut seen = lock(&self.seen);
        let file = std::fs::metadata(&self.file.0).ok();
        let changed = file.and_then(|it| Some((it.modified().ok()?, it.ino(), it.len())));
        if seen.0 != changed {
            let tokens = self.file.list().unwrap_or_else(|error| {
                (self.report)(&error.to_string());
                Vec::new()
            });
            *seen = (changed, tokens);
        }
        let mut tokens = seen.1.iter();
        let found = tokens.find(|token| token.digest == digest && token.is_valid(now));
        found.cloned()
    }
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan as _;

    use super::*;

    #[test]
    fn a_token_admits_until_it_expires_or_is_revoked() {
        let dir = tempfile::tempdir().unwrap();
        let file = TokenFile::of(dir.path());
        let tokens = Tokens::of(file.clone(), |_| ());
        let now = Timestamp::now();
        let hour = now.checked_add(1.hour()).unwrap();
        let anna = file.create("anna", Role::Write, Some(hour)).unwrap();
        let ci = file.create("ci", Role::Read, None).unwrap();
        let role = |secret: &str, at| tokens.find(&digest(secret), at).map(|it| it.role);
        assert_eq!(role(&anna, now), Some(Role::Write));
        assert_eq!(role(&anna, hour), None);
        assert_eq!(role(&ci, hour), Some(Role::Read));
        assert_eq!(role("x", now), None);
        let text = std::fs::read_to_string(dir.path().join("tokens.json")).unwrap();
        assert!(!text.contains(&anna) && !text.contains(&ci), "{text}");
        file.revoke("anna").unwrap();
        assert_eq!(role(&anna, now), None);
        assert!(file.revoke("anna").is_err());
        assert!(file.create("ci", Role::Read, None).is_err());
        for name in [
            "",
            "a\nb",
            "owner",
            &"x".repeat(65),
            "CI",
            " ci",
            "-x",
            "--role",
            ".",
            "@ci",
            "\u{202e}ic",
            "ｃｉ",
        ] {
            assert!(file.create(name, Role::Read, None).is_err(), "{name}");
        }
        for (name, said) in [
            (
                "Zoë",
                "the character 'ë' (U+00EB) is not allowed, because letters",
            ),
            ("a\u{202e}b", "'\\u{202e}' (U+202E)"),
            (" ci", "is allowed only between others"),
            ("", "it is empty"),
            (&"x".repeat(65), "it is too long"),
        ] {
            let why = file.create(name, Role::Read, None).unwrap_err().to_string();
            assert!(why.contains(said), "{why}");
            assert!(why.contains("the letters a to z and A to Z"), "{why}");
        }
        for name in ["a-x", "0", "me@h.org", "A b"] {
            file.create(name, Role::Read, None).unwrap();
        }
    }
}
