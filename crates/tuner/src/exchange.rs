//! A report as a starting point: its specification again, and a configuration of it as files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bayes_opt::{Configuration, Value};
use host::{Roots, boot_setting};

use crate::bench::Arm;
use crate::error::SpecError;
use crate::knob_writes::knob_text;
use crate::ledger::{PlannedArm, ResumeState, VerificationRun};
use crate::report::{EvaluationRecord, Report};
use crate::side::Side;
use crate::spec::{self, CheckedSpec};
use crate::{template, verification};

impl Report {
    /// Its specification, checked against this host; the control is that of the report, whatever
    /// the host's knobs have now. `file` is the report's file, for errors.
    ///
    /// # Errors
    /// What is wrong with it on this host.
    pub fn checked(&self, file: &Path, roots: &Roots) -> Result<CheckedSpec, SpecError> {
        let mut spec = self.spec.clone();
        spec.name = Some(self.name.clone());
        for parameter in &mut spec.parameters {
            if let Some(value) = self.control.get(&parameter.name) {
                parameter.pin(value);
            }
        }
        // The specification is a part of the report: its lines are not those of the file.
        let in_report = |error: SpecError| SpecError {
            file: file.to_path_buf(),
            line: None,
            ..error
        };
        let text = serde_json::to_string(&spec).map_err(|error| SpecError {
            file: file.to_path_buf(),
            line: None,
            key: String::new(),
            message: error.to_string(),
        })?;
        // Relative paths start in the directory of the specification.
        spec::context(roots)
            .check(text, &self.dir.join("report.json"))
            .map_err(in_report)
    }

    /// The evaluation of that number.
    #[must_use]
    pub fn evaluation(&self, number: usize) -> Option<&EvaluationRecord> {
        self.evaluations.iter().find(|it| it.number == number)
    }

    /// What an interrupted experiment has measured, for one that goes on from there.
    #[must_use]
    pub fn kept(&self) -> ResumeState {
        // One that was cut off counts for nothing.
        let evaluations = self.evaluations.iter().filter(|it| it.is_ended()).cloned();
        let plan: Vec<PlannedArm> = self
            .verification
            .iter()
            .map(|arm| arm.planned(self.variables_of(&arm.name)))
            .collect();
        let runs = self
            .verification
            .iter()
            .enumerate()
            .flat_map(|(index, arm)| {
                (1..)
                    .zip(&arm.runs_blocks)
                    .map(move |(run, blocks)| VerificationRun {
                        arm: index,
                        run,
                        blocks: blocks.clone(),
                        fault: None,
                        host: None,
                        templates: self.templates.clone(),
                        begun: None,
                    })
            });
        ResumeState {
            started: Some(self.started),
            evaluations: evaluations.collect(),
            plan: (!plan.is_empty()).then_some(plan),
            runs: runs.collect(),
            ..ResumeState::default()
        }
    }

    fn variables_of(&self, arm: &str) -> BTreeMap<String, Value> {
        let arms = self.spec.verification.arms.iter();
        let mut arms = arms.filter(|it| it.name == arm);
        arms.next()
            .map(|it| it.variables.clone())
            .unwrap_or_default()
    }
}

/// A file to be written somewhere else: where it belongs, and what is in it.
pub type PlacedFile = (PathBuf, String);

/// The files that carry a configuration, with paths as they are on the host, without the leading
/// `/`: templated files, and those that set kernel knobs at boot. What only an instance of an
/// experiment knows, its port and directory, stays as `{port}` and `{dir}`. `settings.txt` has
/// every value, and how a running service is told.
///
/// # Errors
/// In words: a template cannot be read or filled in.
pub fn files(
    spec: &CheckedSpec,
    configuration: &Configuration,
    roots: &Roots,
) -> Result<Vec<PlacedFile>, String> {
    let arm = Arm::of(configuration.clone());
    let mut variables = arm.variables(spec, Side::Experiment);
    for name in ["port", "dir"] {
        variables
            .entry(name.to_owned())
            .or_insert_with(|| format!("{{{name}}}"));
    }
    let mut files = BTreeMap::new();
    for file in &spec.target().files {
        let template = spec.dir.join(&file.template);
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", template.display());
        let text = std::fs::read_to_string(&template).map_err(|error| failed(&error))?;
        let text = template::fill(&text, &variables).map_err(|error| failed(&error))?;
        let path = template::fill(&file.path, &variables).map_err(|error| failed(&error))?;
        let path = path.trim_start_matches("{dir}").trim_start_matches('/');
        files.insert(PathBuf::from(path), text);
    }
    for (name, binding) in &spec.knobs {
        let Some(value) = configuration.get(name) else {
            continue;
        };
        let text =
            knob_text(binding, value, &variables).map_err(|error| format!("{name}: {error}"))?;
        let Some(setting) = boot_setting(roots, &binding.knob, &text) else {
            continue;
        };
        let path = setting
            .file
            .strip_prefix("/")
            .unwrap_or(&setting.file)
            .to_owned();
        let known = files.entry(path).or_insert_with(|| {
            setting
                .section
                .map_or_else(String::new, |section| format!("{section}\n"))
        });
        known.push_str(&setting.line);
        known.push('\n');
    }
    let mut settings = verification::settings(spec, configuration);
    for step in &spec.target().apply {
        settings.push(match (&step.command, &step.url) {
            (Some(command), _) => command.join(" "),
            (None, url) => format!(
                "{} {}",
                step.method.as_deref().unwrap_or("POST"),
                url.as_deref().unwrap_or_default()
            ),
        });
    }
    files.insert("settings.txt".into(), settings.join("\n") + "\n");
    Ok(files.into_iter().collect())
}
