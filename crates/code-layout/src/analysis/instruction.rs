//! What one instruction does to the flow of control.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::analysis::image::Image;
use crate::analysis::operands::got_slot;
use crate::error::Skip;

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
                Some(slot) if image.is_caller_sensitive_slot(slot) => {
                    Self::Stays(Skip::CallerSensitive, None)
                }
                _ => Self::Next,
            },
            FlowControl::UnconditionalBranch if near => Self::Jump(target),
            FlowControl::ConditionalBranch if near && instruction.is_jcc_short_or_near() => {
                Self::Branch(target)
            }
            FlowControl::ConditionalBranch if near => Self::Stays(Skip::ShortBranch, Some(target)),
            FlowControl::Call if near && image.is_caller_sensitive(target) => {
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
