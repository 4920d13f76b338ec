//! The real connections: sockets, one epoll instance, HTTP/1.1 or HTTP/2 on them, with or without
//! TLS.

mod events;
mod socket;

use std::io::{self, Write as _};
use std::time::Instant;

use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{self, SendFlags, sockopt};

use self::socket::{connect, key, words};
use crate::connection::Connection;
use crate::engine::Answered;
use crate::http2::{Ended, Session};
use crate::job::Job;
use crate::machine;
use crate::service::Service;

/// Events that are taken from the kernel at once.
const EVENTS_MAX: usize = 1024;
/// Bytes that are read at once: more than most answers have.
const READ_BYTES: usize = 64 * 1024;
/// A request that no server looks at is given to so many connections.
const AGAIN_MAX: u8 = 10;

/// The connections of one thread.
pub(crate) struct Network<'a> {
    started: Instant,
    service: &'a Service,
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    connections: Vec<Connection>,
    /// Those that are open and can take another request, the one used last at the end.
    free: Vec<usize>,
    /// Places for connections that are not open.
    closed: Vec<usize>,
    /// Places of connections that came to their end beside their successor.
    retired: Vec<usize>,
    /// Where each ticket's request is.
    places: Vec<usize>,
    /// How often it was given to another connection.
    again: Vec<u8>,
    buffer: Box<[u8]>,
    plain: Box<[u8]>,
    /// The address that answered last.
    address: usize,
    ended: Vec<Ended>,
    totals: machine::Traffic,
    sampler: machine::Sampler,
}

impl<'a> Network<'a> {
    pub(crate) fn new(
        service: &'a Service,
        connections: usize,
        started: Instant,
        sampler: machine::Sampler,
    ) -> io::Result<Self> {
        Ok(Self {
            started,
            service,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(EVENTS_MAX),
            connections: (0..connections).map(|_| Connection::default()).collect(),
            free: Vec::with_capacity(connections),
            closed: (0..connections).rev().collect(),
            retired: Vec::new(),
            places: vec![0; connections * service.streams()],
            again: vec![0; connections * service.streams()],
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            plain: vec![0; if service.tls.is_some() { READ_BYTES } else { 0 }].into_boxed_slice(),
            address: 0,
            ended: Vec::new(),
            totals: machine::Traffic::default(),
            sampler,
        })
    }

    /// Gives a request to a connection, opening one if need be.
    fn assign(&mut self, job: Job, answers: &mut Vec<Answered>) {
        let place = match self.free.last() {
            Some(place) => *place,
            None => match self.closed.pop() {
                Some(place) => {
                    self.connections[place].reset();
                    place
                }
                None => {
                    answers.push(job.failed("no connection is free"));
                    return;
                }
            },
        };
        self.places[job.ticket as usize] = place;
        let connection = &mut self.connections[place];
        connection.active += 1;
        connection.begun += 1;
        let is_open = connection.socket.is_some();
        let is_last = self.service.is_last(connection.begun);
        connection.is_last = is_last;
        if self.service.is_http2 {
            connection.unsent.push(job);
        } else {
            connection.job = Some(job);
        }
        if is_last && self.service.is_http2 {
            self.drain(place);
        } else {
            let has_room = self.connections[place].active < self.service.streams();
            self.set_free(place, has_room);
        }
        if !is_open {
            self.open(place, answers);
        } else if !self.connections[place].is_connecting {
            self.send_job(place, answers);
        }
    }

    fn set_free(&mut self, place: usize, is_free: bool) {
        let connection = &mut self.connections[place];
        if connection.is_free == is_free {
            return;
        }
        connection.is_free = is_free;
        if is_free {
            self.free.push(place);
        } else if self.free.last() == Some(&place) {
            self.free.pop();
        } else {
            self.free.retain(|free| *free != place);
        }
    }

