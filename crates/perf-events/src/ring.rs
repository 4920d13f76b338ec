//! The ring buffer that the kernel fills for one CPU (perf_event_open(2), "MMAP layout").

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys as sys;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::record::Content;
use crate::{Error, Record, TracepointFormat};

/// Size of a record's header.
const HEADER_BYTES: usize = 8;

/// The events of some tracepoints, or of a clock, on one CPU.
#[derive(Debug)]
pub struct Ring {
    cpu: usize,
    content: Content,
    /// The first owns the buffer; the others write into it.
    events: Vec<OwnedFd>,
    map: *mut u8,
    map_bytes: usize,
    data_bytes: usize,
    page_bytes: usize,
    /// A record that wraps around the end is put together here.
    wrapped: Vec<u8>,
}

// SAFETY: the mapping belongs to this value alone, and all access to it goes through `&mut self`.
unsafe impl Send for Ring {}

impl Ring {
    /// Opens the tracepoints on `cpu`, for all processes, with a buffer of 2^`pages_log2` pages.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open(
        cpu: usize,
        tracepoints: &[&TracepointFormat],
        pages_log2: u32,
    ) -> Result<Self, Error> {
        let mut events: Vec<OwnedFd> = Vec::new();
        for tracepoint in tracepoints {
            events.push(open_event(cpu, &mut of_tracepoint(tracepoint.id))?);
        }
        Self::map(cpu, events, pages_log2, Content::Tracepoint)
    }

    /// Opens a clock on `cpu` that samples whatever runs there, in user code or in the kernel,
    /// `per_s` times a second (`PERF_COUNT_SW_CPU_CLOCK`, a timer: it needs no hardware counter),
    /// with a buffer of 2^`pages_log2` pages.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open_clock(cpu: usize, per_s: u64, pages_log2: u32) -> Result<Self, Error> {
        let event = open_event(cpu, &mut of_clock(per_s))?;
        Self::map(cpu, vec![event], pages_log2, Content::Tick)
    }

    /// Samples user code on `cpu` `per_s` times a second, each time with the branches that the
    /// processor took last (Intel's LBR, AMD's LbrExtV2), with a buffer of 2^`pages_log2` pages.
    ///
    /// # Errors
    /// [`Error::Open`], also where the processor, or its hypervisor, keeps none.
    pub fn open_branches(cpu: usize, per_s: u64, pages_log2: u32) -> Result<Self, Error> {
        let event = open_event(cpu, &mut of_branches(per_s))?;
        Self::map(cpu, vec![event], pages_log2, Content::Branches)
    }

    fn map(
        cpu: usize,
        events: Vec<OwnedFd>,
        pages_log2: u32,
        content: Content,
    ) -> Result<Self, Error> {
        let failed = |source: io::Error| Error::Open { cpu, source };
        let page_bytes = rustix::param::page_size();
        let data_bytes = page_bytes << pages_log2;
        let map_bytes = page_bytes + data_bytes;
        let Some(first) = events.first() else {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice; nothing else knows of it.
        let map = unsafe {
            mmap(
                ptr::null_mut(),
                map_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                first,
                0,
            )
        };
        let map = map.map_err(|errno| failed(errno.into()))?.cast::<u8>();
        let ring = Self {
            cpu,
            content,
            events,
            map,
            map_bytes,
            data_bytes,
            page_bytes,
            wrapped: Vec::new(),
        };
        let owner = std::os::fd::AsRawFd::as_raw_fd(&ring.events[0]);
        for event in &ring.events[1..] {
            let raw = std::os::fd::AsRawFd::as_raw_fd(event);
            // SAFETY: both descriptors are open perf events of the same CPU, which is what
            // SET_OUTPUT asks for.
            let code = unsafe { libc::ioctl(raw, sys::bindings::SET_OUTPUT.into(), owner) };
            if code < 0 {
                return Err(failed(io::Error::last_os_error()));
            }
        }
        Ok(ring)
    }

    /// Stops the events, or lets them come again; from [`Ring::open`] on they come.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn set_enabled(&self, enabled: bool) -> Result<(), Error> {
        let request = if enabled {
            sys::bindings::ENABLE
        } else {
            sys::bindings::DISABLE
        };
        for event in &self.events {
            let raw = std::os::fd::AsRawFd::as_raw_fd(event);
            // SAFETY: an open perf event; the argument 0 means this event alone.
            let code = unsafe { libc::ioctl(raw, request.into(), 0) };
            if code < 0 {
                return Err(Error::Open {
                    cpu: self.cpu,
                    source: io::Error::last_os_error(),
                });
            }
        }
        Ok(())
    }

    /// Readable when a quarter of the buffer is full.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.events[0].as_fd()
    }

    /// Hands every record since the last call to `take`, oldest first.
    pub fn drain(&mut self, mut take: impl FnMut(Record<'_>)) {
        let head = self.index(Index::Head).load(Ordering::Acquire);
        let mut tail = self.index(Index::Tail).load(Ordering::Relaxed);
        let mut wrapped = std::mem::take(&mut self.wrapped);
        while head.wrapping_sub(tail) >= HEADER_BYTES as u64 {
            // `struct perf_event_header`: type, misc, size; records are aligned to 8 bytes, so a
            // header never wraps.
            let header = self.bytes(tail, HEADER_BYTES, &mut wrapped);
            let kind = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
            let misc = u16::from_le_bytes([header[4], header[5]]);
            let size = usize::from(u16::from_le_bytes([header[6], header[7]]));
            if size < HEADER_BYTES || size as u64 > head.wrapping_sub(tail) {
                break;
            }
            let body_at = tail.wrapping_add(HEADER_BYTES as u64);
            take(Record::parse(
                kind,
                misc,
                self.content,
                self.bytes(body_at, size - HEADER_BYTES, &mut wrapped),
            ));
            tail = tail.wrapping_add(size as u64);
        }
        self.wrapped = wrapped;
        self.index(Index::Tail).store(tail, Ordering::Release);
    }

    /// `count` bytes of the ring from `at`, put together in `wrapped` where they wrap around.
    fn bytes<'a>(&'a self, at: u64, count: usize, wrapped: &'a mut Vec<u8>) -> &'a [u8] {
        let mask = self.data_bytes as u64 - 1;
        let start = usize::try_from(at & mask).unwrap_or(0);
        let first = count.min(self.data_bytes - start);
        let part = |start: usize, count: usize| {
            // SAFETY: the data area is `data_bytes` long behind the first page, and `start + count`
            // stays within it; the kernel does not write between tail and head, and we advance the
            // tail only after the last use.
            unsafe { std::slice::from_raw_parts(self.map.add(self.page_bytes + start), count) }
        };
        if first == count {
            return part(start, count);
        }
        wrapped.clear();
        wrapped.extend_from_slice(part(start, first));
        wrapped.extend_from_slice(part(0, count - first));
        wrapped
    }

    fn index(&self, index: Index) -> &AtomicU64 {
        let page = self.map.cast::<sys::bindings::perf_event_mmap_page>();
        // SAFETY: the first page of the mapping is a perf_event_mmap_page and lives as long as
        // self.
        let place = unsafe {
            match index {
                Index::Head => ptr::addr_of_mut!((*page).data_head),
                Index::Tail => ptr::addr_of_mut!((*page).data_tail),
            }
        };
        // SAFETY: the fields are aligned u64, which the kernel reads and writes atomically.
        unsafe { AtomicU64::from_ptr(place) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping that `open` made, whole, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.map.cast(), self.map_bytes) };
    }
}

