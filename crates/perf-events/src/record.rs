//! The records of a ring buffer (include/uapi/linux/perf_event.h, `enum perf_event_type`).

/// `PERF_RECORD_LOST` and `PERF_RECORD_SAMPLE`.
const LOST: u32 = 2;
const SAMPLE: u32 = 9;

/// A tracepoint that was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracepointSample<'a> {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// On which CPU.
    pub cpu: u32,
    /// Its raw data, laid out as [`crate::TracepointFormat`] says.
    pub raw: &'a [u8],
}

impl TracepointSample<'_> {
    /// Which tracepoint it is.
    #[must_use]
    pub fn id(&self) -> Option<u16> {
        self.raw
            .first_chunk()
            .map(|bytes| u16::from_le_bytes(*bytes))
    }
}

/// Where a thread was when the clock ticked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// The process (thread group).
    pub process: u32,
    /// The thread.
    pub thread: u32,
    /// The instruction's address.
    pub address: u64,
    /// In user code, not in the kernel.
    pub is_user: bool,
}

/// The branches that a processor recorded before a sample, the latest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledBranches<'a> {
    /// The process (thread group).
    pub process: u32,
    /// `struct perf_branch_entry`s.
    entries: &'a [u8],
}

/// `struct perf_branch_entry`: from, to, flags.
const BRANCH_BYTES: usize = 24;

/// The two bits of its flags behind mispred, predicted, in_tx, abort, cycles (16) and type (4), and
/// `PERF_BR_SPEC_WRONG_PATH`.
const SPECULATION: u32 = 24;
const WRONG_PATH: u64 = 1;

impl SampledBranches<'_> {
    /// (from, to) of each that was taken indeed: AMD records those of wrong paths too.
    pub fn latest_first(&self) -> impl Iterator<Item = (u64, u64)> {
        let entries = self.entries.chunks_exact(BRANCH_BYTES);
        entries.filter_map(|entry| {
            let is_wrong = number(entry, 16)? >> SPECULATION & 3 == WRONG_PATH;
            (!is_wrong).then_some((number(entry, 0)?, number(entry, 8)?))
        })
    }
}

/// Which parts the samples of a ring have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// `PERF_SAMPLE_TIME | PERF_SAMPLE_CPU | PERF_SAMPLE_RAW`.
    Tracepoint,
    /// `PERF_SAMPLE_IP | PERF_SAMPLE_TID`.
    Tick,
    /// `PERF_SAMPLE_TID | PERF_SAMPLE_BRANCH_STACK`.
    Branches,
}