    fn open(&mut self, place: usize, answers: &mut Vec<Answered>) {
        let addresses = &self.service.addresses;
        let mut last = Errno::CONNREFUSED;
        while self.connections[place].tried < addresses.len() {
            let index = (self.address + self.connections[place].tried) % addresses.len();
            self.connections[place].tried += 1;
            match connect(&addresses[index]) {
                Ok((socket, is_connected)) => {
                    let connection = &mut self.connections[place];
                    connection.address = index;
                    connection.is_connecting = !is_connected;
                    let mut flags = epoll::EventFlags::IN;
                    if !is_connected {
                        flags |= epoll::EventFlags::OUT;
                    }
                    let data = epoll::EventData::new_u64(key(place, connection.generation));
                    if let Err(error) = epoll::add(&self.epoll, &socket, data, flags) {
                        last = error;
                        continue;
                    }
                    connection.is_writing = !is_connected;
                    connection.socket = Some(socket);
                    self.totals.opened += 1;
                    if is_connected {
                        self.connected(place, answers);
                    }
                    return;
                }
                Err(error) => last = error,
            }
        }
        self.fail(place, &words(last.into()), answers);
    }

    /// The connection is there: TLS and HTTP begin.
    fn connected(&mut self, place: usize, answers: &mut Vec<Answered>) {
        let connection = &mut self.connections[place];
        connection.is_connecting = false;
        self.address = connection.address;
        if let Some(socket) = &connection.socket {
            // Sockets of the file system have no such option.
            let _ = sockopt::set_tcp_nodelay(socket, true);
        }
        if let Some(tls) = &self.service.tls {
            match tls.begin() {
                Ok(mut tls) => {
                    tls.set_buffer_limit(None);
                    connection.tls = Some(Box::new(tls));
                }
                Err(error) => return self.fail(place, &format!("TLS: {error}"), answers),
            }
        }
        if self.service.is_http2 {
            match Session::begin() {
                Ok(session) => connection.session = Some(Box::new(session)),
                Err(error) => return self.fail(place, &error, answers),
            }
        }
        self.watch_for_room(place, false);
        self.send_job(place, answers);
    }

    /// Sends what was assigned to an open connection.
    fn send_job(&mut self, place: usize, answers: &mut Vec<Answered>) {
        let service = self.service;
        let connection = &mut self.connections[place];
        if let Some(session) = &mut connection.session {
            for job in connection.unsent.drain(..) {
                session.request(job, &service.images[job.request]);
            }
            return self.drive(place, answers);
        }
        let Some(job) = connection.job else { return };
        let image = &service.images[job.request];
        connection.answer.expect(image.is_head);
        let bytes = if connection.is_last {
            &image.last_bytes
        } else {
            &image.bytes
        };
        if let Err(error) = self.transmit(place, bytes) {
            self.lost(place, &words(error), answers);
        }
    }

    /// Sends bytes of HTTP.
    fn transmit(&mut self, place: usize, bytes: &[u8]) -> io::Result<()> {
        let connection = &mut self.connections[place];
        let Some(tls) = &mut connection.tls else {
            return self.send(place, bytes);
        };
        tls.writer().write_all(bytes)?;
        self.send_tls(place)
    }

