//! PDUs of the TCP transport: headers are read and checked, answers are written.

use crc32c::crc32c;

use super::{H2C_DATA_BYTES, IN_CAPSULE_BYTES, number16, number32};

const ICREQ: u8 = 0;
const ICRESP: u8 = 1;
const H2C_TERMINATE: u8 = 2;
const C2H_TERMINATE: u8 = 3;
const CAPSULE_COMMAND: u8 = 4;
const CAPSULE_RESPONSE: u8 = 5;
const H2C_DATA: u8 = 6;
const C2H_DATA: u8 = 7;
const R2T: u8 = 9;

const FLAG_HEADER_DIGEST: u8 = 1 << 0;
const FLAG_DATA_DIGEST: u8 = 1 << 1;
const FLAG_LAST: u8 = 1 << 2;
const FLAG_SUCCESS: u8 = 1 << 3;

/// Bytes of the header that all PDUs begin with.
const COMMON_BYTES: usize = 8;
/// Bytes of a digest.
pub const DIGEST_BYTES: usize = 4;
/// Bytes of a submission entry.
pub const ENTRY_BYTES: usize = 64;
/// Bytes of a header in error that a termination quotes at most.
const QUOTED_BYTES: usize = 128;
/// The largest data offset: the alignment that a host may ask for goes up to 128 bytes.
const DATA_OFFSET_MAX: usize = 128;

/// Digests that the host and the server agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digests {
    /// Headers have a CRC32C.
    pub header: bool,
    /// Data have a CRC32C.
    pub data: bool,
}

impl Digests {
    fn header_bytes(self) -> usize {
        if self.header { DIGEST_BYTES } else { 0 }
    }

    /// Bytes of the digest after data.
    pub fn data_bytes(self) -> usize {
        if self.data { DIGEST_BYTES } else { 0 }
    }
}

/// What makes a connection impossible to go on with: the Fatal Error Status of the termination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Fatal {
    /// A field of a header has no such value.
    InvalidHeader = 1,
    /// No such PDU may come now.
    Sequence = 2,
    /// The header's digest is wrong.
    HeaderDigest = 3,
    /// Data lie outside what was asked for.
    OutOfRange = 4,
    /// A PDU has more data than it may.
    TooMuchData = 5,
    /// A parameter is not supported.
    Unsupported = 6,
}

/// A fatal error, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{fatal:?}, information {information:#x}")]
pub struct FatalError {
    /// What is wrong.
    pub fatal: Fatal,
    /// Position of the wrong field, or the received digest.
    pub information: u32,
    /// The header in error.
    pub header: Vec<u8>,
}

/// A PDU of a host, without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pdu {
    /// The first PDU of a connection.
    Initialize {
        /// Dwords that the data of C2HData PDUs are aligned to, less one.
        alignment: u8,
        /// Digests that the host asks for.
        digests: Digests,
    },
    /// A command.
    Command {
        /// The submission entry.
        entry: [u8; ENTRY_BYTES],
        /// Bytes of data in the capsule.
        data_bytes: usize,
    },
    /// Data that were asked for by an R2T.
    Data {
        /// The command.
        cid: u16,
        /// Which R2T.
        tag: u16,
        /// Where in the command's data.
        offset: u32,
        /// Bytes of data.
        data_bytes: usize,
        /// No more PDU follows for this R2T.
        is_last: bool,
    },
    /// The host ends the connection.
    Terminate,
}

/// The fields that all headers have, checked against each other.
struct Common {
    kind: u8,
    flags: u8,
    header_bytes: usize,
    data_at: usize,
    len_bytes: usize,
}

fn fault(bytes: &[u8], fatal: Fatal, information: u32) -> FatalError {
    FatalError {
        fatal,
        information,
        header: bytes[..bytes.len().min(QUOTED_BYTES)].to_vec(),
    }
}

