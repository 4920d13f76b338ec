//! The two sides of an experiment.

/// One of the two sides of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Control,
    Experiment,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::Control, Self::Experiment];

    pub(crate) fn index(self) -> usize {
        match self {
            Self::Control => 0,
            Self::Experiment => 1,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Experiment => "experiment",
        }
    }
}
