//! A socket of AF_XDP on one queue: frames in, frames out. Its halves may be used by two shards.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use super::error::XdpError;
use super::interface::Interface;
use super::program::Program;
use super::ring::{Area, Ring};
use super::sys;
use crate::launch::{ADDRESS_HELD, TRY_EVERY};
use crate::tcp::FrameSink;
use crate::tcp::wire::{length16, segment};

/// Frames that the kernel takes from the transmission ring in one call, if it can be told
/// (`XDP_MAX_TX_SKB_BUDGET`, Linux 6.17). The kernel's own default is 32.
const SEND_BUDGET: u32 = 256;
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;
/// Kicks in a row for one flush. A device that takes nothing is asked again with the next flush.
const KICKS_MAX: usize = 64;

/// What mode a socket has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// Zero-copy.
    ZeroCopy,
    /// The driver's mode, with copies.
    DriverCopy,
    /// The generic mode.
    Generic,
}

/// Settings of a socket.
#[derive(Clone, Copy, Debug)]
pub struct SocketConfig {
    /// The queue of the interface.
    pub queue: u32,
    /// Frames for each direction, a power of two.
    pub frames: u32,
    /// Microseconds that the kernel polls the device for on our behalf (`SO_BUSY_POLL`), if at all.
    pub busy_poll_us: Option<u32>,
    /// The checksums of segments are left to the device, or to the kernel where the device computes
    /// none (Linux 6.11). Not with zero-copy: the kernel does not help there, and this program does
    /// not ask what the device can do.
    pub leaves_checksums: bool,
    /// The memory of frames is in pages of 2 MiB, where the kernel has some.
    pub has_large_pages: bool,
}

impl Default for SocketConfig {
    fn default() -> SocketConfig {
        SocketConfig {
            queue: 0,
            frames: 8192,
            busy_poll_us: None,
            leaves_checksums: false,
            has_large_pages: false,
        }
    }
}

/// A received frame. Its memory is the socket's until [`Receiver::give_back`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) address: u64,
    pub(super) length: u32,
    /// Whether the packet goes on in the next frame.
    pub(super) is_continued: bool,
    /// Which of the shard's receivers the frame came by.
    pub(super) receiver: usize,
}

/// A bound socket.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) receiver: Receiver,
    pub(super) sender: Sender,
    pub(super) attached: Attached,
}

/// The receiving half of a socket.
#[derive(Debug)]
pub(super) struct Receiver {
    area: Area,
    frame_bytes: u32,
    ring: Ring<libc::xdp_desc>,
    fill: Ring<u64>,
    is_busy_polled: bool,
    queue: u32,
    descriptor: Arc<OwnedFd>,
}

/// The sending half of a socket.
#[derive(Debug)]
pub(super) struct Sender {
    area: Area,
    frame_bytes: u32,
    ring: Ring<libc::xdp_desc>,
    completion: Ring<u64>,
    /// Frames that are free. The one used last is used next, as it is in the cache.
    free: Vec<u64>,
    /// Frames that the kernel has.
    in_transit: u32,
    /// The frame that `FrameSink::frame` gave last.
    current: Option<u64>,
    /// Bytes in front of each frame for what the device is to do with it. 0: it is asked nothing.
    metadata_bytes: u32,
    has_unsent: bool,
    descriptor: Arc<OwnedFd>,
}

/// What belongs to a socket that is bound.
struct Bound {
    descriptor: OwnedFd,
    rings: Rings,
    metadata_bytes: u32,
}

