//! The machine whose code is laid out again: x86-64. Here are its registers and its system calls,
//! by the kernel's own numbers.
//!
//! The C library has such numbers only for the machine that this crate is built for. So with
//! numbers of its own the crate builds for every machine, without a `cfg`. [`check_machine`] keeps
//! it from other processes on all but x86-64.

use std::env::consts::ARCH;

use host::{Probe, ProbeState};

use crate::RelayoutError;

/// The general registers: `struct user_regs_struct` in arch/x86/include/asm/user_64.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Registers {
    pub(crate) r15: u64,
    pub(crate) r14: u64,
    pub(crate) r13: u64,
    pub(crate) r12: u64,
    pub(crate) rbp: u64,
    pub(crate) rbx: u64,
    pub(crate) r11: u64,
    pub(crate) r10: u64,
    pub(crate) r9: u64,
    pub(crate) r8: u64,
    pub(crate) rax: u64,
    pub(crate) rcx: u64,
    pub(crate) rdx: u64,
    pub(crate) rsi: u64,
    pub(crate) rdi: u64,
    /// The number of the system call that the thread is in; negative where it is in none.
    pub(crate) orig_rax: u64,
    pub(crate) rip: u64,
    pub(crate) cs: u64,
    pub(crate) eflags: u64,
    pub(crate) rsp: u64,
    pub(crate) ss: u64,
    pub(crate) fs_base: u64,
    pub(crate) gs_base: u64,
    pub(crate) ds: u64,
    pub(crate) es: u64,
    pub(crate) fs: u64,
    pub(crate) gs: u64,
}

/// The requests of ptrace that read and write them (arch/x86/include/uapi/asm/ptrace-abi.h).
pub(crate) const PTRACE_GETREGS: libc::c_uint = 12;
pub(crate) const PTRACE_SETREGS: libc::c_uint = 13;

/// System calls that a process is made to do (arch/x86/entry/syscalls/syscall_64.tbl).
pub(crate) const NR_MMAP: u64 = 9;
pub(crate) const NR_MUNMAP: u64 = 11;
pub(crate) const NR_RESTART_SYSCALL: u64 = 219;

/// Whether the code of this machine's processes can be laid out again.
///
/// # Errors
/// [`RelayoutError::OtherMachine`].
pub fn check_machine() -> Result<(), RelayoutError> {
    check(ARCH)
}

fn check(machine: &'static str) -> Result<(), RelayoutError> {
    match machine {
        "x86_64" => Ok(()),
        machine => Err(RelayoutError::OtherMachine { machine }),
    }
}

/// [`check_machine`] as a line of `slackline doctor`.
#[must_use]
pub fn probe() -> Probe {
    probed(ARCH)
}

fn probed(machine: &'static str) -> Probe {
    Probe {
        name: "machine code",
        state: match check(machine) {
            Ok(()) => ProbeState::Available {
                detail: "x86-64".to_owned(),
            },
            Err(error) => ProbeState::Missing {
                why: error.to_string(),
            },
        },
        needed_for: "relayout",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_machine_is_told_what_is_missing_by_the_command_and_by_doctor() {
        let error = check("aarch64").unwrap_err();
        assert!(error.is_missing_privilege());
        let said = "relayout rewrites x86-64 machine code; this machine is aarch64";
        assert_eq!(error.to_string(), said);
        let probe = probed("aarch64");
        assert!(matches!(probe.state, ProbeState::Missing { why } if why == said));
        assert!(check("x86_64").is_ok() && probed("x86_64").is_available());
    }

    #[test]
    fn the_registers_are_as_many_as_the_kernel_s() {
        // ELF_NGREG in arch/x86/include/asm/elf.h.
        assert_eq!(size_of::<Registers>(), 27 * 8);
    }
}
