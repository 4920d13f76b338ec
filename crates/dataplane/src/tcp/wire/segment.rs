//! TCP headers and options (RFC 9293 §3.1, RFC 7323, RFC 2018).

use super::checksum::Sum;
use super::{Ip, be16, be32, ip, length32};

/// Bytes of a header without options.
pub const HEADER_BYTES: usize = 20;
/// Bytes of the timestamps option as this stack writes it, with two no-operations in front.
pub const TIMESTAMPS_BYTES: usize = 12;
/// Header and options at most (a data offset of 15 words).
pub const HEADER_BYTES_MAX: usize = 60;

/// The sender has no more data.
pub const FIN: u8 = 0x01;
/// Synchronise sequence numbers.
pub const SYN: u8 = 0x02;
/// Reset the connection.
pub const RST: u8 = 0x04;
/// Hand the data over now.
pub const PSH: u8 = 0x08;
/// The acknowledgement field counts.
pub const ACK: u8 = 0x10;

/// Selective acknowledgements in one header at most.
pub const SACKS_MAX: usize = 4;

/// Ranges of sequence numbers that the receiver has, each from its first to past its last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sacks {
    ranges: [(u32, u32); SACKS_MAX],
    length: u8,
}

impl Sacks {
    /// Adds a range. A fifth is left out.
    pub fn push(&mut self, start: u32, end: u32) {
        if let Some(slot) = self.ranges.get_mut(usize::from(self.length)) {
            *slot = (start, end);
            self.length += 1;
        }
    }

    /// The ranges.
    pub fn ranges(&self) -> &[(u32, u32)] {
        self.ranges.get(..usize::from(self.length)).unwrap_or(&[])
    }

    /// Keeps the first `length` ranges.
    pub fn truncate(&mut self, length: usize) {
        let length = length.min(SACKS_MAX);
        self.length = self.length.min(u8::try_from(length).unwrap_or(0));
    }
}

/// Options that this stack knows. Others are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Maximum segment size of a SYN, in bytes.
    pub mss: Option<u16>,
    /// Window scale of a SYN: a shift of 14 at most.
    pub window_scale: Option<u8>,
    /// SACK permitted, of a SYN.
    pub sack_permitted: bool,
    /// Timestamp value and echo reply.
    pub timestamps: Option<(u32, u32)>,
    /// Selective acknowledgements.
    pub sacks: Sacks,
}

/// A parsed segment, without its payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Sequence number of the first byte, or of the SYN.
    pub sequence: u32,
    /// Next sequence number expected by the sender, if [`ACK`] is among the flags.
    pub acknowledgement: u32,
    /// Flags.
    pub flags: u8,
    /// Window, not scaled.
    pub window: u16,
    /// Options.
    pub options: Options,
    /// Bytes of header and options.
    pub header_bytes: usize,
}

impl Segment {
    /// Whether all of these flags are set.
    pub const fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Parses a segment's header. The checksum is not looked at; [`verify`] does that.
    pub fn parse(bytes: &[u8]) -> Option<Segment> {
        let header = bytes.first_chunk::<HEADER_BYTES>()?;
        let header_bytes = usize::from(header[12] >> 4) * 4;
        let options = bytes.get(HEADER_BYTES..header_bytes)?;
        Some(Segment {
            source_port: be16(header, 0)?,
            destination_port: be16(header, 2)?,
            sequence: be32(header, 4)?,
            acknowledgement: be32(header, 8)?,
            flags: header[13],
            window: be16(header, 14)?,
            options: parse_options(options),
            header_bytes,
        })
    }

