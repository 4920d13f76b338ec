//! Masks credentials in texts.

use std::sync::LazyLock;

use regex::Regex;

/// What stands in place of a secret.
pub const MASK: &str = "…";

/// Addresses within an address that are looked at.
const NESTED_MAX: usize = 4;

/// Names of secrets: these parts anywhere in a name, or these words of it.
static SECRET: LazyLock<Option<Regex>> = LazyLock::new(|| {
    const PARTS: &str = "password|passwd|passcode|passphrase|secret|token|credential|authorization|cookie\
        |(?:api|access|private|signing|encryption)[_. -]key|apikey";
    // In small letters a pin is a CPU's more often than a person's.
    const WORDS: &str = "pass|pw|[a-z0-9]*pwd|auth|sig|signature|dsn|pat|jwt|psk|bearer|webhook|dbpass|userpass|requirepass\
        |masterauth|primaryauth|salt|otp|totp|pincode|(?-i:PIN)";
    let text = format!("(?i-u){PARTS}|(?:^|[_. -])(?:{WORDS})(?:$|[_. -])");
    Regex::new(&text).ok()
});

/// Names that speak of secrets and hold none: how many there are, of what kind, and the like.
static PLAIN: LazyLock<Option<Regex>> = LazyLock::new(|| {
    const LAST: &str = "age|attempts|changed|count|disabled|enabled|errors|expires|expiry|failures|kind|len|length\
        |lifetime|limit|max|method|min|mode|rate|required|rounds|size|timeout|total|ttl|type";
    let text = format!("(?i-u)^-*(?:no|max|min)[_. -]|[_. -](?:{LAST})$");
    Regex::new(&text).ok()
});

/// Whether a variable, header, option or key of this name holds a secret by the look of it.
///
/// ```
/// for name in ["DB_PASSWORD", "X-Api-Key", "Authorization", "PGPASSWORD", "JWT", "SLACK_WEBHOOK", "MYPWD", "CARD_PIN", "salt"] {
///     assert!(http_client::is_secret_name(name), "{name}");
/// }
/// for name in ["PASSENGERS", "auth_type", "passwords_changed", "max_tokens", "cpu_pin", "salted"] {
///     assert!(!http_client::is_secret_name(name), "{name}");
/// }
/// ```
#[must_use]
pub fn is_secret_name(name: &str) -> bool {
    let matches = |shape: &Option<Regex>| shape.as_ref().is_some_and(|it| it.is_match(name));
    matches(&SECRET) && !matches(&PLAIN)
}

/// A setting in one text (`--password=x`, `DB_PASSWORD=x`, `Authorization: Bearer x`) with its
/// value masked, if its name looks secret.
#[must_use]
pub fn mask_setting(text: &str) -> Option<String> {
    let end = text.find(['=', ':'])?;
    let (name, rest) = text.split_at(end);
    let is_name = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    let is_plain = !name.is_empty() && name.chars().all(is_name) && !rest.starts_with("://");
    (is_plain && is_secret_name(name) && rest.len() > 1).then(|| {
        let space = if rest[1..].starts_with(' ') { " " } else { "" };
        format!("{name}{}{space}{MASK}", &rest[..1])
    })
}

/// `text`, with the credentials of each address in it masked: what stands before the host, and the
/// values of parameters in the query whose name looks secret.
///
/// ```
/// let text = "GET http://me:secret@h:9/a?token=x&b=1: refused";
/// assert_eq!(http_client::redact(text), "GET http://…@h:9/a?token=…&b=1: refused");
/// ```
#[must_use]
pub fn redact(text: &str) -> String {
    // No address has these. A password may have any other character.
    let ends = |it: char| it.is_whitespace() || "\"`<>".contains(it);
    let mut redacted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (scheme, after) = rest.split_at(at + 3);
        let (address, behind) = after.split_at(after.find(ends).unwrap_or(after.len()));
        redacted.push_str(scheme);
        redacted.push_str(&redact_address(address, 0));
        rest = behind;
    }
    redacted.push_str(rest);
    redacted
}

