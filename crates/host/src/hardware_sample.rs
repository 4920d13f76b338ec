//! What the processor counts of itself: energy (RAPL), frequency (cpufreq), and memory traffic
//! (resctrl). Every reader is `None` where the host has no such counter.

use std::fs;
use std::path::Path;

use crate::actuator::PowerCap;
use crate::roots::{Roots, read_number};

/// The energy that the packages have used since they were started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackageEnergy {
    packages: Vec<Package>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Package {
    energy_uj: u64,
    /// The counter begins again at zero behind this.
    range_uj: u64,
    most_uw: u64,
    cap_uw: u64,
}

impl PackageEnergy {
    /// Reads all packages (Documentation/power/powercap/powercap.rst).
    #[must_use]
    pub fn read(roots: &Roots) -> Option<Self> {
        let zones = PowerCap::zones(roots);
        let of = |zone: &String| {
            let directory = roots.sys("class/powercap").join(zone);
            let number = |file: &str| number(&directory.join(file));
            Some(Package {
                energy_uj: number("energy_uj")?,
                range_uj: number("max_energy_range_uj")?,
                most_uw: number("constraint_0_max_power_uw")?,
                cap_uw: number("constraint_0_power_limit_uw")?,
            })
        };
        let packages: Option<Vec<Package>> = zones.iter().map(of).collect();
        packages
            .filter(|packages| !packages.is_empty())
            .map(|packages| Self { packages })
    }

    /// The mean power since an earlier reading, in watts. `None` where the packages are others.
    #[must_use]
    pub fn watts_since(&self, earlier: &Self, elapsed_s: f64) -> Option<f64> {
        if self.packages.len() != earlier.packages.len() || elapsed_s <= 0.0 {
            return None;
        }
        let used_uj = self
            .packages
            .iter()
            .zip(&earlier.packages)
            .map(
                |(now, then)| match now.energy_uj.checked_sub(then.energy_uj) {
                    Some(used_uj) => used_uj,
                    None => now.energy_uj + then.range_uj.saturating_sub(then.energy_uj),
                },
            );
        Some(watts(used_uj.sum()) / elapsed_s)
    }

    /// The thermal design power of all packages, in watts.
    #[must_use]
    pub fn thermal_design_w(&self) -> f64 {
        watts(self.packages.iter().map(|package| package.most_uw).sum())
    }

    /// The power cap in force, of all packages, in watts.
    #[must_use]
    pub fn cap_w(&self) -> f64 {
        watts(self.packages.iter().map(|package| package.cap_uw).sum())
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "exact up to 2^53 µW, which is a power station"
)]
fn watts(uw: u64) -> f64 {
    uw as f64 / 1e6
}

/// The mean frequency of these CPUs, and the one that they are guaranteed, in MHz.
#[must_use]
pub fn frequency_mhz(roots: &Roots, cpus: &[usize]) -> Option<(f64, f64)> {
    let (mut now_mhz, mut guaranteed_mhz) = (0.0, 0.0);
    for cpu in cpus {
        let directory = roots.sys(format!("devices/system/cpu/cpu{cpu}"));
        #[expect(clippy::cast_precision_loss, reason = "a frequency")]
        let number = |file: &str| number(&directory.join(file)).map(|number| number as f64);
        // Both drivers say kHz, ACPI says MHz (Documentation/admin-guide/pm/intel_pstate.rst,
        // Documentation/admin-guide/acpi/cppc_sysfs.rst).
        let base = number("cpufreq/base_frequency").map(|khz| khz / 1000.0);
        now_mhz += number("cpufreq/scaling_cur_freq")? / 1000.0;
        guaranteed_mhz += base.or_else(|| number("acpi_cppc/nominal_freq"))?;
    }
    let count = cpus.len();
    #[expect(clippy::cast_precision_loss, reason = "a number of CPUs")]
    let mean = |sum: f64| sum / count as f64;
    (count > 0).then(|| (mean(now_mhz), mean(guaranteed_mhz)))
}

