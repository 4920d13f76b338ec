//! Tests of the stack as a whole: scripts of segments for each rule, two stacks on a bad network,
//! and foreign bytes.

mod floods;
mod foreign;
mod oracle;
mod pair;
mod script;
mod table;

mod rules_close;
mod rules_data;
mod rules_handshake;
mod rules_loss;
mod rules_network;
mod rules_security;
mod shares;

use std::collections::VecDeque;
use std::net::IpAddr;

use super::wire::Ip;
use super::wire::arp::{self, ArpOperation};
use super::wire::ethernet::{self, Mac};
use super::{Config, FrameSink};

/// The stack's addresses in all tests.
const LOCAL: Ip = Ip::v4([10, 7, 0, 2]);
const REMOTE: Ip = Ip::v4([10, 7, 0, 1]);
const LOCAL_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
const REMOTE_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

fn ip(text: &str) -> Ip {
    Ip::from(text.parse::<IpAddr>().unwrap())
}

fn config(mac: Mac, addresses: &[(Ip, u8)]) -> Config {
    Config::new(
        mac,
        1500,
        addresses.to_vec(),
        (0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210),
    )
}

/// What the peer says by ARP.
fn arp_frame(operation: ArpOperation, target: Ip) -> Vec<u8> {
    let packet = arp::ArpPacket {
        operation,
        sender_mac: REMOTE_MAC,
        sender: REMOTE,
        target_mac: LOCAL_MAC,
        target,
    };
    let mut frame = vec![0; ethernet::HEADER_BYTES];
    ethernet::Header {
        destination: LOCAL_MAC,
        source: REMOTE_MAC,
        ethertype: ethernet::ARP,
    }
    .write(&mut frame);
    frame.extend_from_slice(&packet.bytes());
    frame
}

/// A sink that keeps the frames.
#[derive(Debug, Default)]
struct Frames {
    place: Vec<u8>,
    sent: VecDeque<Vec<u8>>,
    /// The frames that still fit, if there is a bound.
    room: Option<usize>,
}

impl FrameSink for Frames {
    fn frame(&mut self, length: usize) -> Option<&mut [u8]> {
        if self.room.is_some_and(|room| self.sent.len() >= room) {
            return None;
        }
        self.place.resize(length, 0xee);
        Some(&mut self.place)
    }

    fn send(&mut self, length: usize) {
        self.sent.push_back(self.place[..length].to_vec());
    }
}
