//! The memory of a store: pages of 4 MiB, each cut into chunks of one size (slabs).

/// Bytes of a page. Three of the largest items fit into one.
pub(super) const PAGE_BYTES: usize = 4 << 20;
/// Bytes before an item's key.
pub(super) const HEADER_BYTES: usize = 48;
/// The smallest chunk: a header, and a key and value of 48 bytes together.
const CHUNK_MIN_BYTES: usize = 96;
/// Growth of chunk sizes, in percent. memcached's default is 125: 120 wastes less for a few more
/// classes.
const GROWTH_PERCENT: usize = 120;
/// A page's number that says "no class".
const NO_CLASS: u8 = u8::MAX;

/// A chunk: the page in the upper half, the position in the page in the lower one. Stored in items
/// with 1 added, so that 0 is "none".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Chunk(u32);

impl Chunk {
    fn new(page: usize, position: usize) -> Self {
        Self(u32::try_from(page << 16 | position).unwrap_or(0))
    }

    pub(super) fn page(self) -> usize {
        (self.0 >> 16) as usize
    }

    fn position(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    pub(super) fn link(chunk: Option<Self>) -> u32 {
        chunk.map_or(0, |chunk| chunk.0 + 1)
    }

    pub(super) fn from_link(link: u32) -> Option<Self> {
        link.checked_sub(1).map(Self)
    }
}

/// A field of an item's header.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(super) enum Field {
    /// Next item of the same bucket, or next free chunk.
    Next = 0,
    Newer = 4,
    Older = 8,
    Hash = 12,
    Expiry = 16,
    Access = 20,
    Flags = 24,
    ValueLen = 28,
}

const CAS: usize = 32;
const KEY_LEN: usize = 40;
const SEGMENT: usize = 41;
const BITS: usize = 42;

/// Chunks of one size.
#[derive(Debug, Default)]
struct Class {
    chunk_bytes: usize,
    free: u32,
    /// The page that is being cut, and how many chunks of it are cut.
    cutting: Option<(usize, usize)>,
    pages: usize,
}

/// All pages.
pub(super) struct Arena {
    memory: Box<[u8]>,
    page_class: Vec<u8>,
    /// Chunks of each page whose item is being filled: such a page cannot be taken.
    page_pending: Vec<u32>,
    classes: Vec<Class>,
    unused_pages: Vec<usize>,
}

impl Arena {
    /// Reserves `memory_bytes` rounded down to pages, at least one. Memory is used when it is
    /// written.
    pub(super) fn new(memory_bytes: usize) -> Self {
        let pages = (memory_bytes / PAGE_BYTES).clamp(1, 0xfffe);
        let mut classes = Vec::new();
        let mut chunk_bytes = CHUNK_MIN_BYTES;
        while chunk_bytes < PAGE_BYTES / 4 {
            classes.push(Class {
                chunk_bytes,
                ..Class::default()
            });
            chunk_bytes = (chunk_bytes * GROWTH_PERCENT / 100).next_multiple_of(8);
        }
        for parts in [4, 3] {
            let chunk_bytes = PAGE_BYTES / parts / 8 * 8;
            classes.push(Class {
                chunk_bytes,
                ..Class::default()
            });
        }
        Self {
            memory: vec![0; pages * PAGE_BYTES].into_boxed_slice(),
            page_class: vec![NO_CLASS; pages],
            page_pending: vec![0; pages],
            classes,
            unused_pages: (0..pages).rev().collect(),
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.memory.len()
    }

    pub(super) fn classes(&self) -> usize {
        self.classes.len()
    }

    pub(super) fn chunk_bytes(&self, class: usize) -> usize {
        self.classes[class].chunk_bytes
    }

    pub(super) fn pages_of(&self, class: usize) -> usize {
        self.classes[class].pages
    }

    /// The class of the smallest chunks that hold so many bytes.
    pub(super) fn class_for(&self, len_bytes: usize) -> Option<usize> {
        let class = self
            .classes
            .partition_point(|class| class.chunk_bytes < len_bytes);
        (class < self.classes.len()).then_some(class)
    }

    /// A free chunk of a class, without taking one from an item.
    pub(super) fn allocate(&mut self, class: usize) -> Option<Chunk> {
        let per_page = PAGE_BYTES / self.classes[class].chunk_bytes;
        if let Some(chunk) = Chunk::from_link(self.classes[class].free) {
            self.classes[class].free = self.get(chunk, Field::Next);
            return Some(chunk);
        }
        if !matches!(self.classes[class].cutting, Some((_, cut)) if cut < per_page) {
            let page = self.unused_pages.pop()?;
            self.page_class[page] = u8::try_from(class).unwrap_or(NO_CLASS);
            self.classes[class].pages += 1;
            self.classes[class].cutting = Some((page, 0));
        }
        let (page, cut) = self.classes[class].cutting?;
        self.classes[class].cutting = Some((page, cut + 1));
        Some(Chunk::new(page, cut))
    }

    /// Gives a chunk back to its class.
    pub(super) fn free(&mut self, chunk: Chunk) {
        let class = self.class_of(chunk);
        self.set_segment(chunk, 0);
        self.set(chunk, Field::Next, self.classes[class].free);
        self.classes[class].free = Chunk::link(Some(chunk));
    }

    /// All cut chunks of a page.
    pub(super) fn chunks_of_page(&self, page: usize) -> impl Iterator<Item = Chunk> + use<> {
        let class = usize::from(self.page_class[page]);
        let cut = match self.classes.get(class) {
            Some(class) => match class.cutting {
                Some((cutting, cut)) if cutting == page => cut,
                _ => PAGE_BYTES / class.chunk_bytes,
            },
            None => 0,
        };
        (0..cut).map(move |position| Chunk::new(page, position))
    }

    /// A page of a class that can be taken, where none of its items is being filled.
    pub(super) fn page_to_take(&self, class: usize) -> Option<usize> {
        (0..self.page_class.len()).find(|&page| {
            usize::from(self.page_class[page]) == class && self.page_pending[page] == 0
        })
    }

    /// Takes a page from its class; all its chunks must be free.
    pub(super) fn take_page(&mut self, page: usize) {
        let class = usize::from(self.page_class[page]);
        // The free list without the page's chunks.
        let mut next = Chunk::from_link(self.classes[class].free);
        let mut kept: Option<Chunk> = None;
        self.classes[class].free = 0;
        while let Some(chunk) = next {
            next = Chunk::from_link(self.get(chunk, Field::Next));
            if chunk.page() != page {
                self.set(chunk, Field::Next, Chunk::link(kept));
                kept = Some(chunk);
            }
        }
        let owner = &mut self.classes[class];
        owner.free = Chunk::link(kept);
        owner.pages -= 1;
        if matches!(owner.cutting, Some((cutting, _)) if cutting == page) {
            owner.cutting = None;
        }
        self.page_class[page] = NO_CLASS;
        self.unused_pages.push(page);
    }

    pub(super) fn pages(&self) -> usize {
        self.page_class.len()
    }

    pub(super) fn set_pending(&mut self, chunk: Chunk, is_pending: bool) {
        let pending = &mut self.page_pending[chunk.page()];
        *pending = if is_pending {
            *pending + 1
        } else {
            pending.saturating_sub(1)
        };
    }

    pub(super) fn class_of(&self, chunk: Chunk) -> usize {
        usize::from(self.page_class[chunk.page()])
    }

    fn at(&self, chunk: Chunk) -> usize {
        let class = usize::from(self.page_class[chunk.page()]);
        chunk.page() * PAGE_BYTES + chunk.position() * self.classes[class].chunk_bytes
    }

    pub(super) fn get(&self, chunk: Chunk, field: Field) -> u32 {
        let at = self.at(chunk) + field as usize;
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.memory[at..at + 4]);
        u32::from_ne_bytes(bytes)
    }

