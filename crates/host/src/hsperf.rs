//! The counters that a HotSpot JVM publishes without any agent, in `/tmp/hsperfdata_USER/PID` (on
//! by default; `-XX:-UsePerfData` turns them off).
//!
//! The file's layout is HotSpot's `PerfDataPrologue` and `PerfDataEntry`
//! (src/hotspot/share/runtime/perfMemory.hpp, perfData.hpp): magic 0xcafec0c0 (always big-endian),
//! byte order, version 2.0, then entries of name and value. Read with JDK 17.
//!
//! **How exact the numbers are.** GC cycles and GC time are HotSpot's own counters (for ZGC and
//! Shenandoah they count pauses). Allocated bytes have no cumulative counter there. They are put
//! together from two: how full the eden is now (HotSpot brings it up to date every 50 ms, G1 when
//! it takes a region), and how many bytes of allocation buffers the cycle before the latest GC
//! handed out (`sun.gc.tlab.alloc`, in words). Read at least once per GC cycle, the sum is short
//! only of what is allocated outside eden (humongous objects of G1) and within a region or 50 ms of
//! the true value; read less often, the cycles between two readings are taken to be as large as the
//! last one. Collectors without an eden (ZGC) are counted by `sun.gc.tlab.alloc` alone, once per
//! cycle.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cpu_time::seconds;
use crate::error::HostError;
use crate::roots::{Roots, read_text};

/// perfMemory.hpp.
const MAGIC: [u8; 4] = [0xca, 0xfe, 0xc0, 0xc0];

/// `PerfDataPrologue`: magic, byte order, major, minor, accessible, used, overflow, modification
/// time (8), entry offset, number of entries.
const PROLOGUE_BYTES: usize = 32;

/// `-XX:PerfDataMemorySize` is 32 KiB by default; nobody needs a thousand times that.
const FILE_LIMIT_BYTES: u64 = 32 << 20;

/// `HeapWordSize` of a 64-bit JVM, the unit of `sun.gc.tlab.alloc`.
const HEAP_WORD_BYTES: u64 = 8;

/// Collectors of one JVM; HotSpot has at most four (G1: young, full, concurrent; ZGC: minor, major
/// and their pauses).
const MAX_COLLECTORS: usize = 16;

/// Counters of a JVM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JvmSample {
    /// Collections (of concurrent collectors: pauses) since the JVM started.
    pub gc_cycles: u64,
    /// Time in them, seconds since the JVM started.
    pub gc_time_s: f64,
    /// Time that its compilers took, together, in seconds since the JVM started
    /// (`java.ci.totalTime`: compileBroker.cpp).
    pub jit_time_s: f64,
    /// Bytes allocated since [`HsPerf::open`]; see the module's text for how exact.
    pub allocated_bytes: u64,
}

/// One value of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HsperfValue {
    /// A `long`.
    Long(i64),
    /// A string.
    Text(String),
}

/// The performance data of one running JVM.
#[derive(Clone, Debug)]
pub struct HsPerf {
    pid: u32,
    path: PathBuf,
    last: Option<Heap>,
    /// Allocated in the cycles that have ended since the first reading, plus what was in the eden
    /// then.
    filled_bytes: u64,
    /// In the eden at the first reading.
    first_used_bytes: u64,
    /// As last told: a reading in the midst of a collection must not turn the counter back.
    allocated_bytes: u64,
}

/// What the allocation sum is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Heap {
    /// Collections that empty the eden.
    cycles: u64,
    eden_used_bytes: Option<u64>,
    /// Buffers handed out in the cycle before the latest GC.
    tlab_bytes: u64,
}

impl Heap {
    fn of(counters: &HashMap<String, HsperfValue>) -> Self {
        let long = |name: &str| match counters.get(name) {
            Some(HsperfValue::Long(value)) => u64::try_from(*value).ok(),
            _ => None,
        };
        // Collector 0 is the young one and collector 1 the full one; 2 counts pauses that leave the
        // eden as it is.
        let cycles = [
            "sun.gc.collector.0.invocations",
            "sun.gc.collector.1.invocations",
        ];
        Self {
            cycles: cycles
                .iter()
                .filter_map(|name| long(name))
                .fold(0, u64::saturating_add),
            eden_used_bytes: long("sun.gc.generation.0.space.0.used"),
            tlab_bytes: long("sun.gc.tlab.alloc")
                .unwrap_or(0)
                .saturating_mul(HEAP_WORD_BYTES),
        }
    }

