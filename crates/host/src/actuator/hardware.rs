//! What the processor offers: cache ways and memory bandwidth (resctrl), frequency, energy
//! preference, power cap.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Actuator, Wanted, probed, required, unfit, wrong_kind};
use crate::error::HostError;
use crate::journal::Journal;
use crate::knob::Knob;
use crate::roots::{Roots, read_text, write_text};

/// A resctrl group of its own for best-effort work: cache ways from the top, and a share of the
/// memory bandwidth. [`Resctrl::make`] makes it; restoring removes it, and the kernel moves its
/// tasks back.
#[derive(Clone, Debug)]
pub struct Resctrl {
    /// The group's name below `/sys/fs/resctrl`.
    pub name: String,
}

impl Resctrl {
    fn directory(&self) -> PathBuf {
        Path::new("/sys/fs/resctrl").join(&self.name)
    }

    fn knob(&self) -> Knob {
        Knob::File(self.directory().join("schemata"))
    }

    /// Makes the group and moves the processes into it.
    ///
    /// # Errors
    ///
    /// [`HostError::Write`]: no class of service is left (ENOSPC), or resctrl is not mounted.
    pub fn make(
        &self,
        journal: &mut Journal,
        roots: &Roots,
        pids: &[u32],
    ) -> Result<(), HostError> {
        journal.make_group_directory(roots, &roots.absolute(&self.directory()))?;
        let tasks = roots.absolute(&self.directory()).join("tasks");
        for pid in pids {
            match write_text(&tasks, &pid.to_string()) {
                Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                    return Err(HostError::write(&tasks, &pid.to_string(), &error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn info(roots: &Roots, file: &str) -> Option<String> {
        let text = read_text(&roots.sys("fs/resctrl/info").join(file)).ok()??;
        Some(text.trim().to_owned())
    }

    /// The number of ways of the last-level cache.
    #[must_use]
    pub fn ways(roots: &Roots) -> Option<u32> {
        let mask = u64::from_str_radix(&Self::info(roots, "L3/cbm_mask")?, 16).ok()?;
        Some(mask.count_ones())
    }

    /// The domains of one resource in the schemata: `L3:0=fffff;1=fffff`.
    fn domains(text: &str, resource: &str) -> BTreeMap<String, String> {
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix(resource)?.strip_prefix(':'));
        let pairs = line.unwrap_or_default().split(';');
        pairs
            .filter_map(|pair| pair.split_once('='))
            .map(|(domain, value)| (domain.trim().to_owned(), value.trim().to_owned()))
            .collect()
    }

    /// The mask of so many ways, as the kernel takes it: contiguous, and not too few bits
    /// (arch/x86/kernel/cpu/resctrl/ctrlmondata.c, `cbm_validate`).
    fn mask(roots: &Roots, ways: u32) -> Result<u64, String> {
        let full =
            Self::info(roots, "L3/cbm_mask").and_then(|mask| u64::from_str_radix(&mask, 16).ok());
        let full = full.ok_or("resctrl has no control of the L3 cache (CAT)")?;
        let least: u32 = Self::info(roots, "L3/min_cbm_bits")
            .and_then(|bits| bits.parse().ok())
            .unwrap_or(1);
        let all = full.count_ones();
        if ways < least || ways > all {
            return Err(format!("the cache takes {least} to {all} ways"));
        }
        let low = all - ways;
        Ok((full >> low) << low & full)
    }

    fn line(text: &str, resource: &str, value: &str) -> Option<String> {
        let domains = Self::domains(text, resource);
        let pairs: Vec<String> = domains
            .keys()
            .map(|domain| format!("{domain}={value}"))
            .collect();
        (!pairs.is_empty()).then(|| format!("{resource}:{}", pairs.join(";")))
    }
}

/// The flags of `/proc/cpuinfo` for what [`Resctrl`] sets (arch/x86/include/asm/cpufeatures.h).
const RESOURCE_CONTROL: [&str; 2] = ["cat_l3", "mba"];

/// Why resctrl is not mounted. The kernel registers the file system only if the CPU has what it
/// controls (arch/x86/kernel/cpu/resctrl/core.c, `resctrl_arch_late_init`). So only then does a
/// mount help.
fn not_mounted(roots: &Roots) -> String {
    let text = |file: &str| read_text(&roots.proc(file)).ok().flatten();
    let file_systems = text("filesystems").unwrap_or_default();
    if file_systems
        .split_whitespace()
        .any(|word| word == "resctrl")
    {
        return "not mounted: mount -t resctrl resctrl /sys/fs/resctrl".to_owned();
    }
    let cpus = text("cpuinfo").unwrap_or_default();
    let flags = cpus.lines().find(|line| line.starts_with("flags"));
    let flags: Vec<&str> = flags.unwrap_or_default().split_whitespace().collect();
    let offered: Vec<&str> = RESOURCE_CONTROL
        .into_iter()
        .filter(|flag| flags.contains(flag))
        .collect();
    if offered.is_empty() {
        return "the CPU, or the hypervisor, offers no resource control (Intel RDT, AMD QoS)"
            .to_owned();
    }
    format!(
        "the CPU has resource control ({}), but the kernel has none: it needs CONFIG_X86_CPU_RESCTRL, and no rdt= \
         parameter that switches it off",
        offered.join(", ")
    )
}

impl Actuator for Resctrl {
    fn name(&self) -> &'static str {
        "resctrl"
    }

    fn probe(&self, roots: &Roots) -> Result<String, String> {
        let text =
            read_text(&roots.sys("fs/resctrl/schemata")).map_err(|error| error.to_string())?;
        let Some(text) = text else {
            return Err(not_mounted(roots));
        };
        let has = |resource: &str| !Self::domains(&text, resource).is_empty();
        match (has("L3"), has("MB")) {
            (true, true) => Ok("L3 ways and memory bandwidth".to_owned()),
            (true, false) => Ok("L3 ways".to_owned()),
            (false, true) => Ok("memory bandwidth".to_owned()),
            (false, false) => {
                Err("resctrl controls neither L3 nor memory bandwidth here".to_owned())
            }
        }
    }

    fn read(&self, roots: &Roots) -> Result<String, HostError> {
        required(roots, &self.knob())
    }

    fn writes(&self, roots: &Roots, wanted: &Wanted) -> Result<Vec<(Knob, String)>, HostError> {
        let text = self.read(roots)?;
        let lacks = |resource: &str| {
            unfit(
                self.name(),
                wanted,
                format!("resctrl has no {resource} here"),
            )
        };
        let line = match wanted {
            Wanted::Ways(ways) => {
                let mask =
                    Self::mask(roots, *ways).map_err(|why| unfit(self.name(), wanted, why))?;
                Self::line(&text, "L3", &format!("{mask:x}")).ok_or_else(|| lacks("L3"))?
            }
            Wanted::Share(share) if *share > 0.0 && *share <= 1.0 => {
                // The kernel rounds up to its granularity (bandwidth_gran) and refuses less than
                // min_bandwidth.
                let number =
                    |file: &str| Self::info(roots, file).and_then(|text| text.parse::<f64>().ok());
                let step = number("MB/bandwidth_gran").unwrap_or(10.0).max(1.0);
                let least = number("MB/min_bandwidth").unwrap_or(10.0);
                let percent = ((100.0 * share / step).ceil() * step).clamp(least, 100.0);
                Self::line(&text, "MB", &format!("{percent:.0}")).ok_or_else(|| lacks("MB"))?
            }
            _ => return Err(wrong_kind(self.name(), wanted)),
        };
        Ok(vec![(self.knob(), line)])
    }

    /// The kernel prints all resources, aligned; the written line has to be among them.
    fn verify(&self, roots: &Roots, wanted: &Wanted) -> Result<bool, HostError> {
        let found = self.read(roots)?;
        for (_, line) in self.writes(roots, wanted)? {
            let resource = line.split(':').next().unwrap_or_default();
            if Self::domains(&line, resource) != Self::domains(&found, resource) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn knobs(&self, _roots: &Roots) -> Vec<Knob> {
        vec![self.knob()]
    }

    fn neighbour(&self, roots: &Roots) -> Result<Wanted, HostError> {
        Ok(match Self::ways(roots) {
            Some(ways) => Wanted::Ways(ways.saturating_sub(1).max(1)),
            None => Wanted::Share(0.9),
        })
    }
}

fn cpu_file(cpu: usize, file: &str) -> Knob {
    Knob::File(format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/{file}").into())
}

/// The highest frequency of some CPUs, as a share of what they can do.
#[derive(Clone, Debug)]
pub struct Frequency {
    /// The CPUs.
    pub cpus: Vec<usize>,
}

impl Actuator for Frequency {
    fn name(&self) -> &'static str {
        "frequency"
    }

    fn probe(&self, roots: &Roots) -> Result<String, String> {
        let knob = cpu_file(self.cpus.first().copied().unwrap_or(0), "scaling_max_freq");
        probed(
            roots,
            &knob,
            "cpufreq",
            "the CPU, or the hypervisor, offers no frequency control",
        )
    }

    fn read(&self, roots: &Roots) -> Result<String, HostError> {
        let cpu = self.cpus.first().copied().unwrap_or(0);
        required(roots, &cpu_file(cpu, "scaling_max_freq"))
    }

    fn writes(&self, roots: &Roots, wanted: &Wanted) -> Result<Vec<(Knob, String)>, HostError> {
        let Wanted::Share(share) = wanted else {
            return Err(wrong_kind(self.name(), wanted));
        };
        let mut writes = Vec::new();
        for cpu in &self.cpus {
            let number = |file: &str| -> Result<f64, HostError> {
                let knob = cpu_file(*cpu, file);
                let text = required(roots, &knob)?;
                text.parse()
                    .map_err(|_| HostError::parse(&knob.path(roots), file, "it is no number"))
            };
            let (least, most) = (number("cpuinfo_min_freq")?, number("cpuinfo_max_freq")?);
            let khz = (share * most).clamp(least, most);
            writes.push((cpu_file(*cpu, "scaling_max_freq"), format!("{khz:.0}")));
        }
        Ok(writes)
    }

    /// Drivers round to what the hardware has.
    fn verify(&self, roots: &Roots, wanted: &Wanted) -> Result<bool, HostError> {
        for (knob, value) in self.writes(roots, wanted)? {
            let found: f64 = required(roots, &knob)?.parse().unwrap_or(0.0);
            let wanted: f64 = value.parse().unwrap_or(0.0);
            if (found - wanted).abs() > 0.05 * wanted {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn knobs(&self, _roots: &Roots) -> Vec<Knob> {
        self.cpus
            .iter()
            .map(|cpu| cpu_file(*cpu, "scaling_max_freq"))
            .collect()
    }

    fn neighbour(&self, _roots: &Roots) -> Result<Wanted, HostError> {
        Ok(Wanted::Share(0.95))
    }
}

/// How much the hardware prefers saving energy on some CPUs.
#[derive(Clone, Debug)]
pub struct EnergyPreference {
    /// The CPUs.
    pub cpus: Vec<usize>,
}

const PREFERENCE: &str = "energy_performance_preference";

impl Actuator for EnergyPreference {
    fn name(&self) -> &'static str {
        "energy_preference"
    }

    fn probe(&self, roots: &Roots) -> Result<String, String> {
        let knob = cpu_file(self.cpus.first().copied().unwrap_or(0), PREFERENCE);
        probed(
            roots,
            &knob,
            "EPP",
            "the CPU's driver has no energy_performance_preference",
        )
    }

    fn read(&self, roots: &Roots) -> Result<String, HostError> {
        let cpu = self.cpus.first().copied().unwrap_or(0);
        required(roots, &cpu_file(cpu, PREFERENCE))
    }

    fn writes(&self, roots: &Roots, wanted: &Wanted) -> Result<Vec<(Knob, String)>, HostError> {
        let Wanted::Word(word) = wanted else {
            return Err(wrong_kind(self.name(), wanted));
        };
        let mut writes = Vec::new();
        for cpu in &self.cpus {
            let list = cpu_file(*cpu, "energy_performance_available_preferences");
            let known = required(roots, &list)?;
            if !known.split_whitespace().any(|known| known == word) {
                return Err(unfit(
                    self.name(),
                    wanted,
                    format!("the driver knows {known}"),
                ));
            }
            writes.push((cpu_file(*cpu, PREFERENCE), word.clone()));
        }
        Ok(writes)
    }

    fn knobs(&self, _roots: &Roots) -> Vec<Knob> {
        self.cpus
            .iter()
            .map(|cpu| cpu_file(*cpu, PREFERENCE))
            .collect()
    }

    fn neighbour(&self, roots: &Roots) -> Result<Wanted, HostError> {
        let now = self.read(roots)?;
        let next = if now == "balance_power" {
            "balance_performance"
        } else {
            "balance_power"
        };
        Ok(Wanted::Word(next.to_owned()))
    }
}

/// The long-term power cap of a RAPL package.
#[derive(Clone, Debug)]
pub struct PowerCap {
    /// The zone below `/sys/class/powercap`, `intel-rapl:0`.
    pub zone: String,
}

impl PowerCap {
    fn knob(&self, file: &str) -> Knob {
        Knob::File(Path::new("/sys/class/powercap").join(&self.zone).join(file))
    }

    /// The package zones of a host.
    #[must_use]
    pub fn zones(roots: &Roots) -> Vec<String> {
        let entries = std::fs::read_dir(roots.sys("class/powercap"))
            .into_iter()
            .flatten()
            .flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        // `intel-rapl:0` is a package, `intel-rapl:0:0` a part of it.
        let mut zones: Vec<String> = names
            .filter(|name| name.matches(':').count() == 1)
            .collect();
        zones.sort();
        zones
    }
}

impl Actuator for PowerCap {
    fn name(&self) -> &'static str {
        "power"
    }

    fn probe(&self, roots: &Roots) -> Result<String, String> {
        let why = "no RAPL zone: the CPU, or the hypervisor, offers none";
        probed(
            roots,
            &self.knob("constraint_0_power_limit_uw"),
            "RAPL",
            why,
        )?;
        match self.knob("enabled").read(roots) {
            // drivers/powercap/intel_rapl_common.c: firmware has set the lock bit.
            Ok(Some(enabled)) if enabled == "0" => {
                Err("the power limit is locked by the firmware, or disabled".to_owned())
            }
            _ => Ok("RAPL".to_owned()),
        }
    }

    fn read(&self, roots: &Roots) -> Result<String, HostError> {
        required(roots, &self.knob("constraint_0_power_limit_uw"))
    }

    fn writes(&self, roots: &Roots, wanted: &Wanted) -> Result<Vec<(Knob, String)>, HostError> {
        let Wanted::Share(share) = wanted else {
            return Err(wrong_kind(self.name(), wanted));
        };
        if !(0.1..=1.0).contains(share) {
            return Err(unfit(
                self.name(),
                wanted,
                "a cap below a tenth stops the machine",
            ));
        }
        let most = self.knob("constraint_0_max_power_uw");
        let text = required(roots, &most)?;
        let most_uw: f64 = text
            .parse()
            .map_err(|_| HostError::parse(&most.path(roots), "max power", "it is no number"))?;
        let knob = self.knob("constraint_0_power_limit_uw");
        Ok(vec![(knob, format!("{:.0}", share * most_uw))])
    }

    /// The hardware counts in eighths of a watt.
    fn verify(&self, roots: &Roots, wanted: &Wanted) -> Result<bool, HostError> {
        let found: f64 = self.read(roots)?.parse().unwrap_or(0.0);
        let writes = self.writes(roots, wanted)?;
        let wanted: f64 = writes
            .first()
            .and_then(|(_, value)| value.parse().ok())
            .unwrap_or(0.0);
        Ok((found - wanted).abs() <= 1e6)
    }

    fn knobs(&self, _roots: &Roots) -> Vec<Knob> {
        vec![self.knob("constraint_0_power_limit_uw")]
    }

    fn neighbour(&self, _roots: &Roots) -> Result<Wanted, HostError> {
        Ok(Wanted::Share(0.95))
    }
}
