//! NVMe over TCP: the transport and the commands without I/O, and how the server answers them.
//!
//! Numbers and names are those of the NVM Express specifications: "Base" 1.4, "NVMe over Fabrics"
//! 1.1 with its TCP transport. All numbers on the wire are little-endian.
//!
//! | module | subject |
//! |---|---|
//! | [`pdu`] | PDUs, read and written |
//! | [`link`] | what one connection has received: capsules, and data that were asked for |
//! | [`command`] | submission entries, status codes, completions |
//! | [`io`] | commands of I/O queues, as requests of the server |
//! | [`controller`] | the subsystem: controllers, namespaces |
//! | [`numbers`] | the numbers of namespaces |
//! | [`config`] | the key `nvme` of the configuration |
//! | [`connect`] | the Connect command |
//! | [`admin`] | commands of admin queues |
//! | [`identify`], [`log_page`], [`features`] | what admin commands read and set |

pub mod admin;
pub mod command;
pub mod config;
pub mod connect;
pub mod controller;
pub mod features;
pub mod identify;
pub mod io;
pub mod link;
pub mod log_page;
pub mod numbers;
pub mod pdu;
pub mod view;

mod answers;
mod perform;
pub(crate) mod queue;
mod serve;
mod watch;

/// Bytes of a logical block.
pub const BLOCK_BYTES: u64 = 512;
/// Data that a command may carry in its capsule. For the admin queue the TCP transport fixes this
/// number ("In-Capsule Data"); I/O queues have the same.
pub const IN_CAPSULE_BYTES: usize = 8192;
/// Data of one H2CData PDU at most (MAXH2CDATA).
pub const H2C_DATA_BYTES: u32 = 1 << 20;
/// Entries of a queue at most.
pub const QUEUE_ENTRIES: u16 = 128;
/// I/O queues of a controller at most.
pub const IO_QUEUES: u16 = 64;
/// Data of one command at most. Less where the server has little memory.
pub const TRANSFER_BYTES: usize = 1 << 20;
/// Namespaces at most, and the highest number of one.
pub const NAMESPACES: u32 = 16_384;
/// The name of every discovery subsystem.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Longest qualified name, in bytes.
pub const NQN_MAX_BYTES: usize = 223;

/// The number at `at`. The caller knows that it is there; what is missing counts as zero.
pub(crate) fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let field = bytes.iter().skip(at).take(len).rev();
    field.fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

/// As [`number`], for 16 bits.
pub(crate) fn number16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([byte(bytes, at), byte(bytes, at + 1)])
}

/// As [`number`], for 32 bits.
pub(crate) fn number32(bytes: &[u8], at: usize) -> u32 {
    u32::from(number16(bytes, at)) | u32::from(number16(bytes, at + 2)) << 16
}

fn byte(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}

/// A data structure of the specification, filled in field by field.
pub(crate) struct Structure(Vec<u8>);

impl Structure {
    /// `len_bytes` zeros.
    pub(crate) fn new(len_bytes: usize) -> Self {
        Self(vec![0; len_bytes])
    }

    /// Sets bytes. What lies past the end is left out.
    pub(crate) fn set(&mut self, at: usize, bytes: &[u8]) -> &mut Self {
        if let Some(field) = self.0.get_mut(at..at + bytes.len()) {
            field.copy_from_slice(bytes);
        }
        self
    }

    /// Sets text that is padded with spaces.
    pub(crate) fn text(&mut self, at: usize, len: usize, text: &str) -> &mut Self {
        let mut field = vec![b' '; len];
        let taken = text.len().min(len);
        field[..taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.set(at, &field)
    }

    pub(crate) fn u8(&mut self, at: usize, value: u8) -> &mut Self {
        self.set(at, &[value])
    }

    pub(crate) fn u16(&mut self, at: usize, value: u16) -> &mut Self {
        self.set(at, &value.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, at: usize, value: u32) -> &mut Self {
        self.set(at, &value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, at: usize, value: u64) -> &mut Self {
        self.set(at, &value.to_le_bytes())
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        self.0
    }
}
