//! Making a running process do something: which of its threads does it, and where the stub lies that it runs.

use crate::inject::{self, STUB_BYTES};
use crate::manifest::{Manifest, Patch};
use crate::maps::Mapping;
use crate::process::Process;
use crate::stop::one_stopped;
use crate::{Declined, RelayoutError, cave};

/// A system call by one thread of a process, through a stub in its own text that is there for that long only. The stub has
/// been announced.
pub(crate) fn syscall(
    process: &Process,
    stub: &Patch,
    number: u64,
    arguments: [u64; 6],
) -> Result<i64, RelayoutError> {
    let memory = &process.memory;
    lay_stub(process, stub)?;
    let threads = threads_by_chance(process.pid)?;
    let (result, _) = one_stopped(process.pid, memory, &threads, |stopped| {
        let thread = stopped.threads[0];
        inject::syscall(stopped, thread, stub.address, number, arguments)
    })?;
    memory.write(stub.address, &stub.old.0)?;
    Ok(result)
}

/// Writes the stub, where the bytes are there that it was announced for.
fn lay_stub(process: &Process, stub: &Patch) -> Result<(), RelayoutError> {
    let memory = &process.memory;
    let found = memory.read(stub.address, stub.old.0.len())?;
    if found != stub.old.0 && found != stub.new.0 {
        return Err(RelayoutError::Declined {
            pid: process.pid,
            reason: Declined::Program {
                path: process.exe.clone(),
                why: format!(
                    "the unused bytes at {:#x} behind its code are in use",
                    stub.address
                ),
            },
        });
    }
    memory.write(stub.address, &stub.new.0)
}

/// Where the stub goes: where it was the last time, or the first room that there is.
pub(crate) fn find_stub(
    process: &Process,
    manifest: &Manifest,
    maps: &[Mapping],
) -> Result<Patch, RelayoutError> {
    if let Some(known) = &manifest.stub {
        let found = process.memory.read(known.address, known.old.0.len());
        if found.is_ok_and(|found| found == known.old.0 || found == known.new.0) {
            return Ok(known.clone());
        }
    }
    let memory = &process.memory;
    let address = cave::find(memory, maps)?.ok_or_else(|| RelayoutError::Declined {
        pid: process.pid,
        reason: Declined::Program {
            path: process.exe.clone(),
            why: format!("no object of it has {STUB_BYTES} unused bytes behind its code"),
        },
    })?;
    let new = inject::syscall_stub();
    let old = memory.read(address, new.len())?;
    let stub = Patch {
        address,
        old: crate::manifest::Bytes(old),
        new: crate::manifest::Bytes(new),
    };
    Ok(stub)
}

/// The threads of a process, in the order in which they are worth trying: those that sleep in a system call stop at once
/// and have nothing better to do.
fn threads_by_chance(pid: u32) -> Result<Vec<u32>, RelayoutError> {
    let mut threads = host::thread_ids(&host::Roots::default(), pid)?;
    threads.retain(|thread| !crate::stop::is_worker(pid, *thread));
    threads.sort_by_cached_key(|thread| {
        crate::stop::status_field(pid, *thread, "State").is_none_or(|state| !state.starts_with('S'))
    });
    Ok(threads)
}
