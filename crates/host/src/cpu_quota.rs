//! The CPU quota of a control group: as knob writes, as it is read, and which of a group and its
//! ancestors limits it most.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cgroup::{CgroupVersion, Hierarchies, check_group};
use crate::error::HostError;
use crate::knob::{Knob, normalise};
use crate::roots::{Roots, read_text};

/// A CPU quota: `quota_us` of CPU time in every `period_us`; `None` for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuQuota {
    /// The period, µs; the kernel takes 1,000 to 1,000,000 (kernel/sched/core.c).
    pub period_us: u64,
    /// CPU time per period, µs, over all CPUs; at least 1,000.
    pub quota_us: Option<u64>,
    /// CPU time that may be saved up beyond it, µs, at most `quota_us`; `None` where the kernel has
    /// no burst (before 5.14), or to leave it as it is.
    pub burst_us: Option<u64>,
}

impl CpuQuota {
    /// The knob writes that set it on a group, in order.
    ///
    /// # Errors
    ///
    /// [`HostError::NoController`].
    pub fn writes(&self, roots: &Roots, group: &str) -> Result<Vec<(Knob, String)>, HostError> {
        let version = Hierarchies::of(roots).require("cpu")?.0;
        let burst = knob(group, burst_file(version));
        let mut writes = Vec::new();
        // A burst above the new quota would make the kernel refuse that (kernel/sched/core.c,
        // tg_set_cfs_bandwidth).
        if self.burst_us.is_some() {
            writes.push((burst.clone(), "0".to_owned()));
        }
        match (version, self.quota_us) {
            (CgroupVersion::V2, None) => {
                writes.push((knob(group, "cpu.max"), format!("max {}", self.period_us)));
            }
            (CgroupVersion::V2, Some(quota_us)) => {
                let value = format!("{quota_us} {}", self.period_us);
                writes.push((knob(group, "cpu.max"), value));
            }
            // A shorter period under the old quota could exceed the parent's share (EINVAL), so the
            // quota is lifted before the period changes.
            (CgroupVersion::V1, quota_us) => {
                let quota = knob(group, "cpu.cfs_quota_us");
                let period = knob(group, "cpu.cfs_period_us");
                writes.push((quota.clone(), "-1".to_owned()));
                writes.push((period, self.period_us.to_string()));
                writes.extend(quota_us.map(|quota_us| (quota, quota_us.to_string())));
            }
        }
        let burst_us = self.burst_us.filter(|burst_us| *burst_us > 0);
        writes.extend(burst_us.map(|burst_us| (burst, burst_us.to_string())));
        Ok(writes)
    }

    /// The limit in cores; infinite without one.
    #[must_use]
    pub fn cores(&self) -> f64 {
        self.quota_us.map_or(f64::INFINITY, |quota_us| {
            quota_us as f64 / self.period_us.max(1) as f64
        })
    }

    /// The group's present quota.
    ///
    /// # Errors
    ///
    /// [`HostError::NoController`], [`HostError::NotPassedOn`], [`HostError::Absent`] where the
    /// group does not exist, [`HostError::Parse`].
    pub fn read(roots: &Roots, group: &str) -> Result<Self, HostError> {
        Self::read_in(&Hierarchies::of(roots), group)
    }

