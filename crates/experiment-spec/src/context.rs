//! What a specification is checked against, beside itself.

use std::collections::BTreeMap;
use std::path::Path;

use bayes_opt::Observation;
use host::Roots;

use super::Spec;
use super::knobs::Originals;

/// Reads the file of an earlier experiment from which a search starts; an error is in words.
pub type EarlierReader = fn(&Spec, &Path) -> Result<Vec<Observation>, String>;

/// No knob is changed just now.
static UNCHANGED: Originals = BTreeMap::new();

/// What a specification is checked against, beside itself.
#[derive(Clone, Copy, Debug)]
pub struct SpecContext<'a> {
    /// Where this host's kernel files are.
    pub roots: &'a Roots,
    /// The values of knobs that are changed just now, which are the control's.
    pub originals: &'a Originals,
    /// Reads the files of `search.warm_start`: reports are another crate's.
    pub earlier: EarlierReader,
    /// The experiment has begun: what was made from its templates is in force, and the control's
    /// values are known. A template that is missing or invalid, or a knob that is gone, is then no
    /// error before a file has to be made from it, so that a rollback still works.
    pub has_begun: bool,
}

impl<'a> SpecContext<'a> {
    /// This host, on which no knob is changed just now. A specification that starts from earlier
    /// results is refused.
    #[must_use]
    pub fn new(roots: &'a Roots) -> Self {
        Self {
            roots,
            originals: &UNCHANGED,
            earlier: |_, _| Err("earlier results are not read here".to_owned()),
            has_begun: false,
        }
    }
}
