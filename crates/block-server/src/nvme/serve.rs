//! How a shard serves NVMe/TCP: messages off the connection, commands in line until there is room.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dataplane::histogram::add;
use dataplane::{Calls, Time};

use super::command::{FABRICS, Sgl, Status, SubmissionEntry};
use super::io::{self, Io};
use super::link::{Inbound, LinkProgress};
use super::pdu::{self, Fatal, FatalError, Pdu};
use super::queue::{Queue, Role, Waiting};
use super::{TRANSFER_BYTES, admin, connect};
use crate::allow::ClientIdentity;
use crate::connection::{Connection, Phase};
use crate::device::Storage;
use crate::export::Export;
use crate::nbd::request::{NbdRequest, RequestKind};
use crate::pool::Use;
use crate::server::{BlockService, memory_of, pages};

/// What a command needs before it is carried out.
#[derive(Default)]
struct Plan {
    /// Bytes from the host.
    payload_bytes: usize,
    /// Bytes to the host, and whether it has to expect exactly so many.
    given_bytes: usize,
    is_exact: bool,
    reserved_bytes: usize,
    tenant: Option<u32>,
}

/// What becomes of the next bytes.
enum Step {
    Used(usize),
    /// More bytes are needed, or memory.
    Wait(usize),
    End,
}

/// Whether the SGL fits the plan, and the data come in the capsule.
fn is_in_capsule(entry: &SubmissionEntry, plan: &Plan, data_bytes: usize) -> Result<bool, Status> {
    let wanted = plan.payload_bytes.max(plan.given_bytes);
    if wanted == 0 {
        return if data_bytes == 0 {
            Ok(false)
        } else {
            Err(Status::INVALID_FIELD)
        };
    }
    match entry.sgl() {
        Sgl::Transport { .. } if data_bytes > 0 => Err(Status::SGL_TYPE),
        Sgl::Transport { len_bytes } => {
            let len_bytes = len_bytes as usize;
            let is_fit = len_bytes == wanted || (len_bytes > wanted && !plan.is_exact);
            is_fit.then_some(false).ok_or(Status::SGL_LENGTH)
        }
        Sgl::Capsule { .. } if plan.payload_bytes == 0 => Err(Status::SGL_TYPE),
        Sgl::Capsule { offset, .. } if offset != 0 => Err(Status::SGL_OFFSET),
        Sgl::Capsule { len_bytes, .. } => {
            let is_fit = len_bytes as usize == wanted && data_bytes == wanted;
            is_fit.then_some(true).ok_or(Status::SGL_LENGTH)
        }
        Sgl::Other => Err(Status::SGL_TYPE),
    }
}

impl BlockService {
    /// Data of one command at most: a power of two, and little enough that a connection that waits
    /// for data leaves room for others.
    pub(super) fn transfer_bytes(&self) -> usize {
        let most = (self.pool.share_bytes() / 2).clamp(4096, TRANSFER_BYTES);
        1 << most.ilog2()
    }

    /// Takes messages off `bytes`, as `BlockService::feed` does.
    pub(crate) fn nvme<C: Calls>(
        &mut self,
        connection: &mut Connection,
        bytes: &[u8],
        calls: &mut C,
        now: Time,
    ) -> (usize, bool) {
        let Some(mut queue) = connection.take_queue() else {
            return (0, false);
        };
        let step = self.nvme_step(&mut queue, connection, bytes, calls, now);
        connection.phase = Phase::Nvme(queue);
        match step {
            Step::Used(used) => (used, true),
            Step::Wait(used) => (used, false),
            Step::End => {
                connection.finish_input(&mut self.pool);
                (bytes.len(), false)
            }
        }
    }

    /// Commands that wait may go on.
    pub(crate) fn nvme_resume<C: Calls>(
        &mut self,
        connection: &mut Connection,
        calls: &mut C,
        now: Time,
    ) {
        if let Some(mut queue) = connection.take_queue() {
            self.grant(&mut queue, connection, calls, now);
            connection.phase = Phase::Nvme(queue);
        }
    }

