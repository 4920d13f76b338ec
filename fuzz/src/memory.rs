//! Counts the memory that a target holds, so that a few bytes of input cannot ask for gigabytes
//! unnoticed.
#![allow(
    unsafe_code,
    reason = "counting needs an allocator of its own, which is an unsafe trait"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes that this thread holds, and the most that it held.
    static HELD: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// The system's allocator, which counts for each thread.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn grow(bytes: usize) {
    let (held, peak) = HELD.get();
    let held = held.saturating_add(bytes);
    HELD.set((held, peak.max(held)));
}

/// Another thread's memory may be freed here: there is none below zero.
fn shrink(bytes: usize) {
    let (held, peak) = HELD.get();
    HELD.set((held.saturating_sub(bytes), peak));
}

// SAFETY: each call goes to the system's allocator with the caller's own arguments. Counting
// allocates nothing, because the thread's cells have constant beginnings and no destructors.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller keeps to the conditions of `GlobalAlloc::alloc`, which are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        shrink(layout.size());
        grow(new_size);
        // SAFETY: `pointer` came from `System` through this allocator, with this layout.
        unsafe { System.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        shrink(layout.size());
        // SAFETY: `pointer` came from `System` through this allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// What `run` gives, and the most bytes that this thread held meanwhile, beyond what it held
/// before.
pub(crate) fn peak_of<T>(run: impl FnOnce() -> T) -> (T, usize) {
    HELD.set((0, 0));
    let result = run();
    let (_, peak_bytes) = HELD.get();
    (result, peak_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_that_was_held_at_once_is_counted() {
        let (sum, peak_bytes) = peak_of(|| {
            let first = vec![1_u8; 1 << 20];
            let one = usize::from(first[7]);
            drop(first);
            let mut second = Vec::with_capacity(1 << 10);
            second.resize(3 << 20, 1_u8);
            one + usize::from(second[9])
        });
        assert_eq!(sum, 2);
        assert!(
            (3 << 20..(3 << 20) + (1 << 16)).contains(&peak_bytes),
            "{peak_bytes}"
        );
    }
}
