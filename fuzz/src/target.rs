//! A parser that is given any bytes.

use std::path::Path;

use crate::memory;

/// A parser, and what must hold for any bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is also its program's.
    pub name: &'static str,
    /// Panics if something does not hold. Otherwise says whether the parser has accepted the bytes.
    pub run: fn(&[u8]) -> bool,
    /// Inputs to begin with, made from the tests' data.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// The most memory that one input may take, in bytes.
    pub memory_max_bytes: usize,
}

impl Target {
    /// Runs the target, and counts the memory that it takes.
    ///
    /// # Panics
    /// Something does not hold for this input.
    pub fn check(&self, data: &[u8]) -> bool {
        let (is_accepted, peak_bytes) = memory::peak_of(|| (self.run)(data));
        assert!(
            peak_bytes <= self.memory_max_bytes,
            "{peak_bytes} bytes of memory for an input of {} bytes, more than {}",
            data.len(),
            self.memory_max_bytes
        );
        is_accepted
    }

    /// Writes the seeds into a folder, a file each.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write_seeds(&self, folder: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        for (index, seed) in (self.seeds)().into_iter().enumerate() {
            std::fs::write(folder.join(index.to_string()), seed)?;
        }
        Ok(())
    }
}
