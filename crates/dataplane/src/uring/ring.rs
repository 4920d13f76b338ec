//! The ring of a shard: its set-up, its listening sockets, and the system call.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};

use super::buffers::Buffers;
use super::completion::{Pending, Tag};
use super::config::UringConfig;
use super::flows::{Bounds, UringCalls};
use crate::api::{ListenerId, Time};
use crate::error::Error;

/// Entries of the submission queue. A batch needs at most a few for each event.
const SUBMISSIONS: u32 = 1024;
/// `IORING_ENTER_GETEVENTS` of linux/io_uring.h: run completions, wait for none.
const ENTER_GETEVENTS: u32 = 1;
/// Entries of the completion queue; what does not fit waits in the kernel.
const COMPLETIONS: u32 = 8192;
/// After an accept failed (for want of descriptors, say), the next one waits this long.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A connection on its way to another shard.
#[derive(Debug)]
pub struct UringTransfer {
    pub(super) socket: OwnedFd,
    pub(super) peer: Option<SocketAddr>,
    pub(super) listener: ListenerId,
    pub(super) pending: Vec<u8>,
    pub(super) held_bytes: usize,
    pub(super) has_finished: bool,
}

/// One listening socket.
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    pub(super) is_armed: bool,
    pub(super) retry_at: Time,
}

/// The backend. The field `ring` comes first, so that it is closed before the memory that it knows.
pub struct Uring {
    pub(super) ring: IoUring,
    pub(super) calls: UringCalls,
    pub(super) buffers: Buffers,
    pub(super) listeners: Vec<Listener>,
    pub(super) is_listening: bool,
    pub(super) config: UringConfig,
    pub(super) pending: Vec<Pending>,
    pub(super) departing: Vec<u32>,
    pub(super) foreign: VecDeque<(u16, UringTransfer)>,
    pub(super) has_unsubmitted: bool,
    pub(super) next_sweep: Time,
    pub(super) polls: u32,
}

impl Uring {
    /// Sets the ring up on the calling thread, which must be the one that runs the shard.
    ///
    /// # Errors
    /// The kernel lacks io_uring or one of its features, or forbids it.
    pub fn new(mut config: UringConfig) -> Result<Self, Error> {
        let mut builder = IoUring::builder();
        builder
            .setup_single_issuer()
            .setup_cqsize(COMPLETIONS)
            .setup_submit_all()
            .dontfork();
        match config.submission_thread_idle {
            Some(idle) => {
                builder.setup_sqpoll(u32::try_from(idle.as_millis()).unwrap_or(u32::MAX));
                if let Some(cpu) = config.submission_thread_cpu {
                    builder.setup_sqpoll_cpu(cpu);
                }
            }
            None => {
                builder.setup_defer_taskrun().setup_taskrun_flag();
            }
        }
        let ring = builder.build(SUBMISSIONS).map_err(Error::no_uring)?;
        let buffers = Buffers::new(&ring.submitter(), config.receive_buffers)?;
        if config.registers_sockets {
            let places = u32::try_from(config.flows_max).unwrap_or(u32::MAX);
            let registered = ring.submitter().register_files_sparse(places);
            registered.map_err(Error::no_uring)?;
        }
        let listeners = std::mem::take(&mut config.listeners)
            .into_iter()
            .map(|socket| Listener {
                socket,
                is_armed: false,
                retry_at: Time::default(),
            })
            .collect();
        let mut uring = Self {
            ring,
            calls: UringCalls::new(Bounds {
                flows_max: config.flows_max,
                receive_window_bytes: config.receive_window_bytes,
                send_queue_bytes: config.send_queue_bytes,
                send_memory_bytes: config.send_memory_bytes,
            }),
            buffers,
            listeners,
            is_listening: true,
            config,
            pending: Vec::with_capacity(crate::batch::BOUND_MAX),
            departing: Vec::new(),
            foreign: VecDeque::new(),
            has_unsubmitted: false,
            next_sweep: Time::now(),
            polls: 0,
        };
        uring.arm_listeners();
        Ok(uring)
    }

    /// Queues one request for the kernel.
    #[inline]
    pub(super) fn push(&mut self, entry: squeue::Entry) {
        loop {
            // SAFETY: every entry made in `uring` points to memory that lives until its
            // completion: send buffers and addresses stay in their flow, receive buffers in
            // `Buffers`, buffers of files in `Files`.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            self.has_unsubmitted = true;
            if pushed.is_ok() {
                return;
            }
            // Full: hand over what is there. An error shows again at the next flush.
            let _ = self.ring.submit();
        }
    }

    pub(super) fn arm_listeners(&mut self) {
        if !self.is_listening {
            return;
        }
        for index in 0..self.listeners.len() {
            let listener = &self.listeners[index];
            if listener.is_armed
                || (listener.retry_at > Time::default() && listener.retry_at > Time::now())
            {
                continue;
            }
            let fd = Fd(listener.socket.as_raw_fd());
            self.listeners[index].is_armed = true;
            let index = u32::try_from(index).unwrap_or(0);
            let accept = opcode::AcceptMulti::new(fd)
                .flags(libc::SOCK_CLOEXEC)
                .build();
            self.push(accept.user_data(Tag::Accept.encode(index)));
        }
    }

    /// Whether a system call would bring completions.
    #[inline]
    pub(super) fn has_more(&mut self) -> bool {
        let queue = self.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// One system call: hands over what is queued and runs what completed.
    #[inline]
    pub(super) fn enter(&mut self) -> Result<(), Error> {
        self.has_unsubmitted = false;
        let queued = self.ring.submission().len();
        let entered = if self.config.submission_thread_idle.is_some() {
            // The kernel's thread takes the queue; it is woken if it sleeps. Completions for which
            // there was no room come with a system call, which is made where there are some.
            self.ring.submit()
        } else {
            let queued = u32::try_from(queued).unwrap_or(u32::MAX);
            // SAFETY: no argument is passed, and the queue holds only entries made by `push`.
            unsafe {
                self.ring
                    .submitter()
                    .enter::<libc::sigset_t>(queued, 0, ENTER_GETEVENTS, None)
            }
        };
        match entered {
            Ok(_) => Ok(()),
            // The completion queue is full, or a signal came: the next turn goes on.
            Err(error) if is_passing(&error) => Ok(()),
            Err(source) => Err(Error::Os {
                call: "io_uring_enter",
                source,
            }),
        }
    }
}

/// Whether the call may simply be made again.
pub(super) fn is_passing(error: &std::io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EBUSY | libc::EAGAIN | libc::EINTR | libc::ETIME)
    )
}
