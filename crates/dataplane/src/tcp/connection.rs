//! One connection's state (the transmission control block of RFC 9293 §3.3.1).

use std::collections::VecDeque;

use super::Event;
use super::buffer::{ByteQueue, Pool};
use super::config::{Config, Counters};
use super::congestion::Congestion;
use super::neighbours::{NeighbourId, Neighbours};
use super::reassembly::Reassembly;
use super::recovery::{Phase, Recovery};
use super::rtt::Estimator;
use super::secrets::Ends;
use super::sequence::{before, distance, earlier};
use super::timers::Wheel;
use super::wire::segment::TIMESTAMPS_BYTES;
use crate::api::{DeadReason, FlowId};

/// Challenge acknowledgements of one connection are this far apart at least (RFC 5961 §7). The
/// bound is a connection's own, so that nobody can learn of other connections by using it up.
const CHALLENGE_INTERVAL_MS: u32 = 500;

/// As the kernel reports a connection that the peer refuses.
pub(crate) const REFUSED: DeadReason = DeadReason::Os(libc::ECONNREFUSED);

/// States of RFC 9293 §3.3.2. `Free` is a place that no connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
}

impl State {
    /// Whether data of the application may still be sent.
    pub(crate) const fn may_send(self) -> bool {
        matches!(
            self,
            State::SynSent | State::SynReceived | State::Established | State::CloseWait
        )
    }

    /// Whether data of the peer is still expected.
    pub(crate) const fn may_receive(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }
}

/// Yes-or-no parts of a connection's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u32);

impl Flags {
    /// Both ends use timestamps.
    pub(crate) const TIMESTAMPS: Flags = Flags(1);
    /// Both ends use SACK.
    pub(crate) const SACK: Flags = Flags(1 << 1);
    /// An acknowledgement goes out with the next flush.
    pub(crate) const ACK_NOW: Flags = Flags(1 << 2);
    /// An acknowledgement may wait for data or for the timer.
    pub(crate) const ACK_LATER: Flags = Flags(1 << 3);
    /// The connection is in the list of those that may have something to send.
    pub(crate) const LISTED: Flags = Flags(1 << 4);
    /// The application has no more data.
    pub(crate) const FIN_WANTED: Flags = Flags(1 << 5);
    /// The FIN was sent at least once.
    pub(crate) const FIN_SENT: Flags = Flags(1 << 6);
    /// The SYN or SYN-ACK is to be sent.
    pub(crate) const SYN_DUE: Flags = Flags(1 << 7);
    /// The SYN or SYN-ACK was sent more than once.
    pub(crate) const SYN_LOST: Flags = Flags(1 << 8);
    /// The retransmission (or persist) timer runs.
    pub(crate) const RESEND_ARMED: Flags = Flags(1 << 9);
    /// The delayed acknowledgement's timer runs.
    pub(crate) const ACK_ARMED: Flags = Flags(1 << 10);
    /// The timer for keep-alive, FIN-WAIT-2 or TIME-WAIT runs.
    pub(crate) const IDLE_ARMED: Flags = Flags(1 << 11);
    /// The application knows the connection, and is told of its end.
    pub(crate) const KNOWN: Flags = Flags(1 << 12);
    /// The application has closed the connection: it wants no more data.
    pub(crate) const CLOSED: Flags = Flags(1 << 13);
    /// The application was refused space and waits for a `Sent` event.
    pub(crate) const BLOCKED: Flags = Flags(1 << 14);
    /// Counts towards the listener's backlog.
    pub(crate) const EMBRYO: Flags = Flags(1 << 15);
    /// A probe goes out with the next flush: keep-alive or zero window.
    pub(crate) const PROBE_DUE: Flags = Flags(1 << 16);
    /// An RST goes out with the next flush, and the connection ends.
    pub(crate) const RESET_DUE: Flags = Flags(1 << 17);
    /// The window was opened by the application: say so if it is worth a segment.
    pub(crate) const WINDOW_OPENED: Flags = Flags(1 << 18);
    /// A segment is being timed.
    pub(crate) const TIMED: Flags = Flags(1 << 19);
    /// What fits the peer's window goes out with the next flush, however little it is.
    pub(crate) const SMALL_DUE: Flags = Flags(1 << 22);
    /// The path seems to swallow large segments: this connection sends small ones.
    pub(crate) const BLACK_HOLE: Flags = Flags(1 << 20);
    /// Both ends scale their windows.
    pub(crate) const SCALED: Flags = Flags(1 << 21);

