//! Requests of NBD: taken off the connection, queued or refused, and answered.

use std::sync::Arc;

use dataplane::file::FileBuffer;
use dataplane::histogram::add;
use dataplane::{Calls, Time};

use super::{BlockService, memory_of};
use crate::connection::{Body, Connection, Phase};
use crate::execute::{Outcome, Pending, Reply};
use crate::nbd::Errno;
use crate::nbd::reply::Address;
use crate::nbd::request::{NbdRequest, RequestKind};
use crate::pool::Use;

impl BlockService {
    pub(super) fn request<C: Calls>(
        &mut self,
        connection: &mut Connection,
        bytes: &[u8],
        calls: &mut C,
        now: Time,
    ) -> (usize, bool) {
        let Some(session) = &connection.session else {
            return (0, false);
        };
        let (request, used) = match NbdRequest::parse(bytes, session.style) {
            Ok(Some(parsed)) => parsed,
            Ok(None) => return (0, false),
            Err(_) => {
                add(&self.counters().malformed, 1);
                connection.is_closing = true;
                return (bytes.len(), false);
            }
        };
        if request.kind == RequestKind::Disconnect {
            connection.is_closing = true;
            return (used, false);
        }
        let left_bytes = request.payload_len();
        if connection.has_finished && bytes.len() - used < left_bytes {
            // The payload will never be whole: it is not worth memory that others wait for.
            connection.is_closing = true;
            return (bytes.len(), false);
        }
        let verdict = if self.is_draining() {
            Err((Errno::Shutdown, "the server is shutting down"))
        } else {
            request.check(&session.export.info, session.style, session.has_allocation)
        };
        let reserved_bytes = match verdict {
            Ok(()) => memory_of(&request, &session.export.device.storage),
            Err(_) => 0,
        };
        if connection.is_full() {
            connection.is_blocked = true;
            return (0, false);
        }
        if verdict.is_ok() && !self.tenants.has_room(session.tenant, connection.flow) {
            connection.is_blocked = true;
            return (0, false);
        }
        if !self.has_memory(connection, reserved_bytes, Use::of(reserved_bytes)) {
            return (0, false);
        }
        connection.begin(&mut self.pool, reserved_bytes);
        match verdict {
            Err(error) if left_bytes > 0 => {
                connection.phase = Phase::Skip {
                    request,
                    left_bytes,
                    error,
                };
            }
            Err(error) => self.refuse(connection, &request, error, calls),
            Ok(()) if left_bytes > 0 => {
                connection.phase = Phase::Payload {
                    request,
                    buffer: self.pool.take(left_bytes),
                    filled_bytes: 0,
                    reserved_bytes,
                };
            }
            Ok(()) => self.enqueue(
                connection,
                request,
                (FileBuffer::default(), reserved_bytes),
                now,
            ),
        }
        (used, true)
    }

    pub(super) fn skip<C: Calls>(
        &mut self,
        connection: &mut Connection,
        bytes: &[u8],
        calls: &mut C,
    ) -> (usize, bool) {
        let Phase::Skip {
            request,
            left_bytes,
            error,
        } = &mut connection.phase
        else {
            return (0, false);
        };
        let used = bytes.len().min(*left_bytes);
        *left_bytes -= used;
        if *left_bytes > 0 {
            return (used, false);
        }
        let (request, error) = (*request, *error);
        connection.phase = Phase::Request;
        self.refuse(connection, &request, error, calls);
        (used, true)
    }

    /// Answers a request that never reaches the device.
    fn refuse<C: Calls>(
        &mut self,
        connection: &mut Connection,
        request: &NbdRequest,
        (errno, message): (Errno, &str),
        calls: &mut C,
    ) {
        let Some(session) = &connection.session else {
            return;
        };
        session.export.stats[self.shard].refuse_request();
        let address = Address {
            style: session.style,
            cookie: request.cookie,
            offset: request.offset,
        };
        self.scratch.clear();
        address.error(errno, message, &mut self.scratch);
        let answer = (&*self.scratch, Body::Nothing, &[][..]);
        connection.answer(calls, &mut self.pool, answer, 0);
    }

    pub(crate) fn enqueue(
        &mut self,
        connection: &Connection,
        request: NbdRequest,
        memory: (FileBuffer, usize),
        now: Time,
    ) {
        let Some(session) = &connection.session else {
            return;
        };
        let reply = Reply::Nbd(Address {
            style: session.style,
            cookie: request.cookie,
            offset: request.offset,
        });
        let export = (Arc::clone(&session.export), session.tenant);
        let pending = Pending::new(connection.flow, reply, request, export, memory, now);
        self.submit(pending, now);
    }

    pub(super) fn nbd_finish<C: Calls>(
        &mut self,
        connection: &mut Connection,
        address: Address,
        mut pending: Pending,
        outcome: Outcome,
        calls: &mut C,
    ) {
        let len = u32::try_from(pending.request.len_bytes).unwrap_or(u32::MAX);
        let len_bytes = usize::try_from(len).unwrap_or(0);
        let mut buffer = std::mem::take(&mut pending.buffer);
        self.scratch.clear();
        let body = match outcome {
            Outcome::Done => {
                self.scratch.extend_from_slice(address.done().bytes());
                Body::Nothing
            }
            Outcome::Data => {
                self.scratch.extend_from_slice(address.data(len).bytes());
                Body::Buffer(std::mem::take(&mut buffer), len_bytes)
            }
            Outcome::Memory => {
                self.scratch.extend_from_slice(address.data(len).bytes());
                Body::Memory {
                    offset: pending.device_offset(),
                    export: pending.export,
                    len_bytes,
                }
            }
            Outcome::Extents(extents) => {
                address.block_status(&extents, &mut self.scratch);
                Body::Nothing
            }
            Outcome::Failed(errno, message) => {
                address.error(errno, message, &mut self.scratch);
                Body::Nothing
            }
        };
        self.pool.give(buffer);
        let reserved = pending.reserved_bytes;
        let answer = (&*self.scratch, body, &[][..]);
        connection.answer(calls, &mut self.pool, answer, reserved);
    }
}
