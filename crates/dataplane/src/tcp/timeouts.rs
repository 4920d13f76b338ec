//! A connection's timer goes off (RFC 6298 §5, RFC 9293 §3.8.4 and §3.8.6.1).

use super::connection::{Connection, Context, Flags, State};
use super::frames::mss_of_path;
use super::recovery::Recovery;
use super::sequence::at_most;
use crate::api::DeadReason;

/// Timeouts in a row of a full segment after which the path counts as a black hole (RFC 2923 §2.1).
const BLACK_HOLE_TRIES: u8 = 3;
/// Timeouts in a row after which the neighbour's hardware address is in doubt (R1 of RFC 9293
/// §3.8.3; `tcp_retries1` of Linux).
const DOUBT_TRIES: u8 = 3;
/// While memory is short, a peer that keeps its window closed until its probes are this far apart
/// is given up: about four seconds after it stopped reading.
const STALL_MS: u32 = 2000;
/// What a stalled peer may hold for ever.
const STALLED_MAX_BYTES: u32 = 8192;

impl Connection {
    /// Does what is due. True if the connection is gone.
    pub(crate) fn expire(&mut self, context: &mut Context) -> bool {
        if self.is_due(context, Flags::ACK_ARMED, self.ack_at_ms) {
            self.flags.clear(Flags::ACK_ARMED);
            self.acknowledge_now(context);
        }
        if self.is_due(context, Flags::RESEND_ARMED, self.resend_at_ms) {
            self.flags.clear(Flags::RESEND_ARMED);
            if self.resend_timeout(context) {
                return true;
            }
        }
        if self.is_due(context, Flags::IDLE_ARMED, self.idle_at_ms) {
            self.flags.clear(Flags::IDLE_ARMED);
            if self.idle_timeout(context) {
                return true;
            }
        }
        self.reschedule(context);
        false
    }

    fn is_due(&self, context: &Context, flag: Flags, at_ms: u32) -> bool {
        self.flags.has(flag) && at_most(at_ms, context.now_ms)
    }

    fn give_up(&mut self, context: &mut Context) -> bool {
        self.tell_dead(context, DeadReason::TimedOut);
        true
    }

    fn resend_timeout(&mut self, context: &mut Context) -> bool {
        let is_opening = matches!(self.state, State::SynSent | State::SynReceived);
        let tries_max = if is_opening {
            context.config.syn_retries_max
        } else {
            context.config.retries_max
        };
        if self.flags.has(Flags::RESET_DUE) {
            return self.reset_timeout(context);
        }
        if self.tries >= tries_max {
            return self.give_up(context);
        }
        if self.tries >= DOUBT_TRIES {
            context.neighbours.doubt(self.neighbour, context.now_ms);
        }
        if is_opening {
            self.tries += 1;
            self.rtt.back_off();
            self.flags.set(Flags::SYN_DUE);
            // If the neighbour is not known, the SYN may never have left.
            self.arm_resend(context);
            self.list(context);
            return false;
        }
        if self.flight_bytes() == 0 {
            return self.window_timeout(context);
        }
        self.tries += 1;
        context.counters.timeouts += 1;
        let (mss, flight) = (self.segment_bytes(), self.flight_bytes());
        self.congestion.timed_out(flight, mss, self.tries == 1);
        self.rtt.back_off();
        self.flags.clear(Flags::TIMED);
        if self.tries == BLACK_HOLE_TRIES && flight >= mss && !self.flags.has(Flags::BLACK_HOLE) {
            self.flags.set(Flags::BLACK_HOLE);
            self.mss = self.mss.min(mss_of_path(&self.ends.remote, 0));
        }
        let (unacknowledged, next) = (self.unacknowledged, self.next);
        let has_sack = self.flags.has(Flags::SACK);
        self.recovery
            .get_or_insert_with(|| Box::new(Recovery::new(unacknowledged, has_sack)))
            .enter_timeout(unacknowledged, next);
        self.arm_resend(context);
        self.list(context);
        false
    }

    /// An RST waits for the neighbour's hardware address. A neighbour that is gone needs none.
    fn reset_timeout(&mut self, context: &mut Context) -> bool {
        if self.tries >= context.config.syn_retries_max {
            self.tell_dead(context, DeadReason::Aborted);
            return true;
        }
        self.tries += 1;
        self.rtt.back_off();
        self.arm_resend(context);
        self.list(context);
        false
    }

    /// Nothing is in flight, and something waits. If the peer's window is closed: ask for news. A
    /// peer that answers may keep its window closed as long as it likes (RFC 9293 §3.8.6.1), unless
    /// others need the memory (RFC 6429 §5 leaves that to the system). If the window is small:
    /// what fits goes out now (RFC 9293 §3.8.6.2.1, rule 4).
    fn window_timeout(&mut self, context: &mut Context) -> bool {
        if !self.has_unsent() {
            return false;
        }
        if self.window == 0 {
            let holds_much = self.queue.len() > STALLED_MAX_BYTES && context.pool.is_short();
            if holds_much && self.rtt.timeout_ms(context.config.resend_floor_ms) >= STALL_MS {
                self.queue.clear(&mut context.pool);
                self.flags.set(Flags::RESET_DUE);
                self.list(context);
                self.tell_dead(context, DeadReason::TimedOut);
                return false;
            }
            self.flags.set(Flags::PROBE_DUE);
        } else {
            self.flags.set(Flags::SMALL_DUE);
        }
        // Without the neighbour's hardware address, nothing goes out: that has to end, too.
        self.tries += 1;
        self.rtt.back_off();
        self.arm_resend(context);
        self.list(context);
        false
    }

    fn idle_timeout(&mut self, context: &mut Context) -> bool {
        match self.state {
            State::TimeWait => return true,
            State::FinWait2 if self.flags.has(Flags::CLOSED) => {
                return self.give_up(context);
            }
            _ => {}
        }
        let Some(keep_alive) = context.config.keep_alive else {
            return false;
        };
        let silent_ms = context.now_ms.wrapping_sub(self.heard_ms);
        if silent_ms < keep_alive.idle_ms {
            self.arm_idle(context, keep_alive.idle_ms - silent_ms);
            return false;
        }
        if self.flight_bytes() > 0 || self.flags.has(Flags::RESEND_ARMED) {
            // The retransmission timer finds out.
            self.arm_idle(context, keep_alive.interval_ms);
            return false;
        }
        if self.tries >= keep_alive.probes {
            self.flags.set(Flags::RESET_DUE);
            self.list(context);
            self.tell_dead(context, DeadReason::TimedOut);
            return false;
        }
        self.tries += 1;
        self.flags.set(Flags::PROBE_DUE);
        self.list(context);
        self.arm_idle(context, keep_alive.interval_ms);
        false
    }
}
