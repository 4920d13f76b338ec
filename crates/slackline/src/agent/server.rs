//! The one page that the agent serves, over HTTP/1.1, one request a connection.
//!
//! `httparse` (hyper's parser) reads the request; what is around it is this file. The small synchronous servers on crates.io
//! keep threads of their own and have no time limits, while the agent has one thread, which must get back to its buffers.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// A request's head is never longer; Prometheus' has about 300 bytes.
const HEAD_BYTES_MAX: usize = 8192;
const HEADERS_MAX: usize = 64;
/// A client that is slower is let go.
const READ_MAX: Duration = Duration::from_secs(1);
const WRITE_MAX: Duration = Duration::from_secs(2);
/// Connections that are answered before the agent looks after its buffers again.
const AT_ONCE: usize = 8;

/// Answers whoever waits; `page` gives the metrics.
pub(super) fn answer_all(listener: &TcpListener, mut page: impl FnMut() -> String) {
    for _ in 0..AT_ONCE {
        match listener.accept() {
            // A client that goes away is its own affair.
            Ok((stream, _)) => drop(answer(stream, &mut page)),
            Err(_) => return,
        }
    }
}

fn answer(mut stream: TcpStream, page: &mut impl FnMut() -> String) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(WRITE_MAX))?;
    let (status, body) = match request(&mut stream)? {
        Request::Get(path) if path == "/metrics" => ("200 OK", page()),
        Request::Get(path) if path == "/" => ("200 OK", "The metrics are at /metrics.\n".into()),
        Request::Get(_) => ("404 Not Found", "There is only /metrics.\n".into()),
        Request::Other => ("405 Method Not Allowed", "Only GET is answered.\n".into()),
        Request::Bad => ("400 Bad Request", "This is no HTTP request.\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

enum Request {
    Get(String),
    Other,
    Bad,
}

fn request(stream: &mut TcpStream) -> std::io::Result<Request> {
    let end = Instant::now() + READ_MAX;
    let mut head = Vec::new();
    let mut part = [0; 1024];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let count = stream.read(&mut part)?;
        head.extend_from_slice(&part[..count]);
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&head) {
            Ok(httparse::Status::Complete(_)) => {
                // What follows the question mark is not looked at.
                let path = request.path.and_then(|path| path.split('?').next());
                return Ok(match (request.method, path) {
                    (Some("GET"), Some(path)) => Request::Get(path.to_owned()),
                    _ => Request::Other,
                });
            }
            Ok(httparse::Status::Partial) if count > 0 && head.len() < HEAD_BYTES_MAX => {}
            _ => return Ok(Request::Bad),
        }
    }
}
