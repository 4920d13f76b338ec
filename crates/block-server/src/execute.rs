//! Requests on devices: from submission to completion, step by step.

use std::sync::Arc;

use dataplane::file::{FileAction, FileBuffer, FileOperation};
use dataplane::{Calls, FlowId, Time};

use crate::device::{FileStorage, Storage};
use crate::export::Export;
use crate::nbd::Errno;
use crate::nbd::reply::{Address, Extent};
use crate::nbd::request::{
    FLAG_FAST_ZERO, FLAG_FUA, FLAG_NO_HOLE, FLAG_REQ_ONE, NbdRequest, RequestKind,
};
use crate::pool::BufferPool;

/// Zeros that are written at once where the kernel cannot make a range zero itself.
const ZERO_FILL_BYTES: usize = 1 << 20;
/// Extents of one answer. Clients ask again for the rest.
const EXTENTS_MAX: usize = 128;

/// Why no flush succeeds after one has failed.
const LOST: &str =
    "an earlier flush failed, and writes may be lost: check the device, then restart the server";

/// What is done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The command itself.
    Main,
    /// Zeros are written from a buffer, because the kernel cannot make the range zero.
    ZeroFill,
    /// What was done goes to stable storage.
    Sync,
}

/// How a request is answered.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reply {
    /// Over NBD.
    Nbd(Address),
    /// Over NVMe/TCP. `is_part`: the command has other parts, too.
    Nvme { cid: u16, is_part: bool },
}

/// A request under way.
pub(crate) struct Pending {
    pub(crate) flow: FlowId,
    pub(crate) reply: Reply,
    pub(crate) request: NbdRequest,
    pub(crate) export: Arc<Export>,
    pub(crate) tenant: u32,
    pub(crate) buffer: FileBuffer,
    pub(crate) reserved_bytes: usize,
    pub(crate) begun: Time,
    /// When the scheduler let it go to the device.
    pub(crate) submitted: Time,
    stage: Stage,
    done_bytes: u64,
    /// The page cache is used whatever the alignment.
    is_buffered: bool,
    /// Flags of the `fallocate` under way.
    mode: i32,
}

/// How a request ended.
pub(crate) enum Outcome {
    /// Success without data.
    Done,
    /// The data are in the request's buffer.
    Data,
    /// The data are in the memory of the device.
    Memory,
    /// Which parts hold data.
    Extents(Vec<Extent>),
    /// Failure.
    Failed(Errno, &'static str),
}

impl Pending {
    pub(crate) fn new(
        flow: FlowId,
        reply: Reply,
        request: NbdRequest,
        (export, tenant): (Arc<Export>, u32),
        (buffer, reserved_bytes): (FileBuffer, usize),
        begun: Time,
    ) -> Self {
        Self {
            flow,
            reply,
            request,
            export,
            tenant,
            buffer,
            reserved_bytes,
            begun,
            submitted: begun,
            stage: Stage::Main,
            done_bytes: 0,
            is_buffered: false,
            mode: 0,
        }
    }

    /// Where on the device.
    pub(crate) fn device_offset(&self) -> u64 {
        self.export.offset_bytes + self.request.offset
    }

    fn file(&self) -> Option<&FileStorage> {
        match &self.export.device.storage {
            Storage::File(file) => Some(file),
            Storage::Memory(_) | Storage::Unopened => None,
        }
    }

    /// Starts the request. `None`: it is under way, and [`Pending::completed`] follows.
    pub(crate) fn start<C: Calls>(
        &mut self,
        token: u64,
        calls: &mut C,
        pool: &mut BufferPool,
    ) -> Option<Outcome> {
        let request = self.request;
        if request.len_bytes == 0 && request.kind != RequestKind::Flush {
            return Some(if request.kind == RequestKind::Read {
                Outcome::Data
            } else {
                Outcome::Done
            });
        }
        if request.kind == RequestKind::BlockStatus {
            return Some(self.block_status());
        }
        if let Storage::Memory(_) = self.export.device.storage {
            return Some(self.on_memory());
        }
        match request.kind {
            RequestKind::Read => {
                self.buffer = pool.take(usize::try_from(request.len_bytes).unwrap_or(0));
            }
            RequestKind::WriteZeroes | RequestKind::Trim => {
                let keeps = request.has(FLAG_NO_HOLE) && request.kind == RequestKind::WriteZeroes;
                match self.file().and_then(|file| file.zero_mode(keeps)) {
                    Some(mode) => self.mode = mode,
                    None => return self.without_fallocate(token, calls, pool),
                }
            }
            _ => {}
        }
        self.submit(token, calls)
    }