/// `PERF_RECORD_MISC_CPUMODE_MASK` and `PERF_RECORD_MISC_USER`.
const MODE_MASK: u16 = 7;
const MODE_USER: u16 = 2;

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A tracepoint was passed.
    Sample(TracepointSample<'a>),
    /// The clock ticked.
    Tick(Tick),
    /// Branches that were taken.
    Branches(SampledBranches<'a>),
    /// The ring was full: so many were lost.
    Lost(u64),
    /// Something else, or a record cut short.
    Other,
}

impl<'a> Record<'a> {
    /// Reads a record's body: `kind` and `misc` are of its header (`struct perf_event_header`),
    /// `content` says which parts a sample has. Their order is fixed.
    ///
    /// ```
    /// use perf_events::{Content, Record};
    /// let body = [0, 12_u64].map(u64::to_le_bytes).concat();
    /// assert_eq!(Record::parse(2, 0, Content::Tick, &body), Record::Lost(12));
    /// assert_eq!(Record::parse(2, 0, Content::Tick, &body[..15]), Record::Other);
    /// ```
    #[must_use]
    pub fn parse(kind: u32, misc: u16, content: Content, body: &'a [u8]) -> Self {
        match (kind, content) {
            (SAMPLE, Content::Tracepoint) => {
                Self::sample(body).map_or(Record::Other, Record::Sample)
            }
            (SAMPLE, Content::Tick) => Self::tick(misc, body).map_or(Record::Other, Record::Tick),
            (SAMPLE, Content::Branches) => {
                Self::branches(body).map_or(Record::Other, Record::Branches)
            }
            (LOST, _) => number(body, 8).map_or(Record::Other, Record::Lost),
            _ => Record::Other,
        }
    }

    fn branches(body: &'a [u8]) -> Option<SampledBranches<'a>> {
        let count = usize::try_from(number(body, 8)?).ok()?;
        let end = count.checked_mul(BRANCH_BYTES)?.checked_add(16)?;
        Some(SampledBranches {
            process: half(number(body, 0)?),
            entries: body.get(16..end)?,
        })
    }

    fn tick(misc: u16, body: &[u8]) -> Option<Tick> {
        let ids = number(body, 8)?;
        Some(Tick {
            process: half(ids),
            thread: half(ids >> 32),
            address: number(body, 0)?,
            is_user: misc & MODE_MASK == MODE_USER,
        })
    }

    fn sample(body: &'a [u8]) -> Option<TracepointSample<'a>> {
        let short = |at: usize| {
            let bytes = body.get(at..at + 4)?.first_chunk()?;
            Some(u32::from_le_bytes(*bytes))
        };
        let size = usize::try_from(short(16)?).ok()?;
        Some(TracepointSample {
            time_ns: number(body, 0)?,
            cpu: short(8)?,
            raw: body.get(20..20_usize.checked_add(size)?)?,
        })
    }
}

fn half(ids: u64) -> u32 {
    u32::try_from(ids & u64::from(u32::MAX)).unwrap_or(0)
}

fn number(body: &[u8], at: usize) -> Option<u64> {
    let bytes = body.get(at..at + 8)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn samples_and_losses_are_read() {
        let body = fixture::sample();
        let Record::Sample(sample) = Record::parse(SAMPLE, 0, Content::Tracepoint, &body) else {
            panic!("not a sample");
        };
        assert_eq!(
            (sample.time_ns, sample.cpu, sample.raw),
            (5, 3, &[60, 1, 9, 9][..])
        );
        assert_eq!(sample.id(), Some(316));
        assert_eq!(
            Record::parse(LOST, 0, Content::Tracepoint, &fixture::lost()),
            Record::Lost(12)
        );
    }

    #[test]
    fn ticks_are_read() {
        let mut body = fixture::tick();
        let tick = |is_user| {
            Record::Tick(Tick {
                process: 7,
                thread: 8,
                address: 0x1234,
                is_user,
            })
        };
        assert_eq!(Record::parse(SAMPLE, 2, Content::Tick, &body), tick(true));
        assert_eq!(
            Record::parse(SAMPLE, 0x4001, Content::Tick, &body),
            tick(false)
        );
        body.pop();
        assert_eq!(
            Record::parse(SAMPLE, 2, Content::Tick, &body),
            Record::Other
        );
    }

    #[test]
    fn branches_are_read() {
        let mut body = fixture::branches();
        let Record::Branches(branches) = Record::parse(SAMPLE, 2, Content::Branches, &body) else {
            panic!("no branches");
        };
        assert_eq!(branches.process, 7);
        let pairs: Vec<_> = branches.latest_first().collect();
        assert_eq!(pairs, [(0x120, 0x200), (0x15, 0x100)]);
        // Fewer than it says, and more than there can be.
        body.pop();
        assert_eq!(
            Record::parse(SAMPLE, 2, Content::Branches, &body),
            Record::Other
        );
        body[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(
            Record::parse(SAMPLE, 2, Content::Branches, &body),
            Record::Other
        );
    }

    #[test]
    fn records_cut_short_are_no_samples() {
        for length in 0..24 {
            let mut body = vec![0xff; length];
            assert_eq!(
                Record::parse(SAMPLE, 0, Content::Tracepoint, &body),
                Record::Other
            );
            body.truncate(length.min(15));
            assert_eq!(Record::parse(LOST, 0, Content::Tick, &body), Record::Other);
        }
    }
}
