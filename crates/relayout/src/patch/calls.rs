//! Making a running process do something: which of its threads does it, and where the stub lies
//! that it runs.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::is_of_thread;
use crate::patch::manifest::{AppliedPatch, Manifest};
use crate::process::Process;
use crate::process::cave;
use crate::process::handlers::continuations;
use crate::process::inject::{self, STUB_BYTES};
use crate::process::maps::Mapping;
use crate::process::stop::{
    declined, not_stopping, one_stopped, state, stopped, threads_by_chance,
};
use crate::{Declined, RelayoutError};

/// How long a thread may take to leave the stub of one who was killed: some instructions, once it
/// gets a CPU.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// A system call by one thread of a process, through a stub in its own text that is there for that
/// long only. The stub has been announced.
pub(crate) fn syscall(
    process: &Process,
    stub: &AppliedPatch,
    number: u64,
    arguments: [u64; 6],
) -> Result<i64, RelayoutError> {
    let memory = &process.memory;
    let threads = threads_by_chance(process.pid)?;
    if threads.is_empty() {
        return Err(declined(process.pid, Declined::Seccomp));
    }
    lay_stub(process, stub)?;
    let called = one_stopped(process.pid, memory, &threads, |stopped| {
        let thread = stopped.threads[0];
        inject::syscall(stopped, thread, stub.address, number, arguments)
    });
    // After any other error a thread may still be in it.
    if called.is_ok() || called.as_ref().is_err_and(is_of_thread) {
        memory.write(stub.address, &stub.old.0)?;
    }
    Ok(called?.0)
}

/// Writes the stub, where the bytes are there that it was announced for.
fn lay_stub(process: &Process, stub: &AppliedPatch) -> Result<(), RelayoutError> {
    take_out_stub(process, stub)?;
    let memory = &process.memory;
    if memory.read(stub.address, stub.old.0.len())? != stub.old.0 {
        let why = format!(
            "the unused bytes at {:#x} behind its code are in use",
            stub.address
        );
        return Err(process.unfit(&process.exe, why));
    }
    memory.write(stub.address, &stub.new.0)
}

/// Takes out a stub that is still there, of one who was killed in the middle of a call, once no
/// thread is in it any more. Where something else is, that stays.
pub(crate) fn take_out_stub(process: &Process, stub: &AppliedPatch) -> Result<(), RelayoutError> {
    let (pid, memory) = (process.pid, &process.memory);
    let size = stub.new.0.len();
    let is_in_it = |address| (stub.address..stub.address + size as u64).contains(&address);
    let since = Instant::now();
    loop {
        match memory.read(stub.address, size) {
            Ok(found) if found == stub.new.0 => {}
            // Unmapped with its library, or not ours.
            Ok(_) | Err(RelayoutError::Memory { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
        let maps = process.maps()?;
        let (inside, _) = stopped(pid, memory, |process| {
            let mut threads = continuations(process, &maps)?.into_iter();
            let inside = threads.find(|(_, address)| is_in_it(*address));
            match inside {
                Some(_) if process.is_group_stopped => {
                    return Err(declined(pid, Declined::Stopped));
                }
                Some(_) => {}
                None => memory.write(stub.address, &stub.old.0)?,
            }
            Ok(inside.map(|(thread, _)| thread))
        })?;
        match inside {
            None => return Ok(()),
            Some(thread) if since.elapsed() > LEAVE_LIMIT => {
                let state = state(pid, thread);
                return Err(not_stopping(pid, thread, LEAVE_LIMIT, state));
            }
            Some(_) => sleep(BETWEEN_LOOKS),
        }
    }
}

/// Where the stub goes: where it was the last time, or the first room that there is.
pub(crate) fn find_stub(
    process: &Process,
    manifest: &Manifest,
    maps: &[Mapping],
) -> Result<AppliedPatch, RelayoutError> {
    if let Some(known) = &manifest.stub {
        let found = process.memory.read(known.address, known.old.0.len());
        if found.is_ok_and(|found| found == known.old.0 || found == known.new.0) {
            return Ok(known.clone());
        }
    }
    new_stub(process, maps)
}

/// A stub in the first room that there is.
fn new_stub(process: &Process, maps: &[Mapping]) -> Result<AppliedPatch, RelayoutError> {
    let memory = &process.memory;
    let address = cave::find(memory, maps)?.ok_or_else(|| {
        let why = format!("no object of it has {STUB_BYTES} unused bytes behind its code");
        process.unfit(&process.exe, why)
    })?;
    let new = inject::syscall_stub();
    let old = memory.read(address, new.len())?;
    let stub = AppliedPatch {
        address,
        old: crate::patch::manifest::Bytes(old),
        new: crate::patch::manifest::Bytes(new),
    };
    Ok(stub)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};

    use super::*;

    /// Numbers in arch/x86/entry/syscalls/syscall_64.tbl.
    const NR_POLL: u64 = 7;
    const NR_GETPID: u64 = 39;

    #[test]
    fn a_stub_that_a_thread_is_still_in_stays_until_it_has_left() {
        let mut cat = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut input, mut output) = (cat.stdin.take().unwrap(), cat.stdout.take().unwrap());
        let mut echo = |byte: u8| {
            input.write_all(&[byte]).unwrap();
            let mut read = [0];
            output.read_exact(&mut read).map(|()| read[0])
        };
        // From now on it waits for input.
        assert_eq!(echo(b'a').unwrap(), b'a');
        let process = Process::open(cat.id()).unwrap();
        let maps = process.maps().unwrap();
        let stub = new_stub(&process, &maps).unwrap();
        lay_stub(&process, &stub).unwrap();
        // What a writer leaves behind who is killed in the middle of a call that takes its time.
        let ms = 300;
        let since = Instant::now();
        one_stopped(cat.id(), &process.memory, &[cat.id()], |stopped| {
            let arguments = [0, 0, ms, 0, 0, 0];
            inject::begin(stopped.memory, cat.id(), stub.address, NR_POLL, arguments)
        })
        .unwrap();
        let pid = syscall(&process, &stub, NR_GETPID, [0; 6]).unwrap();
        assert_eq!(u32::try_from(pid).unwrap(), cat.id());
        assert!(since.elapsed() > Duration::from_millis(ms / 2));
        let size = stub.old.0.len();
        assert_eq!(process.memory.read(stub.address, size).unwrap(), stub.old.0);
        assert_eq!(echo(b'b').unwrap(), b'b');
        cat.kill().unwrap();
        cat.wait().unwrap();
    }
}
