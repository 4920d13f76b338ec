//! The two processes: how the stack's one starts, hands over the rings, and how each hears of the
//! other's end.
//!
//! The application starts the stack's process by executing a program anew, and does not fork: the
//! two then have nothing in common, not even the places of their code and data, and no unsafe code
//! is needed. The standard input of the stack's process is a socket, whose other end is the
//! application's. The kernel closes it however a process ends, and both watch a descriptor of the
//! other process (pidfd) as well.
//!
//! The order at a start: the stack's process opens the interface and sends the rings. The
//! application gives up its privileges, and says so. Only then is a frame looked at.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, sockopt,
};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getppid, pidfd_open,
};

use super::Rings;

/// System calls of the application, beside those of every server: for the end of the stack's
/// process. A descriptor of any other process cannot be had with them.
pub const FOR_STACK_PROCESS: &[libc::c_long] = &[libc::SYS_waitid, libc::SYS_pidfd_send_signal];

/// How long the stack's process may take to open the interface: a queue in use is tried again for
/// two seconds.
const START_MAX: Duration = Duration::from_secs(30);
/// How long the stack's process may take to end: each connection is reset, and the interface given
/// back.
const END_MAX: Duration = Duration::from_secs(5);
/// A message of the stack's process at most: an error in words.
const MESSAGE_MAX_BYTES: usize = 4096;
/// Descriptors of the rings of a shard.
const DESCRIPTORS: usize = 3;

/// Rings of one shard, as descriptors.
const RINGS: u8 = b'R';
/// The interface is open, and all rings have been sent.
const OPEN: u8 = b'O';
/// The interface cannot be opened: the text says why.
const REFUSED: u8 = b'E';
/// The same, because a privilege or a kernel feature is missing.
const FORBIDDEN: u8 = b'P';
/// The application is ready.
const BEGIN: u8 = b'B';

/// What can go wrong between the two processes.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The process cannot be started.
    #[error("the process of the TCP stack cannot be started: {0}")]
    Start(std::io::Error),
    /// The stack's process cannot open the interface, and says why.
    #[error("{text}")]
    Refused {
        /// The reason.
        text: String,
        /// Whether a privilege or a kernel feature is missing (exit code 3).
        is_missing_privilege: bool,
    },
    /// The stack's process has ended, and the server cannot go on without it.
    #[error("the process of the TCP stack (PID {pid}) has ended by {how}")]
    Ended {
        /// Its number.
        pid: i32,
        /// By which signal, or with which exit code.
        how: String,
    },
    /// The stack's process says nothing, or something else than it should.
    #[error("the process of the TCP stack (PID {pid}) does not start as it should: {what}")]
    Strange {
        /// Its number.
        pid: i32,
        /// What it does.
        what: &'static str,
    },
    /// This process was not started by an application of ours.
    #[error("the standard input is no socket of an application: slackline starts this itself")]
    NoApplication,
}

impl ProcessError {
    /// Whether a privilege or a kernel feature is missing (exit code 3).
    pub fn is_missing_privilege(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                is_missing_privilege: true,
                ..
            }
        )
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

/// The stack's process, as the application has it. It is ended when dropped.
#[derive(Debug)]
pub struct StackProcess {
    pid: Pid,
    process: OwnedFd,
    socket: OwnedFd,
}

