//! The one page of a small server, over HTTP/1.1, one request a connection.
//!
//! `httparse` (hyper's parser) reads the request; what is around it is this file. The small
//! synchronous servers on crates.io keep threads of their own and have no time limits, while the
//! agent has one thread, which must get back to its buffers.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// A request's head is never longer; Prometheus' has about 300 bytes.
const HEAD_BYTES_MAX: usize = 8192;
const HEADERS_MAX: usize = 64;
/// A client that is slower is let go: all that are answered at once have this long together.
const READ_MAX: Duration = Duration::from_secs(1);
/// But what a client has sent is read, however slow those before it were.
const READ_MIN: Duration = Duration::from_millis(50);
const WRITE_MAX: Duration = Duration::from_secs(2);
/// Connections that are answered before the agent looks after its buffers again.
const AT_ONCE: usize = 8;

/// Answers whoever waits on a listener that does not block; `page` gives the metrics.
pub fn answer_all(listener: &TcpListener, mut page: impl FnMut() -> String) {
    let end = Instant::now() + READ_MAX;
    for _ in 0..AT_ONCE {
        match listener.accept() {
            // A client that goes away is its own affair.
            Ok((stream, _)) => {
                drop(answer(
                    stream,
                    end.max(Instant::now() + READ_MIN),
                    &mut page,
                ));
            }
            Err(_) => return,
        }
    }
}

fn answer(
    mut stream: TcpStream,
    end: Instant,
    page: &mut impl FnMut() -> String,
) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(WRITE_MAX))?;
    let (status, body) = match request(&mut stream, end)? {
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

fn request(stream: &mut TcpStream, end: Instant) -> std::io::Result<Request> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_say_nothing_share_the_time_of_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let silent: Vec<TcpStream> = (1..AT_ONCE)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let mut scrape = TcpStream::connect(address).unwrap();
        scrape.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let start = Instant::now();
        answer_all(&listener, || "a 1\n".into());
        // Less than half of what it took when each was waited for.
        assert!(start.elapsed() < READ_MAX * 3, "{:?}", start.elapsed());
        let mut answer = String::new();
        scrape.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("\r\n\r\na 1\n"), "{answer}");
        drop(silent);
    }
}
