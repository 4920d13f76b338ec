//! Turns the shape into a promise: every range, name, unit and file of a specification is tested
//! before anything is started or changed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bayes_opt::Space;
use host::{HostError, Roots, is_same_file};

use super::check_continuous::check_continuous;
use super::check_metrics::check_metrics;
use super::checked::CheckedSpec;
use super::context::SpecContext;
use super::cpus::check_cpus;
use super::expression::MetricConstraint;
use super::form::{RESERVED, check_command, check_name, check_url, is_word};
use super::knobs::KnobBinding;
use super::locate::Source;
use super::masks::Masks;
use super::numbers::{check_counts, check_numbers};
use super::parameters::{CheckedSpace, arm_configuration, check_space};
use super::templates::{CheckedParts, check_apply, check_templates};
use super::warm_control::check_evaluation;
use super::{ObjectiveSpec, Pairing, ReadySpec, Spec, TargetSpec, WorkloadSpec};
use crate::error::SpecError;
use crate::http::http_metrics;
use crate::json_path::check_json_path;
use crate::metrics;
use crate::pattern::check_regex;

/// The most characters of a name that a person gives: what a table's cell holds.
pub const NAME_CHARS_MAX: usize = 100;

/// The names that a person gives are of bounded length.
fn check_lengths(spec: &Spec, name: &str, source: &Source) -> Result<(), SpecError> {
    let parameters = spec.parameters.iter().enumerate();
    let parameters = parameters.map(|(index, it)| (format!("parameters[{index}].name"), &it.name));
    let arms = spec.verification.arms.iter().enumerate();
    let arms = arms.map(|(index, it)| (format!("verification.arms[{index}].name"), &it.name));
    let names = parameters
        .chain(arms)
        .map(|(key, name)| (key, name.as_str()));
    for (key, name) in names.chain([("name".to_owned(), name)]) {
        let length = name.chars().count();
        if length > NAME_CHARS_MAX {
            let why = format!(
                "the name has {length} characters, and may have {NAME_CHARS_MAX}: give a shorter one"
            );
            return Err(source.error(&key, why));
        }
    }
    Ok(())
}

/// What templates name is a word.
fn check_words(spec: &Spec, source: &Source) -> Result<(), SpecError> {
    let is_free = |name: &str| is_word(name) && !RESERVED.contains(&name);
    for (index, parameter) in spec.parameters.iter().enumerate() {
        let name = &parameter.name;
        if !is_free(name) {
            let others = RESERVED.join(", ");
            let why = format!("{name:?} must be a plain word other than {others}");
            return Err(source.error(&format!("parameters[{index}].name"), why));
        }
    }
    for name in spec.variables.keys() {
        if !is_free(name) {
            let key = format!("variables.{name}");
            return Err(source.error(&key, "must be a plain word (letters, digits and _) other than port, dir, side, spec_dir and duration_s"));
        }
    }
    Ok(())
}

/// What can be told from the text alone.
pub(super) fn check_alone(spec: &Spec, source: &Source) -> Result<(), SpecError> {
    check_words(spec, source)?;
    check_counts(spec, source)?;
    check_numbers(spec, source)
}

/// Checks the folder in which a specification would lie that is not in a file: commands run there.
///
/// # Errors
/// The folder is none.
pub fn check_dir(file: &Path) -> Result<(), SpecError> {
    let dir = folder(file);
    let why = match std::fs::metadata(&dir) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => "is not a directory".to_owned(),
        Err(error) => format!("cannot be used: {error}"),
    };
    Err(SpecError {
        file: file.to_owned(),
        line: None,
        key: "dir".to_owned(),
        message: format!(
            "{} {why}. Give the directory in which commands run, and from which relative paths count",
            dir.display()
        ),
    })
}