/// Bytes that all cores have moved to and from memory: the sum over the resctrl groups
/// (Documentation/arch/x86/resctrl.rst, `mbm_total_bytes`).
#[must_use]
pub fn memory_traffic_bytes(roots: &Roots) -> Option<u64> {
    let top = roots.sys("fs/resctrl");
    let groups = fs::read_dir(&top).ok()?.flatten();
    let below = groups
        .map(|entry| entry.path())
        .filter(|path| path.join("mon_data").is_dir());
    let mut all = None;
    for group in below.chain([top.clone()]) {
        let Ok(domains) = fs::read_dir(group.join("mon_data")) else {
            continue;
        };
        for domain in domains.flatten() {
            // A domain without a counter says `Unavailable`.
            if let Some(bytes) = number(&domain.path().join("mbm_total_bytes")) {
                all = Some(all.unwrap_or(0) + bytes);
            }
        }
    }
    all
}

fn number(path: &Path) -> Option<u64> {
    read_number(path, "number").ok()?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::tests::fake;

    #[test]
    fn power_is_the_energy_of_all_packages_and_counters_begin_again() {
        let zone = |zone: u32, energy_uj: &str| {
            [
                ("energy_uj", energy_uj),
                ("max_energy_range_uj", "1000000\n"),
                ("constraint_0_max_power_uw", "100000000\n"),
                ("constraint_0_power_limit_uw", "90000000\n"),
            ]
            .map(|(file, text)| {
                let path = format!("sys/class/powercap/intel-rapl:{zone}/{file}");
                (path, text.to_owned())
            })
        };
        let read = |first: &str, second: &str| {
            let files = [zone(0, first), zone(1, second)].concat();
            let files: Vec<(&str, &str)> = files
                .iter()
                .map(|(path, text)| (path.as_str(), text.as_str()))
                .collect();
            let (_dir, roots) = fake(&files);
            PackageEnergy::read(&roots)
        };
        let then = read("100000\n", "900000\n").unwrap();
        let now = read("300000\n", "100000\n").unwrap();
        assert_eq!(now.watts_since(&then, 2.0), Some(0.2));
        assert_eq!(now.watts_since(&then, 0.0), None);
        assert_eq!(now.watts_since(&PackageEnergy::default(), 1.0), None);
        assert_eq!((now.thermal_design_w(), now.cap_w()), (200.0, 180.0));
        assert_eq!(read("100000\n", "broken\n"), None);
        assert_eq!(PackageEnergy::read(&fake(&[]).1), None);
    }

    #[test]
    fn the_guaranteed_frequency_is_the_driver_s_or_acpi_s() {
        let (_dir, roots) = fake(&[
            (
                "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq",
                "3000000\n",
            ),
            (
                "sys/devices/system/cpu/cpu0/cpufreq/base_frequency",
                "2500000\n",
            ),
            (
                "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq",
                "2000000\n",
            ),
            (
                "sys/devices/system/cpu/cpu1/acpi_cppc/nominal_freq",
                "2100\n",
            ),
            (
                "sys/devices/system/cpu/cpu2/cpufreq/scaling_cur_freq",
                "2000000\n",
            ),
        ]);
        assert_eq!(frequency_mhz(&roots, &[0, 1]), Some((2500.0, 2300.0)));
        assert_eq!(frequency_mhz(&roots, &[2]), None);
        assert_eq!(frequency_mhz(&roots, &[7]), None);
        assert_eq!(frequency_mhz(&roots, &[]), None);
    }

    #[test]
    fn memory_traffic_is_of_all_groups_and_domains() {
        let (_dir, roots) = fake(&[
            ("sys/fs/resctrl/mon_data/mon_L3_00/mbm_total_bytes", "100\n"),
            (
                "sys/fs/resctrl/mon_data/mon_L3_01/mbm_total_bytes",
                "Unavailable\n",
            ),
            (
                "sys/fs/resctrl/slackline-batch/mon_data/mon_L3_00/mbm_total_bytes",
                "30\n",
            ),
            ("sys/fs/resctrl/info/L3/cbm_mask", "ff\n"),
        ]);
        assert_eq!(memory_traffic_bytes(&roots), Some(130));
        let (_dir, roots) = fake(&[("sys/fs/resctrl/info/L3/cbm_mask", "ff\n")]);
        assert_eq!(memory_traffic_bytes(&roots), None);
        assert_eq!(memory_traffic_bytes(&fake(&[]).1), None);
    }
}
