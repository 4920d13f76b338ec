//! A connection of HTTP/2 without I/O: bytes that came go in, bytes to be sent come out. The
//! protocol is the crate `h2`'s, which is driven by hand: its sockets are two buffers, and it is
//! polled after whatever came in.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::job::Job;
use crate::wire::Image;

/// How much of an answer may be on its way: large enough that no answer of a load test waits for
/// the window.
const WINDOW_BYTES: u32 = 16 << 20;

/// What a stream came to.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) ticket: u32,
    /// Its place in the list of requests.
    pub(crate) request: usize,
    /// The server has not looked at it: it may be sent again.
    pub(crate) is_unprocessed: bool,
    /// The status, or what went wrong in a few words.
    pub(crate) result: Result<u16, String>,
}

/// Both ends of the connection's bytes.
#[derive(Debug, Default)]
struct Buffers {
    incoming: VecDeque<u8>,
    outgoing: Vec<u8>,
    is_at_end: bool,
}

/// What `h2` takes for a socket.
#[derive(Debug, Clone, Default)]
struct Pipe(Rc<RefCell<Buffers>>);

impl AsyncRead for Pipe {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut buffers = self.0.borrow_mut();
        if buffers.incoming.is_empty() {
            return match buffers.is_at_end {
                true => Poll::Ready(Ok(())),
                false => Poll::Pending,
            };
        }
        let (front, _) = buffers.incoming.as_slices();
        let taken = front.len().min(buffer.remaining());
        buffer.put_slice(&front[..taken]);
        buffers.incoming.drain(..taken);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().outgoing.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// One request on its way.
struct Stream {
    ticket: u32,
    request: usize,
    part: Part,
}

enum Part {
    Head(ResponseFuture),
    Body(u16, RecvStream),
}

/// A connection.
pub(crate) struct Session {
    pipe: Pipe,
    send: SendRequest<Bytes>,
    connection: Connection<Pipe, Bytes>,
    streams: Vec<Stream>,
    /// Requests that the server's limit of streams keeps back.
    waiting: VecDeque<(Job, http::Request<()>, Bytes)>,
    /// The server has said that it takes no further ones.
    is_draining: bool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("streams", &self.streams.len())
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Begins a connection: its preface is to be sent.
    pub(crate) fn begin() -> Result<Self, String> {
        let pipe = Pipe::default();
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES);
        let mut handshake = Box::pin(builder.handshake::<_, Bytes>(pipe.clone()));
        let mut context = Context::from_waker(Waker::noop());
        // Nothing of it waits for the other side.
        match handshake.as_mut().poll(&mut context) {
            Poll::Ready(Ok((send, connection))) => Ok(Self {
                pipe,
                send,
                connection,
                streams: Vec::new(),
                waiting: VecDeque::new(),
                is_draining: false,
            }),
            Poll::Ready(Err(error)) => Err(words(&error)),
            Poll::Pending => Err("HTTP/2 does not begin".to_owned()),
        }
    }

    /// Sends a request, as soon as the server allows another stream, and [`Session::drive`] is
    /// called.
    pub(crate) fn request(&mut self, job: Job, image: &Image) {
        let head = image.head.clone();
        self.waiting.push_back((job, head, image.body.clone()));
    }

    /// Gives up a request.
    pub(crate) fn abandon(&mut self, ticket: u32) {
        self.waiting.retain(|(job, ..)| job.ticket != ticket);
        // Dropped, a stream is reset.
        self.streams.retain(|stream| stream.ticket != ticket);
    }

    /// Gives up all requests.
    pub(crate) fn abandon_all(&mut self) -> Vec<u32> {
        let waiting = self.waiting.drain(..).map(|(job, ..)| job.ticket);
        let streams = self.streams.drain(..).map(|stream| stream.ticket);
        waiting.chain(streams).collect()
    }

