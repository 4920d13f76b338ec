//! Operations on files, for applications that serve what is on a disk.
//!
//! The network and the disk share one ring: an application starts an operation by
//! [`Calls::file`](crate::Calls::file), and hears of its end in
//! [`Event::File`](crate::Event::File).

use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Alignment of a buffer's memory: the largest that `O_DIRECT` asks for on common disks.
pub const ALIGNMENT_BYTES: usize = 4096;

/// Memory that a file is read into or written from. It begins on a page, and is whole pages long.
#[derive(Default)]
pub struct FileBuffer {
    /// The buffer, with room for its alignment. The allocator has the kernel zero large memory
    /// when it is first touched; for types that are aligned more, it writes the zeros itself.
    memory: Vec<u8>,
    begin: usize,
    len_bytes: usize,
}

impl std::fmt::Debug for FileBuffer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "FileBuffer({} bytes)", self.len_bytes())
    }
}

impl FileBuffer {
    /// A buffer of zeros, with room for at least `len_bytes`.
    pub fn zeroed(len_bytes: usize) -> Self {
        if len_bytes == 0 {
            return Self::default();
        }
        let len_bytes = len_bytes.next_multiple_of(ALIGNMENT_BYTES);
        let memory = vec![0; len_bytes + ALIGNMENT_BYTES - 1];
        let address = memory.as_ptr().addr();
        Self {
            begin: address.next_multiple_of(ALIGNMENT_BYTES) - address,
            len_bytes,
            memory,
        }
    }

    /// Bytes that fit.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.begin..self.begin + self.len_bytes]
    }

    /// The bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..self.begin + self.len_bytes]
    }
}

/// What is done to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileAction {
    /// Reads into the buffer.
    Read,
    /// Writes from the buffer.
    Write {
        /// The operation ends when the data are on stable storage (`RWF_DSYNC`).
        is_durable: bool,
    },
    /// Brings everything that was written to stable storage (`fdatasync`).
    Sync,
    /// `fallocate(2)` with these flags.
    Allocate {
        /// `FALLOC_FL_*`.
        mode: i32,
    },
    /// The kernel reads the range ahead, where it caches the file (`POSIX_FADV_WILLNEED`).
    ReadAhead,
}

/// One operation on a file.
#[derive(Debug)]
pub struct FileOperation {
    /// Comes back in [`Event::File`](crate::Event::File).
    pub token: u64,
    /// The file: it stays open until the operation has ended.
    pub file: Arc<OwnedFd>,
    /// What is done.
    pub action: FileAction,
    /// Where in the file.
    pub offset: u64,
    /// How many bytes. Reads and writes go no further than the buffer.
    pub len_bytes: u64,
    /// The memory of reads and writes.
    pub buffer: FileBuffer,
    /// Where in the buffer the operation begins.
    pub buffer_at: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_begins_on_a_page_and_has_room() {
        for len_bytes in [0, 1, 4096, 4097, 1 << 20] {
            let mut buffer = FileBuffer::zeroed(len_bytes);
            assert!(buffer.len_bytes() >= len_bytes);
            let is_aligned = buffer.bytes().as_ptr().align_offset(ALIGNMENT_BYTES) == 0;
            assert!(is_aligned || len_bytes == 0);
            assert!(buffer.bytes().iter().all(|&byte| byte == 0));
            buffer.bytes_mut().fill(7);
            assert!(buffer.bytes().iter().all(|&byte| byte == 7));
        }
    }
}