    /// As [`CpuQuota::read`], for one who reads many groups.
    ///
    /// # Errors
    ///
    /// As [`CpuQuota::read`].
    pub fn read_in(hierarchies: &Hierarchies, group: &str) -> Result<Self, HostError> {
        check_group(group)?;
        let (version, top) = hierarchies.require("cpu")?;
        let directory = top.join(group.trim_matches('/'));
        let line = |file: &str| {
            let path = directory.join(file);
            let text = read_text(&path)?.map(|text| normalise(&text));
            Ok((path, text))
        };
        let required = |file: &str| match line(file)? {
            (path, Some(text)) => Ok((path, text)),
            (_, None) if version == CgroupVersion::V2 && directory.is_dir() => {
                Err(HostError::NotPassedOn {
                    group: group.to_owned(),
                    path: directory.with_file_name("cgroup.subtree_control"),
                })
            }
            (path, None) => Err(HostError::Absent {
                knob: knob(group, file).to_string(),
                path,
            }),
        };
        let number = |path: &Path, word: &str| {
            word.parse::<u64>()
                .map_err(|error| HostError::parse(path, word, error.to_string()))
        };
        let ((quota_path, quota), (period_path, period)) = match version {
            CgroupVersion::V2 => {
                let (path, text) = required("cpu.max")?;
                let (quota, period) = text.split_once(' ').unwrap_or((&text, ""));
                let period = period.to_owned();
                ((path.clone(), quota.to_owned()), (path, period))
            }
            CgroupVersion::V1 => (
                required("cpu.cfs_quota_us")?,
                required("cpu.cfs_period_us")?,
            ),
        };
        let quota_us = if quota == "max" || quota == "-1" {
            None
        } else {
            Some(number(&quota_path, &quota)?)
        };
        let (burst_path, burst) = line(burst_file(version))?;
        Ok(Self {
            period_us: number(&period_path, &period)?,
            quota_us,
            burst_us: burst.map(|text| number(&burst_path, &text)).transpose()?,
        })
    }
}

fn knob(group: &str, file: &str) -> Knob {
    Knob::Cgroup {
        group: group.to_owned(),
        file: file.to_owned(),
    }
}

/// The file of a group's burst.
pub(crate) fn burst_file(version: CgroupVersion) -> &'static str {
    match version {
        CgroupVersion::V1 => "cpu.cfs_burst_us",
        CgroupVersion::V2 => "cpu.max.burst",
    }
}

/// The CPU limit that counts for a group: of itself and its ancestors, the one with the fewest
/// cores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TightestQuota {
    /// The group that has it.
    pub group: String,
    /// The quota.
    pub quota: CpuQuota,
}

/// The limit that counts for a group; `None` where neither it nor an ancestor has one.
///
/// # Errors
///
/// [`HostError::NoController`], [`HostError::Absent`] where the group does not exist,
/// [`HostError::Parse`].
pub fn tightest_quota(roots: &Roots, group: &str) -> Result<Option<TightestQuota>, HostError> {
    tightest_quota_in(&Hierarchies::of(roots), group)
}