    /// Whether the server takes no further requests on this connection.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Takes bytes that came.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.pipe.0.borrow_mut().incoming.extend(bytes);
    }

    /// The other side has closed.
    pub(crate) fn end(&mut self) {
        self.pipe.0.borrow_mut().is_at_end = true;
    }

    /// What is to be sent.
    pub(crate) fn outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.pipe.0.borrow_mut().outgoing)
    }

    /// Goes on as far as what came allows. The connection is over if it says why.
    pub(crate) fn drive(&mut self, ended: &mut Vec<Ended>) -> Option<String> {
        let mut context = Context::from_waker(Waker::noop());
        let over = self.poll_connection(&mut context);
        self.send_waiting(&mut context, ended);
        self.streams.retain_mut(|stream| {
            let Poll::Ready(result) = stream.part.poll(&mut context) else {
                return true;
            };
            ended.push(Ended {
                ticket: stream.ticket,
                request: stream.request,
                is_unprocessed: result.as_ref().is_err_and(is_unprocessed),
                result: result.map_err(|error| words(&error)),
            });
            false
        });
        // Streams that ended may have made room, and what was read is to be acknowledged.
        self.send_waiting(&mut context, ended);
        let over = over.or_else(|| self.poll_connection(&mut context));
        if over.is_some() || self.is_draining {
            let reason = over.clone();
            let reason = reason.unwrap_or_else(|| "the server takes no further request".to_owned());
            ended.extend(self.waiting.drain(..).map(|(job, ..)| Ended {
                ticket: job.ticket,
                request: job.request,
                is_unprocessed: true,
                result: Err(reason.clone()),
            }));
        }
        if let Some(reason) = &over {
            ended.extend(self.streams.drain(..).map(|stream| Ended {
                ticket: stream.ticket,
                request: stream.request,
                is_unprocessed: false,
                result: Err(reason.clone()),
            }));
        }
        over
    }

    fn poll_connection(&mut self, context: &mut Context<'_>) -> Option<String> {
        match Pin::new(&mut self.connection).poll(context) {
            Poll::Pending => None,
            Poll::Ready(Ok(())) => Some("connection closed by the server".to_owned()),
            Poll::Ready(Err(error)) => Some(words(&error)),
        }
    }

    fn send_waiting(&mut self, context: &mut Context<'_>, ended: &mut Vec<Ended>) {
        while !self.waiting.is_empty() {
            match self.send.poll_ready(context) {
                Poll::Pending => return,
                Poll::Ready(Err(_)) => {
                    self.is_draining = true;
                    return;
                }
                Poll::Ready(Ok(())) => {}
            }
            let Some((job, head, body)) = self.waiting.pop_front() else {
                return;
            };
            let sent = self.send.send_request(head, body.is_empty());
            let sent = sent.and_then(|(answer, mut stream)| {
                if !body.is_empty() {
                    stream.send_data(body, true)?;
                }
                Ok(answer)
            });
            match sent {
                Ok(answer) => self.streams.push(Stream {
                    ticket: job.ticket,
                    request: job.request,
                    part: Part::Head(answer),
                }),
                Err(error) => ended.push(Ended {
                    ticket: job.ticket,
                    request: job.request,
                    is_unprocessed: is_unprocessed(&error),
                    result: Err(words(&error)),
                }),
            }
        }
    }
}

impl Part {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<u16, h2::Error>> {
        if let Self::Head(answer) = self {
            match Pin::new(answer).poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(answer)) => {
                    let status = answer.status().as_u16();
                    *self = Self::Body(status, answer.into_body());
                }
            }
        }
        let Self::Body(status, body) = self else {
            return Poll::Pending;
        };
        loop {
            match body.poll_data(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(Ok(*status)),
                Poll::Ready(Some(Ok(data))) => {
                    let _ = body.flow_control().release_capacity(data.len());
                }
                // A server that has answered before it read the whole body says so (RFC 9113, 8.1).
                Poll::Ready(Some(Err(error))) if error.reason() == Some(Reason::NO_ERROR) => {
                    return Poll::Ready(Ok(*status));
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
            }
        }
    }
}

/// Whether the server says that it has not looked at a request (RFC 9113, 6.8 and 8.7).
fn is_unprocessed(error: &h2::Error) -> bool {
    error.reason() == Some(Reason::REFUSED_STREAM)
        || (error.is_go_away() && error.reason() == Some(Reason::NO_ERROR))
}

/// What went wrong, in a few words that many requests have in common.
fn words(error: &h2::Error) -> String {
    match (error.get_io(), error.reason()) {
        (Some(error), _) => error.kind().to_string(),
        (None, Some(reason)) => format!("HTTP/2: {}", reason.description()),
        (None, None) => format!("HTTP/2: {error}"),
    }
}
