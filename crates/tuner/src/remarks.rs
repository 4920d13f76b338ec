//! What is right in a specification, and still better known before anything is measured.

use std::ffi::OsStr;

use crate::arm::Arm;
use crate::side::Side;
use crate::spec::CheckedSpec;
use crate::template;

/// What is right, and still better known before anything is measured, a sentence each:
/// parameters that are left out on this host, parameters of no effect, and, where all is
/// measured here, programs that are not on `path` and files that are not as their templates
/// have them.
#[must_use]
pub fn remarks(spec: &CheckedSpec, path: &OsStr) -> Vec<String> {
    let skipped = spec.skipped.iter().map(|it| format!("skipped {it}"));
    let unused = spec.unused.iter().map(|name| {
        format!("parameter {name} is not used: it is no knob, and no command, file or environment has {{{name}}}")
    });
    let (missing, other) = match spec.written().workers {
        Some(_) => (Vec::new(), Vec::new()),
        None => (missing_programs(spec, path), other_files(spec)),
    };
    let missing = missing.into_iter().map(|(key, program)| {
        format!("missing here: {key} is {program:?}, and there is no such program on the PATH")
    });
    let other = other.into_iter().map(|(key, path)| {
        format!(
            "other contents: {path} ({key}) differs from its template with the control's values. While Slackline measures, the \
             file has the template's contents: check that the control is what you run today"
        )
    });
    let other_defaults = spec.other_defaults.iter().cloned();
    let unreadable = unreadable_packets(spec);
    let never = spec.early_end_remark();
    skipped
        .chain(other_defaults)
        .chain(unused)
        .chain(missing)
        .chain(other)
        .chain(unreadable)
        .chain(never)
        .collect()
}

/// Files of a service that runs by itself which differ from what the control makes of their
/// templates, as (key, path).
fn other_files(spec: &CheckedSpec) -> Vec<(String, String)> {
    if spec.target().start.is_some() {
        return Vec::new();
    }
    let variables = Arm::control(spec).variables(spec, Side::Control);
    let files = spec.target().files.iter().enumerate();
    files
        .filter_map(|(index, file)| {
            // What has a port of its own, or the instance's directory, is not known yet.
            let path = template::fill(&file.path, &variables).ok()?;
            let text = std::fs::read_to_string(spec.dir.join(&file.template)).ok()?;
            let filled = template::fill(&text, &variables).ok()?;
            let is_file = std::fs::metadata(&path).is_ok_and(|metadata| metadata.is_file());
            let is_other = is_file && std::fs::read(&path).ok()? != filled.as_bytes();
            is_other.then(|| (format!("target.files[{index}]"), path))
        })
        .collect()
}

/// Programs that prepare and start the target, apply a configuration to it, put it under load
/// and measure it, and are not on `path`, as (key, program). Those with a PATH of their own are
/// not looked at.
fn missing_programs<'a>(spec: &'a CheckedSpec, path: &OsStr) -> Vec<(String, &'a str)> {
    let is_missing = |program: &str| {
        // A path may begin in the specification's folder or in one that is made later.
        let is_name = !program.contains(['/', '{']);
        is_name && !std::env::split_paths(path).any(|dir| dir.join(program).is_file())
    };
    let (target, workload) = (spec.target(), spec.workload());
    let ready = target.ready.as_ref();
    let mut commands = Vec::new();
    if !target.env.contains_key("PATH") {
        commands.extend([
            ("target.prepare".to_owned(), target.prepare.as_ref()),
            ("target.start".to_owned(), target.start.as_ref()),
            (
                "target.ready.command".to_owned(),
                ready.and_then(|ready| ready.command.as_ref()),
            ),
        ]);
        commands.extend(target.apply.iter().enumerate().map(|(index, step)| {
            (
                format!("target.apply[{index}].command"),
                step.command.as_ref(),
            )
        }));
        let metrics = spec.written().metrics.iter();
        commands
            .extend(metrics.map(|(name, metric)| {
                (format!("metrics.{name}.command"), metric.command.as_ref())
            }));
    }
    if !workload.env.contains_key("PATH") {
        commands.push(("workload.command".to_owned(), Some(&workload.command)));
        let capacity = &workload.capacity_command;
        commands.push(("workload.capacity_command".to_owned(), Some(capacity)));
    }
    commands
        .into_iter()
        .filter_map(|(key, command)| Some((key, command?.first()?.as_str())))
        .filter(|(_, program)| is_missing(program))
        .collect()
}

/// Why no packets can be read here, where a metric needs them.
fn unreadable_packets(spec: &CheckedSpec) -> Option<String> {
    if spec.written().workers.is_some() {
        return None;
    }
    let name = spec.wire_metric()?;
    let error = wire_latency::probe().err()?;
    Some(format!("missing here: metrics.{name}.wire: {error}"))
}