/// As [`tightest_quota`], for one who asks for many groups.
///
/// # Errors
///
/// As [`tightest_quota`].
pub fn tightest_quota_in(
    hierarchies: &Hierarchies,
    group: &str,
) -> Result<Option<TightestQuota>, HostError> {
    check_group(group)?;
    let mut tightest: Option<TightestQuota> = None;
    let mut current = group.trim_matches('/');
    // The root group has no quota of its own.
    while !current.is_empty() {
        let quota = match CpuQuota::read_in(hierarchies, current) {
            // Nor one that is not given the controller; those above it may have one.
            Err(HostError::NotPassedOn { .. }) => None,
            quota => Some(quota?),
        };
        let fewer = |quota: &CpuQuota| {
            let tightest = tightest.as_ref();
            quota.quota_us.is_some()
                && tightest.is_none_or(|other| quota.cores() < other.quota.cores())
        };
        if let Some(quota) = quota.filter(fewer) {
            tightest = Some(TightestQuota {
                group: current.to_owned(),
                quota,
            });
        }
        current = current.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
    Ok(tightest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::DEFAULT_PERIOD_US;
    use crate::cgroup::tests::fake;

    const V2: &str = "sys/fs/cgroup/cgroup.controllers";

    #[test]
    fn a_quota_reads_and_writes_on_both_versions() {
        let quota = CpuQuota {
            period_us: 20_000,
            quota_us: Some(30_000),
            burst_us: None,
        };
        let (_dir, v2) = fake(&[
            ("sys/fs/cgroup/cgroup.controllers", "cpu\n"),
            ("sys/fs/cgroup/g/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/bad/cpu.max", "lots 100000\n"),
        ]);
        assert_eq!(
            CpuQuota::read(&v2, "g").unwrap(),
            CpuQuota {
                period_us: DEFAULT_PERIOD_US,
                quota_us: None,
                burst_us: None,
            }
        );
        assert!(matches!(
            CpuQuota::read(&v2, "bad"),
            Err(HostError::Parse { .. })
        ));
        assert!(matches!(
            CpuQuota::read(&v2, "none"),
            Err(HostError::Absent { .. })
        ));
        assert_eq!(quota.writes(&v2, "g").unwrap()[0].1, "30000 20000");
        let (_dir, v1) = fake(&[
            ("sys/fs/cgroup/cpu/g/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/g/cpu.cfs_period_us", "50000\n"),
        ]);
        assert_eq!(
            CpuQuota::read(&v1, "g").unwrap(),
            CpuQuota {
                period_us: 50_000,
                quota_us: None,
                burst_us: None,
            }
        );
        let values: Vec<String> = quota
            .writes(&v1, "g")
            .unwrap()
            .into_iter()
            .map(|(_, value)| value)
            .collect();
        assert_eq!(values, ["-1", "20000", "30000"]);
        let bursting = CpuQuota {
            burst_us: Some(10_000),
            ..quota
        };
        let values: Vec<(String, String)> = bursting
            .writes(&v2, "g")
            .unwrap()
            .into_iter()
            .map(|(knob, value)| (knob.to_string(), value))
            .collect();
        let wanted = [
            ("cpu.max.burst", "0"),
            ("cpu.max", "30000 20000"),
            ("cpu.max.burst", "10000"),
        ];
        for ((knob, value), (file, text)) in values.iter().zip(wanted) {
            assert!(knob.ends_with(file) && value == text, "{values:?}");
        }
        assert_eq!((bursting.cores(), values.len()), (1.5, 3));
        assert!(matches!(
            quota.writes(&Roots::at("/nonexistent"), "g"),
            Err(HostError::NoController { .. })
        ));
    }

    #[test]
    fn on_v2_the_tightest_ancestor_counts() {
        let (_dir, roots) = fake(&[
            (V2, "cpu memory\n"),
            ("sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/a/cpu.max.burst", "20000\n"),
            ("sys/fs/cgroup/a/b/cpu.max", "400000 100000\n"),
            ("sys/fs/cgroup/a/b/cpu.max.burst", "0\n"),
            ("sys/fs/cgroup/free/cpu.max", "max 100000\n"),
        ]);
        let found = tightest_quota(&roots, "a/b").unwrap().unwrap();
        assert_eq!(
            (found.group.as_str(), found.quota.burst_us),
            ("a", Some(20_000))
        );
        assert_eq!(found.quota.quota_us, Some(150_000));
        assert_eq!(tightest_quota(&roots, "free").unwrap(), None);
        assert!(matches!(
            tightest_quota(&roots, "none"),
            Err(HostError::Absent { .. })
        ));
    }

    /// `DefaultCPUAccounting=no`, say: systemd passes on what a unit asks for, and no more.
    #[test]
    fn on_v2_a_group_without_the_controller_has_the_limits_above_it() {
        let (_dir, roots) = fake(&[
            (V2, "cpu memory\n"),
            ("sys/fs/cgroup/a.slice/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/a.slice/b.service/cpu.stat", "usage_usec 1\n"),
            ("sys/fs/cgroup/b.slice/b.service/cpu.stat", "usage_usec 1\n"),
        ]);
        let found = tightest_quota(&roots, "a.slice/b.service").unwrap();
        assert_eq!(found.unwrap().group, "a.slice");
        let free = tightest_quota(&roots, "b.slice/b.service").unwrap();
        assert_eq!(free, None);
        let error = CpuQuota::read(&roots, "a.slice/b.service").unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("a.slice/cgroup.subtree_control") && error.is_missing_privilege(),
            "{text}"
        );
    }

    #[test]
    fn on_v1_burst_may_be_missing() {
        let (_dir, roots) = fake(&[
            ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"),
        ]);
        let found = tightest_quota(&roots, "/a/").unwrap().unwrap();
        assert_eq!(found.quota.burst_us, None);
        assert_eq!(found.quota.quota_us, Some(50_000));
    }
}
