//! Requests as they go over the wire, made once before the run.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use crate::{Endpoint, Error, HttpRequest};

/// Headers that follow from the request, and cannot be given.
const OWN: [&str; 2] = ["content-length", "transfer-encoding"];

/// A request, ready to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    /// As HTTP/1.1.
    pub(crate) bytes: Box<[u8]>,
    /// The same as the last one of a connection.
    pub(crate) last_bytes: Box<[u8]>,
    /// As HTTP/2; the body is apart.
    pub(crate) head: http::Request<()>,
    pub(crate) body: Bytes,
    /// The answer to HEAD has no body, whatever its length says.
    pub(crate) is_head: bool,
    /// Sent twice, it does what it does once (RFC 9110, 9.2.2).
    pub(crate) is_idempotent: bool,
}

impl Image {
    /// A request to an endpoint with these headers, each `Name: value`.
    ///
    /// # Errors
    /// [`Error::Number`]: a header that cannot be sent.
    pub(crate) fn new(
        request: &HttpRequest,
        endpoint: &Endpoint,
        headers: &[String],
    ) -> Result<Self, Error> {
        let error = |what, reason: String| Error::Number { what, reason };
        let given = parse_headers(headers)?;
        let mut lines = HeaderMap::new();
        let user_agent = concat!("slackline/", env!("CARGO_PKG_VERSION"));
        lines.insert("user-agent", HeaderValue::from_static(user_agent));
        lines.insert("accept", HeaderValue::from_static("*/*"));
        if let Some(login) = &endpoint.login {
            let plain: Vec<u8> = percent_encoding::percent_decode_str(login).collect();
            let basic = format!("Basic {}", BASE64_STANDARD.encode(plain));
            if let Ok(mut value) = HeaderValue::from_str(&basic) {
                value.set_sensitive(true);
                lines.insert("authorization", value);
            }
        }
        for name in given.keys() {
            lines.remove(name);
        }
        let mut authority = endpoint.authority.clone();
        for (name, value) in &given {
            if name == "host" {
                value
                    .to_str()
                    .unwrap_or_default()
                    .clone_into(&mut authority);
            } else {
                lines.append(name, value.clone());
            }
        }
        // A server may refuse a POST without a length (RFC 9110, 8.6).
        if !request.body.is_empty() || ["POST", "PUT", "PATCH"].contains(&request.method.as_str()) {
            lines.insert("content-length", HeaderValue::from(request.body.len()));
        }
        let method = Method::from_bytes(request.method.as_bytes())
            .map_err(|why| error("method", why.to_string()))?;
        let scheme = if endpoint.is_tls { "https" } else { "http" };
        let uri = Uri::builder()
            .scheme(scheme)
            .authority(authority.as_str())
            .path_and_query(request.path.as_str())
            .build()
            .map_err(|why| error("url", format!("{}: {why}", request.path)))?;
        let mut head = http::Request::new(());
        *head.method_mut() = method.clone();
        *head.uri_mut() = uri;
        *head.headers_mut() = lines.clone();
        // HTTP/2 has no connection of one request (RFC 9113, 8.2.2).
        head.headers_mut().remove("connection");
        let text = |last: bool| {
            let mut bytes = format!("{} {} HTTP/1.1\r\nhost: ", request.method, request.path);
            bytes.push_str(&authority);
            let mut bytes = bytes.into_bytes();
            for (name, value) in &lines {
                bytes.extend_from_slice(b"\r\n");
                bytes.extend_from_slice(name.as_str().as_bytes());
                bytes.extend_from_slice(b": ");
                bytes.extend_from_slice(value.as_bytes());
            }
            if last && !lines.contains_key("connection") {
                bytes.extend_from_slice(b"\r\nconnection: close");
            }
            bytes.extend_from_slice(b"\r\n\r\n");
            bytes.extend_from_slice(&request.body);
            bytes.into_boxed_slice()
        };
        Ok(Self {
            bytes: text(false),
            last_bytes: text(true),
            head,
            body: Bytes::from(request.body.clone()),
            is_head: method == Method::HEAD,
            is_idempotent: method.is_idempotent(),
        })
    }
}

/// Checks headers, each `Name: value`.
fn parse_headers(headers: &[String]) -> Result<HeaderMap, Error> {
    let mut map = HeaderMap::new();
    for text in headers {
        let error = |reason: &str| Error::Number {
            what: "header",
            // Not its value, which may be a password.
            reason: format!("{:?}: {reason}", text.split(':').next().unwrap_or_default()),
        };
        let (name, value) = text
            .split_once(':')
            .ok_or_else(|| error("write it as 'Name: value'"))?;
        let name: HeaderName = name
            .trim()
            .parse()
            .map_err(|_| error("it is no name of a header"))?;
        if OWN.contains(&name.as_str()) {
            return Err(error("it follows from the body, and cannot be given"));
        }
        let value: HeaderValue = value
            .trim()
            .parse()
            .map_err(|_| error("its value has a character that no header can have"))?;
        map.append(name, value);
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(url: &str, request: &HttpRequest, headers: &[&str]) -> Result<Image, Error> {
        let headers: Vec<String> = headers.iter().map(|text| (*text).to_owned()).collect();
        Image::new(request, &Endpoint::parse(url)?, &headers)
    }

    #[test]
    fn a_request_is_written_once() {
        let get = image("http://h:81/a?b", &HttpRequest::get("/a?b"), &[]).unwrap();
        let text = String::from_utf8(get.bytes.to_vec()).unwrap();
        let agent = concat!("user-agent: slackline/", env!("CARGO_PKG_VERSION"));
        assert_eq!(
            text,
            format!("GET /a?b HTTP/1.1\r\nhost: h:81\r\n{agent}\r\naccept: */*\r\n\r\n")
        );
        assert!(get.last_bytes.ends_with(b"\r\nconnection: close\r\n\r\n"));
        let post = HttpRequest {
            method: "POST".to_owned(),
            body: b"xy".to_vec(),
            ..HttpRequest::get("/d")
        };
        let headers = ["Host: other", "Accept: text/css", "X-A: 1", "X-A: 2"];
        let post = image("http://me:p%40@h/", &post, &headers).unwrap();
        let text = String::from_utf8(post.bytes.to_vec()).unwrap();
        for line in [
            "\r\nhost: other\r\n",
            "\r\naccept: text/css\r\n",
            "\r\nx-a: 1\r\n",
            "\r\nx-a: 2\r\n",
            "\r\ncontent-length: 2\r\n",
            // base64 of me:p@
            "\r\nauthorization: Basic bWU6cEA=\r\n",
            "\r\n\r\nxy",
        ] {
            assert!(text.contains(line), "{line:?} in {text:?}");
        }
        assert_eq!(text.matches("host:").count(), 1);
        assert!(!post.is_idempotent && get.is_idempotent);
    }

    #[test]
    fn headers_that_cannot_be_sent_are_refused() {
        for (header, words) in [
            ("X", "'Name: value'"),
            ("X Y: 1", "no name"),
            ("X: 1\r\nEvil: 2", "no header can have"),
            ("Content-Length: 5", "follows from the body"),
        ] {
            let error = image("http://h/", &HttpRequest::get("/"), &[header]).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
