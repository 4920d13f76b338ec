//! Log pages.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Structure;
use super::command::Status;
use super::controller::{ERRORS_KEPT, NvmeController};
use super::identify::ALL_NAMESPACES;
use super::view::AdminView;
use crate::export::ExportStats;

/// Error Information.
pub const ERRORS: u8 = 0x01;
/// SMART / Health Information.
pub const HEALTH: u8 = 0x02;
/// Firmware Slot Information.
pub const FIRMWARE: u8 = 0x03;
/// Changed Namespace List.
pub const CHANGED: u8 = 0x04;
/// Commands Supported and Effects.
pub const COMMANDS: u8 = 0x05;
/// Discovery.
pub const DISCOVERY: u8 = 0x70;

/// Bytes that the specification counts data in: 1,000 blocks of 512 bytes.
const DATA_UNIT_BYTES: u64 = 512_000;

/// A log page of a controller.
///
/// # Errors
/// The status to answer with.
pub fn page(
    view: &AdminView<'_>,
    controller: &NvmeController,
    changed: &BTreeSet<u32>,
    (which, namespace): (u8, u32),
) -> Result<Vec<u8>, Status> {
    match (which, controller.is_discovery) {
        (DISCOVERY, true) => Ok(view.subsystem.discovery_log()),
        (ERRORS, false) => Ok(errors(controller)),
        // Of single namespaces there is none (Identify, LPA).
        (HEALTH, false) if namespace != 0 && namespace != ALL_NAMESPACES => {
            Err(Status::INVALID_FIELD)
        }
        (HEALTH, false) => Ok(health(view, controller)),
        (FIRMWARE, false) => Ok(firmware()),
        (CHANGED, false) => Ok(changed_list(changed)),
        (COMMANDS, false) => Ok(commands()),
        _ => Err(Status::INVALID_LOG),
    }
}

fn errors(controller: &NvmeController) -> Vec<u8> {
    let mut page = Structure::new(64 * ERRORS_KEPT);
    let (_, entries) = controller.errors();
    for (index, entry) in entries.iter().enumerate() {
        let at = 64 * index;
        page.u64(at, entry.count)
            .u16(at + 8, entry.queue)
            .u16(at + 10, entry.cid)
            .u16(at + 12, entry.status.field())
            // No particular byte of the command.
            .u16(at + 14, 0xffff)
            .u64(at + 16, entry.block)
            .u32(at + 24, entry.namespace);
    }
    page.bytes()
}

fn health(view: &AdminView<'_>, controller: &NvmeController) -> Vec<u8> {
    let sum = |pick: fn(&ExportStats) -> &AtomicU64| -> u64 {
        let stats = view.visible().flat_map(|(_, export)| export.stats.iter());
        stats.map(|stats| pick(stats).load(Ordering::Relaxed)).sum()
    };
    let mut page = Structure::new(512);
    // All of the spare capacity is there, as far as the server can know.
    page.u8(3, 100);
    page.u64(32, sum(|stats| &stats.read_bytes).div_ceil(DATA_UNIT_BYTES));
    page.u64(
        48,
        sum(|stats| &stats.written_bytes).div_ceil(DATA_UNIT_BYTES),
    );
    page.u64(64, sum(|stats| &stats.reads));
    page.u64(80, sum(|stats| &stats.writes));
    page.u64(176, controller.errors().0);
    page.bytes()
}

fn firmware() -> Vec<u8> {
    let mut page = Structure::new(512);
    page.u8(0, 1).text(8, 8, env!("CARGO_PKG_VERSION"));
    page.bytes()
}

fn changed_list(changed: &BTreeSet<u32>) -> Vec<u8> {
    let mut page = Structure::new(4096);
    if changed.len() > 1024 {
        page.u32(0, ALL_NAMESPACES);
        return page.bytes();
    }
    for (index, &number) in changed.iter().enumerate() {
        page.u32(4 * index, number);
    }
    page.bytes()
}

fn commands() -> Vec<u8> {
    let mut page = Structure::new(4096);
    // Get Log Page, Identify, Abort, Set Features, Get Features, Asynchronous Event Request, Keep
    // Alive.
    for opcode in [0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18] {
        page.u32(4 * opcode, 1);
    }
    // Flush and Read; Write, Write Zeroes and Dataset Management change blocks.
    for (opcode, effects) in [(0x00, 1), (0x02, 1), (0x01, 3), (0x08, 3), (0x09, 3)] {
        page.u32(1024 + 4 * opcode, effects);
    }
    page.bytes()
}
