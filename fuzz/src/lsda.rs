//! Any bytes as the exception tables of an object (language-specific data areas).

use crate::objects::{lay_out_with, sections};
use crate::target::Target;

/// The target.
pub const TARGET: Target = Target {
    name: "lsda",
    run: |data| lay_out_with(".gcc_except_table", data),
    seeds: || sections(".gcc_except_table"),
    memory_max_bytes: 64 << 20,
};
