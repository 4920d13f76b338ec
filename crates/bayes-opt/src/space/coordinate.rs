//! What the coordinates of the unit cube stand for.

/// The middle of every coordinate.
pub(crate) const MIDDLE: f64 = 0.5;
/// One over the variance of a coordinate over the cube.
pub(crate) const UNIFORM_PRECISION: f64 = 12.0;

/// What a coordinate stands for: it decides what is expected of the objective along it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coordinate {
    /// Levels, which are the same or not.
    Categorical,
    /// Two values, 0 and 1: their squared difference says whether they are the same.
    Binary,
    /// Places in an order: of a list's values, or of a range whose ratios matter.
    Ordered,
    /// Whole numbers of a range.
    Integer,
    /// Any numbers of a range.
    Continuous,
}

impl Coordinate {
    pub(crate) fn is_categorical(self) -> bool {
        matches!(self, Self::Categorical | Self::Binary)
    }

    /// Whether half a wave may go along it: knobs that are counted or ordered help more the further
    /// they are turned, or up to some place inside.
    pub(crate) fn has_half_cosine(self) -> bool {
        matches!(self, Self::Ordered | Self::Integer)
    }
}
