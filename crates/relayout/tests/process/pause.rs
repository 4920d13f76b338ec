//! How long a switch keeps a process of many threads from running. A measurement, not a test: `cargo xtask bench relayout`
//! runs it.

use relayout::Store;

use crate::installed;
use crate::target::Target;

const SWITCHES: usize = 200;

#[test]
#[ignore = "a measurement"]
fn pauses() {
    for sleepers in [8, 48, 498, 4998] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let mut target = Target::start(2, sleepers);
        let mut cache = installed(&target, &store);
        let mut pauses: Vec<u64> = Vec::new();
        let mut worst = relayout::Pause::default();
        for switch in 0..SWITCHES {
            let pause = cache.switch(u32::from(switch % 2 == 0)).unwrap().pause;
            pauses.push(pause.us);
            if pause.us > worst.us {
                worst = pause;
            }
        }
        pauses.sort_unstable();
        println!(
            "pause_us {{\"threads\": {}, \"switches\": {SWITCHES}, \"median\": {}, \"p99\": {}, \"worst\": {}}}",
            worst.threads,
            pauses[SWITCHES / 2],
            pauses[SWITCHES * 99 / 100],
            pauses[SWITCHES - 1]
        );
        println!("the worst: {worst:?}");
        cache.rollback().unwrap();
        target.assert_answers(2, 1);
        target.quit();
    }
}
