//! What the code of a file does.
//!
//! [`image`] is a whole file: `sweep`, `vtable` and `caller_sensitive` look for what leads into its
//! functions. [`flow`] is one function: `walk` decodes it, `tables`, `bounds` and `constants` find
//! its jump tables, `address_taken` what has to stay where it is. [`instruction`], [`operands`] and
//! [`flags`] know single instructions.

mod address_taken;
mod bounds;
mod caller_sensitive;
mod constants;
pub(crate) mod flags;
pub(crate) mod flow;
pub(crate) mod image;
pub(crate) mod instruction;
pub(crate) mod jump_table;
pub(crate) mod operands;
pub(crate) mod sweep;
mod tables;
pub(crate) mod vtable;
mod walk;