impl Socket {
    /// Opens a socket and binds it to the queue. No frame comes before [`Receiver::lead`].
    pub(super) fn open(
        interface: &Interface,
        config: &SocketConfig,
        program: &Program,
    ) -> Result<Socket, XdpError> {
        let frames = config.frames.next_power_of_two().clamp(64, 1 << 16);
        // The kernel keeps 256 bytes of headroom in each frame (XDP_PACKET_HEADROOM).
        let frame_bytes: u32 = if interface.mtu_bytes <= 1536 {
            2048
        } else {
            4096
        };
        let length = frames as usize * frame_bytes as usize;
        let (receive_area, send_area) = Area::halves(length, config.has_large_pages)
            .map_err(|source| XdpError::of("allocating memory for frames", source))?;
        let whole = receive_area.whole();
        let mut last = None;
        let until = Instant::now() + ADDRESS_HELD;
        for attached in candidates(program) {
            let sizes = (frames, frame_bytes);
            match open_patiently(interface, config, whole, sizes, *attached, until) {
                Ok(bound) => {
                    let descriptor = Arc::new(bound.descriptor);
                    let is_busy_polled = config.busy_poll_us.is_some();
                    let (receive, fill) = (bound.rings.receive, bound.rings.fill);
                    let (transmit, completion) = (bound.rings.transmit, bound.rings.completion);
                    let address = |frame: u32| u64::from(frame) * u64::from(frame_bytes);
                    let mut receiver = Receiver {
                        area: receive_area,
                        frame_bytes,
                        ring: receive,
                        fill,
                        is_busy_polled,
                        queue: config.queue,
                        descriptor: Arc::clone(&descriptor),
                    };
                    receiver.provide((0..frames).map(address));
                    let sender = Sender {
                        area: send_area,
                        frame_bytes,
                        ring: transmit,
                        completion,
                        free: (frames..frames * 2).rev().map(address).collect(),
                        in_transit: 0,
                        current: None,
                        metadata_bytes: bound.metadata_bytes,
                        has_unsent: false,
                        descriptor,
                    };
                    return Ok(Socket {
                        receiver,
                        sender,
                        attached: *attached,
                    });
                }
                Err(error @ XdpError::NoPrivilege { .. }) => {
                    return Err(error);
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| {
            XdpError::of(
                "choosing a mode",
                io::Error::from_raw_os_error(libc::EOPNOTSUPP),
            )
        }))
    }
}

/// Tries again while the queue is in use: the kernel lets go of the queue of a process that was
/// killed a moment after its end.
fn open_patiently(
    interface: &Interface,
    config: &SocketConfig,
    area: (u64, u64),
    sizes: (u32, u32),
    attached: Attached,
    until: Instant,
) -> Result<Bound, XdpError> {
    loop {
        match try_open(interface, config, area, sizes, attached) {
            Err(XdpError::QueueInUse { source, .. })
                if source.raw_os_error() == Some(libc::EBUSY) && Instant::now() < until =>
            {
                std::thread::sleep(TRY_EVERY);
            }
            outcome => return outcome,
        }
    }
}

fn try_open(
    interface: &Interface,
    config: &SocketConfig,
    (address, length): (u64, u64),
    (frames, frame_bytes): (u32, u32),
    attached: Attached,
) -> Result<Bound, XdpError> {
    let step = |action| move |source| XdpError::of(action, source);
    let descriptor = sys::xdp_socket().map_err(step("opening an AF_XDP socket"))?;
    let register = |metadata_bytes: u32| {
        let registration = libc::xdp_umem_reg {
            addr: address,
            len: length,
            chunk_size: frame_bytes,
            headroom: 0,
            flags: match metadata_bytes {
                0 => 0,
                _ => libc::XDP_UMEM_TX_METADATA_LEN,
            },
            tx_metadata_len: metadata_bytes,
        };
        let name = libc::XDP_UMEM_REG;
        sys::set_option(&descriptor, libc::SOL_XDP, name, &registration)
    };
    let wants_metadata = config.leaves_checksums && attached != Attached::ZeroCopy;
    // Older kernels do not know metadata: checksums are completed here.
    let metadata_bytes = match wants_metadata && register(METADATA_BYTES).is_ok() {
        true => METADATA_BYTES,
        false => {
            register(0).map_err(step("registering memory for frames"))?;
            0
        }
    };
    let set = |name, value: u32| sys::set_option(&descriptor, libc::SOL_XDP, name, &value);
    for name in [
        libc::XDP_UMEM_FILL_RING,
        libc::XDP_UMEM_COMPLETION_RING,
        libc::XDP_RX_RING,
        libc::XDP_TX_RING,
    ] {
        set(name, frames).map_err(step("making the rings"))?;
    }
    // Older kernels do not know this one, and send 32 frames a call.
    let _ = set(XDP_MAX_TX_SKB_BUDGET, SEND_BUDGET.min(frames));
    let rings = Rings::map(&descriptor, frames).map_err(step("mapping the rings"))?;
    bind(&descriptor, interface, config.queue, attached)?;
    if let Some(microseconds) = config.busy_poll_us {
        busy_poll(&descriptor, microseconds).map_err(step("setting up busy polling"))?;
    }
    Ok(Bound {
        descriptor,
        rings,
        metadata_bytes,
    })
}

impl Receiver {
    /// Has the queue's frames led to the socket.
    pub(super) fn lead(&self, program: &Program) -> Result<(), XdpError> {
        program.lead(self.queue, &self.descriptor)
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Frames that wait.
    pub(super) fn waiting(&mut self) -> u32 {
        self.ring.available(u32::MAX)
    }

    /// Takes up to `most` frames, and marks them with the receiver's `number`. Returns how many
    /// still wait.
    pub(super) fn receive(&mut self, most: u32, number: usize, into: &mut Vec<Frame>) -> u32 {
        let mut count = self.ring.available(most);
        if count == 0 && (self.is_busy_polled || self.fill.needs_wakeup()) {
            sys::poll_device(&self.descriptor);
            count = self.ring.available(most);
        }
        for _ in 0..count {
            let entry = self.ring.take();
            into.push(Frame {
                address: entry.addr,
                length: entry.len,
                is_continued: entry.options & libc::XDP_PKT_CONTD != 0,
                receiver: number,
            });
        }
        if count == 0 {
            return 0;
        }
        self.ring.release();
        self.waiting()
    }

    /// A received frame's bytes.
    pub(super) fn bytes(&self, frame: &Frame) -> &[u8] {
        self.area
            .bytes(frame.address, frame.length as usize)
            .unwrap_or(&[])
    }

    /// Gives received frames back to the kernel: those marked with the receiver's `number`.
    pub(super) fn give_back(&mut self, frames: &[Frame], number: usize) {
        let base = !u64::from(self.frame_bytes - 1);
        let own = frames.iter().filter(|frame| frame.receiver == number);
        self.provide(own.map(|frame| frame.address & base));
    }

    /// The fill ring has a place for every frame there is.
    fn provide(&mut self, addresses: impl Iterator<Item = u64>) {
        for address in addresses {
            self.fill.put(address);
        }
        self.fill.submit();
    }
}

impl Sender {
    /// Whether the kernel has not taken all frames yet.
    pub(super) fn has_unsent(&self) -> bool {
        self.has_unsent
    }

