//! Every `{name}` of a specification, and of the template files it names, is known before anything
//! is started.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bayes_opt::Space;

use super::locate::Source;
use super::{Spec, TargetSpec, TextOrFile, WorkloadSpec};
use crate::environment::{is_variable, secret_in};
use crate::error::SpecError;
use crate::quota::QuotaSpec;
use crate::template::{self, Variables};

/// What an instance knows, beside parameters and `[variables]`.
const OF_INSTANCE: [&str; 4] = ["port", "dir", "side", "spec_dir"];

/// What [`check_templates`] looks at.
pub(super) struct CheckedParts<'a> {
    /// A missing or invalid template is no error.
    pub(super) has_begun: bool,
    pub(super) spec: &'a Spec,
    pub(super) source: &'a Source,
    pub(super) dir: &'a Path,
    pub(super) target: &'a TargetSpec,
    pub(super) workload: &'a WorkloadSpec,
    pub(super) space: &'a Space,
    /// Names of the parameters that were left out.
    pub(super) skipped: Vec<&'a str>,
}

/// Texts in which names stand, as they are looked at.
struct Texts<'a> {
    parts: &'a CheckedParts<'a>,
    /// The names so far.
    used: BTreeSet<String>,
}

impl Texts<'_> {
    fn check(&mut self, key: &str, text: &str, known: &Variables) -> Result<(), SpecError> {
        self.used.extend(template::names(text));
        template::fill(text, known).map(drop).map_err(|error| {
            let absent = self.parts.skipped.iter().any(|name| *name == error.name);
            let why = if absent {
                "is a parameter that this host does not have, and was left out".to_owned()
            } else {
                format!(
                    "is neither a parameter nor a variable (known: {}); write {{{{{}}}}} for the text itself",
                    error.known, error.name
                )
            };
            self.parts
                .source
                .error(key, format!("{{{}}} {why}", error.name))
        })
    }

    fn check_list(
        &mut self,
        key: &str,
        list: Option<&Vec<String>>,
        known: &Variables,
    ) -> Result<(), SpecError> {
        let mut words = list.into_iter().flatten().enumerate();
        words.try_for_each(|(index, word)| self.check(&format!("{key}[{index}]"), word, known))
    }

    fn check_option(
        &mut self,
        key: &str,
        text: Option<&String>,
        known: &Variables,
    ) -> Result<(), SpecError> {
        text.map_or(Ok(()), |text| self.check(key, text, known))
    }

    fn check_env(
        &mut self,
        of: &str,
        env: &BTreeMap<String, TextOrFile>,
        known: &Variables,
    ) -> Result<(), SpecError> {
        env.iter().try_for_each(|(name, value)| {
            let key = format!("{of}.env.{name}");
            match value {
                TextOrFile::Text(text) => self.check(&key, text, known),
                TextOrFile::File(of_file) => {
                    let read = secret_in(&self.parts.dir.join(&of_file.file));
                    let is_missed = read.is_err() && self.parts.has_begun;
                    match read.and(is_variable(name)) {
                        Err(why) if !is_missed => Err(self.parts.source.error(&key, why)),
                        _ => Ok(()),
                    }
                }
            }
        })
    }
}

