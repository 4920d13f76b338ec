//! Actuators: what of a group, or of the machine, can be set while it runs. Each can be probed,
//! read, applied, verified by reading back, and restored; every write goes through the [`Journal`].
//!
//! ```
//! use host::{Actuator as _, CpuIdle, Journal, Roots, Wanted};
//! # let dir = tempfile::tempdir()?;
//! # let group = dir.path().join("sys/fs/cgroup/cpu/batch");
//! # std::fs::create_dir_all(&group)?;
//! # std::fs::write(group.join("cpu.idle"), "0\n")?;
//! # std::fs::write(group.join("cpu.shares"), "1024\n")?;
//! let roots = Roots::at(dir.path());
//! let mut journal = Journal::open(&dir.path().join("state"))?;
//! let idle = CpuIdle { group: "batch".into() };
//! idle.apply(&mut journal, &roots, &Wanted::On(true))?;
//! assert_eq!(idle.read(&roots)?, "1");
//! assert!(idle.restore(&mut journal, &roots)?.is_complete());
//! assert_eq!(idle.read(&roots)?, "0");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cpu;
mod egress;
mod freezer;
mod hardware;
mod input_output;
mod memory;
#[cfg(test)]
mod tests;
mod uclamp;

use std::collections::BTreeSet;
use std::fmt;

use crate::cgroup::CgroupVersion;
use crate::cpu_quota::CpuQuota;
use crate::error::HostError;
use crate::journal::{Journal, RestoreReport};
use crate::knob::{Knob, is_taken_as};
use crate::roots::Roots;

pub use cpu::{CpuIdle, CpuQuotaLimit, CpuWeight, Cpuset};
pub use egress::Egress;
pub use freezer::Freezer;
pub use hardware::{EnergyPreference, Frequency, PowerCap, Resctrl};
pub use input_output::{IoCost, IoDirection, IoMax, IoWeight};
pub use memory::{MemoryHigh, MemoryLow};
pub use uclamp::{Uclamp, UclampBound};

/// What an actuator is to be set to.
#[derive(Clone, Debug, PartialEq)]
pub enum Wanted {
    /// On or off.
    On(bool),
    /// A weight as in v2, 1 to 10,000, where 100 is usual.
    Weight(u64),
    /// A CPU quota.
    Quota(CpuQuota),
    /// These CPUs.
    Cpus(BTreeSet<usize>),
    /// A share, 0 to 1.
    Share(f64),
    /// Bytes, or bytes a second; `None` for no limit.
    Bytes(Option<u64>),
    /// Ways of the last-level cache, counted from the highest.
    Ways(u32),
    /// One of the kernel's words.
    Word(String),
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On(on) => f.write_str(if *on { "on" } else { "off" }),
            Self::Weight(weight) => write!(f, "weight {weight}"),
            Self::Quota(quota) if quota.quota_us.is_none() => f.write_str("no quota"),
            Self::Quota(quota) => write!(f, "{:.2} cores", quota.cores()),
            Self::Cpus(cpus) => write!(f, "CPUs {}", cpu_list(cpus)),
            Self::Share(share) => write!(f, "{:.0} %", 100.0 * share),
            Self::Bytes(None) => f.write_str("no limit"),
            Self::Bytes(Some(bytes)) => write!(f, "{bytes} bytes"),
            Self::Ways(ways) => write!(f, "{ways} ways"),
            Self::Word(word) => f.write_str(word),
        }
    }
}

/// One thing that can be set.
pub trait Actuator {
    /// Its name, as in tables.
    fn name(&self) -> &'static str;

    /// How it can be used here, for instance `v1`.
    ///
    /// # Errors
    ///
    /// Why it cannot, and what to do.
    fn probe(&self, roots: &Roots) -> Result<String, String>;

    /// What is in force, in the kernel's words.
    ///
    /// # Errors
    ///
    /// [`HostError::Absent`], [`HostError::Read`], [`HostError::NoController`].
    fn read(&self, roots: &Roots) -> Result<String, HostError>;

    /// The knobs to write, in the order that the kernel allows.
    ///
    /// # Errors
    ///
    /// [`HostError::Unfit`] where the kernel would refuse the value, or the value is of another
    /// kind.
    fn writes(&self, roots: &Roots, wanted: &Wanted) -> Result<Vec<(Knob, String)>, HostError>;

