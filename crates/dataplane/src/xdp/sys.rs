//! The system calls of AF_XDP and of the small BPF program. All unsafe code of calls lives here.

use std::ffi::{c_int, c_void};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A socket of AF_XDP.
pub(super) fn xdp_socket() -> Result<OwnedFd> {
    // SAFETY: `socket` has no conditions.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    owned(fd)
}

fn owned(fd: c_int) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the kernel has just given this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets an option of a socket.
pub(super) fn set_option<T: Copy>(
    socket: &OwnedFd,
    level: c_int,
    name: c_int,
    value: &T,
) -> Result<()> {
    let length = u32::try_from(size_of::<T>()).map_err(Error::other)?;
    let place = std::ptr::from_ref(value).cast::<c_void>();
    // SAFETY: `place` points to `length` readable bytes for the duration of the call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, place, length) };
    checked(result)
}

fn checked(result: c_int) -> Result<()> {
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Where the parts of the rings lie in their mappings.
pub(super) fn mmap_offsets(socket: &OwnedFd) -> Result<libc::xdp_mmap_offsets> {
    let zero = || libc::xdp_ring_offset {
        producer: 0,
        consumer: 0,
        desc: 0,
        flags: 0,
    };
    let mut offsets = libc::xdp_mmap_offsets {
        rx: zero(),
        tx: zero(),
        fr: zero(),
        cr: zero(),
    };
    let mut length = u32::try_from(size_of_val(&offsets)).map_err(Error::other)?;
    let place = std::ptr::from_mut(&mut offsets).cast::<c_void>();
    // SAFETY: `place` points to `length` writable bytes for the duration of the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_MMAP_OFFSETS,
            place,
            &raw mut length,
        )
    };
    checked(result)?;
    if length as usize != size_of_val(&offsets) {
        return Err(Error::from_raw_os_error(libc::ENOPROTOOPT));
    }
    Ok(offsets)
}

/// Binds a socket to a queue of an interface.
pub(super) fn bind(socket: &OwnedFd, interface: u32, queue: u32, flags: u16) -> Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: u16::try_from(libc::AF_XDP).map_err(Error::other)?,
        sxdp_flags: flags,
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let length = u32::try_from(size_of_val(&address)).map_err(Error::other)?;
    let place = std::ptr::from_ref(&address).cast::<libc::sockaddr>();
    // SAFETY: `place` points to `length` readable bytes for the duration of the call.
    checked(unsafe { libc::bind(socket.as_raw_fd(), place, length) })
}

