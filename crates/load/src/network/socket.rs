//! A socket that connects, its events, and its errors in words.

use std::io;

use rustix::event::Timespec;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

use crate::counts::NO_PORT;
use crate::endpoint::Address;

pub(super) fn key(place: usize, generation: u32) -> u64 {
    u64::from(generation) << 32 | place as u64
}

pub(super) fn place_of(key: u64) -> (usize, u32) {
    let generation = u32::try_from(key >> 32).unwrap_or(0);
    let place = usize::try_from(key & u64::from(u32::MAX)).unwrap_or(0);
    (place, generation)
}

pub(super) fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    }
}

/// A socket that connects, and whether it has.
pub(super) fn connect(address: &Address) -> Result<(OwnedFd, bool), Errno> {
    let family = match address {
        Address::Ip(address) if address.is_ipv4() => AddressFamily::INET,
        Address::Ip(_) => AddressFamily::INET6,
        Address::Unix(_) => AddressFamily::UNIX,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    let connected = match address {
        Address::Ip(address) => net::connect(&socket, address),
        Address::Unix(path) => net::connect(&socket, &net::SocketAddrUnix::new(path)?),
    };
    match connected {
        Ok(()) => Ok((socket, true)),
        Err(Errno::INPROGRESS) => Ok((socket, false)),
        Err(error) => Err(error),
    }
}

/// What went wrong, in a few words that many requests have in common.
pub(super) fn words(error: io::Error) -> String {
    if error.raw_os_error() == Some(Errno::ADDRNOTAVAIL.raw_os_error()) {
        return NO_PORT.to_owned();
    }
    match error.kind().to_string() {
        // The standard library has no word for it; the error itself has.
        kind if ["other error", "uncategorized error"].contains(&kind.as_str()) => {
            error.to_string()
        }
        kind => kind,
    }
}
