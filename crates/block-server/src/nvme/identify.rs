//! Data structures of the Identify command.

use super::command::Status;
use super::controller::NvmeController;
use super::view::AdminView;
use super::{BLOCK_BYTES, DISCOVERY_NQN, IN_CAPSULE_BYTES, NAMESPACES, QUEUE_ENTRIES, Structure};
use crate::device::Storage;
use crate::export::Export;

/// Bytes of each structure.
pub const IDENTIFY_BYTES: usize = 4096;
/// The namespace number that means all.
pub const ALL_NAMESPACES: u32 = 0xffff_ffff;
/// NVM Express 1.4.
pub const VERSION: u32 = 0x0001_0400;
/// Asynchronous Event Requests at most, less one (AERL).
pub const EVENTS_MAX: u8 = 3;
/// What the controller tells of by events: namespaces that came, went or changed.
pub const NAMESPACE_EVENTS: u32 = 1 << 8;
/// Pages of memory, in whose units transfers are limited.
const PAGE_BYTES: usize = 4096;

/// Answers an Identify command.
///
/// # Errors
/// The status to answer with.
pub fn identify(
    view: &AdminView<'_>,
    controller: &NvmeController,
    which: u8,
    namespace: u32,
) -> Result<Vec<u8>, Status> {
    if controller.is_discovery && which != 1 {
        return Err(Status::INVALID_FIELD);
    }
    match which {
        0 => match view.find(namespace) {
            Some(export) => Ok(of_namespace(export)),
            // What all namespaces have in common is asked for by the number that means all. A
            // number without a namespace is answered with zeros.
            None if namespace == ALL_NAMESPACES => Ok(common()),
            None if (1..=NAMESPACES).contains(&namespace) => Ok(vec![0; IDENTIFY_BYTES]),
            None => Err(Status::INVALID_NAMESPACE),
        },
        1 => Ok(of_controller(view, controller)),
        2 => active(view, namespace),
        3 => descriptors(view, namespace),
        _ => Err(Status::INVALID_FIELD),
    }
}

fn of_controller(view: &AdminView<'_>, controller: &NvmeController) -> Vec<u8> {
    let mut page = Structure::new(IDENTIFY_BYTES);
    let pages = (view.transfer_bytes / PAGE_BYTES).max(1);
    let transfer = u8::try_from(pages.ilog2()).unwrap_or(0);
    page.text(4, 20, &view.subsystem.serial());
    page.text(24, 40, "Slackline serve-block");
    page.text(64, 8, env!("CARGO_PKG_VERSION"));
    page.u8(77, transfer)
        .u16(78, controller.id)
        .u32(80, VERSION)
        // Host identifiers of 128 bits; every command resets the keep-alive timer.
        .u32(96, 1 | 1 << 6)
        .u8(111, if controller.is_discovery { 2 } else { 1 })
        .u8(259, EVENTS_MAX)
        // Log pages: commands supported, and extended offsets and lengths.
        .u8(261, 1 << 1 | 1 << 2)
        .u8(
            262,
            u8::try_from(super::controller::ERRORS_KEPT - 1).unwrap_or(0),
        )
        // Keep-alive timers are kept to the second, in units of 100 ms.
        .u16(320, 10)
        .u16(514, QUEUE_ENTRIES)
        // SGLs, also by an offset into the capsule.
        .u32(536, 1 | 1 << 20);
    let nqn = if controller.is_discovery {
        DISCOVERY_NQN
    } else {
        &view.subsystem.nqn
    };
    page.set(768, nqn.as_bytes());
    if controller.is_discovery {
        // Capsules of the admin queue.
        let capsule_bytes = 64 + IN_CAPSULE_BYTES;
        page.u32(1792, u32::try_from(capsule_bytes / 16).unwrap_or(4))
            .u32(1796, 1);
        return page.bytes();
    }
    page
        // A subsystem may have more than one controller.
        .u8(76, 1 << 1)
        .u32(92, NAMESPACE_EVENTS)
        // Four commands may be asked to abort at once; one slot of firmware, which is read-only.
        .u8(258, 3)
        .u8(260, 1 << 1 | 1)
        // Thresholds of temperature: none are kept, so the largest are said.
        .u16(266, 0x0157)
        .u16(268, 0x0175)
        // Sizes of entries: 64 and 16 bytes.
        .u8(512, 0x66)
        .u8(513, 0x44)
        .u32(516, NAMESPACES)
        // Dataset Management, Write Zeroes.
        .u16(520, 1 << 2 | 1 << 3)
        // A volatile write cache; a flush of all namespaces at once is not supported.
        .u8(525, 1 | 2 << 1);
    let capsule_bytes = 64 + IN_CAPSULE_BYTES;
    page.u32(1792, u32::try_from(capsule_bytes / 16).unwrap_or(4))
        .u32(1796, 1)
        // One SGL descriptor a command.
        .u8(1803, 1)
        // The only power state. No figures are given.
        .u16(2048, 0);
    page.bytes()
}

/// The fields that are the same for all namespaces.
fn common() -> Vec<u8> {
    let mut page = Structure::new(IDENTIFY_BYTES);
    formats(&mut page);
    page.bytes()
}

fn formats(page: &mut Structure) {
    // Blocks of 2^9 bytes, without metadata.
    page.u8(128 + 2, 9);
}

fn of_namespace(export: &Export) -> Vec<u8> {
    let blocks = export.info.size_bytes / BLOCK_BYTES;
    let preferred = u64::from(export.info.preferred_block_bytes) / BLOCK_BYTES;
    let preferred = u16::try_from(preferred.saturating_sub(1)).unwrap_or(0);
    let mut page = Structure::new(IDENTIFY_BYTES);
    page.u64(0, blocks).u64(8, blocks).u64(16, blocks);
    // The preferred sizes and alignments below are valid.
    page.u8(24, 1 << 4);
    // Other controllers may attach the namespace.
    page.u8(30, 1);
    // Write Zeroes may deallocate. In memory, what was deallocated reads as zeros.
    let reads_zeros = match export.device.storage {
        Storage::Memory(_) => 1,
        Storage::File(_) | Storage::Unopened => 0,
    };
    page.u8(33, 1 << 3 | reads_zeros);
    for at in [64, 66, 68, 70, 72] {
        page.u16(at, preferred);
    }
    page.u8(99, u8::from(export.info.is_read_only));
    formats(&mut page);
    page.bytes()
}

/// The numbers of namespaces above `after`.
fn active(view: &AdminView<'_>, after: u32) -> Result<Vec<u8>, Status> {
    if after >= ALL_NAMESPACES - 1 {
        return Err(Status::INVALID_NAMESPACE);
    }
    let mut page = Structure::new(IDENTIFY_BYTES);
    let numbers = view.visible().map(|(number, _)| number);
    let above = numbers.filter(|&number| number > after);
    for (index, number) in above.take(IDENTIFY_BYTES / 4).enumerate() {
        page.u32(4 * index, number);
    }
    Ok(page.bytes())
}

fn descriptors(view: &AdminView<'_>, namespace: u32) -> Result<Vec<u8>, Status> {
    let export = view.find(namespace).ok_or(Status::INVALID_NAMESPACE)?;
    let mut page = Structure::new(IDENTIFY_BYTES);
    // A UUID, of 16 bytes.
    page.u8(0, 3).u8(1, 16);
    page.set(4, &view.subsystem.uuid(export));
    Ok(page.bytes())
}
