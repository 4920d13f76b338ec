//! How a shard serves NVMe/TCP: commands in, requests on the way of all requests, answers out.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crc32c::crc32c;
use dataplane::file::FileBuffer;
use dataplane::histogram::add;
use dataplane::{Calls, FlowId, Time};

use super::admin::{self, Answer, View};
use super::command::{Entry, FABRICS, Sgl, Status};
use super::controller::Namespaces;
use super::io::{self, Io};
use super::link::{Inbound, Progress};
use super::pdu::{self, Fatal, Fault, Pdu};
use super::queue::{Batch, Queue, Role, Waiting};
use super::{BLOCK_BYTES, TRANSFER_BYTES, connect};
use crate::connection::{Body, Connection, Phase};
use crate::device::Storage;
use crate::execute::{Outcome, Pending, Reply};
use crate::export::Export;
use crate::nbd::request::{Kind, Request};
use crate::server::{Block, memory_of, pages};

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
fn is_in_capsule(entry: &Entry, plan: &Plan, data_bytes: usize) -> Result<bool, Status> {
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

impl Block {
    /// Data of one command at most: a power of two, and little enough that a connection that waits
    /// for data leaves room for others.
    fn transfer_bytes(&self) -> usize {
        let most = (self.pool.share_bytes() / 2).clamp(4096, TRANSFER_BYTES);
        1 << most.ilog2()
    }

    /// Takes messages off `bytes`, as `Block::feed` does.
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
                Progress::More => Step::Wait(used),
                Progress::Over => Step::Used(used),
                Progress::Command(command) => {
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
                    let command = (Entry(entry), data_bytes);
                    match self.command(queue, connection, command, calls, now) {
                        Ok(true) => Ok(used),
                        Ok(false) => return Step::Wait(0),
                        Err(fault) => Err(Fault {
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
        (entry, data_bytes): (Entry, usize),
        calls: &mut C,
        now: Time,
    ) -> Result<bool, Fault> {
        if self.is_draining() {
            // The connection ends when what is under way is answered.
            if data_bytes > 0 {
                queue.link.discard(data_bytes);
            }
            return Ok(true);
        }
        if connection.under_way + queue.waiting.len() >= queue.entries() {
            return Err(Fault {
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
                connection.begin(0);
                self.fail(queue, connection, (&entry, status, 0), 0, calls);
            }
            Ok((plan, true)) => {
                if !self.pool.has_room(plan.reserved_bytes) {
                    self.park(connection);
                    return Ok(false);
                }
                connection.begin(plan.reserved_bytes);
                self.pool.reserve(plan.reserved_bytes);
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

    /// The connection waits for memory that others hold.
    fn park(&mut self, connection: &mut Connection) {
        connection.is_blocked = true;
        if !connection.is_parked {
            connection.is_parked = true;
            self.parked.push_back(connection.flow);
        }
    }

    fn plan(
        &mut self,
        queue: &mut Queue,
        connection: &Connection,
        entry: &Entry,
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
                let io = io.inspect_err(|_| add(&export.stats[self.shard].errors, 1))?;
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
    fn needs(&self, queue: &Queue, request: &Request, export: &Export) -> (usize, usize) {
        let storage = &export.device.storage;
        let reserved_bytes = memory_of(request, storage);
        if request.kind != Kind::Read {
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
    fn opened(
        &mut self,
        queue: &mut Queue,
        connection: &Connection,
        namespace: u32,
    ) -> Option<(Arc<Export>, u32)> {
        if let Some((export, tenant)) = queue.opened.get(&namespace) {
            return Some((Arc::clone(export), *tenant));
        }
        let export = queue.seen.get(&namespace)?;
        if !export.admits(connection.peer) {
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
        let share_bytes = self.pool.share_bytes();
        let mut at = 0;
        while let Some(waiting) = queue.waiting.get(at) {
            let (len_bytes, is_asked) = (waiting.reserved_bytes, waiting.payload_bytes > 0);
            if len_bytes > 0 {
                // Data that were asked for may come late, and capsules come before them: those find
                // room in what is left over here.
                let own_bytes = share_bytes / if is_asked { 2 } else { 1 };
                if !connection.has_room(len_bytes, own_bytes) {
                    break;
                }
                let is_free = if is_asked {
                    self.pool.has_room_for_long(len_bytes)
                } else {
                    self.pool.has_room(len_bytes)
                };
                if !is_free {
                    self.park(connection);
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
            connection.begin(len_bytes);
            self.pool.reserve(len_bytes);
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

    fn connect<C: Calls>(
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

    fn administer<C: Calls>(
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
        let view = View {
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
            Answer::Done(result) => {
                let done = (cid, result, Status::SUCCESS);
                self.done(queue, connection, done, reserved, calls);
            }
            Answer::Failed(status) => {
                self.fail(queue, connection, (&entry, status, 0), reserved, calls);
            }
            Answer::Later => connection.end(&mut self.pool, reserved),
            Answer::Data(data) => {
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
    fn tell<C: Calls>(&mut self, queue: &mut Queue, connection: &mut Connection, calls: &mut C) {
        while let Role::Admin(admin) = &mut queue.role
            && let Some((cid, result, status)) = admin.take_event()
        {
            self.scratch.clear();
            queue.complete((cid, result.into(), status), &mut self.scratch);
            connection.say(calls, &self.scratch);
        }
    }

    /// Puts a command of an I/O queue on the way of all requests. False: there is nothing to do.
    fn start_io(
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

    fn submit_part(
        &mut self,
        flow: FlowId,
        cid: u16,
        (request, of): (Request, (Arc<Export>, u32)),
        reserved_bytes: usize,
        now: Time,
    ) {
        let reply = Reply::Nvme { cid, is_part: true };
        let memory = (FileBuffer::default(), reserved_bytes);
        let pending = Pending::new(flow, reply, request, of, memory, now);
        self.submit(pending, now);
    }

    fn done<C: Calls>(
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

    fn fail<C: Calls>(
        &mut self,
        queue: &mut Queue,
        connection: &mut Connection,
        (entry, status, result): (&Entry, Status, u64),
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

    /// Looks after controllers once a second: hosts that are gone, and a new configuration.
    pub(crate) fn nvme_look<C: Calls>(&mut self, calls: &mut C, now: Time) {
        let Some(subsystem) = self.shared.nvme().map(Arc::clone) else {
            return;
        };
        if self.is_draining() {
            // What is under way has until the end of the drain.
            return;
        }
        let namespaces = subsystem.namespaces();
        for index in 0..self.connections.len() {
            let slot = &mut self.connections[index];
            let Some(mut connection) = slot.take_if(|connection| !connection.is_closed) else {
                continue;
            };
            if let Some(mut queue) = connection.take_queue() {
                if is_over(&queue, now) {
                    connection.is_closed = true;
                    calls.abort(connection.flow);
                } else if !Arc::ptr_eq(&queue.seen, &namespaces) {
                    self.refresh(&mut queue, &namespaces);
                    self.tell(&mut queue, &mut connection, calls);
                }
                connection.phase = Phase::Nvme(queue);
            }
            self.connections[index] = Some(connection);
        }
    }

    /// The configuration was read again.
    fn refresh(&mut self, queue: &mut Queue, namespaces: &Arc<Namespaces>) {
        let old = std::mem::replace(&mut queue.seen, Arc::clone(namespaces));
        let numbers = old.keys().chain(namespaces.keys());
        let changed = numbers.filter(|number| match (old.get(number), namespaces.get(number)) {
            (Some(old), Some(new)) => !Arc::ptr_eq(old, new),
            _ => true,
        });
        let changed: Vec<u32> = changed.copied().collect();
        for number in &changed {
            if let Some((_, tenant)) = queue.opened.remove(number) {
                self.tenants.close(tenant);
            }
        }
        if let Role::Admin(admin) = &mut queue.role {
            admin.changed(changed);
        }
    }

    /// A connection is gone.
    pub(crate) fn nvme_gone(&mut self, queue: &Queue) {
        for (_, tenant) in queue.opened.values() {
            self.tenants.close(*tenant);
        }
        match &queue.role {
            Role::New => {}
            Role::Admin(admin) => {
                if let Some(subsystem) = self.shared.nvme() {
                    subsystem.remove(&admin.controller);
                }
            }
            Role::Io { controller, number } => controller.give_queue(*number),
        }
    }
}

/// A submission entry with what the error log says of a request.
fn entry_of(cid: u16, request: &Request) -> Entry {
    let mut bytes = [0; pdu::ENTRY_BYTES];
    bytes[2..4].copy_from_slice(&cid.to_le_bytes());
    let block = request.offset / BLOCK_BYTES;
    bytes[40..48].copy_from_slice(&block.to_le_bytes());
    Entry(bytes)
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

/// Whether a connection's association has ended, or ends now.
fn is_over(queue: &Queue, now: Time) -> bool {
    match &queue.role {
        Role::New => false,
        Role::Admin(admin) => {
            let controller = &admin.controller;
            if controller.is_silent(now.0) {
                controller.kill();
            }
            controller.is_dead()
        }
        Role::Io { controller, .. } => {
            // A host that disables its controller deletes its I/O queues.
            controller.is_dead() || !controller.is_enabled.load(Ordering::Acquire)
        }
    }
}
