//! The TCP stack and the application as two processes with shared rings, as IX protects one from
//! the other (Belay et al., OSDI'14, section 4.2): a fault in the parser of an application owns no
//! raw interface.
//!
//! Each shard has two rings in a sealed file in memory. Commands go from the application to the
//! stack, events come back. In the application's process [`ApplicationSide`] is the shard's
//! backend. In the stack's process [`StackSide`] is a backend that carries another one's events to
//! the ring. So neither the application nor the stack knows of the other process.
//!
//! | file | subject |
//! |---|---|
//! | `violation` | what one process may not do to the other |
//! | `memory` | the sealed file, and where the rings lie in it |
//! | `ring` | records that one side writes and the other reads, each check of a position |
//! | `message` | what records say |
//! | `outbox` | records that wait for room, and the wake-up of the other side |
//! | `application` | the backend of the application's process |
//! | `stack` | the backend of the stack's process |
//! | `process` | how the stack's process starts, and how each hears of the other's end |
//!
//! What bounds the memory of each side:
//!
//! - Bytes that a flow has queued count against its credit until the peer has acknowledged them.
//!   All flows together have [`Limits::pool_bytes`]. The application keeps to that, and the stack
//!   checks it.
//! - Bytes that were received count against the flow's window until the application is done with
//!   them. While the ring of events is full, no frame is taken from the interface.
//! - While the ring of commands is full, the application gets no events.
//!
//! A command of the application may name a flow that has ended meanwhile: such a command does
//! nothing. Everything else that cannot be is a [`Violation`].

mod application;
mod memory;
mod message;
mod outbox;
mod process;
mod ring;
mod stack;
mod violation;

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

pub use application::{ApplicationCalls, ApplicationSide};
pub use memory::RING_BYTES;
pub use process::{ApplicationProcess, FOR_STACK_PROCESS, ProcessError, StackProcess};
pub use stack::{NoApplication, Queued, StackSide};
pub use violation::{Side, Violation};

use crate::error::Error;
use memory::{Memory, Place, Which};
use ring::{Reader, Writer};

/// What one process may ask of the other. Both have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Flows of one shard at most: their indices are below this.
    pub flows_max: usize,
    /// Bytes that one flow may have queued.
    pub queue_bytes: usize,
    /// Bytes that all flows of one shard may have queued.
    pub pool_bytes: usize,
}

/// Two rings of a shard, as descriptors.
#[derive(Debug)]
pub struct Rings {
    memory: OwnedFd,
    /// Wakes the application.
    wake_application: OwnedFd,
    /// Wakes the stack.
    wake_stack: OwnedFd,
    ring_bytes: usize,
}

/// One side's ends of the two rings.
#[derive(Debug)]
pub(crate) struct Ends {
    writer: Writer,
    reader: Reader,
    /// Wakes the other side.
    wake_other: OwnedFd,
    /// Wakes this side.
    wake: OwnedFd,
}

impl Rings {
    /// Two empty rings of `ring_bytes` each: a power of two, 64 KiB at least. [`RING_BYTES`] is
    /// the usual size.
    ///
    /// # Errors
    /// The size cannot be, or the kernel has no memory or no descriptors for them.
    pub fn new(ring_bytes: usize) -> Result<Rings, Error> {
        if !ring_bytes.is_power_of_two() || ring_bytes < 2 * ring::PAYLOAD_MAX_BYTES {
            return Err(Error::Backend(format!(
                "a ring of {ring_bytes} bytes: a power of two from 65536 on is needed"
            )));
        }
        let wake = || {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            eventfd(0, flags).map_err(|error| Error::Os {
                call: "eventfd",
                source: error.into(),
            })
        };
        Ok(Rings {
            memory: memory::create(ring_bytes)?,
            wake_application: wake()?,
            wake_stack: wake()?,
            ring_bytes,
        })
    }

    /// The same rings once more: for the other side, where both are in one process.
    ///
    /// # Errors
    /// The process may have no more descriptors.
    pub fn try_clone(&self) -> Result<Rings, Error> {
        let copy = |fd: &OwnedFd| {
            fd.try_clone().map_err(|source| Error::Os {
                call: "dup",
                source,
            })
        };
        Ok(Rings {
            memory: copy(&self.memory)?,
            wake_application: copy(&self.wake_application)?,
            wake_stack: copy(&self.wake_stack)?,
            ring_bytes: self.ring_bytes,
        })
    }

    /// The file that both sides map. Whoever has it may write anything.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Maps the memory for one side.
    fn ends(self, side: Side) -> Result<Ends, Error> {
        let memory = Memory::map(&self.memory, self.ring_bytes)?;
        let place = |which| Place::of(&memory, which);
        let (commands, events) = (Which::Commands, Which::Events);
        Ok(match side {
            Side::Application => Ends {
                writer: Writer::new(place(commands)),
                reader: Reader::new(place(events)),
                wake_other: self.wake_stack,
                wake: self.wake_application,
            },
            Side::Stack => Ends {
                writer: Writer::new(place(events)),
                reader: Reader::new(place(commands)),
                wake_other: self.wake_application,
                wake: self.wake_stack,
            },
        })
    }
}

/// An error of the runtime for what `side` did.
fn broken(side: Side) -> impl Fn(Violation) -> Error {
    move |violation| Error::Rings { side, violation }
}

/// Empties an eventfd, so that it can wake again.
fn drain(wake: &OwnedFd) {
    let mut counter = [0; 8];
    // An empty one says so at once.
    let _ = rustix::io::read(wake, &mut counter);
}

#[cfg(test)]
mod tests;