    fn block_status(&self) -> Outcome {
        let most = if self.request.has(FLAG_REQ_ONE) {
            1
        } else {
            EXTENTS_MAX
        };
        let len_bytes = self.request.len_bytes;
        let extents = self
            .export
            .device
            .extents(self.device_offset(), len_bytes, most);
        Outcome::Extents(extents)
    }

    fn on_memory(&mut self) -> Outcome {
        let offset = self.device_offset();
        let Storage::Memory(memory) = &self.export.device.storage else {
            return Outcome::Failed(Errno::Io, "not in memory");
        };
        match self.request.kind {
            RequestKind::Read => return Outcome::Memory,
            RequestKind::Write => {
                let len = usize::try_from(self.request.len_bytes).unwrap_or(0);
                memory.write(offset, &self.buffer.bytes()[..len]);
            }
            RequestKind::WriteZeroes => {
                let keeps = self.request.has(FLAG_NO_HOLE);
                memory.zero(offset, self.request.len_bytes, keeps);
            }
            RequestKind::Trim => memory.zero(offset, self.request.len_bytes, false),
            _ => {}
        }
        Outcome::Done
    }

    /// Zeros or a trim where the kernel has no way to do either.
    fn without_fallocate<C: Calls>(
        &mut self,
        token: u64,
        calls: &mut C,
        pool: &mut BufferPool,
    ) -> Option<Outcome> {
        if self.request.kind == RequestKind::Trim {
            // A trim is a hint.
            return self.after_main(token, calls);
        }
        if self.request.has(FLAG_FAST_ZERO) {
            let text = "zeros are no faster than a write here";
            return Some(Outcome::Failed(Errno::NotSupported, text));
        }
        self.stage = Stage::ZeroFill;
        let len = usize::try_from(self.request.len_bytes).unwrap_or(usize::MAX);
        self.buffer = pool.take(len.min(ZERO_FILL_BYTES));
        self.buffer.bytes_mut().fill(0);
        self.submit(token, calls)
    }

    /// Hands the next step to the kernel.
    fn submit<C: Calls>(&mut self, token: u64, calls: &mut C) -> Option<Outcome> {
        let Storage::File(file) = &self.export.device.storage else {
            return Some(Outcome::Failed(Errno::Io, "no file"));
        };
        let offset = self.device_offset() + self.done_bytes;
        let left = self.request.len_bytes - self.done_bytes;
        let is_durable = self.request.has(FLAG_FUA);
        let done = usize::try_from(self.done_bytes).unwrap_or(0);
        let (action, len_bytes, buffer_at) = match (self.stage, self.request.kind) {
            (Stage::Sync, _) | (_, RequestKind::Flush) => (FileAction::Sync, 0, 0),
            (Stage::ZeroFill, _) => {
                let most = self.buffer.len_bytes() as u64;
                let action = FileAction::Write { is_durable: false };
                (action, left.min(most), 0)
            }
            (_, RequestKind::Read) => (FileAction::Read, left, done),
            (_, RequestKind::Write) => (FileAction::Write { is_durable }, left, done),
            (_, RequestKind::WriteZeroes | RequestKind::Trim) => {
                (FileAction::Allocate { mode: self.mode }, left, 0)
            }
            _ => (FileAction::ReadAhead, left, 0),
        };
        let moves_data = matches!(action, FileAction::Read | FileAction::Write { .. });
        if action == FileAction::Sync && file.has_lost_writes() {
            return Some(Outcome::Failed(Errno::Io, LOST));
        }
        let descriptor = if moves_data && !self.is_buffered {
            let (descriptor, is_direct) = file.descriptor(offset, len_bytes | buffer_at as u64);
            self.is_buffered = !is_direct;
            descriptor
        } else {
            file.buffered()
        };
        let operation = FileOperation {
            token,
            file: Arc::clone(descriptor),
            action,
            offset,
            len_bytes,
            buffer: std::mem::take(&mut self.buffer),
            buffer_at,
        };
        match calls.file(operation) {
            Ok(()) => None,
            Err(operation) => {
                self.buffer = operation.buffer;
                Some(Outcome::Failed(Errno::NoMemory, "too many requests"))
            }
        }
    }

