//! An input as a list of choices.

/// Bytes of the input, from the front. At the end there are zeros.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    /// As many bytes as there are, up to `length`.
    pub(crate) fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    pub(crate) fn u16_be(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    pub(crate) fn u32_be(&mut self) -> u32 {
        u32::from(self.u16_be()) << 16 | u32::from(self.u16_be())
    }

    pub(crate) fn u16_le(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub(crate) fn u64_le(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A piece whose length the input says, of at most 127 × 8 bytes.
    pub(crate) fn piece(&mut self) -> &'a [u8] {
        let length = self.byte();
        let factor = if length & 0x80 == 0 { 1 } else { 8 };
        self.take(usize::from(length & 0x7f) * factor)
    }
}
