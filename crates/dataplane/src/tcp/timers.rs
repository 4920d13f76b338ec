//! A hierarchical timer wheel (Varghese and Lauck, SOSP'87): one timer for each connection.
//!
//! A timer costs a fixed 16 bytes. Setting one and clearing one cost the same however many there
//! are. Whoever sets a timer later than it stands need not tell the wheel: the timer goes off too
//! early, and is set again.

use super::buffer::index;

const SLOT_BITS: u32 = 8;
const SLOTS: usize = 1 << SLOT_BITS;
/// Four levels of 256 slots: the wheel reaches 2^32 ms, which is 49 days.
const LEVELS: usize = 4;
/// Ends a list.
const NONE: u32 = u32::MAX;

/// A timer's place in a list.
#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
    at_ms: u32,
    /// Level and slot, or [`UNSET`].
    slot: u32,
}

const UNSET: u32 = u32::MAX;

/// Timers by the number of what they belong to.
#[derive(Debug)]
pub(crate) struct Wheel {
    heads: Vec<u32>,
    links: Vec<Link>,
    now_ms: u32,
    armed: usize,
}

impl Wheel {
    /// A wheel whose time is `now_ms`, for up to `timers_max` timers. Memory is touched only for
    /// timers that were set.
    pub(crate) fn new(now_ms: u32, timers_max: usize) -> Wheel {
        Wheel {
            heads: vec![NONE; LEVELS * SLOTS],
            links: Vec::with_capacity(timers_max),
            now_ms,
            armed: 0,
        }
    }

    /// When this timer goes off.
    pub(crate) fn at_ms(&self, timer: u32) -> Option<u32> {
        let link = self.links.get(index(timer))?;
        (link.slot != UNSET).then_some(link.at_ms)
    }

    /// Sets a timer. What lies in the past goes off with the next [`Wheel::expire`].
    pub(crate) fn set(&mut self, timer: u32, at_ms: u32) {
        self.clear(timer);
        if self.links.len() <= index(timer) {
            let unset = Link {
                previous: NONE,
                next: NONE,
                at_ms: 0,
                slot: UNSET,
            };
            self.links.resize(index(timer) + 1, unset);
        }
        let at_ms = if super::sequence::before(self.now_ms, at_ms) {
            at_ms
        } else {
            self.now_ms.wrapping_add(1)
        };
        self.insert(timer, at_ms);
        self.armed += 1;
    }

    fn insert(&mut self, timer: u32, at_ms: u32) {
        // The highest bit in which the times differ says on which level the timer waits.
        let different = at_ms ^ self.now_ms;
        let level = different.checked_ilog2().unwrap_or(0) / SLOT_BITS;
        let slot = (at_ms >> (level * SLOT_BITS)) & 0xff;
        let place = (level << SLOT_BITS) | slot;
        let next = std::mem::replace(&mut self.heads[index(place)], timer);
        if let Some(link) = self.links.get_mut(index(next)) {
            link.previous = timer;
        }
        self.links[index(timer)] = Link {
            previous: NONE,
            next,
            at_ms,
            slot: place,
        };
    }

    /// Clears a timer, whether or not it was set.
    pub(crate) fn clear(&mut self, timer: u32) {
        let Some(link) = self.links.get_mut(index(timer)) else {
            return;
        };
        if link.slot == UNSET {
            return;
        }
        let Link {
            previous,
            next,
            slot,
            ..
        } = *link;
        link.slot = UNSET;
        self.armed -= 1;
        if previous == NONE {
            self.heads[index(slot)] = next;
        } else {
            self.links[index(previous)].next = next;
        }
        if let Some(link) = self.links.get_mut(index(next)) {
            link.previous = previous;
        }
    }

