//! What a boot, or a restart of a unit, resets, and the file that sets it again.

use std::path::PathBuf;

use crate::knob::Knob;
use crate::roots::Roots;

/// The length of a period of CPU time where nothing else is given, in microseconds
/// (systemd.resource-control(5), `CPUQuotaPeriodSec`; Documentation/scheduler/sched-bwc.rst).
const PERIOD_US: f64 = 100_000.0;

/// A line of a configuration file that sets a knob at boot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootSetting {
    /// The file.
    pub file: PathBuf,
    /// The section in which the line stands, where the file has sections.
    pub section: Option<&'static str>,
    /// The line.
    pub line: String,
}

/// How a knob is set to a value at boot; `None` where a boot does not reset it, as an ordinary
/// file, or where no file of the system sets it.
///
/// ```
/// use host::{Knob, Roots, boot_setting};
/// let setting = boot_setting(&Roots::default(), &Knob::Sysctl("vm.swappiness".into()), "10").unwrap();
/// assert_eq!(setting.file.to_str(), Some("/etc/sysctl.d/90-slackline.conf"));
/// assert_eq!(setting.line, "vm.swappiness = 10");
/// ```
#[must_use]
pub fn boot_setting(roots: &Roots, knob: &Knob, value: &str) -> Option<BootSetting> {
    let plain = |file: &str, line: String| {
        Some(BootSetting {
            file: PathBuf::from(file),
            section: None,
            line,
        })
    };
    match knob {
        Knob::Sysctl(name) => plain(
            "/etc/sysctl.d/90-slackline.conf",
            format!("{name} = {value}"),
        ),
        Knob::BlockQueue { device, file } => plain(
            "/etc/udev/rules.d/90-slackline.rules",
            format!(
                "ACTION==\"add|change\", SUBSYSTEM==\"block\", KERNEL==\"{device}\", ATTR{{queue/{file}}}=\"{value}\""
            ),
        ),
        Knob::Cgroup { group, file } => of_unit(roots, group, file, value),
        Knob::File(path) if path.starts_with("/sys") || path.starts_with("/proc") => plain(
            "/etc/tmpfiles.d/slackline.conf",
            format!("w {} - - - - {value}", path.display()),
        ),
        // The service that has the threads sets it: no file of the system does.
        Knob::File(_) | Knob::Sched { .. } | Knob::Egress { .. } => None,
    }
}

/// The drop-in of the unit whose group it is: systemd.resource-control(5).
fn of_unit(roots: &Roots, group: &str, file: &str, value: &str) -> Option<BootSetting> {
    let unit = group.rsplit('/').next()?;
    let section = match unit.rsplit_once('.')?.1 {
        "service" => "[Service]",
        "slice" => "[Slice]",
        _ => return None,
    };
    let limit = if value == "max" { "infinity" } else { value };
    let line = match file {
        "cpu.max" => {
            let (quota, period) = value.split_once(' ').unwrap_or((value, "100000"));
            cpu_quota(quota, period)?
        }
        "cpu.cfs_quota_us" => {
            let period = Knob::Cgroup {
                group: group.to_owned(),
                file: "cpu.cfs_period_us".to_owned(),
            };
            let period = period.read(roots).ok().flatten();
            let quota = if value == "-1" { "max" } else { value };
            cpu_quota(quota, period.as_deref().unwrap_or("100000"))?
        }
        "cpu.cfs_period_us" => format!("CPUQuotaPeriodSec={value}us"),
        "cpu.weight" => format!("CPUWeight={value}"),
        "cpuset.cpus" => format!("AllowedCPUs={value}"),
        "cpuset.mems" => format!("AllowedMemoryNodes={value}"),
        "memory.min" => format!("MemoryMin={limit}"),
        "memory.low" => format!("MemoryLow={limit}"),
        "memory.high" => format!("MemoryHigh={limit}"),
        "memory.max" => format!("MemoryMax={limit}"),
        "memory.swap.max" => format!("MemorySwapMax={limit}"),
        "io.weight" => format!(
            "IOWeight={}",
            value.strip_prefix("default ").unwrap_or(value)
        ),
        "pids.max" => format!("TasksMax={limit}"),
        _ => return None,
    };
    Some(BootSetting {
        file: PathBuf::from(format!("/etc/systemd/system/{unit}.d/slackline.conf")),
        section: Some(section),
        line,
    })
}

fn cpu_quota(quota: &str, period: &str) -> Option<String> {
    if quota == "max" {
        return Some("CPUQuota=".to_owned());
    }
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    let percent = quota / period * 100.0;
    let of_period = if period == PERIOD_US {
        String::new()
    } else {
        format!("\nCPUQuotaPeriodSec={period}us")
    };
    Some(format!("CPUQuota={percent:.0}%{of_period}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(knob: Knob, value: &str) -> Option<String> {
        boot_setting(&Roots::at("/nowhere"), &knob, value)
            .map(|it| format!("{}: {}", it.file.display(), it.line))
    }

    fn cgroup(group: &str, file: &str) -> Knob {
        Knob::Cgroup {
            group: group.into(),
            file: file.into(),
        }
    }

    #[test]
    fn each_kind_of_knob_has_its_file() {
        let unit = "/etc/systemd/system/app.service.d/slackline.conf";
        for (knob, value, expected) in [
            (
                cgroup("system.slice/app.service", "cpu.max"),
                "150000 100000",
                Some(format!("{unit}: CPUQuota=150%")),
            ),
            (
                cgroup("system.slice/app.service", "cpu.max"),
                "max 100000",
                Some(format!("{unit}: CPUQuota=")),
            ),
            (
                cgroup("system.slice/app.service", "memory.high"),
                "max",
                Some(format!("{unit}: MemoryHigh=infinity")),
            ),
            (cgroup("mine", "cpu.max"), "1 2", None),
            (
                Knob::BlockQueue { device: "vda".into(), file: "read_ahead_kb".into() },
                "64",
                Some("/etc/udev/rules.d/90-slackline.rules: ACTION==\"add|change\", SUBSYSTEM==\"block\", KERNEL==\"vda\", ATTR{queue/read_ahead_kb}=\"64\"".into()),
            ),
            (
                Knob::File("/sys/kernel/mm/ksm/run".into()),
                "1",
                Some("/etc/tmpfiles.d/slackline.conf: w /sys/kernel/mm/ksm/run - - - - 1".into()),
            ),
            (Knob::File("/etc/app.conf".into()), "1", None),
        ] {
            assert_eq!(of(knob, value), expected);
        }
    }
}