    /// Bytes allocated in the cycles that ended between two readings.
    fn filled_since(self, before: Self) -> u64 {
        match before.eden_used_bytes {
            Some(used_before) => {
                let cycles = self.cycles.saturating_sub(before.cycles);
                self.tlab_bytes.max(used_before).saturating_mul(cycles)
            }
            // No eden: a cycle's buffers are known when the next one begins.
            None if self.tlab_bytes == before.tlab_bytes => 0,
            None => self.tlab_bytes,
        }
    }
}

impl HsPerf {
    /// Finds the file of a JVM, in its own mount and pid namespace where it has one.
    ///
    /// # Errors
    ///
    /// [`HostError::HsPerf`].
    pub fn open(pid: u32, roots: &Roots) -> Result<Self, HostError> {
        let path = find(pid, roots).ok_or_else(|| HostError::HsPerf {
            pid,
            path: roots.absolute(Path::new(&format!("/tmp/hsperfdata_*/{pid}"))),
            why: "there is no such file: the process is no HotSpot JVM, has not started yet, or runs with \
                  -XX:-UsePerfData (turn it on)"
                .to_owned(),
        })?;
        let mut opened = Self {
            pid,
            path,
            last: None,
            filled_bytes: 0,
            first_used_bytes: 0,
            allocated_bytes: 0,
        };
        opened.sample()?;
        Ok(opened)
    }

    /// Reads the counters. Call it at least once per GC cycle (four times a second does for nearly
    /// every service) for allocated bytes to be exact.
    ///
    /// # Errors
    ///
    /// [`HostError::HsPerf`], also once the JVM has ended.
    pub fn sample(&mut self) -> Result<JvmSample, HostError> {
        let counters = self.counters()?;
        let heap = Heap::of(&counters);
        let used_bytes = heap.eden_used_bytes.unwrap_or(0);
        match self.last {
            None => self.first_used_bytes = used_bytes,
            Some(before) => {
                self.filled_bytes = self.filled_bytes.saturating_add(heap.filled_since(before))
            }
        }
        let now_bytes = self
            .filled_bytes
            .saturating_add(used_bytes)
            .saturating_sub(self.first_used_bytes);
        self.allocated_bytes = self.allocated_bytes.max(now_bytes);
        self.last = Some(heap);
        let long = |name: String| match counters.get(&name) {
            Some(HsperfValue::Long(value)) => u64::try_from(*value).unwrap_or(0),
            _ => 0,
        };
        let collectors = |what: &str| {
            let value = |index| long(format!("sun.gc.collector.{index}.{what}"));
            (0..MAX_COLLECTORS).map(value).fold(0, u64::saturating_add)
        };
        // Ticks per second; 10^9 on every JVM for Linux of the last ten years.
        let frequency = match long("sun.os.hrt.frequency".to_owned()) {
            0 => 1_000_000_000,
            frequency => frequency,
        };
        let seconds_of = |ticks: u64| {
            let ns = u128::from(ticks) * 1_000_000_000 / u128::from(frequency);
            seconds(u64::try_from(ns).unwrap_or(u64::MAX))
        };
        Ok(JvmSample {
            gc_cycles: collectors("invocations"),
            gc_time_s: seconds_of(collectors("time")),
            jit_time_s: seconds_of(long("java.ci.totalTime".to_owned())),
            allocated_bytes: self.allocated_bytes,
        })
    }

    /// All counters by name.
    ///
    /// # Errors
    ///
    /// [`HostError::HsPerf`].
    pub fn counters(&self) -> Result<HashMap<String, HsperfValue>, HostError> {
        let error = |why: String| HostError::HsPerf {
            pid: self.pid,
            path: self.path.clone(),
            why,
        };
        let mut bytes = Vec::new();
        // /tmp belongs to everybody: a link planted under the name of a JVM is not followed, a pipe
        // does not block.
        fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&self.path)
            .and_then(|file: File| file.take(FILE_LIMIT_BYTES).read_to_end(&mut bytes))
            .map_err(|cause| error(format!("it cannot be read ({cause}); has the JVM ended?")))?;
        parse(&bytes).map_err(|why| error(format!("it is not in the form of HotSpot 2.0: {why}")))
    }
}