enum Index {
    Head,
    Tail,
}

fn of_tracepoint(id: u16) -> sys::bindings::perf_event_attr {
    let mut attr = sys::bindings::perf_event_attr {
        type_: sys::bindings::PERF_TYPE_TRACEPOINT,
        config: u64::from(id),
        sample_type: u64::from(sys::bindings::PERF_SAMPLE_TIME)
            | u64::from(sys::bindings::PERF_SAMPLE_CPU)
            | u64::from(sys::bindings::PERF_SAMPLE_RAW),
        clockid: libc::CLOCK_MONOTONIC,
        ..Default::default()
    };
    attr.__bindgen_anon_1.sample_period = 1;
    attr.set_use_clockid(1);
    attr
}

fn of_clock(per_s: u64) -> sys::bindings::perf_event_attr {
    let mut attr = sys::bindings::perf_event_attr {
        type_: sys::bindings::PERF_TYPE_SOFTWARE,
        config: u64::from(sys::bindings::PERF_COUNT_SW_CPU_CLOCK),
        sample_type: u64::from(sys::bindings::PERF_SAMPLE_IP)
            | u64::from(sys::bindings::PERF_SAMPLE_TID),
        ..Default::default()
    };
    attr.__bindgen_anon_1.sample_freq = per_s;
    attr.set_freq(1);
    // Idle time is not sampled.
    attr.set_exclude_idle(1);
    attr
}

