//! The program that tells a group's packets apart.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

/// `BPF_PROG_LOAD` and `BPF_PROG_TYPE_SCHED_CLS` of linux/bpf.h.
const PROG_LOAD: libc::c_int = 5;
const TYPE_SCHED_CLS: u32 = 3;
/// Number of the helper `bpf_skb_ancestor_cgroup_id`, since Linux 4.19.
const ANCESTOR_CGROUP_ID: i32 = 83;
/// The group may lie so deep. The helper gives 0 for levels that there are not.
const LEVELS: i32 = 16;

/// One instruction: opcode, destination and source register, offset, constant.
fn instruction(opcode: u8, destination: u8, source: u8, offset: i16, constant: i32) -> u64 {
    let [o0, o1] = offset.to_ne_bytes();
    let [c0, c1, c2, c3] = constant.to_ne_bytes();
    u64::from_ne_bytes([opcode, source << 4 | destination, o0, o1, c0, c1, c2, c3])
}

/// Returns the class where one of the groups above a packet's socket is `group`, else 0. Every
/// level is asked: how deep the group lies cannot be told in a namespace of control groups.
fn instructions(group: u64, class: u32) -> Vec<u64> {
    let [a, b, c, d, e, f, g, h] = group.to_ne_bytes();
    let (low, high) = (
        i32::from_ne_bytes([a, b, c, d]),
        i32::from_ne_bytes([e, f, g, h]),
    );
    let (low, high) = if cfg!(target_endian = "little") {
        (low, high)
    } else {
        (high, low)
    };
    let mut program = vec![
        // r6 = r1, the packet; r7 = the group
        instruction(0xbf, 6, 1, 0, 0),
        instruction(0x18, 7, 0, 0, low),
        instruction(0, 0, 0, 0, high),
    ];
    for level in 0..LEVELS {
        // The rest of this turn, four instructions for each further turn, and the two that return
        // 0.
        let to_match = i16::try_from(4 * (LEVELS - 1 - level) + 2).unwrap_or(0);
        program.extend([
            // r0 = bpf_skb_ancestor_cgroup_id(r6, level); if r0 == r7, it is this class
            instruction(0xbf, 1, 6, 0, 0),
            instruction(0xb7, 2, 0, 0, level),
            instruction(0x85, 0, 0, 0, ANCESTOR_CGROUP_ID),
            instruction(0x1d, 0, 7, to_match, 0),
        ]);
    }
    program.extend([
        // return 0
        instruction(0xb7, 0, 0, 0, 0),
        instruction(0x95, 0, 0, 0, 0),
        // return class
        instruction(0xb4, 0, 0, 0, class.cast_signed()),
        instruction(0x95, 0, 0, 0, 0),
    ]);
    program
}

/// The beginning of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

/// Loads the program. It lives as long as a filter holds it.
pub(super) fn load(group: u64, class: u32) -> io::Result<OwnedFd> {
    let program = instructions(group, class);
    let license = c"Apache-2.0";
    let mut attributes = Load {
        kind: TYPE_SCHED_CLS,
        count: u32::try_from(program.len()).map_err(io::Error::other)?,
        instructions: program.as_ptr().addr() as u64,
        license: license.as_ptr().addr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name: *b"slackline\0\0\0\0\0\0\0",
    };
    // SAFETY: the kernel reads `Load`'s bytes from a live place. Its pointers lead to `program` and
    // `license`, which live until the end of this function. No log is asked for, so nothing is
    // written.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            PROG_LOAD,
            &raw mut attributes,
            size_of::<Load>(),
        )
    };
    let fd = match libc::c_int::try_from(result) {
        Ok(fd) if fd >= 0 => fd,
        _ => return Err(io::Error::last_os_error()),
    };
    // SAFETY: the kernel has just opened it for this process, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
