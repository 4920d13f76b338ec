//! How long a switch keeps a process of many threads from running. A measurement, not a test:
//! `cargo xtask bench relayout` runs it.

use relayout::{ManifestStore, RelayoutError};

use crate::installed;
use crate::target::Target;

/// Sleeping threads, and how often they are stopped.
const MEASURED: [(u32, usize); 4] = [(8, 200), (48, 200), (498, 200), (4998, 20)];

#[test]
#[ignore = "a measurement"]
fn pauses() {
    for (sleepers, switches) in MEASURED {
        let dir = tempfile::tempdir().unwrap();
        let store = ManifestStore::open(dir.path()).unwrap();
        let mut target = Target::start(2, sleepers);
        let mut cache = installed(&target, &store);
        let mut pauses: Vec<u64> = Vec::new();
        let mut worst = relayout::Pause::default();
        for switch in 0..switches {
            let pause = match cache.switch(u32::from(switch % 2 == 0)) {
                Ok(switched) => switched.pause,
                Err(RelayoutError::NotStopping { .. }) => continue,
                Err(error) => panic!("{error}"),
            };
            pauses.push(pause.us);
            if pause.us > worst.us {
                worst = pause;
            }
        }
        pauses.sort_unstable();
        println!(
            "pause_us {{\"threads\": {}, \"switches\": {}, \"of\": {switches}, \"median\": {}, \"p99\": {}, \"worst\": {}}}",
            worst.threads,
            pauses.len(),
            pauses[pauses.len() / 2],
            pauses[pauses.len() * 99 / 100],
            pauses[pauses.len() - 1]
        );
        println!("the worst: {worst:?}");
        cache.rollback().unwrap();
        target.assert_answers(2, 1);
        target.quit();
    }
}