/// Tells the kernel to send what is in the transmission ring.
pub(super) fn kick(socket: &OwnedFd) -> Result<()> {
    let fd = socket.as_raw_fd();
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: a null buffer of length 0 is never read.
    let result = unsafe { libc::sendto(fd, std::ptr::null(), 0, flags, std::ptr::null(), 0) };
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Lets the kernel poll the device's queue now (busy polling).
pub(super) fn poll_device(socket: &OwnedFd) {
    let fd = socket.as_raw_fd();
    let flags = libc::MSG_DONTWAIT;
    let null = std::ptr::null_mut();
    // SAFETY: a null buffer of length 0 is never written.
    unsafe {
        libc::recvfrom(
            fd,
            std::ptr::null_mut(),
            0,
            flags,
            null,
            std::ptr::null_mut(),
        )
    };
}

const BPF_MAP_CREATE: c_int = 0;
const BPF_MAP_UPDATE_ELEM: c_int = 2;
const BPF_PROG_LOAD: c_int = 5;
const BPF_LINK_CREATE: c_int = 28;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_ATTACH_XDP: u32 = 37;
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;

/// `union bpf_attr` (linux/bpf.h): as many bytes as the calls here need, zero where not named.
#[repr(C, align(8))]
struct BpfAttributes([u32; 32]);

fn bpf(command: c_int, attributes: &mut BpfAttributes) -> Result<c_int> {
    let length = size_of::<BpfAttributes>();
    let place = std::ptr::from_mut(attributes);
    // SAFETY: `place` points to `length` bytes for the duration of the call. What pointers inside
    // of it point to is alive, too: each caller holds it.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, place, length) };
    if result < 0 {
        return Err(Error::last_os_error());
    }
    c_int::try_from(result).map_err(Error::other)
}

fn raw(fd: &OwnedFd) -> u32 {
    u32::try_from(fd.as_raw_fd()).unwrap_or(0)
}

fn halves(pointer: u64) -> (u32, u32) {
    let [low, high] = words(pointer);
    (low, high)
}

/// The two words of a 64-bit field, in the machine's order.
fn words(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_ne_bytes();
    [
        u32::from_ne_bytes([a, b, c, d]),
        u32::from_ne_bytes([e, f, g, h]),
    ]
}

/// A map from queues to sockets.
pub(super) fn create_socket_map(queues: u32) -> Result<OwnedFd> {
    let mut attributes = BpfAttributes([0; 32]);
    attributes.0[..4].copy_from_slice(&[BPF_MAP_TYPE_XSKMAP, 4, 4, queues]);
    owned(bpf(BPF_MAP_CREATE, &mut attributes)?)
}

/// Puts a socket into the map.
pub(super) fn set_socket(map: &OwnedFd, queue: u32, socket: &OwnedFd) -> Result<()> {
    let value = raw(socket);
    let mut attributes = BpfAttributes([0; 32]);
    attributes.0[0] = raw(map);
    let (low, high) = halves((&raw const queue).addr() as u64);
    attributes.0[2..4].copy_from_slice(&[low, high]);
    let (low, high) = halves((&raw const value).addr() as u64);
    attributes.0[4..6].copy_from_slice(&[low, high]);
    bpf(BPF_MAP_UPDATE_ELEM, &mut attributes).map(|_| ())
}

/// Loads a program of encoded instructions.
pub(super) fn load_program(instructions: &[u64]) -> Result<OwnedFd> {
    let mut attributes = BpfAttributes([0; 32]);
    let license = c"Apache-2.0";
    let count = u32::try_from(instructions.len()).map_err(Error::other)?;
    attributes.0[..2].copy_from_slice(&[BPF_PROG_TYPE_XDP, count]);
    let (low, high) = halves(instructions.as_ptr().addr() as u64);
    attributes.0[2..4].copy_from_slice(&[low, high]);
    let (low, high) = halves(license.as_ptr().addr() as u64);
    attributes.0[4..6].copy_from_slice(&[low, high]);
    // Words 6 to 10 are the verifier's log and the kernel's version: none.
    attributes.0[11] = BPF_F_XDP_HAS_FRAGS;
    // Words 12 to 15 are the name.
    attributes.0[12] = u32::from_ne_bytes(*b"slac");
    attributes.0[13] = u32::from_ne_bytes(*b"klin");
    attributes.0[14] = u32::from_ne_bytes(*b"e\0\0\0");
    attributes.0[17] = BPF_ATTACH_XDP;
    owned(bpf(BPF_PROG_LOAD, &mut attributes)?)
}

/// Attaches a program to an interface. The link ends with its last descriptor.
pub(super) fn link_program(program: &OwnedFd, interface: u32, flags: u32) -> Result<OwnedFd> {
    let mut attributes = BpfAttributes([0; 32]);
    attributes.0[..4].copy_from_slice(&[raw(program), interface, BPF_ATTACH_XDP, flags]);
    owned(bpf(BPF_LINK_CREATE, &mut attributes)?)
}

/// An `ioctl` about an interface, with a union of up to 24 bytes.
#[repr(C)]
pub(super) struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    /// The union `ifr_ifru`.
    pub(super) data: [u8; 24],
}

impl InterfaceRequest {
    /// A request for the interface of this name. `None` if no interface can have it.
    pub(super) fn new(name: &str) -> Option<InterfaceRequest> {
        let bytes = name.as_bytes();
        if bytes.is_empty() || bytes.len() >= libc::IFNAMSIZ || bytes.contains(&0) {
            return None;
        }
        let mut request = InterfaceRequest {
            name: [0; libc::IFNAMSIZ],
            data: [0; 24],
        };
        request.name[..bytes.len()].copy_from_slice(bytes);
        Some(request)
    }