    /// Sets it, through the journal, and reads it back.
    ///
    /// # Errors
    ///
    /// As [`Journal::write`]. [`HostError::Disturbed`] says that somebody else writes it: leave it
    /// to them.
    fn apply(
        &self,
        journal: &mut Journal,
        roots: &Roots,
        wanted: &Wanted,
    ) -> Result<(), HostError> {
        write_all(journal, roots, &self.writes(roots, wanted)?)
    }

    /// Whether it still is as wanted.
    ///
    /// # Errors
    ///
    /// As [`Actuator::read`] and [`Actuator::writes`].
    fn verify(&self, roots: &Roots, wanted: &Wanted) -> Result<bool, HostError> {
        let mut last: Vec<(Knob, String)> = Vec::new();
        for (knob, value) in self.writes(roots, wanted)? {
            last.retain(|(known, _)| *known != knob);
            last.push((knob, value));
        }
        for (knob, value) in last {
            let found = knob.read(roots)?;
            if !found.is_some_and(|found| is_taken_as(&value, &found)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The knobs that it may have written.
    fn knobs(&self, roots: &Roots) -> Vec<Knob>;

    /// Puts back what was there before the first [`Actuator::apply`].
    ///
    /// # Errors
    ///
    /// [`HostError::Journal`]; what could not be undone is an item of the report.
    fn restore(&self, journal: &mut Journal, roots: &Roots) -> Result<RestoreReport, HostError> {
        journal.restore_knobs(roots, &self.knobs(roots))
    }

    /// A value one small step from the present one, for a self-test.
    ///
    /// # Errors
    ///
    /// As [`Actuator::read`].
    fn neighbour(&self, roots: &Roots) -> Result<Wanted, HostError>;
}

/// Writes knobs one after the other.
fn write_all(
    journal: &mut Journal,
    roots: &Roots,
    writes: &[(Knob, String)],
) -> Result<(), HostError> {
    writes
        .iter()
        .try_for_each(|(knob, value)| journal.write(roots, knob, value))
}

fn unfit(actuator: &'static str, wanted: &Wanted, why: impl Into<String>) -> HostError {
    HostError::Unfit {
        actuator,
        wanted: wanted.to_string(),
        why: why.into(),
    }
}

/// The value is of another kind than the actuator takes.
fn wrong_kind(actuator: &'static str, wanted: &Wanted) -> HostError {
    unfit(actuator, wanted, "the actuator takes another kind of value")
}

fn cgroup_knob(group: &str, file: &str) -> Knob {
    Knob::Cgroup {
        group: group.to_owned(),
        file: file.to_owned(),
    }
}

/// The knob's text.
fn required(roots: &Roots, knob: &Knob) -> Result<String, HostError> {
    knob.read(roots)?.ok_or_else(|| HostError::Absent {
        knob: knob.to_string(),
        path: knob.path(roots),
    })
}

/// Whether the knob is there, as an actuator's probe says it.
fn probed(roots: &Roots, knob: &Knob, form: &str, missing: &str) -> Result<String, String> {
    match knob.read(roots) {
        Ok(Some(_)) => Ok(form.to_owned()),
        Ok(None) => Err(missing.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// A file of a group that has another name on each version of cgroups.
struct VersionedFile {
    v1: &'static str,
    /// How it can be used on v1, as an actuator's probe says it.
    v1_form: &'static str,
    v2: &'static str,
    /// Why it may be missing.
    missing: &'static str,
}

impl VersionedFile {
    fn knob(&self, group: &str, version: CgroupVersion) -> Knob {
        match version {
            CgroupVersion::V1 => cgroup_knob(group, self.v1),
            CgroupVersion::V2 => cgroup_knob(group, self.v2),
        }
    }

    fn probed(
        &self,
        roots: &Roots,
        group: &str,
        version: Result<CgroupVersion, HostError>,
    ) -> Result<String, String> {
        let version = version.map_err(|error| error.to_string())?;
        let form = match version {
            CgroupVersion::V1 => self.v1_form,
            CgroupVersion::V2 => "v2",
        };
        probed(roots, &self.knob(group, version), form, self.missing)
    }
}

/// CPUs as the kernel writes them: `0-3,6`.
#[must_use]
pub fn cpu_list(cpus: &BTreeSet<usize>) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
            _ => ranges.push((*cpu, *cpu)),
        }
    }
    let text = ranges.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    text.collect::<Vec<_>>().join(",")
}
