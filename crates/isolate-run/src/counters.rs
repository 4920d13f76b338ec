//! What the kernel counts for services, groups and the machine, as rates between two looks.

use std::fs;

use host::{CgroupReader, CgroupSample, CpuQuota, HostError, Roots};

use crate::subject::Place;

/// Reading the waiting time of more threads than this takes too long for a step.
const THREADS_MAX: usize = 256;
/// Clock ticks per second in `/proc/stat` (USER_HZ).
const TICKS_PER_S: f64 = 100.0;

/// Rates of one service or group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    pub(crate) cpu_cores: f64,
    pub(crate) throttled_share: f64,
    pub(crate) quota_cores: Option<f64>,
    pub(crate) waiting_share: Option<f64>,
}

/// Counters of one service or group.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    reader: Option<CgroupReader>,
    last: Option<CgroupSample>,
    last_ran_ns: Option<u64>,
    last_waits: Option<(u64, u64)>,
}

impl Counters {
    /// Looks, `elapsed_s` after the last time. `pids` are the processes whose waiting time is read.
    pub(crate) fn look(
        &mut self,
        roots: &Roots,
        place: &Place,
        elapsed_s: f64,
        pids: &[u32],
    ) -> Result<Rates, HostError> {
        let waits = waits(roots, pids);
        let mut rates = Rates::default();
        match &place.group {
            Some(group) => {
                if self.reader.is_none() {
                    self.reader = Some(CgroupReader::open(roots, group)?);
                }
                let Some(reader) = &mut self.reader else {
                    return Ok(rates);
                };
                let sample = match reader.sample() {
                    Ok(sample) => sample,
                    Err(error) => {
                        *self = Self::default();
                        return Err(error);
                    }
                };
                let cpu_s = |sample: &CgroupSample| sample.cpu.map(|cpu| cpu.total_s());
                if let Some(last) = self.last {
                    let used = cpu_s(&sample)
                        .zip(cpu_s(&last))
                        .map(|(now, then)| now - then);
                    rates.cpu_cores = (used.unwrap_or(0.0) / elapsed_s).max(0.0);
                    let periods = sample.periods.saturating_sub(last.periods);
                    let throttled = sample
                        .throttled_periods
                        .saturating_sub(last.throttled_periods);
                    rates.throttled_share = throttled as f64 / periods.max(1) as f64;
                }
                self.last = Some(sample);
                rates.quota_cores = CpuQuota::read(roots, group)
                    .ok()
                    .map(|quota| quota.cores())
                    .filter(|cores| cores.is_finite());
            }
            // The root group is everybody's: its threads are counted instead.
            None => {
                host::start_time(roots, place.pid.unwrap_or(0))?;
                let ran_ns = waits.map(|(ran_ns, _)| ran_ns);
                if let (Some(now), Some(last)) = (ran_ns, self.last_ran_ns) {
                    rates.cpu_cores = now.saturating_sub(last) as f64 / 1e9 / elapsed_s;
                }
                self.last_ran_ns = ran_ns;
            }
        }
        if let (Some((ran, waited)), Some((last_ran, last_waited))) = (waits, self.last_waits) {
            let ran = ran.saturating_sub(last_ran).max(1);
            rates.waiting_share = Some(waited.saturating_sub(last_waited) as f64 / ran as f64);
        }
        self.last_waits = waits;
        Ok(rates)
    }
}

/// Nanoseconds that the threads ran, and that they waited for a CPU
/// (`/proc/PID/task/TID/schedstat`: sched-stats.rst). The kernel counts both at every switch, so
/// reading them costs less than a tracepoint would.
fn waits(roots: &Roots, pids: &[u32]) -> Option<(u64, u64)> {
    let mut sum = (0, 0);
    let mut count = 0;
    for pid in pids {
        for thread in host::thread_ids(roots, *pid).unwrap_or_default() {
            count += 1;
            if count > THREADS_MAX {
                return None;
            }
            let path = roots.proc(format!("{pid}/task/{thread}/schedstat"));
            // A thread that has just ended has nothing more to say.
            let Ok(text) = fs::read_to_string(path) else {
                continue;
            };
            let mut numbers = text
                .split_whitespace()
                .map(|word| word.parse::<u64>().unwrap_or(0));
            sum.0 += numbers.next()?;
            sum.1 += numbers.next()?;
        }
    }
    (count > 0).then_some(sum)
}

/// CPU time that the whole machine has used.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    last_s: Option<f64>,
}

