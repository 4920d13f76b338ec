//! Buffers for requests under way, used again by size, under one limit.

use dataplane::file::FileBuffer;

/// Sizes that are kept: 4 KiB to 1 MiB, by powers of two.
const CLASSES: usize = 9;
const SMALLEST_BYTES: usize = 4096;
/// Requests up to this size have memory of their own.
const SMALL_BYTES: usize = 64 * 1024;
/// Bytes that a connection moves before it is trusted. A client that reads nothing takes less: what
/// the flow's queue and the kernel's buffers hold (1 MiB, and up to 6 MiB by `tcp_wmem` and
/// `tcp_rmem`).
const TRUSTED_AFTER_BYTES: usize = 16 << 20;
/// The part of the memory that a connection which is not trusted may hold, past its first request:
/// 2 MiB by default.
const UNTRUSTED_PART: usize = 128;
/// Memory that one connection may hold, however much there is.
const SHARE_MAX_BYTES: usize = 64 << 20;
/// Bytes that are kept of each size at most.
const KEPT_BYTES: usize = 8 << 20;

/// What one connection holds of a pool.
#[derive(Debug, Default)]
pub struct Account {
    /// Requests from their header to the end of their answer.
    requests: usize,
    held_bytes: usize,
    /// Bytes of requests that have ended since the client last stood still.
    moved_bytes: usize,
}

impl Account {
    /// The connection's requests under way, from their header to the end of their answer.
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// Memory of the connection's requests under way.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Whether the client has lately read answers, or sent data, that no buffer between could hold.
    fn is_trusted(&self) -> bool {
        self.moved_bytes >= TRUSTED_AFTER_BYTES
    }
}

/// What a request asks memory for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Up to 64 KiB: an eighth of the memory is kept for such requests.
    Small,
    /// As `Small`, for data on their way behind their command: nothing else can come before them.
    Capsule,
    /// More.
    Large,
    /// As `Large`, for data that the client was asked for and may take long to send. Capsules come
    /// before them, so half of the connection's share is left for those.
    Asked,
}

/// Whether a request may have memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// It may.
    Free,
    /// The connection has its share: requests of its own have to end first.
    OwnFirst,
    /// Others hold too much: their requests have to end first.
    OthersFirst,
}

impl Use {
    /// By the memory of a request.
    pub fn of(len_bytes: usize) -> Self {
        if len_bytes <= SMALL_BYTES {
            Self::Small
        } else {
            Self::Large
        }
    }

    /// What of `bytes` such requests may hold.
    fn part_of(self, bytes: usize) -> usize {
        match self {
            Self::Small | Self::Capsule => bytes,
            Self::Large | Self::Asked => bytes - bytes / 8,
        }
    }
}

/// Which connections wait in one line: those whose requests the same memory is for.
pub const LINES: usize = 4;

/// The buffers of one shard.
pub struct BufferPool {
    kept: [Vec<FileBuffer>; CLASSES],
    limit_bytes: usize,
    /// Bytes that requests under way have asked for.
    reserved_bytes: usize,
    /// Those among them of connections that are not trusted.
    untrusted_bytes: usize,
    /// Requests under way of connections that are there.
    requests: usize,
}

fn class_of(len_bytes: usize) -> usize {
    let units = len_bytes.div_ceil(SMALLEST_BYTES).max(1);
    units.next_power_of_two().trailing_zeros() as usize
}