/// A file that is a knob is written for the knob alone.
fn check_shared_files(
    spec: &Spec,
    target: &TargetSpec,
    knobs: &BTreeMap<String, KnobBinding>,
    source: &Source,
    roots: &Roots,
) -> Result<(), SpecError> {
    for (index, file) in target.files.iter().enumerate() {
        let path = Path::new(&file.path);
        let is_it = |binding: &KnobBinding| is_same_file(&binding.knob.path(roots), path);
        let mut parameters = spec.parameters.iter().enumerate();
        let shared = parameters.find(|(_, it)| knobs.get(&it.name).is_some_and(is_it));
        if let Some((place, parameter)) = shared {
            let why = format!(
                "{:?} is set by the parameter `{}` (parameters[{place}]), too: make the value a part of the template, or remove the file",
                file.path, parameter.name
            );
            return Err(source.error(&format!("target.files[{index}].path"), why));
        }
    }
    Ok(())
}

/// Where relative paths count from: beside the file, or where one that does not exist would be.
fn folder(file: &Path) -> PathBuf {
    let of = |path: &Path| path.parent().map(Path::to_owned);
    match file.canonicalize() {
        Ok(file) => of(&file).unwrap_or_default(),
        Err(_) => {
            let folder = of(file).unwrap_or_default();
            std::path::absolute(&folder).unwrap_or(folder)
        }
    }
}

pub(super) fn check_experiment(
    spec: Spec,
    source: &Source,
    context: &SpecContext<'_>,
) -> Result<CheckedSpec, SpecError> {
    check_words(&spec, source)?;
    let space = check_space(&spec, source, context)?;
    let SpecContext {
        roots, has_begun, ..
    } = *context;
    let dir = folder(source.path());
    if !has_begun {
        check_counts(&spec, source)?;
    }
    let missing = |key: &str| source.error(key, format!("[{key}] is missing"));
    let target = spec.target.as_ref().ok_or_else(|| missing("target"))?;
    let mut workload = workload_of(&spec, source)?;
    let objective = spec.objective.as_ref();
    let objective = objective.ok_or_else(|| missing("objective"))?;
    check_target(target, source, &dir, has_begun)?;
    check_shared_files(&spec, target, &space.knobs, source, roots)?;
    check_apply(&spec, target, source)?;
    check_evaluation(&spec, target, source)?;
    if spec.workload.is_some() {
        resolve_http(&mut workload, source)?;
        check_workload(&workload, source)?;
    }
    check_numbers(&spec, source)?;
    let pins = check_cpus(&spec, target, &workload, source, roots)?;
    let constraints = constraints_of(&spec, source)?;
    check_knobs(&spec, target, &space, source)?;
    let known = metrics::Known::of(&spec, &workload, target);
    check_metric_names(&spec, &workload, objective, &constraints, &known, source)?;
    let continuous = check_continuous(&spec, source, target, objective, &known)?;
    check_metrics(&spec, source, target)?;
    check_arms(&spec, &space.space, source)?;
    let parts = CheckedParts {
        has_begun,
        spec: &spec,
        source,
        dir: &dir,
        target,
        workload: &workload,
        space: &space.space,
        skipped: spec
            .parameters
            .iter()
            .map(|parameter| parameter.name.as_str())
            .filter(|name| {
                space
                    .space
                    .parameters()
                    .iter()
                    .all(|kept| kept.name != *name)
            })
            .collect(),
    };
    let used = check_templates(&parts)?;
    let parameters = space.space.parameters().iter().map(|it| it.name.clone());
    let unused = parameters
        .filter(|name| !space.knobs.contains_key(name) && !used.contains(name))
        .collect();
    let name = name_of(&spec, source);
    check_name("name", &name, source)?;
    if !has_begun {
        // One that an earlier Slackline has begun can be rolled back whatever it is called.
        check_lengths(&spec, &name, source)?;
    }
    Ok(CheckedSpec {
        // Whoever may only look reads it.
        name: Masks::ForReaders.line(&name),
        dir,
        space: space.space,
        settings: space.settings,
        knobs: space.knobs,
        skipped: space.skipped,
        other_defaults: space.other_defaults,
        unused,
        pins,
        saturated: workload.saturated(),
        resolved_workload: match workload {
            Cow::Borrowed(_) => None,
            Cow::Owned(resolved) => Some(resolved),
        },
        constraints,
        continuous,
        spec,
    })
}

