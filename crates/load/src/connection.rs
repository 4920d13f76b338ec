//! What is known of one connection.

use rustix::fd::OwnedFd;
use rustls::ClientConnection;

use crate::http1::Answer;
use crate::http2::Session;
use crate::job::Job;

/// A place for a connection: open, or not.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub(crate) socket: Option<OwnedFd>,
    /// Counts the sockets that were in this place: events of an earlier one are not this one's.
    pub(crate) generation: u32,
    pub(crate) is_connecting: bool,
    /// The kernel is asked to say when the socket takes bytes.
    pub(crate) is_writing: bool,
    /// Which of the addresses it is connected to, and how many were tried.
    pub(crate) address: usize,
    pub(crate) tried: usize,
    pub(crate) tls: Option<Box<ClientConnection>>,
    /// Bytes that the socket did not take.
    pub(crate) unwritten: Vec<u8>,
    /// Requests on it now.
    pub(crate) active: usize,
    /// Requests that it was given since it was opened, and those that were answered.
    pub(crate) begun: u64,
    pub(crate) answered: u64,
    /// The present request of HTTP/1.1 is the last one.
    pub(crate) is_last: bool,
    /// It is among those that can take another request.
    pub(crate) is_free: bool,
    /// It takes no other request, and ends with those that it has.
    pub(crate) is_draining: bool,
    /// HTTP/1.1: the request on it, and what has come of the answer.
    pub(crate) job: Option<Job>,
    pub(crate) answer: Answer,
    /// HTTP/2, and requests that wait for it to begin.
    pub(crate) session: Option<Box<Session>>,
    pub(crate) unsent: Vec<Job>,
}

impl Connection {
    /// Forgets the socket.
    pub(crate) fn clear(&mut self) {
        self.socket = None;
        self.generation = self.generation.wrapping_add(1);
        self.is_connecting = false;
        self.is_writing = false;
        self.tls = None;
        self.session = None;
        self.unwritten.clear();
        self.is_draining = false;
        self.active = 0;
    }

    /// Gets ready to be opened.
    pub(crate) fn reset(&mut self) {
        self.tried = 0;
        self.begun = 0;
        self.answered = 0;
        self.is_last = false;
    }
}
