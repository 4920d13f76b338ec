//! Payloads of writes: copied from what was received, or received straight into the request's
//! memory.

use dataplane::file::FileBuffer;
use dataplane::{Calls, FlowId, Time};

use crate::connection::{Connection, Phase};
use crate::server::BlockService;

/// Payloads of which at least so much is missing are received straight into the request's memory.
/// Below that, a receive of their own costs more than the copy.
const LENT_BYTES: usize = 32 * 1024;

impl BlockService {
    /// Takes bytes of a payload. Gives how many it used, and whether the payload is whole.
    pub(crate) fn payload(
        &mut self,
        connection: &mut Connection,
        bytes: &[u8],
        now: Time,
    ) -> (usize, bool) {
        let Phase::Payload {
            request,
            buffer,
            filled_bytes,
            ..
        } = &mut connection.phase
        else {
            return (0, false);
        };
        if bytes.is_empty() {
            // The memory may be lent.
            return (0, false);
        }
        let used = bytes.len().min(request.payload_len() - *filled_bytes);
        buffer.bytes_mut()[*filled_bytes..*filled_bytes + used].copy_from_slice(&bytes[..used]);
        let is_whole = self.payload_arrived(connection, used, now);
        (used, is_whole)
    }

    /// Counts bytes of a payload, at least one, that are in the request's memory. True: the payload
    /// is whole, and its request is queued.
    fn payload_arrived(
        &mut self,
        connection: &mut Connection,
        len_bytes: usize,
        now: Time,
    ) -> bool {
        let Phase::Payload {
            request,
            buffer,
            filled_bytes,
            reserved_bytes,
        } = &mut connection.phase
        else {
            return false;
        };
        *filled_bytes += len_bytes;
        connection.stalled_looks = 0;
        if *filled_bytes < request.payload_len() {
            return false;
        }
        let (request, buffer) = (*request, std::mem::take(buffer));
        let memory = (buffer, *reserved_bytes);
        connection.phase = Phase::Request;
        self.enqueue(connection, request, memory, now);
        true
    }

    /// Lends the memory of a payload whose larger part is still to come.
    pub(crate) fn lend<C: Calls>(connection: &mut Connection, calls: &mut C) {
        let flow = connection.flow;
        if let Phase::Payload {
            request,
            buffer,
            filled_bytes,
            ..
        } = &mut connection.phase
        {
            let left_bytes = request.payload_len() - *filled_bytes;
            if left_bytes >= LENT_BYTES && buffer.len_bytes() > 0 {
                let lent = std::mem::take(buffer);
                if let Err(back) = calls.receive_into(flow, lent, *filled_bytes, left_bytes) {
                    *buffer = back;
                }
            }
        }
    }

    /// Memory that [`BlockService::lend`] lent comes back.
    pub(crate) fn filled<C: Calls>(
        &mut self,
        flow: FlowId,
        back: FileBuffer,
        len_bytes: usize,
        calls: &mut C,
        now: Time,
    ) {
        let Some(mut connection) = self.take(flow) else {
            return;
        };
        match &mut connection.phase {
            Phase::Payload { buffer, .. } => {
                *buffer = back;
                self.payload_arrived(&mut connection, len_bytes, now);
                Self::lend(&mut connection, calls);
            }
            _ => self.pool.give(back),
        }
        self.settle(connection, calls);
    }
}
