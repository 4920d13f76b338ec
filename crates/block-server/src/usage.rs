//! Who uses a block device or an image: mounts, swap, partitions, loop and other devices on top.

use std::fs::read_to_string;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Dev, major, minor};

/// The device numbers of a disk and its partitions, as `MAJOR:MINOR`.
fn with_partitions(device: Dev) -> Vec<String> {
    let own = format!("{}:{}", major(device), minor(device));
    let directory = PathBuf::from(format!("/sys/dev/block/{own}"));
    let mut all = vec![own];
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.path().join("partition").exists()
            && let Ok(number) = read_to_string(entry.path().join("dev"))
        {
            all.push(number.trim().to_owned());
        }
    }
    all
}

fn mount_point(devices: &[String], mounts: &str) -> Option<String> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let device = fields.nth(2)?;
        let point = fields.nth(1)?;
        devices
            .iter()
            .any(|known| known == device)
            .then(|| point.to_owned())
    })
}

/// The swap space on one of the devices.
fn swap(devices: &[String]) -> Option<PathBuf> {
    let swaps = read_to_string("/proc/swaps").unwrap_or_default();
    let mut paths = swaps
        .lines()
        .skip(1)
        .filter_map(|line| Some(PathBuf::from(line.split_whitespace().next()?)));
    paths.find(|path| {
        let device = std::fs::metadata(path).map_or(0, |found| found.rdev());
        devices.contains(&format!("{}:{}", major(device), minor(device)))
    })
}

fn holder(devices: &[String]) -> Option<String> {
    devices.iter().find_map(|device| {
        let directory = format!("/sys/dev/block/{device}/holders");
        let entry = std::fs::read_dir(directory).ok()?.flatten().next()?;
        Some(entry.file_name().to_string_lossy().into_owned())
    })
}

/// Who uses a block device, as far as the kernel names it: a mount, swap space or another device.
pub(crate) fn of_block_device(path: &Path, device: Dev) -> Option<String> {
    let devices = with_partitions(device);
    let mounts = read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let path = path.display();
    if let Some(point) = mount_point(&devices, &mounts) {
        return Some(format!("{path} is mounted on {point}: unmount it first"));
    }
    if let Some(swap) = swap(&devices) {
        let swap = swap.display();
        return Some(format!("{path} is swap space: run `swapoff {swap}` first"));
    }
    let holder = holder(&devices)?;
    Some(format!(
        "{path} is in use by /dev/{holder}: remove that first"
    ))
}

/// The file behind a loop device or one of its partitions.
pub(crate) fn image_of(device: Dev) -> Option<PathBuf> {
    let directory = PathBuf::from(format!(
        "/sys/dev/block/{}:{}",
        major(device),
        minor(device)
    ));
    let files = ["loop/backing_file", "../loop/backing_file"];
    let mut texts = files
        .iter()
        .map(|file| read_to_string(directory.join(file)));
    let text = texts.find_map(Result::ok)?;
    Some(PathBuf::from(text.trim_end_matches('\n')))
}

/// Why an image must not be exported, if it must not.
pub(crate) fn of_file(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let devices = std::fs::read_dir("/sys/block").ok()?.flatten();
    devices
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("loop"))
        .find_map(|entry| {
            let backing = read_to_string(entry.path().join("loop/backing_file")).ok()?;
            (Path::new(backing.trim_end_matches('\n')) == path).then(|| {
                format!(
                    "{} is in use by the loop device /dev/{}: detach that first",
                    path.display(),
                    entry.file_name().to_string_lossy()
                )
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_by_its_device_number() {
        let mounts = "22 28 0:20 / /proc rw - proc proc rw\n\
                      28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n";
        let point = |number: &str| mount_point(&[number.to_owned()], mounts);
        assert_eq!(point("254:0").as_deref(), Some("/"));
        assert_eq!(point("254:1"), None);
    }
}
