//! A file or block device, by io_uring.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;

use dataplane::file::FileBuffer;
use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};
use qos::Operation;

use crate::LoadError;
use crate::medium::{Done, IoRequest, Medium};

/// Entries of the submission queue: what comes between two polls.
const SUBMISSIONS: u32 = 1024;
/// Entries of the completion queue.
const COMPLETIONS: u32 = 8192;
/// `IORING_ENTER_GETEVENTS` of linux/io_uring.h: run completions, wait for none.
const ENTER_GETEVENTS: u32 = 1;

/// An open file or block device. The field `ring` comes first, so that it is closed before the
/// buffers that it knows.
pub struct Disk {
    ring: IoUring,
    file: Arc<OwnedFd>,
    /// One buffer a slot.
    buffers: Vec<Slot>,
    under_way: usize,
}

#[derive(Default)]
struct Slot {
    buffer: FileBuffer,
    len_bytes: u32,
}

impl Disk {
    /// A ring for a file. The thread that calls this must be the one that uses the disk.
    ///
    /// # Errors
    /// The kernel lacks io_uring or one of its features, or forbids it.
    pub fn new(file: Arc<OwnedFd>) -> Result<Self, LoadError> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_cqsize(COMPLETIONS)
            .setup_submit_all()
            .dontfork()
            .build(SUBMISSIONS)
            .map_err(LoadError::NoUring)?;
        Ok(Self {
            ring,
            file,
            buffers: Vec::new(),
            under_way: 0,
        })
    }

    fn push(&mut self, entry: &squeue::Entry) -> Result<(), LoadError> {
        loop {
            // SAFETY: the entry points to a buffer of `self.buffers`, which is neither moved nor
            // freed before its completion: a slot has one request at a time, and `drop` waits.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                self.under_way += 1;
                return Ok(());
            }
            self.ring.submit().map_err(LoadError::Submit)?;
        }
    }

    fn reap(&mut self, done: &mut Vec<Done>) {
        for completion in self.ring.completion() {
            self.under_way -= 1;
            let slot = u32::try_from(completion.user_data()).unwrap_or(u32::MAX);
            let asked = self.buffers.get(slot as usize).map(|slot| slot.len_bytes);
            done.push(Done {
                slot,
                is_ok: u32::try_from(completion.result()).ok() == asked,
            });
        }
    }
}

impl Medium for Disk {
    fn submit(&mut self, io: IoRequest) -> Result<(), LoadError> {
        let at = io.slot as usize;
        if self.buffers.len() <= at {
            self.buffers.resize_with(at + 1, Slot::default);
        }
        let slot = &mut self.buffers[at];
        let len_bytes = usize::try_from(io.len_bytes).unwrap_or(usize::MAX);
        if slot.buffer.len_bytes() < len_bytes {
            slot.buffer = FileBuffer::zeroed(len_bytes);
            slot.buffer.bytes_mut().fill(0x5a);
        }
        slot.len_bytes = io.len_bytes;
        let fd = Fd(self.file.as_raw_fd());
        let start = slot.buffer.bytes_mut().as_mut_ptr();
        let entry = match io.operation {
            Operation::Read => opcode::Read::new(fd, start, io.len_bytes)
                .offset(io.offset)
                .build(),
            Operation::Write => opcode::Write::new(fd, start, io.len_bytes)
                .offset(io.offset)
                .build(),
        };
        self.push(&entry.user_data(io.slot.into()))
    }

    fn poll(&mut self, waits: bool, done: &mut Vec<Done>) -> Result<(), LoadError> {
        self.reap(done);
        let has_queued = !self.ring.submission().is_empty();
        let has_ended = self.ring.submission().taskrun();
        let outcome = if waits && done.is_empty() {
            self.ring.submit_and_wait(1)
        } else if has_queued || has_ended {
            let queued = u32::try_from(self.ring.submission().len()).unwrap_or(u32::MAX);
            // SAFETY: no argument follows the flags, so the kernel reads none.
            unsafe {
                self.ring
                    .submitter()
                    .enter::<libc::sigset_t>(queued, 0, ENTER_GETEVENTS, None)
            }
        } else {
            return Ok(());
        };
        match outcome {
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
                ) => {}
            Err(error) => return Err(LoadError::Submit(error)),
        }
        self.reap(done);
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let mut done = Vec::new();
        while self.under_way > 0 {
            if self.poll(true, &mut done).is_err() {
                // The kernel may still write to the buffers: rather lost than freed.
                std::mem::forget(std::mem::take(&mut self.buffers));
                return;
            }
            done.clear();
        }
    }
}
