//! Tests of the reader of JVM performance data.

mod fixture;

use proptest::prelude::*;

use super::*;
use fixture::{file, jvm};

#[test]
fn both_byte_orders_and_both_types_are_read() {
    for is_little in [false, true] {
        let wanted = [
            ("a.long", HsperfValue::Long(-7)),
            ("a.text", HsperfValue::Text("xyz".into())),
            ("z", HsperfValue::Long(1 << 40)),
        ];
        let counters = parse(&file(is_little, &wanted)).unwrap();
        assert_eq!(counters.len(), 3);
        for (name, value) in wanted {
            assert_eq!(counters[name], value);
        }
    }
    assert!(parse(b"").is_err() && parse(&[0; 64]).is_err());
    let mut old = file(true, &[]);
    old[5] = 1;
    assert_eq!(parse(&old).unwrap_err(), "the version is 1, not 2");
}

#[test]
fn allocated_bytes_are_put_together_over_collections() {
    let dir = tempfile::tempdir().unwrap();
    let roots = Roots::at(dir.path());
    let path = dir.path().join("tmp/hsperfdata_app/42");
    assert!(
        HsPerf::open(42, &roots)
            .unwrap_err()
            .to_string()
            .contains("-XX:-UsePerfData")
    );
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let set = |bytes: Vec<u8>| fs::write(&path, bytes).unwrap();
    set(jvm(3, Some(1000), 0));
    let mut perf = HsPerf::open(42, &roots).unwrap();
    set(jvm(3, Some(1500), 0));
    let sample = perf.sample().unwrap();
    assert_eq!(
        (sample.gc_cycles, sample.gc_time_s, sample.allocated_bytes),
        (4, 0.015, 500)
    );
    // One collection of a cycle of 8,000 bytes, 200 of the next.
    set(jvm(4, Some(200), 1000));
    assert_eq!(perf.sample().unwrap().allocated_bytes, 500 + 6500 + 200);
    // Two collections unseen.
    set(jvm(6, Some(100), 1000));
    assert_eq!(
        perf.sample().unwrap().allocated_bytes,
        7200 + 7800 + 8000 + 100
    );
    // Without an eden.
    set(jvm(6, None, 1000));
    let mut perf = HsPerf::open(42, &roots).unwrap();
    set(jvm(7, None, 2000));
    assert_eq!(perf.sample().unwrap().allocated_bytes, 16_000);
    fs::write(&path, "garbage that is long enough for a prologue").unwrap();
    assert!(matches!(
        perf.sample(),
        Err(HostError::HsPerf { pid: 42, .. })
    ));
    fs::remove_file(&path).unwrap();
    assert!(
        perf.sample()
            .unwrap_err()
            .to_string()
            .contains("has the JVM ended?")
    );
}

proptest! {
    #[test]
    fn foreign_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300), is_marked in any::<bool>()) {
        if is_marked && bytes.len() >= 32 {
            bytes[..4].copy_from_slice(&MAGIC);
            bytes[4] &= 1;
            bytes[5] = 2;
            bytes[24..28].copy_from_slice(&[32, 0, 0, 0]);
        }
        let _ = parse(&bytes);
    }

    #[test]
    fn a_damaged_file_never_panics(at in 0usize..500, byte in any::<u8>(), length in 0usize..600) {
        let mut bytes = jvm(3, Some(1000), 17);
        if let Some(place) = bytes.get_mut(at) {
            *place = byte;
        }
        bytes.truncate(length);
        if let Ok(counters) = parse(&bytes) {
            let _ = Heap::of(&counters).filled_since(Heap::default());
        }
    }
}
