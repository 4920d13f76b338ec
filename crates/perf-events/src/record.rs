//! The records of a ring buffer (include/uapi/linux/perf_event.h, `enum perf_event_type`).

/// `PERF_RECORD_LOST` and `PERF_RECORD_SAMPLE`.
const LOST: u32 = 2;
const SAMPLE: u32 = 9;

/// A tracepoint that was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<'a> {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// On which CPU.
    pub cpu: u32,
    /// Its raw data, laid out as [`crate::Format`] says.
    pub raw: &'a [u8],
}

impl Sample<'_> {
    /// Which tracepoint it is.
    #[must_use]
    pub fn id(&self) -> Option<u16> {
        self.raw
            .first_chunk()
            .map(|bytes| u16::from_le_bytes(*bytes))
    }
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A tracepoint was passed.
    Sample(Sample<'a>),
    /// The ring was full: so many were lost.
    Lost(u64),
    /// Something else, or a record cut short.
    Other,
}

impl<'a> Record<'a> {
    /// Reads a record's body. Samples are of `PERF_SAMPLE_TIME | PERF_SAMPLE_CPU | PERF_SAMPLE_RAW`, whose order is fixed.
    pub(crate) fn parse(kind: u32, body: &'a [u8]) -> Self {
        match kind {
            SAMPLE => Self::sample(body).map_or(Record::Other, Record::Sample),
            LOST => number(body, 8).map_or(Record::Other, Record::Lost),
            _ => Record::Other,
        }
    }

    fn sample(body: &'a [u8]) -> Option<Sample<'a>> {
        let short = |at: usize| {
            let bytes = body.get(at..at + 4)?.first_chunk()?;
            Some(u32::from_le_bytes(*bytes))
        };
        let size = usize::try_from(short(16)?).ok()?;
        Some(Sample {
            time_ns: number(body, 0)?,
            cpu: short(8)?,
            raw: body.get(20..20_usize.checked_add(size)?)?,
        })
    }
}

fn number(body: &[u8], at: usize) -> Option<u64> {
    let bytes = body.get(at..at + 8)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_and_losses_are_read() {
        let mut body = 5_u64.to_le_bytes().to_vec();
        body.extend(3_u32.to_le_bytes());
        body.extend(0_u32.to_le_bytes());
        body.extend(4_u32.to_le_bytes());
        body.extend([60, 1, 9, 9, 0, 0, 0, 0]);
        let Record::Sample(sample) = Record::parse(SAMPLE, &body) else {
            panic!("not a sample");
        };
        assert_eq!(
            (sample.time_ns, sample.cpu, sample.raw),
            (5, 3, &[60, 1, 9, 9][..])
        );
        assert_eq!(sample.id(), Some(316));
        let mut lost = vec![0; 8];
        lost.extend(12_u64.to_le_bytes());
        assert_eq!(Record::parse(LOST, &lost), Record::Lost(12));
    }

    #[test]
    fn records_cut_short_are_no_samples() {
        for length in 0..24 {
            let mut body = vec![0xff; length];
            assert_eq!(Record::parse(SAMPLE, &body), Record::Other);
            body.truncate(length.min(15));
            assert_eq!(Record::parse(LOST, &body), Record::Other);
        }
    }
}
