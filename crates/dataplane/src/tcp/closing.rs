//! A connection closes: a FIN of either side has its turn (RFC 9293 §3.6).

use super::Event;
use super::connection::{Connection, Context, Flags, State};
use crate::api::DeadReason;

impl Connection {
    /// State changes that follow when our FIN is acknowledged. True if the connection is gone.
    #[inline]
    pub(super) fn finish_acknowledged(&mut self, context: &mut Context) -> bool {
        let is_finished =
            self.flags.has(Flags::FIN_SENT) && self.flight_bytes() == 0 && self.queue.len() == 0;
        if !is_finished {
            return false;
        }
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                if self.flags.has(Flags::CLOSED) {
                    self.arm_idle(context, context.config.time_wait_ms);
                }
            }
            State::Closing => self.wait(context),
            State::LastAck => {
                self.tell_dead(context, DeadReason::Closed);
                return true;
            }
            _ => {}
        }
        false
    }

    /// Enters TIME-WAIT.
    fn wait(&mut self, context: &mut Context) {
        self.state = State::TimeWait;
        self.flags.clear(Flags::RESEND_ARMED);
        self.arm_idle(context, context.config.time_wait_ms);
        self.tell_dead(context, DeadReason::Closed);
        context.waiting.push_back((self.slot, self.generation));
        context.time_waits += 1;
    }

    /// The peer sends no more data.
    #[inline]
    pub(super) fn take_fin(&mut self, context: &mut Context) {
        self.receive_next = self.receive_next.wrapping_add(1);
        self.acknowledge_now(context);
        match self.state {
            State::Established => {
                self.state = State::CloseWait;
                self.tell_finished(context);
            }
            State::FinWait1 => {
                self.state = State::Closing;
                self.tell_finished(context);
            }
            State::FinWait2 => {
                self.tell_finished(context);
                self.wait(context);
            }
            _ => {}
        }
    }

    fn tell_finished(&self, context: &mut Context) {
        if self.flags.has(Flags::KNOWN) {
            context.events.push(Event::Finished { flow: self.id() });
        }
    }
}
