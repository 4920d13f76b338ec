//! The store against a model, and at its limits.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn store(pages: usize) -> Store {
    Store::new(
        pages * arena::PAGE_BYTES,
        ahash::RandomState::with_seeds(1, 2, 3, 4),
    )
}

fn put(store: &mut Store, key: &[u8], value: &[u8], mode: Mode, expiry: Expiry) -> Stored {
    let reserved = match store.reserve(key, 7, expiry, value.len()) {
        Ok(reserved) => reserved,
        Err(error) => return Stored::Failed(error),
    };
    let memory = store.reserved_mut(&reserved);
    memory[..value.len()].copy_from_slice(value);
    memory[value.len()..].copy_from_slice(b"\r\n");
    store.commit(reserved, mode, None, None)
}

fn read(store: &mut Store, key: &[u8]) -> Option<Vec<u8>> {
    let item = store.get(key)?;
    Some(store.value(item).to_vec())
}

#[derive(Debug, Clone)]
enum Step {
    Put(u8, Vec<u8>, Mode, Option<u32>),
    Get(u8),
    Delete(u8),
    Count(u8, u64, bool),
    Flush,
    Pass(u32),
    Crawl,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let mode = prop_oneof![
        Just(Mode::Set),
        Just(Mode::Add),
        Just(Mode::Replace),
        Just(Mode::Append),
        Just(Mode::Prepend)
    ];
    let value = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..300),
        (0_u64..2000).prop_map(|number| number.to_string().into_bytes()),
    ];
    let step = prop_oneof![
        4 => (0..12_u8, value, mode, proptest::option::of(1..5_u32))
            .prop_map(|(key, value, mode, expiry)| Step::Put(key, value, mode, expiry)),
        3 => (0..12_u8).prop_map(Step::Get),
        1 => (0..12_u8).prop_map(Step::Delete),
        2 => (0..12_u8, 0_u64..500, any::<bool>()).prop_map(|(k, d, up)| Step::Count(k, d, up)),
        1 => Just(Step::Flush),
        1 => (1..3_u32).prop_map(Step::Pass),
        1 => Just(Step::Crawl),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    #[test]
    fn it_does_what_a_map_does(steps in steps()) {
        // Pages enough for every size that occurs: nothing is evicted.
        let mut store = store(16);
        let mut model: HashMap<u8, (Vec<u8>, Option<u32>)> = HashMap::new();
        let mut now = 2;
        for step in steps {
            model.retain(|_, (_, expiry)| expiry.is_none_or(|at| at > now));
            match step {
                Step::Put(key, value, mode, expiry) => {
                    let at = expiry.map(|left| now + left);
                    let stored = put(&mut store, &[key], &value, mode, at.map_or(Expiry::Never, Expiry::At));
                    let present = model.contains_key(&key);
                    let expected = match mode {
                        Mode::Set => true,
                        Mode::Add => !present,
                        Mode::Replace | Mode::Append | Mode::Prepend => present,
                    };
                    prop_assert_eq!(matches!(stored, Stored::Yes(_)), expected, "{:?}", stored);
                    if expected {
                        match mode {
                            Mode::Append => model.get_mut(&key).unwrap().0.extend(&value),
                            Mode::Prepend => {
                                let old = &mut model.get_mut(&key).unwrap().0;
                                *old = [&value[..], &old[..]].concat();
                            }
                            _ => { model.insert(key, (value, at)); }
                        }
                    }
                }
                Step::Get(key) => {
                    let expected = model.get(&key).map(|(value, _)| value.clone());
                    prop_assert_eq!(read(&mut store, &[key]), expected);
                }
                Step::Delete(key) => {
                    let found = store.peek(&[key]);
                    prop_assert_eq!(found.is_some(), model.remove(&key).is_some());
                    if let Some(item) = found { store.delete(item); }
                }
                Step::Count(key, delta, up) => {
                    let counted = store.count(&[key], delta, up, None, None);
                    let Some((value, _)) = model.get_mut(&key) else {
                        prop_assert_eq!(counted, Counted::NotFound);
                        continue;
                    };
                    let text = std::str::from_utf8(value).ok().map(|text| text.trim_end_matches([' ', '\t', '\n', '\r', '\x0c']).to_owned());
                    let digits = text.filter(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()));
                    match digits.and_then(|text| text.parse::<u64>().ok()) {
                        Some(old) => {
                            let number = if up { old.wrapping_add(delta) } else { old.saturating_sub(delta) };
                            prop_assert_eq!(counted, Counted::Number(number));
                            let text = number.to_string();
                            let width = value.len().max(text.len());
                            *value = format!("{text:<width$}").into_bytes();
                        }
                        None => prop_assert_eq!(counted, Counted::NotANumber),
                    }
                }
                Step::Flush => { store.flush(None); model.clear(); }
                Step::Pass(seconds) => { now += seconds; store.set_clock(now); }
                Step::Crawl => store.crawl(1000),
            }
        }
        model.retain(|_, (_, expiry)| expiry.is_none_or(|at| at > now));
        for _ in 0..3 { store.crawl(10_000); }
        prop_assert_eq!(store.stats.items, model.len() as u64);
    }
}

