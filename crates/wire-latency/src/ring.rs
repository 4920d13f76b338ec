//! A packet socket with a ring that the kernel fills (packet(7),
//! Documentation/networking/packet_mmap.rst, TPACKET_V3).

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use libc::{sock_filter, tpacket_hdr_v1, tpacket3_hdr};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Blocks of the ring, and bytes of each: 4 MiB hold about 25,000 packets.
pub(crate) const BLOCKS: u32 = 16;
const BLOCK_BYTES: u32 = 256 << 10;
/// The kernel asks for a frame size, which packets of varying length need not keep to.
const FRAME_BYTES: u32 = 2048;
/// After so long a block is handed over though it is not full.
const RETIRE_MS: u32 = 40;
/// Where a block's header begins in its descriptor: behind its version and the place of private
/// data.
const BLOCK_HEADER_AT: usize = 8;
const STATUS_AT: usize = BLOCK_HEADER_AT + offset_of!(tpacket_hdr_v1, block_status);
/// Where the link layer's address lies behind a packet's header.
const ADDRESS_AT: usize = size_of::<tpacket3_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);
const PROTOCOL_AT: usize = ADDRESS_AT + offset_of!(libc::sockaddr_ll, sll_protocol);

/// One captured packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet<'a> {
    /// When it passed, since 1970.
    pub(crate) time_ns: u64,
    pub(crate) ethernet_type: u16,
    /// Length on the wire from the network header on.
    pub(crate) wire_length: u32,
    /// What was captured, from the network header on.
    pub(crate) bytes: &'a [u8],
}

/// What the kernel has counted since the last time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Statistics {
    pub(crate) dropped: u64,
}

/// A packet socket and its ring.
#[derive(Debug)]
pub(crate) struct Ring {
    socket: OwnedFd,
    map: *mut u8,
    /// The block that the kernel hands over next.
    next: usize,
}

// SAFETY: the mapping belongs to this value alone, and all access to it goes through `&mut self`.
unsafe impl Send for Ring {}