impl Machine {
    /// Cores in use since the last look.
    pub(crate) fn busy_cores(&mut self, roots: &Roots, elapsed_s: f64) -> f64 {
        let busy_s = busy_s(&fs::read_to_string(roots.proc("stat")).unwrap_or_default());
        let last = self.last_s.replace(busy_s);
        last.map_or(0.0, |last| ((busy_s - last) / elapsed_s).max(0.0))
    }
}

/// What a network device has sent.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    last_bytes: Option<u64>,
}

impl Traffic {
    /// Megabits a second that were sent since the last look and are not of limited groups. `None`
    /// at first, and without the device.
    pub(crate) fn look<'a>(
        &mut self,
        roots: &Roots,
        device: &str,
        groups: impl Iterator<Item = &'a str>,
        elapsed_s: f64,
    ) -> Option<f64> {
        let statistics = roots.sys("class/net").join(device).join("statistics");
        let sent = fs::read_to_string(statistics.join("tx_bytes")).ok();
        let sent: u64 = sent.and_then(|text| text.trim().parse().ok())?;
        let theirs = groups.filter_map(|group| {
            let bytes = host::egress_bytes(roots, device, group);
            bytes.ok().flatten()
        });
        let rest = sent.saturating_sub(theirs.sum());
        let last = self.last_bytes.replace(rest)?;
        // A group's count begins at its first limit: then the rest seems to have fallen.
        Some(rest.saturating_sub(last) as f64 * 8e-6 / elapsed_s)
    }
}

/// proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal, guest. Time that the
/// hypervisor took is nobody's.
fn busy_s(stat: &str) -> f64 {
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .map(|word| word.parse().unwrap_or(0.0))
        .collect();
    let busy = [0, 1, 2, 5, 6].iter().filter_map(|at| ticks.get(*at));
    busy.sum::<f64>() / TICKS_PER_S
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_is_without_idling_and_stolen_time() {
        assert!((busy_s("cpu  100 200 300 9999 9999 40 60 9999 0 0\ncpu0 1\n") - 7.0).abs() < 1e-9);
        assert!(busy_s("").abs() < 1e-9);
    }

    #[test]
    fn traffic_is_a_rate_between_two_looks() {
        let dir = tempfile::tempdir().unwrap();
        let statistics = dir.path().join("sys/class/net/eth0/statistics");
        fs::create_dir_all(&statistics).unwrap();
        let roots = Roots::at(dir.path());
        let mut traffic = Traffic::default();
        let mut look = |bytes: &str| {
            fs::write(statistics.join("tx_bytes"), bytes).unwrap();
            traffic.look(&roots, "eth0", ["batch"].into_iter(), 2.0)
        };
        assert_eq!(look("1000000\n"), None);
        assert_eq!(look("3000000\n"), Some(8.0));
        assert_eq!(look("2000000\n"), Some(0.0));
        assert_eq!(look("broken"), None);
    }

    #[test]
    fn waits_are_summed_over_threads() {
        let dir = tempfile::tempdir().unwrap();
        for (thread, text) in [(7, "100 10 1\n"), (8, "200 20 1\n")] {
            let task = dir.path().join(format!("proc/7/task/{thread}"));
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("schedstat"), text).unwrap();
        }
        assert_eq!(waits(&Roots::at(dir.path()), &[7]), Some((300, 30)));
    }

    #[test]
    fn a_group_that_vanishes_is_an_error_and_one_that_comes_back_starts_anew() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("sys/fs/cgroup/cpu/batch");
        let roots = Roots::at(dir.path());
        let place = Place {
            group: Some("batch".to_owned()),
            pid: None,
        };
        let mut counters = Counters::default();
        assert!(counters.look(&roots, &place, 1.0, &[]).is_err());
        fs::create_dir_all(&group).unwrap();
        fs::write(
            group.join("cpu.stat"),
            "nr_periods 10\nnr_throttled 5\nthrottled_time 0\n",
        )
        .unwrap();
        counters.look(&roots, &place, 1.0, &[]).unwrap();
        fs::write(
            group.join("cpu.stat"),
            "nr_periods 20\nnr_throttled 8\nthrottled_time 0\n",
        )
        .unwrap();
        let rates = counters.look(&roots, &place, 1.0, &[]).unwrap();
        assert!((rates.throttled_share - 0.3).abs() < 1e-9);
        fs::remove_dir_all(&group).unwrap();
        assert!(counters.look(&roots, &place, 1.0, &[]).is_err());
    }
}