#[test]
fn memory_stays_bounded_and_what_is_asked_for_survives() {
    let mut store = store(4);
    put(&mut store, b"loved", &[1; 1000], Mode::Set, Expiry::Never);
    for number in 0..100_000_u32 {
        put(
            &mut store,
            format!("key{number}").as_bytes(),
            &[0; 1000],
            Mode::Set,
            Expiry::Never,
        );
        if number % 100 == 0 {
            assert!(read(&mut store, b"loved").is_some(), "{number}");
        }
    }
    assert!(store.stats.evictions > 80_000);
    assert!(store.stats.bytes <= 4 * arena::PAGE_BYTES as u64);
    assert!(read(&mut store, b"key99999").is_some());
    assert!(read(&mut store, b"key5").is_none());
}

/// A list without segments would lose all of them.
#[test]
fn a_scan_evicts_no_item_that_was_asked_for() {
    fn scan(store: &mut Store, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let key = format!("scan{number}");
            put(store, key.as_bytes(), &[0; 1000], Mode::Set, Expiry::Never);
        }
    }
    let mut store = store(4);
    let asked = |number: u32| format!("asked{number}").into_bytes();
    // Warm holds a share of all items: the memory is full first, so that all 1,000 fit.
    scan(&mut store, 0..20_000);
    for number in 0..1000 {
        put(
            &mut store,
            &asked(number),
            &[1; 1000],
            Mode::Set,
            Expiry::Never,
        );
        assert!(read(&mut store, &asked(number)).is_some());
    }
    scan(&mut store, 20_000..120_000);
    assert!(store.stats.evictions > 100_000);
    let left = (0..1000).filter(|number| store.peek(&asked(*number)).is_some());
    assert_eq!(left.count(), 1000);
}

#[test]
fn another_size_gets_pages_when_all_are_taken() {
    let mut store = store(4);
    for number in 0..200_000_u32 {
        put(
            &mut store,
            format!("small{number}").as_bytes(),
            b"x",
            Mode::Set,
            Expiry::Never,
        );
    }
    let large = vec![9; VALUE_MAX_BYTES];
    for number in 0..20_u8 {
        let stored = put(
            &mut store,
            &[b'L', number],
            &large,
            Mode::Set,
            Expiry::Never,
        );
        assert!(matches!(stored, Stored::Yes(_)), "{number}: {stored:?}");
        assert_eq!(
            read(&mut store, &[b'L', number]).unwrap().len(),
            large.len()
        );
    }
    assert!(store.stats.pages_moved > 0);
    assert!(store.stats.items > 1000);
}

#[test]
fn items_being_received_hold_a_bounded_share() {
    let mut store = store(8);
    let mut reserved = Vec::new();
    let error = loop {
        match store.reserve(b"slow", 0, Expiry::Never, VALUE_MAX_BYTES) {
            Ok(more) => reserved.push(more),
            Err(error) => break error,
        }
    };
    assert_eq!(error, StoreError::OutOfMemory);
    assert!((4..=8).contains(&reserved.len()), "{}", reserved.len());
    assert!(matches!(
        put(&mut store, b"a", b"b", Mode::Set, Expiry::Never),
        Stored::Yes(_)
    ));
    for reserved in reserved {
        store.abandon(reserved);
    }
    assert_eq!(
        store
            .reserve(b"k", 0, Expiry::Never, VALUE_MAX_BYTES + 1)
            .unwrap_err(),
        StoreError::TooLarge
    );
}

#[test]
fn a_delayed_flush_comes_at_its_time() {
    let mut store = store(1);
    put(&mut store, b"a", b"1", Mode::Set, Expiry::Never);
    store.flush(Some(10));
    assert!(read(&mut store, b"a").is_some());
    store.set_clock(10);
    assert!(read(&mut store, b"a").is_none());
    put(&mut store, b"a", b"2", Mode::Set, Expiry::Never);
    assert_eq!(read(&mut store, b"a").unwrap(), b"2");
}
