//! The counters of one control group: CPU time, throttling, memory, on both versions.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cgroup::{CgroupVersion, Hierarchies, check_group};
use crate::cpu_time::{CpuTimes, Split, seconds};
use crate::error::HostError;
use crate::process_tree::TICK_NS;
use crate::roots::{Roots, read_number, read_text};

/// Counters of a group since it was made. Only differences mean something, save for `memory_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CgroupSample {
    /// CPU time, ended processes included; `None` where the group is in the cpu hierarchy of v1 and
    /// not in that of cpuacct.
    pub cpu: Option<CpuTimes>,
    /// Quota periods in which the group wanted CPU; 0 without a quota.
    pub periods: u64,
    /// Those in which it was throttled.
    pub throttled_periods: u64,
    /// Time for which it was throttled, summed over CPUs.
    pub throttled_s: f64,
    /// Periods in which it used burst time; 0 on kernels before 5.14.
    pub bursts: u64,
    /// Burst time used.
    pub burst_s: f64,
    /// Memory in use now; `None` where the group is not in the memory hierarchy.
    pub memory_bytes: Option<u64>,
}

/// CPU time and throttling of a group since it was made: what a controller looks at many times a
/// second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuUse {
    /// CPU time, ended processes included; `None` as in [`CgroupSample::cpu`].
    pub total_s: Option<f64>,
    /// Quota periods in which the group wanted CPU; 0 without a quota.
    pub periods: u64,
    /// Those in which it was throttled.
    pub throttled_periods: u64,
}

/// Reads one group.
#[derive(Clone, Debug)]
pub struct CgroupReader {
    group: String,
    version: CgroupVersion,
    cpu_stat: PathBuf,
    usage: PathBuf,
    usage_parts: PathBuf,
    memory: PathBuf,
    split: Split,
}

impl CgroupReader {
    /// Finds the group's files.
    ///
    /// # Errors
    ///
    /// [`HostError::NoController`] without a cpu controller, [`HostError::Absent`] without such a
    /// group, [`HostError::InvalidName`].
    pub fn open(roots: &Roots, group: &str) -> Result<Self, HostError> {
        Self::open_in(&Hierarchies::of(roots), group)
    }

    /// As [`CgroupReader::open`], for one who opens many.
    ///
    /// # Errors
    ///
    /// As [`CgroupReader::open`].
    pub fn open_in(hierarchies: &Hierarchies, group: &str) -> Result<Self, HostError> {
        check_group(group)?;
        let (version, directory) = hierarchies.require("cpu")?;
        let file = |name: &str| {
            hierarchies
                .file(group, name)
                .unwrap_or_else(|| directory.join(group).join(name))
        };
        let memory = match version {
            CgroupVersion::V1 => "memory.usage_in_bytes",
            CgroupVersion::V2 => "memory.current",
        };
        let reader = Self {
            group: group.to_owned(),
            version,
            cpu_stat: file("cpu.stat"),
            usage: file("cpuacct.usage"),
            usage_parts: file("cpuacct.stat"),
            memory: file(memory),
            split: Split::default(),
        };
        if reader.cpu_stat.exists() {
            Ok(reader)
        } else {
            Err(reader.absent(&reader.cpu_stat))
        }
    }

    /// Whether the group is under v1 or v2.
    #[must_use]
    pub fn version(&self) -> CgroupVersion {
        self.version
    }

    /// Reads the CPU time alone.
    ///
    /// # Errors
    ///
    /// As [`CgroupReader::sample`]; [`HostError::Absent`] also where the group has no CPU time.
    pub fn cpu(&mut self) -> Result<CpuTimes, HostError> {
        self.sample()?.cpu.ok_or_else(|| self.absent(&self.usage))
    }

