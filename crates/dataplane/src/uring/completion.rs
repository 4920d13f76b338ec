//! What a completion belongs to, and the event that it makes.

use super::flows::Local;
use crate::api::FlowId;

/// What a completion belongs to: the upper half of its user data. The lower half is an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Tag {
    Accept = 1,
    Receive,
    Send,
    Connect,
    Wake,
    Ignored,
    File,
    ReceiveLent,
}

impl Tag {
    #[inline]
    pub(super) fn encode(self, index: u32) -> u64 {
        (self as u64) << 32 | u64::from(index)
    }

    #[inline]
    pub(super) fn decode(data: u64) -> (Option<Self>, u32) {
        let tags = [
            Self::Accept,
            Self::Receive,
            Self::Send,
            Self::Connect,
            Self::Wake,
            Self::Ignored,
            Self::File,
            Self::ReceiveLent,
        ];
        let tag = tags.into_iter().find(|&tag| tag as u64 == data >> 32);
        (tag, u32::try_from(data & 0xffff_ffff).unwrap_or(0))
    }
}

/// An event that waits for [`crate::Backend::deliver`].
#[derive(Debug, Clone, Copy)]
pub(super) enum Pending {
    Received {
        flow: FlowId,
        buffer: u16,
        len_bytes: usize,
    },
    /// Bytes arrived in lent memory.
    Filled(FlowId),
    Connected(FlowId),
    PeerFinished(FlowId),
    Local(Local),
    File {
        index: u32,
        result: i32,
    },
}
