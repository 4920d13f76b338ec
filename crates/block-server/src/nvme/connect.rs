//! The Connect command: a connection becomes an admin queue or an I/O queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::command::{Status, SubmissionEntry};
use super::controller::{NvmeController, NvmeHost, Subsystem};
use super::{DISCOVERY_NQN, IO_QUEUES, NQN_MAX_BYTES, QUEUE_ENTRIES, number16};

/// Bytes of the command's data.
pub const DATA_BYTES: usize = 1024;
/// Any controller will do.
const ANY_CONTROLLER: u16 = 0xffff;
/// A discovery controller without a keep-alive timer lives no longer than this without commands
/// (Fabrics 1.1, "Discovery Controller").
const DISCOVERY_MS: u32 = 60_000;

/// What a connection became.
#[derive(Debug)]
pub struct Connected {
    /// The controller.
    pub controller: Arc<NvmeController>,
    /// The queue: 0 is the admin queue.
    pub queue: u16,
    /// Entries of the queue.
    pub entries: u16,
    /// Whether the host wants to be told of the queue's head.
    pub has_flow_control: bool,
}

/// A refusal: the status, and the result that goes with it.
pub type ConnectRefusal = (Status, u64);

/// A wrong field of the command.
fn in_command(at: u16) -> ConnectRefusal {
    (Status::CONNECT_PARAMETER, u64::from(at))
}

/// A wrong field of the data.
fn in_data(at: u16) -> ConnectRefusal {
    (Status::CONNECT_PARAMETER, 1 << 16 | u64::from(at))
}

/// A qualified name in a field of 256 bytes.
fn name(data: &[u8], at: usize) -> Option<String> {
    let field = data.get(at..at + 256)?;
    let len = field.iter().position(|&byte| byte == 0)?;
    let is_fit = (1..=NQN_MAX_BYTES).contains(&len);
    is_fit
        .then(|| String::from_utf8(field[..len].to_vec()).ok())
        .flatten()
}

/// Carries out a Connect command.
///
/// # Errors
/// The status to answer with.
pub fn connect(
    subsystem: &Subsystem,
    entry: &SubmissionEntry,
    data: &[u8],
    now_ns: u64,
) -> Result<Connected, ConnectRefusal> {
    if entry.u16_at(40) != 0 {
        return Err((Status::CONNECT_FORMAT, 0));
    }
    let (queue, size) = (entry.u16_at(42), entry.u16_at(44));
    // The size is less one.
    if size == 0 || size >= QUEUE_ENTRIES {
        return Err(in_command(44));
    }
    let has_flow_control = entry.0[46] & 1 << 2 == 0;
    let subsystem_nqn = name(data, 256).ok_or(in_data(256))?;
    let host_nqn = name(data, 512).ok_or(in_data(512))?;
    let is_discovery = subsystem_nqn == DISCOVERY_NQN;
    if !is_discovery && subsystem_nqn != subsystem.nqn {
        return Err(in_data(256));
    }
    let mut host_id = [0; 16];
    host_id.copy_from_slice(&data[..16]);
    let number = number16(data, 16);
    let controller = if queue == 0 {
        if number != ANY_CONTROLLER {
            return Err(in_data(16));
        }
        let asked_ms = entry.dword(12);
        let host = NvmeHost {
            nqn: host_nqn,
            id: host_id,
            keep_alive_ms: if is_discovery && asked_ms == 0 {
                DISCOVERY_MS
            } else {
                asked_ms
            },
            is_discovery,
        };
        let admitted = subsystem.admit(host, now_ns);
        admitted.ok_or((Status::CONNECT_BUSY, 0))?
    } else {
        let found = subsystem.find(number).filter(|known| !known.is_dead());
        let controller = found.ok_or(in_data(16))?;
        if controller.is_discovery != is_discovery {
            return Err(in_data(256));
        }
        if is_discovery || queue > IO_QUEUES {
            return Err(in_command(42));
        }
        if controller.host_nqn != host_nqn || controller.host_id != host_id {
            return Err((Status::CONNECT_HOST, 0));
        }
        let is_enabled = controller.is_enabled.load(Ordering::Acquire);
        if !is_enabled || !controller.take_queue(queue) {
            return Err((Status::SEQUENCE, 0));
        }
        controller
    };
    Ok(Connected {
        controller,
        queue,
        entries: size + 1,
        has_flow_control,
    })
}

