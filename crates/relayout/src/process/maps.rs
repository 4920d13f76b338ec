//! `/proc/PID/maps`: what is where in a process (proc_pid_maps(5)), and where there is room.

use host::{HostError, Roots};
use rustix::param::page_size;
use serde::{Deserialize, Serialize};

/// A page of x86-64, the only machine that this crate writes to.
pub(crate) const PAGE: usize = 4096;

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Readable.
    pub is_readable: bool,
    /// Writable.
    pub is_writable: bool,
    /// Executable.
    pub is_executable: bool,
    /// Private (copied on write), not shared.
    pub is_private: bool,
    /// Where in the file it begins.
    pub offset: u64,
    /// Device and inode; inode 0 for memory without a file.
    pub inode: u64,
    /// The file's path as the process sees it, or a name in brackets, or empty.
    pub path: String,
}

impl Mapping {
    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Whether it holds the address.
    #[must_use]
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Whether it is code of a file.
    pub(crate) fn is_file_code(&self) -> bool {
        self.is_executable && self.inode != 0
    }

    /// Whether it is memory without a file.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.inode == 0 && self.path.is_empty()
    }
}

/// A file whose code or data is patched, where it was loaded.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LoadedObject {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Its path, as the process sees it.
    pub path: String,
    /// Its inode: another file may be loaded at the same place later.
    pub inode: u64,
}

impl LoadedObject {
    /// Whether it is still where it was; its file may have another name by now, or none.
    pub(crate) fn is_in(&self, maps: &[Mapping]) -> bool {
        let is_this = |map: &Mapping| map.start == self.start && map.inode == self.inode;
        maps.iter().any(is_this)
    }

    /// Whether an address is in it.
    pub(crate) fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

/// The one that holds an address, of mappings in order.
pub(crate) fn at(maps: &[Mapping], address: u64) -> Option<&Mapping> {
    let behind = maps.partition_point(|map| map.end <= address);
    maps.get(behind).filter(|map| map.contains(address))
}

/// The mappings of a process, in order of address.
///
/// # Errors
/// [`HostError::Read`], [`HostError::NoSuchProcess`], [`HostError::Parse`].
pub fn read(roots: &Roots, pid: u32) -> Result<Vec<Mapping>, HostError> {
    let path = roots.proc(format!("{pid}/maps"));
    let text = match std::fs::read(&path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
            return Err(HostError::NoSuchProcess { pid });
        }
        Err(error) => return Err(HostError::read(&path, &error)),
    };
    text.lines()
        .map(|line| {
            parse(line).ok_or_else(|| HostError::Parse {
                path: path.clone(),
                key: line.to_owned(),
                why: "it is no mapping".to_owned(),
            })
        })
        .collect()
}

fn parse(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut word = || {
        let trimmed = rest.trim_start();
        let (word, after) = trimmed.split_once(' ').unwrap_or((trimmed, ""));
        rest = after;
        (!word.is_empty()).then_some(word)
    };
    let (start, end) = word()?.split_once('-')?;
    let permissions = word()?.as_bytes();
    let offset = word()?;
    let _device = word()?;
    let inode = word()?.parse().ok()?;
    let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
    let has = |at: usize, letter| permissions.get(at) == Some(&letter);
    let (start, end) = (hexadecimal(start)?, hexadecimal(end)?);
    (start <= end).then(|| Mapping {
        start,
        end,
        is_readable: has(0, b'r'),
        is_writable: has(1, b'w'),
        is_executable: has(2, b'x'),
        is_private: has(3, b'p'),
        offset: hexadecimal(offset).unwrap_or(0),
        inode,
        path: rest.trim_start().to_owned(),
    })
}

/// A jump or a displacement reaches ±2 GiB; this much of it is left for the sizes of both ends.
const REACH_BYTES: u64 = (1 << 31) - (64 << 20);

/// Below this nothing is mapped (`vm.mmap_min_addr` is 64 KiB; a margin for whoever relies on
/// faults there).
const LOWEST: u64 = 1 << 20;

/// Room that the heap is left to grow into, and a stack to grow down into.
const MARGIN_BYTES: u64 = 256 << 20;

