//! Commands to a shard from other threads: a bounded queue and an eventfd that ends the shard's
//! sleep.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::batch::BatchPolicy;
use crate::error::Error;
use crate::idle::IdlePolicy;
use crate::lock::lock;

/// New connections and frames that may wait for a shard in its mailbox. Further connections are
/// closed, and further frames are lost. As large as the usual `net.core.somaxconn`.
const KNOCKS_MAX: usize = 4096;

/// What a shard can be told. `T` is the backend's transfer, `S` the application's state of a flow.
#[derive(Debug)]
pub enum Command<T, S> {
    /// A flow group and its flows go to another shard.
    Depart {
        /// The group.
        group: u16,
        /// The shard that takes it.
        to: u8,
    },
    /// A flow arrives from another shard.
    Arrive {
        /// Its group.
        group: u16,
        /// Its connection.
        transfer: T,
        /// The application's state of it.
        state: S,
    },
    /// What belongs to a flow group beside its flows arrives, after the flows.
    Group {
        /// The group.
        group: u16,
        /// What belongs to it.
        transfer: T,
    },
    /// A connection or a frame that another shard took, but whose group this one owns.
    Knock {
        /// Its group.
        group: u16,
        /// Its connection, or the frame.
        transfer: T,
    },
    /// Another batch policy.
    Batch(BatchPolicy),
    /// Another idle policy.
    Idle(IdlePolicy),
    /// Accept nothing more; end when all flows are gone, or after this time.
    Drain(Duration),
}

/// One shard's mailbox.
#[derive(Debug)]
pub struct Mailbox<T, S> {
    commands: Mutex<VecDeque<Command<T, S>>>,
    is_filled: AtomicBool,
    wake: OwnedFd,
}

impl<T, S> Mailbox<T, S> {
    /// An empty mailbox.
    ///
    /// # Errors
    /// No eventfd can be had.
    pub fn new() -> Result<Self, Error> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
            Error::Os {
                call: "eventfd",
                source: error.into(),
            }
        })?;
        Ok(Self {
            commands: Mutex::new(VecDeque::new()),
            is_filled: AtomicBool::new(false),
            wake,
        })
    }

    /// Leaves a command and wakes the shard. A knock is given back when too many wait.
    pub fn send(&self, command: Command<T, S>) -> Option<Command<T, S>> {
        let mut commands = lock(&self.commands);
        if matches!(command, Command::Knock { .. }) && commands.len() >= KNOCKS_MAX {
            return Some(command);
        }
        commands.push_back(command);
        drop(commands);
        self.wake();
        None
    }

    /// Ends the shard's sleep.
    pub(crate) fn wake(&self) {
        if self.is_filled.swap(true, Ordering::AcqRel) {
            // Whoever filled the mailbox wakes the shard, which empties it whole.
            return;
        }
        // The counter can only be full when the shard has a wake-up coming anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// The next command. Costs one load when there is none.
    pub(crate) fn take(&self) -> Option<Command<T, S>> {
        if !self.is_filled.load(Ordering::Acquire) {
            return None;
        }
        let mut commands = lock(&self.commands);
        let command = commands.pop_front();
        if command.is_none() {
            self.is_filled.store(false, Ordering::Release);
            let mut counter = [0; 8];
            let _ = rustix::io::read(&self.wake, &mut counter);
        }
        command
    }

    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