    fn send_tls(&mut self, place: usize) -> io::Result<()> {
        let connection = &mut self.connections[place];
        let Some(tls) = &mut connection.tls else {
            return Ok(());
        };
        let mut bytes = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut bytes)?;
        }
        if bytes.is_empty() {
            return Ok(());
        }
        self.send(place, &bytes)
    }

    /// Sends bytes, or keeps what the socket does not take yet.
    fn send(&mut self, place: usize, bytes: &[u8]) -> io::Result<()> {
        let connection = &mut self.connections[place];
        let Some(socket) = &connection.socket else {
            return Ok(());
        };
        let mut sent = 0;
        if connection.unwritten.is_empty() {
            while sent < bytes.len() {
                match net::send(socket, &bytes[sent..], SendFlags::NOSIGNAL) {
                    Ok(length) => sent += length,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        if sent < bytes.len() {
            connection.unwritten.extend_from_slice(&bytes[sent..]);
            self.watch_for_room(place, true);
        }
        Ok(())
    }

    /// Whether the kernel is to say when the socket takes bytes again.
    fn watch_for_room(&mut self, place: usize, is_writing: bool) {
        let connection = &mut self.connections[place];
        if connection.is_writing == is_writing {
            return;
        }
        connection.is_writing = is_writing;
        let Some(socket) = &connection.socket else {
            return;
        };
        let mut flags = epoll::EventFlags::IN;
        if is_writing {
            flags |= epoll::EventFlags::OUT;
        }
        let data = epoll::EventData::new_u64(key(place, connection.generation));
        // It was added, so it can be changed.
        let _ = epoll::modify(&self.epoll, socket, data, flags);
    }

    /// Goes on with HTTP/2.
    fn drive(&mut self, place: usize, answers: &mut Vec<Answered>) {
        let mut ended = std::mem::take(&mut self.ended);
        let connection = &mut self.connections[place];
        let Some(session) = &mut connection.session else {
            return;
        };
        let over = session.drive(&mut ended);
        let is_draining = session.is_draining();
        let outgoing = session.outgoing();
        let mut again = Vec::new();
        for ended in ended.drain(..) {
            connection.active = connection.active.saturating_sub(1);
            let job = Job {
                ticket: ended.ticket,
                request: ended.request,
            };
            match ended.result {
                Ok(status) => {
                    connection.answered += 1;
                    answers.push(Answered {
                        ticket: ended.ticket,
                        result: Ok(status),
                    });
                }
                // A server may end a connection after some requests: what it has not looked at goes
                // elsewhere.
                Err(_) if ended.is_unprocessed && self.again[job.ticket as usize] < AGAIN_MAX => {
                    self.again[job.ticket as usize] += 1;
                    again.push(job);
                }
                Err(why) => answers.push(job.failed(&why)),
            }
        }
        self.ended = ended;
        if over.is_some() {
            self.close(place);
        } else {
            let sent = self.transmit(place, &outgoing);
            if let Err(error) = sent {
                self.fail(place, &words(error), answers);
            } else if is_draining {
                self.drain(place);
            }
        }
        let connection = &self.connections[place];
        if connection.socket.is_some() {
            if connection.is_draining {
                if connection.active == 0 {
                    self.close(place);
                }
            } else {
                let has_room = connection.active < self.service.streams();
                self.set_free(place, has_room);
            }
        }
        self.totals.resent += again.len() as u64;
        for job in again {
            self.assign(job, answers);
        }
    }

    /// The connection takes no further request; another one may take its place.
    fn drain(&mut self, place: usize) {
        self.set_free(place, false);
        if std::mem::replace(&mut self.connections[place].is_draining, true) {
            return;
        }
        let successor = self.retired.pop().unwrap_or_else(|| {
            self.connections.push(Connection::default());
            self.connections.len() - 1
        });
        self.closed.push(successor);
    }

    /// A connection of HTTP/1.1 broke. Where it had served before and nothing of this answer came,
    /// the server closed it as idle while the request was on its way: a request that may be sent
    /// twice is (RFC 9110, 9.2.2).
    fn lost(&mut self, place: usize, why: &str, answers: &mut Vec<Answered>) {
        let connection = &self.connections[place];
        let again = connection.job.filter(|job| {
            connection.answered > 0
                && !connection.answer.has_begun()
                && self.service.images[job.request].is_idempotent
        });
        match again {
            Some(job) => {
                self.totals.resent += 1;
                self.connections[place].job = None;
                self.close(place);
                // What else lies idle was perhaps closed with it: a fresh connection settles it.
                self.assign_afresh(place, job, answers);
            }
            None => self.fail(place, why, answers),
        }
    }

    /// Opens this place's connection anew for a request.
    fn assign_afresh(&mut self, place: usize, job: Job, answers: &mut Vec<Answered>) {
        self.closed.retain(|closed| *closed != place);
        let connection = &mut self.connections[place];
        connection.reset();
        connection.active = 1;
        connection.begun = 1;
        connection.is_last = self.service.is_last(1);
        connection.job = Some(job);
        self.places[job.ticket as usize] = place;
        self.open(place, answers);
    }

    /// Everything on a connection has failed.
    fn fail(&mut self, place: usize, why: &str, answers: &mut Vec<Answered>) {
        let connection = &mut self.connections[place];
        let jobs = connection.job.take().into_iter();
        let jobs = jobs.chain(connection.unsent.drain(..));
        answers.extend(jobs.map(|job| job.failed(why)));
        if let Some(session) = &mut connection.session {
            let jobs = session.abandon_all().into_iter();
            answers.extend(jobs.map(|ticket| Job { ticket, request: 0 }.failed(why)));
        }
        self.close(place);
    }

    fn close(&mut self, place: usize) {
        self.set_free(place, false);
        let connection = &mut self.connections[place];
        if connection.is_draining {
            self.retired.push(place);
        } else {
            self.closed.push(place);
        }
        connection.clear();
    }
}
