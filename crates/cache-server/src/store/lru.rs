//! Segmented LRU for each class of chunks: hot, warm and cold, after memcached 1.5's design.
//!
//! New items enter *hot*. Items that were asked for again go to *warm*, others to *cold*, from
//! whose end items are evicted. Reading an item only sets a bit: lists change when items are
//! stored.

use super::arena::{Arena, Chunk, Field};

/// The item was asked for since it was last moved.
pub(super) const ACTIVE: u8 = 1;
/// The item was ever asked for.
pub(super) const FETCHED: u8 = 2;

/// Shares of a class's items that hot and warm may hold, in percent (memcached's defaults).
const HOT_PERCENT: usize = 20;
const WARM_PERCENT: usize = 40;

/// A segment; its number is kept in the item. 0: not linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Segment {
    Hot = 1,
    Warm = 2,
    Cold = 3,
}

#[derive(Debug, Default, Clone, Copy)]
struct List {
    newest: u32,
    oldest: u32,
    items: usize,
}

/// The three lists of one class.
#[derive(Debug, Default, Clone)]
pub(super) struct Lru {
    lists: [List; 3],
}

impl Lru {
    pub(super) fn items(&self) -> usize {
        self.lists.iter().map(|list| list.items).sum()
    }

    pub(super) fn items_of(&self, segment: Segment) -> usize {
        self.lists[segment as usize - 1].items
    }

    fn push(&mut self, arena: &mut Arena, chunk: Chunk, segment: Segment) {
        let list = &mut self.lists[segment as usize - 1];
        arena.set_segment(chunk, segment as u8);
        arena.set(chunk, Field::Newer, 0);
        arena.set(chunk, Field::Older, list.newest);
        match Chunk::from_link(list.newest) {
            Some(newest) => arena.set(newest, Field::Newer, Chunk::link(Some(chunk))),
            None => list.oldest = Chunk::link(Some(chunk)),
        }
        list.newest = Chunk::link(Some(chunk));
        list.items += 1;
    }

    /// Takes an item out of its list.
    pub(super) fn remove(&mut self, arena: &mut Arena, chunk: Chunk) {
        let segment = usize::from(arena.segment(chunk));
        let Some(list) = segment.checked_sub(1).and_then(|at| self.lists.get_mut(at)) else {
            return;
        };
        let (newer, older) = (
            arena.get(chunk, Field::Newer),
            arena.get(chunk, Field::Older),
        );
        match Chunk::from_link(newer) {
            Some(newer) => arena.set(newer, Field::Older, older),
            None => list.newest = older,
        }
        match Chunk::from_link(older) {
            Some(older) => arena.set(older, Field::Newer, newer),
            None => list.oldest = newer,
        }
        list.items -= 1;
        arena.set_segment(chunk, 0);
    }

    fn shift(&mut self, arena: &mut Arena, chunk: Chunk, segment: Segment) {
        self.remove(arena, chunk);
        arena.set_bits(chunk, arena.bits(chunk) & !ACTIVE);
        self.push(arena, chunk, segment);
    }

    fn oldest(&self, segment: Segment) -> Option<Chunk> {
        Chunk::from_link(self.lists[segment as usize - 1].oldest)
    }

    /// Adds a new item, and moves at most two older ones on, so that storing has a bounded cost.
    pub(super) fn add(&mut self, arena: &mut Arena, chunk: Chunk) {
        self.push(arena, chunk, Segment::Hot);
        let all = self.items();
        for (segment, percent) in [(Segment::Hot, HOT_PERCENT), (Segment::Warm, WARM_PERCENT)] {
            if self.items_of(segment) * 100 > all * percent
                && let Some(oldest) = self.oldest(segment)
            {
                let is_active = arena.bits(oldest) & ACTIVE != 0;
                self.shift(
                    arena,
                    oldest,
                    if is_active {
                        Segment::Warm
                    } else {
                        Segment::Cold
                    },
                );
            }
        }
    }

    /// The item to evict: the oldest cold one that was not asked for. Bounded: after a few items
    /// that were, the next one is taken as it is.
    pub(super) fn victim(&mut self, arena: &mut Arena) -> Option<Chunk> {
        for _ in 0..8 {
            let Some(oldest) = self.oldest(Segment::Cold) else {
                break;
            };
            if arena.bits(oldest) & ACTIVE == 0 {
                return Some(oldest);
            }
            self.shift(arena, oldest, Segment::Warm);
        }
        [Segment::Cold, Segment::Hot, Segment::Warm]
            .into_iter()
            .find_map(|segment| self.oldest(segment))
    }

    /// The oldest item that could be evicted next, without changing anything.
    pub(super) fn tail(&self) -> Option<Chunk> {
        [Segment::Cold, Segment::Warm, Segment::Hot]
            .into_iter()
            .find_map(|segment| self.oldest(segment))
    }
}
