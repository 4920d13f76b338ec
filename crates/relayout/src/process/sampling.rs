//! Where processes spend their CPU time, by a clock's samples: which functions are worth counting
//! exactly, and whether there is anything to win at all.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use code_layout::Branches;
use host::Roots;
use perf_events::{Record, Ring};
use serde::{Deserialize, Serialize};

use crate::RelayoutError;

/// How often the rings are emptied: at 4 kHz and 40 bytes a record a ring of 2^RING_PAGES pages
/// holds 1.6 s.
const EMPTY_EVERY: Duration = Duration::from_millis(100);

/// Ring size, log2 of pages.
const RING_PAGES: u32 = 6;

/// The same for branches: 32 of them a sample are 800 bytes, so at 1 kHz it holds 0.6 s. More is
/// not locked for whoever lacks CAP_IPC_LOCK (kernel.perf_event_mlock_kb, 516 by default: 129 pages
/// a CPU).
const BRANCH_RING_PAGES: u32 = 7;

/// Fewer records than this say too little of which way a branch goes; then it is counted.
const BRANCHES_MIN: u64 = 100_000;

/// Samples of some processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// In user code, by the instruction's runtime address.
    pub user: BTreeMap<u64, u64>,
    /// In the kernel.
    pub kernel: u64,
    /// Lost because a ring was full.
    pub lost: u64,
    /// Length of the watch, in seconds.
    pub seconds: f64,
    /// Samples a CPU and second.
    pub per_s: u64,
}

impl Samples {
    /// Samples in user code.
    #[must_use]
    pub fn user_total(&self) -> u64 {
        self.user.values().sum()
    }

    /// CPU time in use, in cores.
    #[must_use]
    pub fn cores(&self) -> f64 {
        let all = self.user_total() + self.kernel;
        all as f64 / (self.per_s as f64 * self.seconds).max(f64::MIN_POSITIVE)
    }

    /// The kernel's share of it.
    #[must_use]
    pub fn kernel_share(&self) -> f64 {
        let all = self.user_total() + self.kernel;
        self.kernel as f64 / (all as f64).max(1.0)
    }
}

/// Samples the processes for a time, `per_s` times a second on each CPU. Which ones is asked for
/// again and again: a server forks.
///
/// # Errors
/// [`perf_events::Error::Open`].
pub fn sample(
    pids: impl FnMut() -> Vec<u32>,
    per_s: u64,
    length: Duration,
) -> Result<Samples, RelayoutError> {
    let mut rings = Vec::new();
    for cpu in host::online_cpus(&Roots::default())? {
        rings.push(Ring::open_clock(cpu, per_s, RING_PAGES)?);
    }
    let mut samples = Samples {
        per_s,
        ..Samples::default()
    };
    samples.seconds = read(&mut rings, length, pids, |pids, record| match record {
        Record::Tick(tick) if pids.contains(&tick.process) => {
            if tick.is_user {
                *samples.user.entry(tick.address).or_default() += 1;
            } else {
                samples.kernel += 1;
            }
        }
        Record::Lost(count) => samples.lost += count,
        _ => {}
    });
    Ok(samples)
}

/// The branches that the processes take, as the processor records them, `per_s` times a second on
/// each CPU; `None` where it records none, or too few: a hypervisor may offer them and keep none.
/// At runtime addresses.
///
/// # Errors
/// [`host::HostError`] where the CPUs cannot be told.
pub(crate) fn branches(
    pids: impl FnMut() -> Vec<u32>,
    per_s: u64,
    length: Duration,
) -> Result<Option<Branches>, RelayoutError> {
    let mut rings = Vec::new();
    for cpu in host::online_cpus(&Roots::default())? {
        // No such hardware, not in this guest, not with this kernel, no memory for it: then it is
        // counted.
        let Ok(ring) = Ring::open_branches(cpu, per_s, BRANCH_RING_PAGES) else {
            return Ok(None);
        };
        rings.push(ring);
    }
    let mut branches = Branches::default();
    read(&mut rings, length, pids, |pids, record| {
        if let Record::Branches(stack) = record
            && pids.contains(&stack.process)
        {
            branches.add(stack.latest_first());
        }
    });
    let recorded: u64 = branches.taken.values().sum();
    Ok((recorded >= BRANCHES_MIN).then_some(branches))
}

/// Empties the rings now and then, and at the end; how long that was, in seconds.
fn read(
    rings: &mut [Ring],
    length: Duration,
    mut pids: impl FnMut() -> Vec<u32>,
    mut take: impl FnMut(&[u32], Record<'_>),
) -> f64 {
    let start = Instant::now();
    let mut is_over = false;
    while !is_over {
        let left = length.saturating_sub(start.elapsed());
        sleep(left.min(EMPTY_EVERY));
        is_over = start.elapsed() >= length;
        let pids = pids();
        for ring in &mut *rings {
            ring.drain(|record| take(&pids, record));
        }
    }
    start.elapsed().as_secs_f64()
}
