//! An NVMe/TCP server, without digests: a host that polls, with many commands a system call.
//!
//! Only what a load needs is here: one controller, an I/O queue for each connection, reads, and
//! writes whose data fit into the capsule.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use qos::Operation;

use crate::LoadError;
use crate::medium::{Done, IoRequest, Medium, Payload};
use crate::outgoing::Outgoing;

const INITIALIZE: u8 = 0;
const TERMINATED: u8 = 3;
const COMMAND: u8 = 4;
const RESPONSE: u8 = 5;
const DATA: u8 = 7;
const COMMON_BYTES: usize = 8;
const CAPSULE_BYTES: usize = 72;
const FABRICS: u8 = 0x7f;
/// Of data: no completion follows.
const FLAG_SUCCESS: u8 = 1 << 3;
/// Commands of a queue that are under way, and the entries of a queue less one.
const QUEUE_MAX: u16 = 127;
/// Data that a capsule may carry, as the server offers it.
const IN_CAPSULE_BYTES: u32 = 8192;
const BLOCK_BYTES: u64 = 512;
const RECEIVE_BYTES: usize = 256 << 10;
const HANDSHAKE: Duration = Duration::from_secs(10);
const HOST_NQN: &[u8] = b"nqn.2014-08.org.nvmexpress:uuid:8a1ff6ba-51f9-4b7b-a6b1-0f0d8b1c7d11";
/// How long a load that does not poll sleeps when nothing has come.
const PAUSE: Duration = Duration::from_micros(20);

struct Connection {
    stream: TcpStream,
    out: Outgoing,
    /// The front of a PDU whose header has not all come.
    header: Vec<u8>,
    /// Data of the PDU under way that are still to come, and the slot that ends with them.
    left_bytes: usize,
    ends: Option<u32>,
}

/// Connections to one namespace. Request `n` goes over connection `n` modulo their number.
pub struct Nvme {
    address: SocketAddr,
    namespace: u32,
    connections: Vec<Connection>,
    /// Keeps the controller.
    _admin: TcpStream,
    buffer: Vec<u8>,
    payload: Payload,
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// A capsule: opcode, number, namespace, command dwords from 10, and data.
fn capsule(
    out: &mut Vec<u8>,
    (opcode, cid, namespace): (u8, u16, u32),
    dwords: &[u32],
    (data_bytes, is_in_capsule): (u32, bool),
) {
    let mut bytes = [0; CAPSULE_BYTES];
    let inside = if is_in_capsule { data_bytes } else { 0 };
    let data_at = if inside > 0 { 72 } else { 0 };
    put(&mut bytes, 0, &[COMMAND, 0, 72, data_at]);
    put(&mut bytes, 4, &(72 + inside).to_le_bytes());
    let entry = &mut bytes[COMMON_BYTES..];
    put(entry, 0, &[opcode, 0x40]);
    put(entry, 2, &cid.to_le_bytes());
    put(entry, 4, &namespace.to_le_bytes());
    put(entry, 32, &data_bytes.to_le_bytes());
    entry[39] = if is_in_capsule { 0x01 } else { 0x5a };
    for (at, dword) in dwords.iter().enumerate() {
        put(entry, 40 + 4 * at, &dword.to_le_bytes());
    }
    out.extend_from_slice(&bytes);
}

/// A connection that speaks the transport.
struct Handshake {
    address: SocketAddr,
    stream: TcpStream,
}

impl Handshake {
    fn failed(&self, source: std::io::Error) -> LoadError {
        let address = self.address;
        LoadError::Connection { address, source }
    }

    fn new(address: SocketAddr) -> Result<Self, LoadError> {
        let failed = |source| LoadError::Connection { address, source };
        let stream = TcpStream::connect_timeout(&address, HANDSHAKE).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_read_timeout(Some(HANDSHAKE)).map_err(failed)?;
        let mut made = Self { address, stream };
        let mut hello = [0; 128];
        put(&mut hello, 0, &[INITIALIZE, 0, 128, 0, 128]);
        let mut answer = [0; 128];
        let sent = made.stream.write_all(&hello);
        let done = sent.and_then(|()| made.stream.read_exact(&mut answer));
        done.map_err(|error| made.failed(error))?;
        Ok(made)
    }

