//! Whether anything in a process may still lead into some of its memory: the conservative question before that memory is
//! unmapped. Every word that has an address there for its value counts, and every word that is one once glibc's pointer
//! guard is taken off (`setjmp` and its kind store addresses so; sysdeps/x86_64/pointer_guard.h in glibc).

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use crate::inject::{RED_ZONE_BYTES, going_on};
use crate::maps::{self, Mapping};
use crate::ptrace;
use crate::stop::Stopped;
use crate::{Memory, RelayoutError};

/// Where glibc keeps the guard, from the thread pointer (`tcbhead_t` in sysdeps/x86_64/nptl/tls.h).
pub(crate) const GUARD_OFFSET: u64 = 0x30;

/// How far glibc rotates a guarded pointer (`2 * LP_SIZE + 1` in the same file).
const GUARD_ROTATION: u32 = 17;

/// Memory is read in pieces of this size.
const CHUNK: usize = 1 << 20;

/// A page of x86-64, the only machine that this crate writes to.
pub(crate) const PAGE: usize = 4096;

/// More than this of other memory is not searched: then the memory in question stays until the process ends.
pub(crate) const SEARCHED_BYTES_MAX: u64 = 4 << 30;

/// What is looked for.
pub(crate) struct Search<'a> {
    ranges: &'a [Range<u64>],
    guard: Option<u64>,
}

impl<'a> Search<'a> {
    /// `ranges`: what is looked for addresses of.
    pub(crate) fn new(ranges: &'a [Range<u64>]) -> Self {
        Self {
            ranges,
            guard: None,
        }
    }

    fn is_hit(&self, word: u64) -> bool {
        let is_inside = |address| self.ranges.iter().any(|range| range.contains(&address));
        is_inside(word)
            || self
                .guard
                .is_some_and(|guard| is_inside(word.rotate_right(GUARD_ROTATION) ^ guard))
    }

    fn is_in(&self, bytes: &[u8]) -> bool {
        bytes
            .chunks_exact(8)
            .filter_map(|word| word.try_into().ok().map(u64::from_le_bytes))
            .any(|word| self.is_hit(word))
    }

    /// Whether a register or the stack of a stopped thread has such an address.
    pub(crate) fn thread(
        &mut self,
        process: &Stopped<'_>,
        thread: u32,
        maps: &[Mapping],
    ) -> Result<bool, RelayoutError> {
        let at = going_on(ptrace::registers(thread)?);
        self.guard = process.memory.word(at.fs_base + GUARD_OFFSET).ok();
        let registers = [
            at.rip, at.rax, at.rbx, at.rcx, at.rdx, at.rsi, at.rdi, at.rbp, at.r8, at.r9, at.r10,
            at.r11, at.r12, at.r13, at.r14, at.r15,
        ];
        if registers.iter().any(|word| self.is_hit(*word)) {
            return Ok(true);
        }
        let Some(stack) = maps::at(maps, at.rsp) else {
            // A stack pointer that points nowhere: nothing is known, so everything is possible.
            return Ok(true);
        };
        let from = (at.rsp - RED_ZONE_BYTES).max(stack.start) & !7;
        self.memory(process.memory, from..stack.end)
    }

    /// Whether some memory holds such an address. What cannot be read (a guard page) holds none.
    fn memory(&self, memory: &Memory, range: Range<u64>) -> Result<bool, RelayoutError> {
        let mut bytes = vec![0; CHUNK];
        let mut at = range.start;
        while at < range.end {
            let count = usize::try_from(range.end - at).unwrap_or(CHUNK).min(CHUNK);
            match memory.read_into(at, &mut bytes[..count]) {
                Ok(()) if self.is_in(&bytes[..count]) => return Ok(true),
                Ok(()) => {}
                Err(RelayoutError::Memory { .. }) if count > PAGE => {
                    for page in (at..at + count as u64).step_by(PAGE) {
                        let end = (page + PAGE as u64).min(range.end);
                        if self.memory(memory, page..end)? {
                            return Ok(true);
                        }
                    }
                }
                Err(RelayoutError::Memory { .. }) => {}
                Err(error) => return Err(error),
            }
            at += count as u64;
        }
        Ok(false)
    }