    pub(crate) const fn has(self, flag: Flags) -> bool {
        self.0 & flag.0 != 0
    }

    pub(crate) const fn set(&mut self, flag: Flags) {
        self.0 |= flag.0;
    }

    pub(crate) const fn clear(&mut self, flag: Flags) {
        self.0 &= !flag.0;
    }

    pub(crate) const fn put(&mut self, flag: Flags, value: bool) {
        if value {
            self.set(flag);
        } else {
            self.clear(flag);
        }
    }

    /// Clears the flag and says whether it was set.
    pub(crate) const fn take(&mut self, flag: Flags) -> bool {
        let was_set = self.has(flag);
        self.clear(flag);
        was_set
    }
}

/// Everything of the stack that connections share.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) now_us: u64,
    pub(crate) now_ms: u32,
    pub(crate) wheel: Wheel,
    pub(crate) pool: Pool,
    pub(crate) neighbours: Neighbours,
    pub(crate) events: Vec<Event>,
    /// Connections that may have something to send.
    pub(crate) listed: Vec<u32>,
    pub(crate) counters: Counters,
    /// Connections that count towards the backlog.
    pub(crate) embryos: usize,
    pub(crate) timestamp_offset: u32,
    /// Connections in TIME-WAIT, the oldest first: their places are reused when the table is full.
    /// Places that were given up earlier stay listed for a while.
    pub(crate) waiting: VecDeque<(u32, u32)>,
    /// Connections in TIME-WAIT.
    pub(crate) time_waits: usize,
    /// Connections that were refused memory and have nothing in flight that would wake them.
    pub(crate) starved: Vec<u32>,
}

impl Context {
    /// The clock of the timestamps option: milliseconds (RFC 7323 §5.4 allows 1 ms to 1 s).
    pub(crate) const fn timestamp(&self) -> u32 {
        self.now_ms.wrapping_add(self.timestamp_offset)
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) ends: Ends,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) neighbour: NeighbourId,
    /// The flow group: the queue by which the connection came.
    pub(crate) group: u16,
    pub(crate) state: State,
    pub(crate) send_scale: u8,
    pub(crate) receive_scale: u8,
    /// Timeouts or probes in a row without an answer.
    pub(crate) tries: u8,
    /// Full segments that came since the last acknowledgement.
    pub(crate) segments_received: u8,
    /// Payload of a segment at most, options not counted.
    pub(crate) mss: u16,
    pub(crate) flags: Flags,

    /// SND.UNA: the first byte that is not acknowledged, and the first of `queue`.
    pub(crate) unacknowledged: u32,
    /// SND.NXT: past the last byte that was ever sent.
    pub(crate) next: u32,
    /// SND.WND, scaled.
    pub(crate) window: u32,
    /// The largest window that the peer ever offered.
    pub(crate) window_max: u32,
    /// SND.WL1 and SND.WL2: the segment that last changed the window.
    pub(crate) window_sequence: u32,
    pub(crate) window_acknowledgement: u32,
    pub(crate) queue: ByteQueue,

    /// RCV.NXT.
    pub(crate) receive_next: u32,
    /// The end of the window that the peer was told.
    pub(crate) receive_edge: u32,
    /// Bytes that the application has and is not done with.
    pub(crate) held_bytes: u32,
    /// Last.ACK.sent of RFC 7323.
    pub(crate) acknowledged: u32,
    /// TS.Recent, and when it was taken.
    pub(crate) peer_timestamp: u32,
    pub(crate) peer_timestamp_ms: u32,

    pub(crate) rtt: Estimator,
    /// The number whose acknowledgement ends the measurement, and when it began.
    pub(crate) timed_sequence: u32,
    pub(crate) timed_us: u32,
    pub(crate) congestion: Congestion,
    pub(crate) recovery: Option<Box<Recovery>>,
    pub(crate) reassembly: Option<Box<Reassembly>>,

    pub(crate) resend_at_ms: u32,
    pub(crate) ack_at_ms: u32,
    pub(crate) idle_at_ms: u32,
    /// When the peer was last heard of, and when something was last sent.
    pub(crate) heard_ms: u32,
    pub(crate) sent_ms: u32,
    /// When the last challenge acknowledgement went out.
    pub(crate) challenged_ms: u32,
}