/// The load, which is the service's own users' where the specification has none.
fn workload_of<'a>(spec: &'a Spec, source: &Source) -> Result<Cow<'a, WorkloadSpec>, SpecError> {
    match &spec.workload {
        Some(workload) => Ok(Cow::Borrowed(workload)),
        None if spec.reads_latency() => Ok(Cow::Owned(WorkloadSpec::default())),
        None => {
            let why = "[workload] is missing; where the service's own users are the load, a metric must read their latency: \
                       metrics.p99.wire = { port = 8080 }, or scrape, or push";
            Err(source.error("workload", why))
        }
    }
}

fn constraints_of(spec: &Spec, source: &Source) -> Result<Vec<MetricConstraint>, SpecError> {
    let texts = spec.constraints.iter().enumerate();
    texts
        .map(|(index, text)| {
            MetricConstraint::parse(text)
                .map_err(|message| source.error(&format!("constraints[{index}]"), message))
        })
        .collect()
}

/// Knobs of the host have one value at a time, and every parameter has a control's value.
fn check_knobs(
    spec: &Spec,
    target: &TargetSpec,
    space: &CheckedSpace,
    source: &Source,
) -> Result<(), SpecError> {
    let is_of_host = |binding: &KnobBinding| !binding.knob.is_of_instance();
    if target.pairing == Pairing::Parallel && space.knobs.values().any(is_of_host) {
        return Err(source.error(
            "target.pairing",
            "kernel knobs belong to the whole host, so two instances cannot have different ones at once: use alternating",
        ));
    }
    for (index, parameter) in spec.parameters.iter().enumerate() {
        let is_read =
            space.knobs.get(&parameter.name).is_some_and(is_of_host) && parameter.write.is_none();
        let is_absent = !space
            .space
            .parameters()
            .iter()
            .any(|kept| kept.name == parameter.name);
        if parameter.default.is_none() && !is_read && !is_absent {
            return Err(source.error(
                &format!("parameters[{index}]"),
                format!(
                    "{} needs a default: it is the control's value, and cannot be read from the system",
                    parameter.name
                ),
            ));
        }
    }
    Ok(())
}

/// Every metric that is named is one that a block will have.
fn check_metric_names(
    spec: &Spec,
    workload: &WorkloadSpec,
    objective: &ObjectiveSpec,
    constraints: &[MetricConstraint],
    known: &metrics::Known,
    source: &Source,
) -> Result<(), SpecError> {
    known
        .check(&objective.metric)
        .map_err(|message| source.error("objective.metric", message))?;
    for (index, constraint) in constraints.iter().enumerate() {
        known
            .check(&constraint.metric)
            .map_err(|message| source.error(&format!("constraints[{index}]"), message))?;
    }
    for (index, metric) in spec.verification.report.iter().enumerate() {
        known
            .check(metric)
            .map_err(|message| source.error(&format!("verification.report[{index}]"), message))?;
    }
    for metric in workload.minimum.keys() {
        known
            .check(metric)
            .map_err(|message| source.error(&format!("workload.minimum.{metric}"), message))?;
    }
    Ok(())
}

/// The further arms of the verification have names of their own, and values of the space.
fn check_arms(spec: &Spec, space: &Space, source: &Source) -> Result<(), SpecError> {
    for (index, arm) in spec.verification.arms.iter().enumerate() {
        let key = format!("verification.arms[{index}]");
        check_name(&format!("{key}.name"), &arm.name, source)?;
        let earlier = &spec.verification.arms[..index];
        if arm.name.starts_with("candidate ") || earlier.iter().any(|it| it.name == arm.name) {
            return Err(source.error(
                &format!("{key}.name"),
                format!("{:?} is another arm's name", arm.name),
            ));
        }
        for name in arm.variables.keys() {
            if !spec.variables.contains_key(name) {
                return Err(
                    source.error(&format!("{key}.variables.{name}"), "is not in [variables]")
                );
            }
        }
        space
            .check(&arm_configuration(space, &arm.parameters))
            .map_err(|error| source.error(&format!("{key}.parameters"), error.to_string()))?;
    }
    Ok(())
}

