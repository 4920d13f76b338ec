//! A stack's part among several stacks on one interface: frames of others are handed on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::directory::{Directory, GROUPS_MAX, Share};
use super::secrets::Ends;
use super::sequence::low32;
use super::stack::Stack;

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
        (until > 0).then_some(low32(until))
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
