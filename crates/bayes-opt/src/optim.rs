//! Finding the best point of a function: [`lbfgs`] of a smooth one in a box, [`search`] of an
//! acquisition function in a mixed space.

pub(crate) mod lbfgs;
pub(crate) mod search;
