//! Timers that the service pushes, in the format of statsd (its docs/metric_types.md):
//! `name:12.5|ms|@0.1`, one a line.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Error;
use crate::distribution::{Distribution, Fine};
use crate::reading::{NoData, Slice};
use crate::source::{LatencySource, PushSpec, Wrong};

/// The longest datagram that is read; statsd clients keep to an Ethernet frame.
const DATAGRAM_MAX: usize = 65_536;
/// Datagrams that are read without looking at the time.
const BATCH: usize = 64;
/// A sampling rate below this is not believed.
const RATE_MIN: f64 = 1e-4;

#[derive(Debug)]
enum Socket {
    Udp(UdpSocket),
    Unix(UnixDatagram, PathBuf),
}

impl Socket {
    fn open(spec: &PushSpec) -> Result<Self, Error> {
        spec.check()?;
        let failed = |of: String| move |source: io::Error| Error::Listen { of, source };
        match (&spec.udp, &spec.unix) {
            (Some(address), _) => {
                let socket = UdpSocket::bind(address).map_err(failed(address.to_string()))?;
                socket
                    .set_nonblocking(true)
                    .map_err(failed(address.to_string()))?;
                Ok(Self::Udp(socket))
            }
            (_, Some(path)) => {
                let of = || path.display().to_string();
                let socket = bind_unix(path).map_err(failed(of()))?;
                socket.set_nonblocking(true).map_err(failed(of()))?;
                Ok(Self::Unix(socket, path.clone()))
            }
            // Excluded by the check before.
            (None, None) => Err(Wrong::new("push", "give either udp or unix").into()),
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Udp(socket) => socket.recv(buffer),
            Self::Unix(socket, _) => socket.recv(buffer),
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Udp(socket) => socket.as_fd(),
            Self::Unix(socket, _) => socket.as_fd(),
        }
    }
}

/// A socket that a killed Slackline left is replaced; anything else, or one that somebody reads, is
/// not.
fn bind_unix(path: &Path) -> io::Result<UnixDatagram> {
    match std::fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => {
            let why =
                "a file with this path is there and is no socket: remove it, or name another path";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        Ok(_) if is_orphan(path) => std::fs::remove_file(path)?,
        _ => {}
    }
    UnixDatagram::bind(path)
}

/// Nobody has this socket open. One of another type, such as a stream's, refuses in other words.
fn is_orphan(path: &Path) -> bool {
    let probe = UnixDatagram::unbound().and_then(|probe| probe.connect(path));
    probe.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// A socket that takes timers.
#[derive(Debug)]
pub(crate) struct Push {
    socket: Socket,
    timer: Option<String>,
    buffer: Vec<u8>,
    /// Datagrams that hold no timer at all.
    malformed: u64,
}

impl Push {
    pub(crate) fn open(spec: &PushSpec) -> Result<Self, Error> {
        Ok(Self {
            socket: Socket::open(spec)?,
            timer: spec.timer.clone(),
            buffer: vec![0; DATAGRAM_MAX],
            malformed: 0,
        })
    }

    /// Reads what has come, at most a batch; how many datagrams that were.
    fn read(&mut self, latencies: &mut Fine) -> io::Result<usize> {
        for count in 0..BATCH {
            let length = match self.socket.receive(&mut self.buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(count),
                Err(error) => return Err(error),
            };
            let text = String::from_utf8_lossy(&self.buffer[..length]);
            let timers = text.lines().filter_map(parse);
            let mut is_malformed = true;
            for (name, latency_ns, times) in timers {
                is_malformed = false;
                if self.timer.as_deref().is_none_or(|timer| timer == name) {
                    latencies.record_times_ns(latency_ns, times);
                }
            }
            self.malformed += u64::from(is_malformed);
        }
        Ok(BATCH)
    }
}

/// A timer's name, its time in nanoseconds and how many requests it stands for.
fn parse(line: &str) -> Option<(&str, u64, u64)> {
    let (name, rest) = line.split_once(':')?;
    let mut parts = rest.split('|');
    let milliseconds: f64 = parts.next()?.trim().parse().ok()?;
    // `h` and `d` are timers of later dialects, in milliseconds likewise.
    if !matches!(parts.next()?, "ms" | "h" | "d") || !(0.0..1e12).contains(&milliseconds) {
        return None;
    }
    let rate = parts.find_map(|part| part.strip_prefix('@'));
    let rate: f64 = rate.map_or(Some(1.0), |rate| rate.parse().ok())?;
    if !(RATE_MIN..=1.0).contains(&rate) {
        return None;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "both are checked above"
    )]
    let whole = ((milliseconds * 1e6) as u64, (1.0 / rate).round() as u64);
    Some((name, whole.0, whole.1))
}

