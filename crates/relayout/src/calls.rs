//! Making a running process do something: which of its threads does it, and where the stub lies that it runs.

use std::time::Duration;

use crate::inject;
use crate::manifest::{Manifest, Patch, Region};
use crate::maps::Mapping;
use crate::process::Process;
use crate::region::{CALL_STUB, Told, set_told};
use crate::stop::one_stopped;
use crate::{Declined, RelayoutError, cave, ptrace};

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
pub(crate) fn lay_stub(process: &Process, stub: &Patch) -> Result<(), RelayoutError> {
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

/// Where the stub goes: where it was the last time, or the first room that there is. True where it is new, and so to be
/// saved before it is written.
pub(crate) fn find_stub(
    process: &Process,
    manifest: &Manifest,
    maps: &[Mapping],
) -> Result<(Patch, bool), RelayoutError> {
    if let Some(known) = &manifest.stub {
        let found = process.memory.read(known.address, known.old.0.len());
        if found.is_ok_and(|found| found == known.old.0 || found == known.new.0) {
            return Ok((known.clone(), false));
        }
    }
    let memory = &process.memory;
    let address = cave::find(memory, maps)?.ok_or_else(|| RelayoutError::Declined {
        pid: process.pid,
        reason: Declined::Program {
            path: process.exe.clone(),
            why: "no object of it has 128 unused bytes behind its code".into(),
        },
    })?;
    let new = inject::syscall_stub();
    let old = memory.read(address, new.len())?;
    let stub = Patch {
        address,
        old: crate::manifest::Bytes(old),
        new: crate::manifest::Bytes(new),
    };
    Ok((stub, true))
}

/// The threads of a process, in the order in which they are worth trying: those that sleep in a system call stop at once
/// and have nothing better to do.
pub(crate) fn threads_by_chance(pid: u32) -> Result<Vec<u32>, RelayoutError> {
    let mut threads = host::thread_ids(&host::Roots::default(), pid)?;
    threads.sort_by_cached_key(|thread| {
        crate::stop::status_field(pid, *thread, "State").is_none_or(|state| !state.starts_with('S'))
    });
    Ok(threads)
}

/// System calls that threads sleep in and that no allocator and no unwinder makes: a thread inside one of them holds none
/// of their locks.
const WAITING_CALLS: [i64; 18] = [
    libc::SYS_read,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigsuspend,
    libc::SYS_pause,
    libc::SYS_wait4,
];

/// How long a thread in a safe place is waited for.
const SAFE_PLACE_TRIES: usize = 200;

/// Tells the unwinder of a process of a region's frames number `index`, or makes it forget them, by a thread that is known
/// to be outside the allocator; and puts it down in the region. False where it is not known what it knows.
pub(crate) fn tell(
    process: &Process,
    region: &Region,
    index: usize,
    is_to_know: bool,
) -> Result<bool, RelayoutError> {
    let (wanted, other) = match is_to_know {
        true => (Told::Yes, Told::No),
        false => (Told::No, Told::Yes),
    };
    match crate::region::told(&process.memory, region, index)? {
        known if known == wanted => return Ok(true),
        Told::Perhaps => return Ok(false),
        _ => {}
    }
    let Some(unwinding) = region.unwinding.get(index) else {
        return Ok(false);
    };
    let function = match is_to_know {
        true => unwinding.register,
        false => unwinding.deregister,
    };
    let pid = process.pid;
    let waits = |thread: &u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/syscall"));
        let number = text
            .ok()
            .and_then(|text| text.split(' ').next()?.parse().ok());
        number.is_some_and(|number: i64| WAITING_CALLS.contains(&number))
    };
    for _ in 0..SAFE_PLACE_TRIES {
        let mut threads = threads_by_chance(pid)?;
        threads.retain(waits);
        for thread in threads {
            let called = one_stopped(pid, &process.memory, &[thread], |stopped| {
                let now = ptrace::registers(thread)?;
                let call_now = now.orig_rax.cast_signed();
                if !WAITING_CALLS.contains(&call_now) {
                    return Ok(false);
                }
                let memory = stopped.memory;
                // A process that is forked in between knows by this that it may have been told.
                set_told(memory, region, index, Told::Perhaps)?;
                let stub = region.address + CALL_STUB;
                match inject::call(stopped, thread, stub, function, unwinding.frames) {
                    Ok(()) => set_told(memory, region, index, wanted).map(|()| true),
                    // Its stack has no room: nothing was called.
                    Err(error @ RelayoutError::Memory { .. }) => {
                        set_told(memory, region, index, other)?;
                        Err(error)
                    }
                    Err(error) => Err(error),
                }
            });
            match called {
                Ok((true, _)) => return Ok(true),
                Ok((false, _)) | Err(RelayoutError::Memory { .. }) => {}
                // It had no CPU to stop on, or has just ended, and calls nothing.
                Err(RelayoutError::NotStopping { .. } | RelayoutError::Gone { .. })
                    if crate::region::told(&process.memory, region, index)? == other => {}
                Err(error) => return Err(error),
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(RelayoutError::Refused {
        pid,
        call: "tell its unwinder of the moved code: no thread of it waits where the allocator is not in use",
        source: std::io::Error::from_raw_os_error(libc::EBUSY),
    })
}
