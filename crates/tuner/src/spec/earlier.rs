//! `search.warm_start`: what earlier experiments measured.

use std::path::Path;

use bayes_opt::{Observation, Settings};
use config_errors::plain;

use super::Spec;
use super::locate::Source;
use crate::error::SpecError;
use crate::report::Report;
use crate::tell::Tell;

pub(super) fn read_all(spec: &Spec, source: &Source) -> Result<Vec<Vec<Observation>>, SpecError> {
    let dir = source.path().parent().unwrap_or(Path::new(""));
    if spec.search.warm_start.len() > Settings::EARLIER_MAX {
        let most = format!("names more than {} experiments", Settings::EARLIER_MAX);
        return Err(source.error("search.warm_start", most));
    }
    let files = spec.search.warm_start.iter().enumerate();
    files
        .map(|(index, file)| {
            let path = dir.join(file);
            let observations = read(spec, &path).and_then(|observations| {
                let of_use = observations.iter().any(|it| is_of_use(spec, it));
                match of_use || observations.is_empty() {
                    true => Ok(observations),
                    false => Err("has none of this experiment's parameters".to_owned()),
                }
            });
            observations.map_err(|message| {
                source.error(
                    &format!("search.warm_start[{index}]"),
                    format!("{}: {message}", path.display()),
                )
            })
        })
        .collect()
}

fn read(spec: &Spec, path: &Path) -> Result<Vec<Observation>, String> {
    // Who reads a pipe may wait for ever.
    if std::fs::metadata(path).is_ok_and(|it| !it.is_file()) {
        return Err("is not a file".to_owned());
    }
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    if path
        .extension()
        .is_some_and(|extension| extension == "jsonl")
    {
        let lines = text.lines().enumerate();
        return lines
            .filter(|(_, line)| !line.trim().is_empty())
            .map(|(index, line)| {
                let tell: Result<Tell, _> = serde_json::from_str(line);
                let observation = tell
                    // Of the one line, the column is enough.
                    .map_err(|error| {
                        plain(&error.to_string()).replace(" at line 1 column", ", column")
                    })
                    .and_then(|tell| tell.observation(spec.goal()));
                observation.map_err(|message| format!("line {}: {message}", index + 1))
            })
            .collect();
    }
    let report: Report = serde_json::from_str(&text)
        .map_err(|error| format!("is not a report of `slackline tune --json`: {error}"))?;
    if let (Some(ours), Some(theirs)) = (&spec.objective, &report.spec.objective)
        && !theirs.is_comparable_with(ours)
    {
        return Err(
            "its objective has another metric, scale or goal: the values cannot be compared".into(),
        );
    }
    let measured = report.evaluations.into_iter().filter_map(|record| {
        let measurement = record.measurement?;
        Some(Observation::now(
            record.configuration,
            measurement.observed(),
        ))
    });
    Ok(measured.collect())
}

/// Experiments may overlap in part, but not in nothing.
fn is_of_use(spec: &Spec, observation: &Observation) -> bool {
    let mut names = spec.parameters.iter().map(|parameter| &parameter.name);
    names.any(|name| observation.configuration.get(name).is_some())
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
            crate::spec::load_space(&path, &host::Roots::default())
        };
        let (_, settings, _) = read(Settings::EARLIER_MAX).unwrap();
        assert_eq!(settings.earlier.len(), Settings::EARLIER_MAX);
        let pipe = dir.path().join("pipe.jsonl");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        let spec = "[search]\nwarm_start = [\"pipe.jsonl\"]\n[[parameters]]\nname = \"n\"\ntype = \"int\"\nlow = 1\nhigh = 4\n";
        let path = dir.path().join("spec.toml");
        std::fs::write(&path, spec).unwrap();
        let error = crate::spec::load_space(&path, &host::Roots::default());
        let error = error.unwrap_err().to_string();
        assert!(error.ends_with("pipe.jsonl: is not a file"), "{error}");
        let error = read(Settings::EARLIER_MAX + 1).unwrap_err().to_string();
        let words = "spec.toml:2: search.warm_start: names more than 12 experiments";
        assert!(error.ends_with(words), "{error}");
    }
}