    /// Whether any writable private memory holds such an address: the stacks of coroutines and what `setjmp` saved live
    /// there. `None` where there is too much of it to tell. Pages that were never touched are not read, and not the `stacks`
    /// of threads (an address in each): what lies below their stack pointers is nobody's any more; nor the words at `except`.
    pub(crate) fn everywhere(
        &self,
        memory: &Memory,
        pid: u32,
        maps: &[Mapping],
        stacks: &[u64],
        except: &[u64],
    ) -> Result<Option<bool>, RelayoutError> {
        let Ok(pagemap) = File::open(format!("/proc/{pid}/pagemap")) else {
            return Ok(None);
        };
        let mut left_bytes = SEARCHED_BYTES_MAX;
        for map in maps {
            let is_stack = stacks.iter().any(|address| map.contains(*address));
            if !(map.is_writable && map.is_private && map.is_readable) || is_stack {
                continue;
            }
            for run in touched(&pagemap, map) {
                left_bytes = match left_bytes.checked_sub(run.end - run.start) {
                    Some(left_bytes) => left_bytes,
                    None => return Ok(None),
                };
                for part in around(run, except) {
                    if self.memory(memory, part)? {
                        return Ok(Some(true));
                    }
                }
            }
        }
        Ok(Some(false))
    }

    /// The guard of a thread, for [`Search::everywhere`].
    pub(crate) fn set_guard(&mut self, guard: Option<u64>) {
        self.guard = guard;
    }
}

/// A range without some words.
fn around(range: Range<u64>, except: &[u64]) -> Vec<Range<u64>> {
    let mut inside: Vec<u64> = except.to_vec();
    inside.retain(|word| range.contains(word));
    inside.sort_unstable();
    let starts = std::iter::once(range.start).chain(inside.iter().map(|word| word + 8));
    let ends = inside.iter().copied().chain(std::iter::once(range.end));
    starts.zip(ends).map(|(start, end)| start..end).collect()
}

/// The runs of a mapping's pages that are in memory or swapped out (Documentation/admin-guide/mm/pagemap.rst: bits 63
/// and 62 of a page's word). All of it where the kernel does not tell.
fn touched(pagemap: &File, map: &Mapping) -> Vec<Range<u64>> {
    const TOUCHED: u64 = 0b11 << 62;
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut words = vec![0; CHUNK];
    let mut at = map.start;
    while at < map.end {
        let pages = usize::try_from((map.end - at) / PAGE as u64)
            .unwrap_or(CHUNK)
            .min(CHUNK / 8);
        let words = &mut words[..pages * 8];
        if pagemap.read_exact_at(words, at / PAGE as u64 * 8).is_err() {
            return std::iter::once(map.start..map.end).collect();
        }
        for word in words.chunks_exact(8) {
            let end = at + PAGE as u64;
            if word.try_into().map_or(0, u64::from_le_bytes) & TOUCHED != 0 {
                match runs.last_mut() {
                    Some(run) if run.end == at => run.end = end,
                    _ => runs.push(at..end),
                }
            }
            at = end;
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_left_out_of_a_range() {
        assert_eq!(around(0..64, &[96]), vec![0..64; 1]);
        assert_eq!(around(0..64, &[56, 96, 16]), [0..16, 24..56, 64..64]);
        assert_eq!(around(64..128, &[64]), [64..64, 72..128]);
    }

    #[test]
    fn plain_and_guarded_addresses_are_found() {
        let ranges = [0x1000..0x2000, 0x9000..0x9001];
        let mut search = Search::new(&ranges);
        for (word, hit) in [
            (0x0fff, false),
            (0x1000, true),
            (0x1fff, true),
            (0x2000, false),
            (0x9000, true),
        ] {
            assert_eq!(search.is_hit(word), hit, "{word:#x}");
        }
        let guard = 0x1234_5678_9abc_def0;
        let guarded = (0x1800_u64 ^ guard).rotate_left(GUARD_ROTATION);
        assert!(!search.is_hit(guarded));
        search.guard = Some(guard);
        assert!(search.is_hit(guarded));
        let mut bytes = vec![0; 64];
        assert!(!search.is_in(&bytes));
        bytes[40..48].copy_from_slice(&0x1234_u64.to_le_bytes());
        assert!(search.is_in(&bytes));
    }
}
