//! Actuators on fake trees that refuse and round as the kernel does.

mod devices;
mod hardware;

use std::fs;
use std::io;
use std::path::Path;

use super::*;
use crate::cgroup::tests::fake;
use crate::journal::RestoreOutcome;
use crate::roots::fake_kernel;

fn refused(errno: i32) -> io::Result<Option<String>> {
    Err(io::Error::from_raw_os_error(errno))
}

fn text_of(path: &Path) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// What the kernel makes of a write: a refusal, another text, or the text itself.
fn kernel(path: &Path, value: &str) -> io::Result<Option<String>> {
    let file = path.file_name().unwrap().to_string_lossy().into_owned();
    let beside = |name: &str| path.with_file_name(name);
    match file.as_str() {
        // sched_group_set_idle: turning it off gives the default weight; shares cannot be set
        // meanwhile.
        "cpu.idle" if value == "0" && text_of(path) == "1" => {
            fs::write(beside("cpu.shares"), "1024\n")?;
            Ok(None)
        }
        "cpu.idle" if value == "1" => {
            fs::write(beside("cpu.shares"), "3\n")?;
            Ok(None)
        }
        "cpu.shares" if text_of(&beside("cpu.idle")) == "1" => refused(libc::EINVAL),
        // tg_set_cfs_bandwidth
        "cpu.cfs_quota_us" => {
            let quota: i64 = value.parse().unwrap_or(0);
            let burst: i64 = text_of(&beside("cpu.cfs_burst_us")).parse().unwrap_or(0);
            match quota {
                -1 => Ok(None),
                _ if quota < 1000 || burst > quota => refused(libc::EINVAL),
                _ => Ok(None),
            }
        }
        "cpu.cfs_burst_us" => {
            let quota: i64 = text_of(&beside("cpu.cfs_quota_us")).parse().unwrap_or(-1);
            let burst: i64 = value.parse().unwrap_or(0);
            if quota > 0 && burst > quota {
                refused(libc::EINVAL)
            } else {
                Ok(None)
            }
        }
        "cpu.max" | "cpu.max.burst" => {
            let (quota, burst) = if file == "cpu.max" {
                (value.to_owned(), text_of(&beside("cpu.max.burst")))
            } else {
                (text_of(&beside("cpu.max")), value.to_owned())
            };
            let quota = quota.split(' ').next().unwrap_or_default().parse::<i64>();
            match (quota, burst.parse::<i64>()) {
                (Ok(quota), Ok(burst)) if burst > quota => refused(libc::EINVAL),
                _ => Ok(None),
            }
        }
        "cpuset.cpus" => kernel_cpuset(path, value),
        "io.max" | "io.cost.qos" => Ok(Some(kernel_device(path, value))),
        "freezer.state" if value == "FROZEN" => Ok(Some("FREEZING".to_owned())),
        // blk-throttle.c: a line a device; 0 removes it.
        "blkio.throttle.write_bps_device" => {
            let (device, rate) = value.split_once(' ').unwrap_or((value, ""));
            if rate.is_empty() {
                return refused(libc::EINVAL);
            }
            let mut lines: Vec<String> = text_of(path)
                .lines()
                .filter(|line| !line.starts_with(device))
                .map(str::to_owned)
                .collect();
            if rate != "0" {
                lines.push(value.to_owned());
            }
            Ok(Some(lines.join("\n")))
        }
        "schemata" => kernel_schemata(path, value),
        "constraint_0_power_limit_uw" if text_of(&beside("enabled")) == "0" => {
            refused(libc::EACCES)
        }
        "constraint_0_power_limit_uw" => {
            // Eighths of a watt.
            let uw: u64 = value.parse().unwrap_or(0);
            Ok(Some((uw / 125_000 * 125_000).to_string()))
        }
        "scaling_max_freq" => {
            // A driver with steps of 100 MHz.
            let khz: u64 = value.parse().unwrap_or(0);
            Ok(Some((khz / 100_000 * 100_000).to_string()))
        }
        _ => Ok(None),
    }
}

