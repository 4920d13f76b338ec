//! Commands that are complete with their data: a connect, those of the admin queue, and those of
//! I/O queues, which take the way of all requests.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crc32c::crc32c;
use dataplane::file::FileBuffer;
use dataplane::histogram::add;
use dataplane::{Calls, FlowId, Time};

use super::admin::AdminAnswer;
use super::command::Status;
use super::io::{self, Io};
use super::link::Inbound;
use super::queue::{Batch, Queue, Role};
use super::view::AdminView;
use super::{connect, pdu};
use crate::connection::{Body, Connection};
use crate::execute::{Pending, Reply};
use crate::export::Export;
use crate::nbd::request::NbdRequest;
use crate::server::BlockService;

impl BlockService {
    pub(super) fn connect<C: Calls>(
        &mut self,
        queue: &mut Queue,
        connection: &mut Connection,
        command: &Inbound,
        calls: &mut C,
        now: Time,
    ) -> Result<(), (Status, u64)> {
        let Some(subsystem) = self.shared.nvme() else {
            return Err((Status::INTERNAL, 0));
        };
        let subsystem = Arc::clone(subsystem);
        let connected = connect::connect(&subsystem, &command.entry, command.data(), now.0)?;
        let id = connected.controller.id;
        queue.become_queue(connected);
        add(&self.counters().sessions, 1);
        connection.stalled_looks = 0;
        let done = (command.entry.cid(), u64::from(id), Status::SUCCESS);
        self.done(queue, connection, done, command.reserved_bytes, calls);
        Ok(())
    }

    pub(super) fn administer<C: Calls>(
        &mut self,
        queue: &mut Queue,
        connection: &mut Connection,
        command: &Inbound,
        calls: &mut C,
    ) {
        let (entry, reserved) = (command.entry, command.reserved_bytes);
        let Some(subsystem) = self.shared.nvme().map(Arc::clone) else {
            return;
        };
        let view = AdminView {
            subsystem: &subsystem,
            namespaces: &queue.seen,
            peer: connection.peer,
            transfer_bytes: self.transfer_bytes(),
        };
        let Role::Admin(admin) = &mut queue.role else {
            return;
        };
        let cid = entry.cid();
        match admin.execute(&entry, &view) {
            AdminAnswer::Done(result) => {
                let done = (cid, result, Status::SUCCESS);
                self.done(queue, connection, done, reserved, calls);
            }
            AdminAnswer::Failed(status) => {
                self.fail(queue, connection, (&entry, status, 0), reserved, calls);
            }
            AdminAnswer::Later => connection.end(&mut self.pool, reserved),
            AdminAnswer::Data(data) => {
                self.scratch.clear();
                let link = &queue.link;
                let transport = (link.digests(), link.alignment());
                pdu::data(cid, data.len(), false, transport, &mut self.scratch);
                self.scratch.extend_from_slice(&data);
                if link.digests().data {
                    self.scratch.extend_from_slice(&crc32c(&data).to_le_bytes());
                }
                queue.complete((cid, 0, Status::SUCCESS), &mut self.scratch);
                let answer = (&*self.scratch, Body::Nothing, &[][..]);
                connection.answer(calls, &mut self.pool, answer, reserved);
            }
        }
        self.tell(queue, connection, calls);
    }

    /// Answers event requests for which there is something to say.
    pub(super) fn tell<C: Calls>(
        &mut self,
        queue: &mut Queue,
        connection: &mut Connection,
        calls: &mut C,
    ) {
        while let Role::Admin(admin) = &mut queue.role
            && let Some((cid, result, status)) = admin.take_event()
        {
            self.scratch.clear();
            queue.complete((cid, result.into(), status), &mut self.scratch);
            connection.say(calls, &self.scratch);
        }
    }

    /// Puts a command of an I/O queue on the way of all requests. False: there is nothing to do.
    pub(super) fn start_io(
        &mut self,
        queue: &mut Queue,
        connection: &Connection,
        command: &mut Inbound,
        now: Time,
    ) -> Result<bool, Status> {
        let Role::Io { controller, .. } = &queue.role else {
            return Err(Status::INTERNAL);
        };
        let entry = command.entry;
        let is_write_through = controller.is_write_through.load(Ordering::Relaxed);
        let opened = self.opened(queue, connection, entry.namespace());
        let (export, tenant) = opened.ok_or(Status::INVALID_NAMESPACE)?;
        let transfer_bytes = self.transfer_bytes();
        let cid = entry.cid();
        match io::parse(&entry, &export.info, transfer_bytes, is_write_through)? {
            Io::Request(request) => {
                let memory = (std::mem::take(&mut command.buffer), command.reserved_bytes);
                let reply = Reply::Nvme {
                    cid,
                    is_part: false,
                };
                let of = (export, tenant);
                let flow = connection.flow;
                self.submit(Pending::new(flow, reply, request, of, memory, now), now);
            }
            Io::Ranges { count, deallocates } => {
                let mut left = io::ranges(command.data(), count, &export.info)?;
                left.reverse();
                let Some(first) = left.pop().filter(|_| deallocates) else {
                    return Ok(false);
                };
                queue.batches.push(Batch { cid, left });
                let of = (export, tenant);
                self.submit_part(
                    connection.flow,
                    cid,
                    (first, of),
                    command.reserved_bytes,
                    now,
                );
            }
        }
        Ok(true)
    }

    pub(super) fn submit_part(
        &mut self,
        flow: FlowId,
        cid: u16,
        (request, of): (NbdRequest, (Arc<Export>, u32)),
        reserved_bytes: usize,
        now: Time,
    ) {
        let reply = Reply::Nvme { cid, is_part: true };
        let memory = (FileBuffer::default(), reserved_bytes);
        let pending = Pending::new(flow, reply, request, of, memory, now);
        self.submit(pending, now);
    }
}