impl LatencySource for Push {
    fn describe(&self) -> String {
        match &self.socket {
            Socket::Udp(socket) => match socket.local_addr() {
                Ok(address) => format!("timers pushed to {address}"),
                Err(_) => "timers pushed by UDP".to_owned(),
            },
            Socket::Unix(_, path) => format!("timers pushed to {}", path.display()),
        }
    }

    fn poll(&mut self, until: Instant) -> Result<Slice, NoData> {
        let failed = |why: String| NoData::Failed {
            why: format!("the timers' socket: {why}"),
        };
        let mut latencies = Fine::default();
        let before = self.malformed;
        loop {
            let count = self
                .read(&mut latencies)
                .map_err(|error| failed(error.to_string()))?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if count < BATCH {
                let timeout =
                    Timespec::try_from(left).map_err(|error| failed(error.to_string()))?;
                let mut descriptors = [PollFd::from_borrowed_fd(
                    self.socket.descriptor(),
                    PollFlags::IN,
                )];
                // A signal is another reason to look.
                let _ = poll(&mut descriptors, Some(&timeout));
            }
        }
        if latencies.requests() == 0 && self.malformed > before {
            return Err(failed(
                "what comes is no timer of statsd (name:12.5|ms)".to_owned(),
            ));
        }
        Ok(Slice {
            distribution: Distribution::Fine(latencies),
            sampled_share: 1.0,
            ..Slice::default()
        })
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        if let Socket::Unix(_, path) = &self.socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(50)
    }

    #[test]
    fn timers_are_read_and_a_sampled_one_counts_more_than_once() {
        assert_eq!(parse("a.b:2.5|ms"), Some(("a.b", 2_500_000, 1)));
        assert_eq!(parse("a:1|ms|@0.1|#tag:x"), Some(("a", 1_000_000, 10)));
        assert_eq!(parse("a:3|h"), Some(("a", 3_000_000, 1)));
        for other in [
            "a:1|c",
            "a:x|ms",
            "a:-1|ms",
            "a:1|ms|@0",
            "a:1|ms|@7",
            "a",
            "a:1",
            "a:nan|ms",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_udp_socket_takes_timers_of_its_name() {
        // A port that was free a moment ago.
        let free = UdpSocket::bind("127.0.0.1:0").unwrap();
        let spec = PushSpec {
            udp: Some(free.local_addr().unwrap()),
            unix: None,
            timer: Some("http".into()),
        };
        drop(free);
        let mut push = Push::open(&spec).unwrap();
        let Socket::Udp(socket) = &push.socket else {
            panic!("no UDP socket")
        };
        let (to, sender) = (
            socket.local_addr().unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        sender
            .send_to(b"http:5|ms\nsql:900|ms\nhttp:7|ms\n", to)
            .unwrap();
        let slice = push.poll(soon()).unwrap();
        assert_eq!(slice.distribution.requests(), 2);
        let most = slice.distribution.quantile_us(1.0).unwrap();
        assert!((most / 7000.0 - 1.0).abs() < 1e-3, "{most}");
        sender.send_to(b"hello", to).unwrap();
        let failure = push.poll(soon()).unwrap_err().to_string();
        assert!(failure.contains("no timer"), "{failure}");
        assert_eq!(push.poll(soon()).unwrap().distribution.requests(), 0);
    }

    #[test]
    fn an_orphaned_unix_socket_is_replaced_and_a_used_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("timers.sock");
        let spec = PushSpec {
            udp: None,
            unix: Some(path.clone()),
            timer: None,
        };
        drop(UnixDatagram::bind(&path).unwrap());
        let mut push = Push::open(&spec).unwrap();
        assert!(
            Push::open(&spec)
                .unwrap_err()
                .to_string()
                .contains("in use")
        );
        UnixDatagram::unbound()
            .unwrap()
            .send_to(b"x:1|ms", &path)
            .unwrap();
        assert_eq!(push.poll(soon()).unwrap().distribution.requests(), 1);
        drop(push);
        assert!(!path.exists());
        std::fs::write(&path, "not a socket").unwrap();
        let error = Push::open(&spec).unwrap_err().to_string();
        assert!(error.contains("is there and is no socket"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "not a socket");
        std::fs::remove_file(&path).unwrap();
        // Somebody's stream is no orphan.
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(Push::open(&spec).is_err());
        assert!(path.exists());
    }

    #[test]
    fn only_loopback_and_only_one_socket() {
        let public = PushSpec {
            udp: Some(([0, 0, 0, 0], 8125).into()),
            unix: None,
            timer: None,
        };
        assert!(
            Push::open(&public)
                .unwrap_err()
                .to_string()
                .contains("loopback")
        );
        let none = PushSpec {
            udp: None,
            unix: None,
            timer: None,
        };
        assert!(Push::open(&none).is_err());
    }
}