/// A line a device: blk-throttle.c removes one without a limit, blk-iocost.c keeps one that is off.
fn kernel_device(path: &Path, value: &str) -> String {
    let (device, rest) = value.split_once(' ').unwrap_or((value, ""));
    let text = text_of(path);
    let known = text.lines().find_map(|line| line.strip_prefix(device));
    let none = match path.ends_with("io.max") {
        true => "rbps=max wbps=max riops=max wiops=max",
        false => "enable=0 ctrl=auto rpct=0.00 wpct=0.00",
    };
    let words = known.unwrap_or(none).split_whitespace().map(|word| {
        let name = word.split('=').next().unwrap_or_default();
        let is_new = |new: &&str| new.split('=').next() == Some(name);
        rest.split_whitespace().find(is_new).unwrap_or(word)
    });
    let words = words.collect::<Vec<_>>().join(" ");
    let mut lines: Vec<String> = text
        .lines()
        .filter(|line| !line.starts_with(device))
        .map(str::to_owned)
        .collect();
    if words != "rbps=max wbps=max riops=max wiops=max" {
        lines.push(format!("{device} {words}"));
    }
    lines.join("\n")
}

/// validate_change_legacy: below the parent, above the children.
fn kernel_cpuset(path: &Path, value: &str) -> io::Result<Option<String>> {
    let set = |path: &Path| crate::parse_cpu_list(&text_of(path)).unwrap_or_default();
    let wanted = crate::parse_cpu_list(value).unwrap_or_default();
    let parent = path.parent().unwrap().parent().unwrap().join("cpuset.cpus");
    if parent.exists() && !wanted.iter().all(|cpu| set(&parent).contains(cpu)) {
        return refused(libc::EACCES);
    }
    let children = fs::read_dir(path.parent().unwrap())?.flatten();
    for child in children.filter(|child| child.path().is_dir()) {
        if !set(&child.path().join("cpuset.cpus"))
            .iter()
            .all(|cpu| wanted.contains(cpu))
        {
            return refused(libc::EBUSY);
        }
    }
    Ok(None)
}

/// cbm_validate: contiguous, within the mask.
fn kernel_schemata(path: &Path, value: &str) -> io::Result<Option<String>> {
    let (resource, rest) = value.split_once(':').unwrap_or((value, ""));
    if resource == "L3" {
        for (_, mask) in rest.split(';').filter_map(|pair| pair.split_once('=')) {
            let mask = u64::from_str_radix(mask, 16).unwrap_or(0);
            let shifted = mask >> mask.trailing_zeros().min(63);
            if mask == 0 || mask > 0xfffff || shifted & (shifted + 1) != 0 {
                return refused(libc::EINVAL);
            }
        }
    }
    let lines = text_of(path);
    let kept = lines.lines().map(
        |line| match line.trim().starts_with(&format!("{resource}:")) {
            true => format!("    {value}"),
            false => line.to_owned(),
        },
    );
    Ok(Some(kept.collect::<Vec<_>>().join("\n")))
}

const V1: &[(&str, &str)] = &[
    ("sys/fs/cgroup/cpu/batch/cpu.idle", "0\n"),
    ("sys/fs/cgroup/cpu/batch/cpu.shares", "2048\n"),
    ("sys/fs/cgroup/cpu/batch/cpu.cfs_quota_us", "-1\n"),
    ("sys/fs/cgroup/cpu/batch/cpu.cfs_period_us", "100000\n"),
    ("sys/fs/cgroup/cpu/batch/cpu.cfs_burst_us", "0\n"),
    ("sys/fs/cgroup/cpuset/cpuset.cpus", "0-7\n"),
    ("sys/fs/cgroup/cpuset/batch/cpuset.cpus", "0-5\n"),
    ("sys/fs/cgroup/cpuset/batch/a/cpuset.cpus", "2-5\n"),
    ("sys/fs/cgroup/freezer/batch/freezer.state", "THAWED\n"),
    (
        "sys/fs/cgroup/memory/batch/memory.soft_limit_in_bytes",
        "9223372036854771712\n",
    ),
    (
        "sys/fs/cgroup/blkio/batch/blkio.throttle.write_bps_device",
        "",
    ),
];

fn group() -> String {
    "batch".to_owned()
}

/// A fake v1 host, its journal, and the kernel's rules until the guard goes.
fn v1() -> (tempfile::TempDir, Roots, Journal, fake_kernel::Guard) {
    let (dir, roots) = fake(V1);
    let journal = Journal::open(&roots.root.join("state")).unwrap();
    (dir, roots, journal, fake_kernel::set(kernel))
}