    /// Reads CPU time and throttling alone: half of the files that [`CgroupReader::sample`] reads.
    ///
    /// # Errors
    ///
    /// As [`CgroupReader::sample`].
    pub fn cpu_use(&self) -> Result<CpuUse, HostError> {
        let stat = self.table(&self.cpu_stat)?;
        let total_ns = match self.version {
            CgroupVersion::V2 => Some(self.required(&stat, "usage_usec")?.saturating_mul(1000)),
            CgroupVersion::V1 => self.usage_ns()?,
        };
        Ok(CpuUse {
            total_s: total_ns.map(seconds),
            periods: stat.get("nr_periods").unwrap_or(0),
            throttled_periods: stat.get("nr_throttled").unwrap_or(0),
        })
    }

    /// Reads the counters.
    ///
    /// # Errors
    ///
    /// [`HostError::Absent`] once the group is gone, [`HostError::Read`], [`HostError::Parse`].
    pub fn sample(&mut self) -> Result<CgroupSample, HostError> {
        let stat = self.table(&self.cpu_stat)?;
        let mut sample = CgroupSample {
            periods: stat.get("nr_periods").unwrap_or(0),
            throttled_periods: stat.get("nr_throttled").unwrap_or(0),
            bursts: stat.get("nr_bursts").unwrap_or(0),
            memory_bytes: self.memory()?,
            ..CgroupSample::default()
        };
        match self.version {
            // Documentation/admin-guide/cgroup-v2.rst, "cpu.stat": µs; user and system sum up to
            // usage.
            CgroupVersion::V2 => {
                let total_ns = self.required(&stat, "usage_usec")?.saturating_mul(1000);
                let user = self.required(&stat, "user_usec")?;
                let system = self.required(&stat, "system_usec")?;
                sample.cpu = Some(self.split.next(total_ns, user, system));
                sample.throttled_s =
                    seconds(stat.get("throttled_usec").unwrap_or(0).saturating_mul(1000));
                sample.burst_s = seconds(stat.get("burst_usec").unwrap_or(0).saturating_mul(1000));
            }
            // kernel/sched/cpuacct.c: `usage` is exact (ns), `stat` is its division by ticks; the
            // files usage_user and usage_sys are sampled at ticks only and do not sum up to it.
            CgroupVersion::V1 => {
                if let Some(total_ns) = self.usage_ns()? {
                    let parts = self.table(&self.usage_parts)?;
                    let user = self.required(&parts, "user")?.saturating_mul(TICK_NS);
                    let system = self.required(&parts, "system")?.saturating_mul(TICK_NS);
                    sample.cpu = Some(self.split.next(total_ns, user, system));
                }
                // kernel/sched/core.c, cpu_cfs_stat_show: ns.
                sample.throttled_s = seconds(stat.get("throttled_time").unwrap_or(0));
                sample.burst_s = seconds(stat.get("burst_time").unwrap_or(0));
            }
        }
        Ok(sample)
    }

    fn memory(&self) -> Result<Option<u64>, HostError> {
        read_number(&self.memory, "memory")
    }

    /// The CPU time on v1, in nanoseconds.
    fn usage_ns(&self) -> Result<Option<u64>, HostError> {
        read_number(&self.usage, "usage")
    }

    fn table(&self, path: &Path) -> Result<Table, HostError> {
        let text = read_text(path)?.ok_or_else(|| self.absent(path))?;
        let mut rows = Vec::new();
        for line in text.lines() {
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            let error = || HostError::parse(path, key, format!("\"{value}\" is no number"));
            rows.push((key.to_owned(), value.trim().parse().map_err(|_| error())?));
        }
        Ok(Table {
            path: path.to_owned(),
            rows,
        })
    }

    fn required(&self, table: &Table, key: &str) -> Result<u64, HostError> {
        table
            .get(key)
            .ok_or_else(|| HostError::parse(&table.path, key, "it is missing"))
    }

    fn absent(&self, path: &Path) -> HostError {
        HostError::Absent {
            knob: format!("cgroup {}", self.group),
            path: path.to_owned(),
        }
    }
}

struct Table {
    path: PathBuf,
    rows: Vec<(String, u64)>,
}

impl Table {
    fn get(&self, key: &str) -> Option<u64> {
        self.rows
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| *value)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cgroup::tests::fake;

