//! Replies of the transmission phase, as bytes.

use super::{Errno, Style};

const SIMPLE_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_MAGIC: u32 = 0x668e_33ef;
const EXTENDED_MAGIC: u32 = 0x6e8a_278c;
const FLAG_DONE: u16 = 1;

/// Types of reply chunks.
#[derive(Clone, Copy)]
#[repr(u16)]
enum Chunk {
    None = 0,
    Data = 1,
    BlockStatus = 5,
    BlockStatusExtended = 6,
    Error = 0x8001,
}

/// The extent is not allocated.
pub const STATE_HOLE: u32 = 1;
/// The extent reads as zeros.
pub const STATE_ZERO: u32 = 2;
/// The number under which `base:allocation` is negotiated.
pub const ALLOCATION_CONTEXT: u32 = 1;

/// A run of bytes with one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// How long.
    pub len_bytes: u64,
    /// `STATE_…`.
    pub state: u32,
}

/// To which request the reply belongs, and how it looks.
#[derive(Debug, Clone, Copy)]
pub struct Address {
    /// The style of the connection.
    pub style: Style,
    /// The request's cookie.
    pub cookie: u64,
    /// The request's offset.
    pub offset: u64,
}

/// The front of a reply: at most 40 bytes.
#[derive(Debug, Clone, Copy)]
pub struct ReplyHeader {
    bytes: [u8; 40],
    len: usize,
}

impl ReplyHeader {
    fn new() -> Self {
        Self {
            bytes: [0; 40],
            len: 0,
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Address {
    fn simple(&self, errno: u32) -> ReplyHeader {
        let mut header = ReplyHeader::new();
        header.push(&SIMPLE_MAGIC.to_be_bytes());
        header.push(&errno.to_be_bytes());
        header.push(&self.cookie.to_be_bytes());
        header
    }

    fn chunk(&self, chunk: Chunk, payload_bytes: u32) -> ReplyHeader {
        let mut header = ReplyHeader::new();
        let is_extended = self.style == Style::Extended;
        let magic = if is_extended {
            EXTENDED_MAGIC
        } else {
            STRUCTURED_MAGIC
        };
        header.push(&magic.to_be_bytes());
        header.push(&FLAG_DONE.to_be_bytes());
        header.push(&(chunk as u16).to_be_bytes());
        header.push(&self.cookie.to_be_bytes());
        if is_extended {
            header.push(&self.offset.to_be_bytes());
            header.push(&u64::from(payload_bytes).to_be_bytes());
        } else {
            header.push(&payload_bytes.to_be_bytes());
        }
        header
    }

    /// Success without data.
    pub fn done(&self) -> ReplyHeader {
        match self.style {
            Style::Simple | Style::Structured => self.simple(0),
            Style::Extended => self.chunk(Chunk::None, 0),
        }
    }

    /// The front of the answer to a read: `len_bytes` of data follow.
    pub fn data(&self, len_bytes: u32) -> ReplyHeader {
        match self.style {
            Style::Simple => self.simple(0),
            // A chunk of data must hold some.
            _ if len_bytes == 0 => self.chunk(Chunk::None, 0),
            _ => {
                let mut header = self.chunk(Chunk::Data, len_bytes + 8);
                header.push(&self.offset.to_be_bytes());
                header
            }
        }
    }

    /// Failure, with a text for people where there is room for it.
    pub fn error(&self, errno: Errno, message: &str, out: &mut Vec<u8>) {
        if self.style == Style::Simple {
            out.extend_from_slice(self.simple(errno as u32).bytes());
            return;
        }
        let message = &message.as_bytes()[..message.len().min(256)];
        let len = u16::try_from(message.len()).unwrap_or(0);
        let header = self.chunk(Chunk::Error, 6 + u32::from(len));
        out.extend_from_slice(header.bytes());
        out.extend_from_slice(&(errno as u32).to_be_bytes());
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(message);
    }

    /// Which parts hold data.
    pub fn block_status(&self, extents: &[Extent], out: &mut Vec<u8>) {
        let count = u32::try_from(extents.len()).unwrap_or(0);
        if self.style == Style::Extended {
            let header = self.chunk(Chunk::BlockStatusExtended, 8 + 16 * count);
            out.extend_from_slice(header.bytes());
            out.extend_from_slice(&ALLOCATION_CONTEXT.to_be_bytes());
            out.extend_from_slice(&count.to_be_bytes());
            for extent in extents {
                out.extend_from_slice(&extent.len_bytes.to_be_bytes());
                out.extend_from_slice(&u64::from(extent.state).to_be_bytes());
            }
            return;
        }
        let header = self.chunk(Chunk::BlockStatus, 4 + 8 * count);
        out.extend_from_slice(header.bytes());
        out.extend_from_slice(&ALLOCATION_CONTEXT.to_be_bytes());
        for extent in extents {
            let len = u32::try_from(extent.len_bytes).unwrap_or(u32::MAX);
            out.extend_from_slice(&len.to_be_bytes());
            out.extend_from_slice(&extent.state.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(style: Style) -> Address {
        Address {
            style,
            cookie: 0x0102_0304_0506_0708,
            offset: 0x1000,
        }
    }

    #[test]
    fn replies_have_the_lengths_of_the_specification() {
        assert_eq!(address(Style::Simple).done().bytes().len(), 16);
        assert_eq!(address(Style::Structured).data(512).bytes().len(), 28);
        assert_eq!(address(Style::Structured).data(0).bytes().len(), 20);
        assert_eq!(address(Style::Extended).done().bytes().len(), 32);
        assert_eq!(address(Style::Extended).data(512).bytes().len(), 40);
        let mut out = Vec::new();
        address(Style::Structured).error(Errno::NoSpace, "full", &mut out);
        assert_eq!(out.len(), 20 + 6 + 4);
        assert_eq!(out[16..20], 10_u32.to_be_bytes());
        assert_eq!(out[20..24], 28_u32.to_be_bytes());
        out.clear();
        let extent = Extent {
            len_bytes: 4096,
            state: STATE_HOLE | STATE_ZERO,
        };
        address(Style::Extended).block_status(&[extent; 2], &mut out);
        assert_eq!(out.len(), 32 + 8 + 2 * 16);
        assert_eq!(out[24..32], 40_u64.to_be_bytes());
    }
}
