//! One connection's receiving side: capsules with their data, and data that were asked for by R2T.

use crc32c::crc32c_append;
use dataplane::file::FileBuffer;

use super::command::SubmissionEntry;
use super::number32;
use super::pdu::{DIGEST_BYTES, Digests, Fatal, FatalError, Pdu};
use crate::pool::BufferPool;

/// A command whose data have arrived, or are on their way.
#[derive(Debug)]
pub struct Inbound {
    /// The submission entry.
    pub entry: SubmissionEntry,
    /// Where the data go. Empty: nobody wants them.
    pub buffer: FileBuffer,
    /// Bytes of data.
    pub len_bytes: usize,
    /// Bytes that have arrived.
    pub filled_bytes: usize,
    /// Memory that was reserved for the command.
    pub reserved_bytes: usize,
    /// Every digest was right.
    pub is_intact: bool,
}

impl Inbound {
    /// A command without data.
    pub fn bare(entry: SubmissionEntry, reserved_bytes: usize) -> Self {
        Self {
            entry,
            buffer: FileBuffer::default(),
            len_bytes: 0,
            filled_bytes: 0,
            reserved_bytes,
            is_intact: true,
        }
    }

    /// The data.
    pub fn data(&self) -> &[u8] {
        let end = self.filled_bytes.min(self.buffer.len_bytes());
        &self.buffer.bytes()[..end]
    }

    fn take(&mut self, bytes: &[u8]) {
        let end = self.filled_bytes + bytes.len();
        if let Some(room) = self.buffer.bytes_mut().get_mut(self.filled_bytes..end) {
            room.copy_from_slice(bytes);
        }
        self.filled_bytes = end;
    }
}

/// Whose data the PDU under way carries.
enum Body {
    /// The capsule's own command.
    Capsule(Inbound),
    /// The transfer with this tag.
    Transfer(u16),
    /// Nobody's.
    Nobody,
}

/// The rest of the PDU under way.
struct Rest {
    body: Body,
    left_bytes: usize,
    crc: u32,
    digest: [u8; DIGEST_BYTES],
    /// Bytes of the digest that are still to come.
    digest_left: usize,
}

/// What [`Link::body`] gives.
#[derive(Debug)]
pub enum LinkProgress {
    /// The PDU has more data.
    More,
    /// The PDU is over.
    Over,
    /// The PDU is over, and a command is complete with it.
    Command(Inbound),
}

/// The receiving side of a connection.
#[derive(Default)]
pub struct Link {
    agreed: Option<Digests>,
    alignment: u8,
    rest: Option<Rest>,
    transfers: Vec<Option<Inbound>>,
}

impl Link {
    /// A new connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Digests that were agreed on.
    pub fn digests(&self) -> Digests {
        self.agreed.unwrap_or_default()
    }

    /// Dwords that data to the host are aligned to, less one.
    pub fn alignment(&self) -> u8 {
        self.alignment
    }

    /// Whether data of a PDU are still to come.
    pub fn is_in_body(&self) -> bool {
        self.rest.is_some()
    }

    /// Whether data were asked for that have not all come.
    pub fn has_transfers(&self) -> bool {
        self.transfers.iter().any(Option::is_some)
    }

    /// The next PDU, and where its data begin. `None`: more bytes are needed.
    ///
    /// # Errors
    /// The connection has to end.
    pub fn peek(&self, bytes: &[u8]) -> Result<Option<(Pdu, usize)>, FatalError> {
        Pdu::parse(bytes, self.agreed)
    }

    /// The connection is initialized.
    pub fn agree(&mut self, digests: Digests, alignment: u8) {
        self.agreed = Some(digests);
        self.alignment = alignment;
    }

    fn begin(&mut self, body: Body, len_bytes: usize) {
        self.rest = Some(Rest {
            body,
            left_bytes: len_bytes,
            crc: 0,
            digest: [0; DIGEST_BYTES],
            digest_left: self.digests().data_bytes(),
        });
    }

    /// The data of a capsule follow, for `command`.
    pub fn receive(&mut self, command: Inbound) {
        let len_bytes = command.len_bytes;
        self.begin(Body::Capsule(command), len_bytes);
    }

    /// The data of a capsule follow, and nobody wants them.
    pub fn discard(&mut self, len_bytes: usize) {
        self.begin(Body::Nobody, len_bytes);
    }