/// The experiment's name: the file's, where the specification has none.
fn name_of(spec: &Spec, source: &Source) -> String {
    spec.name.clone().unwrap_or_else(|| {
        source.path().file_stem().map_or_else(
            || "experiment".into(),
            |stem| stem.to_string_lossy().into_owned(),
        )
    })
}

fn check_target(
    target: &TargetSpec,
    source: &Source,
    dir: &Path,
    has_begun: bool,
) -> Result<(), SpecError> {
    if target.start.is_none() && target.pairing == Pairing::Parallel {
        return Err(source.error(
            "target.pairing",
            "parallel needs target.start, because it measures two instances",
        ));
    }
    check_command("target.start", target.start.as_ref(), source)?;
    check_command("target.prepare", target.prepare.as_ref(), source)?;
    if target.start.is_some() && target.observe.is_some() {
        return Err(source.error(
            "target.observe",
            "only for a service that Slackline does not start",
        ));
    }
    if target.start.is_none() && target.quota.is_some() {
        return Err(source.error(
            "target.quota",
            "only for a service that Slackline starts; a running one's cgroup can be a parameter",
        ));
    }
    if let Some(observe) = &target.observe
        && usize::from(observe.pid.is_some())
            + usize::from(observe.pid_file.is_some())
            + usize::from(observe.cgroup.is_some())
            != 1
    {
        return Err(source.error(
            "target.observe",
            "give exactly one of pid, pid_file, cgroup",
        ));
    }
    check_files(target, source, dir, has_begun)?;
    check_steps(target, source)?;
    if let Some(ready) = &target.ready {
        check_ready(ready, source)?;
    }
    if target.stop.signal().is_none() {
        return Err(source.error("target.stop.signal", "must be TERM, INT, QUIT or KILL"));
    }
    if target.ports.is_some_and(|[control, experiment]| {
        control == experiment || control == 0 || experiment == 0
    }) {
        return Err(source.error("target.ports", "must be two different ports above 0"));
    }
    Ok(())
}

/// Templates are there unless the experiment has begun. What is made of them is put where nothing
/// else is.
fn check_files(
    target: &TargetSpec,
    source: &Source,
    dir: &Path,
    has_begun: bool,
) -> Result<(), SpecError> {
    for (index, file) in target.files.iter().enumerate() {
        let template = dir.join(&file.template);
        if !has_begun && !template.is_file() {
            return Err(source.error(
                &format!("target.files[{index}].template"),
                format!("{} is not a file", template.display()),
            ));
        }
        let key = format!("target.files[{index}].path");
        check_path(&key, &file.path, target, source)?;
        let path = Path::new(&file.path);
        let mut earlier = target.files[..index].iter().enumerate();
        let same = earlier.find(|(_, other)| is_same_file(Path::new(&other.path), path));
        if let Some((place, other)) = same {
            let why = match other.path == file.path {
                true => format!("{:?} is written twice", file.path),
                false => format!(
                    "{:?} and {:?} (target.files[{place}].path) are one file: remove one of the two",
                    file.path, other.path
                ),
            };
            return Err(source.error(&key, why));
        }
        if is_same_file(&template, path) {
            let why = format!(
                "{:?} is the template itself, and would be overwritten",
                file.path
            );
            return Err(source.error(&key, why));
        }
        // Of what may only be seen by another user nothing is said.
        if !has_begun
            && let Err(error @ HostError::Irreplaceable { .. }) =
                host::check_replaceable(Path::new(&file.path))
        {
            return Err(source.error(&key, error.to_string()));
        }
    }
    Ok(())
}

