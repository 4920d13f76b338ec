//! Time moves on: the timers that are due are served.

use super::Event;
use super::buffer::index;
use super::connection::{Flags, State};
use super::sequence::low32;
use super::stack::Stack;

/// How often applications that were refused memory try again, in milliseconds.
const STARVED_MS: u32 = 10;
/// Timers that one call of [`Stack::expire`] serves at most.
const EXPIRED_MAX: usize = 1024;

impl Stack {
    /// Moves time on and serves the timers that are due.
    pub fn expire(&mut self, now_us: u64) {
        self.context.now_us = now_us;
        let now_ms = low32(now_us / 1000);
        if now_ms == self.context.now_ms {
            return;
        }
        self.context.now_ms = now_ms;
        let mut expired = std::mem::take(&mut self.expired);
        self.context.wheel.expire(now_ms, &mut expired, EXPIRED_MAX);
        for slot in expired.drain(..) {
            if let Some(connection) = self.connections.get_mut(index(slot))
                && connection.state != State::Free
                && connection.expire(&mut self.context)
            {
                self.remove(slot);
            }
        }
        self.expired = expired;
        self.forget_finished_waits();
        self.wake_starved();
    }

    /// Takes connections that are in TIME-WAIT no longer off the front of the list.
    fn forget_finished_waits(&mut self) {
        while let Some(&(slot, generation)) = self.context.waiting.front() {
            let connection = &self.connections[index(slot)];
            if connection.state == State::TimeWait && connection.generation == generation {
                return;
            }
            self.context.waiting.pop_front();
        }
    }

    /// Tells applications that were refused memory to try again.
    fn wake_starved(&mut self) {
        for slot in std::mem::take(&mut self.context.starved) {
            let connection = &mut self.connections[index(slot)];
            if connection.state != State::Free && connection.flags.take(Flags::BLOCKED) {
                self.context.events.push(Event::Sent {
                    flow: connection.id(),
                });
            }
        }
    }

    /// Milliseconds until a timer may be due.
    pub fn wait_ms(&self) -> Option<u32> {
        let wait_ms = self.context.wheel.wait_ms();
        if self.context.starved.is_empty() {
            return wait_ms;
        }
        Some(wait_ms.map_or(STARVED_MS, |wait_ms| wait_ms.min(STARVED_MS)))
    }
}
