//! What this host can do: one probe per privilege or kernel feature that some command of Slackline
//! needs, or one that is to come. Probing changes nothing.

use std::fs;
use std::path::Path;

use rustix::fs::{Access, access};
use serde::Serialize;

use crate::actuator::{Actuator as _, Frequency, PowerCap, Resctrl};
use crate::cgroup::{CgroupVersion, Hierarchies};
use crate::cpus::online_cpus;
use crate::debugfs;
use crate::hsperf;
use crate::roots::{Roots, read_text};

/// Whether a feature can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ProbeState {
    /// The feature can be used.
    Available {
        /// The form of the feature, such as `v1` or `vda: mq-deadline`.
        detail: String,
    },
    /// The feature cannot be used.
    Missing {
        /// The reason, and what to do.
        why: String,
    },
}

/// A privilege or a feature of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Probe {
    /// The name of the feature.
    pub name: &'static str,
    /// Whether the feature can be used.
    pub state: ProbeState,
    /// The commands that need the feature.
    pub needed_for: &'static str,
}

impl Probe {
    /// Whether it can be used.
    #[must_use]
    pub fn is_available(&self) -> bool {
        matches!(self.state, ProbeState::Available { .. })
    }
}

type Found = Result<String, String>;

/// Probes everything.
#[must_use]
pub fn probe(roots: &Roots) -> Vec<Probe> {
    [("privilege", "writing any knob", privilege(roots))]
        .into_iter()
        .chain(groups(roots))
        .chain(knobs(roots))
        .chain(interfaces(roots))
        .map(|(name, needed_for, found)| {
            let state = match found {
                Ok(detail) => ProbeState::Available { detail },
                Err(why) => ProbeState::Missing { why },
            };
            Probe {
                name,
                state,
                needed_for,
            }
        })
        .collect()
}

/// Controllers of groups of processes.
fn groups(roots: &Roots) -> [(&'static str, &'static str, Found); 5] {
    [
        (
            "cgroup cpu controller",
            "tune: quotas, cgroup parameters, throttling metrics; throttle",
            controller(roots, "cpu"),
        ),
        (
            "cgroup cpuset controller",
            "isolate: cores",
            controller(roots, "cpuset"),
        ),
        (
            "cpu.idle",
            "isolate: best-effort work runs when nobody else wants the CPU",
            group_file(roots, "cpu", "cpu.idle", (5, 15)),
        ),
        (
            "cgroup freezer",
            "isolate: switches best-effort work off; without it the smallest quota is used",
            freezer(roots),
        ),
        (
            "cgroup memory controller",
            "tune: cgroup parameters of memory; isolate: memory limits",
            controller(roots, "memory"),
        ),
    ]
}

/// Other things that can be set.
fn knobs(roots: &Roots) -> [(&'static str, &'static str, Found); 7] {
    [
        (
            "sysctls",
            "tune: sysctl parameters",
            writable(&roots.proc("sys/vm/swappiness"), "sysctls"),
        ),
        (
            "block queues",
            "tune: block-queue parameters",
            block_queues(roots),
        ),
        (
            "scheduler debugfs",
            "tune: base_slice_ns",
            scheduler_debugfs(roots),
        ),
        (
            "resctrl",
            "isolate: LLC ways and memory bandwidth",
            resctrl(roots),
        ),
        (
            "cgroup v2 hierarchy",
            "isolate: a limit for what best-effort work sends (policy.link_device)",
            unified(roots),
        ),
        ("powercap", "isolate: power caps", powercap(roots)),
        ("cpufreq", "isolate: frequency caps", cpufreq(roots)),
    ]
}

/// What is read of the host, and by what.
fn interfaces(roots: &Roots) -> [(&'static str, &'static str, Found); 5] {
    [
        ("perf events", "relayout: profiles", perf_events(roots)),
        (
            "scheduler tracepoints",
            "throttle: watch, advise, apply; agent; relayout: what a unit of work is",
            tracepoints(roots),
        ),
        (
            "packet sockets",
            "latency read off the wire: throttle watch --port, tune, isolate",
            packet_sockets(roots),
        ),
        ("io_uring", "serve-block, serve-cache", io_uring(roots)),
        (
            "JVM performance data",
            "tune: GC and allocation metrics",
            hsperf(roots),
        ),
    ]
}