#[test]
fn idle_loses_the_weight_and_the_journal_brings_it_back() {
    let (_dir, roots, mut journal, _guard) = v1();
    let idle = CpuIdle { group: group() };
    assert_eq!(idle.probe(&roots).unwrap(), "v1");
    idle.apply(&mut journal, &roots, &Wanted::On(true)).unwrap();
    assert!(idle.verify(&roots, &Wanted::On(true)).unwrap());
    let weight = CpuWeight { group: group() };
    // Meanwhile the kernel refuses a weight, and that is said.
    let error = weight
        .apply(&mut journal, &roots, &Wanted::Weight(50))
        .unwrap_err();
    assert_eq!(error.errno(), Some(libc::EINVAL));
    let report = idle.restore(&mut journal, &roots).unwrap();
    assert!(
        report
            .items
            .iter()
            .all(|item| item.outcome == RestoreOutcome::Restored),
        "{report:?}"
    );
    assert_eq!(
        (idle.read(&roots).unwrap(), weight.read(&roots).unwrap()),
        ("0".into(), "2048".into())
    );
    assert!(journal.is_empty());
}

#[test]
fn idle_that_goes_off_and_on_again_still_knows_the_first_weight() {
    let (_dir, roots, mut journal, _guard) = v1();
    let idle = CpuIdle { group: group() };
    for on in [true, false, true] {
        idle.apply(&mut journal, &roots, &Wanted::On(on)).unwrap();
    }
    assert!(journal.restore(&roots, false).unwrap().is_complete());
    assert_eq!(CpuWeight { group: group() }.read(&roots).unwrap(), "2048");
}

#[test]
fn a_quota_is_one_write_and_neither_below_the_least_nor_below_the_burst() {
    let (_dir, roots, mut journal, _guard) = v1();
    let quota = CpuQuotaLimit { group: group() };
    let of = |cores: f64| Wanted::Quota(quota.of_cores(&roots, Some(cores)).unwrap());
    assert_eq!(quota.writes(&roots, &of(0.5)).unwrap().len(), 1);
    quota.apply(&mut journal, &roots, &of(0.5)).unwrap();
    assert_eq!(quota.read(&roots).unwrap(), "50000 100000");
    // Almost nothing is the kernel's least.
    quota.apply(&mut journal, &roots, &of(0.0001)).unwrap();
    assert_eq!(quota.read(&roots).unwrap(), "1000 100000");
    let raw = |quota_us, burst_us| {
        Wanted::Quota(CpuQuota {
            period_us: 100_000,
            quota_us: Some(quota_us),
            burst_us,
        })
    };
    for (wanted, why) in [
        (raw(500, None), "1000 µs"),
        (raw(5000, Some(9000)), "burst"),
    ] {
        let error = quota
            .apply(&mut journal, &roots, &wanted)
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{error}");
    }
    assert!(journal.restore(&roots, false).unwrap().is_complete());
    assert_eq!(quota.read(&roots).unwrap(), "max 100000");
}

/// A self-test writes a quota that could be in force on this host.
#[test]
fn the_step_of_a_quota_stays_within_the_cpus_of_the_host() {
    let (_dir, roots, _journal, _guard) = v1();
    fs::create_dir_all(roots.sys("devices/system/cpu")).unwrap();
    fs::write(roots.sys("devices/system/cpu/online"), "0-1\n").unwrap();
    let quota = CpuQuotaLimit { group: group() };
    let step = || quota.neighbour(&roots).unwrap().to_string();
    assert_eq!(step(), "1.99 cores");
    let file = roots.sys("fs/cgroup/cpu/batch/cpu.cfs_quota_us");
    fs::write(file, "50000\n").unwrap();
    assert_eq!(step(), "0.51 cores");
}

