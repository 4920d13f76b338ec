//! A TCP/IP stack of our own: frames and time come in, frames and events go out.
//!
//! The stack does no I/O, reads no clock and has no unsafe code, so that every rule of the protocol
//! is tested by a table of segments (`tests/`; docs/tcp.md lists the rules). One [`Stack`]
//! belongs to one shard.
//!
//! | file | subject | specification |
//! |---|---|---|
//! | `wire/` | headers, parsed and written | RFC 791, 8200, 826, 792, 4443, 4861, 9293 |
//! | `connection`, `stack` | what a connection and a stack have | RFC 9293 |
//! | `receive`, `table` | a frame arrives; whose it is | RFC 9293 |
//! | `listen` | listening ports, SYN cookies | RFC 9293, 4987 |
//! | `input`, `arrival` | a segment arrives at a connection | RFC 9293, 5961, 7323 |
//! | `handshake`, `acknowledgement`, `payload`, `closing` | what the parts of a segment do | RFC 9293, 6675, 5681 |
//! | `output`, `flush`, `frames` | what is sent, when, and how | RFC 9293, 6675, 3042 |
//! | `expiry`, `timeouts` | timers go off | RFC 6298, 9293 |
//! | `recovery`, `congestion`, `rtt` | what is lost, how much may be in flight | RFC 6675, 6582, 5681, 6298 |
//! | `control`, `neighbours` | ARP, NDP, ICMP, path MTU | RFC 826, 4861, 1191, 8201, 5927 |
//! | `directory`, `sharing`, `moves` | several stacks on one interface | – |
//! | `secrets` | sequence numbers and cookies | RFC 6528, 4987 |
//!
//! Left out on purpose: IP fragments (dropped), urgent data (taken as ordinary data), ECN.

mod acknowledgement;
mod arrival;
mod buffer;
mod calls;
mod closing;
mod config;
mod congestion;
mod connection;
mod control;
mod directory;
mod expiry;
mod flush;
mod frames;
mod handshake;
mod input;
mod listen;
mod moves;
mod neighbours;
mod output;
mod payload;
mod reassembly;
mod receive;
mod recovery;
mod rtt;
mod secrets;
mod sequence;
mod sharing;
mod stack;
mod table;
#[cfg(test)]
mod tests;
mod timeouts;
mod timers;
pub mod wire;

pub use calls::ConnectError;
pub use config::{ChecksumPolicy, Config, Counters, KeepAlive};
pub use directory::{Directory, GROUPS_MAX};
pub use frames::FrameSink;
pub use moves::Moved;
pub use secrets::Ends;
pub use stack::Stack;

use crate::api::{DeadReason, FlowId};

/// Where received bytes lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// In a frame that was given to [`Stack::receive`].
    Frame {
        /// The frame's number.
        frame_index: u32,
        /// The first byte.
        start: usize,
        /// How many bytes.
        length: usize,
    },
    /// They came out of order and were kept.
    Owned(Box<[u8]>),
}

/// What has happened to connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer has opened a connection.
    Knock {
        /// The connection.
        flow: FlowId,
        /// Its ends.
        ends: Ends,
    },
    /// A connection of [`Stack::connect`] is established.
    Connected {
        /// The connection.
        flow: FlowId,
    },
    /// Data came, in order.
    Received {
        /// The connection.
        flow: FlowId,
        /// The bytes.
        data: Data,
    },
    /// There is room again after [`Stack::send`] took less than all.
    Sent {
        /// The connection.
        flow: FlowId,
    },
    /// The peer sends no more data.
    Finished {
        /// The connection.
        flow: FlowId,
    },
    /// The connection is over: its last event.
    Dead {
        /// The connection.
        flow: FlowId,
        /// The reason.
        reason: DeadReason,
    },
}