fn text(path: &Path) -> Option<String> {
    read_text(path)
        .ok()
        .flatten()
        .map(|text| text.trim().to_owned())
}

fn is_writable(path: &Path) -> bool {
    // For root, access(2) says yes for a file of mode 0444 too; the bits matter, since kernel files
    // ask by them.
    access(path, Access::WRITE_OK).is_ok()
        && fs::metadata(path).is_ok_and(|metadata| {
            use std::os::unix::fs::PermissionsExt;
            metadata.permissions().mode() & 0o222 != 0
        })
}

fn writable(path: &Path, what: &str) -> Found {
    if !path.exists() {
        return Err(format!("{} does not exist", path.display()));
    }
    if is_writable(path) {
        Ok("writable".to_owned())
    } else {
        Err(format!(
            "{what} cannot be written: run as root, outside of an unprivileged container"
        ))
    }
}

/// Bit numbers: include/uapi/linux/capability.h.
const CAPABILITIES: [(u32, &str); 4] = [
    (5, "CAP_KILL"),
    (12, "CAP_NET_ADMIN"),
    (19, "CAP_SYS_PTRACE"),
    (CAP_SYS_ADMIN, "CAP_SYS_ADMIN"),
];
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_NET_RAW: u32 = 13;

/// A bit for each capability that this process has.
fn capabilities(roots: &Roots) -> Result<u64, String> {
    let status =
        text(&roots.proc("self/status")).ok_or("/proc/self/status cannot be read: mount /proc")?;
    let mask = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    Ok(mask.ok_or("/proc/self/status has no CapEff line")?)
}

fn privilege(roots: &Roots) -> Found {
    let mask = capabilities(roots)?;
    let missing: Vec<&str> = CAPABILITIES
        .iter()
        .filter(|(bit, _)| mask & (1 << bit) == 0)
        .map(|(_, name)| *name)
        .collect();
    if missing.is_empty() {
        Ok("every capability that is needed".to_owned())
    } else {
        Err(format!("without {}: run as root", missing.join(", ")))
    }
}

fn controller(roots: &Roots, name: &str) -> Found {
    let hierarchies = Hierarchies::of(roots);
    let (version, directory) = hierarchies
        .require(name)
        .map_err(|error| error.to_string())?;
    // A hierarchy's root has mode 0555 and root makes groups in it all the same; only a read-only
    // mount forbids it.
    if access(directory, Access::WRITE_OK).is_err() {
        return Err(format!(
            "{} cannot be written: run as root, with cgroups mounted read-write",
            directory.display()
        ));
    }
    Ok(format!(
        "{} at {}",
        if version == CgroupVersion::V1 {
            "v1"
        } else {
            "v2"
        },
        directory.display()
    ))
}

/// A file of a controller that the root group does not have: looked for in the first group below it
/// that has it.
fn group_file(roots: &Roots, controller: &str, file: &str, since: (u32, u32)) -> Found {
    let hierarchies = Hierarchies::of(roots);
    let (_, directory) = hierarchies
        .require(controller)
        .map_err(|error| error.to_string())?;
    has_group_with(roots, directory, file, since)
}

/// Whether the groups in `directory` have a file that Linux has `since` that version. Where there
/// is no group yet, the kernel's version decides.
fn has_group_with(roots: &Roots, directory: &Path, file: &str, since: (u32, u32)) -> Found {
    let groups: Vec<_> = fs::read_dir(directory)
        .map_err(|error| format!("{}: {error}", directory.display()))?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    let (major, minor) = since;
    if groups.iter().any(|group| group.join(file).is_file()) {
        Ok(format!("in the groups of {}", directory.display()))
    } else if groups.is_empty() && kernel_version(roots).is_some_and(|version| version >= since) {
        Ok(format!(
            "Linux {major}.{minor} or later ({} has no groups yet)",
            directory.display()
        ))
    } else {
        Err(format!(
            "no group in {} has {file}: it needs Linux {major}.{minor}",
            directory.display()
        ))
    }
}

/// The kernel's version, e.g. (6, 18).
fn kernel_version(roots: &Roots) -> Option<(u32, u32)> {
    let release = read_text(&roots.proc("sys/kernel/osrelease")).ok()??;
    let mut numbers = release.trim().split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next()?.parse().ok();
    Some((next()?, next()?))
}

