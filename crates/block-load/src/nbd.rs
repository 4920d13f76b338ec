//! An NBD server, over TCP without TLS: a client that polls, with many requests a system call.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::time::Duration;

use qos::Operation;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::LoadError;
use crate::medium::{Done, IoRequest, Medium, Payload};
use crate::outgoing::Outgoing;

const NBD_MAGIC: &[u8; 8] = b"NBDMAGIC";
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
/// `NBD_FLAG_C_FIXED_NEWSTYLE` and `NBD_FLAG_C_NO_ZEROES`.
const CLIENT_FLAGS: u32 = 3;
const REPLY_HEADER_BYTES: usize = 16;
/// What one system call receives at most.
const RECEIVE_BYTES: usize = 256 << 10;
/// A handshake that takes longer has failed.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Up to this many connections are looked at in turn; more are waited for together.
const LOOKED_AT_MAX: usize = 8;
/// How long one wait takes at most, so that the load ends in time.
const WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

struct Connection {
    stream: TcpStream,
    out: Outgoing,
    /// Part of a reply's header.
    header: Vec<u8>,
    /// The request whose data come next, and how many of them.
    reading: Option<(u32, bool, usize)>,
}

/// Connections to one export. Request `n` goes over connection `n` modulo their number.
pub struct Nbd {
    address: SocketAddr,
    connections: Vec<Connection>,
    size_bytes: u64,
    /// Bytes that each slot's answer brings.
    expected: Vec<usize>,
    /// Connections with requests that were not handed over.
    dirty: Vec<usize>,
    epoll: rustix::fd::OwnedFd,
    events: Vec<epoll::Event>,
    buffer: Vec<u8>,
    payload: Payload,
}

impl Nbd {
    /// Connects, and chooses the export.
    ///
    /// # Errors
    /// The server cannot be reached, or does not have the export.
    pub fn connect(
        address: SocketAddr,
        export: &str,
        connections: usize,
    ) -> Result<Self, LoadError> {
        Self::connect_each(address, &vec![export; connections.max(1)])
    }

    /// Connects once for each name, to these exports.
    ///
    /// # Errors
    /// As [`Nbd::connect`].
    pub fn connect_each(address: SocketAddr, exports: &[&str]) -> Result<Self, LoadError> {
        let failed = |source| LoadError::Connection { address, source };
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        let mut made = Vec::new();
        let mut size_bytes = 0;
        for (index, export) in exports.iter().enumerate() {
            let (stream, size) = handshake(address, export)?;
            size_bytes = size;
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&epoll, stream.as_fd(), data, epoll::EventFlags::IN)
                .map_err(|errno| failed(errno.into()))?;
            made.push(Connection {
                stream,
                out: Outgoing::default(),
                header: Vec::new(),
                reading: None,
            });
        }
        Ok(Self {
            address,
            connections: made,
            size_bytes,
            expected: Vec::new(),
            dirty: Vec::new(),
            epoll,
            events: Vec::with_capacity(256),
            buffer: vec![0; RECEIVE_BYTES],
            payload: Payload::default(),
        })
    }

    /// Bytes of the export of the last connection.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn failed(&self, source: std::io::Error) -> LoadError {
        LoadError::Connection {
            address: self.address,
            source,
        }
    }

    /// Hands over what was submitted, as far as the sockets take it.
    fn flush(&mut self) -> Result<(), LoadError> {
        let mut left = Vec::new();
        for index in std::mem::take(&mut self.dirty) {
            let connection = &mut self.connections[index];
            let written = connection.out.write_to(&mut connection.stream);
            if !connection.out.is_empty() {
                left.push(index);
            }
            written.map_err(|error| self.failed(error))?;
        }
        self.dirty = left;
        Ok(())
    }

    fn receive(&mut self, index: usize, done: &mut Vec<Done>) -> Result<(), LoadError> {
        loop {
            let got = match self.connections[index].stream.read(&mut self.buffer) {
                Ok(0) => return Err(self.failed(ErrorKind::UnexpectedEof.into())),
                Ok(got) => got,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.failed(error)),
            };
            let buffer = std::mem::take(&mut self.buffer);
            let parsed = self.parse(index, &buffer[..got], done);
            self.buffer = buffer;
            parsed?;
            if got < RECEIVE_BYTES {
                return Ok(());
            }
        }
    }

    fn parse(
        &mut self,
        index: usize,
        mut bytes: &[u8],
        done: &mut Vec<Done>,
    ) -> Result<(), LoadError> {
        let connection = &mut self.connections[index];
        while !bytes.is_empty() {
            if let Some((slot, is_ok, left)) = connection.reading {
                let used = left.min(bytes.len());
                bytes = &bytes[used..];
                connection.reading = (used < left).then_some((slot, is_ok, left - used));
                if used == left {
                    done.push(Done { slot, is_ok });
                }
                continue;
            }
            let used = (REPLY_HEADER_BYTES - connection.header.len()).min(bytes.len());
            connection.header.extend_from_slice(&bytes[..used]);
            bytes = &bytes[used..];
            if connection.header.len() < REPLY_HEADER_BYTES {
                return Ok(());
            }
            let word = |at: usize| {
                let bytes = &connection.header[at..at + 4];
                bytes
                    .iter()
                    .fold(0_u32, |sum, &byte| sum << 8 | u32::from(byte))
            };
            let (magic, error, slot) = (word(0), word(4), word(12));
            connection.header.clear();
            let expected = self.expected.get(slot as usize).copied();
            let (SIMPLE_REPLY_MAGIC, Some(expected)) = (magic, expected) else {
                return Err(LoadError::Protocol {
                    address: self.address,
                    what: format!("sent a reply that belongs to no request (magic {magic:#x})"),
                });
            };
            if error != 0 || expected == 0 {
                let is_ok = error == 0;
                done.push(Done { slot, is_ok });
            } else {
                connection.reading = Some((slot, true, expected));
            }
        }
        Ok(())
    }
}

