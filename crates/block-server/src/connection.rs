//! One client's connection: what it has sent so far, and answers that it has not read yet.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use dataplane::file::FileBuffer;
use dataplane::{Calls, FlowId};

use crate::device::Storage;
use crate::export::Export;
use crate::nbd::handshake::{Handshake, TlsPolicy};
use crate::nbd::request::NbdRequest;
use crate::nbd::{Errno, Style};
use crate::nvme::queue::Queue;
use crate::pool::{Account, BufferPool};
use crate::tls::Tls;

/// Requests of one connection under way, or answered and not read, at most.
pub(crate) const DEPTH_MAX: usize = 512;

/// What was negotiated.
pub(crate) struct Session {
    pub(crate) export: Arc<Export>,
    /// The export's tenant on this shard.
    pub(crate) tenant: u32,
    pub(crate) style: Style,
    pub(crate) has_allocation: bool,
}

/// What the connection waits for.
pub(crate) enum Phase {
    /// Options.
    Handshake(Handshake),
    /// A request.
    Request,
    /// The rest of a write's payload.
    Payload {
        request: NbdRequest,
        buffer: FileBuffer,
        filled_bytes: usize,
        reserved_bytes: usize,
    },
    /// The connection speaks NVMe/TCP.
    Nvme(Box<Queue>),
    /// The rest of a payload that nobody wants; then the error goes out.
    Skip {
        request: NbdRequest,
        left_bytes: usize,
        error: (Errno, &'static str),
    },
}

/// Part of an answer that has not been sent.
enum Piece {
    Bytes {
        bytes: Vec<u8>,
        at: usize,
    },
    Buffer {
        buffer: FileBuffer,
        at: usize,
        end: usize,
    },
    /// Bytes of a device in memory, which are copied when there is room.
    Memory {
        export: Arc<Export>,
        offset: u64,
        left_bytes: usize,
    },
    /// The end of an answer, and the memory that its request had reserved.
    End {
        reserved_bytes: usize,
    },
}

/// The body of an answer.
pub(crate) enum Body {
    Nothing,
    Buffer(FileBuffer, usize),
    Memory {
        export: Arc<Export>,
        offset: u64,
        len_bytes: usize,
    },
}

/// Queues bytes in two pieces for sending, and gives the number accepted.
fn send<C: Calls>(
    tls: &mut Option<Box<Tls>>,
    calls: &mut C,
    flow: FlowId,
    (first, second): (&[u8], &[u8]),
) -> usize {
    match tls {
        Some(tls) => tls.send(calls, flow, (first, second)),
        None if second.is_empty() => calls.send(flow, first),
        None => calls.send_vectored(flow, &[first, second]),
    }
}

/// One connection.
pub(crate) struct Connection {
    pub(crate) flow: FlowId,
    pub(crate) peer: Option<IpAddr>,
    /// Received bytes that are no whole message yet, or wait until earlier requests have ended.
    pub(crate) carry: Vec<u8>,
    pub(crate) phase: Phase,
    pub(crate) session: Option<Session>,
    /// The connection's TLS, once the client has asked for it.
    pub(crate) tls: Option<Box<Tls>>,
    unsent: VecDeque<Piece>,
    /// Requests under way, and their memory.
    pub(crate) account: Account,
    /// Nothing is parsed until requests have ended.
    pub(crate) is_blocked: bool,
    /// The connection waits for memory that others hold, and has little of its own.
    pub(crate) is_short: bool,
    /// The connection waits in the shard's list for memory that others hold.
    pub(crate) is_parked: bool,
    /// The client sends no more.
    pub(crate) has_finished: bool,
    /// Nothing is parsed any more: the connection ends when all is answered.
    pub(crate) is_closing: bool,
    /// The flow was told to close.
    pub(crate) is_closed: bool,
    /// Looks in which nothing moved although something could.
    pub(crate) stalled_looks: u8,
}

impl Connection {
    pub(crate) fn new(flow: FlowId, peer: Option<IpAddr>, tls: TlsPolicy) -> Self {
        Self {
            flow,
            peer,
            carry: Vec::new(),
            phase: Phase::Handshake(Handshake::new(tls)),
            session: None,
            tls: None,
            unsent: VecDeque::new(),
            account: Account::default(),
            is_blocked: false,
            is_short: false,
            is_parked: false,
            has_finished: false,
            is_closing: false,
            is_closed: false,
            stalled_looks: 0,
        }
    }

