//! Submission entries and completions.

use super::pdu::ENTRY_BYTES;
use super::{number, number16, number32};

/// What a command ended with: Status Code Type and Status Code, and whether to try again is
/// useless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Status Code Type in the upper byte, Status Code in the lower one.
    pub code: u16,
    /// The same command would fail again.
    pub is_final: bool,
}

impl Status {
    const fn last(code: u16) -> Self {
        Self {
            code,
            is_final: true,
        }
    }

    const fn again(code: u16) -> Self {
        Self {
            code,
            is_final: false,
        }
    }

    /// The command is done.
    pub const SUCCESS: Self = Self::again(0x00);
    /// Invalid Command Opcode.
    pub const INVALID_OPCODE: Self = Self::last(0x01);
    /// Invalid Field in Command.
    pub const INVALID_FIELD: Self = Self::last(0x02);
    /// Internal Error.
    pub const INTERNAL: Self = Self::again(0x06);
    /// Command Abort Requested.
    pub const ABORTED: Self = Self::last(0x07);
    /// Invalid Namespace or Format.
    pub const INVALID_NAMESPACE: Self = Self::last(0x0b);
    /// Command Sequence Error.
    pub const SEQUENCE: Self = Self::last(0x0c);
    /// Data SGL Length Invalid.
    pub const SGL_LENGTH: Self = Self::last(0x0f);
    /// SGL Descriptor Type Invalid.
    pub const SGL_TYPE: Self = Self::last(0x11);
    /// SGL Offset Invalid.
    pub const SGL_OFFSET: Self = Self::last(0x16);
    /// Namespace is Write Protected.
    pub const WRITE_PROTECTED: Self = Self::last(0x20);
    /// Transient Transport Error: data arrived damaged.
    pub const TRANSPORT: Self = Self::again(0x22);
    /// LBA Out of Range.
    pub const OUT_OF_RANGE: Self = Self::last(0x80);
    /// Capacity Exceeded.
    pub const CAPACITY: Self = Self::last(0x81);
    /// Asynchronous Event Request Limit Exceeded.
    pub const EVENT_LIMIT: Self = Self::last(0x105);
    /// Invalid Log Page.
    pub const INVALID_LOG: Self = Self::last(0x109);
    /// Feature Identifier Not Saveable.
    pub const NOT_SAVEABLE: Self = Self::last(0x10d);
    /// Feature Not Changeable.
    pub const NOT_CHANGEABLE: Self = Self::last(0x10e);
    /// Connect Incompatible Format.
    pub const CONNECT_FORMAT: Self = Self::last(0x180);
    /// Connect Controller Busy.
    pub const CONNECT_BUSY: Self = Self::again(0x181);
    /// Connect Invalid Parameters.
    pub const CONNECT_PARAMETER: Self = Self::last(0x182);
    /// Connect Invalid Host.
    pub const CONNECT_HOST: Self = Self::last(0x184);
    /// Write Fault.
    pub const WRITE_FAULT: Self = Self::again(0x280);
    /// Unrecovered Read Error.
    pub const READ_ERROR: Self = Self::again(0x281);

    /// The status field of a completion, with a phase tag of 0 as on all fabrics.
    pub fn field(self) -> u16 {
        self.code << 1 | u16::from(self.is_final) << 15
    }
}

/// Where a command's data are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sgl {
    /// They are carried by data PDUs.
    Transport {
        /// Bytes.
        len_bytes: u32,
    },
    /// They are in the command's capsule.
    Capsule {
        /// Where in the capsule's data.
        offset: u64,
        /// Bytes.
        len_bytes: u32,
    },
    /// Another type.
    Other,
}

/// A submission entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubmissionEntry(pub [u8; ENTRY_BYTES]);

/// Fabrics commands have this opcode.
pub const FABRICS: u8 = 0x7f;

impl SubmissionEntry {
    /// The opcode.
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// The command's number on its queue.
    pub fn cid(&self) -> u16 {
        number16(&self.0, 2)
    }

    /// The namespace.
    pub fn namespace(&self) -> u32 {
        number32(&self.0, 4)
    }

    /// The type of a fabrics command.
    pub fn fabrics_type(&self) -> u8 {
        self.0[4]
    }

    /// Command dword `index`, from 0 to 15.
    pub fn dword(&self, index: usize) -> u32 {
        number32(&self.0, 4 * index)
    }

    /// A field of 16 bits at a byte of the entry.
    pub fn u16_at(&self, at: usize) -> u16 {
        number16(&self.0, at)
    }

    /// A field of 64 bits at a byte of the entry.
    pub fn u64_at(&self, at: usize) -> u64 {
        number(&self.0, at, 8)
    }

    /// Flags that no command may have here: fused operations, and addresses of pages.
    pub fn has_wrong_flags(&self) -> bool {
        let flags = self.0[1];
        flags & 3 != 0 || flags >> 6 != 1
    }

    /// Where the data are.
    pub fn sgl(&self) -> Sgl {
        let len_bytes = number32(&self.0, 32);
        match self.0[39] {
            // Transport SGL Data Block, with a subtype of the transport's own.
            0x5a => Sgl::Transport { len_bytes },
            // SGL Data Block, by an offset.
            0x01 => Sgl::Capsule {
                offset: number(&self.0, 24, 8),
                len_bytes,
            },
            _ => Sgl::Other,
        }
    }
}

/// A completion entry.
pub fn completion(result: u64, head: u16, cid: u16, status: Status) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&result.to_le_bytes());
    bytes[8..10].copy_from_slice(&head.to_le_bytes());
    bytes[12..14].copy_from_slice(&cid.to_le_bytes());
    bytes[14..].copy_from_slice(&status.field().to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_fields_are_those_of_the_specification() {
        assert_eq!(Status::SUCCESS.field(), 0);
        // Invalid Field in Command with Do Not Retry.
        assert_eq!(Status::INVALID_FIELD.field(), 0x8004);
        // Command specific (type 1), Connect Invalid Parameters (82h).
        assert_eq!(
            Status::CONNECT_PARAMETER.field(),
            0x8000 | 1 << 9 | 0x82 << 1
        );
        // Media error (type 2), Unrecovered Read Error (81h).
        assert_eq!(Status::READ_ERROR.field(), 2 << 9 | 0x81 << 1);
        let bytes = completion(7, 3, 0x1234, Status::OUT_OF_RANGE);
        assert_eq!(
            bytes,
            [7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0x34, 0x12, 0x00, 0x81]
        );
    }
}
