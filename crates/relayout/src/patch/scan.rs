//! Whether anything in a process may still lead into some of its memory: the conservative question
//! before that memory is unmapped. Every word that has an address there for its value counts, and
//! every word that is one once glibc's pointer guard is taken off (`setjmp` and its kind store
//! addresses so; sysdeps/x86_64/pointer_guard.h in glibc).
//!
//! Two questions, because all of it takes too long for a stopped process: [`PointerScan::threads`],
//! what its threads have in registers and on the stacks that they are on, and
//! [`PointerScan::everywhere`], what all the rest has, while it runs. The answer holds where the
//! first one is asked again afterwards: a return address stays in its place until its function has
//! been returned to and has called again, which writes the next one there, and whoever runs
//! meanwhile is on a stack that shows it.
//!
//! Nothing is left out for being "a stack": any memory may hold the stacks of coroutines, the
//! running one's beside others. Only what threads left behind on their own stacks ([`unused`]) is,
//! where return addresses of the past would keep memory for no reason, and only as long as nothing
//! points there: who runs on an array in an outer frame of that very stack looks as if everything
//! below were left behind, but needs its address to get back there. A return address that is found
//! in vain keeps memory until the next try; one that is not found kills.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use crate::process::inject::{RED_ZONE_BYTES, going_on};
use crate::process::maps::{self, Mapping, PAGE};
use crate::process::ptrace;
use crate::process::stop::Stopped;
use crate::process::unused;
use crate::{ProcessMemory, RelayoutError};

/// Where glibc keeps the guard, from the thread pointer (`tcbhead_t` in sysdeps/x86_64/nptl/tls.h).
pub(crate) const GUARD_OFFSET: u64 = 0x30;

/// How far glibc rotates a guarded pointer (`2 * LP_SIZE + 1` in the same file).
const GUARD_ROTATION: u32 = 17;

/// Memory is read in pieces of this size.
const CHUNK: usize = 1 << 20;

/// More than this of other memory is not searched: then the memory in question stays until the
/// process ends.
pub(crate) const SEARCHED_BYTES_MAX: u64 = 4 << 30;

/// What is looked for.
pub(crate) struct PointerScan<'a> {
    ranges: &'a [Range<u64>],
    guard: Option<u64>,
    /// What is left out, in order of address, and whether something points there.
    unused: Vec<(Range<u64>, bool)>,
    /// From the first of it to the last.
    unused_extent: Range<u64>,
}

impl<'a> PointerScan<'a> {
    /// `ranges`: what is looked for addresses of.
    pub(crate) fn new(ranges: &'a [Range<u64>]) -> Self {
        Self {
            ranges,
            guard: None,
            unused: Vec::new(),
            unused_extent: 0..0,
        }
    }

    /// Whether a word leads into what is looked for. Where it leads into an unused part instead,
    /// that is noted.
    fn is_hit(&mut self, word: u64) -> bool {
        let plain = self
            .guard
            .map_or(word, |guard| word.rotate_right(GUARD_ROTATION) ^ guard);
        for address in [word, plain] {
            // Most words are no such address, and there may be many threads.
            if self.unused_extent.contains(&address) {
                self.note_use(address);
            }
        }
        let is_inside = |address| self.ranges.iter().any(|range| range.contains(&address));
        is_inside(word) || is_inside(plain)
    }

    fn note_use(&mut self, address: u64) {
        let behind = self.unused.partition_point(|(part, _)| part.end <= address);
        if let Some((part, is_used)) = self.unused.get_mut(behind) {
            *is_used |= part.contains(&address);
        }
    }

    fn is_in(&mut self, bytes: &[u8]) -> bool {
        let words = bytes.as_chunks().0;
        words
            .iter()
            .any(|word| self.is_hit(u64::from_le_bytes(*word)))
    }

    /// Notes what the threads of a stopped process do not use of their stacks, to leave it out
    /// [`PointerScan::everywhere`].
    pub(crate) fn note_unused(
        &mut self,
        process: &Stopped<'_>,
        maps: &[Mapping],
    ) -> Result<(), RelayoutError> {
        self.leave_out(unused::parts(process, maps)?);
        Ok(())
    }

    /// In order of address.
    fn leave_out(&mut self, parts: Vec<Range<u64>>) {
        self.unused_extent = match (parts.first(), parts.last()) {
            (Some(first), Some(last)) => first.start..last.end,
            _ => 0..0,
        };
        self.unused = parts.into_iter().map(|part| (part, false)).collect();
    }

