//! What a stack is told at its start, and what it counts.

use super::wire::Ip;
use super::wire::ethernet::Mac;

/// Keep-alive probes (RFC 9293 §3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Silence before the first probe, in milliseconds.
    pub idle_ms: u32,
    /// Time between probes, in milliseconds.
    pub interval_ms: u32,
    /// Probes without an answer after which the connection is dead.
    pub probes: u8,
}

/// Which checksums of TCP segments are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumPolicy {
    /// The right ones.
    Valid,
    /// Also those that the sender left for its device to complete. A peer on the same host, behind
    /// a veth pair, sends such segments, and its own kernel accepts them too.
    ValidOrPartial,
}

/// Settings of a stack. All bounds are fixed at the start.
#[derive(Clone, Debug)]
pub struct Config {
    /// The interface's hardware address.
    pub mac: Mac,
    /// The interface's MTU in bytes.
    pub mtu_bytes: u16,
    /// Addresses that are this stack's, each with the bits of its prefix.
    pub addresses: Vec<(Ip, u8)>,
    /// Routers, one for each family at most.
    pub gateways: Vec<Ip>,
    /// Connections at most, those in TIME-WAIT included.
    pub connections_max: usize,
    /// Connections whose handshake is not complete. Beyond these the stack sends SYN cookies.
    pub backlog_max: usize,
    /// Memory for data in bytes: unacknowledged data, and data that came out of order.
    pub memory_max_bytes: usize,
    /// Data that one connection may have waiting to be acknowledged, in bytes.
    pub send_queue_max_bytes: u32,
    /// Window of one connection, in bytes.
    pub receive_window_bytes: u32,
    /// Retransmission timeout at least. RFC 6298 §2.4 says 1 s; Linux and this stack 200 ms.
    pub resend_floor_ms: u32,
    /// An acknowledgement waits this long at most. RFC 9293 §3.8.6.3 allows 500 ms; Linux has 40.
    pub delayed_ack_ms: u32,
    /// Timeouts in a row after which a connection is dead (R2 of RFC 9293 §3.8.3).
    pub retries_max: u8,
    /// The same for a SYN or SYN-ACK.
    pub syn_retries_max: u8,
    /// How long TIME-WAIT and a FIN-WAIT-2 without an application last. Linux has 60 s.
    pub time_wait_ms: u32,
    /// Keep-alive, if wanted.
    pub keep_alive: Option<KeepAlive>,
    /// Which checksums are accepted.
    pub checksums: ChecksumPolicy,
    /// Offer timestamps (RFC 7323).
    pub timestamps: bool,
    /// Offer selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Offer window scaling (RFC 7323).
    pub window_scaling: bool,
    /// Key of sequence numbers, cookies and the table. It must be random outside of tests.
    pub secret: (u64, u64),
}

impl Config {
    /// Settings for an interface, with the defaults for everything else.
    pub fn new(mac: Mac, mtu_bytes: u16, addresses: Vec<(Ip, u8)>, secret: (u64, u64)) -> Config {
        Config {
            mac,
            mtu_bytes,
            addresses,
            gateways: Vec::new(),
            connections_max: 65_536,
            backlog_max: 1024,
            memory_max_bytes: 256 << 20,
            send_queue_max_bytes: 1 << 20,
            receive_window_bytes: 256 << 10,
            resend_floor_ms: 200,
            delayed_ack_ms: 40,
            retries_max: 15,
            syn_retries_max: 5,
            time_wait_ms: 60_000,
            keep_alive: Some(KeepAlive {
                idle_ms: 7_200_000,
                interval_ms: 75_000,
                probes: 9,
            }),
            checksums: ChecksumPolicy::Valid,
            timestamps: true,
            sack: true,
            window_scaling: true,
            secret,
        }
    }

    /// The shift for this stack's window: the smallest with which the window fits 16 bits.
    pub(crate) fn receive_scale(&self) -> u8 {
        let bits = 32 - self.receive_window_bytes.leading_zeros();
        u8::try_from(bits.saturating_sub(16).min(14)).unwrap_or(0)
    }
}

/// Counters of a stack. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that came.
    pub frames_received: u64,
    /// Frames that were sent.
    pub frames_sent: u64,
    /// Frames that are not for this stack, or that no parser takes.
    pub frames_ignored: u64,
    /// Segments with a wrong checksum.
    pub checksums_wrong: u64,
    /// Segments sent again after a timeout.
    pub timeouts: u64,
    /// Segments sent again.
    pub retransmissions: u64,
    /// Fast retransmits begun.
    pub fast_retransmits: u64,
    /// SYNs answered with a cookie.
    pub cookies_sent: u64,
    /// Connections opened by a cookie.
    pub cookies_accepted: u64,
    /// SYNs dropped because the table was full.
    pub table_full: u64,
    /// RSTs sent.
    pub resets_sent: u64,
    /// Challenge acknowledgements sent (RFC 5961).
    pub challenges: u64,
    /// Segments rejected by their timestamp (RFC 7323 §5).
    pub paws_rejected: u64,
    /// Segments dropped because there was no memory for data out of order.
    pub out_of_memory: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections opened by this side.
    pub opened: u64,
    /// ICMP messages that concern a connection.
    pub icmp_errors: u64,
    /// Frames that came by a queue of this stack, but are another one's.
    pub frames_handed_over: u64,
}
