//! A host of NVMe/TCP that may send anything.

#![allow(unreachable_pub, reason = "the modules of one test binary use this")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crc32c::crc32c;

pub const NQN: &str = "nqn.2026-11.example:blocks";
pub const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";

pub const FLUSH: u8 = 0;
pub const WRITE: u8 = 1;
pub const READ: u8 = 2;
pub const ZEROES: u8 = 8;
pub const DATASET: u8 = 9;
pub const GET_LOG: u8 = 2;
pub const IDENTIFY: u8 = 6;
pub const ABORT: u8 = 8;
pub const SET_FEATURES: u8 = 9;
pub const GET_FEATURES: u8 = 10;
pub const EVENT: u8 = 12;
pub const KEEP_ALIVE: u8 = 0x18;

/// How to place data of a write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Capsule,
    Asked,
}

/// A PDU of the server.
#[derive(Debug)]
pub struct Pdu {
    pub kind: u8,
    pub flags: u8,
    /// After the common header.
    pub header: Vec<u8>,
    pub data: Vec<u8>,
}

/// A completion: status code with type, result, and data that came before.
#[derive(Debug, PartialEq, Eq)]
pub struct Done {
    pub status: u16,
    pub result: u64,
    pub data: Vec<u8>,
}

/// One connection.
pub struct Host {
    pub stream: TcpStream,
    digests: u8,
    cid: u16,
    /// The host does not follow the queue's head.
    pub is_blind: bool,
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// A submission entry: opcode, namespace, and command dwords from 10.
pub fn entry(opcode: u8, namespace: u32, dwords: &[u32]) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[0] = opcode;
    bytes[1] = 0x40;
    put(&mut bytes, 4, &namespace.to_le_bytes());
    for (at, dword) in dwords.iter().enumerate() {
        put(&mut bytes, 40 + 4 * at, &dword.to_le_bytes());
    }
    bytes
}

/// A command on blocks of namespace `namespace`.
pub fn on_blocks(opcode: u8, namespace: u32, first: u64, blocks: u32, control: u32) -> [u8; 64] {
    let low = u32::try_from(first & 0xffff_ffff).unwrap();
    let high = u32::try_from(first >> 32).unwrap();
    entry(opcode, namespace, &[low, high, control | (blocks - 1)])
}

