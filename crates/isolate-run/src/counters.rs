//! What the kernel counts for services, groups and the machine, as rates between two looks.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use host::{CgroupReader, CpuQuota, CpuUse, HostError, Pressure, Roots};

use crate::processes::Processes;
use crate::subject::{Host, Place};
use crate::threads::Threads;

/// Clock ticks per second in `/proc/stat` (USER_HZ).
const TICKS_PER_S: f64 = 100.0;
/// The first line of `/proc/stat`: at most eleven words of 20 digits.
const STAT_BYTES: usize = 256;
/// No policy decides by the quota in force. The status shows it, and the record has a row a second.
const QUOTA_EVERY: Duration = Duration::from_secs(1);

/// Rates of one service or group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    /// `None` while it is not known.
    pub(crate) cpu_cores: Option<f64>,
    /// CPU time since the last look.
    pub(crate) used_s: f64,
    pub(crate) throttled_share: f64,
    pub(crate) quota_cores: Option<f64>,
    pub(crate) waiting_share: Option<f64>,
    pub(crate) stalled_share: Option<f64>,
}

impl Rates {
    /// Of who has no processes.
    pub(crate) fn of_nobody() -> Self {
        Self {
            cpu_cores: Some(0.0),
            ..Self::default()
        }
    }
}

/// Counters of one service or group.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    reader: Option<CgroupReader>,
    last: Option<CpuUse>,
    /// In place of a control group that does not count CPU time.
    processes: Option<Processes>,
    threads: Threads,
    pressure: Option<Pressure>,
    quota_read: Option<Instant>,
    quota_cores: Option<f64>,
}

impl Counters {
    /// Looks at a service, `elapsed_s` after the last time. `pids` are its processes.
    pub(crate) fn look_at_service(
        &mut self,
        host: Host<'_>,
        place: &Place,
        elapsed_s: f64,
        pids: &[u32],
    ) -> Result<Rates, HostError> {
        let waits = self.threads.look(host.roots, pids);
        let mut rates = match &place.group {
            Some(group) => {
                let rates = self.look_at_group(host, group, elapsed_s)?;
                Rates {
                    quota_cores: self.quota_cores(host, group),
                    stalled_share: self.stalled_share(host, group, elapsed_s),
                    ..rates
                }
            }
            // The root group is everybody's: its threads are counted instead.
            None => {
                host::start_time(host.roots, place.pid.unwrap_or(0))?;
                Rates {
                    cpu_cores: waits.map(|waits| waits.ran_ns as f64 / 1e9 / elapsed_s),
                    ..Rates::default()
                }
            }
        };
        rates.waiting_share =
            waits.map(|waits| waits.waited_ns as f64 / waits.ran_ns.max(1) as f64);
        Ok(rates)
    }

    /// Looks at best-effort work, `elapsed_s` after the last time. Work that is only observed, and
    /// named by a process, has no control group of its own.
    pub(crate) fn look_at_work(
        &mut self,
        host: Host<'_>,
        place: &Place,
        elapsed_s: f64,
    ) -> Result<Rates, HostError> {
        match (&place.group, place.pid) {
            (Some(group), _) => self.look_at_group(host, group, elapsed_s),
            (None, Some(pid)) => {
                host::start_time(host.roots, pid)?;
                let processes = self.processes.get_or_insert_with(|| Processes::of(pid));
                let (cpu_cores, used_s) = processes.look(host.roots, elapsed_s);
                Ok(Rates {
                    cpu_cores,
                    used_s,
                    ..Rates::default()
                })
            }
            (None, None) => Ok(Rates::of_nobody()),
        }
    }

