//! The reader of one configuration file: values with their lines, and errors that name them.

use std::net::SocketAddr;
use std::path::Path;

use qos::Grouped;
use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;
use toml::Spanned;

use crate::number::{SIZE_HINT, parse_size};
use crate::place::{ConfigError, Place};

/// Where NBD's clients look by default.
pub const NBD_PORT: u16 = 10809;

/// Keys of the file that belong to no table.
const TOP_KEYS: [&str; 9] = [
    "listen",
    "nvme",
    "plaintext_beyond_loopback",
    "metrics",
    "cores",
    "memory",
    "connections_max",
    "drain_s",
    "audit_log",
];

/// The key of a path, as messages name it: without the numbers of list entries.
fn key_of(path: &serde_path_to_error::Path) -> Option<String> {
    let keys = path.iter().filter_map(|segment| match segment {
        // `Spanned` has keys of its own.
        Segment::Map { key } if !key.starts_with("$__") => Some(key.as_str()),
        _ => None,
    });
    let keys: Vec<&str> = keys.collect();
    (!keys.is_empty()).then(|| keys.join("."))
}

/// What the reader of TOML says, in words, with a hint where a key of the file stands in a table.
fn in_words(message: &str) -> String {
    let mut message = config_errors::plain(&message.trim().replace('\n', ", "));
    let unknown = message.strip_prefix("unknown key `");
    let unknown = unknown.and_then(|rest| rest.split('`').next());
    if unknown.is_some_and(|key| TOP_KEYS.contains(&key)) {
        message.push_str(
            ". The key belongs to no table: write it above the first [[device]], [[tenant]] and [tls]",
        );
    }
    message
}

/// What to write instead of a value of the wrong type.
fn advice(key: &str, message: &str) -> Option<String> {
    let last = key.rsplit('.').next()?;
    if ["device", "tenant"].contains(&key) && message.starts_with("invalid type: map") {
        return Some(format!("write [[{key}]]: there may be several"));
    }
    let is_size = ["create", "memory", "offset", "length"].contains(&last);
    let number = message.strip_prefix("invalid type: integer `")?;
    let (number, _) = number.split_once('`')?;
    is_size.then(|| format!("write the size in quotes: \"{number}\""))
}

/// Reads one file, and knows the lines of it.
pub(crate) struct Reader<'a> {
    file: &'a Path,
    /// Where each line of the text ends, in bytes.
    line_ends: Vec<usize>,
}

impl<'a> Reader<'a> {
    /// The lines of a text are counted once.
    pub(crate) fn new(file: &'a Path, text: &str) -> Self {
        let line_ends = text.match_indices('\n').map(|(at, _)| at).collect();
        Self { file, line_ends }
    }

    /// What the text says, key by key.
    pub(crate) fn parse<T: DeserializeOwned>(&self, text: &str) -> Result<T, ConfigError> {
        toml::Deserializer::parse(text)
            .map_err(|error| self.wrong_toml(&error, None))
            .and_then(|toml| {
                serde_path_to_error::deserialize(toml).map_err(|error| {
                    let key = key_of(error.path());
                    self.wrong_toml(error.inner(), key)
                })
            })
    }

    /// An error of the file as a whole.
    pub(crate) fn error(&self, message: &str) -> ConfigError {
        ConfigError {
            file: self.file.to_path_buf(),
            line: None,
            key: None,
            message: message.to_owned(),
        }
    }

    fn wrong_toml(&self, error: &toml::de::Error, key: Option<String>) -> ConfigError {
        let mut message = in_words(error.message());
        if let Some(advice) = key.as_deref().and_then(|key| advice(key, &message)) {
            message = format!("{message}: {advice}");
        }
        ConfigError {
            file: self.file.to_path_buf(),
            line: error.span().map(|span| self.line(span.start)),
            // Some texts name the key themselves.
            key: key.filter(|_| !message.contains(" field `") && !message.contains(" key `")),
            message,
        }
    }

    fn line(&self, offset: usize) -> usize {
        1 + self.line_ends.partition_point(|&end| end < offset)
    }

    /// Where a value stands.
    pub(crate) fn place<T>(&self, value: &Spanned<T>, key: &'static str) -> Place {
        Place {
            file: self.file.to_path_buf(),
            line: self.line(value.span().start),
            key,
        }
    }

    pub(crate) fn place_of<T>(
        &self,
        value: Option<&Spanned<T>>,
        key: &'static str,
    ) -> Option<Place> {
        value.map(|value| self.place(value, key))
    }

    pub(crate) fn size(
        &self,
        text: &Spanned<String>,
        key: &'static str,
    ) -> Result<u64, ConfigError> {
        parse_size(text.as_ref()).ok_or_else(|| {
            self.place(text, key)
                .error(format!("{:?} is not a size; {SIZE_HINT}", text.as_ref()))
        })
    }

    /// A text that clients and people are shown, as long as NBD allows.
    pub(crate) fn text(
        &self,
        text: &Spanned<String>,
        key: &'static str,
        min_bytes: usize,
    ) -> Result<String, ConfigError> {
        const MAX_BYTES: usize = crate::nbd::STRING_MAX_BYTES;
        let (place, text) = (self.place(text, key), text.as_ref());
        if !(min_bytes..=MAX_BYTES).contains(&text.len()) {
            let (len, max) = (Grouped(text.len() as u64), Grouped(MAX_BYTES as u64));
            return Err(place.error(format!(
                "has {len} bytes: it must have {min_bytes} to {max}"
            )));
        }
        if text.chars().any(char::is_control) {
            return Err(place.error("has a control character, such as a line break: leave it out"));
        }
        Ok(text.to_owned())
    }

    /// As [`Reader::size`], within a range. The errors name the range by `at_least` and `at_most`.
    pub(crate) fn size_within(
        &self,
        text: &Spanned<String>,
        key: &'static str,
        (min, at_least): (u64, &str),
        (max, at_most): (u64, &str),
    ) -> Result<u64, ConfigError> {
        let bytes = self.size(text, key)?;
        match (min..=max).contains(&bytes) {
            true => Ok(bytes),
            false => Err(self.place(text, key).error(format!(
                "{} is out of range: it must be from {at_least} to {at_most}",
                text.as_ref()
            ))),
        }
    }

    pub(crate) fn address(
        &self,
        text: &Spanned<String>,
        key: &'static str,
    ) -> Result<SocketAddr, ConfigError> {
        let address: Option<SocketAddr> = text.as_ref().parse().ok();
        address.filter(|address| address.port() > 0).ok_or_else(|| {
            self.place(text, key).error(format!(
                "{:?} is not an address with a port from 1 to 65535, as in \"127.0.0.1:{NBD_PORT}\"",
                text.as_ref()
            ))
        })
    }
}

pub(crate) fn text_of(file: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(file).map_err(|error| ConfigError {
        file: file.to_path_buf(),
        line: None,
        key: None,
        message: error.to_string(),
    })
}
