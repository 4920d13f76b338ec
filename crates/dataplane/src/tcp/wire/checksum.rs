//! The Internet checksum (RFC 1071), and the pseudo-header of TCP and ICMPv6.

use super::Ip;

/// A sum of 16-bit words that is not folded yet. Words are added in native byte order and swapped
/// once at the end, which RFC 1071 §2(B) allows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of the pseudo-header: addresses, protocol and length of what follows (RFC 9293
    /// §3.1, RFC 8200 §8.1). Both families sum the same words.
    pub fn pseudo_header(source: &Ip, destination: &Ip, protocol: u8, length: u32) -> Sum {
        let mut sum = Sum::default();
        if source.is_v4() && destination.is_v4() {
            sum.add(&source.v4_bytes());
            sum.add(&destination.v4_bytes());
        } else {
            sum.add(source.bytes());
            sum.add(destination.bytes());
        }
        sum.add(&(length + u32::from(protocol)).to_be_bytes());
        sum
    }

    /// Adds bytes. All calls but the last must add an even number of bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        let mut sum = u128::from(self.0);
        let mut blocks = bytes.chunks_exact(32);
        for block in &mut blocks {
            for word in block.as_chunks::<8>().0 {
                sum += u128::from(u64::from_ne_bytes(*word));
            }
        }
        let (words, tail) = blocks.remainder().as_chunks::<4>();
        for word in words {
            sum += u128::from(u32::from_ne_bytes(*word));
        }
        let mut last = [0; 4];
        last[..tail.len()].copy_from_slice(tail);
        sum += u128::from(u32::from_ne_bytes(last));
        // End-around carry into 64 bits: 2^64 is 1 modulo 2^16 - 1.
        let mut folded = (sum & u128::from(u64::MAX)) + (sum >> 64);
        folded = (folded & u128::from(u64::MAX)) + (folded >> 64);
        self.0 = u64::try_from(folded).unwrap_or(u64::MAX);
    }

    /// The sum in 16 bits, not complemented: what a sender leaves in the checksum field when the
    /// device is to complete it.
    pub fn folded(self) -> u16 {
        let mut sum = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        u16::from_be(u16::try_from(sum & 0xffff).unwrap_or(0))
    }

    /// The checksum as the wire has it.
    pub fn finish(self) -> u16 {
        !self.folded()
    }
}

/// The checksum over `bytes`. 0 over bytes that contain their own valid checksum.
pub fn of(bytes: &[u8]) -> u16 {
    let mut sum = Sum::default();
    sum.add(bytes);
    sum.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 1071's definition, word by word.
    fn reference(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            sum += u32::from(u16::from_be_bytes([pair[0], low]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).unwrap()
    }

    #[test]
    fn the_example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(of(&bytes), !0xddf2);
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            cut in 0usize..150,
        ) {
            prop_assert_eq!(of(&bytes), reference(&bytes));
            let cut = (cut * 2).min(bytes.len() & !1);
            let mut sum = Sum::default();
            sum.add(&bytes[..cut]);
            sum.add(&bytes[cut..]);
            prop_assert_eq!(sum.finish(), reference(&bytes));
        }
    }
}