    fn nvme_step<C: Calls>(
        &mut self,
        queue: &mut Queue,
        connection: &mut Connection,
        bytes: &[u8],
        calls: &mut C,
        now: Time,
    ) -> Step {
        if queue.link.is_in_body() {
            let (used, progress) = queue.link.body(bytes);
            if used > 0 && !queue.is_new() {
                connection.stalled_looks = 0;
            }
            return match progress {
                LinkProgress::More => Step::Wait(used),
                LinkProgress::Over => Step::Used(used),
                LinkProgress::Command(command) => {
                    self.carry_out(queue, connection, command, calls, now);
                    Step::Used(used)
                }
            };
        }
        let taken = match queue.link.peek(bytes) {
            Ok(None) => return Step::Wait(0),
            Err(fault) => Err(fault),
            Ok(Some((pdu, used))) => match pdu {
                Pdu::Terminate => return Step::End,
                Pdu::Initialize { alignment, digests } => {
                    queue.link.agree(digests, alignment);
                    self.scratch.clear();
                    pdu::initialized(digests, &mut self.scratch);
                    connection.say(calls, &self.scratch);
                    Ok(used)
                }
                Pdu::Data { .. } => queue.link.receive_data(&pdu, bytes).map(|()| used),
                Pdu::Command { entry, data_bytes } => {
                    let command = (SubmissionEntry(entry), data_bytes);
                    match self.command(queue, connection, command, calls, now) {
                        Ok(true) => Ok(used),
                        Ok(false) => return Step::Wait(0),
                        Err(fault) => Err(FatalError {
                            header: bytes[..used.min(bytes.len())].to_vec(),
                            ..fault
                        }),
                    }
                }
            },
        };
        match taken {
            Ok(used) => Step::Used(used),
            Err(fault) => {
                add(&self.counters().malformed, 1);
                self.scratch.clear();
                pdu::terminated(&fault, &mut self.scratch);
                connection.say(calls, &self.scratch);
                Step::End
            }
        }
    }

    /// A capsule came. False: there is no memory for its data yet.
    fn command<C: Calls>(
        &mut self,
        queue: &mut Queue,
        connection: &mut Connection,
        (entry, data_bytes): (SubmissionEntry, usize),
        calls: &mut C,
        now: Time,
    ) -> Result<bool, FatalError> {
        if self.is_draining() {
            // The connection ends when what is under way is answered.
            if data_bytes > 0 {
                queue.link.discard(data_bytes);
            }
            return Ok(true);
        }
        if connection.account.requests() + queue.waiting.len() >= queue.entries() {
            return Err(FatalError {
                fatal: Fatal::Sequence,
                information: 0,
                header: Vec::new(),
            });
        }
        queue.heard(now);
        let plan = self.plan(queue, connection, &entry);
        let placed = plan.and_then(|plan| {
            let in_capsule = is_in_capsule(&entry, &plan, data_bytes)?;
            Ok((plan, in_capsule))
        });
        match placed {
            Err(status) => {
                if data_bytes > 0 {
                    queue.link.discard(data_bytes);
                }
                connection.begin(&mut self.pool, 0);
                self.fail(queue, connection, (&entry, status, 0), 0, calls);
            }
            Ok((plan, true)) => {
                if !self.has_memory(connection, plan.reserved_bytes, Use::Capsule) {
                    return Ok(false);
                }
                connection.begin(&mut self.pool, plan.reserved_bytes);
                queue.link.receive(Inbound {
                    buffer: self.pool.take(plan.payload_bytes),
                    len_bytes: plan.payload_bytes,
                    ..Inbound::bare(entry, plan.reserved_bytes)
                });
            }
            Ok((plan, false)) => {
                queue.waiting.push_back(Waiting {
                    entry,
                    payload_bytes: plan.payload_bytes,
                    reserved_bytes: plan.reserved_bytes,
                    tenant: plan.tenant,
                });
                self.grant(queue, connection, calls, now);
            }
        }
        Ok(true)
    }

    fn plan(
        &mut self,
        queue: &mut Queue,
        connection: &Connection,
        entry: &SubmissionEntry,
    ) -> Result<Plan, Status> {
        match &queue.role {
            Role::New if entry.opcode() == FABRICS && entry.fabrics_type() == 1 => Ok(Plan {
                payload_bytes: connect::DATA_BYTES,
                reserved_bytes: pages(connect::DATA_BYTES as u64),
                is_exact: true,
                ..Plan::default()
            }),
            Role::New => Err(Status::SEQUENCE),
            Role::Admin(_) => {
                let given_bytes = admin::data_bytes(entry);
                Ok(Plan {
                    given_bytes,
                    reserved_bytes: pages(given_bytes as u64),
                    ..Plan::default()
                })
            }
            Role::Io { controller, .. } => {
                let is_write_through = controller.is_write_through.load(Ordering::Relaxed);
                let opened = self.opened(queue, connection, entry.namespace());
                let (export, tenant) = opened.ok_or(Status::INVALID_NAMESPACE)?;
                let transfer_bytes = self.transfer_bytes();
                let io = io::parse(entry, &export.info, transfer_bytes, is_write_through);
                let io = io.inspect_err(|_| export.stats[self.shard].refuse_request())?;
                let payload_bytes = io.payload_bytes(entry);
                let (given_bytes, reserved_bytes) = match &io {
                    Io::Request(request) => self.needs(queue, request, &export),
                    Io::Ranges { .. } => (0, pages(payload_bytes as u64)),
                };
                Ok(Plan {
                    payload_bytes,
                    given_bytes,
                    reserved_bytes,
                    is_exact: true,
                    tenant: Some(tenant),
                })
            }
        }
    }