    /// Bytes of header and options, as [`Segment::write`] writes them.
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.options.bytes()
    }

    /// Writes header and options, with a zero checksum. `None` if the slice is too short.
    pub fn write(&self, bytes: &mut [u8]) -> Option<usize> {
        let length = self.bytes();
        let bytes = bytes.get_mut(..length)?;
        let (header, options) = bytes.split_first_chunk_mut::<HEADER_BYTES>()?;
        header[..2].copy_from_slice(&self.source_port.to_be_bytes());
        header[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        header[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        header[8..12].copy_from_slice(&self.acknowledgement.to_be_bytes());
        header[12] = u8::try_from(length / 4).unwrap_or(5) << 4;
        header[13] = self.flags;
        header[14..16].copy_from_slice(&self.window.to_be_bytes());
        header[16..].fill(0);
        self.options.write(options);
        Some(length)
    }
}

/// Options of a header: end of list, no-operation, and kinds with a length. What cannot be read
/// ends the list.
fn parse_options(mut bytes: &[u8]) -> Options {
    let mut options = Options::default();
    // Almost every segment carries exactly this (RFC 7323, appendix A).
    if let Some((&[1, 1, 8, 10], rest)) = bytes.split_first_chunk::<4>()
        && let (Some(value), Some(echo)) = (be32(rest, 0), be32(rest, 4))
    {
        options.timestamps = Some((value, echo));
        bytes = &bytes[TIMESTAMPS_BYTES..];
    }
    while let Some((&kind, rest)) = bytes.split_first() {
        match kind {
            0 => break,
            1 => {
                bytes = rest;
                continue;
            }
            _ => {}
        }
        let Some(&length) = rest.first() else { break };
        let Some(option) = bytes.get(..usize::from(length)) else {
            break;
        };
        let Some(body) = option.get(2..) else { break };
        match (kind, body) {
            (2, &[high, low]) => options.mss = Some(u16::from_be_bytes([high, low])),
            // RFC 7323 §2.3: a shift above 14 counts as 14.
            (3, &[shift]) => options.window_scale = Some(shift.min(14)),
            (4, &[]) => options.sack_permitted = true,
            (5, _) => {
                for range in body.as_chunks::<8>().0 {
                    if let (Some(start), Some(end)) = (be32(range, 0), be32(range, 4)) {
                        options.sacks.push(start, end);
                    }
                }
            }
            (8, _) => {
                if let (Some(value), Some(echo), 8) = (be32(body, 0), be32(body, 4), body.len()) {
                    options.timestamps = Some((value, echo));
                }
            }
            _ => {}
        }
        bytes = bytes.get(option.len()..).unwrap_or(&[]);
    }
    options
}

impl Options {
    /// Bytes that [`Options::write`] needs: a multiple of four.
    fn bytes(&self) -> usize {
        let mut length = 0;
        if self.mss.is_some() {
            length += 4;
        }
        if self.window_scale.is_some() {
            length += 4;
        }
        if self.sack_permitted {
            length += 4;
        }
        if self.timestamps.is_some() {
            length += TIMESTAMPS_BYTES;
        }
        let sacks = self.sacks.ranges().len();
        if sacks > 0 {
            length += 4 + 8 * sacks;
        }
        length
    }

    fn write(&self, bytes: &mut [u8]) {
        let mut writer = Writer { bytes, at: 0 };
        if let Some(mss) = self.mss {
            writer.put(&[2, 4]);
            writer.put(&mss.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            writer.put(&[1, 3, 3, shift]);
        }
        if self.sack_permitted {
            writer.put(&[1, 1, 4, 2]);
        }
        if let Some((value, echo)) = self.timestamps {
            writer.put(&[1, 1, 8, 10]);
            writer.put(&value.to_be_bytes());
            writer.put(&echo.to_be_bytes());
        }
        let sacks = self.sacks.ranges();
        if !sacks.is_empty() {
            writer.put(&[1, 1, 5, 2 + 8 * self.sacks.length]);
            for (start, end) in sacks {
                writer.put(&start.to_be_bytes());
                writer.put(&end.to_be_bytes());
            }
        }
    }
}

struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, part: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.at..self.at + part.len()) {
            place.copy_from_slice(part);
            self.at += part.len();
        }
    }
}

/// What a receiver may conclude from a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumVerdict {
    /// It fits.
    Valid,
    /// The sender left it for the device to complete: the field holds the pseudo-header's sum.
    Partial,
    /// It does not fit.
    Wrong,
}

/// Looks at the checksum of a whole segment, payload included.
pub fn verify(source: &Ip, destination: &Ip, segment: &[u8]) -> ChecksumVerdict {
    let pseudo = Sum::pseudo_header(source, destination, ip::TCP, length32(segment.len()));
    let mut sum = pseudo;
    sum.add(segment);
    // A valid checksum may happen to be the pseudo-header's sum, so validity is looked at first.
    if sum.finish() == 0 {
        ChecksumVerdict::Valid
    } else if be16(segment, CHECKSUM_AT) == Some(pseudo.folded()) {
        ChecksumVerdict::Partial
    } else {
        ChecksumVerdict::Wrong
    }
}

/// Place of the checksum in a header.
pub const CHECKSUM_AT: usize = 16;

/// Computes the checksum of a whole segment and writes it into the header.
pub fn fill_checksum(source: &Ip, destination: &Ip, segment: &mut [u8]) {
    let mut sum = Sum::pseudo_header(source, destination, ip::TCP, length32(segment.len()));
    sum.add(segment);
    put_checksum(segment, sum.finish());
}

/// Leaves the checksum of a whole segment to the device: the header gets the pseudo-header's sum.
pub fn leave_checksum(source: &Ip, destination: &Ip, segment: &mut [u8]) {
    let length = length32(segment.len());
    let sum = Sum::pseudo_header(source, destination, ip::TCP, length);
    put_checksum(segment, sum.folded());
}

fn put_checksum(segment: &mut [u8], checksum: u16) {
    if let Some(field) = segment.get_mut(CHECKSUM_AT..CHECKSUM_AT + 2) {
        field.copy_from_slice(&checksum.to_be_bytes());
    }
}
