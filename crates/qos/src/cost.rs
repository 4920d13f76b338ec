//! What a request costs, in tokens.

use serde::{Deserialize, Serialize};

/// A request is charged by blocks of so many bytes (ReFlex, section 3.2.1).
pub const BLOCK_BYTES: u32 = 4096;

/// Tokens of a read of one block. A write's cost is a multiple found by calibration.
pub const READ_COST: u32 = 100;

/// The highest price of the write of a block, in tokens: 5,000 reads. The price of the largest
/// request, of 32 MiB, is a `u32` then.
pub const WRITE_COST_MAX: u32 = 500_000;

/// What a request does to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Reads data.
    Read,
    /// Writes data, zeroes or discards blocks.
    Write,
}

/// The prices of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    write: u32,
}

impl Costs {
    /// Costs with a price for the write of a block, in tokens. A write is never cheaper than one
    /// token.
    pub fn new(write: u32) -> Self {
        Self {
            write: write.max(1),
        }
    }

    /// Tokens of a request. A request without data, such as a flush, costs as much as one block.
    /// A price beyond `u32` is `u32::MAX`.
    pub fn of(self, operation: Operation, len_bytes: u32) -> u32 {
        let blocks = len_bytes.div_ceil(BLOCK_BYTES).max(1);
        blocks.saturating_mul(self.of_block(operation))
    }

    /// Tokens of one block.
    pub fn of_block(self, operation: Operation) -> u32 {
        match operation {
            Operation::Read => READ_COST,
            Operation::Write => self.write,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_rounded_up_and_nothing_is_free() {
        let costs = Costs::new(1000);
        assert_eq!(costs.of(Operation::Read, 0), 100);
        assert_eq!(costs.of(Operation::Read, 1), 100);
        assert_eq!(costs.of(Operation::Read, 4096), 100);
        assert_eq!(costs.of(Operation::Read, 4097), 200);
        assert_eq!(costs.of(Operation::Write, 32 << 20), 8192 * 1000);
        assert_eq!(costs.of(Operation::Write, u32::MAX), 1000 << 20);
        assert_eq!(
            Costs::new(u32::MAX).of(Operation::Write, u32::MAX),
            u32::MAX
        );
        assert_eq!(Costs::new(0).of(Operation::Write, 1), 1);
        let dearest = Costs::new(WRITE_COST_MAX).of(Operation::Write, 32 << 20);
        assert_eq!(dearest, 8192 * WRITE_COST_MAX);
    }
}