    /// Takes back frames that were sent.
    pub(super) fn reclaim(&mut self) {
        if self.in_transit == 0 {
            return;
        }
        let count = self.completion.available(u32::MAX);
        let base = !u64::from(self.frame_bytes - 1);
        for _ in 0..count {
            self.free.push(self.completion.take() & base);
        }
        if count > 0 {
            self.completion.release();
            self.in_transit = self.in_transit.saturating_sub(count);
        }
    }

    /// Sends what was put into frames.
    ///
    /// # Errors
    /// The interface is gone.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.has_unsent {
            self.ring.submit();
        }
        let mut kicks = 0;
        while self.has_unsent && kicks < KICKS_MAX {
            if let Err(error) = sys::kick(&self.descriptor) {
                match error.raw_os_error() {
                    // The device or the socket's buffer is full, or the call's budget is used up.
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => {}
                    // The peer of a veth pair is down: frames are lost, as on any wire.
                    Some(libc::ENETDOWN) => {}
                    _ => return Err(error),
                }
            }
            self.has_unsent = self.ring.is_pending();
            kicks += 1;
        }
        Ok(())
    }
}

impl FrameSink for Sender {
    fn frame(&mut self, length: usize) -> Option<&mut [u8]> {
        if length > (self.frame_bytes - self.metadata_bytes) as usize {
            return None;
        }
        if self.current.is_none() {
            if self.free.is_empty() {
                self.reclaim();
            }
            if self.free.is_empty() && self.has_unsent && self.flush().is_ok() {
                self.reclaim();
            }
            if self.ring.free(1) == 0 {
                return None;
            }
            self.current = self.free.pop();
        }
        let start = self.current? + u64::from(self.metadata_bytes);
        self.area.bytes_mut(start, length)
    }

    fn send(&mut self, length: usize) {
        self.put(length, 0);
    }

    fn completes_checksums(&self) -> bool {
        self.metadata_bytes > 0
    }