impl Ring {
    /// Opens it in the network namespace of the calling thread. Packets that the filter lets pass
    /// come from here on.
    pub(crate) fn open(program: &[sock_filter]) -> io::Result<Self> {
        // Without a protocol: nothing comes before the filter is in place.
        // SAFETY: socket(2) takes three numbers.
        let raw =
            unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just opened and that nobody else owns.
        let socket = unsafe { OwnedFd::from_raw_fd(raw) };
        let version = libc::tpacket_versions::TPACKET_V3 as libc::c_int;
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
        attach(&socket, program)?;
        let request = libc::tpacket_req3 {
            tp_block_size: BLOCK_BYTES,
            tp_block_nr: BLOCKS,
            tp_frame_size: FRAME_BYTES,
            tp_frame_nr: BLOCKS * (BLOCK_BYTES / FRAME_BYTES),
            tp_retire_blk_tov: RETIRE_MS,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice; nothing else knows of it.
        let map = unsafe {
            mmap(
                ptr::null_mut(),
                map_bytes(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &socket,
                0,
            )
        };
        let ring = Self {
            socket,
            map: map?.cast(),
            next: 0,
        };
        ring.bind()?;
        Ok(ring)
    }

    /// To all interfaces of the namespace, those that come later too, and both directions.
    fn bind(&self) -> io::Result<()> {
        let address = libc::sockaddr_ll {
            sll_family: libc::sa_family_t::try_from(libc::AF_PACKET).map_err(io::Error::other)?,
            sll_protocol: u16::try_from(libc::ETH_P_ALL)
                .map_err(io::Error::other)?
                .to_be(),
            sll_ifindex: 0,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: `address` is a sockaddr_ll, the address family of this socket, and its size is
        // given.
        let code = unsafe {
            libc::bind(
                self.socket.as_raw_fd(),
                (&raw const address).cast(),
                length_of::<libc::sockaddr_ll>(),
            )
        };
        if code == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Puts another filter in the place of the present one.
    pub(crate) fn set_filter(&self, program: &[sock_filter]) -> io::Result<()> {
        attach(&self.socket, program)
    }

    /// Waits until a block is full or has aged, at most so long.
    pub(crate) fn wait(&self, at_most: Duration) -> io::Result<()> {
        let timeout = Timespec::try_from(at_most).map_err(io::Error::other)?;
        let mut descriptors = [PollFd::new(&self.socket, PollFlags::IN)];
        match poll(&mut descriptors, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => Ok(()),
            polled => polled.map(drop).map_err(Into::into),
        }
    }

    /// Hands every packet of every finished block to `take`, oldest first; so many blocks.
    pub(crate) fn drain(&mut self, mut take: impl FnMut(Packet<'_>)) -> u32 {
        for blocks in 0..BLOCKS {
            let at = self.next * BLOCK_BYTES as usize;
            // SAFETY: `next` is below BLOCKS, so the block lies within the mapping.
            let block = unsafe { self.map.add(at) };
            // SAFETY: the status is an aligned u32 within the block, which kernel and user write in
            // turns.
            let status = unsafe { AtomicU32::from_ptr(block.add(STATUS_AT).cast()) };
            if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
                return blocks;
            }
            // SAFETY: the block is BLOCK_BYTES long, and the kernel leaves it alone until the
            // status is given back.
            let bytes = unsafe { std::slice::from_raw_parts(block, BLOCK_BYTES as usize) };
            packets(bytes, &mut take);
            status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = (self.next + 1) % BLOCKS as usize;
        }
        BLOCKS
    }

    /// What the kernel has counted since the last call.
    pub(crate) fn statistics(&self) -> Statistics {
        let mut counted = libc::tpacket_stats_v3 {
            tp_packets: 0,
            tp_drops: 0,
            tp_freeze_q_cnt: 0,
        };
        let mut size = length_of::<libc::tpacket_stats_v3>();
        // SAFETY: the value is a tpacket_stats_v3, what this option writes with TPACKET_V3, and
        // `size` is its size.
        let code = unsafe {
            libc::getsockopt(
                self.socket.as_fd().as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut counted).cast(),
                &raw mut size,
            )
        };
        Statistics {
            dropped: if code == 0 {
                counted.tp_drops.into()
            } else {
                0
            },
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping that `open` made, whole, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.map.cast(), map_bytes()) };
    }
}

const fn map_bytes() -> usize {
    BLOCKS as usize * BLOCK_BYTES as usize
}

/// The size of what is passed to the kernel.
fn length_of<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or(libc::socklen_t::MAX)
}

fn attach(socket: &OwnedFd, program: &[sock_filter]) -> io::Result<()> {
    let mut program = program.to_vec();
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(io::Error::other)?,
        filter: program.as_mut_ptr(),
    };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}

fn set_option<T>(
    socket: &OwnedFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: `value` lives during the call and its size is given; what it points to (the filter)
    // does so too.
    let code = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            ptr::from_ref(value).cast(),
            length_of::<T>(),
        )
    };
    if code == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Hands over the packets of a block. Whatever the block holds, nothing beyond it is read.
