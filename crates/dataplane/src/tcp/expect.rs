//! Connections are fetched from memory before their turn, where there are so many that no cache
//! holds them.

use super::buffer::index;
use super::secrets::Ends;
use super::stack::Stack;
use super::wire::{Ip, ethernet, ip};
use crate::api::FlowId;
use crate::prefetch::{prefer_large_pages, prefetch, prefetch_start};

/// How many connections ahead of its turn a connection is fetched: memory answers after some 100
/// ns, and a timer takes 20 to 50.
pub(super) const FETCHED_AHEAD: usize = 8;
/// With fewer connections they are in the processor's caches anyway: 16,384 take 5 MiB.
const FETCHED_FROM: usize = 16_384;
/// Ethernet, IP and TCP headers with timestamps, and the beginning of the payload.
const HEADERS_BYTES: usize = 128;

impl Stack {
    /// Has the kernel use large pages for the tables, where they are large: connections are used at
    /// random.
    pub fn prefer_large_pages(&self) {
        prefer_large_pages(&self.connections);
        self.context.wheel.prefer_large_pages();
    }

    /// Has the processor fetch what [`Stack::receive`] will need for these frames. With few
    /// connections nothing is done.
    pub fn expect<'a>(&mut self, frames: impl Iterator<Item = &'a [u8]> + Clone) {
        if self.connections.len() < FETCHED_FROM {
            return;
        }
        for frame in frames.clone() {
            prefetch_start(frame, HEADERS_BYTES);
        }
        let mut expected = std::mem::take(&mut self.expected);
        expected.extend(frames.filter_map(|frame| Some(self.secrets.table_hash(&ends_of(frame)?))));
        for hash in expected.drain(..) {
            // Another connection with the same hash is fetched in vain, once in a hundred times.
            if let Some(&slot) = self.table.find(hash, |_| true) {
                self.expect_slot(slot);
            }
        }
        self.expected = expected;
    }

    /// Timers went off, and their connections are served one after the other: fetches the one that
    /// comes [`FETCHED_AHEAD`] later.
    pub(super) fn expect_expired(&self, later: Option<u32>) {
        if let Some(slot) = later
            && self.connections.len() >= FETCHED_FROM
        {
            self.expect_slot(slot);
        }
    }

    /// Has the processor fetch a connection that the application is about to use.
    pub fn expect_flow(&self, flow: FlowId) {
        if self.connections.len() >= FETCHED_FROM {
            self.expect_slot(flow.index);
        }
    }

    fn expect_slot(&self, slot: u32) {
        if let Some(connection) = self.connections.get(index(slot)) {
            prefetch(connection);
            self.context.wheel.expect(slot);
        }
    }
}

/// Both ends of the connection of an IPv4 frame, as far as they can be had at a glance: nothing is
/// checked.
pub(super) fn ends_of(frame: &[u8]) -> Option<Ends> {
    let packet = frame.get(ethernet::HEADER_BYTES..)?;
    let header = packet.first_chunk::<{ ip::V4_HEADER_BYTES }>()?;
    let ports = packet.get(ip::V4_HEADER_BYTES..)?.first_chunk::<4>()?;
    let is_plain = header[0] == 0x45 && header[9] == ip::TCP;
    is_plain.then(|| Ends {
        local: Ip::v4([header[16], header[17], header[18], header[19]]),
        local_port: u16::from_be_bytes([ports[2], ports[3]]),
        remote: Ip::v4([header[12], header[13], header[14], header[15]]),
        remote_port: u16::from_be_bytes([ports[0], ports[1]]),
    })
}
