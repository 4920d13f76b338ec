//! Memory for an item: a free chunk, a page of another class, or the place of an older item.

use super::arena::{Chunk, Field};
use super::index::Store;
use super::lru::FETCHED;

/// Evictions of a class between two looks at whether another class holds older items.
const BALANCE_EVICTIONS: u64 = 1024;

impl Store {
    fn evict(&mut self, chunk: Chunk) {
        if self.is_dead(chunk) {
            self.expire(chunk);
            return;
        }
        self.stats.evictions += 1;
        if self.arena.bits(chunk) & FETCHED == 0 {
            self.stats.evicted_unfetched += 1;
        }
        self.remove(chunk);
    }

    /// A free chunk: from the class, by taking a page from a class with older items, or by
    /// eviction.
    #[inline]
    pub(super) fn allocate(&mut self, class: usize) -> Option<Chunk> {
        if let Some(chunk) = self.arena.allocate(class) {
            return Some(chunk);
        }
        self.evictions_of[class] += 1;
        let wants_balance = self.evictions_of[class].is_multiple_of(BALANCE_EVICTIONS);
        if self.lrus[class].items() == 0 || wants_balance {
            self.take_page_for(class, self.lrus[class].items() == 0);
            if let Some(chunk) = self.arena.allocate(class) {
                return Some(chunk);
            }
        }
        let victim = self.lrus[class].victim(&mut self.arena)?;
        self.evict(victim);
        self.arena.allocate(class)
    }

    /// Takes a page from the class whose next victim is oldest: always if `is_forced`, else only if
    /// that one is older than twice the age of this class's own.
    fn take_page_for(&mut self, class: usize, is_forced: bool) {
        let age = |store: &Self, class: usize| {
            let tail = store.lrus[class].tail()?;
            Some(
                store
                    .now
                    .saturating_sub(store.arena.get(tail, Field::Access)),
            )
        };
        let own = age(self, class).unwrap_or(0);
        let candidates = (0..self.arena.classes()).filter(|&other| {
            let spare = if is_forced { 1 } else { 2 };
            other != class
                && self.arena.pages_of(other) >= spare
                && self.arena.page_to_take(other).is_some()
        });
        // A class without items has its memory for nothing: the oldest of all.
        let oldest = candidates.max_by_key(|&other| {
            (
                age(self, other).unwrap_or(u32::MAX),
                self.arena.pages_of(other),
            )
        });
        let Some(giver) = oldest else { return };
        if !is_forced && age(self, giver).is_some_and(|age| age < 2 * own + 60) {
            return;
        }
        let Some(page) = self.arena.page_to_take(giver) else {
            return;
        };
        for chunk in self.arena.chunks_of_page(page) {
            if self.arena.segment(chunk) != 0 {
                self.evict(chunk);
            }
        }
        self.arena.take_page(page);
        self.stats.pages_moved += 1;
    }

    /// Looks at up to `chunks` chunks, and removes expired items among them.
    pub fn crawl(&mut self, chunks: usize) {
        let mut left = chunks;
        // At most once round all pages.
        for _ in 0..=self.arena.pages() {
            if left == 0 {
                return;
            }
            let (page, position) = self.crawler;
            let mut seen = 0;
            for chunk in self.arena.chunks_of_page(page).skip(position).take(left) {
                seen += 1;
                if self.arena.segment(chunk) != 0 && self.is_dead(chunk) {
                    self.expire(chunk);
                }
            }
            if seen < left {
                // A page without chunks costs a look as well.
                left -= seen.max(1).min(left);
                self.crawler = ((page + 1) % self.arena.pages(), 0);
            } else {
                left = 0;
                self.crawler = (page, position + seen);
            }
        }
    }
}