    /// Asks the kernel. Only for requests whose data holds no pointer.
    pub(super) fn ask(&mut self, socket: BorrowedFd<'_>, number: u64) -> Result<()> {
        let place = std::ptr::from_mut(self);
        // SAFETY: `place` is a valid `ifreq`, which the kernel reads and writes during the call.
        checked(unsafe { libc::ioctl(socket.as_raw_fd(), number, place) })
    }

    /// Asks the driver for its name (`ETHTOOL_GDRVINFO`).
    pub(super) fn driver(&mut self, socket: BorrowedFd<'_>) -> Result<String> {
        const ETHTOOL_GDRVINFO: u32 = 3;
        // struct ethtool_drvinfo: a command, then 32 bytes of name, 196 bytes in all.
        let info = self.ethtool(socket, ETHTOOL_GDRVINFO)?;
        let name = info[4..36].split(|byte| *byte == 0).next().unwrap_or(&[]);
        Ok(String::from_utf8_lossy(name).into_owned())
    }

    /// Asks the driver for the numbers of its queues (`ETHTOOL_GCHANNELS`): those to receive, those
    /// to send, and those for both.
    pub(super) fn channels(&mut self, socket: BorrowedFd<'_>) -> Result<[u32; 3]> {
        const ETHTOOL_GCHANNELS: u32 = 0x3c;
        // struct ethtool_channels: a command, the most of each kind, then how many of each kind:
        // receiving, sending, others, combined.
        let info = self.ethtool(socket, ETHTOOL_GCHANNELS)?;
        let (words, _) = info.as_chunks::<4>();
        let word = |at: usize| u32::from_ne_bytes(words[at]);
        Ok([word(5), word(6), word(8)])
    }

    /// A question to the driver whose answer has no more than 256 bytes.
    fn ethtool(&mut self, socket: BorrowedFd<'_>, command: u32) -> Result<[u8; 256]> {
        let mut info = [0u8; 256];
        info[..4].copy_from_slice(&command.to_ne_bytes());
        let address = info.as_mut_ptr().expose_provenance() as u64;
        self.data[..8].copy_from_slice(&address.to_ne_bytes());
        let place = std::ptr::from_mut(self);
        // SAFETY: `place` is a valid `ifreq` whose data points to `info`, which is alive and larger
        // than what the kernel writes.
        checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, place) })?;
        Ok(info)
    }
}

/// An address of an interface, with its netmask, as `getifaddrs` has it.
pub(super) fn interface_addresses(name: &str) -> Result<Vec<(std::net::IpAddr, std::net::IpAddr)>> {
    let mut first = std::ptr::null_mut();
    // SAFETY: `first` is a valid place for the list's start.
    checked(unsafe { libc::getifaddrs(&raw mut first) })?;
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: the list is valid until `freeifaddrs`, and each entry's `ifa_next` is null or valid.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: the name is a terminated string of the list.
        let entry_name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) };
        if entry_name.to_bytes() != name.as_bytes() {
            continue;
        }
        if let (Some(address), Some(mask)) =
            (address_of(entry.ifa_addr), address_of(entry.ifa_netmask))
        {
            found.push((address, mask));
        }
    }
    // SAFETY: `first` came from `getifaddrs` and is not used again.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// The address in a socket address of `getifaddrs`.
fn address_of(place: *const libc::sockaddr) -> Option<std::net::IpAddr> {
    // SAFETY: the pointer is null or points to an address of the list.
    let family = unsafe { place.as_ref() }?.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says that the address is a `sockaddr_in`.
            let address = unsafe { &*place.cast::<libc::sockaddr_in>() };
            let bytes = address.sin_addr.s_addr.to_ne_bytes();
            Some(std::net::IpAddr::from(bytes))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that the address is a `sockaddr_in6`.
            let address = unsafe { &*place.cast::<libc::sockaddr_in6>() };
            Some(std::net::IpAddr::from(address.sin6_addr.s6_addr))
        }
        _ => None,
    }
}
