//! Decimal numbers, read and written without allocation.

/// An unsigned decimal number of at most 64 bits.
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    let mut value = 0_u64;
    for &byte in text {
        if !byte.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
    }
    Some(value)
}

/// A signed decimal number of at most 64 bits.
pub fn signed(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-") {
        Some(digits) => i64::try_from(number(digits)?).ok().map(|value| -value),
        None => i64::try_from(number(text)?).ok(),
    }
}

/// Room for the digits of one number.
#[derive(Debug)]
pub struct Digits([u8; 20]);

impl Digits {
    /// Empty room.
    pub fn new() -> Self {
        Self([0; 20])
    }

    /// Writes a number, and gives its digits.
    pub fn write(&mut self, mut number: u64) -> &[u8] {
        let mut at = self.0.len();
        loop {
            at -= 1;
            self.0[at] = b'0' + u8::try_from(number % 10).unwrap_or(0);
            number /= 10;
            if number == 0 {
                return &self.0[at..];
            }
        }
    }
}

impl Default for Digits {
    fn default() -> Self {
        Self::new()
    }
}
