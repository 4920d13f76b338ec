//! What one instruction does to the flow of control.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::error::Skip;
use crate::image::Image;

/// How an instruction goes on. Targets are vaddrs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// To the next one.
    Next,
    Jump(u64),
    Branch(u64),
    /// Calls, then the next one.
    Call(u64),
    IndirectJump,
    /// `ret` and its kind: nowhere that code says.
    Return,
    /// Traps. A signal handler may go on behind it.
    Trap,
    /// Not to be moved; may go on at the next one and at this address.
    Stays(Skip, Option<u64>),
}

impl Kind {
    pub(crate) fn of(image: &Image, instruction: &Instruction) -> Self {
        // A displacement relative to the 32-bit instruction pointer: no compiler writes one.
        if instruction.memory_base() == Register::EIP {
            return Self::Stays(Skip::Undecodable, None);
        }
        let near = instruction.op_count() > 0 && instruction.op_kind(0) == OpKind::NearBranch64;
        let target = instruction.near_branch_target();
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::IndirectCall | FlowControl::Interrupt
                if instruction.is_call_far_indirect() =>
            {
                Self::Stays(Skip::Undecodable, None)
            }
            FlowControl::Next | FlowControl::Interrupt => Self::Next,
            FlowControl::IndirectCall => match got_slot(instruction) {
                Some(slot) if is_caller_sensitive_slot(image, slot) => {
                    Self::Stays(Skip::CallerSensitive, None)
                }
                _ => Self::Next,
            },
            FlowControl::UnconditionalBranch if near => Self::Jump(target),
            FlowControl::ConditionalBranch if near && instruction.is_jcc_short_or_near() => {
                Self::Branch(target)
            }
            FlowControl::ConditionalBranch if near => Self::Stays(Skip::ShortBranch, Some(target)),
            FlowControl::Call if near && is_caller_sensitive(image, target) => {
                Self::Stays(Skip::CallerSensitive, None)
            }
            FlowControl::Call if near => Self::Call(target),
            // The kernel's entry, which comes back.
            FlowControl::Call if instruction.mnemonic() == Mnemonic::Syscall => Self::Next,
            FlowControl::IndirectBranch if instruction.is_jmp_near_indirect() => Self::IndirectJump,
            FlowControl::Return => Self::Return,
            FlowControl::Exception => Self::Trap,
            FlowControl::XbeginXabortXend if instruction.mnemonic() == Mnemonic::Xbegin => {
                Self::Stays(Skip::Transaction, near.then_some(target))
            }
            FlowControl::XbeginXabortXend => Self::Next,
            _ => Self::Stays(Skip::Undecodable, None),
        }
    }

    /// Whether a block ends behind it.
    pub(crate) fn ends_block(self) -> bool {
        !matches!(self, Self::Next | Self::Call(_))
    }
}

/// The slot that a call or jump through `slot(%rip)` reads. One with a segment's prefix is none:
/// from FS or GS on it reads elsewhere, and any other has to be copied with it.
pub(crate) fn got_slot(instruction: &Instruction) -> Option<u64> {
    (instruction.op_kind(0) == OpKind::Memory
        && instruction.is_ip_rel_memory_operand()
        && instruction.segment_prefix() == Register::None)
        .then(|| instruction.ip_rel_memory_address())
}

/// Functions that remember or judge the address that they return to: it must be the old one, or a
/// later `longjmp` would find unmapped memory, and `dlsym` no object that calls it.
const CALLER_SENSITIVE: &[&str] = &[
    "setjmp",
    "_setjmp",
    "__setjmp",
    "sigsetjmp",
    "__sigsetjmp",
    "savectx",
    "getcontext",
    "swapcontext",
    "vfork",
    "__vfork",
    "dlopen",
    "dlmopen",
    "dlsym",
    "dlvsym",
    "__libc_dlopen_mode",
    "__libc_dlsym",
    "__libc_dlvsym",
    "_mcount",
    "mcount",
    "__fentry__",
    // Goes on one byte behind the address that it returns to (-fsplit-stack).
    "__morestack",
    "__morestack_non_split",
];

pub(crate) fn is_caller_sensitive_slot(image: &Image, slot: u64) -> bool {
    image
        .got_symbol(slot)
        .is_some_and(|name| CALLER_SENSITIVE.contains(&name))
}

/// Whether a direct call's target is such a function, or jumps on to one.
pub(crate) fn is_caller_sensitive(image: &Image, target: u64) -> bool {
    image
        .elf
        .names(target)
        .any(|name| CALLER_SENSITIVE.contains(&name))
        || image.caller_sensitive.contains(&target)
        || image
            .plt_slot(target)
            .is_some_and(|slot| is_caller_sensitive_slot(image, slot))
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    #[test]
    fn a_slot_is_read_without_a_segment() {
        let slot = |bytes: &[u8]| {
            got_slot(&Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode())
        };
        // call *0x10(%rip)
        assert_eq!(slot(&[0xff, 0x15, 0x10, 0, 0, 0]), Some(0x1016));
        // The same from the stack's segment, FS and GS.
        for prefix in [0x36, 0x64, 0x65] {
            assert_eq!(slot(&[prefix, 0xff, 0x15, 0x10, 0, 0, 0]), None);
        }
    }
}
