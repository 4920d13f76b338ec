//! What the records of the two rings say.

use std::net::{IpAddr, SocketAddr};

use super::Violation;
use super::ring::Record;
use crate::api::{DeadReason, FlowId};

/// From the application to the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    /// Queue the payload.
    Send,
    /// The application is done with so many received bytes.
    RecvDone { length_bytes: u64 },
    /// Say when half of the flow's queue is free.
    Ask,
    /// Close the flow after what is queued was sent.
    Close,
    /// Close the flow at once.
    Abort,
    /// Refuse a flow that knocked.
    Reject,
    /// Accept no new flow.
    StopListening,
    /// Close all flows at once.
    AbortAll,
}

/// From the stack to the application. `freed` counts the bytes of the flow that have left its
/// queue, since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// A peer wants to connect.
    Knock {
        listener: u16,
        peer: Option<SocketAddr>,
    },
    /// The payload arrived.
    Recv { freed: u64 },
    /// Half of the queue is free, after [`Command::Ask`].
    Sent { freed: u64 },
    /// The peer sends no more.
    Finished,
    /// The flow is gone.
    Dead { reason: DeadReason },
}

fn number32(number: u64) -> Result<u32, Violation> {
    u32::try_from(number).map_err(|_| Violation::Content)
}

impl Command {
    /// The record of this command, without a payload.
    pub(super) fn record(self, flow: FlowId) -> Record {
        let (kind, number) = match self {
            Self::Send => (1, 0),
            Self::RecvDone { length_bytes } => (2, length_bytes),
            Self::Ask => (3, 0),
            Self::Close => (4, 0),
            Self::Abort => (5, 0),
            Self::Reject => (6, 0),
            Self::StopListening => (7, 0),
            Self::AbortAll => (8, 0),
        };
        Record { kind, flow, number }
    }

    /// What a record of the other process says.
    ///
    /// # Errors
    /// No command is like that.
    pub(super) fn of(record: &Record, payload: &[u8]) -> Result<Command, Violation> {
        let command = match record.kind {
            1 => Self::Send,
            2 => Self::RecvDone {
                length_bytes: record.number,
            },
            3 => Self::Ask,
            4 => Self::Close,
            5 => Self::Abort,
            6 => Self::Reject,
            7 => Self::StopListening,
            8 => Self::AbortAll,
            _ => return Err(Violation::Kind),
        };
        // Only data has a payload, and no data is empty.
        if payload.is_empty() == (command == Self::Send) {
            return Err(Violation::Content);
        }
        Ok(command)
    }
}

impl Report {
    /// The record of this report. [`Report::Knock`] has an address as its payload, which
    /// [`address`] gives.
    pub(super) fn record(self, flow: FlowId) -> Record {
        let (kind, number) = match self {
            Self::Knock { listener, peer } => {
                let port = peer.map_or(0, |peer| peer.port());
                (1, u64::from(listener) | u64::from(port) << 16)
            }
            Self::Recv { freed } => (2, freed),
            Self::Sent { freed } => (3, freed),
            Self::Finished => (4, 0),
            Self::Dead { reason } => (5, number_of(reason)),
        };
        Record { kind, flow, number }
    }

    /// What a record of the other process says.
    ///
    /// # Errors
    /// No report is like that.
    pub(super) fn of(record: &Record, payload: &[u8]) -> Result<Report, Violation> {
        let report = match record.kind {
            1 => {
                let number = number32(record.number)?;
                let [a, b, c, d] = number.to_le_bytes();
                let ip = match payload.len() {
                    0 => None,
                    4 => <[u8; 4]>::try_from(payload).ok().map(IpAddr::from),
                    16 => <[u8; 16]>::try_from(payload).ok().map(IpAddr::from),
                    _ => return Err(Violation::Content),
                };
                let port = u16::from_le_bytes([c, d]);
                return Ok(Self::Knock {
                    listener: u16::from_le_bytes([a, b]),
                    peer: ip.map(|ip| SocketAddr::new(ip, port)),
                });
            }
            2 => Self::Recv {
                freed: record.number,
            },
            3 => Self::Sent {
                freed: record.number,
            },
            4 => Self::Finished,
            5 => Self::Dead {
                reason: reason_of(record.number)?,
            },
            _ => return Err(Violation::Kind),
        };
        if payload.is_empty() == matches!(report, Self::Recv { .. }) {
            return Err(Violation::Content);
        }
        Ok(report)
    }
}

