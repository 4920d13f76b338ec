//! `search.warm_start`: what earlier experiments measured.

use std::path::Path;

use bayes_opt::{Observation, Settings};

use super::Spec;
use super::context::EarlierReader;
use super::locate::Source;
use crate::error::SpecError;

pub(super) fn read_all(
    spec: &Spec,
    source: &Source,
    read: EarlierReader,
) -> Result<Vec<Vec<Observation>>, SpecError> {
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

/// Experiments may overlap in part, but not in nothing.
fn is_of_use(spec: &Spec, observation: &Observation) -> bool {
    let mut names = spec.parameters.iter().map(|parameter| &parameter.name);
    names.any(|name| observation.configuration.get(name).is_some())
}