fn of_branches(per_s: u64) -> sys::bindings::perf_event_attr {
    let mut attr = sys::bindings::perf_event_attr {
        type_: sys::bindings::PERF_TYPE_HARDWARE,
        config: u64::from(sys::bindings::PERF_COUNT_HW_CPU_CYCLES),
        sample_type: u64::from(sys::bindings::PERF_SAMPLE_TID)
            | u64::from(sys::bindings::PERF_SAMPLE_BRANCH_STACK),
        branch_sample_type: u64::from(sys::bindings::PERF_SAMPLE_BRANCH_USER)
            | u64::from(sys::bindings::PERF_SAMPLE_BRANCH_ANY),
        ..Default::default()
    };
    attr.__bindgen_anon_1.sample_freq = per_s;
    attr.set_freq(1);
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    attr
}

fn open_event(cpu: usize, attr: &mut sys::bindings::perf_event_attr) -> Result<OwnedFd, Error> {
    let failed = |source: io::Error| Error::Open { cpu, source };
    attr.size = u32::try_from(size_of::<sys::bindings::perf_event_attr>()).unwrap_or(0);
    attr.set_watermark(1);
    attr.__bindgen_anon_2.wakeup_watermark = 1 << 16;
    let cpu = libc::c_int::try_from(cpu).map_err(|_| failed(io::ErrorKind::InvalidInput.into()))?;
    let flags = sys::bindings::PERF_FLAG_FD_CLOEXEC.into();
    // SAFETY: `attr` is initialised and outlives the call; pid −1 with a CPU means all processes
    // there.
    let fd = unsafe { sys::perf_event_open(attr, -1, cpu, -1, flags) };
    if fd < 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    // SAFETY: a descriptor that was just opened and that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tracefs;

    #[test]
    fn branches_come_with_the_hardware_or_it_is_said_that_there_are_none() {
        match Ring::open_branches(0, 1000, 4) {
            Ok(mut ring) => {
                let mut here = rustix::thread::CpuSet::new();
                here.set(0);
                rustix::thread::sched_setaffinity(None, &here).unwrap();
                let start = std::time::Instant::now();
                while start.elapsed().as_millis() < 300 {
                    std::hint::black_box(start);
                }
                let mut seen = 0;
                ring.drain(|record| {
                    if let Record::Branches(branches) = record {
                        seen += branches.latest_first().count();
                    }
                });
                assert!(seen > 0);
            }
            Err(error) => {
                println!("SKIP: {error}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_counted_and_a_stopped_ring_stays_empty() {
        let opened = Tracefs::open().and_then(|tracefs| {
            let switch = tracefs.format("sched", "sched_switch")?;
            // One page: about forty switches.
            (0..2)
                .map(|cpu| Ring::open(cpu, &[&switch], 0))
                .collect::<Result<Vec<_>, _>>()
        });
        let mut rings = match opened {
            Ok(rings) => rings,
            Err(error) => {
                assert!(std::env::var_os("SLACKLINE_CI").is_none(), "{error}");
                println!("SKIP: {error}");
                return;
            }
        };
        let nap = || std::thread::sleep(std::time::Duration::from_micros(50));
        let drain = |rings: &mut Vec<Ring>| {
            let (mut seen, mut lost) = (0, 0);
            for ring in rings {
                ring.drain(|record| match record {
                    Record::Sample(_) => seen += 1,
                    Record::Lost(count) => lost += count,
                    _ => {}
                });
            }
            (seen, lost)
        };
        // On one CPU: another one's losses would wait for an event there.
        let mut here = rustix::thread::CpuSet::new();
        here.set(0);
        rustix::thread::sched_setaffinity(None, &here).unwrap();
        (0..1000).for_each(|_| nap());
        let (seen, _) = drain(&mut rings);
        assert!((1..200).contains(&seen), "{seen}");
        // The kernel says so with the next event that fits.
        (0..100).for_each(|_| nap());
        let (_, lost) = drain(&mut rings);
        assert!(lost > 500, "{lost}");
        rings
            .iter()
            .for_each(|ring| ring.set_enabled(false).unwrap());
        drain(&mut rings);
        (0..100).for_each(|_| nap());
        assert_eq!(drain(&mut rings), (0, 0));
    }
}
