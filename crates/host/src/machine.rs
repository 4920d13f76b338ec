//! What machine this is, for reports: enough to judge a measurement by, nothing that names its owner (no hostname).

use serde::{Deserialize, Serialize};

use crate::cgroup::{CgroupLayout, Hierarchies};
use crate::cpus::online_cpus;
use crate::roots::{Roots, read_text};

/// A machine's description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The kernel's release, e.g. `6.18.5`; empty where it cannot be read.
    pub kernel: String,
    /// CPUs online.
    pub cpus: usize,
    /// The model as the CPU names itself; empty where it does not.
    pub cpu_model: String,
    /// Main memory.
    pub memory_bytes: u64,
    /// The control groups mounted.
    pub cgroup: CgroupLayout,
    /// Whether a hypervisor lies beneath: such a machine's CPUs may be shared with others.
    pub is_virtual: bool,
}

impl Machine {
    /// Describes the machine. What cannot be read is left empty: a report without it is better than none.
    #[must_use]
    pub fn describe(roots: &Roots) -> Self {
        let text = |path: std::path::PathBuf| read_text(&path).ok().flatten().unwrap_or_default();
        let cpuinfo = text(roots.proc("cpuinfo"));
        let field = |name: &str| {
            cpuinfo.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            })
        };
        let meminfo = text(roots.proc("meminfo"));
        // proc_meminfo(5): "MemTotal:  8032432 kB".
        let memory_kib = meminfo
            .lines()
            .find_map(|line| {
                line.strip_prefix("MemTotal:")?
                    .split_whitespace()
                    .next()?
                    .parse::<u64>()
                    .ok()
            })
            .unwrap_or(0);
        let flags = field("flags").unwrap_or_default();
        let cpus = online_cpus(roots)
            .map(|cpus| cpus.len())
            .unwrap_or_else(|_| {
                cpuinfo
                    .lines()
                    .filter(|line| line.starts_with("processor"))
                    .count()
            });
        Self {
            kernel: text(roots.proc("sys/kernel/osrelease")).trim().to_owned(),
            cpus,
            cpu_model: field("model name")
                .or_else(|| field("Model"))
                .unwrap_or_default(),
            memory_bytes: memory_kib.saturating_mul(1024),
            cgroup: Hierarchies::of(roots).layout(),
            // CPUID leaf 1, ECX bit 31, which the kernel prints as this flag.
            is_virtual: flags.split_whitespace().any(|flag| flag == "hypervisor")
                || roots.sys("hypervisor/type").exists(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::tests::fake;

    #[test]
    fn a_fake_machine_and_an_empty_one() {
        let (_dir, roots) = fake(&[
            ("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n"),
            (
                "proc/cpuinfo",
                "processor\t: 0\nmodel name\t: A CPU: fast\nflags\t\t: fpu hypervisor sse\n",
            ),
            ("proc/meminfo", "MemTotal:        2048 kB\nMemFree: 1 kB\n"),
            ("sys/devices/system/cpu/online", "0-3\n"),
            ("sys/fs/cgroup/cgroup.controllers", "cpu\n"),
        ]);
        let machine = Machine::describe(&roots);
        assert_eq!(
            machine,
            Machine {
                kernel: "6.1.0-18-amd64".into(),
                cpus: 4,
                cpu_model: "A CPU: fast".into(),
                memory_bytes: 2 << 20,
                cgroup: CgroupLayout::V2,
                is_virtual: true,
            }
        );
        let empty = Machine::describe(&Roots::at("/nonexistent"));
        assert_eq!(
            (empty.cpus, empty.memory_bytes, empty.is_virtual),
            (0, 0, false)
        );
        assert_eq!(empty.cgroup, CgroupLayout::None);
    }
}