    /// The command is done: its data go to stable storage if the client wants that.
    fn after_main<C: Calls>(&mut self, token: u64, calls: &mut C) -> Option<Outcome> {
        let writes = matches!(
            self.request.kind,
            RequestKind::WriteZeroes | RequestKind::Trim
        );
        if writes && self.request.has(FLAG_FUA) && self.stage != Stage::Sync {
            self.stage = Stage::Sync;
            return self.submit(token, calls);
        }
        Some(Outcome::Done)
    }

    /// An operation has ended. `None`: the next one is under way.
    pub(crate) fn completed<C: Calls>(
        &mut self,
        token: u64,
        result: Result<usize, i32>,
        calls: &mut C,
        pool: &mut BufferPool,
    ) -> Option<Outcome> {
        let moved = match result {
            Ok(moved) => moved as u64,
            Err(libc::EAGAIN | libc::EINTR) => return self.submit(token, calls),
            Err(errno) => return self.failed(token, errno, calls, pool),
        };
        match (self.stage, self.request.kind) {
            (Stage::Sync, _) | (Stage::Main, RequestKind::Flush | RequestKind::Cache) => {
                Some(Outcome::Done)
            }
            (Stage::Main, RequestKind::Read | RequestKind::Write) | (Stage::ZeroFill, _) => {
                if moved == 0 {
                    return Some(Outcome::Failed(
                        Errno::Io,
                        "the device ends before its size",
                    ));
                }
                self.done_bytes += moved;
                if self.done_bytes < self.request.len_bytes {
                    // The rest may be unaligned, so this decides anew.
                    self.is_buffered = false;
                    return self.submit(token, calls);
                }
                match self.request.kind {
                    RequestKind::Read => Some(Outcome::Data),
                    RequestKind::Write => Some(Outcome::Done),
                    _ => self.after_main(token, calls),
                }
            }
            _ => self.after_main(token, calls),
        }
    }

    fn failed<C: Calls>(
        &mut self,
        token: u64,
        errno: i32,
        calls: &mut C,
        pool: &mut BufferPool,
    ) -> Option<Outcome> {
        let moves_data = matches!(self.request.kind, RequestKind::Read | RequestKind::Write)
            || self.stage == Stage::ZeroFill;
        if errno == libc::EINVAL && moves_data && !self.is_buffered {
            if let Some(file) = self.file() {
                file.raise_alignment();
            }
            self.is_buffered = true;
            return self.submit(token, calls);
        }
        let allocates = matches!(
            self.request.kind,
            RequestKind::WriteZeroes | RequestKind::Trim
        ) && self.stage == Stage::Main;
        // A block device knows the call, but not for parts of its blocks.
        if allocates && matches!(errno, libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) {
            if errno != libc::EINVAL
                && let Some(file) = self.file()
            {
                file.forget_mode(self.mode);
            }
            let is_trim = self.request.kind == RequestKind::Trim;
            let other = self.file().and_then(|file| file.zero_mode(true));
            if let Some(other) = other.filter(|&other| !is_trim && other != self.mode) {
                self.mode = other;
                return self.submit(token, calls);
            }
            return self.without_fallocate(token, calls, pool);
        }
        let is_sync = self.stage == Stage::Sync || self.request.kind == RequestKind::Flush;
        let is_durable_write = self.is_buffered && self.request.has(FLAG_FUA) && errno == libc::EIO;
        if is_sync || (is_durable_write && self.request.kind == RequestKind::Write) {
            if let Some(file) = self.file() {
                file.lose_writes();
            }
            return Some(Outcome::Failed(Errno::of_os(errno), "the flush failed"));
        }
        // Reading ahead is a hint.
        if self.request.kind == RequestKind::Cache {
            return Some(Outcome::Done);
        }
        Some(Outcome::Failed(Errno::of_os(errno), "the device failed"))
    }
}
