//! Any bytes as the performance data of a JVM: two files, as two readings find them.

use std::fs;

use host::hsperf::{HsPerf, HsperfValue, parse};
use tempfile::TempDir;

use crate::seeds::repository;
use crate::target::Target;

#[path = "../../crates/host/src/hsperf/tests/fixture.rs"]
mod fixture;

/// The target.
pub const TARGET: Target = Target {
    name: "hsperf",
    run,
    seeds,
    memory_max_bytes: 1 << 20,
};

/// An entry of the file has this many bytes at the least.
const ENTRY_BYTES: usize = 20;

thread_local! {
    /// A host with one JVM. libFuzzer leaves it behind: so it is where everything is built.
    static HOST: TempDir = {
        let folder = repository().join("target/fuzz");
        fs::create_dir_all(&folder).expect("a directory");
        let host = tempfile::tempdir_in(folder).expect("a directory");
        fs::create_dir_all(host.path().join("tmp/hsperfdata_app")).expect("a directory");
        host
    };
}

fn seeds() -> Vec<Vec<u8>> {
    let both = |first: Vec<u8>, second: Vec<u8>| {
        let length = u16::try_from(first.len()).expect("a short file");
        [&length.to_le_bytes()[..], &first, &second].concat()
    };
    let jvm = fixture::jvm;
    let texts = [
        ("a.long", HsperfValue::Long(-7)),
        ("a.text", HsperfValue::Text("xyz".into())),
    ];
    vec![
        both(jvm(3, Some(1000), 0), jvm(4, Some(200), 1000)),
        both(jvm(6, None, 1000), jvm(7, None, 2000)),
        both(fixture::file(true, &texts), fixture::file(false, &texts)),
    ]
}

fn run(data: &[u8]) -> bool {
    let Some((length, files)) = data.split_first_chunk() else {
        return false;
    };
    let length = usize::from(u16::from_le_bytes(*length));
    let (first, second) = files.split_at(length.min(files.len()));
    let (is_first, is_second) = (read(first), read(second));
    if is_first && is_second {
        sample(first, second);
    }
    is_first && is_second
}

/// What is read comes from the bytes: each counter from an entry of its own.
fn read(bytes: &[u8]) -> bool {
    let Ok(counters) = parse(bytes) else {
        return false;
    };
    assert!(counters.len() <= bytes.len() / ENTRY_BYTES);
    let text_bytes = |(name, value): (&String, &HsperfValue)| match value {
        HsperfValue::Long(_) => name.len(),
        HsperfValue::Text(text) => name.len() + text.len(),
    };
    // A byte that is no UTF-8 becomes three. Name and text may be the same bytes.
    let text_bytes: usize = counters.iter().map(text_bytes).sum();
    assert!(text_bytes <= 2 * 3 * bytes.len());
    true
}

/// Two readings of the sums: nothing falls, and times are numbers.
fn sample(first: &[u8], second: &[u8]) {
    let root = HOST.with(|host| host.path().to_owned());
    let file = root.join("tmp/hsperfdata_app/42");
    fs::write(&file, first).expect("a file");
    let roots = host::Roots::at(root);
    let mut perf = HsPerf::open(42, &roots).expect("it was read before");
    let before = perf.sample().expect("it was read before");
    fs::write(&file, second).expect("a file");
    let after = perf.sample().expect("it was read before");
    assert_eq!(before.allocated_bytes, 0, "nothing happened in between");
    for sample in [before, after] {
        for seconds in [sample.gc_time_s, sample.jit_time_s] {
            assert!(seconds.is_finite() && seconds >= 0.0, "{sample:?}");
        }
    }
}