/// An address without its scheme; `within` so many others. Nobody nests addresses deeply, so what
/// is too deep is masked whole: text from outside must cost neither much time nor much stack.
fn redact_address(address: &str, within: usize) -> String {
    let (login, tail) = without_login(address);
    let tail = match tail.find("://") {
        None => mask_query(tail),
        Some(_) if within == NESTED_MAX => MASK.to_owned(),
        Some(at) => {
            let (scheme, after) = tail.split_at(at + 3);
            mask_query(&format!("{scheme}{}", redact_address(after, within + 1)))
        }
    };
    format!("{login}{tail}")
}

/// What to show in place of an address's login, and the rest of the address.
fn without_login(address: &str) -> (&'static str, &str) {
    let end = address.find(['/', '?', '#']).unwrap_or(address.len());
    let authority = &address[..end];
    if let Some((login, _)) = authority.rsplit_once('@') {
        return ("…@", &address[login.len() + 1..]);
    }
    // A password with a slash in it ends the authority too early: its first half is no port.
    let port = authority
        .rsplit(']')
        .next()
        .and_then(|it| it.split_once(':'));
    let is_port = port.is_none_or(|(_, port)| {
        port.starts_with('{') || port.bytes().all(|byte| byte.is_ascii_digit())
    });
    match address.rsplit_once('@') {
        Some((login, _)) if !is_port => ("…@", &address[login.len() + 1..]),
        _ => ("", address),
    }
}

/// An address's text after its login, with secrets in the query masked.
fn mask_query(address: &str) -> String {
    let Some((path, query)) = address.split_once('?') else {
        return address.to_owned();
    };
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((name, value)) if is_secret_name(name) && !value.is_empty() => {
            format!("{name}={MASK}")
        }
        _ => pair.to_owned(),
    });
    format!("{path}?{}", pairs.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_and_secrets_in_addresses_are_masked() {
        for (text, masked) in [
            ("http://h:9/a@b?c=1", "http://h:9/a@b?c=1"),
            ("http://me:s3@h", "http://…@h"),
            ("x='http://me:s3@h','y'", "x='http://…@h','y'"),
            ("http://token@h/a", "http://…@h/a"),
            ("http://me:a/b@h/c", "http://…@h/c"),
            ("http://me:a#b?@h/c", "http://…@h/c"),
            ("http://me:a@b@h/c", "http://…@h/c"),
            (
                "nats://u:p@a:4222 and nats://u:p@b",
                "nats://…@a:4222 and nats://…@b",
            ),
            (
                "postgres://h/db?password=x&a=b",
                "postgres://h/db?password=…&a=b",
            ),
            ("http://h/?u=http://me:s3@i", "http://h/?u=http://…@i"),
            ("http://127.0.0.1:{port}/a@b", "http://127.0.0.1:{port}/a@b"),
            ("\"http://h\",\"a@b\"", "\"http://h\",\"a@b\""),
            ("no address: a@b", "no address: a@b"),
        ] {
            assert_eq!(redact(text), masked, "{text}");
        }
    }

    #[test]
    fn hostile_text_costs_neither_stack_nor_time() {
        let begun = std::time::Instant::now();
        for text in [
            "://".repeat(1_000_000),
            "a://b@c?d=".repeat(300_000),
            "http://me:s3@h ".repeat(200_000),
            "http://h/?u=".repeat(250_000) + "me:s3@i",
        ] {
            assert!(!redact(&text).contains("s3"));
        }
        // Three megabytes each: a time that grew by the square would be hours.
        assert!(begun.elapsed() < std::time::Duration::from_secs(20));
        // A few are still shown.
        assert_eq!(
            redact("http://a/?u=http://b/?u=http://me:s3@c"),
            "http://a/?u=http://b/?u=http://…@c"
        );
    }

    #[test]
    fn settings_with_a_secret_name_are_masked() {
        for (text, masked) in [
            ("--password=x", Some("--password=…")),
            ("DB_PASSWORD=x", Some("DB_PASSWORD=…")),
            ("Authorization: Bearer x", Some("Authorization: …")),
            ("X-Api-Key:x", Some("X-Api-Key:…")),
            ("--rate=5", None),
            ("--password", None),
            ("token://x", None),
            ("select a = token", None),
        ] {
            assert_eq!(mask_setting(text).as_deref(), masked, "{text}");
        }
    }
}