#[cfg(test)]
mod tests {
    use super::super::pdu::ENTRY_BYTES;
    use super::*;

    fn data(number: u16, subsystem: &str, host: &str) -> Vec<u8> {
        let mut data = vec![0; DATA_BYTES];
        data[..16].copy_from_slice(&[7; 16]);
        data[16..18].copy_from_slice(&number.to_le_bytes());
        data[256..256 + subsystem.len()].copy_from_slice(subsystem.as_bytes());
        data[512..512 + host.len()].copy_from_slice(host.as_bytes());
        data
    }

    fn entry(queue: u16, size: u16) -> SubmissionEntry {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[42..44].copy_from_slice(&queue.to_le_bytes());
        bytes[44..46].copy_from_slice(&size.to_le_bytes());
        bytes[48..52].copy_from_slice(&5000_u32.to_le_bytes());
        SubmissionEntry(bytes)
    }

    #[test]
    fn admin_and_io_queues_of_one_host_are_joined_and_others_are_refused() {
        const NQN: &str = "nqn.2026-11.example:blocks";
        const HOST: &str = "nqn.2014-08.org.example:host";
        let subsystem = Subsystem::new(NQN, Vec::new(), &Vec::new());
        let try_it = |entry: &SubmissionEntry, data: &[u8]| connect(&subsystem, entry, data, 0);
        let admin = try_it(&entry(0, 31), &data(0xffff, NQN, HOST)).unwrap();
        assert_eq!((admin.queue, admin.entries), (0, 32));
        assert!(admin.has_flow_control);
        let id = admin.controller.id;
        // Not enabled yet.
        let refused = |entry: &SubmissionEntry, data: &[u8]| try_it(entry, data).unwrap_err();
        assert_eq!(
            refused(&entry(1, 127), &data(id, NQN, HOST)),
            (Status::SEQUENCE, 0)
        );
        admin.controller.is_enabled.store(true, Ordering::Release);
        let io = try_it(&entry(1, 127), &data(id, NQN, HOST)).unwrap();
        assert!(Arc::ptr_eq(&io.controller, &admin.controller));
        for (queue, size, number, nqn, host, expected) in [
            (1, 127, id, NQN, HOST, (Status::SEQUENCE, 0)),
            (2, 128, id, NQN, HOST, in_command(44)),
            (2, 0, id, NQN, HOST, in_command(44)),
            (65, 127, id, NQN, HOST, in_command(42)),
            (2, 127, id + 1, NQN, HOST, in_data(16)),
            (0, 31, id, NQN, HOST, in_data(16)),
            (2, 127, id, "nqn.other", HOST, in_data(256)),
            (2, 127, id, DISCOVERY_NQN, HOST, in_data(256)),
            (2, 127, id, NQN, "", in_data(512)),
            (2, 127, id, NQN, "nqn.other", (Status::CONNECT_HOST, 0)),
        ] {
            let answer = refused(&entry(queue, size), &data(number, nqn, host));
            assert_eq!(answer, expected, "{queue} {size} {number} {nqn} {host}");
        }
        let mut format = entry(0, 31);
        format.0[40] = 1;
        assert_eq!(
            refused(&format, &data(0xffff, NQN, HOST)),
            (Status::CONNECT_FORMAT, 0)
        );
        subsystem.remove(&admin.controller);
        assert_eq!(refused(&entry(2, 127), &data(id, NQN, HOST)), in_data(16));
        assert!(io.controller.is_dead());
    }
}
