//! Any bytes as an ELF file: its headers, relocations, symbols and code.

use crate::objects::{OBJECTS, lay_out};
use crate::target::Target;

/// The target.
pub const TARGET: Target = Target {
    name: "elf",
    run: |data| lay_out(data.to_vec()),
    seeds: || OBJECTS.clone(),
    memory_max_bytes: 64 << 20,
};
