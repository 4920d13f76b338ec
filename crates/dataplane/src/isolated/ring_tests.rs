//! The ring: what is written is read, and whatever stands in the shared memory does no harm.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;

use super::super::memory::{Memory, Which, create};
use super::*;

const RING_BYTES: usize = 1 << 16;
const RING_WORDS: u64 = (RING_BYTES / WORD_BYTES) as u64;

fn place() -> Place {
    let file = create(RING_BYTES).unwrap();
    let memory = Memory::map(&file, RING_BYTES).unwrap();
    Place::of(&memory, Which::Events)
}

fn ring() -> (Writer, Reader, Place) {
    let place = place();
    (
        Writer::new(place.clone()),
        Reader::new(place.clone()),
        place,
    )
}

fn record(kind: u8, number: u64) -> Record {
    Record {
        kind,
        flow: FlowId {
            index: u32::MAX - 1,
            generation: 0x8000_0001,
        },
        number,
    }
}

/// Bytes that differ from place to place and from record to record.
fn payload(seed: usize, length: usize) -> Vec<u8> {
    let bytes = (seed..seed + length).map(|at| at.wrapping_mul(31).to_le_bytes()[0]);
    bytes.collect()
}

#[test]
fn the_two_rings_of_a_file_do_not_meet() {
    let file = create(RING_BYTES).unwrap();
    let memory = Memory::map(&file, RING_BYTES).unwrap();
    let places = [Which::Commands, Which::Events].map(|which| Place::of(&memory, which));
    let [commands, events] = &places;
    for _ in 0..5 {
        for (kind, place) in (1..).zip([commands, events]) {
            let words = place.data();
            words
                .iter()
                .for_each(|word| word.store(kind, Ordering::Relaxed));
            for control in [place.tail(), place.head(), place.sleeping()] {
                control.store(kind, Ordering::Relaxed);
            }
        }
        for (kind, place) in (1..).zip([commands, events]) {
            let controls = [place.tail(), place.head(), place.sleeping()];
            let mut all = place.data().iter().chain(controls);
            assert!(all.all(|word| word.load(Ordering::Relaxed) == kind));
        }
    }
    // Both are whole.
    assert_eq!(
        commands.data().len() + events.data().len(),
        2 * RING_BYTES / WORD_BYTES
    );
}

#[test]
fn a_record_is_seen_when_it_is_published_and_its_room_is_free_when_it_is_released() {
    let (mut writer, mut reader, _) = ring();
    let mut bytes = Vec::new();
    assert_eq!(reader.next(&mut bytes), Ok(None));
    assert_eq!(writer.write(record(3, u64::MAX), b"abcdefghi"), Ok(true));
    assert_eq!(reader.next(&mut bytes), Ok(None));
    assert!(!writer.publish());
    assert_eq!(reader.next(&mut bytes), Ok(Some(record(3, u64::MAX))));
    assert_eq!(bytes, b"abcdefghi");
    // Fill it: the record that was read has its room until it is released.
    let mut count = 0;
    while writer.write(record(1, 0), &[]).unwrap() {
        count += 1;
    }
    assert_eq!(count, (RING_WORDS - 5) / HEADER_WORDS);
    writer.publish();
    assert_eq!(writer.write(record(1, 0), &[]), Ok(false));
    reader.release();
    assert_eq!(writer.write(record(1, 0), &[]), Ok(true));
}

#[test]
fn a_sleeping_reader_is_woken_once_and_does_not_sleep_when_something_waits() {
    let (mut writer, mut reader, _) = ring();
    assert_eq!(reader.prepare_sleep(), Ok(true));
    assert!(!writer.publish(), "nothing was written");
    writer.write(record(1, 0), &[]).unwrap();
    assert!(writer.publish());
    writer.write(record(1, 0), &[]).unwrap();
    assert!(!writer.publish(), "woken already");
    assert_eq!(reader.prepare_sleep(), Ok(false));
    writer.write(record(1, 0), &[]).unwrap();
    assert!(!writer.publish(), "it does not sleep");
    assert_eq!(reader.prepare_sleep(), Ok(false));
    reader.wake();
}