    /// Whether the connection has as many requests under way as it may have.
    pub(crate) fn is_full(&self) -> bool {
        self.account.requests() >= DEPTH_MAX
    }

    /// Counts a request, and takes its memory.
    pub(crate) fn begin(&mut self, pool: &mut BufferPool, reserved_bytes: usize) {
        pool.reserve(&mut self.account, reserved_bytes);
    }

    /// Whether the client holds up memory of the server: it has sent part of a payload only, or
    /// does not read its answers.
    pub(crate) fn holds_memory(&self) -> bool {
        let waits_for_data = match &self.phase {
            Phase::Payload { .. } => true,
            Phase::Nvme(queue) => queue.link.is_in_body() || queue.link.has_transfers(),
            _ => false,
        };
        waits_for_data || !self.has_sent_all()
    }

    /// Whether all answers are in the flow's queue.
    fn has_sent_all(&self) -> bool {
        self.unsent.is_empty() && self.tls.as_ref().is_none_or(|tls| tls.is_flushed())
    }

    /// Whether the client has not said yet what it wants.
    pub(crate) fn is_new(&self) -> bool {
        match &self.phase {
            Phase::Handshake(_) => true,
            Phase::Nvme(queue) => queue.is_new(),
            _ => false,
        }
    }

    /// The queue of NVMe/TCP, which the caller puts back as the phase.
    pub(crate) fn take_queue(&mut self) -> Option<Box<Queue>> {
        match std::mem::replace(&mut self.phase, Phase::Request) {
            Phase::Nvme(queue) => Some(queue),
            other => {
                self.phase = other;
                None
            }
        }
    }

    /// The client sends no more, and what was whole has begun: the rest counts for nothing.
    pub(crate) fn finish_input(&mut self, pool: &mut BufferPool) {
        let phase = std::mem::replace(&mut self.phase, Phase::Request);
        match phase {
            Phase::Payload {
                buffer,
                reserved_bytes,
                ..
            } => {
                pool.give(buffer);
                self.end(pool, reserved_bytes);
            }
            Phase::Skip { .. } => self.end(pool, 0),
            Phase::Nvme(mut queue) => {
                for reserved_bytes in queue.finish_input(pool) {
                    self.end(pool, reserved_bytes);
                }
                self.phase = Phase::Nvme(queue);
            }
            Phase::Handshake(_) | Phase::Request => {}
        }
        self.is_closing = true;
    }

    /// Whether nothing of the client is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.account.requests() == 0
            && self.has_sent_all()
            && !matches!(self.phase, Phase::Payload { .. })
    }

    /// Sends bytes that belong to no request.
    pub(crate) fn say<C: Calls>(&mut self, calls: &mut C, bytes: &[u8]) {
        let sent = if self.unsent.is_empty() {
            send(&mut self.tls, calls, self.flow, (bytes, &[]))
        } else {
            0
        };
        if sent < bytes.len() {
            self.unsent.push_back(Piece::Bytes {
                bytes: bytes[sent..].to_vec(),
                at: 0,
            });
        }
    }

