//! What can keep AF_XDP from working, and what to do about it.

use std::io;

/// Errors of the AF_XDP backend.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// No such interface in this network namespace.
    #[error("no interface {interface} in this network namespace ({source}): `ip link` lists them")]
    NoInterface {
        /// The name.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The interface is no Ethernet interface.
    #[error("{interface} is no Ethernet interface: AF_XDP here needs one")]
    NotEthernet {
        /// The name.
        interface: String,
    },
    /// No listening address is an address of the interface.
    #[error(
        "{address} is no address of {interface}: listen on one of its addresses ({known}), \
         or add the address with `ip address add`"
    )]
    ForeignAddress {
        /// The address to listen on.
        address: String,
        /// The interface.
        interface: String,
        /// Its addresses.
        known: String,
    },
    /// A privilege is missing.
    #[error(
        "{action} needs a privilege ({source}): run as root, or with the capabilities \
         CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF and CAP_IPC_LOCK"
    )]
    NoPrivilege {
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel has no AF_XDP.
    #[error(
        "this kernel cannot do that: {action} ({source}); Linux 6.6 with CONFIG_XDP_SOCKETS and \
         CONFIG_BPF_SYSCALL is needed"
    )]
    NoKernelSupport {
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another XDP program is attached.
    #[error(
        "another XDP program is attached to {interface} ({source}): nothing was changed; \
         `ip link show {interface}` names it"
    )]
    OtherProgram {
        /// The interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The interface has no such queue.
    #[error("{interface} has no queue {queue}: its receive queues are 0 to {last}")]
    NoQueue {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// The last queue that there is.
        last: u32,
    },
    /// There are fewer queues than shards.
    #[error(
        "{shards} CPUs need {shards} queues each way, but {interface} has {receive} to receive and \
         {send} to send: name fewer CPUs, or make more queues with `{command}`"
    )]
    TooFewQueues {
        /// The interface.
        interface: String,
        /// One for each CPU.
        shards: u8,
        /// Queues to receive.
        receive: u32,
        /// Queues to send.
        send: u32,
        /// What makes more.
        command: String,
    },
    /// The queue is another socket's.
    #[error(
        "queue {queue} of {interface} is in use by another AF_XDP socket, or its driver has no \
         such queue for AF_XDP ({source})"
    )]
    QueueInUse {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another failure of the system.
    #[error("{action}: {source}")]
    Os {
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl XdpError {
    /// The error for a step that failed.
    pub(super) fn of(action: &'static str, source: io::Error) -> XdpError {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => XdpError::NoPrivilege { action, source },
            Some(
                libc::EAFNOSUPPORT
                | libc::EOPNOTSUPP
                | libc::ENOSYS
                | libc::ENOPROTOOPT
                | libc::EPROTONOSUPPORT,
            ) => XdpError::NoKernelSupport { action, source },
            _ => XdpError::Os { action, source },
        }
    }

    /// Whether a privilege or a kernel feature is missing (exit code 3).
    pub fn is_missing_privilege(&self) -> bool {
        matches!(
            self,
            XdpError::NoPrivilege { .. } | XdpError::NoKernelSupport { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_a_feature_is_not_one_that_failed() {
        let of = |errno| XdpError::of("opening it", io::Error::from_raw_os_error(errno));
        for errno in [libc::EPERM, libc::EACCES] {
            assert!(of(errno).to_string().contains("CAP_BPF"));
            assert!(of(errno).is_missing_privilege());
        }
        for errno in [libc::EAFNOSUPPORT, libc::ENOSYS, libc::EOPNOTSUPP] {
            assert!(of(errno).to_string().contains("CONFIG_XDP_SOCKETS"));
            assert!(of(errno).is_missing_privilege());
        }
        assert!(!of(libc::ENOMEM).is_missing_privilege());
    }
}
