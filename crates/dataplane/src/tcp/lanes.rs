//! Timers of the two waits that nearly every request has: the retransmission timeout at its floor,
//! and the delayed acknowledgement.
//!
//! These waits are the same for all connections. So the timer that is set first goes off first, and
//! a queue is enough. The wheel would have to move the connection's long timer, and its neighbours
//! there lie anywhere in memory: with a million connections that costs more than the request.
//!
//! A timer in a lane is not cleared. It goes off, and the connection looks at its deadlines.

use std::collections::VecDeque;

/// What a lane is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Soon {
    Acknowledge,
    Resend,
}

impl Soon {
    pub(crate) const ALL: [Soon; 2] = [Soon::Acknowledge, Soon::Resend];
}

/// Timers with the same wait.
#[derive(Debug)]
struct Lane {
    wait_ms: u32,
    /// When each goes off, and whose it is.
    waiting: VecDeque<(u32, u32)>,
}

/// All lanes of a stack.
#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: [Lane; 2],
    /// Timers of a lane at most. A connection has one; places that are used again have left others.
    waiting_max: usize,
}

impl Lanes {
    /// Lanes for the timers of up to `connections_max` connections.
    pub(crate) fn new(acknowledge_ms: u32, resend_ms: u32, connections_max: usize) -> Lanes {
        let lane = |wait_ms| Lane {
            wait_ms,
            waiting: VecDeque::new(),
        };
        Lanes {
            lanes: [lane(acknowledge_ms), lane(resend_ms)],
            waiting_max: connections_max.saturating_mul(2),
        }
    }

    /// How long the timers of this lane wait.
    pub(crate) fn wait_ms(&self, soon: Soon) -> u32 {
        self.lanes[soon as usize].wait_ms
    }

    /// Sets a timer. False if the lane is full.
    pub(crate) fn set(&mut self, soon: Soon, now_ms: u32, slot: u32) -> bool {
        let lane = &mut self.lanes[soon as usize];
        let has_room = lane.waiting.len() < self.waiting_max;
        if has_room {
            let at_ms = now_ms.wrapping_add(lane.wait_ms);
            lane.waiting.push_back((at_ms, slot));
        }
        has_room
    }

    /// The next timer of a lane that goes off until `now_ms`.
    pub(crate) fn expire(&mut self, soon: Soon, now_ms: u32) -> Option<u32> {
        let waiting = &mut self.lanes[soon as usize].waiting;
        let &(at_ms, slot) = waiting.front()?;
        if super::sequence::before(now_ms, at_ms) {
            return None;
        }
        waiting.pop_front();
        Some(slot)
    }

    /// Whose timer comes so many timers later.
    pub(crate) fn later(&self, soon: Soon, count: usize) -> Option<u32> {
        let waiting = &self.lanes[soon as usize].waiting;
        waiting.get(count).map(|(_, slot)| *slot)
    }

    /// Milliseconds until a timer goes off.
    pub(crate) fn next_ms(&self, now_ms: u32) -> Option<u32> {
        let fronts = self.lanes.iter().filter_map(|lane| lane.waiting.front());
        fronts
            .map(|(at_ms, _)| super::sequence::distance(now_ms, *at_ms))
            .min()
    }

    /// Bytes of memory that timers occupy.
    pub(crate) fn memory_bytes(&self) -> usize {
        let capacity = |lane: &Lane| lane.waiting.capacity() * size_of::<(u32, u32)>();
        self.lanes.iter().map(capacity).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_go_off_in_the_order_of_their_lane() {
        let start = u32::MAX - 20;
        let mut lanes = Lanes::new(40, 200, 10);
        assert_eq!(lanes.next_ms(start), None);
        assert!(lanes.set(Soon::Resend, start, 1));
        assert!(lanes.set(Soon::Acknowledge, start, 2));
        assert!(lanes.set(Soon::Acknowledge, start.wrapping_add(5), 3));
        assert_eq!(lanes.next_ms(start), Some(40));
        assert_eq!(lanes.later(Soon::Acknowledge, 1), Some(3));
        assert_eq!(
            lanes.expire(Soon::Acknowledge, start.wrapping_add(39)),
            None
        );
        assert_eq!(
            lanes.expire(Soon::Acknowledge, start.wrapping_add(40)),
            Some(2)
        );
        assert_eq!(
            lanes.expire(Soon::Acknowledge, start.wrapping_add(40)),
            None
        );
        assert_eq!(
            lanes.expire(Soon::Acknowledge, start.wrapping_add(500)),
            Some(3)
        );
        assert_eq!(lanes.expire(Soon::Resend, start.wrapping_add(500)), Some(1));
        assert_eq!(lanes.next_ms(start.wrapping_add(500)), None);
    }

    #[test]
    fn a_lane_is_bounded() {
        let mut lanes = Lanes::new(40, 200, 3);
        let set = (0..10)
            .filter(|slot| lanes.set(Soon::Resend, 0, *slot))
            .count();
        assert_eq!(set, 6);
        assert!(lanes.set(Soon::Acknowledge, 0, 1));
    }
}
