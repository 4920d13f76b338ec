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

use super::secrets::Ends;
use super::stack::Stack;

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
    cookies_until: AtomicU64,
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
    fn group(&self, hash: u64) -> Option<u16> {
        group_of(self.place(hash).load(Ordering::Acquire))
    }

    /// Puts one more connection at this place, in `group` or in the group of those that are there.
    /// `None` if that group is not the caller's.
    fn claim(&self, hash: u64, group: u16, is_own: impl Fn(u16) -> bool) -> Option<u16> {
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
    fn release(&self, hash: u64) {
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
    directory: Arc<Directory>,
    /// For each group, whether its queue leads here.
    is_own: Vec<bool>,
    /// The group by whose queue the present frame came.
    arrival: u16,
    /// The present frame was handed over by another stack.
    is_handed_over: bool,
    /// Frames for other stacks. Each frame that came makes one at most, or one for each group.
    foreign: VecDeque<(u16, Box<[u8]>)>,
}

impl Stack {
    /// Shares a directory of `groups` groups with other stacks. No queue leads here yet. Called
    /// before there is any connection.
    pub fn share(&mut self, directory: Arc<Directory>, groups: usize) {
        self.share = Some(Box::new(Share {
            directory,
            is_own: vec![false; groups.min(GROUPS_MAX)],
            arrival: 0,
            is_handed_over: false,
            foreign: VecDeque::new(),
        }));
    }

    /// Says whether a group's queue leads here.
    pub fn own_group(&mut self, group: u16, is_own: bool) {
        if let Some(place) = self
            .share
            .as_mut()
            .and_then(|share| share.is_own.get_mut(usize::from(group)))
        {
            *place = is_own;
        }
    }

    /// Says how the next frames come: by which group's queue, and whether another stack has handed
    /// them over.
    pub fn arrive_by(&mut self, group: u16, is_handed_over: bool) {
        if let Some(share) = self.share.as_mut() {
            share.arrival = group;
            share.is_handed_over = is_handed_over;
        }
    }

    /// Next frame for another stack, and its group.
    pub fn take_foreign(&mut self) -> Option<(u16, Box<[u8]>)> {
        self.share.as_mut()?.foreign.pop_front()
    }

    /// The directory that this stack shares.
    #[cfg(test)]
    pub(super) fn directory(&self) -> Option<&Directory> {
        Some(&self.share.as_ref()?.directory)
    }

    /// Keeps a frame about a connection that is not here for the stack that has it. False if that
    /// is this one.
    pub(super) fn hand_on(&mut self, ends: &Ends, frame: &[u8]) -> bool {
        let hash = self.secrets.table_hash(ends);
        let Some(share) = self.share.as_mut() else {
            return false;
        };
        let group = share.directory.group(hash).unwrap_or(share.arrival);
        if share.owns(group) {
            return false;
        }
        share.foreign.push_back((group, frame.into()));
        self.context.counters.frames_handed_over += 1;
        true
    }

    /// Keeps a frame for all other stacks, unless one of them has sent it.
    pub(super) fn hand_to_all(&mut self, frame: &[u8]) {
        let Some(share) = self.share.as_mut() else {
            return;
        };
        if share.is_handed_over {
            return;
        }
        for (group, _) in (0..).zip(&share.is_own).filter(|(_, is_own)| !**is_own) {
            share.foreign.push_back((group, frame.into()));
            self.context.counters.frames_handed_over += 1;
        }
    }

    /// The group of a new connection. `None` if another stack has the connection's place.
    pub(super) fn claim(&self, ends: &Ends) -> Option<u16> {
        let Some(share) = &self.share else {
            return Some(0);
        };
        let hash = self.secrets.table_hash(ends);
        share
            .directory
            .claim(hash, share.arrival, |group| share.owns(group))
    }

    /// The connection of a claim is gone.
    pub(super) fn unclaim(&self, ends: &Ends) {
        if let Some(share) = &self.share {
            share.directory.release(self.secrets.table_hash(ends));
        }
    }

    /// A connection that this side opens answers by any queue: it counts as of the first own one.
    /// False if there is none.
    pub(super) fn arrive_by_own_group(&mut self) -> bool {
        let Some(share) = self.share.as_mut() else {
            return true;
        };
        let first = (0..).zip(&share.is_own).find(|(_, is_own)| **is_own);
        let Some((group, _)) = first else {
            return false;
        };
        share.arrival = group;
        true
    }

    /// Whether another stack may have a connection with these ends, or one that shares its place.
    pub(super) fn is_elsewhere(&self, ends: &Ends) -> bool {
        self.share.as_ref().is_some_and(|share| {
            let hash = self.secrets.table_hash(ends);
            let group = share.directory.group(hash);
            group.is_some_and(|group| !share.owns(group))
        })
    }

    /// Until when cookies are accepted, in milliseconds.
    pub(super) fn cookies_until_ms(&self) -> Option<u32> {
        let Some(share) = &self.share else {
            return self.cookies_until_ms;
        };
        let until = share.directory.cookies_until.load(Ordering::Relaxed);
        (until > 0).then_some(super::input::low32(until))
    }

    /// Sets until when cookies are accepted, for all stacks that share: the answer to a cookie may
    /// come to another one.
    pub(super) fn accept_cookies_until(&mut self, until_ms: Option<u32>) {
        let Some(share) = &self.share else {
            self.cookies_until_ms = until_ms;
            return;
        };
        let until = until_ms.map_or(0, |until_ms| u64::from(until_ms) | 1 << 32);
        share
            .directory
            .cookies_until
            .store(until, Ordering::Relaxed);
    }
}

impl Share {
    fn owns(&self, group: u16) -> bool {
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
