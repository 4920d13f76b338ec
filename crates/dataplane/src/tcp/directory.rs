//! Several stacks on one interface: which of them has a connection.
//!
//! The device spreads connections over its queues, and each queue leads to one stack. The queue is
//! the connection's flow group. A peer may still change the queue in the middle of a connection, as
//! Linux does after timeouts, and ARP's answers come by any queue. So all stacks share a
//! [`Directory`]. A stack looks into the directory only for a segment whose connection it does not
//! have.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Low bits of a place: connections that have it. The others are their group.
const COUNT_BITS: u32 = 22;
const COUNT_MAX: u32 = (1 << COUNT_BITS) - 1;
/// Groups at most.
pub const GROUPS_MAX: usize = 1 << (32 - COUNT_BITS);
/// Places, at least and at most: 4 bytes each.
const PLACES: std::ops::RangeInclusive<usize> = 4096..=1 << 22;

/// The flow group of every connection of several stacks. A connection has a place, by a hash of its
/// ends. All connections of a place are in one group, that of the first one.
#[derive(Debug)]
pub struct Directory {
    places: Box<[AtomicU32]>,
    /// Until when cookies are accepted: 0 is never, else milliseconds with bit 32 set.
    pub(super) cookies_until: AtomicU64,
}

impl Directory {
    /// A directory for so many connections, all stacks' together.
    pub fn new(connections_max: usize) -> Directory {
        let places = connections_max.saturating_mul(4);
        let places = places.clamp(*PLACES.start(), *PLACES.end());
        Directory {
            places: (0..places.next_power_of_two())
                .map(|_| AtomicU32::new(0))
                .collect(),
            cookies_until: AtomicU64::new(0),
        }
    }

    /// Connections of all stacks.
    #[cfg(test)]
    pub(super) fn connections(&self) -> u32 {
        let count = |place: &AtomicU32| place.load(Ordering::Acquire) & COUNT_MAX;
        self.places.iter().map(count).sum()
    }

    fn place(&self, hash: u64) -> &AtomicU32 {
        let at = usize::try_from(hash >> 32).unwrap_or(0) & (self.places.len() - 1);
        &self.places[at]
    }

    /// The group of the connections at this place, if there are any.
    pub(super) fn group(&self, hash: u64) -> Option<u16> {
        group_of(self.place(hash).load(Ordering::Acquire))
    }

    /// Puts one more connection at this place, in `group` or in the group of those that are there.
    /// `None` if that group is not the caller's.
    pub(super) fn claim(&self, hash: u64, group: u16, is_own: impl Fn(u16) -> bool) -> Option<u16> {
        let place = self.place(hash);
        let mut claimed = None;
        let claim = |value: u32| {
            let group = group_of(value).unwrap_or(group);
            let count = (value & COUNT_MAX) + 1;
            claimed = Some(group);
            (count < COUNT_MAX && is_own(group)).then_some(u32::from(group) << COUNT_BITS | count)
        };
        place
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, claim)
            .ok()?;
        claimed
    }

    /// Takes a connection away from its place.
    pub(super) fn release(&self, hash: u64) {
        let one_less = |value: u32| (value & COUNT_MAX > 0).then(|| value - 1);
        let place = self.place(hash);
        let _ = place.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
    }
}

fn group_of(value: u32) -> Option<u16> {
    (value & COUNT_MAX > 0).then(|| u16::try_from(value >> COUNT_BITS).unwrap_or(0))
}

/// A stack's part in a directory.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) directory: Arc<Directory>,
    /// For each group, whether its queue leads here.
    pub(super) is_own: Vec<bool>,
    /// The group by whose queue the present frame came.
    pub(super) arrival: u16,
    /// The present frame was handed over by another stack.
    pub(super) is_handed_over: bool,
    /// Frames for other stacks. Each frame that came makes one at most, or one for each group.
    pub(super) foreign: VecDeque<(u16, Box<[u8]>)>,
}

impl Share {
    pub(super) fn owns(&self, group: u16) -> bool {
        self.is_own
            .get(usize::from(group))
            .is_some_and(|is_own| *is_own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_one_groups_until_its_last_connection_ends() {
        let directory = Directory::new(0);
        let hash = 77 << 32;
        assert_eq!(directory.group(hash), None);
        assert_eq!(directory.claim(hash, 3, |_| true), Some(3));
        // Another connection at the same place joins the group, if that is the caller's.
        assert_eq!(directory.claim(hash, 1, |group| group == 1), None);
        assert_eq!(directory.claim(hash, 1, |_| true), Some(3));
        directory.release(hash);
        assert_eq!(directory.group(hash), Some(3));
        directory.release(hash);
        assert_eq!(directory.group(hash), None);
        directory.release(hash);
        assert_eq!(directory.claim(hash, 1, |group| group == 1), Some(1));
    }

    #[test]
    fn two_claims_at_once_agree() {
        let directory = Directory::new(0);
        for round in 0..2000_u64 {
            let claims = std::thread::scope(|scope| {
                [0, 1]
                    .map(|group: u16| {
                        let directory = &directory;
                        scope.spawn(move || directory.claim(round << 32, group, |own| own == group))
                    })
                    .map(|thread| thread.join().unwrap())
            });
            let winners = claims.iter().flatten().count();
            assert_eq!(winners, 1, "{claims:?}");
        }
    }
}
