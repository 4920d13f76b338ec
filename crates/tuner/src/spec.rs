//! Specifications, read and checked with the results of the earlier experiments from which their
//! searches start.

pub use experiment_spec::*;
use host::Roots;

use crate::warm_start;

/// What a specification is checked against on this host, on which no knob is changed just now.
#[must_use]
pub fn context(roots: &Roots) -> SpecContext<'_> {
    SpecContext {
        earlier: warm_start::read,
        ..SpecContext::new(roots)
    }
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
            super::context(&host::Roots::default()).load_space(&path)
        };
        let (_, settings, _) = read(Settings::EARLIER_MAX).unwrap();
        assert_eq!(settings.earlier.len(), Settings::EARLIER_MAX);
        let pipe = dir.path().join("pipe.jsonl");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        let spec = "[search]\nwarm_start = [\"pipe.jsonl\"]\n[[parameters]]\nname = \"n\"\ntype = \"int\"\nlow = 1\nhigh = 4\n";
        let path = dir.path().join("spec.toml");
        std::fs::write(&path, spec).unwrap();
        let error = super::context(&host::Roots::default()).load_space(&path);
        let error = error.unwrap_err().to_string();
        assert!(error.ends_with("pipe.jsonl: is not a file"), "{error}");
        let error = read(Settings::EARLIER_MAX + 1).unwrap_err().to_string();
        let words = "spec.toml:2: search.warm_start: names more than 12 experiments";
        assert!(error.ends_with(words), "{error}");
    }
}