/// All names that are used.
pub(super) fn check_templates(parts: &CheckedParts<'_>) -> Result<BTreeSet<String>, SpecError> {
    let CheckedParts {
        has_begun,
        spec,
        source,
        dir,
        target,
        workload,
        space,
        skipped,
    } = parts;
    let mut known: Variables = OF_INSTANCE.iter().map(|name| named(name)).collect();
    known.extend(spec.variables.keys().map(|name| named(name)));
    known.extend(
        space
            .parameters()
            .iter()
            .map(|parameter| named(&parameter.name)),
    );
    let mut texts = Texts {
        parts,
        used: BTreeSet::new(),
    };
    texts.check_list("target.start", target.start.as_ref(), &known)?;
    texts.check_list("target.prepare", target.prepare.as_ref(), &known)?;
    texts.check_env("target", &target.env, &known)?;
    if let Some(quota) = &target.quota {
        for (key, value) in quota.texts() {
            texts.check(&format!("target.quota.{key}"), &value, &known)?;
        }
        check_quota(parts, quota, &known)?;
    }
    for (index, step) in target.apply.iter().enumerate() {
        let key = format!("target.apply[{index}]");
        texts.check_list(&format!("{key}.command"), step.command.as_ref(), &known)?;
        texts.check_option(&format!("{key}.url"), step.url.as_ref(), &known)?;
        texts.check_option(&format!("{key}.body"), step.body.as_ref(), &known)?;
    }
    if let Some(ready) = &target.ready {
        texts.check_option("target.ready.url", ready.url.as_ref(), &known)?;
        texts.check_option("target.ready.port", ready.port.as_ref(), &known)?;
        texts.check_list("target.ready.command", ready.command.as_ref(), &known)?;
    }
    for (name, metric) in &spec.metrics {
        texts.check_option(
            &format!("metrics.{name}.query"),
            metric.query.as_ref(),
            &known,
        )?;
        texts.check_list(
            &format!("metrics.{name}.command"),
            metric.command.as_ref(),
            &known,
        )?;
        for (key, text) in metric.latency().iter().flat_map(|latency| latency.texts()) {
            texts.check(&format!("metrics.{name}.{key}"), &text, &known)?;
        }
    }
    for (index, parameter) in spec.parameters.iter().enumerate() {
        if !skipped.contains(&parameter.name.as_str()) {
            texts.check_option(
                &format!("parameters[{index}].write"),
                parameter.write.as_ref(),
                &known,
            )?;
        }
    }
    for (index, file) in target.files.iter().enumerate() {
        let key = format!("target.files[{index}]");
        texts.check(&format!("{key}.path"), &file.path, &known)?;
        match check_file(&dir.join(&file.template), &known) {
            Ok(text) => texts.used.extend(template::names(&text)),
            Err(_) if *has_begun => {}
            Err(message) => return Err(source.error(&format!("{key}.template"), message)),
        }
    }
    known.extend([named("duration_s")]);
    texts.check_env("workload", &workload.env, &known)?;
    texts.check_list("workload.command", Some(&workload.command), &known)?;
    let capacity = &workload.capacity_command;
    texts.check_list("workload.capacity_command", Some(capacity), &known)?;
    Ok(texts.used)
}

/// Names are known, and the control's limit is one that the kernel takes.
fn check_quota(
    parts: &CheckedParts<'_>,
    quota: &QuotaSpec,
    known: &Variables,
) -> Result<(), SpecError> {
    let mut values = known.clone();
    let control = parts.space.default_configuration();
    values.extend(template::variables(&parts.spec.variables, &control));
    quota
        .filled(&values)
        .map(drop)
        .map_err(|(key, message)| parts.source.error(&format!("target.quota.{key}"), message))
}

/// The file's text.
fn check_file(path: &Path, known: &Variables) -> Result<String, String> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    template::fill(&text, known).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(text)
}

fn named(name: &str) -> (String, String) {
    (name.to_owned(), String::new())
}

/// The parameters and variables that an `apply` step is for exist.
pub(super) fn check_apply(
    spec: &Spec,
    target: &TargetSpec,
    source: &Source,
) -> Result<(), SpecError> {
    for (index, step) in target.apply.iter().enumerate() {
        for (place, name) in step.parameters.iter().enumerate() {
            let is_parameter = spec.parameters.iter().any(|known| known.name == *name);
            if !is_parameter && !spec.variables.contains_key(name) {
                return Err(source.error(
                    &format!("target.apply[{index}].parameters[{place}]"),
                    format!("{name:?} is neither a parameter nor a variable"),
                ));
            }
        }
    }
    Ok(())
}
