//! Drawing points: [`design`] of the unit cube, [`feasible_start`] inside linear constraints, and
//! [`slice_sampler`] from a posterior.

pub(crate) mod design;
pub(crate) mod feasible_start;
pub(crate) mod slice_sampler;
