//! A process and those that were forked from it without an `execve`, as PostgreSQL forks a backend
//! for each connection: they have its addresses, and each a copy of its code. A layout is put in
//! force in all of them.
//!
//! Who is forked later inherits everything: patches, code cache, and where the unwinder is led. Who
//! lives already gets a copy at the same addresses ([`join`]).

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use host::Roots;

use crate::machine::NR_MMAP;
use crate::patch::calls;
use crate::patch::manifest::{AppliedPatch, Manifest, Region};
use crate::patch::region::{HEADER_BYTES, is_complete, is_ours, set_complete, write_header};
use crate::patch::unwinder::Unwinder;
use crate::process::Process;
use crate::{ProcessMemory, RelayoutError};

/// Code is copied in pieces of this size.
const CHUNK: usize = 1 << 20;

/// The living members of the family, apart from the process that the manifest names. Descendants,
/// and whoever has memory of ours: a parent may have ended.
pub(crate) fn members(manifest: &Manifest) -> Vec<Process> {
    let roots = Roots::default();
    let has_program = |pid: &u32| {
        let inode = fs::metadata(format!("/proc/{pid}/exe")).map(|metadata| metadata.ino());
        inode.is_ok_and(|inode| inode == manifest.exe_inode)
    };
    let mut candidates = host::all_pids(&roots).unwrap_or_default();
    candidates.retain(|pid| *pid != manifest.pid && has_program(pid));
    if candidates.is_empty() {
        return Vec::new();
    }
    let descendants = host::family(&roots, manifest.pid);
    let mut members: Vec<Process> = candidates
        .into_iter()
        .filter_map(|pid| Process::open(pid).ok())
        .filter(|process| process.stack_start == manifest.stack_start)
        .collect();
    members.retain(|process| {
        let name = (process.pid, process.start_time);
        let has_ours = |region: &Region| {
            let mark = process.memory.read(region.address, region.mark.0.len());
            mark.is_ok_and(|mark| mark == region.mark.0)
        };
        descendants.contains(&name)
            || manifest.members.contains(&name)
            || manifest.regions.iter().any(has_ours)
    });
    members
}

/// Whether a member has all of these regions, complete.
pub(crate) fn has_all(process: &Process, regions: &[Region]) -> Result<bool, RelayoutError> {
    let maps = process.maps()?;
    let memory = &process.memory;
    Ok(regions.iter().all(|region| {
        is_ours(memory, &maps, region) && (!region.is_code || is_complete(memory, region))
    }))
}

/// Gives a member the regions that it lacks, at the leader's addresses. `unwinder` is the leader's.
pub(crate) fn join(
    leader: &ProcessMemory,
    member: &Process,
    regions: &[Region],
    unwinder: Option<&Unwinder>,
    stub: &AppliedPatch,
) -> Result<(), RelayoutError> {
    member.preflight()?;
    let maps = member.maps()?;
    if unwinder.is_some_and(|unwinder| !unwinder.object.is_in(&maps)) {
        return Err(RelayoutError::Refused {
            pid: member.pid,
            call: "be given moved code: its unwinder is not where its parent's is",
            source: std::io::Error::from_raw_os_error(libc::ENOENT),
        });
    }
    for region in regions {
        let maps = member.maps()?;
        if !is_ours(&member.memory, &maps, region) {
            map(member, region, stub)?;
        }
        write_header(&member.memory, region)?;
        if !region.is_code {
            continue;
        }
        if !is_complete(&member.memory, region) {
            let mut at = region.address + HEADER_BYTES;
            let end = region.end();
            while at < end {
                let count = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
                member.memory.write(at, &leader.read(at, count)?)?;
                at += count as u64;
            }
            set_complete(&member.memory, region)?;
        }
    }
    Ok(())
}

/// Maps a region into a process. The stub has been announced, and so has the region.
pub(crate) fn map(
    process: &Process,
    region: &Region,
    stub: &AppliedPatch,
) -> Result<(), RelayoutError> {
    let access = if region.is_code {
        libc::PROT_EXEC
    } else {
        libc::PROT_WRITE
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let arguments = [
        region.address,
        region.bytes,
        u64::try_from(libc::PROT_READ | access).unwrap_or(0),
        u64::try_from(flags).unwrap_or(0),
        u64::MAX,
        0,
    ];
    let result = calls::syscall(process, stub, NR_MMAP, arguments)?;
    if result.cast_unsigned() == region.address {
        return Ok(());
    }
    Err(RelayoutError::Refused {
        pid: process.pid,
        call: "map memory for the code cache",
        source: std::io::Error::from_raw_os_error(i32::try_from(-result).unwrap_or(libc::ENOMEM)),
    })
}