    /// Looks at a control group, `elapsed_s` after the last time.
    pub(crate) fn look_at_group(
        &mut self,
        host: Host<'_>,
        group: &str,
        elapsed_s: f64,
    ) -> Result<Rates, HostError> {
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => CgroupReader::open_in(host.hierarchies, group)?,
        };
        let now = match reader.cpu_use() {
            Ok(now) => now,
            Err(error) => {
                *self = Self::default();
                return Err(error);
            }
        };
        self.reader = Some(reader);
        let mut rates = Rates::default();
        let last = self.last.replace(now);
        if now.total_s.is_none() {
            // On v1 a group can be in the hierarchy of cpu alone.
            let processes = self
                .processes
                .get_or_insert_with(|| Processes::in_group(group));
            (rates.cpu_cores, rates.used_s) = processes.look(host.roots, elapsed_s);
        } else {
            self.processes = None;
        }
        if let Some(last) = last {
            if let Some((now_s, then_s)) = now.total_s.zip(last.total_s) {
                rates.used_s = (now_s - then_s).max(0.0);
                rates.cpu_cores = Some(rates.used_s / elapsed_s);
            }
            let periods = now.periods.saturating_sub(last.periods);
            let throttled = now.throttled_periods.saturating_sub(last.throttled_periods);
            rates.throttled_share = throttled as f64 / periods.max(1) as f64;
        }
        Ok(rates)
    }

    /// The share of the time for which a thread stood still for memory or a disk.
    fn stalled_share(&mut self, host: Host<'_>, group: &str, elapsed_s: f64) -> Option<f64> {
        let now = Pressure::read(host.hierarchies, group);
        let last = std::mem::replace(&mut self.pressure, now)?;
        let now = now?;
        let memory_us = now.memory_us.saturating_sub(last.memory_us);
        let io_us = now.io_us.saturating_sub(last.io_us);
        Some((memory_us.max(io_us) as f64 / 1e6 / elapsed_s).min(1.0))
    }

    fn quota_cores(&mut self, host: Host<'_>, group: &str) -> Option<f64> {
        if self.quota_read.is_none_or(|at| at.elapsed() >= QUOTA_EVERY) {
            self.quota_read = Some(Instant::now());
            let quota = CpuQuota::read_in(host.hierarchies, group).ok();
            let cores = quota.map(|quota| quota.cores());
            self.quota_cores = cores.filter(|cores| cores.is_finite());
        }
        self.quota_cores
    }
}

/// CPU time of the whole machine.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    stat: Option<File>,
    last: Option<MachineTime>,
    busy_cores: f64,
}

/// CPU time of all CPUs since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct MachineTime {
    busy_s: f64,
    /// Busy and idle.
    all_s: f64,
}

impl Machine {
    /// Cores in use since the last look, of so many `cores`. Busy and idle time are of one read, so
    /// there are never more in use than there are, however late the read comes. The kernel counts
    /// in steps of a tick: where no tick has passed, the last value stays.
    pub(crate) fn busy_cores(&mut self, roots: &Roots, cores: f64) -> f64 {
        let Some(now) = self.time(roots) else {
            return 0.0;
        };
        let Some(last) = self.last else {
            self.last = Some(now);
            return 0.0;
        };
        let all_s = now.all_s - last.all_s;
        // A CPU that goes offline may take its idle time along.
        if all_s < 0.0 {
            self.last = Some(now);
        } else if all_s > 0.0 {
            self.last = Some(now);
            let share = ((now.busy_s - last.busy_s) / all_s).clamp(0.0, 1.0);
            self.busy_cores = share * cores;
        }
        self.busy_cores
    }