#[test]
fn a_position_that_cannot_be_is_refused() {
    let mut bytes = Vec::new();
    // The writer's, seen by the reader.
    let (mut writer, mut reader, place) = ring();
    for _ in 0..3 {
        writer.write(record(1, 0), b"x").unwrap();
    }
    writer.publish();
    assert!(reader.next(&mut bytes).unwrap().is_some());
    for tail in [0, 4, 11, RING_WORDS + 1, u64::MAX, 1 << 63] {
        place.tail().store(tail, Ordering::Relaxed);
        assert_eq!(reader.look(), Err(Violation::Position), "{tail}");
        assert_eq!(reader.prepare_sleep(), Err(Violation::Position), "{tail}");
    }
    // What is not released may not be overwritten.
    place.tail().store(RING_WORDS, Ordering::Relaxed);
    assert_eq!(reader.look(), Ok(RING_WORDS - 4));
    // The reader's, seen by the writer, who asks for it only when there is no room.
    for head in [RING_WORDS, 1 << 40, u64::MAX] {
        let (mut writer, _, place) = ring();
        while writer.write(record(1, 0), &[0; 4096]).unwrap() {}
        place.head().store(head, Ordering::Relaxed);
        let written = writer.write(record(1, 0), &[0; 4096]);
        assert_eq!(written, Err(Violation::Position), "{head}");
    }
    // Not even what was published later may be given back before it was read.
    let (mut writer, _, place) = ring();
    assert_eq!(writer.write(record(1, 0), &[0; 30_000]), Ok(true));
    writer.publish();
    assert_eq!(writer.write(record(1, 0), &[0; 30_000]), Ok(true));
    place.head().store(writer.tail, Ordering::Relaxed);
    let written = writer.write(record(1, 0), &[0; 30_000]);
    assert_eq!(written, Err(Violation::Position));
}

#[test]
fn a_length_or_a_kind_that_cannot_be_is_refused() {
    let header = |first: u64, tail: u64| {
        let (_, mut reader, place) = ring();
        place.data()[0].store(first, Ordering::Relaxed);
        place.tail().store(tail, Ordering::Relaxed);
        let mut bytes = Vec::new();
        let result = reader.next(&mut bytes).map(drop);
        assert!(bytes.len() <= PAYLOAD_MAX_BYTES);
        result
    };
    let length = |bytes: u64| bytes << 32 | 1;
    assert_eq!(header(length(0), 3), Ok(()));
    assert_eq!(header(length(0), 2), Err(Violation::Length));
    assert_eq!(header(length(8), 4), Ok(()));
    assert_eq!(header(length(9), 4), Err(Violation::Length));
    let most = PAYLOAD_MAX_BYTES as u64;
    assert_eq!(header(length(most), RING_WORDS), Ok(()));
    assert_eq!(header(length(most + 1), RING_WORDS), Err(Violation::Length));
    assert_eq!(header(u64::MAX, RING_WORDS), Err(Violation::Length));
    assert_eq!(header(1 << 8, 3), Err(Violation::Kind));
    assert_eq!(header(1 << 31, 3), Err(Violation::Kind));
}

#[test]
fn two_threads_carry_records_past_the_end_of_the_ring() {
    const RECORDS: usize = 20_000;
    let (mut writer, mut reader, _) = ring();
    let length = |number: usize| number * 7919 % 3000;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..RECORDS {
                let bytes = payload(number, length(number));
                while !writer.write(record(1, number as u64), &bytes).unwrap() {
                    writer.publish();
                    std::thread::yield_now();
                }
                if number % 5 == 0 {
                    writer.publish();
                }
            }
            writer.publish();
        });
        let mut bytes = Vec::new();
        for number in 0..RECORDS {
            bytes.clear();
            let found = loop {
                match reader.next(&mut bytes).unwrap() {
                    Some(found) => break found,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(found, record(1, number as u64));
            assert!(bytes == payload(number, length(number)), "{number}");
            if number % 3 == 0 {
                reader.release();
            }
        }
    });
}

