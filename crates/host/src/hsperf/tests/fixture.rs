//! Files of JVM performance data. The fuzz targets use it too.

use super::HsperfValue;

/// A file as HotSpot writes it.
pub(crate) fn file(is_little: bool, counters: &[(&str, HsperfValue)]) -> Vec<u8> {
    let word = |value: usize| {
        let value = u32::try_from(value).unwrap();
        if is_little {
            value.to_le_bytes()
        } else {
            value.to_be_bytes()
        }
    };
    let mut bytes = vec![0xca, 0xfe, 0xc0, 0xc0];
    bytes.extend([u8::from(is_little), 2, 0, 1]);
    bytes.extend([0; 16]);
    bytes.extend(word(32));
    bytes.extend(word(counters.len()));
    for (name, value) in counters {
        let data_at = (20 + name.len() + 1).next_multiple_of(8);
        let (kind, vector, data) = match value {
            HsperfValue::Long(value) => (
                b'J',
                0,
                if is_little {
                    value.to_le_bytes()
                } else {
                    value.to_be_bytes()
                }
                .to_vec(),
            ),
            HsperfValue::Text(text) => (b'B', text.len() + 4, [text.as_bytes(), &[0; 4]].concat()),
        };
        let length = (data_at + data.len()).next_multiple_of(8);
        let mut entry = [word(length), word(20), word(vector)].concat();
        entry.extend([kind, 1, 1, 1]);
        entry.extend(word(data_at));
        entry.extend(name.as_bytes());
        entry.resize(data_at, 0);
        entry.extend(data);
        entry.resize(length, 0);
        bytes.extend(entry);
    }
    bytes.resize(bytes.len() + 100, 0);
    bytes
}

/// A file with the counters that `HsPerf` reads.
pub(crate) fn jvm(cycles: i64, eden: Option<i64>, tlab_words: i64) -> Vec<u8> {
    let mut counters = vec![
        (
            "sun.gc.collector.0.name",
            HsperfValue::Text("G1 young".into()),
        ),
        ("sun.gc.collector.0.invocations", HsperfValue::Long(cycles)),
        ("sun.gc.collector.0.time", HsperfValue::Long(cycles * 5_000)),
        ("sun.gc.collector.2.invocations", HsperfValue::Long(1)),
        ("sun.gc.tlab.alloc", HsperfValue::Long(tlab_words)),
        ("sun.os.hrt.frequency", HsperfValue::Long(1_000_000)),
    ];
    counters.extend(eden.map(|eden| ("sun.gc.generation.0.space.0.used", HsperfValue::Long(eden))));
    file(false, &counters)
}
