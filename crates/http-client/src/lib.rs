//! How Slackline asks other servers over HTTP.
//!
//! A [`Url`] holds the whole address. Its text never shows a user name, a password or a secret in
//! the query, so no message, report or page can leak one. [`Client`] sends requests and reads
//! answers; [`Client::prometheus`] is the instant query of Prometheus. [`redact`] masks what lies
//! in the texts of others, such as a specification or the output of a command.

#![forbid(unsafe_code)]

mod client;
mod prometheus;
mod redaction;
mod url;

pub use client::{Client, Error, config};
pub use prometheus::{Answer, Data, Series};
pub use redaction::{MASK, is_secret_name, mask_setting, redact};
pub use url::{Url, check_method, check_url, exposed, is_url};

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    /// A server that answers one request with these bytes: its address, and what it was asked, in
    /// lower case.
    pub(crate) fn answering(answer: &'static str) -> (String, JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            let mut buffer = [0; 4096];
            while !is_whole(&asked) {
                let count = stream.read(&mut buffer).unwrap();
                asked.extend_from_slice(&buffer[..count]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&asked).to_lowercase()
        });
        (address, serving)
    }

    /// Whether a request has its headers and the body that they announce.
    fn is_whole(request: &[u8]) -> bool {
        let text = String::from_utf8_lossy(request).to_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            return false;
        };
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        length.is_none_or(|length| body.len() >= length.parse().unwrap())
    }
}