impl Medium for Nbd {
    fn submit(&mut self, io: IoRequest) -> Result<(), LoadError> {
        let at = io.slot as usize;
        if self.expected.len() <= at {
            self.expected.resize(at + 1, 0);
        }
        let len_bytes = usize::try_from(io.len_bytes).unwrap_or(0);
        let is_read = io.operation == Operation::Read;
        self.expected[at] = if is_read { len_bytes } else { 0 };
        let index = at % self.connections.len();
        let connection = &mut self.connections[index];
        if connection.out.is_empty() {
            self.dirty.push(index);
        }
        let out = connection.out.bytes();
        out.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out.extend_from_slice(&u32::from(!is_read).to_be_bytes());
        out.extend_from_slice(&u64::from(io.slot).to_be_bytes());
        out.extend_from_slice(&io.offset.to_be_bytes());
        out.extend_from_slice(&io.len_bytes.to_be_bytes());
        if !is_read {
            self.payload.append(out, len_bytes);
        }
        Ok(())
    }

    fn poll(&mut self, waits: bool, done: &mut Vec<Done>) -> Result<(), LoadError> {
        self.flush()?;
        if !waits && self.connections.len() <= LOOKED_AT_MAX {
            return (0..self.connections.len()).try_for_each(|index| self.receive(index, done));
        }
        let no_time = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let timeout = if waits { WAIT } else { no_time };
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let waited = epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout));
        match waited {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(self.failed(errno.into())),
        }
        for event in &events {
            let index = usize::try_from(event.data.u64()).unwrap_or(0);
            self.receive(index, done)?;
        }
        self.events = events;
        Ok(())
    }
}

/// A connection whose requests may begin, and the export's size.
fn handshake(address: SocketAddr, export: &str) -> Result<(TcpStream, u64), LoadError> {
    let failed = |source| LoadError::Connection { address, source };
    let protocol = |what: &str| LoadError::Protocol {
        address,
        what: what.to_owned(),
    };
    let mut stream = TcpStream::connect_timeout(&address, HANDSHAKE).map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    stream.set_read_timeout(Some(HANDSHAKE)).map_err(failed)?;
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).map_err(failed)?;
    if &greeting[..8] != NBD_MAGIC || greeting[8..16] != OPTION_MAGIC.to_be_bytes() {
        return Err(protocol("does not speak fixed newstyle NBD"));
    }
    let name_bytes = u32::try_from(export.len()).unwrap_or(u32::MAX);
    let mut hello = CLIENT_FLAGS.to_be_bytes().to_vec();
    hello.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    hello.extend_from_slice(&OPTION_GO.to_be_bytes());
    hello.extend_from_slice(&(name_bytes + 6).to_be_bytes());
    hello.extend_from_slice(&name_bytes.to_be_bytes());
    hello.extend_from_slice(export.as_bytes());
    hello.extend_from_slice(&0_u16.to_be_bytes());
    stream.write_all(&hello).map_err(failed)?;
    let mut size_bytes = 0;
    loop {
        let mut header = [0; 20];
        stream.read_exact(&mut header).map_err(failed)?;
        let number = |range: Range| {
            let bytes = &header[range.0..range.1];
            bytes
                .iter()
                .fold(0_u64, |sum, &byte| sum << 8 | u64::from(byte))
        };
        let (magic, kind, len) = (number((0, 8)), number((12, 16)), number((16, 20)));
        if magic != REPLY_MAGIC || len > 4096 {
            return Err(protocol("answers an option wrongly"));
        }
        let mut data = vec![0; usize::try_from(len).unwrap_or(0)];
        stream.read_exact(&mut data).map_err(failed)?;
        match u32::try_from(kind).unwrap_or(0) {
            REPLY_ACK => break,
            // NBD_INFO_EXPORT: a type of two bytes, and the size.
            REPLY_INFO if data.len() >= 10 && data[..2] == [0, 0] => {
                size_bytes = data[2..10]
                    .iter()
                    .fold(0, |sum, &byte| sum << 8 | u64::from(byte));
            }
            REPLY_INFO => {}
            other => {
                return Err(protocol(&format!(
                    "refuses the export {export:?} (reply {other:#x})"
                )));
            }
        }
    }
    stream.set_nonblocking(true).map_err(failed)?;
    Ok((stream, size_bytes))
}

/// From and to, of bytes in a header.
type Range = (usize, usize);
