//! Operations on files, on the same ring as the network.

use std::os::fd::AsRawFd as _;

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};

use crate::file::{FileAction, FileOperation};

/// Operations on files that a shard has under way at most.
const OPERATIONS_MAX: usize = 16_384;

/// The operations that the kernel knows, and those that it will know after the next flush.
#[derive(Default)]
pub(super) struct Files {
    /// Operations that go to the kernel with the next flush.
    pub(super) queued: Vec<u32>,
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

    /// The request for an operation that waits.
    #[inline]
    pub(super) fn request(&mut self, index: u32) -> Option<squeue::Entry> {
        self.table.get_mut(index as usize)?.as_mut().map(entry)
    }

    /// Takes an operation that has ended.
    pub(super) fn finish(&mut self, index: u32) -> Option<FileOperation> {
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