fn freezer(roots: &Roots) -> Found {
    let hierarchies = Hierarchies::of(roots);
    match (hierarchies.v1("freezer"), hierarchies.v2()) {
        (Some(_), _) => controller(roots, "freezer"),
        (None, Some(directory)) => has_group_with(roots, directory, "cgroup.freeze", (5, 2)),
        (None, None) => Err("no cgroup hierarchy has a freezer".to_owned()),
    }
}

fn block_queues(roots: &Roots) -> Found {
    let mut devices: Vec<String> = fs::read_dir(roots.sys("block"))
        .map_err(|error| format!("/sys/block: {error}"))?
        .filter_map(Result::ok)
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        // Loop and RAM devices are no disks that a service waits for.
        .filter(|name| {
            !["loop", "ram", "zram"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
        })
        .filter(|name| is_writable(&roots.sys(format!("block/{name}/queue/scheduler"))))
        .collect();
    devices.sort();
    if devices.is_empty() {
        Err("no block device has a writable queue".to_owned())
    } else {
        Ok(devices.join(", "))
    }
}

/// As a knob gets at it: where debugfs is mounted, else through a mount of its own.
fn scheduler_debugfs(roots: &Roots) -> Found {
    let path = roots.sys("kernel/debug/sched/base_slice_ns");
    let own = debugfs::reach(roots, &path);
    let at = own.as_ref().unwrap_or(&path);
    if debugfs::is_locked_down(roots, &path) {
        return Err(
            "the kernel's lockdown closes debugfs, to root as well (kernel_lockdown(7))".to_owned(),
        );
    }
    let directory = at.parent().is_some_and(Path::exists);
    match (directory, at.exists(), own.is_some()) {
        (true, true, true) => {
            writable(at, "it").map(|_| "debugfs is mounted for each command alone".to_owned())
        }
        (true, true, false) => writable(at, "it"),
        (true, false, _) => Err("the kernel is older than 6.6".to_owned()),
        (false, ..) => Err(
            "debugfs is not mounted and cannot be (run as root), or the kernel lacks \
                    CONFIG_SCHED_DEBUG"
                .to_owned(),
        ),
    }
}

fn unified(roots: &Roots) -> Found {
    let hierarchies = Hierarchies::of(roots);
    let mounted = |path: &Path| format!("mounted at {}", path.display());
    hierarchies
        .v2()
        .map(mounted)
        .ok_or_else(|| "not mounted: mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified".to_owned())
}

/// As [`Resctrl`] finds it.
fn resctrl(roots: &Roots) -> Found {
    let name = String::new();
    Resctrl { name }.probe(roots)
}

/// As [`PowerCap`] finds it in the first package.
fn powercap(roots: &Roots) -> Found {
    let first = PowerCap::zones(roots).into_iter().next();
    let zone = first.unwrap_or_else(|| "intel-rapl:0".to_owned());
    PowerCap { zone }.probe(roots)
}

/// As [`Frequency`] finds it.
fn cpufreq(roots: &Roots) -> Found {
    let cpus = online_cpus(roots).unwrap_or_default();
    Frequency { cpus }.probe(roots)
}

/// What the absence of a file in `/proc` says of the kernel: nothing, where `/proc` itself is
/// hidden, as in some containers.
fn lacks(roots: &Roots, option: &str) -> String {
    match text(&roots.proc("sys/kernel/osrelease")) {
        Some(_) => format!("the kernel lacks {option}"),
        None => "/proc/sys/kernel cannot be read, so it is not known: mount /proc".to_owned(),
    }
}

/// `kernel.perf_event_paranoid`, where it is at most `most` or this process need not mind it
/// (perf_event_open(2)).
fn paranoid(roots: &Roots, most: i64) -> Found {
    let Some(paranoid) = text(&roots.proc("sys/kernel/perf_event_paranoid")) else {
        return Err(lacks(roots, "CONFIG_PERF_EVENTS"));
    };
    let may = capabilities(roots)? & (1 << CAP_PERFMON | 1 << CAP_SYS_ADMIN) != 0;
    if may || paranoid.parse().is_ok_and(|paranoid: i64| paranoid <= most) {
        Ok(paranoid)
    } else {
        Err(format!(
            "perf_event_paranoid = {paranoid}: run as root or with CAP_PERFMON, or set it to {most}"
        ))
    }
}

fn perf_events(roots: &Roots) -> Found {
    // Whole CPUs, all processes.
    let paranoid = paranoid(roots, 0)?;
    let hardware = roots.sys("bus/event_source/devices/cpu").exists();
    let counters = if hardware {
        "hardware counters"
    } else {
        "software clocks only, no hardware counters"
    };
    Ok(format!("{counters}, perf_event_paranoid = {paranoid}"))
}

/// As `perf-events` gets at them: through tracefs where it is mounted, else through a mount of its
/// own.
fn tracepoints(roots: &Roots) -> Found {
    paranoid(roots, -1)?;
    // Documentation/admin-guide/LSM, lockdown: the mode in force is in brackets.
    if text(&roots.sys("kernel/security/lockdown"))
        .is_some_and(|modes| modes.contains("[confidentiality]"))
    {
        return Err("lockdown=confidentiality forbids tracefs".to_owned());
    }
    let mounted = ["kernel/tracing", "kernel/debug/tracing"].map(|path| roots.sys(path));
    let format = "events/sched/sched_switch/format";
    if let Some(mounted) = mounted
        .iter()
        .find(|path| text(&path.join(format)).is_some())
    {
        return Ok(format!("at {}", mounted.display()));
    }
    let has_file_system =
        text(&roots.proc("filesystems")).is_some_and(|text| text.contains("tracefs"));
    if !has_file_system {
        return Err("the kernel lacks tracefs (CONFIG_FTRACE)".to_owned());
    }
    if capabilities(roots)? & 1 << CAP_SYS_ADMIN == 0 {
        return Err("tracefs cannot be read: run as root, or with CAP_SYS_ADMIN".to_owned());
    }
    Ok("tracefs is mounted for each command alone".to_owned())
}

/// As `wire-latency` reads packets: AF_PACKET is there, and may be used (packet(7)).
fn packet_sockets(roots: &Roots) -> Found {
    // The kernel lists its packet sockets there, also when there is none.
    if text(&roots.proc("self/net/packet")).is_none() {
        return Err(lacks(roots, "CONFIG_PACKET"));
    }
    let mask = capabilities(roots)?;
    if mask & 1 << CAP_NET_RAW == 0 {
        return Err("AF_PACKET is not permitted: run as root, or with CAP_NET_RAW".to_owned());
    }
    Ok(match mask & 1 << CAP_SYS_ADMIN {
        0 => "in this network namespace; others need CAP_SYS_ADMIN".to_owned(),
        _ => "in every network namespace".to_owned(),
    })
}

fn io_uring(roots: &Roots) -> Found {
    // Documentation/admin-guide/sysctl/kernel.rst: 0 allowed, 1 for a group only, 2 disabled; since
    // 6.6.
    match text(&roots.proc("sys/kernel/io_uring_disabled")).as_deref() {
        Some("0") => Ok("enabled".to_owned()),
        Some("1") => Ok("for privileged processes only".to_owned()),
        Some(_) => Err("disabled: sysctl kernel.io_uring_disabled=0".to_owned()),
        None => {
            let release = text(&roots.proc("sys/kernel/osrelease")).unwrap_or_default();
            let mut parts = release
                .split(['.', '-'])
                .map_while(|part| part.parse::<u32>().ok());
            match (parts.next(), parts.next()) {
                // The switch came with 6.6, io_uring itself with 5.1.
                (Some(major), Some(minor))
                    if (5, 1) <= (major, minor) && (major, minor) < (6, 6) =>
                {
                    Ok(format!("kernel {release}"))
                }
                _ => Err(lacks(roots, "CONFIG_IO_URING")),
            }
        }
    }
}

fn hsperf(roots: &Roots) -> Found {
    let tmp = roots.absolute(Path::new("/tmp"));
    let count = hsperf::directories(&tmp)
        .map_err(|error| format!("{}: {error}", tmp.display()))?
        .filter_map(|directory| fs::read_dir(directory).ok())
        .map(Iterator::count)
        .sum::<usize>();
    Ok(format!("JVMs now: {count}"))
}

#[cfg(test)]
mod tests;
