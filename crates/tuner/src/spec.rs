//! Specifications, read and checked with the results of the earlier experiments from which their
//! searches start.

use std::path::Path;

pub use experiment_spec::*;
use host::Roots;

use crate::warm_start;

fn context<'a>(roots: &'a Roots) -> SpecContext<'a> {
    SpecContext {
        earlier: warm_start::read,
        ..SpecContext::new(roots)
    }
}

/// Reads and checks a specification for `slackline tune`.
///
/// # Errors
/// Anything that is wrong with it, with file, line and key.
pub fn load(path: &Path, roots: &Roots) -> Result<CheckedSpec, SpecError> {
    context(roots).load(path)
}

/// Checks a specification that is not in a file: `path` is where it would be, which says what it is
/// (`.json`, else TOML), what relative paths count from, and what errors call it.
///
/// # Errors
/// Anything that is wrong with it, with line and key.
pub fn check(text: String, path: &Path, roots: &Roots) -> Result<CheckedSpec, SpecError> {
    context(roots).check(text, path)
}

/// As [`check()`], while something else is measured on the host: `originals` has the values of the
/// knobs that are changed for it, which are the control's.
///
/// # Errors
/// As [`check()`].
pub fn check_beside(
    text: String,
    path: &Path,
    roots: &Roots,
    originals: &Originals,
) -> Result<CheckedSpec, SpecError> {
    let context = SpecContext {
        originals,
        ..context(roots)
    };
    context.check(text, path)
}

/// As [`check()`], of an experiment that has begun: a template that is gone, or names what there is
/// not, is missed where a file is to be made from it, and keeps nothing from its rollback.
///
/// # Errors
/// As [`check()`].
pub fn check_begun(text: String, path: &Path, roots: &Roots) -> Result<CheckedSpec, SpecError> {
    context(roots).check_begun(text, path)
}

/// Reads and checks a specification of which only `parameters` are needed, and
/// `parameter_constraints`, `initial`, `search`, `seed` and the objective's `goal` are looked at:
/// for `slackline ask-tell`.
///
/// # Errors
/// Anything that is wrong with it, with file, line and key.
pub fn load_space(
    path: &Path,
    roots: &Roots,
) -> Result<(bayes_opt::Space, bayes_opt::Settings, Goal), SpecError> {
    context(roots).load_space(path)
}

#[cfg(test)]
mod tests {
    use bayes_opt::Settings;

    #[test]
    fn more_earlier_experiments_than_are_taken_are_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(
            dir.path().join("one.jsonl"),
            "{\"config\":{\"n\":1},\"value\":3}\n",
        )
        .unwrap();
        let read = |count: usize| {
            let files = vec!["\"one.jsonl\""; count].join(", ");
            let parameter = "[[parameters]]\nname = \"n\"\ntype = \"int\"\nlow = 1\nhigh = 4\n";
            let path = dir.path().join("spec.toml");
            std::fs::write(
                &path,
                format!("[search]\nwarm_start = [{files}]\n{parameter}"),
            )
            .unwrap();
            super::load_space(&path, &host::Roots::default())
        };
        let (_, settings, _) = read(Settings::EARLIER_MAX).unwrap();
        assert_eq!(settings.earlier.len(), Settings::EARLIER_MAX);
        let pipe = dir.path().join("pipe.jsonl");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        let spec = "[search]\nwarm_start = [\"pipe.jsonl\"]\n[[parameters]]\nname = \"n\"\ntype = \"int\"\nlow = 1\nhigh = 4\n";
        let path = dir.path().join("spec.toml");
        std::fs::write(&path, spec).unwrap();
        let error = super::load_space(&path, &host::Roots::default());
        let error = error.unwrap_err().to_string();
        assert!(error.ends_with("pipe.jsonl: is not a file"), "{error}");
        let error = read(Settings::EARLIER_MAX + 1).unwrap_err().to_string();
        let words = "spec.toml:2: search.warm_start: names more than 12 experiments";
        assert!(error.ends_with(words), "{error}");
    }
}
