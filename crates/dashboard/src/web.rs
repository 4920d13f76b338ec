//! Addresses, queries and cookies.

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;

use crate::reply::Refusal;

/// The parameters of a query; what is wrong with one is said in words.
pub(crate) struct Params<T>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let query = Query::<T>::try_from_uri(&parts.uri);
        query.map(|Query(given)| Self(given)).map_err(|error| {
            // "Failed to deserialize query string: page: invalid digit found in string"
            let text = error.body_text();
            let why = text.split_once(": ").map_or(text.as_str(), |(_, why)| why);
            Refusal::new(StatusCode::BAD_REQUEST, in_words(why))
        })
    }
}

/// What serde says of a parameter, in words.
fn in_words(why: &str) -> String {
    let Some((name, what)) = why.split_once(": ") else {
        return tuner::spec::plain(why);
    };
    let is_no_number = ["digit found", "cannot parse integer", "number too large"];
    if is_no_number.iter().any(|it| what.contains(it)) {
        format!("{name} must be a whole number")
    } else if what.contains("nonzero") {
        format!("{name} must be 1 or more")
    } else {
        format!("{name}: {}", tuner::spec::plain(what))
    }
}

/// A parameter's value, if it is one of those that there are; an empty one is none.
///
/// # Errors
/// What there is.
pub(crate) fn one_of<'a>(
    name: &str,
    value: Option<&'a str>,
    known: &[&str],
) -> Result<Option<&'a str>, Refusal> {
    let value = value.filter(|value| !value.is_empty());
    match value {
        Some(value) if !known.contains(&value) => Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            format!("{name} must be {}, not {value}", listed(known)),
        )),
        value => Ok(value),
    }
}

/// A parameter's value that has to be given and to be one of those that there are.
///
/// # Errors
/// What there is.
pub(crate) fn needed_of<'a>(
    name: &str,
    value: &'a str,
    known: &[&str],
) -> Result<&'a str, Refusal> {
    one_of(name, Some(value), known)?.ok_or_else(|| {
        let why = format!("{name} is missing: it must be {}", listed(known));
        Refusal::new(StatusCode::BAD_REQUEST, why)
    })
}

/// Words in a row: `a, b or c`.
fn listed(words: &[&str]) -> String {
    match words {
        [all @ .., last] if !all.is_empty() => format!("{} or {last}", all.join(", ")),
        words => words.concat(),
    }
}

/// Characters of a query that need no percent (RFC 3986, "unreserved").
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte)
}

/// A text as a value in a query.
pub(crate) fn encoded(text: &str) -> String {
    let each = text.bytes().map(|byte| match is_unreserved(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    each.collect()
}

/// A name or value of a query or form.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let digits = rest.get(..2).and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 16).ok()
        });
        match (byte, digits) {
            (b'%', Some(escaped)) => {
                bytes.push(escaped);
                rest = &rest[2..];
            }
            (b'+', _) => bytes.push(b' '),
            _ => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The names and values of a query or form.
pub(crate) fn pairs(query: &str) -> impl Iterator<Item = (String, String)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(name), decoded(value))
    })
}

/// The parameter of the sign-in page that says that the token in an address was not valid.
pub(crate) const WRONG_TOKEN: &str = "wrong";

/// A host without its port.
pub(crate) fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// The token in a query, and the query without it.
pub(crate) fn without_token(query: &str) -> (Option<String>, String) {
    let is_token = |pair: &&str| pair.split('=').next() == Some("token");
    let token = query.split('&').find(is_token);
    let token = token
        .and_then(|pair| pairs(pair).next())
        .map(|(_, token)| token);
    let rest: Vec<&str> = query.split('&').filter(|pair| !is_token(pair)).collect();
    (token, rest.join("&"))
}

