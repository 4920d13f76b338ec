//! Answers to commands: completions, with the data of reads before them.

use crc32c::crc32c;
use dataplane::{Calls, Time};

use super::command::{Status, SubmissionEntry};
use super::queue::Queue;
use super::{BLOCK_BYTES, io, pdu};
use crate::connection::{Body, Connection, Phase};
use crate::device::Storage;
use crate::execute::{Outcome, Pending, Reply};
use crate::nbd::request::NbdRequest;
use crate::server::BlockService;

impl BlockService {
    pub(super) fn done<C: Calls>(
        &mut self,
        queue: &mut Queue,
        connection: &mut Connection,
        completion: (u16, u64, Status),
        reserved_bytes: usize,
        calls: &mut C,
    ) {
        self.scratch.clear();
        queue.complete(completion, &mut self.scratch);
        let answer = (&*self.scratch, Body::Nothing, &[][..]);
        connection.answer(calls, &mut self.pool, answer, reserved_bytes);
    }

    pub(super) fn fail<C: Calls>(
        &mut self,
        queue: &mut Queue,
        connection: &mut Connection,
        (entry, status, result): (&SubmissionEntry, Status, u64),
        reserved_bytes: usize,
        calls: &mut C,
    ) {
        queue.note_error(entry, status);
        let completion = (entry.cid(), result, status);
        self.done(queue, connection, completion, reserved_bytes, calls);
    }

    /// A request of an I/O queue has ended.
    pub(crate) fn nvme_finish<C: Calls>(
        &mut self,
        connection: &mut Connection,
        pending: Pending,
        outcome: Outcome,
        calls: &mut C,
    ) {
        let Some(mut queue) = connection.take_queue() else {
            return;
        };
        self.finish_io(&mut queue, connection, pending, outcome, calls);
        connection.phase = Phase::Nvme(queue);
    }

    fn finish_io<C: Calls>(
        &mut self,
        queue: &mut Queue,
        connection: &mut Connection,
        mut pending: Pending,
        outcome: Outcome,
        calls: &mut C,
    ) {
        let Reply::Nvme { cid, is_part } = pending.reply else {
            return;
        };
        let reserved = pending.reserved_bytes;
        if is_part {
            let found = queue.batches.iter().position(|batch| batch.cid == cid);
            let is_done = matches!(outcome, Outcome::Done);
            let next = found.and_then(|at| queue.batches[at].left.pop());
            if let Some(request) = next.filter(|_| is_done) {
                let of = (pending.export, pending.tenant);
                self.submit_part(pending.flow, cid, (request, of), reserved, Time::now());
                return;
            }
            if let Some(at) = found {
                queue.batches.swap_remove(at);
            }
        }
        let len_bytes = usize::try_from(pending.request.len_bytes).unwrap_or(0);
        let mut buffer = std::mem::take(&mut pending.buffer);
        let has_digest = queue.link.digests().data;
        let body = match outcome {
            Outcome::Failed(errno, _) => {
                let status = io::status(errno, pending.request.kind);
                self.pool.give(buffer);
                let entry = entry_of(cid, &pending.request);
                self.fail(queue, connection, (&entry, status, 0), reserved, calls);
                return;
            }
            Outcome::Data => Body::Buffer(std::mem::take(&mut buffer), len_bytes),
            Outcome::Memory if has_digest => {
                let mut copy = self.pool.take(len_bytes);
                copy_out(&pending, copy.bytes_mut());
                Body::Buffer(copy, len_bytes)
            }
            Outcome::Memory => Body::Memory {
                offset: pending.device_offset(),
                export: pending.export,
                len_bytes,
            },
            Outcome::Done | Outcome::Extents(_) => {
                self.pool.give(buffer);
                let completion = (cid, 0, Status::SUCCESS);
                self.done(queue, connection, completion, reserved, calls);
                return;
            }
        };
        self.pool.give(buffer);
        self.scratch.clear();
        self.trailer.clear();
        let transport = (queue.link.digests(), queue.link.alignment());
        let is_all = queue.saves_completions();
        pdu::data(cid, len_bytes, is_all, transport, &mut self.scratch);
        if let (true, Body::Buffer(data, end)) = (has_digest, &body) {
            let digest = crc32c(&data.bytes()[..*end]);
            self.trailer.extend_from_slice(&digest.to_le_bytes());
        }
        if !is_all {
            queue.complete((cid, 0, Status::SUCCESS), &mut self.trailer);
        }
        let answer = (&*self.scratch, body, &*self.trailer);
        connection.answer(calls, &mut self.pool, answer, reserved);
    }
}

/// A submission entry with what the error log says of a request.
fn entry_of(cid: u16, request: &NbdRequest) -> SubmissionEntry {
    let mut bytes = [0; pdu::ENTRY_BYTES];
    bytes[2..4].copy_from_slice(&cid.to_le_bytes());
    let block = request.offset / BLOCK_BYTES;
    bytes[40..48].copy_from_slice(&block.to_le_bytes());
    SubmissionEntry(bytes)
}

fn copy_out(pending: &Pending, to: &mut [u8]) {
    if let Storage::Memory(memory) = &pending.export.device.storage {
        let len_bytes = usize::try_from(pending.request.len_bytes).unwrap_or(0);
        let mut at = 0;
        memory.read(pending.device_offset(), len_bytes, |piece| {
            to[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
            piece.len()
        });
    }
}
