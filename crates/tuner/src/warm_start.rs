//! `search.warm_start`: what an earlier experiment measured, as its report or its lines of
//! `ask-tell` have it.

use std::path::Path;

use bayes_opt::Observation;
use config_errors::plain;
use experiment_spec::Spec;

use crate::report::Report;
use crate::tell::Tell;

/// The results in a file of an earlier experiment; an error is in words.
pub(crate) fn read(spec: &Spec, path: &Path) -> Result<Vec<Observation>, String> {
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