/// The bytes of a peer's address, and their number.
pub(super) fn address(peer: Option<SocketAddr>) -> ([u8; 16], usize) {
    let mut bytes = [0; 16];
    let length = match peer.map(|peer| peer.ip()) {
        None => 0,
        Some(IpAddr::V4(ip)) => {
            bytes[..4].copy_from_slice(&ip.octets());
            4
        }
        Some(IpAddr::V6(ip)) => {
            bytes = ip.octets();
            16
        }
    };
    (bytes, length)
}

fn number_of(reason: DeadReason) -> u64 {
    match reason {
        DeadReason::Closed => 0,
        DeadReason::Reset => 1,
        DeadReason::TimedOut => 2,
        DeadReason::Aborted => 3,
        DeadReason::Os(errno) => 4 | u64::from(errno.cast_unsigned()) << 32,
    }
}

fn reason_of(number: u64) -> Result<DeadReason, Violation> {
    Ok(match number {
        0 => DeadReason::Closed,
        1 => DeadReason::Reset,
        2 => DeadReason::TimedOut,
        3 => DeadReason::Aborted,
        other if other & 0xffff_ffff == 4 => DeadReason::Os(number32(other >> 32)?.cast_signed()),
        _ => return Err(Violation::Content),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOW: FlowId = FlowId {
        index: 7,
        generation: 9,
    };

    #[test]
    fn what_is_written_is_read() {
        for command in [
            Command::RecvDone {
                length_bytes: 1 << 40,
            },
            Command::Ask,
            Command::Close,
            Command::Abort,
            Command::Reject,
            Command::StopListening,
            Command::AbortAll,
        ] {
            assert_eq!(Command::of(&command.record(FLOW), &[]), Ok(command));
        }
        assert_eq!(
            Command::of(&Command::Send.record(FLOW), b"x"),
            Ok(Command::Send)
        );
        let peers = [
            None,
            Some("10.0.0.1:65535".parse().unwrap()),
            Some("[fd00::1]:1".parse().unwrap()),
        ];
        for peer in peers {
            let knock = Report::Knock {
                listener: 513,
                peer,
            };
            let (bytes, length) = address(peer);
            assert_eq!(Report::of(&knock.record(FLOW), &bytes[..length]), Ok(knock));
        }
        for reason in [
            DeadReason::Closed,
            DeadReason::Reset,
            DeadReason::TimedOut,
            DeadReason::Aborted,
            DeadReason::Os(104),
            DeadReason::Os(-1),
        ] {
            let dead = Report::Dead { reason };
            assert_eq!(Report::of(&dead.record(FLOW), &[]), Ok(dead));
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let record = |kind, number| Record {
            kind,
            flow: FLOW,
            number,
        };
        assert_eq!(Command::of(&record(0, 0), &[]), Err(Violation::Kind));
        assert_eq!(Command::of(&record(9, 0), &[]), Err(Violation::Kind));
        assert_eq!(Command::of(&record(1, 0), &[]), Err(Violation::Content));
        assert_eq!(Command::of(&record(4, 0), b"x"), Err(Violation::Content));
        assert_eq!(Report::of(&record(6, 0), &[]), Err(Violation::Kind));
        assert_eq!(Report::of(&record(2, 0), &[]), Err(Violation::Content));
        assert_eq!(Report::of(&record(3, 0), b"x"), Err(Violation::Content));
        assert_eq!(Report::of(&record(1, 0), b"12345"), Err(Violation::Content));
        assert_eq!(
            Report::of(&record(1, 1 << 32), b""),
            Err(Violation::Content)
        );
        assert_eq!(Report::of(&record(5, 5), &[]), Err(Violation::Content));
    }
}