    fn send_unfinished(&mut self, length: usize, tcp_start: usize) {
        let place = self.current.unwrap_or(0);
        if let Some(metadata) = self.area.bytes_mut(place, METADATA_BYTES as usize) {
            metadata.copy_from_slice(&checksum_request(tcp_start));
        }
        self.put(length, libc::XDP_TX_METADATA);
    }
}

impl Sender {
    /// Hands the frame that `FrameSink::frame` gave last to the kernel, with the next flush.
    fn put(&mut self, length: usize, options: u32) {
        if let Some(address) = self.current.take() {
            self.ring.put(libc::xdp_desc {
                addr: address + u64::from(self.metadata_bytes),
                len: u32::try_from(length).unwrap_or(0),
                options,
            });
            self.in_transit += 1;
            self.has_unsent = true;
        }
    }
}

/// Bytes of `struct xsk_tx_metadata` (linux/if_xdp.h): flags, and then what is asked.
const METADATA_BYTES: u32 = 24;

/// Asks for the checksum of a segment that begins at `tcp_start`.
fn checksum_request(tcp_start: usize) -> [u8; METADATA_BYTES as usize] {
    let mut request = [0; METADATA_BYTES as usize];
    request[..8].copy_from_slice(&u64::from(libc::XDP_TXMD_FLAGS_CHECKSUM).to_ne_bytes());
    // csum_start and csum_offset.
    request[8..10].copy_from_slice(&length16(tcp_start).to_ne_bytes());
    request[10..12].copy_from_slice(&length16(segment::CHECKSUM_AT).to_ne_bytes());
    request
}

#[derive(Debug)]
struct Rings {
    receive: Ring<libc::xdp_desc>,
    transmit: Ring<libc::xdp_desc>,
    fill: Ring<u64>,
    completion: Ring<u64>,
}

impl Rings {
    fn map(socket: &OwnedFd, size: u32) -> io::Result<Rings> {
        let places = sys::mmap_offsets(socket)?;
        let page = |offset: u64| i64::try_from(offset).map_err(io::Error::other);
        Ok(Rings {
            receive: Ring::map(socket, size, libc::XDP_PGOFF_RX_RING, &places.rx)?,
            transmit: Ring::map(socket, size, libc::XDP_PGOFF_TX_RING, &places.tx)?,
            fill: Ring::map(
                socket,
                size,
                page(libc::XDP_UMEM_PGOFF_FILL_RING)?,
                &places.fr,
            )?,
            completion: Ring::map(
                socket,
                size,
                page(libc::XDP_UMEM_PGOFF_COMPLETION_RING)?,
                &places.cr,
            )?,
        })
    }
}

fn candidates(program: &Program) -> &'static [Attached] {
    if program.is_generic() {
        &[Attached::Generic]
    } else {
        &[Attached::ZeroCopy, Attached::DriverCopy]
    }
}

fn bind(
    socket: &OwnedFd,
    interface: &Interface,
    queue: u32,
    attached: Attached,
) -> Result<(), XdpError> {
    let copy = if attached == Attached::ZeroCopy {
        libc::XDP_ZEROCOPY
    } else {
        libc::XDP_COPY
    };
    let flags = copy | libc::XDP_USE_NEED_WAKEUP;
    // Packets of more than one frame, such as a peer on the same host sends: where the kernel can.
    sys::bind(socket, interface.index, queue, flags | libc::XDP_USE_SG)
        .or_else(|_| sys::bind(socket, interface.index, queue, flags))
        .map_err(|source| match source.raw_os_error() {
            Some(libc::EBUSY | libc::EINVAL) => XdpError::QueueInUse {
                interface: interface.name.clone(),
                queue,
                source,
            },
            _ => XdpError::of("binding the AF_XDP socket", source),
        })
}

fn busy_poll(socket: &OwnedFd, microseconds: u32) -> io::Result<()> {
    const SO_BUSY_POLL: i32 = 46;
    const SO_PREFER_BUSY_POLL: i32 = 69;
    const SO_BUSY_POLL_BUDGET: i32 = 70;
    let microseconds = i32::try_from(microseconds).map_err(io::Error::other)?;
    sys::set_option(socket, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, &1i32)?;
    sys::set_option(socket, libc::SOL_SOCKET, SO_BUSY_POLL, &microseconds)?;
    sys::set_option(socket, libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, &64i32)
}