    fn time(&mut self, roots: &Roots) -> Option<MachineTime> {
        if self.stat.is_none() {
            self.stat = File::open(roots.proc("stat")).ok();
        }
        let mut text = [0; STAT_BYTES];
        let length = self.stat.as_ref()?.read_at(&mut text, 0).ok()?;
        Some(machine_time(&String::from_utf8_lossy(text.get(..length)?)))
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
/// hypervisor took is nobody's, and guests are within user and nice.
fn machine_time(stat: &str) -> MachineTime {
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .map(|word| word.parse().unwrap_or(0.0))
        .collect();
    let seconds = |fields: &[usize]| {
        let ticks = fields.iter().filter_map(|at| ticks.get(*at));
        ticks.sum::<f64>() / TICKS_PER_S
    };
    MachineTime {
        busy_s: seconds(&[0, 1, 2, 5, 6]),
        all_s: seconds(&[0, 1, 2, 3, 4, 5, 6, 7]),
    }
}

#[cfg(test)]
mod tests {
    use host::Hierarchies;

    use super::*;

    #[test]
    fn busy_time_is_without_idling_and_stolen_time() {
        let time = machine_time("cpu  100 200 300 1000 500 40 60 800 7000 0\ncpu0 1\n");
        assert!((time.busy_s - 7.0).abs() < 1e-9, "{time:?}");
        assert!((time.all_s - 30.0).abs() < 1e-9, "{time:?}");
        assert_eq!(machine_time(""), MachineTime::default());
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
    fn the_machine_s_use_is_a_rate_and_never_more_than_there_is() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::at(dir.path());
        let mut machine = Machine::default();
        assert!(machine.busy_cores(&roots, 2.0).abs() < 1e-9);
        let stat = dir.path().join("proc/stat");
        fs::create_dir_all(stat.parent().unwrap()).unwrap();
        for (text, wanted) in [
            ("cpu  100 0 0 500 0 0 0 0 0 0\n", 0.0),
            // 3 s of 4 s of both CPUs.
            ("cpu  400 0 0 600 0 0 0 0 0 0\n", 1.5),
            // No tick since.
            ("cpu  400 0 0 600 0 0 0 0 0 0\n", 1.5),
            // A second of steal is not in use, and was not there for others.
            ("cpu  500 0 0 600 0 0 0 100 0 0\n", 1.0),
            // All of it; idle time may be corrected downwards.
            ("cpu  700 0 0 590 0 0 0 100 0 0\n", 2.0),
            ("cpu  700 0 0 90 0 0 0 100 0 0\n", 2.0),
            ("cpu  700 0 0 190 0 0 0 100 0 0\n", 0.0),
        ] {
            fs::write(&stat, text).unwrap();
            let busy = machine.busy_cores(&roots, 2.0);
            assert!((busy - wanted).abs() < 1e-9, "{text}: {busy}");
        }
    }

    #[test]
    fn a_service_has_the_quota_in_force_and_its_stalls() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let file = dir.path().join("sys/fs/cgroup").join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let stalled = |memory_us: u32, io_us: u32| {
            for (name, us) in [("memory", memory_us), ("io", io_us)] {
                let file = format!("unified/web/{name}.pressure");
                write(&file, &format!("some avg10=0.00 total={us}\n"));
            }
        };
        write("unified/cgroup.controllers", "");
        write(
            "cpu/web/cpu.stat",
            "nr_periods 10\nnr_throttled 5\nthrottled_time 0\n",
        );
        write("cpu/web/cpu.cfs_quota_us", "50000\n");
        write("cpu/web/cpu.cfs_period_us", "100000\n");
        stalled(1000, 2000);
        let roots = Roots::at(dir.path());
        let hierarchies = Hierarchies::of(&roots);
        let host = Host {
            roots: &roots,
            hierarchies: &hierarchies,
        };
        let place = Place {
            group: Some("web".to_owned()),
            pid: None,
        };
        let mut counters = Counters::default();
        let mut look = || counters.look_at_service(host, &place, 0.25, &[]).unwrap();
        let rates = look();
        assert_eq!((rates.quota_cores, rates.stalled_share), (Some(0.5), None));
        // Of 250 ms, 25 ms for memory and 50 ms for a disk.
        stalled(26_000, 52_000);
        assert_eq!(look().stalled_share, Some(0.2));
    }

    /// A tree in which the files of groups and processes can be written.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn write(&self, file: &str, text: &str) {
            let file = self.0.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }

        /// A process of one thread that ran for so long.
        fn ran(&self, pid: u32, ms: u64) {
            let fields = format!("S 1 {}1 0 100 0", "0 ".repeat(15));
            self.write(
                &format!("proc/{pid}/stat"),
                &format!("{pid} (batch) {fields}\n"),
            );
            let task = format!("proc/{pid}/task/{pid}");
            self.write(
                &format!("{task}/schedstat"),
                &format!("{} 0 1\n", ms * 1_000_000),
            );
            self.write(&format!("{task}/status"), "voluntary_ctxt_switches:\t1\n");
        }
    }

    #[test]
    fn a_group_that_counts_no_cpu_time_has_that_of_its_processes() {
        let tree = Tree::new();
        tree.write("sys/fs/cgroup/cpu/batch/cpu.stat", "nr_periods 0\n");
        tree.write("sys/fs/cgroup/cpu/batch/cgroup.procs", "7\n");
        tree.write("sys/fs/cgroup/cpuacct/cpuacct.usage", "900000000000\n");
        tree.ran(7, 1000);
        let roots = Roots::at(tree.0.path());
        let hierarchies = Hierarchies::of(&roots);
        let host = Host {
            roots: &roots,
            hierarchies: &hierarchies,
        };
        let mut counters = Counters::default();
        let mut look = || counters.look_at_group(host, "batch", 1.0).unwrap();
        assert_eq!(look().cpu_cores, None);
        tree.ran(7, 2500);
        // Processes are looked at every two seconds.
        assert_eq!(look().cpu_cores, None);
        let rates = look();
        assert_eq!((rates.cpu_cores, rates.used_s), (Some(0.75), 1.5));
        // Meanwhile the last figure holds, and no time counts twice.
        let rates = look();
        assert_eq!((rates.cpu_cores, rates.used_s), (Some(0.75), 0.0));
        // Somebody makes the group in cpuacct, too: from then on the kernel counts.
        tree.write("sys/fs/cgroup/cpuacct/batch/cpuacct.usage", "5000000000\n");
        look();
        tree.write("sys/fs/cgroup/cpuacct/batch/cpuacct.usage", "5500000000\n");
        assert_eq!(look().cpu_cores, Some(0.5));
    }

    #[test]
    fn work_that_is_only_observed_by_its_process_is_counted() {
        let tree = Tree::new();
        tree.ran(7, 1000);
        let roots = Roots::at(tree.0.path());
        let hierarchies = Hierarchies::of(&roots);
        let host = Host {
            roots: &roots,
            hierarchies: &hierarchies,
        };
        let place = Place {
            group: None,
            pid: Some(7),
        };
        let mut counters = Counters::default();
        let mut look = || counters.look_at_work(host, &place, 2.0);
        assert_eq!(look().unwrap().cpu_cores, None);
        tree.ran(7, 1500);
        assert_eq!(look().unwrap().cpu_cores, Some(0.25));
        fs::remove_dir_all(tree.0.path().join("proc/7")).unwrap();
        assert!(look().is_err());
    }

    #[test]
    fn a_group_that_vanishes_is_an_error_and_one_that_comes_back_starts_anew() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("sys/fs/cgroup/cpu/batch");
        let roots = Roots::at(dir.path());
        let mut counters = Counters::default();
        let mut look = || {
            let hierarchies = Hierarchies::of(&roots);
            let host = Host {
                roots: &roots,
                hierarchies: &hierarchies,
            };
            counters.look_at_group(host, "batch", 1.0)
        };
        assert!(look().is_err());
        fs::create_dir_all(&group).unwrap();
        fs::write(
            group.join("cpu.stat"),
            "nr_periods 10\nnr_throttled 5\nthrottled_time 0\n",
        )
        .unwrap();
        look().unwrap();
        fs::write(
            group.join("cpu.stat"),
            "nr_periods 20\nnr_throttled 8\nthrottled_time 0\n",
        )
        .unwrap();
        let rates = look().unwrap();
        assert!(rates.used_s.abs() < 1e-9);
        // Neither cpuacct nor a list of processes: it is not known.
        assert_eq!(rates.cpu_cores, None);
        assert!((rates.throttled_share - 0.3).abs() < 1e-9);
        fs::remove_dir_all(&group).unwrap();
        assert!(look().is_err());
    }
}
