//! The latency of a service's requests: read off the wire, scraped from its metrics, asked of
//! Prometheus or a command, or pushed by the service itself. Every figure says how many requests it
//! stands on, and where there is no figure, why.
//!
//! ```no_run
//! use std::time::Duration;
//! use wire_latency::{Monitor, SourceSpec, Surroundings, WindowRules, WireSpec};
//!
//! let wire = SourceSpec::Wire(WireSpec::of_port(11211));
//! let every = Duration::from_millis(100);
//! let monitor = Monitor::start(&wire, &Surroundings::default(), WindowRules::default(), every)?;
//! match monitor.look() {
//!     Ok(reading) => println!("{:?}", reading.percentile(99.0)),
//!     Err(no_data) => println!("no data: {no_data}"),
//! }
//! # Ok::<(), wire_latency::Error>(())
//! ```
//!
//! Packets are turned into latencies without any input or output (`segment`, `connection`,
//! `tracker`, `protocol`): bytes and time stamps come in, latencies go out. Unsafe code is in
//! `ring` (socket options, a mapping, and reads of its blocks), and one call in `command`.

mod command;
mod connection;
mod distribution;
mod error;
mod exposition;
mod filter;
mod meter;
mod monitor;
mod namespace;
mod pace;
mod prometheus;
mod promql;
mod protocol;
mod push;
mod reading;
mod ring;
mod sampling;
mod scrape;
mod segment;
mod source;
mod stopper;
mod tcp_table;
mod tracker;
mod window;
mod wire;

pub use distribution::{Buckets, Distribution, Fine};
pub use error::Error;
pub use meter::Meter;
pub use monitor::Monitor;
pub use protocol::Protocol;
pub use reading::{Counts, Look, NoData, Percentile, Reading, Slice, minimum_requests};
pub use source::{
    LatencySource, PrometheusSpec, PushSpec, ScrapeSpec, SourceSpec, Surroundings, Unit, WireSpec,
    Wrong,
};
pub use stopper::Stopper;
pub use tcp_table::{TcpSocket, TcpState, tcp_sockets};
pub use window::{Window, WindowRules};

/// Whether packets can be read here.
///
/// # Errors
/// A privilege or a kernel feature is missing.
pub fn probe() -> Result<(), Error> {
    // A filter that admits nothing.
    ring::Ring::open(&filter::nothing())
        .map(drop)
        .map_err(Error::Packets)
}

/// Opens a source.
///
/// # Errors
/// The source cannot be opened.
pub fn open(
    spec: &SourceSpec,
    surroundings: &Surroundings,
) -> Result<Box<dyn LatencySource>, Error> {
    match spec {
        SourceSpec::Wire(spec) => Ok(Box::new(wire::Wire::open(spec, surroundings)?)),
        SourceSpec::Scrape(spec) => Ok(Box::new(scrape::Scrape::new(spec)?)),
        SourceSpec::Prometheus(spec) => {
            Ok(Box::new(prometheus::Prometheus::new(spec, surroundings)?))
        }
        SourceSpec::Command(argv) => Ok(Box::new(command::Command::new(argv, surroundings)?)),
        SourceSpec::Push(spec) => Ok(Box::new(push::Push::open(spec)?)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    /// A server that answers one request after the other with these bodies.
    pub(crate) fn serving(bodies: Vec<String>) -> (String, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = std::thread::spawn(move || {
            for body in bodies {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = Vec::new();
                let mut buffer = [0; 4096];
                while !is_whole(&asked) {
                    let count = stream.read(&mut buffer).unwrap();
                    asked.extend_from_slice(&buffer[..count]);
                }
                let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length:";
                let answer = format!("{head} {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        (url, serving)
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
