//! What an instruction's operands read and write.

use iced_x86::{Instruction, OpAccess, OpKind, Register};

/// The slot that a call or jump through `slot(%rip)` reads. One with a segment's prefix is none:
/// from FS or GS on it reads elsewhere, and any other has to be copied with it.
pub(crate) fn got_slot(instruction: &Instruction) -> Option<u64> {
    (instruction.op_kind(0) == OpKind::Memory
        && instruction.is_ip_rel_memory_operand()
        && instruction.segment_prefix() == Register::None)
        .then(|| instruction.ip_rel_memory_address())
}

/// Whether an operand's access may change it.
pub(crate) fn writes(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
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