impl Common {
    /// `agreed`: the digests, once the connection is initialized.
    fn parse(bytes: &[u8], agreed: Option<Digests>) -> Result<Self, FatalError> {
        let common = Self {
            kind: bytes[0],
            flags: bytes[1],
            header_bytes: bytes[2].into(),
            data_at: bytes[3].into(),
            len_bytes: usize::try_from(number32(bytes, 4)).unwrap_or(usize::MAX),
        };
        let wrong = |at| Err(fault(&bytes[..COMMON_BYTES], Fatal::InvalidHeader, at));
        let (header_bytes, data_max) = match common.kind {
            ICREQ => (128, 0),
            H2C_TERMINATE => (24, QUOTED_BYTES),
            CAPSULE_COMMAND => (8 + ENTRY_BYTES, IN_CAPSULE_BYTES),
            H2C_DATA => (24, H2C_DATA_BYTES as usize),
            _ => return wrong(0),
        };
        let is_first = common.kind == ICREQ;
        if is_first == agreed.is_some() && common.kind != H2C_TERMINATE {
            return Err(fault(&bytes[..COMMON_BYTES], Fatal::Sequence, 0));
        }
        if common.header_bytes != header_bytes {
            return wrong(2);
        }
        let digests = match common.kind {
            CAPSULE_COMMAND | H2C_DATA => agreed.unwrap_or_default(),
            _ => Digests::default(),
        };
        if (common.flags & FLAG_HEADER_DIGEST != 0) != digests.header {
            return wrong(1);
        }
        let bare_bytes = header_bytes + digests.header_bytes();
        if common.len_bytes == bare_bytes && common.kind != H2C_DATA {
            return Ok(Self {
                data_at: bare_bytes,
                ..common
            });
        }
        if common.kind == ICREQ || common.len_bytes < bare_bytes {
            return wrong(4);
        }
        if common.kind == H2C_TERMINATE {
            return Ok(common);
        }
        if (common.flags & FLAG_DATA_DIGEST != 0) != digests.data {
            return wrong(1);
        }
        // CPDA is 0: data begin on a multiple of four bytes.
        let is_aligned = common.data_at.is_multiple_of(4);
        if !is_aligned || !(bare_bytes..=DATA_OFFSET_MAX).contains(&common.data_at) {
            return wrong(3);
        }
        let around = common.data_at + digests.data_bytes();
        if common.len_bytes <= around {
            return wrong(4);
        }
        if common.len_bytes - around > data_max {
            let fatal = if common.kind == H2C_DATA {
                Fatal::TooMuchData
            } else {
                Fatal::InvalidHeader
            };
            return Err(fault(&bytes[..COMMON_BYTES], fatal, 4));
        }
        Ok(common)
    }
}

impl Pdu {
    /// The PDU at the front of `bytes`, and where its data begin. `None`: more is needed.
    ///
    /// # Errors
    /// The bytes are no PDU that may come now.
    pub fn parse(
        bytes: &[u8],
        agreed: Option<Digests>,
    ) -> Result<Option<(Self, usize)>, FatalError> {
        if bytes.len() < COMMON_BYTES {
            return Ok(None);
        }
        let common = Common::parse(bytes, agreed)?;
        if common.kind == H2C_TERMINATE {
            return Ok(Some((Self::Terminate, bytes.len())));
        }
        if bytes.len() < common.data_at {
            return Ok(None);
        }
        let (header, rest) = bytes.split_at(common.header_bytes);
        let digests = agreed.unwrap_or_default();
        if digests.header && number32(rest, 0) != crc32c(header) {
            return Err(fault(header, Fatal::HeaderDigest, number32(rest, 0)));
        }
        let has_data = common.len_bytes > common.data_at;
        let data_bytes = if has_data {
            common.len_bytes - common.data_at - digests.data_bytes()
        } else {
            0
        };
        let pdu = match common.kind {
            ICREQ => initialize(header)?,
            CAPSULE_COMMAND => {
                let mut entry = [0; ENTRY_BYTES];
                entry.copy_from_slice(&header[COMMON_BYTES..]);
                Self::Command { entry, data_bytes }
            }
            _ => {
                if number32(header, 16) as usize != data_bytes {
                    return Err(fault(header, Fatal::InvalidHeader, 16));
                }
                Self::Data {
                    cid: number16(header, 8),
                    tag: number16(header, 10),
                    offset: number32(header, 12),
                    data_bytes,
                    is_last: common.flags & FLAG_LAST != 0,
                }
            }
        };
        Ok(Some((pdu, common.data_at)))
    }
}

