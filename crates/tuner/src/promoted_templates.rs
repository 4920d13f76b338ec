//! The template files of a service that runs by itself, whose contents stay in force with a
//! promoted configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bayes_opt::Configuration;

use crate::arm::Arm;
use crate::side::Side;
use crate::spec::CheckedSpec;
use crate::template;

/// The fingerprint of each template, as the specification names it, of a service that runs by
/// itself: what is promoted is to be what was measured. One that cannot be read has none.
#[must_use]
pub(crate) fn template_fingerprints(spec: &CheckedSpec) -> BTreeMap<String, String> {
    let files = spec.target().files.iter();
    let files = files.filter(|_| spec.target().start.is_none());
    files
        .filter_map(|file| {
            let print = host::fingerprint(&spec.dir.join(&file.template)).ok()??;
            Some((file.template.display().to_string(), print))
        })
        .collect()
}

/// The templated files of a service that runs by itself which stay in force with a promoted
/// configuration, each with its template.
pub(crate) fn promoted_files(
    spec: &CheckedSpec,
    configuration: &Configuration,
) -> impl Iterator<Item = (PathBuf, PathBuf)> {
    let variables = Arm::of(configuration.clone()).variables(spec, Side::Experiment);
    let files = spec.target().files.iter();
    files
        .filter(|_| spec.target().start.is_none())
        .filter_map(move |file| {
            let path = template::fill(&file.path, &variables).ok()?;
            Some((path.into(), spec.dir.join(&file.template)))
        })
}
