//! What is sent.

use std::path::Path;

use http_client::check_method;

use crate::{Error, read};

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// `GET`, `POST`, `PURGE`, …: any method in capitals.
    pub method: String,
    /// What is asked for: a path, with its query.
    pub path: String,
    /// The body; empty for none.
    pub body: Vec<u8>,
}

impl HttpRequest {
    /// A GET.
    pub fn get(path: &str) -> Self {
        Self {
            method: "GET".to_owned(),
            path: path.to_owned(),
            body: Vec::new(),
        }
    }

    /// Reads a list of requests, one a line: `METHOD PATH`, and after another space the body, if
    /// any. Empty lines and those that start with `#` do not count.
    ///
    /// # Errors
    ///
    /// [`Error::File`], [`Error::Line`].
    pub fn read_list(path: &Path) -> Result<Vec<Self>, Error> {
        let mut requests = Vec::new();
        for (index, line) in read(path)?.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.splitn(3, ' ');
            let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            let error = |reason| Err(Error::in_line(path, index + 1, reason));
            if !target.starts_with('/') {
                return error(format!("{line:?} is not METHOD /PATH [BODY]"));
            }
            if let Err(reason) = check_method(method) {
                return error(reason);
            }
            if let Err(reason) = check_path(target) {
                return error(reason);
            }
            requests.push(Self {
                method: method.to_owned(),
                path: target.to_owned(),
                body: words.next().unwrap_or("").as_bytes().to_vec(),
            });
        }
        if requests.is_empty() {
            let reason = "there are no requests".to_owned();
            return Err(Error::in_line(path, 1, reason));
        }
        Ok(requests)
    }
}

/// Whether a path can stand in a request line.
pub(crate) fn check_path(path: &str) -> Result<(), String> {
    match path.chars().find(|letter| !letter.is_ascii_graphic()) {
        None => Ok(()),
        Some(letter) => Err(format!(
            "the path {path:?} contains {letter:?}: write it percent-encoded, such as %20 for a space"
        )),
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
            "# tweets\nGET /a?b=c\n\nPOST /d {\"text\": \"x y\"}\nPURGE /a\nVERSION-CONTROL /dav\n",
        )
        .unwrap();
        let list = HttpRequest::read_list(file.path()).unwrap();
        assert_eq!(list[0], HttpRequest::get("/a?b=c"));
        assert_eq!(list[1].body, b"{\"text\": \"x y\"}");
        assert_eq!(list[2].method, "PURGE");
        assert_eq!(list.len(), 4);
        for (text, words) in [
            ("GET a\n", ":1: \"GET a\" is not METHOD /PATH"),
            ("\nget /\n", ":2: \"get\" is no method"),
            ("CONNECT /\n", ":1: CONNECT opens a tunnel"),
            ("GET /caf\u{e9}\n", ":1: the path"),
            ("# none\n", "there are no requests"),
        ] {
            std::fs::write(file.path(), text).unwrap();
            let error = HttpRequest::read_list(file.path()).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