    #[test]
    fn v2_counters() {
        let (_dir, roots) = fake(&[
            ("sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
            (
                "sys/fs/cgroup/g/cpu.stat",
                "usage_usec 4000000\nuser_usec 3000000\nsystem_usec 1000000\nnr_periods 50\nnr_throttled 5\n\
                 throttled_usec 250000\nnr_bursts 2\nburst_usec 10000\n",
            ),
            ("sys/fs/cgroup/g/memory.current", "4096\n"),
            ("sys/fs/cgroup/bad/cpu.stat", "usage_usec 1\n"),
        ]);
        let mut reader = CgroupReader::open(&roots, "g").unwrap();
        let sample = reader.sample().unwrap();
        assert_eq!(
            sample.cpu,
            Some(CpuTimes {
                user_s: 3.0,
                system_s: 1.0
            })
        );
        assert_eq!(
            (sample.periods, sample.throttled_periods, sample.bursts),
            (50, 5, 2)
        );
        assert_eq!(
            (sample.throttled_s, sample.burst_s, sample.memory_bytes),
            (0.25, 0.01, Some(4096))
        );
        let of_cpu = CpuUse {
            total_s: Some(4.0),
            periods: 50,
            throttled_periods: 5,
        };
        assert_eq!(reader.cpu_use().unwrap(), of_cpu);
        let error = CgroupReader::open(&roots, "bad")
            .unwrap()
            .sample()
            .unwrap_err()
            .to_string();
        assert!(error.contains("user_usec: it is missing"), "{error}");
        assert!(matches!(
            CgroupReader::open(&roots, "none"),
            Err(HostError::Absent { .. })
        ));
        fs::remove_dir_all(roots.sys("fs/cgroup/g")).unwrap();
        assert!(matches!(reader.sample(), Err(HostError::Absent { .. })));
        assert!(matches!(reader.cpu_use(), Err(HostError::Absent { .. })));
    }

    #[test]
    fn v1_counters_are_finer_than_ticks() {
        let (_dir, roots) = fake(&[
            (
                "sys/fs/cgroup/cpu/g/cpu.stat",
                "nr_periods 10\nnr_throttled 3\nthrottled_time 1500000000\n",
            ),
            ("sys/fs/cgroup/cpuacct/g/cpuacct.usage", "45000000\n"),
            ("sys/fs/cgroup/cpuacct/g/cpuacct.stat", "user 3\nsystem 1\n"),
        ]);
        let mut reader = CgroupReader::open(&roots, "g").unwrap();
        let sample = reader.sample().unwrap();
        assert_eq!(
            sample.cpu,
            Some(CpuTimes {
                user_s: 0.033_75,
                system_s: 0.011_25
            })
        );
        assert_eq!(
            (sample.periods, sample.throttled_periods, sample.throttled_s),
            (10, 3, 1.5)
        );
        assert_eq!(sample.memory_bytes, None);
        assert_eq!(reader.cpu_use().unwrap().total_s, Some(0.045));
        fs::write(roots.sys("fs/cgroup/cpuacct/g/cpuacct.usage"), "much\n").unwrap();
        assert!(matches!(reader.sample(), Err(HostError::Parse { .. })));
        assert!(matches!(reader.cpu_use(), Err(HostError::Parse { .. })));
        // Made in the cpu hierarchy alone, it is throttled all the same.
        fs::remove_dir_all(roots.sys("fs/cgroup/cpuacct/g")).unwrap();
        let sample = reader.sample().unwrap();
        assert_eq!((sample.cpu, sample.throttled_periods), (None, 3));
        assert_eq!(reader.cpu_use().unwrap().total_s, None);
        let error = reader.cpu().unwrap_err().to_string();
        assert!(error.contains("cpuacct/g/cpuacct.usage"), "{error}");
        fs::remove_dir_all(roots.sys("fs/cgroup/cpu/g")).unwrap();
        assert!(matches!(reader.sample(), Err(HostError::Absent { .. })));
    }

    #[test]
    fn without_a_controller_there_is_no_reader() {
        let (_dir, roots) = fake(&[]);
        assert!(matches!(
            CgroupReader::open(&roots, "g"),
            Err(HostError::NoController { .. })
        ));
    }
}