/// A path of this server: nothing that a browser takes for another host, and nothing that does not
/// belong into a header.
pub(crate) fn local_path(path: &str) -> String {
    // Browsers leave out control characters and take \ for /.
    let plain: String = path.chars().filter(|it| !it.is_control()).collect();
    let local = plain.trim_start_matches(['/', '\\', ' ']);
    let is_path = plain.starts_with('/') && local.is_ascii();
    match is_path {
        true => format!("/{local}"),
        false => "/".to_owned(),
    }
}

/// The cookie's name: with the port by which the browser calls us, as browsers do not tell the
/// ports of one host apart.
pub(crate) fn cookie_name(host: &str, is_https: bool) -> String {
    let port = host.rsplit_once(':').map(|(_, port)| port);
    let port = port.filter(|port| !port.is_empty() && port.bytes().all(|it| it.is_ascii_digit()));
    let default = if is_https { "443" } else { "80" };
    format!("slackline-{}", port.unwrap_or(default))
}

/// The value of a header, where it is text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leads_to_another_host() {
        for (path, local) in [
            ("/experiments/3?page=2", "/experiments/3?page=2"),
            ("//evil.example/", "/evil.example/"),
            ("/\\evil.example/", "/evil.example/"),
            ("/\t/evil.example/", "/evil.example/"),
            ("///evil.example", "/evil.example"),
            ("https://evil.example/", "/"),
            ("evil.example", "/"),
            ("/a\r\nSet-Cookie: x=y", "/aSet-Cookie: x=y"),
            ("", "/"),
        ] {
            assert_eq!(local_path(path), local, "{path}");
        }
    }

    #[test]
    fn a_token_leaves_the_query_and_the_rest_stays() {
        let of = |query| without_token(query);
        assert_eq!(of("token=a%2Bb"), (Some("a+b".into()), String::new()));
        assert_eq!(
            of("page=2&token=x&y=%20"),
            (Some("x".into()), "page=2&y=%20".into())
        );
        assert_eq!(of("tokens=x&page=2"), (None, "tokens=x&page=2".into()));
        assert_eq!(of(""), (None, String::new()));
    }

    #[test]
    fn a_value_that_there_is_not_is_answered_with_those_that_there_are() {
        let known = ["json", "csv", "parquet"];
        assert_eq!(one_of("format", Some("csv"), &known), Ok(Some("csv")));
        assert_eq!(one_of("format", None, &known), Ok(None));
        assert_eq!(needed_of("format", "csv", &known), Ok("csv"));
        let missing = needed_of("format", "", &known).unwrap_err();
        assert_eq!(
            missing.text(),
            "format is missing: it must be json, csv or parquet"
        );
        let refused = one_of("format", Some("xls"), &known).unwrap_err();
        assert_eq!(
            (refused.status(), refused.text()),
            (
                StatusCode::BAD_REQUEST,
                "format must be json, csv or parquet, not xls"
            )
        );
    }

    #[test]
    fn what_is_wrong_with_a_parameter_is_said_in_words() {
        for (said, words) in [
            (
                "limit: invalid digit found in string",
                "limit must be a whole number",
            ),
            (
                "limit: invalid value: integer `0`, expected a nonzero usize",
                "limit must be 1 or more",
            ),
            (
                "state: unknown variant `x`, expected `a` or `b`",
                "state: unknown value `x`, expected `a` or `b`",
            ),
        ] {
            assert_eq!(in_words(said), words);
        }
    }

    #[test]
    fn a_query_comes_back_as_it_was() {
        let text = "/a?b=c&d=é +%";
        let query = format!("next={}", encoded(text));
        let read: Vec<_> = pairs(&query).collect();
        assert_eq!(read, [("next".to_owned(), text.to_owned())]);
        assert_eq!(pairs("a=%zz&b").count(), 2);
    }

    #[test]
    fn two_tunnels_on_one_host_have_cookies_of_their_own() {
        assert_ne!(
            cookie_name("localhost:9001", false),
            cookie_name("localhost:9002", false)
        );
        assert_eq!(cookie_name("tuner.example", true), "slackline-443");
        assert_eq!(cookie_name("[::1]:8431", false), "slackline-8431");
    }
}
