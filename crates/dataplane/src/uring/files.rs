//! Operations on files, on the same ring as the network.

use std::os::fd::AsRawFd as _;

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};

use super::Uring;
use super::events::{Pending, Tag};
use super::flows::UringCalls;
use crate::api::Event;
use crate::file::{FileAction, FileOperation};

/// Operations on files that a shard has under way at most.
const OPERATIONS_MAX: usize = 16_384;

/// The operations that the kernel knows, and those that it will know after the next flush.
#[derive(Default)]
pub(super) struct Files {
    queued: Vec<u32>,
    table: Vec<Option<FileOperation>>,
    free: Vec<u32>,
}

impl Files {
    /// Takes an operation, unless too many are under way.
    pub(super) fn add(&mut self, operation: FileOperation) -> Result<(), FileOperation> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.table.len() < OPERATIONS_MAX => {
                self.table.push(None);
                u32::try_from(self.table.len() - 1).unwrap_or(0)
            }
            None => return Err(operation),
        };
        self.table[index as usize] = Some(operation);
        self.queued.push(index);
        Ok(())
    }

    fn finish(&mut self, index: u32) -> Option<FileOperation> {
        let operation = self.table.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(operation)
    }

    /// The kernel may still write to the memory of what is under way: rather lost than freed.
    pub(super) fn leak(&mut self) {
        for operation in self.table.drain(..).flatten() {
            std::mem::forget(operation);
        }
    }
}

fn entry(operation: &mut FileOperation) -> squeue::Entry {
    let fd = Fd(operation.file.as_raw_fd());
    let offset = operation.offset;
    let at = operation.buffer_at.min(operation.buffer.len_bytes());
    let room = u64::try_from(operation.buffer.len_bytes() - at).unwrap_or(0);
    let len = u32::try_from(operation.len_bytes.min(room)).unwrap_or(u32::MAX);
    match operation.action {
        FileAction::Read => {
            let start = operation.buffer.bytes_mut()[at..].as_mut_ptr();
            opcode::Read::new(fd, start, len).offset(offset).build()
        }
        FileAction::Write { is_durable } => {
            let start = operation.buffer.bytes()[at..].as_ptr();
            let flags = if is_durable { libc::RWF_DSYNC } else { 0 };
            opcode::Write::new(fd, start, len)
                .offset(offset)
                .rw_flags(flags)
                .build()
        }
        FileAction::Sync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        FileAction::Allocate { mode } => opcode::Fallocate::new(fd, operation.len_bytes)
            .offset(offset)
            .mode(mode)
            .build(),
        FileAction::ReadAhead => {
            let len = libc::off_t::try_from(operation.len_bytes).unwrap_or(libc::off_t::MAX);
            opcode::Fadvise::new(fd, len, libc::POSIX_FADV_WILLNEED)
                .offset(offset)
                .build()
        }
    }
}

impl Uring {
    /// Hands queued operations to the kernel.
    pub(super) fn start_files(&mut self) {
        let mut queued = std::mem::take(&mut self.calls.files.queued);
        for index in queued.drain(..) {
            if let Some(operation) = &mut self.calls.files.table[index as usize] {
                let entry = entry(operation).user_data(Tag::File.encode(index));
                self.push(entry);
            }
        }
        self.calls.files.queued = queued;
    }

    pub(super) fn on_file(&mut self, index: u32, result: i32) {
        self.pending.push(Pending::File { index, result });
    }
}

/// Tells the application that an operation has ended.
pub(super) fn deliver(
    calls: &mut UringCalls,
    index: u32,
    result: i32,
    handler: &mut impl FnMut(Event<'_>, &mut UringCalls),
) {
    let Some(operation) = calls.files.finish(index) else {
        return;
    };
    let FileOperation {
        token,
        action,
        buffer,
        ..
    } = operation;
    let result = usize::try_from(result).map_err(|_| -result);
    handler(
        Event::File {
            token,
            action,
            result,
            buffer,
        },
        calls,
    );
}
