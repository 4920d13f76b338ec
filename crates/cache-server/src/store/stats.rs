//! Figures of a store.

/// Counters of a store.
#[derive(Debug, Default, Clone, Copy)]
pub struct StoreStats {
    /// Items now.
    pub items: u64,
    /// Bytes of headers, keys and values now.
    pub bytes: u64,
    /// Items ever stored.
    pub total_items: u64,
    /// Items evicted that had not expired.
    pub evictions: u64,
    /// Of these, items that nobody ever asked for.
    pub evicted_unfetched: u64,
    /// Items removed because they had expired.
    pub expired: u64,
    /// Of these, items that nobody ever asked for.
    pub expired_unfetched: u64,
    /// Pages that went from one class to another.
    pub pages_moved: u64,
}

impl StoreStats {
    /// Adds the counters of another partition.
    pub fn add(&mut self, other: &Self) {
        self.items += other.items;
        self.bytes += other.bytes;
        self.total_items += other.total_items;
        self.evictions += other.evictions;
        self.evicted_unfetched += other.evicted_unfetched;
        self.expired += other.expired;
        self.expired_unfetched += other.expired_unfetched;
        self.pages_moved += other.pages_moved;
    }
}

/// Figures of one class of chunks.
#[derive(Debug, Default, Clone, Copy)]
pub struct ClassStats {
    /// Bytes of a chunk.
    pub chunk_bytes: usize,
    /// Pages.
    pub pages: usize,
    /// Items in hot, warm and cold.
    pub items: [usize; 3],
}
