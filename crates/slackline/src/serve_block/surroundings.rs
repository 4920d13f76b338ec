//! What else used the CPUs and the disk while a device was calibrated.

use std::fs::{metadata, read_link, read_to_string};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::time::Instant;

use host::{MachineCpu, Roots};
use qos::Grouped;
use rustix::fs::{major, minor};

/// Share of all CPU time that others may use. As in the load generator, a choice.
const OTHERS: f64 = 0.1;
/// Share of all CPU time that the hypervisor may take, and the time itself: times are counted in
/// ticks of 10 ms, and one may be chance. As in the load generator.
const STOLEN: (f64, f64) = (0.01, 0.015);
/// Requests of others that may reach the disk: as a share of our own, and a second. One request in
/// twenty lies above the 95th percentile.
const REQUESTS: (f64, f64) = (0.01, 20.0);

/// Counters at one moment.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Instant,
    cpus: MachineCpu,
    own_cpu_s: f64,
    /// Requests of this process that reached a disk, by their bytes.
    own_requests: u64,
    /// Requests of everybody that the disk has answered.
    disk_requests: Option<u64>,
}

/// What passed between two moments.
#[derive(Debug, Clone, Copy, Default)]
struct Passed {
    seconds: f64,
    cpus: MachineCpu,
    own_cpu_s: f64,
    own_requests: u64,
    disk_requests: Option<u64>,
}

/// The machine around a calibration.
pub(super) struct Surroundings {
    /// The whole disk below the device, as `MAJOR:MINOR`; `None`: none is known.
    disk: Option<String>,
    before: Sample,
}

/// The whole disk that a file or block device lies on.
fn disk_of(path: &Path) -> Option<String> {
    let found = metadata(path).ok()?;
    let device = match found.file_type().is_block_device() {
        true => found.rdev(),
        false => found.dev(),
    };
    let number = format!("{}:{}", major(device), minor(device));
    let place = format!("/sys/dev/block/{number}");
    let target = read_link(&place).ok()?;
    if !Path::new(&place).join("partition").exists() {
        return Some(number);
    }
    let disk = Path::new("/sys/dev/block")
        .join(target.parent()?)
        .join("dev");
    Some(read_to_string(disk).ok()?.trim().to_owned())
}

/// Reads and writes that a disk has answered, by `/proc/diskstats`.
fn requests_of(diskstats: &str, disk: &str) -> Option<u64> {
    diskstats.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = format!("{}:{}", fields.first()?, fields.get(1)?);
        let count = |at: usize| fields.get(at)?.parse::<u64>().ok();
        (number == disk)
            .then(|| Some(count(3)? + count(7)?))
            .flatten()
    })
}

/// Requests of 4 KiB that this process had, by `/proc/self/io`.
fn own_requests(io: &str) -> u64 {
    let bytes = |key: &str| {
        let value = io.lines().find_map(|line| line.strip_prefix(key));
        value
            .and_then(|value| value.trim().parse::<u64>().ok())
            .unwrap_or(0)
    };
    (bytes("read_bytes:") + bytes("write_bytes:")) / u64::from(qos::BLOCK_BYTES)
}

impl Surroundings {
    /// Begins to look. `device`: what is measured, if it is a file or a block device.
    pub(super) fn of(device: Option<&Path>) -> Self {
        let disk = device.and_then(disk_of);
        let before = Sample::now(disk.as_deref());
        Self { disk, before }
    }

    /// Who else was busy since the last call, for people. `None`: nobody to speak of.
    pub(super) fn look(&mut self) -> Option<String> {
        let now = Sample::now(self.disk.as_deref());
        let before = std::mem::replace(&mut self.before, now);
        let disk_requests = now.disk_requests.zip(before.disk_requests);
        let passed = Passed {
            seconds: now.at.duration_since(before.at).as_secs_f64(),
            cpus: now.cpus.since(before.cpus),
            own_cpu_s: now.own_cpu_s - before.own_cpu_s,
            own_requests: now.own_requests.saturating_sub(before.own_requests),
            disk_requests: disk_requests.map(|(now, before)| now.saturating_sub(before)),
        };
        disturbance(&passed)
    }
}

impl Sample {
    fn now(disk: Option<&str>) -> Self {
        let diskstats = read_to_string("/proc/diskstats").unwrap_or_default();
        let io = read_to_string("/proc/self/io").unwrap_or_default();
        Self {
            at: Instant::now(),
            cpus: MachineCpu::read(&Roots::default()).unwrap_or_default(),
            own_cpu_s: host::own_cpu_s(),
            own_requests: own_requests(&io),
            disk_requests: disk.and_then(|disk| requests_of(&diskstats, disk)),
        }
    }
}

fn disturbance(passed: &Passed) -> Option<String> {
    let mut found = Vec::new();
    let all_s = passed.cpus.all_s.max(f64::MIN_POSITIVE);
    let others = (passed.cpus.used_s - passed.own_cpu_s) / all_s;
    if others > OTHERS {
        found.push(format!(
            "other processes used {:.0} % of the CPUs",
            100.0 * others
        ));
    }
    let stolen_s = passed.cpus.stolen_s;
    if stolen_s / all_s > STOLEN.0 && stolen_s > STOLEN.1 {
        found.push(format!(
            "the hypervisor took {:.1} % of the CPUs",
            100.0 * stolen_s / all_s
        ));
    }
    let disk_requests = passed.disk_requests.unwrap_or(0);
    let foreign = disk_requests.saturating_sub(passed.own_requests) as f64;
    let foreign_per_s = foreign / passed.seconds.max(f64::MIN_POSITIVE);
    if foreign > REQUESTS.0 * passed.own_requests as f64 && foreign_per_s > REQUESTS.1 {
        let rate = Grouped::rounded(foreign_per_s);
        found.push(format!("others had {rate} requests a second on the disk"));
    }
    (!found.is_empty()).then(|| found.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_and_processes_are_counted() {
        let diskstats = " 254       0 vda 100 2 3 4 50 6 7 8 0 10 11 0 0 0 0 0 0\n\
                         \x20254       1 vda1 9 2 3 4 9 6 7 8 0 10 11 0 0 0 0 0 0\n";
        assert_eq!(requests_of(diskstats, "254:0"), Some(150));
        assert_eq!(requests_of(diskstats, "254:2"), None);
        let io =
            "rchar: 7\nwchar: 7\nread_bytes: 8192\nwrite_bytes: 4096\ncancelled_write_bytes: 0\n";
        assert_eq!((own_requests(io), own_requests("")), (3, 0));
    }

    #[test]
    fn what_is_in_the_way_is_named() {
        let quiet = Passed {
            seconds: 2.0,
            cpus: MachineCpu {
                used_s: 2.1,
                idle_s: 1.9,
                stolen_s: 0.01,
                all_s: 4.0,
            },
            own_cpu_s: 2.0,
            own_requests: 10_000,
            disk_requests: Some(10_050),
        };
        assert_eq!(disturbance(&quiet), None);
        let mut busy = quiet;
        busy.cpus.used_s = 3.0;
        busy.cpus.stolen_s = 0.2;
        busy.disk_requests = Some(12_000);
        assert_eq!(
            disturbance(&busy).unwrap(),
            "other processes used 25 % of the CPUs, the hypervisor took 5.0 % of the CPUs, others had 1,000 requests a \
             second on the disk"
        );
        busy.disk_requests = None;
        assert!(!disturbance(&busy).unwrap().contains("disk"));
        assert_eq!(disturbance(&Passed::default()), None);
    }
}