#[derive(Debug, Clone)]
enum Step {
    Write(usize),
    Publish,
    Read,
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..100_usize).prop_map(Step::Write),
        2 => (0..=PAYLOAD_MAX_BYTES).prop_map(Step::Write),
        2 => Just(Step::Publish),
        6 => Just(Step::Read),
        2 => Just(Step::Release),
    ]
}

/// What a hostile process may write: numbers near what is right, and any others.
fn hostile() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..16_u64,
        0..2 * RING_WORDS,
        RING_WORDS - 4..RING_WORDS + 4,
        (0..16_u64, 0..70_000_u64).prop_map(|(kind, length)| length << 32 | kind),
        any::<u64>(),
    ]
}

proptest! {
    #[test]
    fn a_ring_behaves_as_a_queue(steps in proptest::collection::vec(step(), 1..300)) {
        let (mut writer, mut reader, _) = ring();
        let (mut model, mut published) = (VecDeque::new(), 0);
        for (seed, step) in steps.into_iter().enumerate() {
            match step {
                Step::Write(length) => {
                    let bytes = payload(seed, length);
                    if writer.write(record(2, seed as u64), &bytes).unwrap() {
                        model.push_back((seed, bytes));
                    }
                }
                Step::Publish => {
                    writer.publish();
                    published = model.len();
                }
                Step::Read => {
                    let mut bytes = vec![7];
                    let found = reader.next(&mut bytes).unwrap();
                    prop_assert_eq!(found.is_some(), published > 0);
                    if found.is_some() {
                        published -= 1;
                        let (seed, expected) = model.pop_front().unwrap();
                        prop_assert_eq!(found, Some(record(2, seed as u64)));
                        prop_assert_eq!(&bytes[1..], &expected[..]);
                    }
                }
                Step::Release => reader.release(),
            }
        }
    }

    #[test]
    fn a_reader_survives_any_memory(
        words in proptest::collection::vec(hostile(), 1..200),
        tails in proptest::collection::vec(hostile(), 1..20),
    ) {
        let (_, mut reader, place) = ring();
        for (at, word) in place.data().iter().enumerate() {
            word.store(words[at % words.len()], Ordering::Relaxed);
        }
        let mut taken = 0;
        for tail in tails {
            place.tail().store(tail, Ordering::Relaxed);
            let mut bytes = Vec::new();
            while let Ok(Some(_)) = reader.next(&mut bytes) {
                prop_assert!(bytes.len() <= PAYLOAD_MAX_BYTES);
                bytes.clear();
                taken += HEADER_WORDS;
                reader.release();
            }
            // As much as the writer has claimed to have written, and no more.
            prop_assert!(taken <= reader.head);
            prop_assert!(reader.head <= reader.tail);
        }
    }

    #[test]
    fn a_writer_overwrites_nothing_that_is_not_read(
        heads in proptest::collection::vec(hostile(), 1..50),
    ) {
        let (mut writer, _, place) = ring();
        for head in heads {
            place.head().store(head, Ordering::Relaxed);
            while let Ok(true) = writer.write(record(1, 0), &[0; 5000]) {
                writer.publish();
                prop_assert!(writer.tail - writer.head <= RING_WORDS);
            }
            prop_assert!(writer.head <= writer.published);
        }
    }
}

/// The memory is one thing for both sides.
#[test]
fn two_mappings_of_a_file_are_the_same_memory() {
    let file = create(RING_BYTES).unwrap();
    let [one, other] = [(); 2].map(|()| Memory::map(&file, RING_BYTES).unwrap());
    assert!(!Arc::ptr_eq(&one, &other));
    let mut writer = Writer::new(Place::of(&one, Which::Commands));
    let mut reader = Reader::new(Place::of(&other, Which::Commands));
    writer.write(record(1, 5), b"over there").unwrap();
    writer.publish();
    let mut bytes = Vec::new();
    assert_eq!(reader.next(&mut bytes), Ok(Some(record(1, 5))));
    assert_eq!(bytes, b"over there");
}
