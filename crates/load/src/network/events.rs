//! What the kernel says of the connections, and the answers that come of it.

use std::io::Read as _;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, sockopt};

use super::socket::{place_of, timespec, words};
use super::{Network, READ_BYTES};
use crate::engine::{Answered, World};
use crate::job::Job;
use crate::machine;

/// What an answer is called that breaks off.
const BROKEN_OFF: &str = "unexpected end of file";

impl World for Network<'_> {
    fn now_ns(&mut self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn has_room(&self) -> bool {
        !self.free.is_empty() || !self.closed.is_empty()
    }

    fn begin(&mut self, ticket: u32, request: usize, answers: &mut Vec<Answered>) {
        self.again[ticket as usize] = 0;
        self.assign(Job { ticket, request }, answers);
    }

    fn abandon(&mut self, ticket: u32) {
        let place = self.places[ticket as usize];
        let connection = &mut self.connections[place];
        if let Some(session) = &mut connection.session {
            session.abandon(ticket);
            connection.active = connection.active.saturating_sub(1);
            if connection.is_draining && connection.active == 0 {
                self.close(place);
            } else if !connection.is_draining {
                self.set_free(place, true);
            }
        } else if connection.unsent.iter().any(|job| job.ticket == ticket) {
            connection.unsent.retain(|job| job.ticket != ticket);
            connection.active = connection.active.saturating_sub(1);
            self.set_free(place, true);
        } else if connection.job.is_some_and(|job| job.ticket == ticket) {
            connection.job = None;
            self.close(place);
        }
    }

    fn poll(&mut self, until_ns: Option<u64>) -> usize {
        let wait_ns = until_ns.map_or(0, |until| until.saturating_sub(self.now_ns()));
        wait(&self.epoll, &mut self.events, wait_ns)
    }

    fn handle(&mut self, index: usize, answers: &mut Vec<Answered>) {
        let event = self.events[index];
        let (place, generation) = place_of(event.data.u64());
        let flags = event.flags;
        // Closed, and perhaps opened again, since the kernel said so.
        if self.connections[place].generation != generation {
            return;
        }
        let broken = epoll::EventFlags::ERR | epoll::EventFlags::HUP;
        if flags.contains(epoll::EventFlags::OUT)
            || (self.connections[place].is_connecting && flags.intersects(broken))
        {
            self.writable(place, answers);
            if self.connections[place].generation != generation {
                return;
            }
        }
        if flags.intersects(epoll::EventFlags::IN | broken)
            && !self.connections[place].is_connecting
        {
            self.readable(place, answers);
        }
    }

    fn run_queue_ns(&mut self) -> u64 {
        self.sampler.run_queue_ns()
    }

    fn sample(&mut self) -> machine::Sample {
        self.sampler.read()
    }

    fn traffic(&self) -> machine::Traffic {
        self.totals
    }
}