    /// A fabrics command and its result.
    fn fabrics(&mut self, kind: u32, dwords: &[u32], data: &[u8]) -> Result<u64, LoadError> {
        let mut bytes = Vec::new();
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        capsule(
            &mut bytes,
            (FABRICS, 0, kind),
            dwords,
            (len, !data.is_empty()),
        );
        bytes.extend_from_slice(data);
        let mut answer = [0; 24];
        let sent = self.stream.write_all(&bytes);
        let done = sent.and_then(|()| self.stream.read_exact(&mut answer));
        done.map_err(|error| self.failed(error))?;
        let status = u16::from_le_bytes([answer[22], answer[23]]) >> 1;
        if answer[0] != RESPONSE || status != 0 {
            return Err(LoadError::Protocol {
                address: self.address,
                what: format!("refuses fabrics command {kind} (status {status:#x})"),
            });
        }
        let (low, high) = (&answer[8..12], &answer[12..16]);
        let word = |bytes: &[u8]| {
            bytes
                .iter()
                .rev()
                .fold(0, |sum, &b| sum << 8 | u64::from(b))
        };
        Ok(word(low) | word(high) << 32)
    }

    fn connect(&mut self, subsystem: &str, queue: u16, id: u16) -> Result<u16, LoadError> {
        let mut data = vec![0; 1024];
        put(&mut data, 0, &[9; 16]);
        put(&mut data, 16, &id.to_le_bytes());
        let name = subsystem.as_bytes();
        put(&mut data, 256, &name[..name.len().min(223)]);
        put(&mut data, 512, HOST_NQN);
        let entries = if queue == 0 { 31 } else { u32::from(QUEUE_MAX) };
        // The host does not follow the queue's head.
        let dwords = [u32::from(queue) << 16, entries | 1 << 18, 0];
        let number = self.fabrics(1, &dwords, &data)? & 0xffff;
        Ok(u16::try_from(number).unwrap_or(0))
    }
}

impl Nvme {
    /// Connects to a controller of its own, with so many I/O queues.
    ///
    /// # Errors
    /// The server cannot be reached, or does not have the subsystem.
    pub fn connect(
        address: SocketAddr,
        subsystem: &str,
        namespace: u32,
        queues: u16,
    ) -> Result<Self, LoadError> {
        let mut admin = Handshake::new(address)?;
        let id = admin.connect(subsystem, 0, 0xffff)?;
        // Property Set of CC: entries of 64 and 16 bytes, enabled.
        admin.fabrics(0, &[0, 0x14, 0x0046_0001], &[])?;
        let mut connections = Vec::new();
        for queue in 1..=queues.max(1) {
            let mut made = Handshake::new(address)?;
            made.connect(subsystem, queue, id)?;
            let unblocked = made.stream.set_nonblocking(true);
            unblocked.map_err(|error| made.failed(error))?;
            connections.push(Connection {
                stream: made.stream,
                out: Outgoing::default(),
                header: Vec::new(),
                left_bytes: 0,
                ends: None,
            });
        }
        Ok(Self {
            address,
            namespace,
            connections,
            _admin: admin.stream,
            buffer: vec![0; RECEIVE_BYTES],
            payload: Payload::default(),
        })
    }

    fn failed(&self, source: std::io::Error) -> LoadError {
        let address = self.address;
        LoadError::Connection { address, source }
    }

