//! Frames that go out: where they go, how a segment becomes one, and how large a segment may be.

use super::connection::Context;
use super::secrets::Ends;
use super::wire::ethernet::{self, Mac};
use super::wire::segment::{self, HEADER_BYTES, Segment};
use super::wire::{Ip, ip, length16, length32};

/// Where frames go.
pub trait FrameSink {
    /// A place for a frame of up to `length` bytes. `None` if there is none at the moment: the
    /// stack tries again with its next flush.
    fn frame(&mut self, length: usize) -> Option<&mut [u8]>;

    /// Sends the first `length` bytes of the place that [`FrameSink::frame`] gave last.
    fn send(&mut self, length: usize);

    /// Whether the sink, or the device behind it, completes the checksums of segments.
    fn completes_checksums(&self) -> bool {
        false
    }

    /// As [`FrameSink::send`], for a frame whose segment begins at `tcp_start` and has an
    /// unfinished checksum. Only for sinks that complete it.
    fn send_unfinished(&mut self, length: usize, tcp_start: usize) {
        let _ = tcp_start;
        self.send(length);
    }
}

/// The segment size to tell a peer: what the MTU leaves.
pub(crate) fn own_mss(context: &Context, remote: &Ip) -> u16 {
    let headers = length16(ip::header_bytes(remote) + HEADER_BYTES);
    context.config.mtu_bytes.saturating_sub(headers)
}

/// Writes a whole frame. False if the sink is full.
pub(crate) fn emit_segment<S: FrameSink>(
    context: &mut Context,
    sink: &mut S,
    mac: Mac,
    Ends { local, remote, .. }: &Ends,
    segment: &Segment,
    payload: (&[u8], &[u8]),
) -> bool {
    let tcp_bytes = segment.bytes() + payload.0.len() + payload.1.len();
    let ip_bytes = ip::header_bytes(remote);
    let length = ethernet::HEADER_BYTES + ip_bytes + tcp_bytes;
    let is_left = sink.completes_checksums();
    let Some(frame) = sink.frame(length) else {
        return false;
    };
    let Some(frame) = frame.get_mut(..length) else {
        return false;
    };
    ethernet::Header {
        destination: mac,
        source: context.config.mac,
        ethertype: if remote.is_v4() {
            ethernet::IPV4
        } else {
            ethernet::IPV6
        },
    }
    .write(frame);
    let packet = &mut frame[ethernet::HEADER_BYTES..];
    ip::write(packet, local, remote, ip::TCP, tcp_bytes);
    let tcp = &mut packet[ip_bytes..];
    let Some(header_bytes) = segment.write(tcp) else {
        return false;
    };
    let data = &mut tcp[header_bytes..];
    let (first, second) = data.split_at_mut(payload.0.len());
    first.copy_from_slice(payload.0);
    second.copy_from_slice(payload.1);
    if is_left {
        segment::leave_checksum(local, remote, tcp);
        sink.send_unfinished(length, length - tcp_bytes);
    } else {
        segment::fill_checksum(local, remote, tcp);
        sink.send(length);
    }
    context.counters.frames_sent += 1;
    true
}

/// The smaller of a connection's segment size and what a path takes.
pub(crate) fn mss_of_path(remote: &Ip, mtu_bytes: u32) -> u16 {
    let headers = length32(ip::header_bytes(remote) + HEADER_BYTES);
    // RFC 1191 §3 and RFC 8200 §5: no path is narrower. Linux takes 552 for IPv4.
    let floor = if remote.is_v4() { 552 } else { 1280 };
    let mss = mtu_bytes.max(floor) - headers;
    u16::try_from(mss).unwrap_or(u16::MAX)
}
