//! What is sent.

use std::path::Path;

use crate::{Error, read};

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `POST`, …
    pub method: String,
    /// The whole URL.
    pub url: String,
    /// The body; empty for none.
    pub body: String,
}

impl Request {
    /// A GET.
    pub fn get(url: &str) -> Self {
        Self {
            method: "GET".to_owned(),
            url: url.to_owned(),
            body: String::new(),
        }
    }

    /// Reads a list of requests, one a line: `METHOD PATH`, and after another space the body, if any. Paths are appended to
    /// `base`, such as `http://127.0.0.1:8080`. Empty lines and those that start with `#` do not count.
    ///
    /// # Errors
    ///
    /// [`Error::File`], [`Error::Line`].
    pub fn read_list(path: &Path, base: &str) -> Result<Vec<Self>, Error> {
        let mut requests = Vec::new();
        for (index, line) in read(path)?.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.splitn(3, ' ');
            let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            let is_method =
                !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
            if !(is_method && target.starts_with('/')) {
                let reason = format!("{line:?} is not METHOD /PATH [BODY]");
                return Err(Error::in_line(path, index + 1, reason));
            }
            requests.push(Self {
                method: method.to_owned(),
                url: format!("{}{target}", base.trim_end_matches('/')),
                body: words.next().unwrap_or("").to_owned(),
            });
        }
        if requests.is_empty() {
            let reason = "there are no requests".to_owned();
            return Err(Error::in_line(path, 1, reason));
        }
        Ok(requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_line_by_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            file.path(),
            "# tweets\nGET /a?b=c\n\nPOST /d {\"text\": \"x y\"}\n",
        )
        .unwrap();
        let list = Request::read_list(file.path(), "http://h:1/").unwrap();
        assert_eq!(list[0], Request::get("http://h:1/a?b=c"));
        assert_eq!(list[1].body, "{\"text\": \"x y\"}");
        for (text, words) in [
            ("GET a\n", ":1: \"GET a\" is not METHOD /PATH"),
            ("\nget /\n", ":2: "),
            ("# none\n", "there are no requests"),
        ] {
            std::fs::write(file.path(), text).unwrap();
            let error = Request::read_list(file.path(), "http://h").unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
