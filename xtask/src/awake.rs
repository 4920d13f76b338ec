//! Idle CPUs that poll while a benchmark runs.
//!
//! An idle virtual CPU that halts may come back milliseconds later, when its host is busy. Then a
//! service alone has a worse tail than beside batch work, which keeps the CPUs awake.

use std::fs::File;
use std::io::Write as _;

/// Keeps idle CPUs from sleeping until the returned file is closed, as `tuned`'s profile
/// `latency-performance` does. The kernel takes the request back when the process ends
/// (Documentation/power/pm_qos_interface.rst).
///
/// Returns `None` and says so where that is not possible.
pub(crate) fn idle_cpus_poll() -> Option<File> {
    let request = || -> std::io::Result<File> {
        let mut file = File::options().write(true).open("/dev/cpu_dma_latency")?;
        file.write_all(&0_i32.to_ne_bytes())?;
        Ok(file)
    };
    match request() {
        Ok(file) => Some(file),
        Err(error) => {
            println!("idle CPUs may sleep during this benchmark: /dev/cpu_dma_latency: {error}");
            None
        }
    }
}
