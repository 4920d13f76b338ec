//! What the processor counts, for the policies that decide by it: power, frequency, memory
//! bandwidth.

use std::time::Instant;

use host::{Actuator as _, Cpuset, PackageEnergy, Roots};
use isolation::{MachineSeen, Policy};

const BYTES_PER_GB: f64 = 1e9;

/// What was seen between the last two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct HardwareSeen {
    power_w: Option<(f64, f64)>,
    power_cap_w: Option<f64>,
    frequency_mhz: Option<(f64, f64)>,
    dram_gb_per_s: Option<(f64, f64)>,
}

impl HardwareSeen {
    /// Adds it to what is known of a machine.
    pub(crate) fn into_machine(self, machine: MachineSeen) -> MachineSeen {
        MachineSeen {
            power_w: self.power_w,
            power_cap_w: self.power_cap_w,
            frequency_mhz: self.frequency_mhz,
            dram_gb_per_s: self.dram_gb_per_s,
            ..machine
        }
    }
}

/// The counters at the last look.
#[derive(Debug, Default)]
pub(crate) struct Hardware {
    last: Option<Last>,
    pub(crate) seen: HardwareSeen,
}

#[derive(Debug)]
struct Last {
    at: Instant,
    energy: Option<PackageEnergy>,
    traffic_bytes: Option<u64>,
}

impl Hardware {
    /// Looks at `now`, where the policy decides by any of this. The services have the CPUs that no
    /// best-effort group has for itself.
    pub(crate) fn look<'a>(
        &mut self,
        roots: &Roots,
        now: Instant,
        policy: Policy,
        dram_peak_gb_per_s: Option<f64>,
        groups: impl Iterator<Item = &'a str>,
    ) {
        if !matches!(policy, Policy::Heracles | Policy::Parties) {
            *self = Self::default();
            return;
        }
        let energy = PackageEnergy::read(roots);
        let traffic_bytes = host::memory_traffic_bytes(roots);
        let mut seen = HardwareSeen {
            power_cap_w: energy.as_ref().map(PackageEnergy::cap_w),
            frequency_mhz: host::frequency_mhz(roots, &cpus_of_services(roots, groups)),
            ..HardwareSeen::default()
        };
        if let Some(last) = &self.last {
            let elapsed_s = now.saturating_duration_since(last.at).as_secs_f64();
            seen.power_w = energy
                .as_ref()
                .zip(last.energy.as_ref())
                .and_then(|(now, then)| {
                    Some((now.watts_since(then, elapsed_s)?, now.thermal_design_w()))
                });
            seen.dram_gb_per_s = traffic_bytes
                .zip(last.traffic_bytes)
                .zip(dram_peak_gb_per_s)
                .map(|((now, then), peak)| {
                    let bytes = now.saturating_sub(then) as f64;
                    (bytes / BYTES_PER_GB / elapsed_s.max(1e-3), peak)
                });
        }
        self.seen = seen;
        self.last = Some(Last {
            at: now,
            energy,
            traffic_bytes,
        });
    }
}

fn cpus_of_services<'a>(roots: &Roots, groups: impl Iterator<Item = &'a str>) -> Vec<usize> {
    let all = host::online_cpus(roots).unwrap_or_default();
    let theirs: Vec<usize> = groups
        .filter_map(|group| {
            let cpuset = Cpuset {
                group: group.to_owned(),
            };
            host::parse_cpu_list(&cpuset.read(roots).ok()?).ok()
        })
        .flatten()
        .collect();
    let rest = all.iter().copied().filter(|cpu| !theirs.contains(cpu));
    let rest: Vec<usize> = rest.collect();
    if rest.is_empty() { all } else { rest }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn heracles_sees_power_frequency_and_memory_bandwidth() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let file = dir.path().join("sys").join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        let counted = |energy_uj: &str, bytes: &str| {
            write("class/powercap/intel-rapl:0/energy_uj", energy_uj);
            write("fs/resctrl/mon_data/mon_L3_00/mbm_total_bytes", bytes);
        };
        let zone = "class/powercap/intel-rapl:0";
        write(&format!("{zone}/max_energy_range_uj"), "1000000000000");
        write(&format!("{zone}/constraint_0_max_power_uw"), "100000000");
        write(&format!("{zone}/constraint_0_power_limit_uw"), "80000000");
        write("devices/system/cpu/online", "0-1");
        for (cpu, khz) in [(0, "2200000"), (1, "1000000")] {
            let cpu = format!("devices/system/cpu/cpu{cpu}/cpufreq");
            write(&format!("{cpu}/scaling_cur_freq"), khz);
            write(&format!("{cpu}/base_frequency"), "2300000");
        }
        write("fs/cgroup/cpuset/batch/cpuset.cpus", "1");
        counted("1000000", "5000000000");
        let roots = Roots::at(dir.path());
        let began = Instant::now();
        let mut hardware = Hardware::default();
        let mut look = |policy, after_s| {
            let now = began + Duration::from_secs(after_s);
            hardware.look(&roots, now, policy, Some(50.0), ["batch"].into_iter());
            hardware.seen.into_machine(MachineSeen::default())
        };
        let first = look(Policy::Heracles, 0);
        assert_eq!((first.power_w, first.dram_gb_per_s), (None, None));
        // CPU 1 is the batch work's.
        assert_eq!(first.frequency_mhz, Some((2200.0, 2300.0)));
        assert_eq!(first.power_cap_w, Some(80.0));
        counted("191000000", "45000000000");
        let second = look(Policy::Heracles, 2);
        assert_eq!(second.power_w, Some((95.0, 100.0)));
        assert_eq!(second.dram_gb_per_s, Some((20.0, 50.0)));
        // No other policy decides by it.
        assert_eq!(look(Policy::Slackline, 4), MachineSeen::default());
    }
}
