//! What machine this is, for reports: enough to judge a measurement by, nothing that names its
//! owner (no hostname, and of the host's own number only a digest).

use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::cgroup::{CgroupLayout, Hierarchies};
use crate::cpus::online_cpus;
use crate::error::HostError;
use crate::process_tree::TICK_NS;
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
    /// What two reports of one host have in common, and reports of two hosts have not: a digest of
    /// `/etc/machine-id`. `None` on a host without that file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// A digest of the host's number. machine-id(5): the number itself is confidential; applications
/// hash it with a key of their own.
fn host_id(roots: &Roots) -> Option<String> {
    let text = read_text(&roots.absolute(Path::new("/etc/machine-id"))).ok()??;
    let number = text.trim();
    let is_number = number.len() == 32 && number.bytes().all(|it| it.is_ascii_hexdigit());
    is_number.then(|| {
        let digest = Sha256::digest(format!("slackline, a report's host\0{number}"));
        crate::hex::encode(&digest[..16])
    })
}

impl Machine {
    /// Describes the machine. What cannot be read is left empty: a report without it is better than
    /// none.
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
            id: host_id(roots),
        }
    }

    /// Whether this describes the host below `roots`; `None` where nobody knows.
    #[must_use]
    pub fn is_here(&self, roots: &Roots) -> Option<bool> {
        Some(*self.id.as_ref()? == host_id(roots)?)
    }
}

/// What all CPUs together did since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MachineCpu {
    /// Ran user and kernel code of threads; without interrupts.
    pub used_s: f64,
    /// Had nothing to run.
    pub idle_s: f64,
    /// Had something to run, and the hypervisor ran something else.
    pub stolen_s: f64,
    /// All of it, interrupts included.
    pub all_s: f64,
}

impl MachineCpu {
    /// The first line of `/proc/stat` (proc_stat(5)):
    /// `cpu user nice system idle iowait irq softirq steal …`, in ticks.
    ///
    /// # Errors
    ///
    /// [`HostError::Absent`], [`HostError::Parse`].
    pub fn read(roots: &Roots) -> Result<Self, HostError> {
        let path = roots.proc("stat");
        let text = read_text(&path)?.ok_or_else(|| HostError::Absent {
            knob: "the machine's CPU times".to_owned(),
            path: path.clone(),
        })?;
        let line = text.lines().next().unwrap_or_default();
        let fields: Vec<f64> = line
            .split_whitespace()
            .skip(1)
            .map_while(|word| word.parse::<u64>().ok())
            .map(|ticks| (ticks * TICK_NS) as f64 / 1e9)
            .collect();
        // What a guest used is in the first two as well.
        let [user, nice, system, idle, iowait, irq, softirq, stolen, ..] = fields[..] else {
            return Err(HostError::parse(
                &path,
                "cpu",
                format!("{line:?} has fewer than 8 times"),
            ));
        };
        Ok(Self {
            used_s: user + nice + system,
            idle_s: idle + iowait,
            stolen_s: stolen,
            all_s: user + nice + system + idle + iowait + irq + softirq + stolen,
        })
    }

    /// Since an earlier reading.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            used_s: self.used_s - before.used_s,
            idle_s: self.idle_s - before.idle_s,
            stolen_s: self.stolen_s - before.stolen_s,
            all_s: self.all_s - before.all_s,
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
                id: None,
            }
        );
        let empty = Machine::describe(&Roots::at("/nonexistent"));
        assert_eq!(
            (empty.cpus, empty.memory_bytes, empty.is_virtual),
            (0, 0, false)
        );
        assert_eq!(empty.cgroup, CgroupLayout::None);
    }

    #[test]
    fn a_description_is_of_this_host_or_of_another() {
        let of = |number: &str| fake(&[("etc/machine-id", number)]);
        let (_one, here) = of("0123456789abcdef0123456789abcdef\n");
        let (_other, there) = of("fedcba9876543210fedcba9876543210\n");
        let (_odd, unknown) = of("uninitialized\n");
        let machine = Machine::describe(&here);
        assert_eq!(machine.is_here(&here), Some(true));
        assert_eq!(machine.is_here(&there), Some(false));
        assert_eq!(machine.is_here(&unknown), None);
        assert_eq!(Machine::describe(&unknown).id, None);
        // Nobody reads the number in a report.
        let written = serde_json::to_string(&machine).unwrap();
        assert!(!written.contains("0123456789abcdef"), "{written}");
        let read: Machine = serde_json::from_str(&written).unwrap();
        assert_eq!(read, machine);
    }

    #[test]
    fn cpu_times_of_a_fake_tree() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::at(dir.path());
        assert!(matches!(
            MachineCpu::read(&roots),
            Err(HostError::Absent { .. })
        ));
        std::fs::create_dir_all(roots.proc("")).unwrap();
        let stat = |text: &str| std::fs::write(roots.proc("stat"), text).unwrap();
        stat("cpu  100 200 300 4000 50 6 7 80 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n");
        let before = MachineCpu::read(&roots).unwrap();
        stat("cpu  200 200 300 4200 50 6 7 180 0 0\n");
        let passed = MachineCpu::read(&roots).unwrap().since(before);
        let wanted = MachineCpu {
            used_s: 1.0,
            idle_s: 2.0,
            stolen_s: 1.0,
            all_s: 4.0,
        };
        for (one, two) in [
            (passed.used_s, wanted.used_s),
            (passed.idle_s, wanted.idle_s),
            (passed.stolen_s, wanted.stolen_s),
            (passed.all_s, wanted.all_s),
        ] {
            assert!((one - two).abs() < 1e-9, "{passed:?}");
        }
        stat("cpu  100 200\n");
        let error = MachineCpu::read(&roots).unwrap_err().to_string();
        assert!(
            error.contains("proc/stat") && error.contains("8 times"),
            "{error}"
        );
    }
}