    /// Answers a request that [`Connection::begin`] counted: a header, a body, and what comes after
    /// the body. What finds no room waits here.
    pub(crate) fn answer<C: Calls>(
        &mut self,
        calls: &mut C,
        pool: &mut BufferPool,
        (header, body, trailer): (&[u8], Body, &[u8]),
        reserved_bytes: usize,
    ) {
        match body {
            Body::Nothing => self.say(calls, header),
            Body::Buffer(buffer, end) => {
                let mut at = 0;
                if self.unsent.is_empty() {
                    let pieces = (header, &buffer.bytes()[..end]);
                    let sent = send(&mut self.tls, calls, self.flow, pieces);
                    if sent < header.len() {
                        self.push_bytes(&header[sent..]);
                    }
                    at = sent.saturating_sub(header.len());
                } else {
                    self.push_bytes(header);
                }
                if at < end {
                    self.unsent.push_back(Piece::Buffer { buffer, at, end });
                } else {
                    pool.give(buffer);
                }
            }
            Body::Memory {
                export,
                offset,
                len_bytes,
            } => {
                self.say(calls, header);
                self.unsent.push_back(Piece::Memory {
                    export,
                    offset,
                    left_bytes: len_bytes,
                });
            }
        }
        if !trailer.is_empty() {
            self.say(calls, trailer);
        }
        if self.unsent.is_empty() {
            self.end(pool, reserved_bytes);
        } else {
            self.unsent.push_back(Piece::End { reserved_bytes });
            self.pump(calls, pool);
        }
    }

    fn push_bytes(&mut self, bytes: &[u8]) {
        self.unsent.push_back(Piece::Bytes {
            bytes: bytes.to_vec(),
            at: 0,
        });
    }

    /// A request that [`Connection::begin`] counted has ended.
    pub(crate) fn end(&mut self, pool: &mut BufferPool, reserved_bytes: usize) {
        pool.release(&mut self.account, reserved_bytes);
    }

    /// Sends what waits, as far as there is room.
    pub(crate) fn pump<C: Calls>(&mut self, calls: &mut C, pool: &mut BufferPool) {
        let flow = self.flow;
        if let Some(tls) = &mut self.tls
            && !tls.flush(calls, flow)
        {
            return;
        }
        while let Some(piece) = self.unsent.front_mut() {
            let tls = &mut self.tls;
            let (sent_bytes, is_done) = match piece {
                Piece::Bytes { bytes, at } => {
                    let sent = send(tls, calls, flow, (&bytes[*at..], &[]));
                    *at += sent;
                    (sent, *at == bytes.len())
                }
                Piece::Buffer { buffer, at, end } => {
                    let sent = send(tls, calls, flow, (&buffer.bytes()[*at..*end], &[]));
                    *at += sent;
                    let is_done = at == end;
                    if is_done {
                        pool.give(std::mem::take(buffer));
                    }
                    (sent, is_done)
                }
                Piece::Memory {
                    export,
                    offset,
                    left_bytes,
                } => {
                    let sent = match &export.device.storage {
                        Storage::Memory(memory) => memory.read(*offset, *left_bytes, |bytes| {
                            send(tls, calls, flow, (bytes, &[]))
                        }),
                        Storage::File(_) | Storage::Unopened => *left_bytes,
                    };
                    *offset += sent as u64;
                    *left_bytes -= sent;
                    (sent, *left_bytes == 0)
                }
                Piece::End { .. } => (0, true),
            };
            if sent_bytes > 0 || is_done {
                self.stalled_looks = 0;
            }
            if !is_done {
                return;
            }
            if let Some(Piece::End { reserved_bytes }) = self.unsent.pop_front() {
                self.end(pool, reserved_bytes);
            }
        }
    }

    /// Gives back what the connection holds, when it is gone.
    pub(crate) fn abandon(mut self, pool: &mut BufferPool) {
        pool.close(self.account);
        match self.phase {
            Phase::Payload {
                buffer,
                reserved_bytes,
                ..
            } => {
                pool.give(buffer);
                pool.release_orphan(reserved_bytes);
            }
            Phase::Nvme(mut queue) => {
                for reserved_bytes in queue.finish_input(pool) {
                    pool.release_orphan(reserved_bytes);
                }
            }
            _ => {}
        }
        for piece in self.unsent.drain(..) {
            match piece {
                Piece::Buffer { buffer, .. } => pool.give(buffer),
                Piece::End { reserved_bytes } => pool.release_orphan(reserved_bytes),
                Piece::Bytes { .. } | Piece::Memory { .. } => {}
            }
        }
    }
}
