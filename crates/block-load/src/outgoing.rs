//! Bytes that a socket has not taken yet.

use std::io::{Error, ErrorKind, Write};

/// Requests that wait for room in a socket.
#[derive(Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    /// What was sent of them.
    sent: usize,
}

impl Outgoing {
    /// Where requests are appended.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Hands over what a non-blocking socket takes.
    pub(crate) fn write_to(&mut self, stream: &mut impl Write) -> Result<(), Error> {
        while self.sent < self.bytes.len() {
            match stream.write(&self.bytes[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(())
    }
}