    /// Whether a register of a stopped process, or a stack that one of its threads is on, has such
    /// an address.
    pub(crate) fn threads(
        &mut self,
        process: &Stopped<'_>,
        maps: &[Mapping],
    ) -> Result<bool, RelayoutError> {
        for thread in &process.threads {
            if self.thread(process, *thread, maps)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn thread(
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
    fn memory(&mut self, memory: &ProcessMemory, range: Range<u64>) -> Result<bool, RelayoutError> {
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

    /// Whether any writable private memory holds such an address, but for unused parts that nothing
    /// points to, and for the words at `except`. `None` where there is too much of it to tell.
    /// Pages that were never touched are not read.
    pub(crate) fn everywhere(
        mut self,
        memory: &ProcessMemory,
        pid: u32,
        maps: &[Mapping],
        except: &[u64],
    ) -> Result<Option<bool>, RelayoutError> {
        let Ok(pagemap) = File::open(format!("/proc/{pid}/pagemap")) else {
            return Ok(None);
        };
        let searched = |map: &&Mapping| map.is_writable && map.is_private && map.is_readable;
        let mut areas: Vec<Range<u64>> = maps
            .iter()
            .filter(searched)
            .map(|map| map.start..map.end)
            .collect();
        let mut left_bytes = SEARCHED_BYTES_MAX;
        self.unused.retain(|(_, is_used)| !is_used);
        while !areas.is_empty() {
            let words = except.iter().map(|word| *word..word + 8);
            let unused = self.unused.iter().map(|(part, _)| part.clone());
            let mut holes: Vec<Range<u64>> = words.chain(unused).collect();
            holes.sort_unstable_by_key(|hole| hole.start);
            for run in areas.drain(..).flat_map(|area| touched(&pagemap, area)) {
                left_bytes = match left_bytes.checked_sub(run.end - run.start) {
                    Some(left_bytes) => left_bytes,
                    None => return Ok(None),
                };
                for part in around(run, &holes) {
                    if self.memory(memory, part)? {
                        return Ok(Some(true));
                    }
                }
            }
            // What turned out to be used after all.
            let used = self.unused.extract_if(.., |(_, is_used)| *is_used);
            areas.extend(used.map(|(part, _)| whole_pages(&part)));
        }
        Ok(Some(false))
    }
}

/// The pages that a range is in.
fn whole_pages(range: &Range<u64>) -> Range<u64> {
    let page = PAGE as u64;
    range.start / page * page..range.end.next_multiple_of(page)
}

/// A range without some holes, which are in order and apart.
fn around(range: Range<u64>, holes: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut parts = Vec::new();
    let mut at = range.start;
    let behind = holes.partition_point(|hole| hole.end <= range.start);
    let inside = holes[behind..]
        .iter()
        .take_while(|hole| hole.start < range.end);
    for hole in inside {
        if at < hole.start {
            parts.push(at..hole.start);
        }
        at = hole.end;
    }
    if at < range.end {
        parts.push(at..range.end);
    }
    parts
}

/// The runs of pages that are in memory or swapped out (Documentation/admin-guide/mm/pagemap.rst:
/// bits 63 and 62 of a page's word). All of them where the kernel does not tell.
fn touched(pagemap: &File, area: Range<u64>) -> Vec<Range<u64>> {
    const TOUCHED: u64 = 0b11 << 62;
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut words = vec![0; CHUNK];
    let mut at = area.start;
    while at < area.end {
        let pages = usize::try_from((area.end - at) / PAGE as u64)
            .unwrap_or(CHUNK)
            .min(CHUNK / 8);
        let words = &mut words[..pages * 8];
        if pagemap.read_exact_at(words, at / PAGE as u64 * 8).is_err() {
            return vec![area; 1];
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
    fn holes_are_left_out_of_a_range() {
        let holes = [16..24, 56..64, 96..128];
        assert_eq!(around(0..8, &holes), vec![0..8; 1]);
        assert_eq!(around(0..64, &holes), [0..16, 24..56]);
        assert_eq!(around(64..112, &holes), vec![64..96; 1]);
        assert_eq!(around(112..120, &holes), [0..0; 0]);
        assert_eq!(around(120..136, &holes), vec![128..136; 1]);
    }

    #[test]
    fn what_points_to_an_unused_part_has_it_searched() {
        let ranges = [0x1000..0x2000, 0x2000..0x3000];
        let mut search = PointerScan::new(&ranges);
        let guard = 0x1234_5678_9abc_def0;
        search.guard = Some(guard);
        search.leave_out(vec![0x5000..0x6000, 0x7000..0x8000, 0x9000..0xa000]);
        for word in [0x4fff, 0x6000, 0x7fff, 0xa000] {
            assert!(!search.is_hit(word), "{word:#x}");
        }
        let saved = (0x9000_u64 ^ guard).rotate_left(GUARD_ROTATION);
        assert!(!search.is_hit(saved));
        let used: Vec<bool> = search.unused.iter().map(|(_, is_used)| *is_used).collect();
        assert_eq!(used, [false, true, true]);
    }

    #[test]
    fn plain_and_guarded_addresses_are_found() {
        let ranges = [0x1000..0x2000, 0x9000..0x9001];
        let mut search = PointerScan::new(&ranges);
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
