//! Any bytes as `.eh_frame` of an object.

use crate::objects::{lay_out_with, sections};
use crate::target::Target;

/// The target.
pub const TARGET: Target = Target {
    name: "unwind",
    run: |data| lay_out_with(".eh_frame", data),
    seeds: || sections(".eh_frame"),
    memory_max_bytes: 64 << 20,
};
