//! What a control group sends on a network device: HTB at the device's root, with a class for each
//! limited group.
//!
//! Packets of other groups are sent as if HTB were not there (`defcls` 0: "direct"). A program of
//! the kernel's own machine (BPF) compares the group of a packet's socket with the limited one. So
//! the group has to be in the hierarchy of v2, and packets that a container forwards through a
//! device of its own have no socket any more.
//!
//! A device whose root has a queue discipline that somebody chose (its handle is not 0) is left
//! alone.

mod netlink;
mod program;

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use crate::cgroup::Hierarchies;
use crate::error::HostError;
use crate::roots::Roots;
use netlink::{Class, Filter, Link, Tc};

/// The value of a group without a limit.
pub(crate) const NO_LIMIT: &str = "max";
/// Minor numbers of classes: 1 to this. A filter's priority is the same number.
const MINOR_MAX: u16 = 0x7fff;

/// A group of v2 as the kernel numbers it: since Linux 5.5 the number of its directory's inode.
fn number_of(roots: &Roots, group: &str) -> Option<u64> {
    let directory = directory(roots, group)?;
    Some(std::fs::metadata(directory).ok()?.ino())
}

fn directory(roots: &Roots, group: &str) -> Option<PathBuf> {
    let hierarchies = Hierarchies::of(roots);
    Some(hierarchies.v2()?.join(group.trim_matches('/')))
}

/// Why a group cannot be limited on a device; `Ok` says how it is.
pub(crate) fn probe(roots: &Roots, device: &str, group: &str) -> Result<String, String> {
    if !roots.is_real() {
        return Err("a tree of files has no network".to_owned());
    }
    if number_of(roots, group).is_none() {
        return Err(format!(
            "group {group} is not in the hierarchy of cgroup v2, in which the kernel assigns packets to groups"
        ));
    }
    let link = Link::open(device).map_err(|error| format!("device {device}: {error}"))?;
    match link.root() {
        Ok(Tc::Ours) => Ok("HTB, in use".to_owned()),
        Ok(Tc::Default) => Ok("HTB".to_owned()),
        Ok(Tc::Other(kind)) => Err(format!(
            "somebody has chosen the queue discipline {kind} for {device}: Slackline does not change it"
        )),
        Err(error) => Err(format!("device {device}: {error}")),
    }
}

/// The limit in bytes a second, or [`NO_LIMIT`]; `None` without such a device or group. The limit
/// of a group that is gone is still to be removed, so it is not `None`.
pub(crate) fn read(roots: &Roots, device: &str, group: &str) -> Result<Option<String>, HostError> {
    if !roots.is_real() {
        return Ok(None);
    }
    let Ok(link) = Link::open(device) else {
        return Ok(None);
    };
    let failed = |error| HostError::read(&PathBuf::from(format!("egress of {device}")), &error);
    let class = class_of(&link, group).map_err(failed)?;
    Ok(match class {
        Some(class) => Some(class.bytes_per_s.to_string()),
        None => number_of(roots, group).map(|_| NO_LIMIT.to_owned()),
    })
}

/// The filter that leads a group's packets to a class.
fn filter_of(link: &Link, group: &str) -> io::Result<Option<Filter>> {
    if link.root()? != Tc::Ours {
        return Ok(None);
    }
    let group = group.trim_matches('/');
    Ok(link
        .filters()?
        .into_iter()
        .find(|filter| filter.group == group))
}

fn class_of(link: &Link, group: &str) -> io::Result<Option<Class>> {
    let Some(filter) = filter_of(link, group)? else {
        return Ok(None);
    };
    let mut classes = link.classes()?.into_iter();
    Ok(classes.find(|class| class.minor == filter.minor))
}

/// Removes a group's limit, and HTB with the last one.
fn remove(link: &Link, group: &str) -> io::Result<()> {
    if link.root()? != Tc::Ours {
        return Ok(());
    }
    if let Some(filter) = filter_of(link, group)? {
        link.delete_filter(filter.minor)?;
    }
    // Without its filter a class leads nowhere: also one that a killed process had just made.
    let filters = link.filters()?;
    for class in link.classes()? {
        if !filters.iter().any(|filter| filter.minor == class.minor) {
            link.delete_class(class.minor)?;
        }
    }
    match filters.is_empty() {
        true => link.delete_root(),
        false => Ok(()),
    }
}

/// Sets the limit, or removes it.
pub(crate) fn put(roots: &Roots, device: &str, group: &str, value: &str) -> io::Result<()> {
    let errno = io::Error::from_raw_os_error;
    if !roots.is_real() {
        return Err(errno(libc::ENODEV));
    }
    let link = Link::open(device)?;
    if value == NO_LIMIT {
        return remove(&link, group);
    }
    let bytes_per_s: u64 = value.parse().map_err(|_| errno(libc::EINVAL))?;
    if bytes_per_s == 0 {
        return Err(errno(libc::EINVAL));
    }
    let number = number_of(roots, group).ok_or_else(|| errno(libc::ENOENT))?;
    // A group that vanished and came back has another number.
    if filter_of(&link, group)?.is_some_and(|filter| filter.number != number) {
        remove(&link, group)?;
    }
    match link.root()? {
        Tc::Ours => {}
        Tc::Default => link.make_root()?,
        Tc::Other(_) => return Err(errno(libc::EBUSY)),
    }
    if let Some(filter) = filter_of(&link, group)? {
        return link.set_class(filter.minor, bytes_per_s);
    }
    let filters = link.filters()?;
    let is_free = |minor: &u16| filters.iter().all(|filter| filter.minor != *minor);
    let minor = (1..=MINOR_MAX).find(is_free);
    let minor = minor.ok_or_else(|| errno(libc::ENOSPC))?;
    link.set_class(minor, bytes_per_s)?;
    let program = program::load(number, netlink::handle(minor))?;
    let filter = Filter {
        minor,
        number,
        group: group.trim_matches('/').to_owned(),
    };
    link.add_filter(&filter, &program)
}

/// Bytes that a limited group has sent on a device since it was first limited; `None` where it is
/// not limited.
///
/// # Errors
///
/// The kernel does not answer.
pub fn egress_bytes(roots: &Roots, device: &str, group: &str) -> io::Result<Option<u64>> {
    if !roots.is_real() {
        return Ok(None);
    }
    let class = class_of(&Link::open(device)?, group)?;
    Ok(class.and_then(|class| class.sent_bytes))
}