impl StackProcess {
    /// Starts the process: its standard input is the socket.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(mut command: Command) -> Result<StackProcess, ProcessError> {
        let failed = |error: rustix::io::Errno| ProcessError::Start(error.into());
        let (socket, other) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(failed)?;
        let child = command
            .stdin(Stdio::from(other))
            .stdout(Stdio::null())
            .spawn()
            .map_err(ProcessError::Start)?;
        // The socket's other end is the child's alone.
        drop(command);
        let pid = Pid::from_child(&child);
        Ok(StackProcess {
            pid,
            // Nobody has waited for the child, so the number is still its own.
            process: pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?,
            socket,
        })
    }

    /// Waits until the interface is open, and takes the rings of so many shards.
    ///
    /// # Errors
    /// The stack's process refuses, ends, or does something else.
    pub fn rings(&self, shards: usize, ring_bytes: usize) -> Result<Vec<Rings>, ProcessError> {
        let mut rings = Vec::new();
        loop {
            let (message, descriptors) = self.receive()?;
            let Some((&kind, text)) = message.split_first() else {
                return Err(self.end_of());
            };
            match (kind, <[OwnedFd; DESCRIPTORS]>::try_from(descriptors)) {
                (RINGS, Ok([memory, wake_application, wake_stack])) if rings.len() < shards => {
                    rings.push(Rings {
                        memory,
                        wake_application,
                        wake_stack,
                        ring_bytes,
                    });
                }
                (OPEN, Err(_)) if rings.len() == shards => return Ok(rings),
                (REFUSED | FORBIDDEN, Err(_)) => {
                    return Err(ProcessError::Refused {
                        text: String::from_utf8_lossy(text).into_owned(),
                        is_missing_privilege: kind == FORBIDDEN,
                    });
                }
                _ => return Err(self.strange("it sends another message than expected")),
            }
        }
    }

    fn strange(&self, what: &'static str) -> ProcessError {
        ProcessError::Strange {
            pid: self.pid.as_raw_pid(),
            what,
        }
    }

    /// A message and its descriptors. An empty one is the end.
    fn receive(&self) -> Result<(Vec<u8>, Vec<OwnedFd>), ProcessError> {
        let mut watched = [PollFd::new(&self.socket, PollFlags::IN)];
        if poll(&mut watched, Some(&timespec(START_MAX))) == Ok(0) {
            return Err(self.strange("it says nothing"));
        }
        let mut message = vec![0; MESSAGE_MAX_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::net::recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut message)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
        // The other end may be closed with something unread.
        .map_or(0, |received| received.bytes);
        message.truncate(received);
        let mut descriptors = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = part {
                descriptors.extend(more);
            }
        }
        Ok((message, descriptors))
    }

    /// The application has given up its privileges: the stack may take frames.
    ///
    /// # Errors
    /// The stack's process has ended.
    pub fn begin(&self) -> Result<(), ProcessError> {
        match rustix::net::send(&self.socket, &[BEGIN], SendFlags::NOSIGNAL) {
            Ok(_) => Ok(()),
            Err(_) => Err(self.end_of()),
        }
    }

    /// Whether the process still runs.
    ///
    /// # Errors
    /// The process has ended.
    pub fn check(&self) -> Result<(), ProcessError> {
        match self.outcome(Duration::ZERO) {
            None => Ok(()),
            Some(how) => Err(self.ended(how)),
        }
    }

    fn ended(&self, how: String) -> ProcessError {
        let pid = self.pid.as_raw_pid();
        ProcessError::Ended { pid, how }
    }

    /// The error of a process that has closed its socket.
    fn end_of(&self) -> ProcessError {
        match self.outcome(END_MAX) {
            Some(how) => self.ended(how),
            None => self.strange("it has closed its socket"),
        }
    }

    /// How the process has ended, within a time. `None`: it runs on.
    fn outcome(&self, within: Duration) -> Option<String> {
        let mut watched = [PollFd::new(&self.process, PollFlags::IN)];
        if poll(&mut watched, Some(&timespec(within))) == Ok(0) {
            return None;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let status = rustix::process::waitid(WaitId::PidFd(self.process.as_fd()), options);
        Some(match status {
            Ok(None) => return None,
            Ok(Some(status)) => match (status.terminating_signal(), status.exit_status()) {
                (Some(signal), _) => format!("signal {signal}"),
                (None, Some(code)) => format!("exit code {code}"),
                (None, None) => "unknown means".into(),
            },
            // Somebody has waited for it before.
            Err(_) => "unknown means".into(),
        })
    }
}

impl Drop for StackProcess {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        if self.outcome(END_MAX).is_none() {
            let _ = rustix::process::pidfd_send_signal(&self.process, Signal::KILL);
            let _ = self.outcome(END_MAX);
        }
    }
}

/// The application's process, as that of the stack has it.
#[derive(Debug)]
pub struct ApplicationProcess {
    socket: OwnedFd,
    process: OwnedFd,
}

impl ApplicationProcess {
    /// The application that has started this process. From now on no process without privileges can
    /// look into this one, also where it has the same user.
    ///
    /// # Errors
    /// No application has.
    pub fn adopt() -> Result<ApplicationProcess, ProcessError> {
        let socket = std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .map_err(ProcessError::Start)?;
        let is_ours = sockopt::socket_type(&socket) == Ok(SocketType::SEQPACKET)
            && sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX);
        let parent = getppid().filter(|_| is_ours);
        let parent = parent.ok_or(ProcessError::NoApplication)?;
        let failed = |error: rustix::io::Errno| ProcessError::Start(error.into());
        let process = pidfd_open(parent, PidfdFlags::empty()).map_err(failed)?;
        // If the parent had ended, its number could be another process's by now.
        if getppid() != Some(parent) {
            return Err(ProcessError::NoApplication);
        }
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed)?;
        Ok(ApplicationProcess { socket, process })
    }

    /// Sends the rings of the next shard.
    ///
    /// # Errors
    /// The application has ended.
    pub fn send_rings(&self, rings: &Rings) -> Result<(), ProcessError> {
        let descriptors = [
            rings.memory.as_fd(),
            rings.wake_application.as_fd(),
            rings.wake_stack.as_fd(),
        ];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let message = [IoSlice::new(&[RINGS])];
        rustix::net::sendmsg(&self.socket, &message, &mut control, SendFlags::NOSIGNAL)
            .map(drop)
            .map_err(|error| ProcessError::Start(error.into()))
    }

    /// All rings were sent. Waits until the application is ready: false if it has ended instead.
    pub fn wait_for_begin(&self) -> bool {
        let mut message = [0; 1];
        let sent = rustix::net::send(&self.socket, &[OPEN], SendFlags::NOSIGNAL);
        sent.is_ok() && rustix::io::read(&self.socket, &mut message) == Ok(1) && message == [BEGIN]
    }

    /// Tells the application why the interface cannot be opened.
    pub fn refuse(&self, text: &str, is_missing_privilege: bool) {
        let mut message = vec![[REFUSED, FORBIDDEN][usize::from(is_missing_privilege)]];
        message.extend(text.bytes().take(MESSAGE_MAX_BYTES - 1));
        // An application that has ended need not know.
        let _ = rustix::net::send(&self.socket, &message, SendFlags::NOSIGNAL);
    }

    /// Whether the application has ended, or ends.
    pub fn has_ended(&self) -> bool {
        let mut watched = [
            PollFd::new(&self.process, PollFlags::IN),
            PollFd::new(&self.socket, PollFlags::IN),
        ];
        poll(&mut watched, Some(&timespec(Duration::ZERO))) != Ok(0)
    }
}
