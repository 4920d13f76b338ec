//! The actuators of this host: all of a group and of the machine, and the one behind a setting.

use host::{
    Actuator, CpuIdle, CpuQuotaLimit, CpuWeight, Cpuset, EnergyPreference, Freezer, IoCost,
    IoDirection, IoMax, IoWeight, MemoryHigh, MemoryLow, PowerCap, Resctrl, Roots, Uclamp,
    UclampBound, Wanted,
};
use isolation::ActuatorSetting;

/// Every actuator of a group.
pub(crate) fn of_group(group: &str, disk: Option<&str>) -> Vec<Box<dyn Actuator>> {
    let group = || group.to_owned();
    let mut all: Vec<Box<dyn Actuator>> = vec![
        Box::new(CpuIdle { group: group() }),
        Box::new(CpuWeight { group: group() }),
        Box::new(CpuQuotaLimit { group: group() }),
        Box::new(Cpuset { group: group() }),
        Box::new(uclamp(&group(), UclampBound::Min)),
        Box::new(uclamp(&group(), UclampBound::Max)),
        Box::new(Freezer { group: group() }),
        Box::new(MemoryHigh { group: group() }),
        Box::new(MemoryLow { group: group() }),
        Box::new(IoWeight { group: group() }),
    ];
    if let Some(disk) = disk {
        all.push(Box::new(io_max(&group(), disk, IoDirection::Read)));
        all.push(Box::new(io_max(&group(), disk, IoDirection::Write)));
    }
    all
}

/// The actuators that belong to the machine.
pub(crate) fn of_machine(roots: &Roots, disk: Option<&str>) -> Vec<Box<dyn Actuator>> {
    let cpus = host::online_cpus(roots).unwrap_or_default();
    let zone = PowerCap::zones(roots)
        .first()
        .cloned()
        .unwrap_or_else(|| "intel-rapl:0".to_owned());
    let mut all: Vec<Box<dyn Actuator>> = vec![
        Box::new(Resctrl {
            name: String::new(),
        }),
        Box::new(host::Frequency { cpus: cpus.clone() }),
        Box::new(EnergyPreference { cpus }),
        Box::new(PowerCap { zone }),
    ];
    if let Some(disk) = disk {
        let device = disk.to_owned();
        all.push(Box::new(IoCost { device }));
    }
    all
}

fn uclamp(group: &str, bound: UclampBound) -> Uclamp {
    let group = group.to_owned();
    Uclamp { group, bound }
}

fn io_max(group: &str, disk: &str, direction: IoDirection) -> IoMax {
    IoMax {
        group: group.to_owned(),
        device: disk.to_owned(),
        direction,
    }
}

/// The first disk's number, `254:0`.
pub(crate) fn first_disk(roots: &Roots) -> Option<String> {
    let mut entries: Vec<_> = std::fs::read_dir(roots.sys("block"))
        .ok()?
        .flatten()
        .collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    let is_disk = |name: &str| {
        !["loop", "ram", "zram"]
            .iter()
            .any(|other| name.starts_with(other))
    };
    entries
        .iter()
        .filter(|entry| entry.file_name().to_str().is_some_and(is_disk))
        .find_map(|entry| std::fs::read_to_string(entry.path().join("dev")).ok())
        .map(|text| text.trim().to_owned())
}

/// A disk's number, by its name in `/sys/block`.
///
/// # Errors
///
/// Why it has none, and what to do.
pub(crate) fn disk_number(roots: &Roots, name: Option<&str>) -> Result<String, String> {
    let name = name.ok_or("the configuration names no policy.io_device")?;
    let file = roots.sys("block").join(name).join("dev");
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(_) => Err(format!(
            "there is no disk {name} in /sys/block: lsblk -d shows the names"
        )),
    }
}

/// An actuator and what it is to be set to; `None` where that depends on what is in force.
pub(crate) type ActuatorOfSetting = (Box<dyn Actuator>, Option<Wanted>);

/// The actuator behind a setting that `static` can have. `disk` is a name in `/sys/block`.
///
/// # Errors
///
/// Why the host has none.
pub(crate) fn of_setting(
    roots: &Roots,
    disk: Option<&str>,
    group: &str,
    setting: ActuatorSetting,
) -> Result<Option<ActuatorOfSetting>, String> {
    let own = || group.to_owned();
    let rate = |direction, rate| -> Result<ActuatorOfSetting, String> {
        let disk = disk_number(roots, disk)?;
        let wanted = Wanted::Bytes(Some(rate));
        Ok((Box::new(io_max(group, &disk, direction)), Some(wanted)))
    };
    let found: ActuatorOfSetting = match setting {
        ActuatorSetting::CpuIdle(on) => (Box::new(CpuIdle { group: own() }), Some(Wanted::On(on))),
        ActuatorSetting::Weight(weight) => (
            Box::new(CpuWeight { group: own() }),
            Some(Wanted::Weight(weight)),
        ),
        ActuatorSetting::QuotaCores(_) => (Box::new(CpuQuotaLimit { group: own() }), None),
        ActuatorSetting::Cores(_) => (Box::new(Cpuset { group: own() }), None),
        ActuatorSetting::MemoryHighBytes(bytes) => (
            Box::new(MemoryHigh { group: own() }),
            Some(Wanted::Bytes(Some(bytes))),
        ),
        ActuatorSetting::MemoryLowBytes(bytes) => (
            Box::new(MemoryLow { group: own() }),
            Some(Wanted::Bytes(Some(bytes))),
        ),
        ActuatorSetting::IoReadBytesPerS(bytes) => rate(IoDirection::Read, bytes)?,
        ActuatorSetting::IoWriteBytesPerS(bytes) => rate(IoDirection::Write, bytes)?,
        ActuatorSetting::IoWeight(weight) => (
            Box::new(IoWeight { group: own() }),
            Some(Wanted::Weight(weight)),
        ),
        ActuatorSetting::IoCost(on) => {
            let device = disk_number(roots, disk)?;
            (Box::new(IoCost { device }), Some(Wanted::On(on)))
        }
        ActuatorSetting::UclampMax(share) => (
            Box::new(uclamp(group, UclampBound::Max)),
            Some(Wanted::Share(share)),
        ),
        ActuatorSetting::UclampMin(share) => (
            Box::new(uclamp(group, UclampBound::Min)),
            Some(Wanted::Share(share)),
        ),
        ActuatorSetting::EnergyPreference(preference) => {
            let cpus = host::online_cpus(roots).unwrap_or_default();
            let wanted = Wanted::Word(preference.word().to_owned());
            (Box::new(EnergyPreference { cpus }), Some(wanted))
        }
        ActuatorSetting::Off(_)
        | ActuatorSetting::LlcWays(_)
        | ActuatorSetting::MemoryBandwidthPercent(_)
        | ActuatorSetting::Frequency(_)
        | ActuatorSetting::EgressMbit(_)
        | ActuatorSetting::Power(_) => return Ok(None),
    };
    Ok(Some(found))
}