/// The address of a hole of `wanted_bytes` from all of which, and to all of which, `near` (first
/// and last address of an object) can be reached with 32 bits. Prefers what lies closest below the
/// object: above it begins the heap of an executable. `None` where there is no room.
#[must_use]
pub fn room(maps: &[Mapping], near: (u64, u64), wanted_bytes: u64) -> Option<u64> {
    let page = page_size() as u64;
    let wanted = wanted_bytes.next_multiple_of(page);
    let lowest = near.1.saturating_sub(REACH_BYTES).max(LOWEST);
    let highest = near.0.saturating_add(REACH_BYTES);
    let mut best: Option<u64> = None;
    let mut hole_start = 0;
    let ends = maps
        .iter()
        .map(|map| (map.start, map.end, map.path.as_str()))
        .chain([(1 << 47, 1 << 47, "")]);
    let mut after = "";
    for (start, end, path) in ends {
        // A heap grows upwards from its end, a stack downwards from its start.
        let from = hole_start
            + if after == "[heap]" {
                MARGIN_BYTES
            } else {
                page
            };
        let to = start.saturating_sub(if path == "[stack]" {
            MARGIN_BYTES
        } else {
            page
        });
        let (from, to) = (
            from.max(lowest).next_multiple_of(page),
            to.min(highest) & !(page - 1),
        );
        if to > from && to - from >= wanted {
            // The end of the hole nearest to the object.
            let candidate = if to <= near.0 {
                to - wanted
            } else {
                from.max(near.1.next_multiple_of(page))
            };
            if candidate >= from && candidate + wanted <= to {
                let distance = |address: u64| address.abs_diff(near.0);
                if best.is_none_or(|known| distance(candidate) < distance(known)) {
                    best = Some(candidate);
                }
            }
        }
        (hole_start, after) = (end, path);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(start: u64, end: u64, path: &str) -> Mapping {
        Mapping {
            start,
            end,
            is_readable: true,
            is_writable: false,
            is_executable: false,
            is_private: true,
            offset: 0,
            inode: 0,
            path: path.to_owned(),
        }
    }

    #[test]
    fn a_line_is_read_and_a_bad_one_refused() {
        let mapping =
            parse("7f0000000000-7f0000001000 r-xp 00002000 fe:00 99   /usr/lib/a b.so").unwrap();
        assert_eq!(
            (
                mapping.start,
                mapping.bytes(),
                mapping.offset,
                mapping.inode
            ),
            (0x7f00_0000_0000, 4096, 0x2000, 99)
        );
        assert!(mapping.is_executable && !mapping.is_writable && mapping.is_private);
        assert_eq!(mapping.path, "/usr/lib/a b.so");
        assert!(parse("1-2 rw-p 0 00:00 0").unwrap().is_anonymous());
        for bad in ["", "x-1 r--p 0 0 0", "2-1 r--p 0 0:0 0", "1 r--p"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn room_is_near_and_away_from_the_heap() {
        let object = (0x5555_0000_0000, 0x5555_0100_0000);
        let maps = [
            map(object.0, object.1, "/bin/x"),
            map(object.1 + 0x1000_0000, object.1 + 0x1100_0000, "[heap]"),
        ];
        let at = room(&maps, object, 1 << 20).unwrap();
        assert!(
            at + (1 << 20) < object.0 && at > object.1 - (1 << 31),
            "{at:#x}"
        );
        // Nothing within reach: what is there is all taken.
        let full = [map(0, 1 << 46, ""), map(1 << 46, 1 << 47, "")];
        assert_eq!(room(&full, object, 4096), None);
    }

    #[test]
    fn a_fixed_executable_gets_room_below_two_gigabytes() {
        let object = (0x40_0000, 0x80_0000);
        let maps = [
            map(object.0, object.1, "/bin/fixed"),
            map(0x90_0000, 0xa0_0000, "[heap]"),
        ];
        let at = room(&maps, object, 1 << 20).unwrap();
        assert!(
            at < (1 << 31) && (at + (1 << 20) <= object.0 || at >= 0xa0_0000 + MARGIN_BYTES),
            "{at:#x}"
        );
    }

    #[test]
    fn own_mappings_are_read() {
        let maps = read(&Roots::default(), std::process::id()).unwrap();
        assert!(maps.iter().any(|map| map.path == "[stack]"));
        assert!(maps.is_sorted_by_key(|map| map.start));
        assert!(matches!(
            read(&Roots::default(), u32::MAX),
            Err(HostError::NoSuchProcess { .. })
        ));
    }
}
