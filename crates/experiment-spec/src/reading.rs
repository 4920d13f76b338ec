//! A file or a text of a specification is read and checked.

use std::path::Path;

use super::check::{check_alone, check_experiment};
use super::checked::CheckedSpec;
use super::context::SpecContext;
use super::locate::Source;
use super::numbers;
use super::parameters::check_space;
use super::{Goal, Spec};
use crate::error::SpecError;

impl SpecContext<'_> {
    /// Reads and checks a specification for `slackline tune`.
    ///
    /// # Errors
    /// Anything that is wrong with it, with file, line and key.
    pub fn load(&self, path: &Path) -> Result<CheckedSpec, SpecError> {
        let source = Source::read(path)?;
        check_experiment(source.parse()?, &source, self)
    }

    /// Checks a specification that is not in a file: `path` is where it would be, which says what
    /// it is (`.json`, else TOML), what relative paths count from, and what errors call it.
    ///
    /// # Errors
    /// Anything that is wrong with it, with line and key.
    pub fn check(&self, text: String, path: &Path) -> Result<CheckedSpec, SpecError> {
        let source = Source::new(path, text);
        check_experiment(source.parse()?, &source, self)
    }

    /// Reads and checks a specification of which only `parameters` are needed, and
    /// `parameter_constraints`, `initial`, `search`, `seed` and the objective's `goal` are looked
    /// at: for `slackline ask-tell`.
    ///
    /// # Errors
    /// Anything that is wrong with it, with file, line and key.
    pub fn load_space(
        &self,
        path: &Path,
    ) -> Result<(bayes_opt::Space, bayes_opt::Settings, Goal), SpecError> {
        let source = Source::read(path)?;
        let spec: Spec = source.parse()?;
        let checked = check_space(&spec, &source, self)?;
        Ok((checked.space, checked.settings, spec.goal()))
    }
}

/// Checks the text of a specification alone: form, names and numbers. Neither the host nor any file
/// is looked at, so what it says shows nothing of them.
///
/// # Errors
/// What is wrong with it, with line and key.
pub fn check_text(text: String, path: &Path) -> Result<Spec, SpecError> {
    let source = Source::new(path, text);
    let spec: Spec = source.parse()?;
    check_alone(&spec, &source)?;
    Ok(spec)
}

/// Checks the ranges of the numbers of a specification that was measured elsewhere.
///
/// # Errors
/// The key of a number that is out of its range, and why.
pub fn check_numbers(spec: &Spec) -> Result<(), SpecError> {
    let source = Source::new(Path::new("the report"), String::new());
    numbers::check_numbers(spec, &source)
}
