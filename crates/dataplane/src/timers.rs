//! Timers of one shard: a heap of deadlines, one for each token.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::time::Time;

/// Pending timers.
#[derive(Debug, Default)]
pub struct Timers {
    /// Deadlines, of which those that [`Timers::deadlines`] contradicts were replaced.
    heap: BinaryHeap<Reverse<(Time, u64)>>,
    deadlines: HashMap<u64, Time>,
}

impl Timers {
    /// Sets the timer of a token, in place of an earlier one.
    pub fn set(&mut self, token: u64, deadline: Time) {
        self.deadlines.insert(token, deadline);
        self.heap.push(Reverse((deadline, token)));
        // Replaced deadlines stay in the heap until they pass: rebuild before they outgrow it.
        if self.heap.len() > 2 * self.deadlines.len() + 64 {
            self.heap = self
                .deadlines
                .iter()
                .map(|(&token, &deadline)| Reverse((deadline, token)))
                .collect();
        }
    }

    /// The next token whose deadline has passed.
    pub fn expired(&mut self, now: Time) -> Option<u64> {
        while let Some(&Reverse((deadline, token))) = self.heap.peek() {
            if deadline > now {
                return None;
            }
            self.heap.pop();
            if self.deadlines.get(&token) == Some(&deadline) {
                self.deadlines.remove(&token);
                return Some(token);
            }
        }
        None
    }

    /// When the next timer is due. A replaced timer may still be counted: waking early is harmless.
    pub fn next(&self) -> Option<Time> {
        self.heap.peek().map(|&Reverse((deadline, _))| deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_expire_in_order_and_a_replaced_one_does_not() {
        let mut timers = Timers::default();
        timers.set(1, Time(30));
        timers.set(2, Time(10));
        timers.set(1, Time(20));
        assert_eq!(timers.next(), Some(Time(10)));
        assert_eq!(timers.expired(Time(5)), None);
        assert_eq!(timers.expired(Time(40)), Some(2));
        assert_eq!(timers.expired(Time(40)), Some(1));
        assert_eq!(timers.expired(Time(40)), None);
    }

    #[test]
    fn a_timer_that_is_set_again_and_again_holds_bounded_memory() {
        let mut timers = Timers::default();
        for at in 0..10_000 {
            timers.set(7, Time(at));
        }
        assert!(timers.heap.len() < 100);
        assert_eq!(timers.expired(Time(20_000)), Some(7));
        assert_eq!(timers.expired(Time(20_000)), None);
    }
}