    pub(super) fn set(&mut self, chunk: Chunk, field: Field, value: u32) {
        let at = self.at(chunk) + field as usize;
        self.memory[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    pub(super) fn cas(&self, chunk: Chunk) -> u64 {
        let at = self.at(chunk) + CAS;
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.memory[at..at + 8]);
        u64::from_ne_bytes(bytes)
    }

    pub(super) fn set_cas(&mut self, chunk: Chunk, cas: u64) {
        let at = self.at(chunk) + CAS;
        self.memory[at..at + 8].copy_from_slice(&cas.to_ne_bytes());
    }

    pub(super) fn segment(&self, chunk: Chunk) -> u8 {
        self.memory[self.at(chunk) + SEGMENT]
    }

    pub(super) fn set_segment(&mut self, chunk: Chunk, segment: u8) {
        let at = self.at(chunk) + SEGMENT;
        self.memory[at] = segment;
    }

    pub(super) fn bits(&self, chunk: Chunk) -> u8 {
        self.memory[self.at(chunk) + BITS]
    }

    pub(super) fn set_bits(&mut self, chunk: Chunk, bits: u8) {
        let at = self.at(chunk) + BITS;
        self.memory[at] = bits;
    }

    pub(super) fn key(&self, chunk: Chunk) -> &[u8] {
        let at = self.at(chunk);
        let len = usize::from(self.memory[at + KEY_LEN]);
        &self.memory[at + HEADER_BYTES..at + HEADER_BYTES + len]
    }

    pub(super) fn set_key(&mut self, chunk: Chunk, key: &[u8]) {
        let at = self.at(chunk);
        self.memory[at + KEY_LEN] = u8::try_from(key.len()).unwrap_or(u8::MAX);
        self.memory[at + HEADER_BYTES..at + HEADER_BYTES + key.len()].copy_from_slice(key);
    }

    fn value_range(&self, chunk: Chunk) -> std::ops::Range<usize> {
        let at = self.at(chunk);
        let start = at + HEADER_BYTES + usize::from(self.memory[at + KEY_LEN]);
        start..start + self.get(chunk, Field::ValueLen) as usize + 2
    }

    /// The value and the line end behind it.
    pub(super) fn value(&self, chunk: Chunk) -> &[u8] {
        &self.memory[self.value_range(chunk)]
    }

    pub(super) fn value_mut(&mut self, chunk: Chunk) -> &mut [u8] {
        let range = self.value_range(chunk);
        &mut self.memory[range]
    }

    /// Copies the value of one item into that of another, from `offset` on.
    pub(super) fn copy_value(&mut self, from: Chunk, to: Chunk, offset: usize) {
        let source = self.value_range(from);
        let target = self.value_range(to).start + offset;
        self.memory
            .copy_within(source.start..source.end - 2, target);
    }
}
