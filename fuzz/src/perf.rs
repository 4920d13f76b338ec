//! Any bytes as records of the kernel's ring buffer, or as a tracepoint's format with its data.

use perf_events::{Content, Record, TracepointFormat};

use crate::target::Target;

#[path = "../../crates/perf-events/src/fixture.rs"]
mod fixture;

/// The target.
pub const TARGET: Target = Target {
    name: "perf",
    run,
    seeds,
    memory_max_bytes: 4 << 20,
};

/// Contents of rings, by the first byte of the input. Any other byte: a format and its data.
const CONTENTS: [Content; 3] = [Content::Tracepoint, Content::Tick, Content::Branches];

/// `struct perf_event_header`: kind, misc, size with the header.
const HEADER_BYTES: usize = 8;
/// `PERF_RECORD_LOST` and `PERF_RECORD_SAMPLE`.
const LOST: u32 = 2;
const SAMPLE: u32 = 9;

fn seeds() -> Vec<Vec<u8>> {
    let record = |kind: u32, misc: u16, body: Vec<u8>| {
        let size = u16::try_from(HEADER_BYTES + body.len()).expect("a short record");
        let (kind, misc, size) = (kind.to_le_bytes(), misc.to_le_bytes(), size.to_le_bytes());
        [&kind[..], &misc, &size, &body].concat()
    };
    let ring = |content: u8, body: Vec<u8>| {
        let records = [
            record(SAMPLE, 2, body.clone()),
            record(LOST, 0, fixture::lost()),
            record(SAMPLE, 0x4001, body),
        ];
        [vec![content], records.concat()].concat()
    };
    let data = [vec![0; 24], vec![7; 16]].concat();
    vec![
        ring(0, fixture::sample()),
        ring(1, fixture::tick()),
        ring(2, fixture::branches()),
        [&[3][..], fixture::SWITCH.as_bytes(), &[0], &data].concat(),
    ]
}

fn run(data: &[u8]) -> bool {
    let Some((first, rest)) = data.split_first() else {
        return false;
    };
    match CONTENTS.get(usize::from(*first)) {
        Some(content) => records(*content, rest),
        None => format_and_data(rest),
    }
}

/// Walks through the records as a ring does.
fn records(content: Content, mut ring: &[u8]) -> bool {
    let mut is_known = false;
    while let Some((header, rest)) = ring.split_first_chunk::<HEADER_BYTES>() {
        let kind = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let misc = u16::from_le_bytes([header[4], header[5]]);
        let size = usize::from(u16::from_le_bytes([header[6], header[7]]));
        let Some(body) = size
            .checked_sub(HEADER_BYTES)
            .and_then(|len| rest.get(..len))
        else {
            break;
        };
        let record = Record::parse(kind, misc, content, body);
        is_known |= record != Record::Other;
        check_record(&record, body);
        // A record that is cut short is none, or what it was: its end was padding.
        for length in [body.len() / 2, body.len().saturating_sub(1)] {
            let cut = Record::parse(kind, misc, content, &body[..length]);
            assert!(
                cut == Record::Other || cut == record,
                "{cut:?} of {record:?}"
            );
        }
        ring = &rest[body.len()..];
    }
    is_known
}

/// What a record points to lies in its body.
fn check_record(record: &Record<'_>, body: &[u8]) {
    match record {
        Record::Sample(sample) => {
            assert!(body.as_ptr_range().start <= sample.raw.as_ptr_range().start);
            assert!(sample.raw.as_ptr_range().end <= body.as_ptr_range().end);
            assert_eq!(sample.id().is_some(), sample.raw.len() >= 2);
        }
        Record::Branches(branches) => {
            assert!(branches.latest_first().count() <= body.len() / 24);
        }
        Record::Tick(_) | Record::Lost(_) | Record::Other => {}
    }
}

/// A text up to its first NUL, then data that it describes.
fn format_and_data(data: &[u8]) -> bool {
    let end = data
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(data.len());
    let Ok(text) = std::str::from_utf8(&data[..end]) else {
        return false;
    };
    let raw = data.get(end + 1..).unwrap_or_default();
    let format = match TracepointFormat::parse(text) {
        Ok(format) => format,
        Err(error) => {
            // The message repeats one line of the text at most, each character escaped.
            assert!(error.to_string().len() <= 200 + 12 * text.len());
            return false;
        }
    };
    let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    for word in words.filter(|word| !word.is_empty()) {
        let Ok(field) = format.field(word) else {
            continue;
        };
        let end = field.offset.checked_add(field.size);
        let is_inside = end.is_some_and(|end| end <= raw.len());
        let number = field.unsigned(raw);
        assert_eq!(number.is_some(), is_inside && field.size <= 8, "{field:?}");
        assert_eq!(field.text(raw).is_some(), is_inside, "{field:?}");
    }
    true
}