    fn flush(&mut self) -> Result<(), LoadError> {
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            let written = connection.out.write_to(&mut connection.stream);
            written.map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    fn receive(&mut self, index: usize, done: &mut Vec<Done>) -> Result<(), LoadError> {
        loop {
            let mut buffer = std::mem::take(&mut self.buffer);
            let received = self.connections[index].stream.read(&mut buffer);
            let parsed = match &received {
                Ok(got) => self.connections[index].parse(&buffer[..*got], done),
                Err(_) => Ok(()),
            };
            self.buffer = buffer;
            parsed.map_err(|what| LoadError::Protocol {
                address: self.address,
                what,
            })?;
            match received {
                Ok(0) => return Err(self.failed(ErrorKind::UnexpectedEof.into())),
                Ok(got) if got < RECEIVE_BYTES => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
    }
}

impl Connection {
    fn parse(&mut self, mut bytes: &[u8], done: &mut Vec<Done>) -> Result<(), String> {
        while !bytes.is_empty() {
            if self.left_bytes > 0 {
                let used = self.left_bytes.min(bytes.len());
                self.left_bytes -= used;
                bytes = &bytes[used..];
                if self.left_bytes == 0
                    && let Some(slot) = self.ends.take()
                {
                    done.push(Done { slot, is_ok: true });
                }
                continue;
            }
            let wanted = match self.header.get(2) {
                Some(&header_bytes) if self.header.len() >= COMMON_BYTES => header_bytes.into(),
                _ => COMMON_BYTES,
            };
            let used = wanted.saturating_sub(self.header.len()).min(bytes.len());
            self.header.extend_from_slice(&bytes[..used]);
            bytes = &bytes[used..];
            if self.header.len() >= COMMON_BYTES && self.header.len() >= self.header[2].into() {
                let header = std::mem::take(&mut self.header);
                self.end(&header, done)?;
            }
        }
        Ok(())
    }

    /// The header of a PDU has come.
    fn end(&mut self, header: &[u8], done: &mut Vec<Done>) -> Result<(), String> {
        let word = |at: usize| {
            let field = header.iter().skip(at).take(4).rev();
            field.fold(0_u32, |sum, &byte| sum << 8 | u32::from(byte))
        };
        let whole = usize::try_from(word(4)).unwrap_or(0);
        match header[0] {
            DATA => {
                self.left_bytes = whole.saturating_sub(header.len());
                let is_last = header[1] & FLAG_SUCCESS != 0;
                self.ends = is_last.then_some(word(8) & 0xffff);
            }
            RESPONSE => done.push(Done {
                slot: word(20) & 0xffff,
                is_ok: word(22) & 0xfffe == 0,
            }),
            TERMINATED => return Err("ends the connection by a termination".into()),
            kind => return Err(format!("sends a PDU of type {kind} that nobody asked for")),
        }
        Ok(())
    }
}

impl Medium for Nvme {
    fn submit(&mut self, io: IoRequest) -> Result<(), LoadError> {
        let index = io.slot as usize % self.connections.len();
        let is_write = io.operation == Operation::Write;
        let most = u32::from(QUEUE_MAX) * u32::try_from(self.connections.len()).unwrap_or(1);
        if io.slot >= most || (is_write && io.len_bytes > IN_CAPSULE_BYTES) {
            return Err(LoadError::Protocol {
                address: self.address,
                what: format!("is given {most} requests at most, with writes of 8 KiB at most"),
            });
        }
        let first = io.offset / BLOCK_BYTES;
        let low = u32::try_from(first & 0xffff_ffff).unwrap_or(0);
        let high = u32::try_from(first >> 32).unwrap_or(0);
        let blocks = u32::try_from(u64::from(io.len_bytes) / BLOCK_BYTES).unwrap_or(1);
        let cid = u16::try_from(io.slot).unwrap_or(0);
        let opcode = if is_write { 1 } else { 2 };
        let out = self.connections[index].out.bytes();
        let data = (io.len_bytes, is_write);
        capsule(
            out,
            (opcode, cid, self.namespace),
            &[low, high, blocks - 1],
            data,
        );
        if is_write {
            let len = usize::try_from(io.len_bytes).unwrap_or(0);
            self.payload.append(out, len);
        }
        Ok(())
    }

    fn poll(&mut self, waits: bool, done: &mut Vec<Done>) -> Result<(), LoadError> {
        self.flush()?;
        for index in 0..self.connections.len() {
            self.receive(index, done)?;
        }
        if waits && done.is_empty() {
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}