    /// Bytes that the host gets, and memory for the request.
    fn needs(&self, queue: &Queue, request: &NbdRequest, export: &Export) -> (usize, usize) {
        let storage = &export.device.storage;
        let reserved_bytes = memory_of(request, storage);
        if request.kind != RequestKind::Read {
            return (0, reserved_bytes);
        }
        let given_bytes = usize::try_from(request.len_bytes).unwrap_or(usize::MAX);
        // The digest is of the bytes that are sent, so they are copied out of the device first.
        let is_copied = queue.link.digests().data && matches!(storage, Storage::Memory(_));
        let copy_bytes = if is_copied {
            pages(request.len_bytes)
        } else {
            0
        };
        (given_bytes, reserved_bytes + copy_bytes)
    }

    /// The export and the tenant of a namespace.
    pub(super) fn opened(
        &mut self,
        queue: &mut Queue,
        connection: &Connection,
        namespace: u32,
    ) -> Option<(Arc<Export>, u32)> {
        if let Some((export, tenant)) = queue.opened.get(&namespace) {
            return Some((Arc::clone(export), *tenant));
        }
        let export = queue.seen.get(&namespace)?;
        if !export.allow.admits(ClientIdentity::at(connection.peer)) {
            return None;
        }
        let tenant = self.tenants.open(export)?;
        let opened = (Arc::clone(export), tenant);
        queue.opened.insert(namespace, opened.clone());
        Some(opened)
    }

    /// Begins what waits, as far as there is room.
    fn grant<C: Calls>(
        &mut self,
        queue: &mut Queue,
        connection: &mut Connection,
        calls: &mut C,
        now: Time,
    ) {
        let mut at = 0;
        while let Some(waiting) = queue.waiting.get(at) {
            let (len_bytes, is_asked) = (waiting.reserved_bytes, waiting.payload_bytes > 0);
            if len_bytes > 0 {
                let wanted_for = match is_asked {
                    true => Use::Asked,
                    false => Use::of(len_bytes),
                };
                if !self.has_memory(connection, len_bytes, wanted_for) {
                    break;
                }
            }
            let flow = connection.flow;
            if let Some(tenant) = waiting.tenant
                && !self.tenants.has_room(tenant, flow)
            {
                at += 1;
                continue;
            }
            let Some(waiting) = queue.waiting.remove(at) else {
                break;
            };
            connection.begin(&mut self.pool, len_bytes);
            let command = Inbound::bare(waiting.entry, len_bytes);
            if is_asked {
                self.ask(queue, connection, (command, waiting.payload_bytes), calls);
            } else {
                self.carry_out(queue, connection, command, calls, now);
            }
        }
        connection.is_blocked |= !queue.waiting.is_empty();
    }

    fn ask<C: Calls>(
        &mut self,
        queue: &mut Queue,
        connection: &mut Connection,
        (command, payload_bytes): (Inbound, usize),
        calls: &mut C,
    ) {
        let cid = command.entry.cid();
        let tag = queue.link.ask(Inbound {
            buffer: self.pool.take(payload_bytes),
            len_bytes: payload_bytes,
            ..command
        });
        self.scratch.clear();
        let len = u32::try_from(payload_bytes).unwrap_or(u32::MAX);
        let digests = queue.link.digests();
        pdu::ready_to_transfer((cid, tag), (0, len), digests, &mut self.scratch);
        connection.say(calls, &self.scratch);
    }

    /// A command is complete with its data.
    fn carry_out<C: Calls>(
        &mut self,
        queue: &mut Queue,
        connection: &mut Connection,
        mut command: Inbound,
        calls: &mut C,
        now: Time,
    ) {
        let (entry, reserved) = (command.entry, command.reserved_bytes);
        let failed = if !command.is_intact {
            Some((Status::TRANSPORT, 0))
        } else if queue.is_new() {
            self.connect(queue, connection, &command, calls, now).err()
        } else if let Role::Admin(_) = queue.role {
            self.administer(queue, connection, &command, calls);
            None
        } else {
            let started = self.start_io(queue, connection, &mut command, now);
            match started {
                Ok(true) => None,
                Ok(false) => {
                    let done = (entry.cid(), 0, Status::SUCCESS);
                    self.done(queue, connection, done, reserved, calls);
                    None
                }
                Err(status) => Some((status, 0)),
            }
        };
        self.pool.give(command.buffer);
        if let Some((status, result)) = failed {
            self.fail(queue, connection, (&entry, status, result), reserved, calls);
        }
    }
}