impl Network<'_> {
    /// The socket takes bytes: the connection is there, or what was kept can go.
    fn writable(&mut self, place: usize, answers: &mut Vec<Answered>) {
        let connection = &mut self.connections[place];
        let Some(socket) = &connection.socket else {
            return;
        };
        if connection.is_connecting {
            let error = match sockopt::socket_error(socket) {
                Ok(Ok(())) => return self.connected(place, answers),
                Ok(Err(error)) | Err(error) => error,
            };
            connection.socket = None;
            connection.generation = connection.generation.wrapping_add(1);
            if connection.tried < self.service.addresses.len() {
                return self.open(place, answers);
            }
            return self.fail(place, &words(error.into()), answers);
        }
        let kept = std::mem::take(&mut connection.unwritten);
        let sent = self.send(place, &kept);
        match sent {
            Ok(()) if self.connections[place].unwritten.is_empty() => {
                self.watch_for_room(place, false);
            }
            Ok(()) => {}
            Err(error) => self.lost(place, &words(error), answers),
        }
    }

    fn readable(&mut self, place: usize, answers: &mut Vec<Answered>) {
        loop {
            let generation = self.connections[place].generation;
            let Some(socket) = &self.connections[place].socket else {
                return;
            };
            let length = match net::recv(socket, &mut *self.buffer, RecvFlags::empty()) {
                Ok((_, 0)) => return self.ended(place, answers),
                Ok((_, length)) => length,
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(error) => return self.lost(place, &words(error.into()), answers),
            };
            self.totals.received_bytes += length as u64;
            let buffer = std::mem::take(&mut self.buffer);
            if self.connections[place].tls.is_some() {
                self.take_tls(place, &buffer[..length], answers);
            } else {
                self.take(place, &buffer[..length], answers);
            }
            self.buffer = buffer;
            let is_same = self.connections[place].generation == generation;
            if !is_same || length < READ_BYTES {
                return;
            }
        }
    }

    /// Takes bytes of TLS.
    fn take_tls(&mut self, place: usize, mut bytes: &[u8], answers: &mut Vec<Answered>) {
        let generation = self.connections[place].generation;
        let mut plain = std::mem::take(&mut self.plain);
        while !bytes.is_empty() {
            let Some(tls) = &mut self.connections[place].tls else {
                break;
            };
            let mut read = || -> Result<(), String> {
                tls.read_tls(&mut bytes).map_err(words)?;
                tls.process_new_packets()
                    .map_err(|error| format!("TLS: {error}"))?;
                Ok(())
            };
            if let Err(why) = read() {
                // The other side is told why.
                let _ = self.send_tls(place);
                self.fail(place, &why, answers);
                break;
            }
            let speaks_http2 = tls.alpn_protocol() == Some(b"h2");
            if self.service.is_http2 && !tls.is_handshaking() && !speaks_http2 {
                let why = "the service does not offer HTTP/2 over TLS";
                self.fail(place, why, answers);
                break;
            }
            if let Err(error) = self.send_tls(place) {
                self.lost(place, &words(error), answers);
                break;
            }
            loop {
                let tls = &mut self.connections[place].tls;
                let Some(tls) = tls else { break };
                // An error says that there is nothing more for now.
                match tls.reader().read(&mut plain) {
                    Ok(length) if length > 0 => self.take(place, &plain[..length], answers),
                    _ => break,
                }
                if self.connections[place].generation != generation {
                    break;
                }
            }
            if self.connections[place].generation != generation {
                break;
            }
        }
        self.plain = plain;
    }

    /// Takes bytes of HTTP.
    fn take(&mut self, place: usize, bytes: &[u8], answers: &mut Vec<Answered>) {
        let connection = &mut self.connections[place];
        if let Some(session) = &mut connection.session {
            session.take(bytes);
            return self.drive(place, answers);
        }
        if connection.job.is_none() {
            // A server that gives up an idle connection may say so first (408).
            return self.close(place);
        }
        match connection.answer.take(bytes) {
            Ok(left) if connection.answer.is_done() => self.finish(place, left > 0, answers),
            Ok(_) => {}
            Err(why) => self.fail(place, &why.to_string(), answers),
        }
    }

    /// An answer of HTTP/1.1 is whole.
    fn finish(&mut self, place: usize, has_more: bool, answers: &mut Vec<Answered>) {
        let connection = &mut self.connections[place];
        if let Some(job) = connection.job.take() {
            answers.push(Answered {
                ticket: job.ticket,
                result: Ok(connection.answer.status()),
            });
        }
        connection.answered += 1;
        connection.active = 0;
        // Bytes behind an answer belong to none; a request not sent whole cannot be followed by
        // another.
        let is_over = has_more
            || connection.is_last
            || connection.answer.closes()
            || !connection.unwritten.is_empty();
        if is_over {
            self.close(place);
        } else {
            self.set_free(place, true);
        }
    }

    /// The other side has closed.
    fn ended(&mut self, place: usize, answers: &mut Vec<Answered>) {
        let connection = &mut self.connections[place];
        if let Some(session) = &mut connection.session {
            session.end();
            self.drive(place, answers);
            if self.connections[place].socket.is_some() {
                self.fail(place, BROKEN_OFF, answers);
            }
            return;
        }
        if connection.job.is_some() && connection.answer.end() {
            return self.finish(place, true, answers);
        }
        self.lost(place, BROKEN_OFF, answers);
    }
}

/// Waits for events, and replaces those in `events` by what is there.
///
/// `epoll_pwait` waits for whole milliseconds, and `epoll_pwait2` came with Linux 5.11. So it is
/// `ppoll` that waits.
fn wait(epoll: &OwnedFd, events: &mut Vec<epoll::Event>, wait_ns: u64) -> usize {
    events.clear();
    if wait_ns > 0 {
        let ready = PollFd::new(epoll, PollFlags::IN);
        if matches!(poll(&mut [ready], Some(&timespec(wait_ns))), Ok(0)) {
            return 0;
        }
    }
    epoll::wait(epoll, spare_capacity(events), Some(&timespec(0))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_wait_is_of_microseconds() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let asked = Duration::from_micros(300);
        let waits = (0..200).map(|_| {
            let start = Instant::now();
            assert_eq!(wait(&epoll, &mut Vec::with_capacity(4), 300_000), 0);
            start.elapsed()
        });
        // Another process may hold up most of the waits, and hardly all of them.
        let shortest = waits.min().unwrap();
        assert!(shortest >= asked, "{shortest:?}");
        assert!(shortest < Duration::from_micros(900), "{shortest:?}");
    }

    #[test]
    fn a_wait_ends_with_an_event() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let data = epoll::EventData::new_u64(7);
        epoll::add(&epoll, &theirs, data, epoll::EventFlags::IN).unwrap();
        let mut events = Vec::with_capacity(4);
        assert_eq!(wait(&epoll, &mut events, 1_000), 0);
        let minute_ns = 60_000_000_000;
        let start = Instant::now();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            std::io::Write::write_all(&mut ours, b"x").unwrap();
            ours
        });
        assert_eq!(wait(&epoll, &mut events, minute_ns), 1);
        assert_eq!(events[0].data.u64(), 7);
        assert!(start.elapsed() < Duration::from_secs(50));
    }
}