fn packets(block: &[u8], take: &mut impl FnMut(Packet<'_>)) {
    let word = |at: usize| {
        let bytes = block.get(at..at.checked_add(4)?)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let header = |field: usize| word(BLOCK_HEADER_AT + field);
    let count = header(offset_of!(tpacket_hdr_v1, num_pkts)).unwrap_or(0);
    let first = header(offset_of!(tpacket_hdr_v1, offset_to_first_pkt));
    let mut at = first.map_or(usize::MAX, |at| at as usize);
    for _ in 0..count {
        let field = |field: usize| word(at.checked_add(field)?);
        let packet = || {
            let seconds = field(offset_of!(tpacket3_hdr, tp_sec))?;
            let nanoseconds = field(offset_of!(tpacket3_hdr, tp_nsec))?;
            let captured = field(offset_of!(tpacket3_hdr, tp_snaplen))? as usize;
            // Two bytes, of which the second pair is the network header's place: tp_mac, then
            // tp_net.
            let data_at = at.checked_add(offset_of!(tpacket3_hdr, tp_net))?;
            let data_at = u16::from_ne_bytes(
                block
                    .get(data_at..data_at.checked_add(2)?)?
                    .try_into()
                    .ok()?,
            );
            let from = at.checked_add(usize::from(data_at))?;
            let protocol = at.checked_add(PROTOCOL_AT)?;
            let protocol = block.get(protocol..protocol.checked_add(2)?)?;
            Some(Packet {
                time_ns: u64::from(seconds) * 1_000_000_000 + u64::from(nanoseconds),
                ethernet_type: u16::from_be_bytes(protocol.try_into().ok()?),
                wire_length: field(offset_of!(tpacket3_hdr, tp_len))?,
                bytes: block.get(from..from.checked_add(captured)?)?,
            })
        };
        if let Some(packet) = packet() {
            take(packet);
        }
        match field(offset_of!(tpacket3_hdr, tp_next_offset)) {
            Some(0) | None => return,
            Some(next) => at = at.saturating_add(next as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block with packets of these bytes.
    fn block(of: &[&[u8]]) -> Vec<u8> {
        let mut block = vec![0; 4096];
        let mut put = |at: usize, word: u32| block[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        let first = 64;
        put(
            BLOCK_HEADER_AT + offset_of!(tpacket_hdr_v1, num_pkts),
            of.len().try_into().unwrap(),
        );
        put(
            BLOCK_HEADER_AT + offset_of!(tpacket_hdr_v1, offset_to_first_pkt),
            first,
        );
        let mut at = first as usize;
        for (index, bytes) in of.iter().enumerate() {
            let length = u32::try_from(bytes.len()).unwrap();
            let data_at = u16::try_from(PROTOCOL_AT + 20).unwrap();
            let next = (usize::from(data_at) + bytes.len()).next_multiple_of(16);
            let is_last = index + 1 == of.len();
            for (field, word) in [
                (
                    offset_of!(tpacket3_hdr, tp_next_offset),
                    if is_last {
                        0
                    } else {
                        u32::try_from(next).unwrap()
                    },
                ),
                (offset_of!(tpacket3_hdr, tp_sec), 5),
                (offset_of!(tpacket3_hdr, tp_nsec), 7),
                (offset_of!(tpacket3_hdr, tp_snaplen), length),
                (offset_of!(tpacket3_hdr, tp_len), length + 100),
            ] {
                block[at + field..at + field + 4].copy_from_slice(&word.to_ne_bytes());
            }
            let net = at + offset_of!(tpacket3_hdr, tp_net);
            block[net..net + 2].copy_from_slice(&data_at.to_ne_bytes());
            block[at + PROTOCOL_AT..at + PROTOCOL_AT + 2].copy_from_slice(&[0x86, 0xdd]);
            let data = at + usize::from(data_at);
            block[data..data + bytes.len()].copy_from_slice(bytes);
            at += next;
        }
        block
    }

    #[test]
    fn the_packets_of_a_block_come_in_order() {
        let mut seen = Vec::new();
        packets(&block(&[b"one", b"second"]), &mut |packet| {
            assert_eq!(
                (packet.time_ns, packet.ethernet_type),
                (5_000_000_007, 0x86dd)
            );
            seen.push((packet.bytes.to_vec(), packet.wire_length));
        });
        assert_eq!(seen, [(b"one".to_vec(), 103), (b"second".to_vec(), 106)]);
    }

    proptest::proptest! {
        #[test]
        fn no_block_makes_it_read_beyond(bytes: Vec<u8>, damage: Vec<(u16, u8)>) {
            packets(&bytes, &mut |packet| assert!(packet.bytes.len() <= bytes.len()));
            let mut damaged = block(&[b"one", b"second", b"third"]);
            for (at, to) in damage {
                let at = usize::from(at) % 300;
                damaged[at] = to;
            }
            let mut count = 0;
            packets(&damaged, &mut |packet| {
                count += 1;
                assert!(packet.bytes.len() <= 4096 && count <= 1 << 20);
            });
        }
    }
}
