//! What the processes calculate with: [`linalg`] for matrices, [`normal`] for the normal
//! distribution.

pub(crate) mod linalg;
pub(crate) mod normal;