/// The kernel of this test refuses a burst above the quota, whichever of the two is written.
#[test]
fn a_burst_is_never_above_the_quota_and_comes_back_with_it() {
    let (_dir, roots, mut journal, _guard) = v1();
    let quota = CpuQuotaLimit { group: group() };
    let files = ["cpu.cfs_quota_us", "cpu.cfs_burst_us"]
        .map(|file| roots.sys("fs/cgroup/cpu/batch").join(file));
    for (file, text) in files.iter().zip(["50000\n", "40000\n"]) {
        fs::write(file, text).unwrap();
    }
    let read = || files.clone().map(|file| text_of(&file));
    for (cores, wanted) in [
        // The burst fits: the quota alone is written.
        (Some(0.45), ["45000", "40000"]),
        // Lowered below the burst: first the burst, then the quota.
        (Some(0.2), ["20000", "20000"]),
        (Some(0.0), ["1000", "1000"]),
        // Raised: first the quota, then as much of the burst as there was and as fits.
        (Some(0.3), ["30000", "30000"]),
        (Some(0.9), ["90000", "40000"]),
        (Some(0.1), ["10000", "10000"]),
        (None, ["-1", "40000"]),
        (Some(0.1), ["10000", "10000"]),
    ] {
        let wanted_quota = Wanted::Quota(quota.of_cores(&roots, cores).unwrap());
        quota.apply(&mut journal, &roots, &wanted_quota).unwrap();
        assert_eq!(read(), wanted, "{cores:?}");
        assert!(quota.verify(&roots, &wanted_quota).unwrap());
    }
    // A burst that the caller names is the one that counts.
    let named = CpuQuota {
        quota_us: Some(30_000),
        burst_us: Some(5_000),
        period_us: 100_000,
    };
    quota
        .apply(&mut journal, &roots, &Wanted::Quota(named))
        .unwrap();
    assert_eq!(read(), ["30000", "5000"]);
    let report = journal.restore(&roots, false).unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(read(), ["50000", "40000"]);
}

#[test]
fn on_v2_the_burst_follows_the_quota_too() {
    let (_dir, roots) = fake(&[
        ("sys/fs/cgroup/cgroup.controllers", "cpu\n"),
        ("sys/fs/cgroup/batch/cpu.max", "50000 100000\n"),
        ("sys/fs/cgroup/batch/cpu.max.burst", "40000\n"),
    ]);
    let _guard = fake_kernel::set(kernel);
    let mut journal = Journal::open(&roots.root.join("state")).unwrap();
    let quota = CpuQuotaLimit { group: group() };
    let read = || {
        ["cpu.max", "cpu.max.burst"].map(|file| text_of(&roots.sys("fs/cgroup/batch").join(file)))
    };
    for (cores, wanted) in [
        (0.2, ["20000 100000", "20000"]),
        (0.6, ["60000 100000", "40000"]),
    ] {
        let wanted_quota = Wanted::Quota(quota.of_cores(&roots, Some(cores)).unwrap());
        quota.apply(&mut journal, &roots, &wanted_quota).unwrap();
        assert_eq!(read(), wanted, "{cores}");
    }
    assert!(journal.restore(&roots, false).unwrap().is_complete());
    assert_eq!(read(), ["50000 100000", "40000"]);
}

#[test]
fn a_cpuset_shrinks_from_below_moves_and_grows_from_above() {
    let (_dir, roots, mut journal, _guard) = v1();
    let cpuset = Cpuset { group: group() };
    let child = roots.sys("fs/cgroup/cpuset/batch/a/cpuset.cpus");
    let mut put = |cpus: &[usize]| {
        let wanted = Wanted::Cpus(cpus.iter().copied().collect());
        cpuset.apply(&mut journal, &roots, &wanted).unwrap();
        assert!(cpuset.verify(&roots, &wanted).unwrap());
        (cpuset.read(&roots).unwrap(), text_of(&child))
    };
    assert_eq!(put(&[4, 5]), ("4-5".into(), "4-5".into()));
    assert_eq!(put(&[0, 1]), ("0-1".into(), "0-1".into()));
    assert_eq!(put(&[1, 2, 3, 4]), ("1-4".into(), "2-4".into()));
    assert_eq!(put(&[0, 1, 2, 3, 4, 5]), ("0-5".into(), "2-5".into()));
    assert_eq!(put(&[5]), ("5".into(), "5".into()));
    assert!(cpuset.restore(&mut journal, &roots).unwrap().is_complete());
    assert_eq!(
        (cpuset.read(&roots).unwrap(), text_of(&child)),
        ("0-5".into(), "2-5".into())
    );
    let none = Wanted::Cpus(BTreeSet::new());
    assert!(matches!(
        cpuset.writes(&roots, &none),
        Err(HostError::Unfit { .. })
    ));
}