    /// The host is asked for the data of `command`: the tag for the R2T.
    pub fn ask(&mut self, command: Inbound) -> u16 {
        let free = self.transfers.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.transfers.push(None);
            self.transfers.len() - 1
        });
        self.transfers[at] = Some(command);
        u16::try_from(at).unwrap_or(u16::MAX)
    }

    /// Data of a transfer follow. They come in order, as the specification asks for.
    ///
    /// # Errors
    /// The data were not asked for.
    pub fn receive_data(&mut self, pdu: &Pdu, header: &[u8]) -> Result<(), FatalError> {
        let Pdu::Data {
            cid,
            tag,
            offset,
            data_bytes,
            is_last,
        } = *pdu
        else {
            return Ok(());
        };
        let wrong = |fatal, information| {
            Err(FatalError {
                fatal,
                information,
                header: header[..header.len().min(24)].to_vec(),
            })
        };
        let transfer = self.transfers.get(usize::from(tag));
        let Some(Some(transfer)) = transfer else {
            return wrong(Fatal::InvalidHeader, 10);
        };
        if transfer.entry.cid() != cid {
            return wrong(Fatal::InvalidHeader, 8);
        }
        let end = transfer.filled_bytes + data_bytes;
        if offset as usize != transfer.filled_bytes {
            return wrong(Fatal::OutOfRange, 12);
        }
        if end > transfer.len_bytes {
            return wrong(Fatal::OutOfRange, 16);
        }
        if is_last != (end == transfer.len_bytes) {
            return wrong(Fatal::InvalidHeader, 1);
        }
        self.begin(Body::Transfer(tag), data_bytes);
        Ok(())
    }

    /// Takes data of the PDU under way off `bytes`. Gives how many bytes it used.
    pub fn body(&mut self, bytes: &[u8]) -> (usize, LinkProgress) {
        let has_digest = self.digests().data;
        let Some(rest) = &mut self.rest else {
            return (0, LinkProgress::Over);
        };
        let mut used = bytes.len().min(rest.left_bytes);
        let data = &bytes[..used];
        if has_digest {
            rest.crc = crc32c_append(rest.crc, data);
        }
        rest.left_bytes -= used;
        match &mut rest.body {
            Body::Capsule(command) => command.take(data),
            Body::Transfer(tag) => {
                if let Some(Some(transfer)) = self.transfers.get_mut(usize::from(*tag)) {
                    transfer.take(data);
                }
            }
            Body::Nobody => {}
        }
        if rest.left_bytes == 0 {
            while rest.digest_left > 0 && used < bytes.len() {
                rest.digest[DIGEST_BYTES - rest.digest_left] = bytes[used];
                rest.digest_left -= 1;
                used += 1;
            }
        }
        if rest.left_bytes > 0 || rest.digest_left > 0 {
            return (used, LinkProgress::More);
        }
        let is_intact = !has_digest || number32(&rest.digest, 0) == rest.crc;
        let Some(rest) = self.rest.take() else {
            return (used, LinkProgress::Over);
        };
        (used, self.finish(rest.body, is_intact))
    }

    fn finish(&mut self, body: Body, is_intact: bool) -> LinkProgress {
        match body {
            Body::Nobody => LinkProgress::Over,
            Body::Capsule(mut command) => {
                command.is_intact &= is_intact;
                LinkProgress::Command(command)
            }
            Body::Transfer(tag) => {
                let Some(slot) = self.transfers.get_mut(usize::from(tag)) else {
                    return LinkProgress::Over;
                };
                if let Some(transfer) = slot {
                    transfer.is_intact &= is_intact;
                }
                let complete = slot.take_if(|transfer| transfer.filled_bytes == transfer.len_bytes);
                complete.map_or(LinkProgress::Over, LinkProgress::Command)
            }
        }
    }

    /// No more data come: gives back the memory of commands that wait for some. Gives how many
    /// there were, and the memory that was reserved for each.
    pub(crate) fn abandon(&mut self, pool: &mut BufferPool) -> Vec<usize> {
        let mut reserved = Vec::new();
        let body = self.rest.take().map(|rest| rest.body);
        let own = match body {
            Some(Body::Capsule(command)) => Some(command),
            _ => None,
        };
        for command in own.into_iter().chain(self.transfers.drain(..).flatten()) {
            pool.give(command.buffer);
            reserved.push(command.reserved_bytes);
        }
        reserved
    }
}