/// Each `apply` step is one thing.
fn check_steps(target: &TargetSpec, source: &Source) -> Result<(), SpecError> {
    for (index, step) in target.apply.iter().enumerate() {
        if step.command.is_some() == step.url.is_some() {
            return Err(source.error(
                &format!("target.apply[{index}]"),
                "give either command or url",
            ));
        }
        let key = |field: &str| format!("target.apply[{index}].{field}");
        check_command(&key("command"), step.command.as_ref(), source)?;
        if let Some(url) = &step.url {
            check_url(&key("url"), url, source)?;
        }
    }
    Ok(())
}

/// There is one sign of a service that is up.
fn check_ready(ready: &ReadySpec, source: &Source) -> Result<(), SpecError> {
    let given = usize::from(ready.url.is_some())
        + usize::from(ready.port.is_some())
        + usize::from(ready.command.is_some());
    if given != 1 {
        return Err(source.error("target.ready", "give exactly one of url, port, command"));
    }
    if let Some(url) = &ready.url {
        check_url("target.ready.url", url, source)?;
    }
    if let Some(port) = &ready.port
        && !port.contains('{')
        && !port.parse::<u16>().is_ok_and(|port| port > 0)
    {
        return Err(source.error(
            "target.ready.port",
            format!("{port:?} is not a port: write \"{{port}}\", or a number from 1 to 65535"),
        ));
    }
    check_command("target.ready.command", ready.command.as_ref(), source)?;
    Ok(())
}

/// Where a file is put. It may begin with a name, whose value is not known yet: then whoever writes
/// it looks.
fn check_path(
    key: &str,
    path: &str,
    target: &TargetSpec,
    source: &Source,
) -> Result<(), SpecError> {
    let message = if path.split('/').any(|part| part == "..") {
        "must not have .. in it"
    } else if target.start.is_some() && !path.starts_with('{') {
        "must begin with {dir}, as each of the two instances has its own"
    } else if !path.starts_with(['/', '{']) {
        "must be absolute"
    } else {
        return Ok(());
    };
    Err(source.error(key, format!("{path:?} {message}")))
}

/// Slackline's own load generator is a command like any other, whose report says more.
fn resolve_http(workload: &mut Cow<'_, WorkloadSpec>, source: &Source) -> Result<(), SpecError> {
    let Some(http) = &workload.http else {
        return Ok(());
    };
    if !(workload.command.is_empty()
        && workload.capacity_command.is_empty()
        && workload.parse.is_none()
        && workload.json.is_empty()
        && workload.regex.is_empty())
    {
        return Err(source.error(
            "workload.http",
            "is itself the load generator: leave out command, capacity_command, parse, json and regex",
        ));
    }
    check_url("workload.http.url", &http.url, source)?;
    let command = http.command();
    let command =
        command.map_err(|(key, message)| source.error(&format!("workload.http.{key}"), message))?;
    let workload = workload.to_mut();
    workload.command = command;
    workload.json = http_metrics();
    Ok(())
}

fn check_workload(workload: &WorkloadSpec, source: &Source) -> Result<(), SpecError> {
    check_command("workload.command", Some(&workload.command), source)?;
    let readers = usize::from(workload.parse.is_some())
        + usize::from(!workload.json.is_empty())
        + usize::from(!workload.regex.is_empty());
    if readers != 1 {
        return Err(source.error(
            "workload",
            "give exactly one of parse, json, regex: how its output is read",
        ));
    }
    for (name, path) in &workload.json {
        check_json_path(path)
            .map_err(|message| source.error(&format!("workload.json.{name}"), message))?;
    }
    for (name, pattern) in &workload.regex {
        check_regex(pattern)
            .map_err(|message| source.error(&format!("workload.regex.{name}"), message))?;
    }
    Ok(())
}
