//! The memory of another process through `/proc/PID/mem`, which reads and writes whatever is
//! mapped, also what is mapped read-only (Linux 6.12 has `proc_mem.force_override=`; what a kernel
//! refuses is an error here).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use crate::RelayoutError;
use crate::machine::check_machine;

/// An open `/proc/PID/mem`. It goes on naming the same address space: after an `execve` it names
/// nobody's. Whoever stops a process or writes into it has one, so it is had on x86-64 only.
#[derive(Debug)]
pub struct ProcessMemory {
    pid: u32,
    file: File,
}

impl ProcessMemory {
    /// Opens it for reading and writing.
    ///
    /// # Errors
    /// [`RelayoutError::Memory`], [`RelayoutError::OtherMachine`].
    pub fn open(pid: u32) -> Result<Self, RelayoutError> {
        check_machine()?;
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))
            .map(|file| Self { pid, file })
            .map_err(|source| RelayoutError::Memory {
                pid,
                address: 0,
                verb: "opened",
                source,
            })
    }

    /// Reads exactly `bytes.len()` bytes.
    ///
    /// # Errors
    /// [`RelayoutError::Memory`], [`RelayoutError::Gone`] where the address space no longer exists.
    pub fn read_into(&self, address: u64, bytes: &mut [u8]) -> Result<(), RelayoutError> {
        self.file
            .read_exact_at(bytes, address)
            .map_err(|source| self.error(address, "read", source))
    }

    /// As [`ProcessMemory::read_into`].
    ///
    /// # Errors
    /// As [`ProcessMemory::read_into`].
    pub fn read(&self, address: u64, count: usize) -> Result<Vec<u8>, RelayoutError> {
        let mut bytes = vec![0; count];
        self.read_into(address, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads as many bytes as there are up to the next hole, at most `bytes.len()`: how many, 0
    /// where nothing can be read.
    pub(crate) fn read_some(&self, address: u64, bytes: &mut [u8]) -> usize {
        self.file.read_at(bytes, address).unwrap_or(0)
    }

    /// One little-endian word.
    ///
    /// # Errors
    /// As [`ProcessMemory::read_into`].
    pub fn word(&self, address: u64) -> Result<u64, RelayoutError> {
        let mut bytes = [0; 8];
        self.read_into(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes all of `bytes`. Within one page it is all or nothing, also when this process is
    /// killed meanwhile (`__access_remote_vm` in mm/memory.c looks for a fatal signal between
    /// pages).
    ///
    /// # Errors
    /// As [`ProcessMemory::read_into`].
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), RelayoutError> {
        self.file
            .write_all_at(bytes, address)
            .map_err(|source| self.error(address, "written", source))
    }

    fn error(&self, address: u64, verb: &'static str, source: io::Error) -> RelayoutError {
        let is_gone = || !std::path::Path::new(&format!("/proc/{}/maps", self.pid)).exists();
        // The end of file is what an address space that has gone reads as.
        if matches!(
            source.kind(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::WriteZero
        ) || is_gone()
        {
            return RelayoutError::Gone { pid: self.pid };
        }
        RelayoutError::Memory {
            pid: self.pid,
            address,
            verb,
            source,
        }
    }
}
