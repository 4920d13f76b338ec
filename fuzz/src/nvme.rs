//! Any bytes at all, as a host of NVMe/TCP: PDUs, capsules, their data, commands of I/O queues.

use block_server::nbd::ExportInfo;
use block_server::nvme::command::SubmissionEntry;
use block_server::nvme::io::{self, Io};
use block_server::nvme::link::{Inbound, Link, LinkProgress};
use block_server::nvme::pdu::Pdu;

use crate::seeds::kept;
use crate::target::Target;

/// The target.
pub const TARGET: Target = Target {
    name: "nvme",
    run,
    seeds: || kept("nvme"),
    memory_max_bytes: 32 << 20,
};

/// Data of one command at most.
const DATA_BYTES: usize = 1 << 16;

fn info() -> ExportInfo {
    ExportInfo {
        size_bytes: 1 << 20,
        is_read_only: false,
        preferred_block_bytes: 4096,
        description: String::new(),
    }
}

fn inbound(entry: SubmissionEntry, len_bytes: usize) -> Inbound {
    Inbound {
        buffer: dataplane::file::FileBuffer::zeroed(len_bytes),
        len_bytes,
        ..Inbound::bare(entry, 0)
    }
}

fn complete(command: &Inbound, seen: &mut Vec<(Vec<u8>, Vec<u8>)>) {
    let entry = command.entry;
    if let Ok(Io::Ranges { count, .. }) = io::parse(&entry, &info(), DATA_BYTES, false)
        && let Ok(requests) = io::ranges(
            command.data(),
            count.min(command.data().len() / 16),
            &info(),
        )
    {
        for request in requests {
            assert!(request.offset + request.len_bytes <= 1 << 20);
        }
    }
    seen.push((entry.0.to_vec(), command.data().to_vec()));
}

/// The commands that were complete, if the bytes come in pieces of this length.
fn commands(bytes: &[u8], piece: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut link = Link::new();
    let mut seen = Vec::new();
    let (mut at, mut end) = (0, 0);
    loop {
        let rest = &bytes[at..end];
        if link.is_in_body() {
            let (used, progress) = link.body(rest);
            assert!(used <= rest.len());
            at += used;
            match progress {
                LinkProgress::More => {}
                LinkProgress::Over => continue,
                LinkProgress::Command(command) => {
                    complete(&command, &mut seen);
                    continue;
                }
            }
        } else {
            match link.peek(rest) {
                Err(_) => return seen,
                Ok(None) => {}
                Ok(Some((pdu, used))) => {
                    assert!(used > 0 && used <= rest.len());
                    match pdu {
                        Pdu::Terminate => return seen,
                        Pdu::Initialize { alignment, digests } => link.agree(digests, alignment),
                        Pdu::Data { .. } => {
                            if link.receive_data(&pdu, rest).is_err() {
                                return seen;
                            }
                        }
                        Pdu::Command { entry, data_bytes } => {
                            let entry = SubmissionEntry(entry);
                            let _ = entry.sgl();
                            if data_bytes > DATA_BYTES {
                                link.discard(data_bytes);
                            } else if data_bytes > 0 {
                                link.receive(inbound(entry, data_bytes));
                            } else if let Ok(io) = io::parse(&entry, &info(), DATA_BYTES, false) {
                                let wanted = io.payload_bytes(&entry);
                                if wanted > 0 && wanted <= DATA_BYTES && seen.len() < 64 {
                                    link.ask(inbound(entry, wanted));
                                }
                                if let Io::Request(request) = io {
                                    assert!(request.offset + request.len_bytes <= 1 << 20);
                                }
                            }
                        }
                    }
                    at += used;
                    continue;
                }
            }
        }
        // It waits for more bytes.
        if end == bytes.len() {
            return seen;
        }
        end = (end + piece).min(bytes.len());
    }
}

fn run(data: &[u8]) -> bool {
    let Some((&how, bytes)) = data.split_first() else {
        return false;
    };
    let whole = commands(bytes, bytes.len().max(1));
    assert_eq!(whole, commands(bytes, usize::from(how).max(1)));
    !whole.is_empty()
}