impl Connection {
    pub(crate) fn new(
        ends: Ends,
        slot: u32,
        generation: u32,
        neighbour: NeighbourId,
    ) -> Connection {
        Connection {
            ends,
            slot,
            generation,
            neighbour,
            group: 0,
            state: State::Free,
            send_scale: 0,
            receive_scale: 0,
            tries: 0,
            segments_received: 0,
            mss: 536,
            flags: Flags::default(),
            unacknowledged: 0,
            next: 0,
            window: 0,
            window_max: 0,
            window_sequence: 0,
            window_acknowledgement: 0,
            queue: ByteQueue::default(),
            receive_next: 0,
            receive_edge: 0,
            held_bytes: 0,
            acknowledged: 0,
            peer_timestamp: 0,
            peer_timestamp_ms: 0,
            rtt: Estimator::default(),
            timed_sequence: 0,
            timed_us: 0,
            congestion: Congestion::default(),
            recovery: None,
            reassembly: None,
            resend_at_ms: 0,
            ack_at_ms: 0,
            idle_at_ms: 0,
            heard_ms: 0,
            sent_ms: 0,
            challenged_ms: 0,
        }
    }

    pub(crate) const fn id(&self) -> FlowId {
        FlowId {
            index: self.slot,
            generation: self.generation,
        }
    }

    /// Payload of a full segment, with the timestamps option taken off.
    pub(crate) fn segment_bytes(&self) -> u32 {
        let options = if self.flags.has(Flags::TIMESTAMPS) {
            TIMESTAMPS_BYTES
        } else {
            0
        };
        u32::from(self.mss)
            .saturating_sub(super::wire::length32(options))
            .max(64)
    }

    /// Bytes sent and not acknowledged.
    pub(crate) const fn flight_bytes(&self) -> u32 {
        self.next.wrapping_sub(self.unacknowledged)
    }

    /// The sequence number past the queue's last byte, which is the FIN's.
    pub(crate) const fn queue_end(&self) -> u32 {
        // Before the SYN is acknowledged the queue begins one number later.
        let syn = matches!(self.state, State::SynSent | State::SynReceived) as u32;
        self.unacknowledged
            .wrapping_add(syn)
            .wrapping_add(self.queue.len())
    }

    /// Bytes in flight as recovery sees them.
    pub(crate) fn pipe_bytes(&self) -> u32 {
        match &self.recovery {
            Some(recovery) if recovery.phase != Phase::Suspicion => {
                recovery.pipe_bytes(self.unacknowledged, self.next, self.segment_bytes())
            }
            _ => self.flight_bytes(),
        }
    }

    /// Whether something new of the queue, or the FIN, is still to be sent.
    pub(crate) const fn has_unsent(&self) -> bool {
        before(self.next, self.queue_end())
            || (self.flags.has(Flags::FIN_WANTED) && !self.flags.has(Flags::FIN_SENT))
    }

    /// Puts the connection on the list of those that may have something to send.
    pub(crate) fn list(&mut self, context: &mut Context) {
        if !self.flags.has(Flags::LISTED) {
            self.flags.set(Flags::LISTED);
            context.listed.push(self.slot);
        }
    }

    /// Asks for an acknowledgement with the next flush.
    pub(crate) fn acknowledge_now(&mut self, context: &mut Context) {
        self.flags.set(Flags::ACK_NOW);
        self.list(context);
    }

    /// Answers what cannot be right by an acknowledgement, now and then only (RFC 5961 §3).
    pub(crate) fn challenge(&mut self, context: &mut Context) {
        let waited_ms = context.now_ms.wrapping_sub(self.challenged_ms);
        if waited_ms >= CHALLENGE_INTERVAL_MS {
            self.challenged_ms = context.now_ms;
            context.counters.challenges += 1;
            self.acknowledge_now(context);
        }
    }