impl BufferPool {
    /// A pool that gives out no more than `limit_bytes`, or one buffer if that is larger.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            kept: std::array::from_fn(|_| Vec::new()),
            limit_bytes,
            reserved_bytes: 0,
            untrusted_bytes: 0,
            requests: 0,
        }
    }

    /// Requests under way of all connections.
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// Whether a connection's request may have `len_bytes`.
    ///
    /// - A connection has a share, past its first request: little until its client is trusted, so
    ///   that many clients that read nothing leave room for new ones.
    /// - Beside its first request a connection may hold as much as is left for others then, so
    ///   that busy ones leave room for a new one (dynamic thresholds; Choudhury and Hahne, "Dynamic
    ///   queue length thresholds for shared-memory packet switches", 1998).
    /// - Connections that are not trusted have three quarters of the memory, so that clients that
    ///   do not read leave the rest to those that do. The largest request fits into that part.
    pub fn room(&self, account: &Account, len_bytes: usize, wanted_for: Use) -> Room {
        if len_bytes == 0 || self.reserved_bytes == 0 {
            return Room::Free;
        }
        let is_first = Self::is_first(account, wanted_for);
        if !is_first && account.held_bytes + len_bytes > self.share_of(account, wanted_for) {
            return Room::OwnFirst;
        }
        let limit_bytes = wanted_for.part_of(self.limit_bytes);
        let mut left_bytes = limit_bytes.saturating_sub(self.reserved_bytes);
        if !account.is_trusted() && self.untrusted_bytes > 0 {
            let most_bytes = wanted_for.part_of(self.limit_bytes / 4 * 3);
            left_bytes = left_bytes.min(most_bytes.saturating_sub(self.untrusted_bytes));
        }
        let needed_bytes = match is_first {
            true => len_bytes,
            false => account.held_bytes + 2 * len_bytes,
        };
        match needed_bytes <= left_bytes {
            true => Room::Free,
            false => Room::OthersFirst,
        }
    }

    /// Whether no end of the connection's own requests can make room for this one.
    pub fn is_first(account: &Account, wanted_for: Use) -> bool {
        account.held_bytes == 0 || wanted_for == Use::Capsule
    }

    /// The line in which a connection waits for memory, below [`LINES`].
    pub fn line(account: &Account, wanted_for: Use) -> usize {
        let is_large = matches!(wanted_for, Use::Large | Use::Asked);
        usize::from(is_large) + 2 * usize::from(!account.is_trusted())
    }

    /// Memory that one connection may hold at most, past its first request.
    pub fn share_bytes(&self) -> usize {
        (self.limit_bytes / 4).min(SHARE_MAX_BYTES)
    }

    fn share_of(&self, account: &Account, wanted_for: Use) -> usize {
        let share_bytes = match account.is_trusted() {
            true => self.share_bytes(),
            false => self.limit_bytes / UNTRUSTED_PART,
        };
        match wanted_for {
            Use::Asked => share_bytes / 2,
            Use::Small | Use::Capsule | Use::Large => share_bytes,
        }
    }

    /// Counts a request and its memory.
    pub fn reserve(&mut self, account: &mut Account, len_bytes: usize) {
        self.requests += 1;
        account.requests += 1;
        self.reserved_bytes += len_bytes;
        account.held_bytes += len_bytes;
        if !account.is_trusted() {
            self.untrusted_bytes += len_bytes;
        }
    }

    /// A request has ended, and its client took the answer.
    pub fn release(&mut self, account: &mut Account, len_bytes: usize) {
        self.requests -= 1;
        account.requests -= 1;
        self.reserved_bytes -= len_bytes;
        if !account.is_trusted() {
            self.untrusted_bytes -= len_bytes;
        }
        account.held_bytes -= len_bytes;
        let was_trusted = account.is_trusted();
        account.moved_bytes = account.moved_bytes.saturating_add(len_bytes);
        if account.is_trusted() && !was_trusted {
            self.untrusted_bytes -= account.held_bytes;
        }
    }

    /// The client stands still: it neither reads nor sends.
    pub fn distrust(&mut self, account: &mut Account) {
        if account.is_trusted() {
            self.untrusted_bytes += account.held_bytes;
        }
        account.moved_bytes = 0;
    }

    /// The connection is gone. What its requests hold goes by [`BufferPool::release_orphan`].
    pub fn close(&mut self, account: Account) {
        self.requests -= account.requests;
        if !account.is_trusted() {
            self.untrusted_bytes -= account.held_bytes;
        }
    }

    /// A request has ended whose connection is gone.
    pub fn release_orphan(&mut self, len_bytes: usize) {
        self.reserved_bytes -= len_bytes;
    }

    /// A buffer of at least `len_bytes`, with bytes of earlier requests in it.
    pub fn take(&mut self, len_bytes: usize) -> FileBuffer {
        if len_bytes == 0 {
            return FileBuffer::default();
        }
        let class = class_of(len_bytes);
        match self.kept.get_mut(class) {
            Some(kept) => kept
                .pop()
                .unwrap_or_else(|| FileBuffer::zeroed(SMALLEST_BYTES << class)),
            None => FileBuffer::zeroed(len_bytes),
        }
    }

    /// Takes a buffer back.
    pub fn give(&mut self, buffer: FileBuffer) {
        let len_bytes = buffer.len_bytes();
        if len_bytes == 0 {
            return;
        }
        let class = class_of(len_bytes);
        if let Some(kept) = self.kept.get_mut(class)
            && len_bytes == SMALLEST_BYTES << class
            && kept.len() < (KEPT_BYTES >> class) / SMALLEST_BYTES
        {
            kept.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buffers_come_back_by_size() {
        let mut pool = BufferPool::new(1 << 20);
        for len_bytes in [1, 4096, 4097, 70_000, 1 << 20, 5 << 20] {
            let mut buffer = pool.take(len_bytes);
            assert!(buffer.len_bytes() >= len_bytes);
            buffer.bytes_mut()[0] = 7;
            pool.give(buffer);
            let is_kept = pool.take(len_bytes).bytes()[0] == 7;
            assert_eq!(is_kept, len_bytes <= 1 << 20, "{len_bytes}");
        }
    }

    fn has_room(pool: &BufferPool, account: &Account, len_bytes: usize, wanted_for: Use) -> bool {
        pool.room(account, len_bytes, wanted_for) == Room::Free
    }

    fn takes(pool: &mut BufferPool, account: &mut Account, len_bytes: usize) -> bool {
        let has_room = has_room(pool, account, len_bytes, Use::of(len_bytes));
        if has_room {
            pool.reserve(account, len_bytes);
        }
        has_room
    }

    fn trusted() -> Account {
        Account {
            moved_bytes: TRUSTED_AFTER_BYTES,
            ..Account::default()
        }
    }

    #[test]
    fn the_limit_holds_and_small_requests_have_memory_of_their_own() {
        let mut pool = BufferPool::new(1 << 20);
        let mut one = trusted();
        assert!(takes(&mut pool, &mut one, 8 << 20), "a lone request");
        assert!(!takes(&mut pool, &mut trusted(), 1));
        assert!(takes(&mut pool, &mut trusted(), 0));
        pool.release(&mut one, 8 << 20);
        pool.reserve(&mut one, 1 << 19);
        assert!(!has_room(&pool, &trusted(), (3 << 17) + 1, Use::Large));
        assert!(takes(&mut pool, &mut trusted(), 3 << 17));
        assert!(!has_room(&pool, &trusted(), 65 << 10, Use::Large));
        assert!(!has_room(&pool, &trusted(), 1, Use::Large));
        assert!(takes(&mut pool, &mut trusted(), 64 << 10));
    }

    #[test]
    fn a_connection_past_its_share_waits_for_itself() {
        let mut pool = BufferPool::new(256 << 20);
        let room = |pool: &BufferPool, account: &Account, wanted_for| {
            pool.room(account, 1 << 20, wanted_for)
        };
        for (mut account, share_bytes) in [(Account::default(), 2 << 20), (trusted(), 64 << 20)] {
            pool.reserve(&mut account, share_bytes - (1 << 20));
            assert_eq!(room(&pool, &account, Use::Large), Room::Free);
            // Half of the share is for what comes before data that were asked for.
            assert_eq!(room(&pool, &account, Use::Asked), Room::OwnFirst);
            pool.reserve(&mut account, 1);
            assert_eq!(room(&pool, &account, Use::Large), Room::OwnFirst);
            assert_eq!(room(&pool, &account, Use::Capsule), Room::Free);
            pool.release(&mut account, share_bytes - (1 << 20));
            pool.release(&mut account, 1);
        }
        let mut others = trusted();
        pool.reserve(&mut others, 230 << 20);
        assert_eq!(room(&pool, &trusted(), Use::Large), Room::OthersFirst);
    }

    #[test]
    fn clients_that_never_read_leave_room_for_others() {
        let mut pool = BufferPool::new(256 << 20);
        let mut deaf: Vec<Account> = (0..64).map(|_| Account::default()).collect();
        let mut fill = |pool: &mut BufferPool, len_bytes: usize| {
            for _ in 0..16 {
                for account in &mut deaf {
                    takes(pool, account, len_bytes);
                }
            }
        };
        fill(&mut pool, 1 << 20);
        let mut new = Account::default();
        assert!(takes(&mut pool, &mut new, 1 << 20));
        // Small requests of theirs do not take what is kept for small ones.
        fill(&mut pool, 64 << 10);
        assert!(takes(&mut pool, &mut Account::default(), 64 << 10));
        // Large ones may take their part. A client that reads has the rest.
        fill(&mut pool, 32 << 20);
        let mut reader = trusted();
        for _ in 0..16 {
            assert!(takes(&mut pool, &mut reader, 1 << 20));
        }
        // Nor can many that read and then stop take all.
        let mut many: Vec<Account> = (0..16).map(|_| trusted()).collect();
        for _ in 0..16 {
            for account in &mut many {
                takes(&mut pool, account, 1 << 20);
            }
        }
        assert!(takes(&mut pool, &mut trusted(), 256 << 10));
    }

    proptest! {
        /// Sums follow what accounts hold, whatever happens to them.
        #[test]
        fn the_sums_hold(steps in prop::collection::vec((0_usize..4, 0_u8..5, 1_usize..8 << 20), 1..200)) {
            let mut pool = BufferPool::new(64 << 20);
            let mut accounts: Vec<(Account, Vec<usize>)> = Vec::new();
            accounts.resize_with(4, Default::default);
            let mut orphans: Vec<usize> = Vec::new();
            for (at, what, len_bytes) in steps {
                let (account, requests) = &mut accounts[at];
                match what {
                    0 | 1 if takes(&mut pool, account, len_bytes) => requests.push(len_bytes),
                    2 => if let Some(len_bytes) = requests.pop() {
                        pool.release(account, len_bytes);
                    },
                    3 => pool.distrust(account),
                    4 => {
                        orphans.append(requests);
                        pool.close(std::mem::take(account));
                    }
                    _ => if let Some(len_bytes) = orphans.pop() {
                        pool.release_orphan(len_bytes);
                    },
                }
                let held = |account: &Account| account.held_bytes;
                let all: usize = accounts.iter().map(|(account, _)| held(account)).sum();
                let untrusted = accounts.iter().filter(|(account, _)| !account.is_trusted());
                prop_assert_eq!(pool.reserved_bytes, all + orphans.iter().sum::<usize>());
                let untrusted: usize = untrusted.map(|(account, _)| held(account)).sum();
                prop_assert_eq!(pool.untrusted_bytes, untrusted);
                let requests: usize = accounts.iter().map(|(_, requests)| requests.len()).sum();
                prop_assert_eq!(pool.requests, requests);
            }
        }
    }
}
