//! What takes requests: a disk, a server, or memory.

use qos::Operation;

use crate::LoadError;

/// One request. A slot has one request at a time.
#[derive(Debug, Clone, Copy)]
pub struct IoRequest {
    /// Comes back in [`Done`].
    pub slot: u32,
    /// Read or write.
    pub operation: Operation,
    /// Where, in bytes.
    pub offset: u64,
    /// How much.
    pub len_bytes: u32,
}

/// The end of a request.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    /// The request's slot.
    pub slot: u32,
    /// Whether all bytes were moved.
    pub is_ok: bool,
}

/// What takes requests.
pub trait Medium {
    /// Takes a request. It may be handed over only by the next [`Medium::poll`].
    ///
    /// # Errors
    /// The medium is gone. The end of a single request is no error.
    fn submit(&mut self, io: IoRequest) -> Result<(), LoadError>;

    /// Hands over what was submitted, and adds what has ended. With `waits` it returns only when
    /// something has ended: there must be a request under way then.
    ///
    /// # Errors
    /// The medium is gone.
    fn poll(&mut self, waits: bool, done: &mut Vec<Done>) -> Result<(), LoadError>;
}

/// What is written to a server: the same bytes each time.
#[derive(Debug, Default)]
pub(crate) struct Payload(Vec<u8>);

impl Payload {
    /// Appends so many bytes to a request.
    pub(crate) fn append(&mut self, out: &mut Vec<u8>, len_bytes: usize) {
        if self.0.len() < len_bytes {
            self.0.resize(len_bytes, 0x5a);
        }
        out.extend_from_slice(&self.0[..len_bytes]);
    }
}

/// Memory: a request is a copy, and ends at once.
pub struct MemoryMedium {
    bytes: Vec<u8>,
    copy: Vec<u8>,
    done: Vec<Done>,
}

impl MemoryMedium {
    /// Memory of so many bytes, all of them touched.
    pub fn new(size_bytes: usize) -> Self {
        Self {
            bytes: vec![1; size_bytes],
            copy: Vec::new(),
            done: Vec::new(),
        }
    }
}

impl Medium for MemoryMedium {
    fn submit(&mut self, io: IoRequest) -> Result<(), LoadError> {
        let len_bytes = usize::try_from(io.len_bytes).unwrap_or(usize::MAX);
        if self.copy.len() < len_bytes {
            self.copy.resize(len_bytes, 2);
        }
        let at = usize::try_from(io.offset).unwrap_or(usize::MAX);
        let range = at..at.saturating_add(len_bytes);
        let is_ok = match self.bytes.get_mut(range) {
            Some(bytes) if io.operation == Operation::Read => {
                self.copy[..len_bytes].copy_from_slice(bytes);
                // Nobody reads the copy, and it has to be made all the same.
                std::hint::black_box(&self.copy);
                true
            }
            Some(bytes) => {
                bytes.copy_from_slice(&self.copy[..len_bytes]);
                true
            }
            None => false,
        };
        self.done.push(Done {
            slot: io.slot,
            is_ok,
        });
        Ok(())
    }

    fn poll(&mut self, _: bool, done: &mut Vec<Done>) -> Result<(), LoadError> {
        done.append(&mut self.done);
        Ok(())
    }
}
