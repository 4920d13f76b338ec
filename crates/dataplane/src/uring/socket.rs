//! Sockets of the kernel: listening, connecting, and addresses.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use rustix::net::{self, AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use crate::error::Error;

/// A listening TCP socket with `SO_REUSEADDR` and no delay on what it accepts.
pub(super) fn listen(address: SocketAddr, backlog: i32) -> Result<OwnedFd, Error> {
    let open = || -> rustix::io::Result<OwnedFd> {
        let socket = stream(address)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        // Accepted sockets inherit it.
        sockopt::set_tcp_nodelay(&socket, true)?;
        net::bind(&socket, &address)?;
        net::listen(&socket, backlog)?;
        Ok(socket)
    };
    open().map_err(|error| Error::Listen {
        address,
        source: error.into(),
    })
}

/// An unconnected TCP socket of the address's family.
pub(super) fn stream(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    net::socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        Some(ipproto::TCP),
    )
}

/// Listening sockets that systemd opened for this process (`LISTEN_FDS` of sd_listen_fds(3)), and
/// their addresses. They are set up like [`listen`]'s.
pub(super) fn inherited() -> Result<Vec<(OwnedFd, SocketAddr)>, Error> {
    let variable = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    if variable("LISTEN_PID") != Some(std::process::id()) {
        return Ok(Vec::new());
    }
    /// The first descriptor, by the protocol.
    const FIRST: RawFd = 3;
    let count = RawFd::try_from(variable("LISTEN_FDS").unwrap_or(0)).unwrap_or(0);
    (FIRST..FIRST.saturating_add(count))
        .map(|fd| {
            // Nothing is owned before it is known to be what systemd promised: another part of this
            // process may have got the number.
            let is_open = std::fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok();
            // SAFETY: the descriptor is open, and nobody closes it while it is looked at.
            let promised = is_open.then(|| unsafe { BorrowedFd::borrow_raw(fd) });
            let is_listening =
                promised.is_some_and(|fd| sockopt::socket_acceptconn(fd).unwrap_or(false));
            if !is_listening {
                return Err(Error::Os {
                    call: "a socket in LISTEN_FDS is no listening TCP socket",
                    source: rustix::io::Errno::BADF.into(),
                });
            }
            let socket = owned(fd);
            let use_it = || -> rustix::io::Result<SocketAddr> {
                rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
                sockopt::set_tcp_nodelay(&socket, true)?;
                net::getsockname(&socket)?
                    .try_into()
                    .map_err(|_| rustix::io::Errno::AFNOSUPPORT)
            };
            let address = use_it().map_err(|error| Error::Os {
                call: "a socket in LISTEN_FDS is no listening TCP socket",
                source: error.into(),
            })?;
            Ok((socket, address))
        })
        .collect()
}

/// The address of the other end, where there is one.
pub(super) fn peer(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
    net::getpeername(socket).ok()??.try_into().ok()
}

/// A descriptor that the kernel gave in a completion.
pub(super) fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel made this descriptor for us in an accept, or systemd left it to us; nobody
    // else knows it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Makes closing the socket reset the connection.
pub(super) fn reset_on_close(socket: impl AsFd) {
    let _ = sockopt::set_socket_linger(socket, Some(std::time::Duration::ZERO));
}

/// An address as the kernel wants it, boxed, for a connect that is under way.
pub(super) fn encode(address: SocketAddr) -> Box<(libc::sockaddr_storage, libc::socklen_t)> {
    // SAFETY: all-zero bytes are a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let len = match address {
        SocketAddr::V4(v4) => {
            let encoded = libc::sockaddr_in {
                sin_family: libc::sa_family_t::try_from(libc::AF_INET).unwrap_or(0),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: a sockaddr_storage has room and alignment for every kind of address.
            unsafe { std::ptr::write((&raw mut storage).cast(), encoded) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let encoded = libc::sockaddr_in6 {
                sin6_family: libc::sa_family_t::try_from(libc::AF_INET6).unwrap_or(0),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { std::ptr::write((&raw mut storage).cast(), encoded) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    Box::new((storage, libc::socklen_t::try_from(len).unwrap_or(0)))
}