fn initialize(header: &[u8]) -> Result<Pdu, FatalError> {
    // PFV: the only version of the format is 0.
    if number16(header, 8) != 0 {
        return Err(fault(header, Fatal::Unsupported, 8));
    }
    let (alignment, digests) = (header[10], header[11]);
    if alignment > 31 {
        return Err(fault(header, Fatal::InvalidHeader, 10));
    }
    Ok(Pdu::Initialize {
        alignment,
        digests: Digests {
            header: digests & 1 != 0,
            data: digests & 2 != 0,
        },
    })
}

/// Writes the common header. Gives where the PDU begins.
fn begin(out: &mut Vec<u8>, kind: u8, flags: u8, sizes: (u8, u8, usize)) -> usize {
    let at = out.len();
    let (header_bytes, data_at, len_bytes) = sizes;
    let len = u32::try_from(len_bytes).unwrap_or(u32::MAX);
    out.extend_from_slice(&[kind, flags, header_bytes, data_at]);
    out.extend_from_slice(&len.to_le_bytes());
    at
}

fn digest_header(out: &mut Vec<u8>, at: usize, digests: Digests) {
    if digests.header {
        let digest = crc32c(&out[at..]);
        out.extend_from_slice(&digest.to_le_bytes());
    }
}

fn header_flag(digests: Digests) -> u8 {
    if digests.header {
        FLAG_HEADER_DIGEST
    } else {
        0
    }
}

/// Answers the first PDU.
pub fn initialized(digests: Digests, out: &mut Vec<u8>) {
    let at = begin(out, ICRESP, 0, (128, 0, 128));
    // The format's version, and CPDA.
    out.extend_from_slice(&[0, 0, 0]);
    out.push(u8::from(digests.header) | u8::from(digests.data) << 1);
    out.extend_from_slice(&H2C_DATA_BYTES.to_le_bytes());
    out.resize(at + 128, 0);
}

/// Tells the host why the connection ends.
pub fn terminated(fault: &FatalError, out: &mut Vec<u8>) {
    let len_bytes = 24 + fault.header.len();
    let at = begin(out, C2H_TERMINATE, 0, (24, 0, len_bytes));
    out.extend_from_slice(&(fault.fatal as u16).to_le_bytes());
    out.extend_from_slice(&fault.information.to_le_bytes());
    out.resize(at + 24, 0);
    out.extend_from_slice(&fault.header);
}

/// A completion.
pub fn response(completion: &[u8; 16], digests: Digests, out: &mut Vec<u8>) {
    let len_bytes = 24 + digests.header_bytes();
    let flags = header_flag(digests);
    let at = begin(out, CAPSULE_RESPONSE, flags, (24, 0, len_bytes));
    out.extend_from_slice(completion);
    digest_header(out, at, digests);
}

/// Asks for data of a command.
pub fn ready_to_transfer(
    (cid, tag): (u16, u16),
    (offset, len_bytes): (u32, u32),
    digests: Digests,
    out: &mut Vec<u8>,
) {
    let pdu_bytes = 24 + digests.header_bytes();
    let at = begin(out, R2T, header_flag(digests), (24, 0, pdu_bytes));
    for field in [cid, tag] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    for field in [offset, len_bytes, 0] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    digest_header(out, at, digests);
}

/// The header of all data of a command, which follow. `is_success`: no completion follows.
pub fn data(
    cid: u16,
    len_bytes: usize,
    is_success: bool,
    (digests, alignment): (Digests, u8),
    out: &mut Vec<u8>,
) {
    let step = (usize::from(alignment) + 1) * 4;
    let data_at = (24 + digests.header_bytes()).next_multiple_of(step);
    let flags = header_flag(digests)
        | FLAG_LAST
        | if digests.data { FLAG_DATA_DIGEST } else { 0 }
        | if is_success { FLAG_SUCCESS } else { 0 };
    let pdu_bytes = data_at + len_bytes + digests.data_bytes();
    let data_offset = u8::try_from(data_at).unwrap_or(u8::MAX);
    let at = begin(out, C2H_DATA, flags, (24, data_offset, pdu_bytes));
    out.extend_from_slice(&cid.to_le_bytes());
    out.extend_from_slice(&[0; 6]);
    let len = u32::try_from(len_bytes).unwrap_or(u32::MAX);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    digest_header(out, at, digests);
    out.resize(at + data_at, 0);
}

#[cfg(test)]
#[path = "pdu_tests.rs"]
mod tests;
