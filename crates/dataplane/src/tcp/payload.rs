//! Data of the peer: handed over in order, and kept while something is missing (RFC 9293
//! §3.10.7.4).

use super::arrival::Arrival;
use super::buffer::index;
use super::connection::{Connection, Context, Flags};
use super::reassembly::Reassembly;
use super::sequence::{before, distance};
use super::wire::length32;
use super::wire::segment::{FIN, SYN};
use super::{Data, Event};

impl Connection {
    /// Data or FIN.
    #[inline]
    pub(super) fn take_content(&mut self, context: &mut Context, arrival: &Arrival<'_>) {
        let length = length32(arrival.payload.len());
        let end = arrival.segment.sequence.wrapping_add(length);
        let is_news = length > 0 && before(self.receive_next, end);
        if !self.state.may_receive() {
            self.acknowledge_now(context);
        } else if self.flags.has(Flags::CLOSED) && is_news {
            // The application is gone, and nobody will ever read this (RFC 9293 §3.6.1). Data that
            // is here already is no reason: the peer may send a FIN along with such data.
            self.flags.set(Flags::RESET_DUE);
            self.list(context);
        } else {
            self.take_data(context, arrival);
        }
    }

    /// The payload and the FIN.
    fn take_data(&mut self, context: &mut Context, arrival: &Arrival<'_>) {
        let segment = arrival.segment;
        let window = distance(self.receive_next, self.receive_edge);
        let start = segment.sequence.wrapping_add(u32::from(segment.has(SYN)));
        let skipped = distance(start, self.receive_next);
        let fin_at = start.wrapping_add(length32(arrival.payload.len()));
        if before(self.receive_next, start) {
            self.take_early_data(context, arrival, fin_at);
            return;
        }
        let fresh = arrival.payload.get(index(skipped)..).unwrap_or(&[]);
        let fresh = fresh.get(..index(window)).unwrap_or(fresh);
        if !fresh.is_empty() {
            let length = length32(fresh.len());
            self.receive_next = self.receive_next.wrapping_add(length);
            self.held_bytes += length;
            context.events.push(Event::Received {
                flow: self.id(),
                data: Data::Frame {
                    frame_index: arrival.frame_index,
                    start: arrival.payload_start + index(skipped),
                    length: fresh.len(),
                },
            });
            let is_full = length >= self.segment_bytes();
            self.segments_received = self.segments_received.saturating_add(u8::from(is_full));
            self.flags.set(Flags::ACK_LATER);
            // RFC 9293 §3.8.6.3: every second full segment.
            if self.segments_received >= 2 {
                self.flags.set(Flags::ACK_NOW);
            }
            self.list(context);
        } else if !arrival.payload.is_empty() {
            // Data that is here already, or a probe of a closed window.
            self.acknowledge_now(context);
        }
        let mut has_fin = segment.has(FIN) && fin_at == self.receive_next;
        if let Some(mut pieces) = self.reassembly.take() {
            has_fin |= self.take_pieces(context, &mut pieces);
            if !pieces.is_empty() {
                self.reassembly = Some(pieces);
            }
            // RFC 5681 §4.2: a segment that fills a hole is acknowledged at once.
            self.acknowledge_now(context);
        }
        if has_fin {
            self.take_fin(context);
        }
    }

    /// Data beyond a hole.
    fn take_early_data(&mut self, context: &mut Context, arrival: &Arrival<'_>, fin_at: u32) {
        let room = index(distance(arrival.segment.sequence, self.receive_edge));
        let payload = arrival.payload.get(..room).unwrap_or(arrival.payload);
        let mut pieces = self.reassembly.take().unwrap_or_default();
        let is_whole = payload.len() == arrival.payload.len();
        let is_kept = payload.is_empty()
            || pieces.insert(&mut context.pool, arrival.segment.sequence, payload);
        if !is_kept {
            context.counters.out_of_memory += 1;
        } else if arrival.segment.has(FIN) && is_whole {
            pieces.note_fin(fin_at);
        }
        if !pieces.is_empty() {
            self.reassembly = Some(pieces);
        }
        self.acknowledge_now(context);
    }

    /// Hands over what was kept and is in order now. True if the FIN has its turn.
    fn take_pieces(&mut self, context: &mut Context, pieces: &mut Reassembly) -> bool {
        while let Some(bytes) = pieces.take(&mut context.pool, self.receive_next) {
            let length = length32(bytes.len());
            self.receive_next = self.receive_next.wrapping_add(length);
            self.held_bytes += length;
            context.events.push(Event::Received {
                flow: self.id(),
                data: Data::Owned(bytes),
            });
        }
        if pieces.fin_is_at(self.receive_next) {
            pieces.clear(&mut context.pool);
            return true;
        }
        false
    }
}
