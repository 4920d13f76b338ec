//! Get Features and Set Features.

use std::sync::atomic::Ordering;

use super::IO_QUEUES;
use super::command::{Status, SubmissionEntry};
use super::controller::NvmeController;

const ARBITRATION: u8 = 0x01;
const POWER: u8 = 0x02;
const TEMPERATURE: u8 = 0x04;
const ERROR_RECOVERY: u8 = 0x05;
const WRITE_CACHE: u8 = 0x06;
const QUEUES: u8 = 0x07;
const ATOMICITY: u8 = 0x0a;
const EVENTS: u8 = 0x0b;
const KEEP_ALIVE: u8 = 0x0f;
/// Host Identifier: the only feature with a data structure.
pub const HOST_ID: u8 = 0x81;
/// Bytes of that structure.
pub const HOST_ID_BYTES: usize = 16;

/// What can be set and means nothing here: it is kept, and given back.
#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    arbitration: u32,
    temperature: u32,
    error_recovery: u32,
    atomicity: u32,
}

/// The features of one controller.
#[derive(Debug, Clone, Copy, Default)]
pub struct Features {
    kept: Kept,
    /// Which events the host wants to hear of.
    pub events: u32,
}

/// What a feature is.
pub enum FeatureValue {
    /// A number.
    Number(u32),
    /// A data structure.
    Data(Vec<u8>),
}

/// The queues that a controller has: numbers of submission and completion queues, less one.
fn queues() -> u32 {
    let most = u32::from(IO_QUEUES) - 1;
    most | most << 16
}

/// Whether a controller has a feature. Discovery controllers have few.
fn has(controller: &NvmeController, feature: u8) -> bool {
    let everywhere = matches!(feature, EVENTS | KEEP_ALIVE);
    let here = matches!(
        feature,
        ARBITRATION
            | POWER
            | TEMPERATURE
            | ERROR_RECOVERY
            | WRITE_CACHE
            | QUEUES
            | ATOMICITY
            | HOST_ID
    );
    everywhere || (here && !controller.is_discovery)
}

impl Features {
    fn number(&self, controller: &NvmeController, feature: u8) -> u32 {
        match feature {
            ARBITRATION => self.kept.arbitration,
            TEMPERATURE => self.kept.temperature,
            ERROR_RECOVERY => self.kept.error_recovery,
            ATOMICITY => self.kept.atomicity,
            WRITE_CACHE => u32::from(!controller.is_write_through.load(Ordering::Relaxed)),
            QUEUES => queues(),
            EVENTS => self.events,
            KEEP_ALIVE => controller.keep_alive_ms.load(Ordering::Relaxed),
            _ => 0,
        }
    }

    /// Answers Get Features.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn get(
        &self,
        controller: &NvmeController,
        entry: &SubmissionEntry,
    ) -> Result<FeatureValue, Status> {
        let (feature, select) = (entry.0[40], entry.0[41] & 7);
        if !has(controller, feature) {
            return Err(Status::INVALID_FIELD);
        }
        match select {
            0 if feature == HOST_ID => {
                // Fabrics have identifiers of 128 bits only.
                if entry.dword(11) & 1 == 0 {
                    return Err(Status::INVALID_FIELD);
                }
                Ok(FeatureValue::Data(controller.host_id.to_vec()))
            }
            0 => Ok(FeatureValue::Number(self.number(controller, feature))),
            // Select is not supported, as Identify says.
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Carries out Set Features. Gives the result of the completion.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn set(
        &mut self,
        controller: &NvmeController,
        entry: &SubmissionEntry,
    ) -> Result<u32, Status> {
        let (feature, value) = (entry.0[40], entry.dword(11));
        if !has(controller, feature) {
            return Err(Status::INVALID_FIELD);
        }
        if entry.0[43] & 0x80 != 0 {
            return Err(Status::NOT_SAVEABLE);
        }
        match feature {
            ARBITRATION => self.kept.arbitration = value,
            TEMPERATURE => self.kept.temperature = value,
            ERROR_RECOVERY => self.kept.error_recovery = value,
            ATOMICITY => self.kept.atomicity = value,
            EVENTS => self.events = value,
            KEEP_ALIVE => controller.keep_alive_ms.store(value, Ordering::Relaxed),
            WRITE_CACHE => {
                let is_off = value & 1 == 0;
                controller.is_write_through.store(is_off, Ordering::Relaxed);
            }
            QUEUES => {
                let (submission, completion) = (value & 0xffff, value >> 16);
                if submission == 0xffff || completion == 0xffff {
                    return Err(Status::INVALID_FIELD);
                }
                return Ok(queues());
            }
            // There is one power state.
            POWER if value & 0x1f == 0 => {}
            POWER => return Err(Status::INVALID_FIELD),
            _ => return Err(Status::NOT_CHANGEABLE),
        }
        Ok(0)
    }
}