    /// Starts the retransmission timer anew.
    pub(crate) fn arm_resend(&mut self, context: &mut Context) {
        let wait_ms = self.rtt.timeout_ms(context.config.resend_floor_ms);
        self.resend_at_ms = context.now_ms.wrapping_add(wait_ms);
        self.flags.set(Flags::RESEND_ARMED);
        self.schedule(context, self.resend_at_ms);
    }

    /// Starts the timer of keep-alive, FIN-WAIT-2 or TIME-WAIT.
    pub(crate) fn arm_idle(&mut self, context: &mut Context, wait_ms: u32) {
        self.idle_at_ms = context.now_ms.wrapping_add(wait_ms);
        self.flags.set(Flags::IDLE_ARMED);
        self.schedule(context, self.idle_at_ms);
    }

    /// Makes sure that the wheel wakes this connection by then. A timer that stands earlier is left
    /// alone: going off, it looks at the deadlines again.
    pub(crate) fn schedule(&self, context: &mut Context, at_ms: u32) {
        let is_late = context
            .wheel
            .at_ms(self.slot)
            .is_none_or(|set_ms| before(at_ms, set_ms));
        if is_late {
            context.wheel.set(self.slot, at_ms);
        }
    }

    /// Sets the wheel by the deadlines that are left.
    pub(crate) fn reschedule(&self, context: &mut Context) {
        let deadlines = [
            (Flags::RESEND_ARMED, self.resend_at_ms),
            (Flags::ACK_ARMED, self.ack_at_ms),
            (Flags::IDLE_ARMED, self.idle_at_ms),
        ];
        let next = deadlines
            .iter()
            .filter(|(flag, _)| self.flags.has(*flag))
            .map(|(_, at_ms)| *at_ms)
            .reduce(earlier);
        if let Some(at_ms) = next {
            context.wheel.set(self.slot, at_ms);
        }
    }

    /// The end of the window to tell the peer. The end never moves back (RFC 9293 §3.8.6), and it
    /// moves on by a full segment or half of the buffer at least (§3.8.6.2.2).
    pub(crate) fn window_edge(&self, context: &Context) -> u32 {
        let kept = self.reassembly.as_ref().map_or(0, |pieces| pieces.len());
        let free = context
            .config
            .receive_window_bytes
            .saturating_sub(self.held_bytes)
            .saturating_sub(kept);
        let edge = self.receive_next.wrapping_add(free);
        let gain = distance(self.receive_edge, edge);
        let worth = self
            .segment_bytes()
            .min(context.config.receive_window_bytes / 2);
        if gain >= worth {
            edge
        } else {
            self.receive_edge
        }
    }

    /// Memory of the pool that the connection has.
    pub(crate) fn data_bytes(&self) -> usize {
        let pieces = self.reassembly.as_ref();
        self.queue.buffer_bytes() + pieces.map_or(0, |pieces| pieces.cost_bytes())
    }

    /// Gives back all memory beyond the fixed part.
    pub(crate) fn release(&mut self, context: &mut Context) {
        self.queue.clear(&mut context.pool);
        if let Some(mut pieces) = self.reassembly.take() {
            pieces.clear(&mut context.pool);
        }
        self.recovery = None;
        context.wheel.clear(self.slot);
        if self.flags.take(Flags::EMBRYO) {
            context.embryos = context.embryos.saturating_sub(1);
        }
    }

    /// Has the application told, once, when there is room for more data.
    pub(crate) fn wait_for_room(&mut self, context: &mut Context) {
        if self.flags.has(Flags::BLOCKED) {
            return;
        }
        self.flags.set(Flags::BLOCKED);
        if self.queue.len() == 0 {
            // Nothing of this connection will be acknowledged: the stack's next turn asks again.
            context.starved.push(self.slot);
        }
    }

    /// Tells the application, once, that the connection is over. No event follows, also where an
    /// RST still waits to be sent.
    pub(crate) fn tell_dead(&mut self, context: &mut Context, reason: DeadReason) {
        self.flags.set(Flags::CLOSED);
        self.flags.clear(Flags::BLOCKED);
        if self.flags.take(Flags::KNOWN) {
            context.events.push(Event::Dead {
                flow: self.id(),
                reason,
            });
        }
    }
}
