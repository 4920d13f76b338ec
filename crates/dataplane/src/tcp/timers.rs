//! A hierarchical timer wheel (Varghese and Lauck, SOSP'87): one timer for each connection.
//!
//! A timer costs a fixed 16 bytes. Setting one and clearing one cost the same however many there
//! are. Whoever sets a timer later than it stands need not tell the wheel: the timer goes off too
//! early, and is set again.
//!
//! Timers of less than half a second, as those of retransmissions and acknowledgements, are on the
//! lowest level from the start. Longer ones come down a level when their time is near, a bounded
//! number at a time: a million keep-alive timers that were set together hold nobody up.

use super::buffer::index;
use crate::prefetch::{prefer_large_pages, prefetch};

const LEVELS: usize = 4;
/// First bit of the time that a level's slots stand for: 1 ms, 512 ms, 131 s, 9.3 hours. The wheel
/// reaches 2^32 ms, which is 49 days.
const SHIFTS: [u32; LEVELS] = [0, 9, 17, 25];
/// Slots of each level.
const SLOTS: [u32; LEVELS] = [512, 256, 256, 128];
/// The place of each level's first slot.
const FIRST_PLACES: [u32; LEVELS] = [0, 512, 768, 1024];
/// After all slots, a place for each level's timers that come down, from the second level on.
const DESCENDING: u32 = 1152;
/// Timers that come down in one call of [`Wheel::expire`] at most: some 50 ns each. With a million
/// timers in one slot the last is half a second late.
const DESCENDING_MAX: usize = 2048;
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
            heads: vec![NONE; index(DESCENDING) + LEVELS - 1],
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
        self.insert(timer, at_ms, at_ms);
        self.armed += 1;
    }

    /// Puts a timer into the slot of `at_ms`, or of `first_ms` if that is later.
    fn insert(&mut self, timer: u32, at_ms: u32, first_ms: u32) {
        let due_ms = if super::sequence::before(at_ms, first_ms) {
            first_ms
        } else {
            at_ms
        };
        let wait_ms = due_ms.wrapping_sub(self.now_ms);
        let reaches = |level: &usize| wait_ms >> SHIFTS[*level] > 0;
        let level = (1..LEVELS).rev().find(reaches).unwrap_or(0);
        let slot = (due_ms >> SHIFTS[level]) & (SLOTS[level] - 1);
        let place = FIRST_PLACES[level] + slot;
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
        self.unlink(timer);
        self.links[index(timer)].slot = UNSET;
        self.armed -= 1;
    }

    /// Takes a timer out of its list.
    fn unlink(&mut self, timer: u32) {
        let Link {
            previous,
            next,
            slot,
            ..
        } = self.links[index(timer)];
        if previous == NONE {
            self.heads[index(slot)] = next;
        } else {
            self.links[index(previous)].next = next;
        }
        if let Some(link) = self.links.get_mut(index(next)) {
            link.previous = previous;
            if previous == NONE {
                // Only the first one knows that its list was moved.
                link.slot = slot;
            }
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
        let mut left = DESCENDING_MAX;
        self.descend(self.now_ms.wrapping_add(1), &mut left);
        while super::sequence::before(self.now_ms, now_ms) && expired.len() < expired_max {
            self.now_ms = self.now_ms.wrapping_add(1);
            if self.begin_descents() {
                self.descend(self.now_ms, &mut left);
            }
            let slot = index(self.now_ms & (SLOTS[0] - 1));
            while self.heads[slot] != NONE {
                let timer = self.heads[slot];
                self.clear(timer);
                expired.push(timer);
            }
        }
    }

    /// A level's slot comes down when all levels below it start anew. Gives whether one does.
    fn begin_descents(&mut self) -> bool {
        for (level, place) in (1..LEVELS).zip(DESCENDING..) {
            if self.now_ms.trailing_zeros() < SHIFTS[level] {
                return level > 1;
            }
            // The slot before has had its whole time: what is left of it does not wait longer.
            let mut all = usize::MAX;
            self.descend_from(place, self.now_ms, &mut all);
            let slot = (self.now_ms >> SHIFTS[level]) & (SLOTS[level] - 1);
            let slot = index(FIRST_PLACES[level] + slot);
            let first = std::mem::replace(&mut self.heads[slot], NONE);
            self.heads[index(place)] = first;
            if let Some(link) = self.links.get_mut(index(first)) {
                link.slot = place;
            }
        }
        true
    }

    /// Brings up to `left` timers down, those of the lowest level first, as they are due first.
    fn descend(&mut self, first_ms: u32, left: &mut usize) {
        for (_, place) in (1..LEVELS).zip(DESCENDING..) {
            self.descend_from(place, first_ms, left);
        }
    }

    fn descend_from(&mut self, place: u32, first_ms: u32, left: &mut usize) {
        while *left > 0 {
            let timer = self.heads[index(place)];
            let Some(&Link { at_ms, .. }) = self.links.get(index(timer)) else {
                return;
            };
            *left -= 1;
            self.unlink(timer);
            self.insert(timer, at_ms, first_ms);
        }
    }

    /// Milliseconds until something may go off: exact within a level's turn, else a lower bound.
    /// `None` without timers.
    pub(crate) fn wait_ms(&self) -> Option<u32> {
        if self.armed == 0 {
            return None;
        }
        let descending = &self.heads[index(DESCENDING)..];
        if descending.iter().any(|first| *first != NONE) {
            return Some(1);
        }
        let turn_ends = SLOTS[0] - (self.now_ms & (SLOTS[0] - 1));
        (1..=turn_ends)
            .find(|wait| {
                let slot = index(self.now_ms.wrapping_add(*wait) & (SLOTS[0] - 1));
                *wait == turn_ends || self.heads[slot] != NONE
            })
            .or(Some(turn_ends))
    }

    /// Has the processor fetch a timer's place.
    pub(crate) fn expect(&self, timer: u32) {
        if let Some(link) = self.links.get(index(timer)) {
            prefetch(link);
        }
    }

    /// Timers are used at random: see [`prefer_large_pages`].
    pub(crate) fn prefer_large_pages(&self) {
        prefer_large_pages(&self.links);
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
            for wait in [
                1u32, 55, 511, 512, 513, 1023, 131_071, 131_072, 131_073, 140_000, 33_600_000,
            ] {
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

    #[test]
    fn many_timers_of_one_slot_come_down_in_parts() {
        const TIMERS: u32 = 20_000;
        // Both are due when a slot of 512 ms begins.
        for wait in [60_409u32, 200_185] {
            let mut wheel = Wheel::new(7, index(TIMERS) + 1);
            for timer in 0..TIMERS {
                wheel.set(timer, 7 + wait);
            }
            // A short timer that is set later is not held up by them.
            let mut late_ms = 0;
            let mut seen = 0;
            for now in 8..7 + wait + 1000 {
                if now % 100 == 0 {
                    wheel.set(TIMERS, now + 50);
                }
                for timer in expire(&mut wheel, now) {
                    if timer == TIMERS {
                        assert_eq!(now % 100, 50, "{wait} {now}");
                    } else {
                        assert!(now >= 7 + wait);
                        late_ms = late_ms.max(now - 7 - wait);
                        seen += 1;
                    }
                }
            }
            assert_eq!(seen, TIMERS, "{wait}");
            // Each call brings down 2,048.
            assert!(late_ms <= TIMERS / 2048 + 1, "{wait}: {late_ms} ms late");
            wheel.clear(TIMERS);
            assert_eq!(wheel.armed, 0);
        }
    }

    #[test]
    fn one_call_brings_down_a_bounded_number() {
        let mut wheel = Wheel::new(0, 10_000);
        for timer in 0..10_000 {
            wheel.set(timer, 1000);
        }
        let waiting = |wheel: &Wheel| {
            let mut count = 0;
            let mut next = wheel.heads[index(DESCENDING)];
            while let Some(link) = wheel.links.get(index(next)) {
                count += 1;
                next = link.next;
            }
            count
        };
        assert!(expire(&mut wheel, 512).is_empty());
        assert_eq!(waiting(&wheel), 10_000 - DESCENDING_MAX);
        assert_eq!(wheel.wait_ms(), Some(1));
        // Timers that wait to come down may be cleared, the first one, too.
        for timer in (0..10_000).step_by(2) {
            wheel.clear(timer);
        }
        let expired: usize = (1000..1004).map(|now| expire(&mut wheel, now).len()).sum();
        assert_eq!(expired, 5000);
        assert_eq!(wheel.armed, 0);
    }

    proptest! {
        #[test]
        fn behaves_as_a_sorted_list(
            steps in proptest::collection::vec((0u32..20, 1u32..300_000, any::<bool>(), 0u32..3000), 1..100),
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
