//! One side of an evaluation.

use host::Knob;

use crate::sampler::Sampler;
use crate::target::Instance;

/// One side while it runs.
pub(super) struct ActiveSide {
    pub(super) instance: Instance,
    pub(super) sampler: Sampler,
    pub(super) knobs: Vec<(Knob, String)>,
}