#[test]
fn a_group_that_is_still_freezing_counts_as_frozen_and_thaws() {
    let (_dir, roots, mut journal, _guard) = v1();
    let freezer = Freezer { group: group() };
    freezer
        .apply(&mut journal, &roots, &Wanted::On(true))
        .unwrap();
    assert!(freezer.verify(&roots, &Wanted::On(true)).unwrap());
    // Its last thread has stopped meanwhile; that is nobody else's doing.
    fs::write(
        roots.sys("fs/cgroup/freezer/batch/freezer.state"),
        "FROZEN\n",
    )
    .unwrap();
    freezer
        .apply(&mut journal, &roots, &Wanted::On(false))
        .unwrap();
    freezer
        .apply(&mut journal, &roots, &Wanted::On(true))
        .unwrap();
    fs::write(
        roots.sys("fs/cgroup/freezer/batch/freezer.state"),
        "FROZEN\n",
    )
    .unwrap();
    let report = journal.restore(&roots, false).unwrap();
    assert_eq!(report.changed_by_others().count(), 0, "{report:?}");
    assert_eq!(freezer.read(&roots).unwrap(), "THAWED");
}

#[test]
fn a_rate_is_removed_and_other_devices_keep_theirs() {
    let (_dir, roots, mut journal, _guard) = v1();
    let file = roots.sys("fs/cgroup/blkio/batch/blkio.throttle.write_bps_device");
    fs::write(&file, "8:0 1000\n").unwrap();
    let io = IoMax {
        group: group(),
        device: "254:0".into(),
        direction: IoDirection::Write,
    };
    let wanted = Wanted::Bytes(Some(1 << 20));
    io.apply(&mut journal, &roots, &wanted).unwrap();
    assert!(io.verify(&roots, &wanted).unwrap());
    assert_eq!(text_of(&file), "8:0 1000\n254:0 1048576");
    assert!(io.restore(&mut journal, &roots).unwrap().is_complete());
    assert_eq!(text_of(&file), "8:0 1000");
    assert!(matches!(
        io.writes(&roots, &Wanted::Bytes(Some(0))),
        Err(HostError::Unfit { .. })
    ));
}

#[test]
fn a_foreign_writer_is_yielded_to() {
    let (_dir, roots, mut journal, _guard) = v1();
    let quota = CpuQuotaLimit { group: group() };
    let wanted = Wanted::Quota(quota.of_cores(&roots, Some(0.5)).unwrap());
    quota.apply(&mut journal, &roots, &wanted).unwrap();
    // kubelet, systemd or a person.
    fs::write(roots.sys("fs/cgroup/cpu/batch/cpu.cfs_quota_us"), "70000\n").unwrap();
    let error = quota.apply(&mut journal, &roots, &wanted).unwrap_err();
    assert!(matches!(error, HostError::Disturbed { .. }), "{error}");
    let report = quota.restore(&mut journal, &roots).unwrap();
    assert_eq!(report.changed_by_others().count(), 1);
    assert_eq!(quota.read(&roots).unwrap(), "70000 100000");
}

#[test]
fn what_a_host_lacks_is_named_by_every_actuator() {
    let (_dir, roots) = fake(&[("sys/fs/cgroup/cpu/batch/cpu.shares", "1024\n")]);
    let all: Vec<Box<dyn Actuator>> = vec![
        Box::new(CpuIdle { group: group() }),
        Box::new(CpuQuotaLimit { group: group() }),
        Box::new(Cpuset { group: group() }),
        Box::new(Uclamp {
            group: group(),
            bound: UclampBound::Max,
        }),
        Box::new(Freezer { group: group() }),
        Box::new(MemoryHigh { group: group() }),
        Box::new(MemoryLow { group: group() }),
        Box::new(IoMax {
            group: group(),
            device: "254:0".into(),
            direction: IoDirection::Read,
        }),
        Box::new(IoWeight { group: group() }),
        Box::new(IoCost {
            device: "254:0".into(),
        }),
        Box::new(Resctrl { name: "be".into() }),
        Box::new(Frequency { cpus: vec![0] }),
        Box::new(EnergyPreference { cpus: vec![0] }),
        Box::new(PowerCap {
            zone: "intel-rapl:0".into(),
        }),
    ];
    for actuator in all {
        let why = actuator.probe(&roots).unwrap_err();
        assert!(!why.is_empty(), "{}", actuator.name());
        assert!(actuator.read(&roots).is_err(), "{}", actuator.name());
    }
}

#[test]
fn cpus_are_listed_as_the_kernel_does() {
    let list = |cpus: &[usize]| cpu_list(&cpus.iter().copied().collect());
    assert_eq!(list(&[]), "");
    assert_eq!(list(&[3]), "3");
    assert_eq!(list(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
}
