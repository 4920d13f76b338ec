//! The BPF program: six instructions that lead each frame of a queue to the queue's socket.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use super::error::XdpError;
use super::interface::Interface;
use super::sys;
use crate::launch::{ADDRESS_HELD, TRY_EVERY};

/// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE` of linux/if_link.h.
const FLAGS_GENERIC: u32 = 1 << 1;
const FLAGS_DRIVER: u32 = 1 << 2;

/// How frames get from the device to the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// The best that works: zero-copy, then the driver's copy mode, then the generic one. On veth
    /// with one queue the generic mode is faster than the driver's, and is taken first.
    Auto,
    /// The generic mode (SKB), which every driver has.
    Generic,
    /// The driver's mode, with zero-copy if it has that.
    Driver,
}

/// The program on an interface. The shards of a server share one, a queue each.
#[derive(Debug)]
pub struct Program {
    map: OwnedFd,
    is_generic: bool,
    /// Detaches the program when dropped, or when this process ends in any way.
    _link: OwnedFd,
}

impl Program {
    /// Attaches the program for the queues 0 to `queues` − 1. Frames of a queue without a socket go
    /// on to the kernel. While another program is attached, it is tried again for
    /// [`ADDRESS_HELD`]: the stack's process of an isolated server that was killed lets go of the
    /// interface a moment after the server's end.
    ///
    /// # Errors
    /// A privilege is missing, or another program is attached. Nothing is changed then.
    pub fn attach(interface: &Interface, queues: u32, mode: XdpMode) -> Result<Program, XdpError> {
        let step = |action| move |source| XdpError::of(action, source);
        let map = sys::create_socket_map(queues).map_err(step("making a BPF map"))?;
        let program =
            sys::load_program(&instructions(&map)).map_err(step("loading the BPF program"))?;
        let until = Instant::now() + ADDRESS_HELD;
        let (link, is_generic) = loop {
            match link(&program, interface, mode) {
                Err(XdpError::OtherProgram { .. }) if Instant::now() < until => {
                    std::thread::sleep(TRY_EVERY);
                }
                outcome => break outcome?,
            }
        };
        Ok(Program {
            map,
            is_generic,
            _link: link,
        })
    }

    /// Whether the program runs in the generic mode.
    pub fn is_generic(&self) -> bool {
        self.is_generic
    }

    /// Leads a queue's frames to a socket.
    pub(super) fn lead(&self, queue: u32, socket: &OwnedFd) -> Result<(), XdpError> {
        sys::set_socket(&self.map, queue, socket)
            .map_err(|source| XdpError::of("filling the BPF map", source))
    }
}

/// Attaches a program in the first mode that works. Gives the link, and whether the mode is the
/// generic one.
fn link(
    program: &OwnedFd,
    interface: &Interface,
    mode: XdpMode,
) -> Result<(OwnedFd, bool), XdpError> {
    let mut result = Err(XdpError::of(
        "choosing a mode",
        std::io::Error::from_raw_os_error(libc::EOPNOTSUPP),
    ));
    for is_generic in order(interface, mode) {
        let flags = if *is_generic {
            FLAGS_GENERIC
        } else {
            FLAGS_DRIVER
        };
        result = sys::link_program(program, interface.index, flags)
            .map_err(|source| failed(interface, source))
            .map(|link| (link, *is_generic));
        if !matches!(
            result,
            Err(XdpError::Os { .. } | XdpError::NoKernelSupport { .. })
        ) {
            break;
        }
    }
    result
}

/// Which modes are tried: true for the generic one.
fn order(interface: &Interface, mode: XdpMode) -> &'static [bool] {
    match mode {
        XdpMode::Generic => &[true],
        XdpMode::Driver => &[false],
        // On veth the generic mode is faster than the driver's (docs/results/dataplane.md), but
        // takes every frame for one of the first queue.
        XdpMode::Auto if interface.driver == "veth" && interface.queues.receive == 1 => {
            &[true, false]
        }
        XdpMode::Auto => &[false, true],
    }
}

fn failed(interface: &Interface, source: std::io::Error) -> XdpError {
    match source.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => XdpError::OtherProgram {
            interface: interface.name.clone(),
            source,
        },
        _ => XdpError::of("attaching the BPF program", source),
    }
}

/// `XDP_PASS`: what becomes of a frame whose queue has no socket.
const XDP_PASS: i32 = 2;
/// Number of the helper `bpf_redirect_map`.
const REDIRECT_MAP: i32 = 51;
/// Offset of `rx_queue_index` in `struct xdp_md`.
const QUEUE_OFFSET: u16 = 16;

/// One instruction: opcode, destination and source register, offset, constant.
fn instruction(opcode: u8, destination: u8, source: u8, offset: u16, constant: i32) -> u64 {
    let [o0, o1] = offset.to_ne_bytes();
    let [c0, c1, c2, c3] = constant.to_ne_bytes();
    u64::from_ne_bytes([opcode, source << 4 | destination, o0, o1, c0, c1, c2, c3])
}

/// `return bpf_redirect_map(&map, context->rx_queue_index, XDP_PASS)`.
fn instructions(map: &OwnedFd) -> [u64; 6] {
    [
        // r2 = *(u32 *)(r1 + 16)
        instruction(0x61, 2, 1, QUEUE_OFFSET, 0),
        // r1 = the map: two places long, with source 1 for a descriptor.
        instruction(0x18, 1, 1, 0, map.as_raw_fd()),
        instruction(0, 0, 0, 0, 0),
        // r3 = XDP_PASS
        instruction(0xb7, 3, 0, 0, XDP_PASS),
        // call bpf_redirect_map
        instruction(0x85, 0, 0, 0, REDIRECT_MAP),
        // exit
        instruction(0x95, 0, 0, 0, 0),
    ]
}
