//! A device in memory, shared by all shards. What was never written takes no memory.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use qos::Grouped;

use crate::config::{Backing, BlockConfig, ConfigError};
use crate::nbd::reply::{Extent, STATE_HOLE, STATE_ZERO};

/// Bytes of a chunk, which is allocated and locked as a whole. Two shards that work on different
/// chunks do not meet.
const CHUNK_BYTES: usize = 64 * 1024;

type Chunk = Option<Box<[u8]>>;

/// Bytes of a field of `/proc/meminfo`, such as `MemTotal`. `None`: it cannot be read.
pub fn host_bytes(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let values = text.lines().filter_map(|line| line.strip_prefix(field));
    let value = values.filter_map(|rest| rest.strip_prefix(':')).next()?;
    let kib: u64 = value.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Whether the host has the memory that a configuration asks for.
///
/// # Errors
/// The host has less: the line is named.
pub(crate) fn check(config: &BlockConfig) -> Result<(), ConfigError> {
    let Some(host_bytes) = host_bytes("MemTotal") else {
        return Ok(());
    };
    let of_devices = config.devices.iter().filter_map(|device| {
        let Backing::Memory { size_bytes } = device.backing else {
            return None;
        };
        Some((&device.place, size_bytes))
    });
    let of_requests = config
        .place_of("memory")
        .map(|place| (place, config.memory_bytes));
    match of_requests
        .into_iter()
        .chain(of_devices)
        .find(|(_, bytes)| *bytes > host_bytes)
    {
        Some((place, bytes)) => Err(place.error(format!(
            "{} bytes are more than the memory of this host, which has {}",
            Grouped(bytes),
            Grouped(host_bytes)
        ))),
        None => Ok(()),
    }
}

/// The memory.
pub struct MemoryDevice {
    chunks: Vec<RwLock<Chunk>>,
    size_bytes: u64,
}

/// One chunk's part of a range: the chunk, where in it, how long.
fn parts(offset: u64, len_bytes: u64) -> impl Iterator<Item = (usize, usize, usize)> {
    let chunk_bytes = CHUNK_BYTES as u64;
    let (mut at, end) = (offset, offset + len_bytes);
    std::iter::from_fn(move || {
        let left = end.checked_sub(at).filter(|&left| left > 0)?;
        let index = usize::try_from(at / chunk_bytes).unwrap_or(usize::MAX);
        let from = usize::try_from(at % chunk_bytes).unwrap_or(0);
        let len = usize::try_from(left).unwrap_or(usize::MAX);
        let len = len.min(CHUNK_BYTES - from);
        at += len as u64;
        Some((index, from, len))
    })
}

impl MemoryDevice {
    /// A device of zeros.
    pub fn new(size_bytes: u64) -> Self {
        let chunks = size_bytes.div_ceil(CHUNK_BYTES as u64);
        Self {
            chunks: (0..chunks).map(|_| RwLock::new(None)).collect(),
            size_bytes,
        }
    }

    /// Bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_lock(&self, index: usize) -> RwLockReadGuard<'_, Chunk> {
        self.chunks[index]
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn write_lock(&self, index: usize) -> RwLockWriteGuard<'_, Chunk> {
        self.chunks[index]
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the bytes of a range to `take`, in pieces, without a copy. `take` gives how many bytes
    /// of a piece it took; fewer than all end the reading. Gives the sum.
    pub fn read(
        &self,
        offset: u64,
        len_bytes: usize,
        mut take: impl FnMut(&[u8]) -> usize,
    ) -> usize {
        const ZEROS: &[u8; CHUNK_BYTES] = &[0; CHUNK_BYTES];
        let mut sum = 0;
        for (index, from, len) in parts(offset, len_bytes as u64) {
            let taken = match &*self.read_lock(index) {
                Some(chunk) => take(&chunk[from..from + len]),
                None => take(&ZEROS[..len]),
            };
            sum += taken;
            if taken < len {
                break;
            }
        }
        sum
    }

    /// Writes.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (index, from, len) in parts(offset, bytes.len() as u64) {
            let (piece, after) = rest.split_at(len);
            rest = after;
            let mut chunk = self.write_lock(index);
            let chunk = chunk.get_or_insert_with(|| vec![0; CHUNK_BYTES].into_boxed_slice());
            chunk[from..from + len].copy_from_slice(piece);
        }
    }

    /// Makes a range zero. Whole chunks give their memory back, unless `keeps` it.
    pub fn zero(&self, offset: u64, len_bytes: u64, keeps: bool) {
        for (index, from, len) in parts(offset, len_bytes) {
            let mut chunk = self.write_lock(index);
            if len == CHUNK_BYTES && !keeps {
                *chunk = None;
            } else if let Some(chunk) = chunk.as_mut() {
                chunk[from..from + len].fill(0);
            } else if keeps {
                *chunk = Some(vec![0; CHUNK_BYTES].into_boxed_slice());
            }
        }
    }

    /// Which parts of a range hold data, as at most `extents_max` extents.
    pub fn extents(&self, offset: u64, len_bytes: u64, extents_max: usize) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for (index, _, len) in parts(offset, len_bytes) {
            let is_hole = self.read_lock(index).is_none();
            let state = if is_hole { STATE_HOLE | STATE_ZERO } else { 0 };
            let is_full = extents.len() == extents_max;
            match extents.last_mut() {
                Some(last) if last.state == state => last.len_bytes += len as u64,
                _ if is_full => break,
                _ => extents.push(Extent {
                    len_bytes: len as u64,
                    state,
                }),
            }
        }
        extents
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(memory: &MemoryDevice, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let sum = memory.read(offset, len, |piece| {
            bytes.extend_from_slice(piece);
            piece.len()
        });
        assert_eq!(sum, len);
        bytes
    }

    proptest! {
        /// It is an array of bytes.
        #[test]
        fn it_is_an_array(
            steps in prop::collection::vec((0_u64..300_000, 1_usize..150_000, 0_u8..4), 1..20)
        ) {
            const SIZE: u64 = 300_000;
            let memory = MemoryDevice::new(SIZE);
            let mut model = vec![0_u8; 300_000];
            for (number, (offset, len, kind)) in (1_u8..).zip(steps) {
                let len = len.min(usize::try_from(SIZE - offset).unwrap());
                let start = usize::try_from(offset).unwrap();
                let range = start..start + len;
                match kind {
                    0 | 1 => {
                        memory.write(offset, &vec![number; len]);
                        model[range].fill(number);
                    }
                    keeps => {
                        memory.zero(offset, len as u64, keeps == 3);
                        model[range].fill(0);
                    }
                }
            }
            prop_assert_eq!(read(&memory, 0, 300_000), model.clone());
            let extents = memory.extents(0, SIZE, 100);
            prop_assert_eq!(extents.iter().map(|extent| extent.len_bytes).sum::<u64>(), SIZE);
            let mut at = 0;
            for extent in extents {
                let end = at + usize::try_from(extent.len_bytes).unwrap();
                prop_assert!(extent.state == 0 || model[at..end].iter().all(|&byte| byte == 0));
                at = end;
            }
        }
    }

    #[test]
    fn no_more_is_asked_for_than_the_host_has() {
        let checked = |whole: &str, device: &str| {
            let text = format!(
                "memory = \"{whole}\"\n[[device]]\nname = \"ram\"\nmemory = \"{device}\"\n\
                 [[tenant]]\nexport = \"a\"\ndevice = \"ram\"\n"
            );
            let config = BlockConfig::parse(std::path::Path::new("b.toml"), &text).unwrap();
            check(&config).map_err(|error| error.to_string())
        };
        assert_eq!(checked("64MiB", "1MiB"), Ok(()));
        let host_bytes = host_bytes("MemTotal").unwrap();
        if host_bytes < 1 << 40 {
            let error = checked("1TiB", "1MiB").unwrap_err();
            assert!(error.starts_with("b.toml:1: memory: "), "{error}");
            let has = Grouped(host_bytes).to_string();
            assert!(error.ends_with(&format!("which has {has}")), "{error}");
            let error = checked("64MiB", "1TiB").unwrap_err();
            assert!(error.starts_with("b.toml:4: device.memory: "), "{error}");
        }
    }

    #[test]
    fn a_reader_without_room_stops_it() {
        let memory = MemoryDevice::new(200_000);
        let mut calls = 0;
        let sum = memory.read(0, 200_000, |piece| {
            calls += 1;
            piece.len() - 1
        });
        assert_eq!((calls, sum), (1, CHUNK_BYTES - 1));
    }
}