    /// Moves time on to `now_ms` and appends to `expired` the timers that went off, up to about
    /// `expired_max`. With more than those, time stands where they ended, and the next call goes
    /// on.
    pub(crate) fn expire(&mut self, now_ms: u32, expired: &mut Vec<u32>, expired_max: usize) {
        if self.armed == 0 {
            if super::sequence::before(self.now_ms, now_ms) {
                self.now_ms = now_ms;
            }
            return;
        }
        while super::sequence::before(self.now_ms, now_ms) && expired.len() < expired_max {
            self.now_ms = self.now_ms.wrapping_add(1);
            // A level's slot comes down when all levels below it start anew.
            for level in 1..LEVELS {
                let shift = u32::try_from(level).unwrap_or(0) * SLOT_BITS;
                if self.now_ms.trailing_zeros() < shift {
                    break;
                }
                self.move_down(level << SLOT_BITS | index((self.now_ms >> shift) & 0xff));
            }
            let slot = index(self.now_ms & 0xff);
            while self.heads[slot] != NONE {
                let timer = self.heads[slot];
                self.clear(timer);
                expired.push(timer);
            }
        }
    }

    fn move_down(&mut self, place: usize) {
        let mut timer = std::mem::replace(&mut self.heads[place], NONE);
        while let Some(&Link { next, at_ms, .. }) = self.links.get(index(timer)) {
            self.insert(timer, at_ms);
            timer = next;
        }
    }

    /// Milliseconds until something may go off: exact within a level's turn, else a lower bound.
    /// `None` without timers.
    pub(crate) fn wait_ms(&self) -> Option<u32> {
        if self.armed == 0 {
            return None;
        }
        let turn_ends = 256 - (self.now_ms & 0xff);
        (1..=turn_ends)
            .find(|wait| {
                let slot = index(self.now_ms.wrapping_add(*wait) & 0xff);
                *wait == turn_ends || self.heads[slot] != NONE
            })
            .or(Some(turn_ends))
    }

    /// Bytes of memory that timers occupy.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.heads.len() * size_of::<u32>() + self.links.len() * size_of::<Link>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expire(wheel: &mut Wheel, now_ms: u32) -> Vec<u32> {
        let mut expired = Vec::new();
        wheel.expire(now_ms, &mut expired, usize::MAX);
        expired
    }

    #[test]
    fn timers_go_off_in_time_on_every_level() {
        for start in [0u32, 200, 65_000, u32::MAX - 100] {
            for wait in [1u32, 55, 255, 256, 257, 65_535, 65_536, 70_000, 20_000_000] {
                let mut wheel = Wheel::new(start, 4);
                wheel.set(3, start.wrapping_add(wait));
                let mut now = start;
                let end = start.wrapping_add(wait);
                while wheel.armed > 0 {
                    let step = wheel.wait_ms().unwrap();
                    now = now.wrapping_add(step);
                    let expired = expire(&mut wheel, now);
                    assert_eq!(expired.is_empty(), now != end, "{start} {wait} {now}");
                }
                assert_eq!(now, end);
            }
        }
    }

    #[test]
    fn a_bound_on_expiry_loses_nothing() {
        let mut wheel = Wheel::new(0, 100);
        for timer in 0..100 {
            wheel.set(timer, 5 + timer / 10);
        }
        let mut all = Vec::new();
        for _ in 0..50 {
            let mut expired = Vec::new();
            wheel.expire(1000, &mut expired, 7);
            assert!(expired.len() < 7 + 10);
            all.extend(expired);
        }
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<u32>>());
    }

    proptest! {
        #[test]
        fn behaves_as_a_sorted_list(
            steps in proptest::collection::vec((0u32..20, 1u32..100_000, any::<bool>(), 0u32..3000), 1..100),
            start in any::<u32>(),
        ) {
            let mut wheel = Wheel::new(start, 20);
            let mut model = std::collections::BTreeMap::new();
            let mut now = 0u64;
            for (timer, wait, is_set, step) in steps {
                if is_set {
                    wheel.set(timer, start.wrapping_add(u32::try_from(now).unwrap()).wrapping_add(wait));
                    model.insert(timer, now + u64::from(wait));
                } else {
                    wheel.clear(timer);
                    model.remove(&timer);
                }
                now += u64::from(step);
                let mut expired = expire(&mut wheel, start.wrapping_add(u32::try_from(now).unwrap()));
                expired.sort_unstable();
                let due: Vec<u32> =
                    model.iter().filter(|(_, at)| **at <= now).map(|(timer, _)| *timer).collect();
                model.retain(|_, at| *at > now);
                prop_assert_eq!(expired, due);
                prop_assert_eq!(wheel.armed, model.len());
            }
        }
    }
}
