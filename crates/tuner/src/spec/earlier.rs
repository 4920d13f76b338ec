//! `search.warm_start`: what earlier experiments measured.

use std::path::Path;

use bayes_opt::{Configuration, Measured, Observation, Outcome};
use serde::Deserialize;

use super::Spec;
use super::locate::Source;
use crate::error::SpecError;
use crate::report::Report;

/// A line of a file whose name ends in `.jsonl`: what `ask-tell` is told.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    config: Configuration,
    value: Option<f64>,
    variance: Option<f64>,
    #[serde(default)]
    crashed: bool,
}

pub(super) fn read_all(spec: &Spec, source: &Source) -> Result<Vec<Vec<Observation>>, SpecError> {
    let dir = source.path().parent().unwrap_or(Path::new(""));
    let files = spec.search.warm_start.iter().enumerate();
    files
        .map(|(index, file)| {
            let path = dir.join(file);
            read(spec, &path).map_err(|message| {
                source.error(
                    &format!("search.warm_start[{index}]"),
                    format!("{}: {message}", path.display()),
                )
            })
        })
        .collect()
}

fn read(spec: &Spec, path: &Path) -> Result<Vec<Observation>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    if path
        .extension()
        .is_some_and(|extension| extension == "jsonl")
    {
        let lines = text.lines().enumerate();
        return lines
            .filter(|(_, line)| !line.trim().is_empty())
            .map(|(index, line)| {
                told(line).map_err(|message| format!("line {}: {message}", index + 1))
            })
            .collect();
    }
    let report: Report = serde_json::from_str(&text)
        .map_err(|error| format!("is not a report of `slackline tune --json`: {error}"))?;
    if let (Some(ours), Some(theirs)) = (&spec.objective, &report.spec.objective)
        && (ours.name() != theirs.name() || ours.scale != theirs.scale)
    {
        return Err(format!(
            "its objective is {}, not {}: their values cannot be compared",
            theirs.name(),
            ours.name()
        ));
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

fn told(line: &str) -> Result<Observation, String> {
    let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let outcome = match (line.crashed, line.value) {
        (true, _) => Outcome::Crashed,
        (false, Some(value)) => Outcome::completed(Measured {
            value,
            variance: line.variance,
        }),
        (false, None) => return Err("give a value, or \"crashed\": true".into()),
    };
    Ok(Observation::now(line.config, outcome))
}