impl Host {
    /// A connection without a word said.
    pub fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let patience = Some(Duration::from_secs(30));
        stream.set_read_timeout(patience).unwrap();
        Self {
            stream,
            digests: 0,
            cid: 0,
            is_blind: false,
        }
    }

    /// A connection that is initialized. Digests: 1 of headers, 2 of data.
    pub fn initialized(address: SocketAddr, digests: u8) -> Self {
        let mut host = Self::open(address);
        let mut bytes = [0; 128];
        put(&mut bytes, 2, &[128, 0, 128]);
        bytes[11] = digests;
        host.stream.write_all(&bytes).unwrap();
        let answer = host.next();
        assert_eq!((answer.kind, answer.header.len()), (1, 120));
        assert_eq!(answer.header[3], digests);
        host.digests = digests;
        host
    }

    /// An admin queue of an enabled controller, and the controller's number.
    pub fn admin(address: SocketAddr, subsystem: &str, digests: u8) -> (Self, u16) {
        let mut host = Self::initialized(address, digests);
        let done = host.connect(0, 0xffff, subsystem, 31);
        assert_eq!(done.status, 0, "{done:?}");
        let id = u16::try_from(done.result).unwrap();
        // IOCQES 4, IOSQES 6, enabled.
        assert_eq!(host.set_property(0x14, 0x0046_0001).status, 0);
        assert_eq!(host.property(0x1c, false), 1);
        (host, id)
    }

    /// An I/O queue of a controller.
    pub fn io(address: SocketAddr, id: u16, queue: u16, digests: u8) -> Self {
        let mut host = Self::initialized(address, digests);
        let done = host.connect(queue, id, NQN, 127);
        assert_eq!(done.status, 0, "{done:?}");
        host
    }

    /// The Connect command.
    pub fn connect(&mut self, queue: u16, id: u16, subsystem: &str, size: u16) -> Done {
        self.connect_for(queue, id, subsystem, (size, 0))
    }

    /// As [`Host::connect`], with a keep-alive timer in milliseconds.
    pub fn connect_for(
        &mut self,
        queue: u16,
        id: u16,
        subsystem: &str,
        (size, keep_alive_ms): (u16, u32),
    ) -> Done {
        let flow_control = u32::from(self.is_blind) << 18;
        let dwords = [
            u32::from(queue) << 16,
            u32::from(size) | flow_control,
            keep_alive_ms,
        ];
        let mut command = entry(0x7f, 0, &dwords);
        command[4] = 1;
        let mut data = vec![0; 1024];
        put(&mut data, 0, &[7; 16]);
        put(&mut data, 16, &id.to_le_bytes());
        put(&mut data, 256, subsystem.as_bytes());
        put(&mut data, 512, HOST_NQN.as_bytes());
        self.write(command, &data, Place::Capsule)
    }

    pub fn property(&mut self, at: u32, is_long: bool) -> u64 {
        let mut command = entry(0x7f, 0, &[u32::from(is_long), at]);
        command[4] = 4;
        let done = self.execute(command, 0);
        assert_eq!(done.status, 0, "{done:?}");
        done.result
    }

    pub fn set_property(&mut self, at: u32, value: u32) -> Done {
        let mut command = entry(0x7f, 0, &[0, at, value]);
        command[4] = 0;
        self.execute(command, 0)
    }

    /// The bytes of a capsule.
    pub fn capsule(&self, command: &[u8; 64], data: &[u8]) -> Vec<u8> {
        let header_bytes = 72 + 4 * usize::from(self.digests & 1);
        let has_digest = self.digests & 2 != 0 && !data.is_empty();
        let len = header_bytes + data.len() + 4 * usize::from(has_digest);
        let data_at = if data.is_empty() { 0 } else { header_bytes };
        let flags = self.digests & 1 | u8::from(has_digest) << 1;
        let mut bytes = vec![4, flags, 72, u8::try_from(data_at).unwrap()];
        bytes.extend(u32::try_from(len).unwrap().to_le_bytes());
        bytes.extend(command);
        if self.digests & 1 != 0 {
            bytes.extend(crc32c(&bytes).to_le_bytes());
        }
        bytes.extend(data);
        if has_digest {
            bytes.extend(crc32c(data).to_le_bytes());
        }
        bytes
    }

    /// Gives the command the next number and an SGL.
    pub fn numbered(&mut self, mut command: [u8; 64], len: usize, place: Place) -> [u8; 64] {
        self.cid = self.cid.wrapping_add(1);
        put(&mut command, 2, &self.cid.to_le_bytes());
        put(&mut command, 32, &u32::try_from(len).unwrap().to_le_bytes());
        command[39] = if place == Place::Capsule { 0x01 } else { 0x5a };
        command
    }

    /// Sends a command that gives `len` bytes or none.
    pub fn send(&mut self, command: [u8; 64], len: usize) -> u16 {
        let command = self.numbered(command, len, Place::Asked);
        let bytes = self.capsule(&command, &[]);
        self.stream.write_all(&bytes).unwrap();
        self.cid
    }

    /// Sends data for an R2T in PDUs of at most `piece` bytes.
    pub fn send_data(&mut self, r2t: &Pdu, data: &[u8], piece: usize) {
        assert_eq!(r2t.kind, 9);
        let len = u32::from_le_bytes(r2t.header[8..12].try_into().unwrap());
        assert_eq!(usize::try_from(len).unwrap(), data.len());
        let mut at = 0;
        for part in data.chunks(piece) {
            let bytes = self.data_pdu(&r2t.header[..4], at, part, at + part.len() == data.len());
            self.stream.write_all(&bytes).unwrap();
            at += part.len();
        }
    }

    /// A H2CData PDU.
    pub fn data_pdu(&self, id: &[u8], at: usize, part: &[u8], is_last: bool) -> Vec<u8> {
        let header_bytes = 24 + 4 * usize::from(self.digests & 1);
        let len = header_bytes + part.len() + 4 * usize::from(self.digests >> 1);
        let flags = self.digests | u8::from(is_last) << 2;
        let mut bytes = vec![6, flags, 24, u8::try_from(header_bytes).unwrap()];
        bytes.extend(u32::try_from(len).unwrap().to_le_bytes());
        bytes.extend(id);
        bytes.extend(u32::try_from(at).unwrap().to_le_bytes());
        bytes.extend(u32::try_from(part.len()).unwrap().to_le_bytes());
        bytes.extend([0; 4]);
        if self.digests & 1 != 0 {
            bytes.extend(crc32c(&bytes).to_le_bytes());
        }
        bytes.extend(part);
        if self.digests & 2 != 0 {
            bytes.extend(crc32c(part).to_le_bytes());
        }
        bytes
    }

    /// The next PDU, whose digests are checked.
    pub fn next(&mut self) -> Pdu {
        self.next_or_end().unwrap()
    }

    /// The same, where the server may end.
    pub fn next_or_end(&mut self) -> std::io::Result<Pdu> {
        let mut common = [0; 8];
        self.stream.read_exact(&mut common)?;
        let len = u32::from_le_bytes(common[4..8].try_into().unwrap());
        let mut rest = vec![0; usize::try_from(len).unwrap() - 8];
        self.stream.read_exact(&mut rest)?;
        let header_end = usize::from(common[2]) - 8;
        let mut header = rest[..header_end].to_vec();
        if common[1] & 1 != 0 {
            let whole = [&common[..], &header].concat();
            let digest = &rest[header_end..header_end + 4];
            assert_eq!(digest, crc32c(&whole).to_le_bytes());
        }
        let data_at = usize::from(common[3]);
        let mut data = if common[0] == 3 {
            rest[header_end..].to_vec()
        } else if data_at > 0 {
            rest[data_at - 8..].to_vec()
        } else {
            Vec::new()
        };
        if common[1] & 2 != 0 {
            let digest = data.split_off(data.len() - 4);
            assert_eq!(digest, crc32c(&data).to_le_bytes());
        }
        header.shrink_to_fit();
        Ok(Pdu {
            kind: common[0],
            flags: common[1],
            header,
            data,
        })
    }

    /// The completion of the command sent last, with the data that come before.
    pub fn done(&mut self) -> Done {
        let mut data = Vec::new();
        loop {
            let pdu = self.next();
            match pdu.kind {
                7 => {
                    assert_eq!(pdu.header[..2], self.cid.to_le_bytes());
                    let at = u32::from_le_bytes(pdu.header[4..8].try_into().unwrap());
                    assert_eq!(usize::try_from(at).unwrap(), data.len());
                    data.extend(pdu.data);
                    if pdu.flags & 8 != 0 {
                        assert!(self.is_blind);
                        return Done {
                            status: 0,
                            result: 0,
                            data,
                        };
                    }
                }
                5 => {
                    assert_eq!(pdu.header[12..14], self.cid.to_le_bytes());
                    return completion(&pdu, data);
                }
                _ => panic!("{pdu:?}"),
            }
        }
    }

    /// Sends a command, and gives what it ends with.
    pub fn execute(&mut self, command: [u8; 64], len: usize) -> Done {
        self.send(command, len);
        self.done()
    }

    /// Sends a command with data, and gives what it ends with.
    pub fn write(&mut self, command: [u8; 64], data: &[u8], place: Place) -> Done {
        let command = self.numbered(command, data.len(), place);
        if place == Place::Capsule {
            let bytes = self.capsule(&command, data);
            self.stream.write_all(&bytes).unwrap();
            return self.done();
        }
        let bytes = self.capsule(&command, &[]);
        self.stream.write_all(&bytes).unwrap();
        let r2t = self.next();
        if r2t.kind == 5 {
            return completion(&r2t, Vec::new());
        }
        self.send_data(&r2t, data, 100_000);
        self.done()
    }

    /// Sends a write in one capsule, and gives the status of its end, where the server may end.
    pub fn write_or_end(&mut self, command: [u8; 64], data: &[u8]) -> std::io::Result<u16> {
        let command = self.numbered(command, data.len(), Place::Capsule);
        let bytes = self.capsule(&command, data);
        self.stream.write_all(&bytes)?;
        let pdu = self.next_or_end()?;
        assert_eq!(pdu.kind, 5, "{pdu:?}");
        Ok(completion(&pdu, Vec::new()).status)
    }

    /// The termination that the server sends: its reason, and what it says of the place.
    pub fn terminated(&mut self) -> (u16, u32) {
        let pdu = self.next();
        assert_eq!(pdu.kind, 3, "{pdu:?}");
        let reason = u16::from_le_bytes(pdu.header[..2].try_into().unwrap());
        let place = u32::from_le_bytes(pdu.header[2..6].try_into().unwrap());
        assert!(self.is_closed());
        (reason, place)
    }

    /// Whether the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

fn completion(pdu: &Pdu, data: Vec<u8>) -> Done {
    let field = u16::from_le_bytes(pdu.header[14..16].try_into().unwrap());
    Done {
        status: field >> 1 & 0x7ff,
        result: u64::from_le_bytes(pdu.header[..8].try_into().unwrap()),
        data,
    }
}
