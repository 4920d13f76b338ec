//! Hints for the processor and the kernel about memory that is used soon, or used at random.
//!
//! With a million connections nothing of a connection is in a cache when its segment comes. One
//! after the other, its cache lines take longer than the work on them. Asked for in time, the lines
//! of a whole batch come together.

/// Bytes of a cache line on every processor that Linux runs this on today.
const LINE_BYTES: usize = 64;

/// A multiple of every page size that Linux has on x86-64 and aarch64.
const PAGE_BYTES: usize = 65_536;

/// Has the processor fetch the cache lines of `value` while the program goes on.
pub(crate) fn prefetch<T>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    for offset in (0..size_of::<T>()).step_by(LINE_BYTES) {
        prefetch_line(start.wrapping_add(offset));
    }
    // The value may begin inside of a line.
    prefetch_line(start.wrapping_add(size_of::<T>().saturating_sub(1)));
}

/// The same for the beginning of `bytes`: `most` bytes at most.
pub(crate) fn prefetch_start(bytes: &[u8], most: usize) {
    for offset in (0..bytes.len().min(most)).step_by(LINE_BYTES) {
        prefetch_line(bytes.as_ptr().wrapping_add(offset));
    }
}

#[cfg(target_arch = "x86_64")]
fn prefetch_line(place: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch reads nothing that the program could see, and faults at no address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
}

#[cfg(not(target_arch = "x86_64"))]
fn prefetch_line(_place: *const u8) {}

/// Tells the kernel that the memory behind a vector's elements, those to come included, is used at
/// random, so that large pages pay (`MADV_HUGEPAGE`, madvise(2)). A kernel that does not have them
/// keeps small ones.
pub(crate) fn prefer_large_pages<T>(vector: &Vec<T>) {
    let length = vector.capacity() * size_of::<T>();
    let start = vector.as_ptr().addr();
    // Whole pages alone: the first and the last may hold something else.
    let first = start.next_multiple_of(PAGE_BYTES);
    let end = (start + length) / PAGE_BYTES * PAGE_BYTES;
    if first < end {
        let place = vector.as_ptr().with_addr(first).cast_mut().cast();
        // SAFETY: the range lies in the vector's allocation. The advice changes the size of its
        // pages, not what they hold.
        let _ = unsafe { libc::madvise(place, end - first, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags of the mapping that holds an address (proc_pid_smaps(5)).
    fn flags_of(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_it = false;
        for line in maps.lines() {
            let range = line
                .split(' ')
                .next()
                .and_then(|range| range.split_once('-'));
            let bounds = range.map(|(start, end)| {
                let number = |text| usize::from_str_radix(text, 16).ok();
                (number(start), number(end))
            });
            if let Some((Some(start), Some(end))) = bounds {
                is_it = (start..end).contains(&address);
            }
            if let Some(flags) = line.strip_prefix("VmFlags:")
                && is_it
            {
                return flags.to_owned();
            }
        }
        String::new()
    }

    #[test]
    fn large_pages_are_asked_for_where_a_vector_is_large() {
        if !std::fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap() {
            println!("SKIP: the kernel has no transparent large pages");
            return;
        }
        let vector: Vec<u64> = Vec::with_capacity(1 << 20);
        let middle = vector.as_ptr().addr() + (4 << 20);
        let asks = |flags: String| flags.split_whitespace().any(|flag| flag == "hg");
        assert!(!asks(flags_of(middle)));
        prefer_large_pages(&vector);
        assert!(asks(flags_of(middle)));
        // A small one has no whole page.
        prefer_large_pages(&vec![1u8, 2, 3]);
    }

    #[test]
    fn any_place_may_be_fetched() {
        prefetch(&[0u8; 1000]);
        prefetch_start(&[], 128);
        prefetch_start(&[1, 2, 3], 128);
        prefetch(&());
    }
}
