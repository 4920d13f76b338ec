//! How often one thread, and the threads that it starts, passed a tracepoint: counted by the
//! kernel, without samples.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use perf_event_open_sys as sys;

use crate::{Error, TracepointFormat};

/// A running count.
#[derive(Debug)]
pub struct Counter {
    thread: u32,
    event: File,
}

impl Counter {
    /// Counts the passings of a tracepoint by `thread` for which `filter` holds
    /// (Documentation/trace/events.rst, section 5; e.g. `id == 44`). Threads that it starts later
    /// count as well.
    ///
    /// # Errors
    /// [`Error::Count`].
    pub fn open(thread: u32, tracepoint: &TracepointFormat, filter: &str) -> Result<Self, Error> {
        let failed = |source: io::Error| Error::Count { thread, source };
        let mut attr = sys::bindings::perf_event_attr {
            type_: sys::bindings::PERF_TYPE_TRACEPOINT,
            size: u32::try_from(size_of::<sys::bindings::perf_event_attr>()).unwrap_or(0),
            config: u64::from(tracepoint.id),
            ..Default::default()
        };
        attr.set_inherit(1);
        let pid = libc::pid_t::try_from(thread)
            .map_err(|_| failed(io::ErrorKind::InvalidInput.into()))?;
        let flags = sys::bindings::PERF_FLAG_FD_CLOEXEC.into();
        // SAFETY: `attr` is initialised and outlives the call; CPU −1 with a thread means wherever
        // it runs.
        let fd = unsafe { sys::perf_event_open(&raw mut attr, pid, -1, -1, flags) };
        if fd < 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        // SAFETY: a descriptor that was just opened and that nobody else owns.
        let event = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        let filter = CString::new(filter).map_err(|error| failed(error.into()))?;
        // SAFETY: SET_FILTER reads a string that ends with a zero byte, which `filter` is.
        let code = unsafe {
            libc::ioctl(
                event.as_raw_fd(),
                sys::bindings::SET_FILTER.into(),
                filter.as_ptr(),
            )
        };
        if code < 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        Ok(Self { thread, event })
    }

    /// The count since it was opened.
    ///
    /// # Errors
    /// [`Error::Count`].
    pub fn read(&self) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        (&self.event)
            .read_exact(&mut bytes)
            .map_err(|source| Error::Count {
                thread: self.thread,
                source,
            })?;
        Ok(u64::from_le_bytes(bytes))
    }
}