fn find(pid: u32, roots: &Roots) -> Option<PathBuf> {
    let status = read_text(&roots.proc(format!("{pid}/status")))
        .ok()
        .flatten()
        .unwrap_or_default();
    let inner = status.lines().find_map(|line| {
        line.strip_prefix("NSpid:")?
            .split_whitespace()
            .last()?
            .parse()
            .ok()
    });
    let own_tmp = roots.proc(format!("{pid}/root/tmp"));
    let tmp = roots.absolute(Path::new("/tmp"));
    [(own_tmp, inner.unwrap_or(pid)), (tmp, pid)]
        .into_iter()
        .find_map(|(tmp, pid)| {
            directories(&tmp)
                .ok()?
                .map(|directory| directory.join(pid.to_string()))
                .find(|path| path.is_file())
        })
}

/// The directories of all users in a directory for temporary files.
pub(crate) fn directories(tmp: &Path) -> io::Result<impl Iterator<Item = PathBuf> + use<>> {
    let entries = fs::read_dir(tmp)?.filter_map(Result::ok);
    let is_ours = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with("hsperfdata_")
    };
    Ok(entries.filter(is_ours).map(|entry| entry.path()))
}

/// Parses the bytes of a performance-data file: the counters of type `long` and the strings. Other
/// types and unknown entries are passed over; a JVM that is still writing leaves out what is not
/// complete.
///
/// # Errors
///
/// What is wrong, in words.
pub fn parse(bytes: &[u8]) -> Result<HashMap<String, HsperfValue>, String> {
    let prologue = bytes
        .get(..PROLOGUE_BYTES)
        .ok_or("it is shorter than its prologue")?;
    if prologue[..4] != MAGIC {
        return Err("the magic number is not 0xcafec0c0".to_owned());
    }
    let is_little = match prologue[4] {
        0 => false,
        1 => true,
        other => return Err(format!("the byte order is {other}, not 0 or 1")),
    };
    if prologue[5] != 2 {
        return Err(format!("the version is {}, not 2", prologue[5]));
    }
    let reader = Reader { bytes, is_little };
    let mut at = reader.size(24).unwrap_or(0);
    let entries = reader.size(28).unwrap_or(0);
    let mut counters = HashMap::new();
    for _ in 0..entries {
        // PerfDataEntry: length, name offset, vector length (4 each), type, flags, unit,
        // variability (1 each), data offset (4).
        let (Some(length), Some(name_at), Some(vector), Some(data_at)) = (
            reader.size(at),
            reader.size(at + 4),
            reader.size(at + 8),
            reader.size(at + 16),
        ) else {
            break;
        };
        let entry = at.checked_add(length).and_then(|end| bytes.get(at..end));
        let Some(entry) = entry.filter(|entry| entry.len() >= 20) else {
            break;
        };
        let name = entry.get(name_at..).map(text_of).unwrap_or_default();
        let data = entry.get(data_at..).unwrap_or_default();
        match (entry[12], vector) {
            (b'J', 0) => {
                let Some(raw) = data.first_chunk::<8>() else {
                    break;
                };
                let value = if is_little {
                    i64::from_le_bytes(*raw)
                } else {
                    i64::from_be_bytes(*raw)
                };
                counters.insert(name, HsperfValue::Long(value));
            }
            (b'B', 1..) => {
                let data = data.get(..vector).unwrap_or(data);
                counters.insert(name, HsperfValue::Text(text_of(data)));
            }
            _ => {}
        }
        at += length;
    }
    Ok(counters)
}

struct Reader<'a> {
    bytes: &'a [u8],
    is_little: bool,
}

impl Reader<'_> {
    /// A 32-bit length or offset.
    fn size(&self, at: usize) -> Option<usize> {
        let raw = self.bytes.get(at..)?.first_chunk::<4>()?;
        let value = if self.is_little {
            u32::from_le_bytes(*raw)
        } else {
            u32::from_be_bytes(*raw)
        };
        usize::try_from(value).ok()
    }
}

/// A string that ends at its first NUL.
fn text_of(bytes: &[u8]) -> String {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests;
