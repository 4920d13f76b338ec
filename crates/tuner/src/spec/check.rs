//! Turns the shape into a promise: every range, name, unit and file of a specification is tested
//! before anything is started or changed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bayes_opt::{
    Acquisition, Configuration, Kind, LinearConstraint, Parameter, PriorGuess, Settings, Space,
    Strategy, Value,
};
use host::{Knob, Roots};

use super::locate::Source;
use super::{
    AcquisitionName, MetricConstraint, ObjectiveSpec, Pairing, ParameterSpec, ParameterType,
    Scalar, Scale, Spec, StrategyName, TargetSpec, WorkloadSpec,
};
use crate::error::SpecError;
use crate::metrics;
use crate::parse;

/// A specification that has been checked against itself and against this host.
#[derive(Clone, Debug)]
pub struct CheckedSpec {
    /// As written.
    pub spec: Spec,
    /// Its name.
    pub name: String,
    /// The folder of its file, against which relative paths count.
    pub dir: PathBuf,
    /// The search space; its defaults are the control.
    pub space: Space,
    /// The optimiser's settings.
    pub settings: Settings,
    /// The parameters that are kernel knobs.
    pub knobs: BTreeMap<String, KnobBinding>,
    /// Optional parameters that this host does not have, with the reason.
    pub skipped: Vec<String>,
    /// The target.
    pub target: TargetSpec,
    /// CPUs of control, experiment and workload.
    pub pins: Pins,
    /// The workload.
    pub workload: WorkloadSpec,
    /// The objective.
    pub objective: ObjectiveSpec,
    /// The constraints.
    pub constraints: Vec<MetricConstraint>,
}

/// A parameter that is a kernel knob.
#[derive(Clone, Debug, PartialEq)]
pub struct KnobBinding {
    /// The knob.
    pub knob: Knob,
    /// The template of what is written; the plain value if `None`.
    pub write: Option<String>,
}

/// CPU lists, parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// Of the control's and the experiment's instance.
    pub sides: Option<[Vec<usize>; 2]>,
    /// Of the workload.
    pub workload: Option<Vec<usize>>,
}

/// The space and what belongs to it.
pub(super) struct CheckedSpace {
    pub(super) space: Space,
    pub(super) settings: Settings,
    knobs: BTreeMap<String, KnobBinding>,
    skipped: Vec<String>,
}

impl From<&Scalar> for Value {
    fn from(scalar: &Scalar) -> Self {
        match scalar {
            Scalar::Bool(value) => Value::Bool(*value),
            Scalar::Int(value) => Value::Int(*value),
            Scalar::Float(value) => Value::Float(*value),
            Scalar::Text(value) => Value::Text(value.clone()),
        }
    }
}

pub(super) fn check_space(
    spec: &Spec,
    source: &Source,
    roots: &Roots,
) -> Result<CheckedSpace, SpecError> {
    if spec.parameters.is_empty() {
        return Err(source.error("parameters", "there is none: nothing could be tuned"));
    }
    let mut parameters = Vec::new();
    let mut kept = Vec::new();
    let mut knobs = BTreeMap::new();
    let mut skipped = Vec::new();
    let mut names = BTreeSet::new();
    for (index, parameter) in spec.parameters.iter().enumerate() {
        let key = |field: &str| format!("parameters[{index}].{field}");
        let name = &parameter.name;
        if !is_word(name) || RESERVED.contains(&name.as_str()) {
            return Err(source.error(
                &key("name"),
                format!(
                    "{name:?} must be a plain word other than {}",
                    RESERVED.join(", ")
                ),
            ));
        }
        if !names.insert(name.clone()) || spec.variables.contains_key(name) {
            return Err(source.error(&key("name"), format!("{name:?} is used twice")));
        }
        let knob = knob_of(parameter, roots)
            .map_err(|(field, message)| source.error(&key(field), message))?;
        let mut default = parameter.default.as_ref().map(Value::from);
        if let Some((field, knob)) = knob {
            let live = knob
                .read(roots)
                .map_err(|error| source.error(&key(field), error.to_string()))?;
            match live {
                None if parameter.optional => {
                    skipped.push(format!(
                        "{name}: {} does not exist here",
                        knob.path(roots).display()
                    ));
                    continue;
                }
                None => {
                    return Err(source.error(
                        &key(field),
                        format!(
                            "{} does not exist on this host; set optional = true to leave the parameter out where it is absent",
                            knob.path(roots).display()
                        ),
                    ));
                }
                Some(text) if default.is_none() && parameter.write.is_none() => {
                    default = Some(live_default(parameter, &text).ok_or_else(|| {
                        source.error(
                            &key("type"),
                            format!("the live value {text:?} of {knob} is not of this type"),
                        )
                    })?);
                }
                Some(_) => {}
            }
            knobs.insert(
                name.clone(),
                KnobBinding {
                    knob,
                    write: parameter.write.clone(),
                },
            );
        } else if parameter.write.is_some() {
            return Err(source.error(&key("write"), "there is no knob to write it to"));
        } else if parameter.optional {
            return Err(source.error(&key("optional"), "only a kernel knob can be absent"));
        }
        let mut kind =
            kind_of(parameter).map_err(|(field, message)| source.error(&key(field), message))?;
        if parameter.default.is_none()
            && let Some(default) = &default
        {
            include_live(&mut kind, default);
        }
        kept.push(index);
        parameters.push(Parameter {
            name: name.clone(),
            kind,
            default,
            prior: parameter.prior.as_ref().map(|prior| PriorGuess {
                best_guess: Value::from(&prior.best_guess),
                confidence: prior.confidence,
            }),
            special: parameter.special.iter().map(Value::from).collect(),
        });
    }
    if parameters.is_empty() {
        return Err(source.error(
            "parameters",
            format!("this host has none of them: {}", skipped.join("; ")),
        ));
    }
    let mut constraints = Vec::new();
    for (index, text) in spec.parameter_constraints.iter().enumerate() {
        let constraint = LinearConstraint::parse(text).map_err(|error| {
            source.error(
                &format!("parameter_constraints[{index}]"),
                error.to_string(),
            )
        })?;
        constraints.push(constraint);
    }
    // One parameter at a time first: so the error can name its line.
    for (parameter, index) in parameters.iter().zip(&kept) {
        Space::new(vec![parameter.clone()], Vec::new())
            .map_err(|error| source.error(&format!("parameters[{index}]"), error.to_string()))?;
    }
    let space = Space::new(parameters, constraints)
        .map_err(|error| source.error("parameter_constraints", error.to_string()))?;
    let settings = settings_of(spec, &space, source)?;
    Ok(CheckedSpace {
        space,
        settings,
        knobs,
        skipped,
    })
}

/// Names that templates use for something else.
const RESERVED: [&str; 5] = ["port", "dir", "side", "spec_dir", "duration_s"];

fn is_word(name: &str) -> bool {
    name.chars()
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

type FieldError = (&'static str, String);

fn knob_of(
    parameter: &ParameterSpec,
    roots: &Roots,
) -> Result<Option<(&'static str, Knob)>, FieldError> {
    let mut found = Vec::new();
    if let Some(name) = &parameter.sysctl {
        found.push(("sysctl", Knob::Sysctl(name.clone())));
    }
    if let Some(text) = &parameter.block_queue {
        let (device, file) = text.split_once('/').ok_or_else(|| {
            (
                "block_queue",
                format!("{text:?} must be DEVICE/FILE, such as \"vda/read_ahead_kb\""),
            )
        })?;
        let device = match device {
            "*" => root_device(roots).unwrap_or_else(|| "(no device holds /)".to_owned()),
            device => device.to_owned(),
        };
        found.push((
            "block_queue",
            Knob::BlockQueue {
                device,
                file: file.to_owned(),
            },
        ));
    }
    if let Some(text) = &parameter.cgroup {
        let (group, file) = text.rsplit_once('/').ok_or_else(|| {
            (
                "cgroup",
                format!("{text:?} must be GROUP/FILE, such as \"my.slice/cpu.max\""),
            )
        })?;
        found.push((
            "cgroup",
            Knob::Cgroup {
                group: group.to_owned(),
                file: file.to_owned(),
            },
        ));
    }
    if let Some(path) = &parameter.file {
        if !path.is_absolute() {
            return Err(("file", format!("{} must be absolute", path.display())));
        }
        found.push(("file", Knob::File(path.clone())));
    }
    if let [_, (second, _), ..] = found.as_slice() {
        return Err((second, "a parameter is one knob at the most".into()));
    }
    Ok(found.pop())
}

/// The block device that holds the root file system, as `/sys/block` names it: a partition's
/// directory in `/sys/dev/block/MAJOR:MINOR` lies inside its disk's.
fn root_device(roots: &Roots) -> Option<String> {
    let device = rustix::fs::stat("/").ok()?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let path = roots
        .sys(format!("dev/block/{major}:{minor}"))
        .canonicalize()
        .ok()?;
    let disk = if path.join("partition").exists() {
        path.parent()?
    } else {
        &path
    };
    Some(disk.file_name()?.to_string_lossy().into_owned())
}

fn live_default(parameter: &ParameterSpec, text: &str) -> Option<Value> {
    match parameter.kind {
        ParameterType::Int => text.parse().ok().map(Value::Int),
        ParameterType::Float => text.parse().ok().map(Value::Float),
        ParameterType::Bool => match text {
            "0" | "N" | "n" => Some(Value::Bool(false)),
            "1" | "Y" | "y" => Some(Value::Bool(true)),
            _ => None,
        },
        ParameterType::Ordinal | ParameterType::Categorical => parameter
            .values
            .iter()
            .flatten()
            .map(Value::from)
            .find(|value| value.to_string() == text),
    }
}

/// A live value outside the range or between its steps belongs to the space all the same: it is the
/// control. The range is widened to it, and the steps are given up if it is not on one.
fn include_live(kind: &mut Kind, default: &Value) {
    match (kind, default) {
        (
            Kind::Int {
                low, high, step, ..
            },
            Value::Int(value),
        ) => {
            if value
                .checked_sub(*low)
                .is_none_or(|above| above % (*step).max(1) != 0)
            {
                *step = 1;
            }
            *low = (*low).min(*value);
            *high = (*high).max(*value);
        }
        (
            Kind::Float {
                low, high, step, ..
            },
            Value::Float(value),
        ) => {
            *low = low.min(*value);
            *high = high.max(*value);
            *step = None;
        }
        _ => {}
    }
}

fn kind_of(parameter: &ParameterSpec) -> Result<Kind, FieldError> {
    let unused = |present: bool, field: &'static str| {
        if present {
            Err((field, "means nothing for this type".to_owned()))
        } else {
            Ok(())
        }
    };
    let log = parameter.scale == Scale::Log;
    match parameter.kind {
        ParameterType::Int | ParameterType::Float => {
            unused(parameter.values.is_some(), "values")?;
            let low = parameter.low.ok_or(("type", "low is missing".to_owned()))?;
            let high = parameter
                .high
                .ok_or(("type", "high is missing".to_owned()))?;
            if !(low.is_finite() && high.is_finite()) || low >= high {
                return Err(("low", format!("the range is empty: low {low}, high {high}")));
            }
            if log && low <= 0.0 {
                return Err((
                    "scale",
                    format!("log needs low above 0, not {low}; name 0 in special instead"),
                ));
            }
            if parameter
                .step
                .is_some_and(|step| !(step > 0.0 && step <= high - low))
            {
                return Err((
                    "step",
                    format!("must be above 0 and at most {}", high - low),
                ));
            }
            if parameter.kind == ParameterType::Float {
                return Ok(Kind::Float {
                    low,
                    high,
                    step: parameter.step,
                    log,
                });
            }
            Ok(Kind::Int {
                low: whole(low).ok_or(("low", format!("{low} is not a whole number")))?,
                high: whole(high).ok_or(("high", format!("{high} is not a whole number")))?,
                step: match parameter.step {
                    None => 1,
                    Some(step) => {
                        whole(step).ok_or(("step", format!("{step} is not a whole number")))?
                    }
                },
                log,
            })
        }
        ParameterType::Ordinal | ParameterType::Categorical | ParameterType::Bool => {
            unused(parameter.low.is_some(), "low")?;
            unused(parameter.high.is_some(), "high")?;
            unused(parameter.step.is_some(), "step")?;
            unused(log, "scale")?;
            if parameter.kind == ParameterType::Bool {
                unused(parameter.values.is_some(), "values")?;
                return Ok(Kind::Bool);
            }
            let values: Vec<Value> = parameter.values.iter().flatten().map(Value::from).collect();
            if values.len() < 2 {
                return Err(("values", "at least two values are needed".into()));
            }
            for (index, value) in values.iter().enumerate() {
                if values[..index].contains(value) {
                    return Err(("values", format!("{value} stands twice")));
                }
            }
            Ok(if parameter.kind == ParameterType::Ordinal {
                Kind::Ordinal { values }
            } else {
                Kind::Categorical { values }
            })
        }
    }
}

fn whole(number: f64) -> Option<i64> {
    // 2⁵³: beyond it an f64 no longer holds every whole number.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "whole and below 2^53, just tested"
    )]
    (number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0).then_some(number as i64)
}

fn settings_of(spec: &Spec, space: &Space, source: &Source) -> Result<Settings, SpecError> {
    let mut initial = Vec::new();
    for (index, given) in spec.initial.iter().enumerate() {
        let key = format!("initial[{index}]");
        let mut configuration = space.default_configuration();
        for (name, value) in given {
            if !spec
                .parameters
                .iter()
                .any(|parameter| parameter.name == *name)
            {
                return Err(source.error(&format!("{key}.{name}"), "is not a parameter"));
            }
            // A parameter that this host lacks is left out here too.
            if configuration.0.contains_key(name) {
                configuration.0.insert(name.clone(), value.into());
            }
        }
        space
            .check(&configuration)
            .map_err(|error| source.error(&key, error.to_string()))?;
        initial.push(configuration);
    }
    let strategy = match spec.search.strategy {
        StrategyName::Random => Strategy::Random,
        StrategyName::Sobol => Strategy::Sobol,
        StrategyName::LatinHypercube => Strategy::LatinHypercube,
        StrategyName::Bayesian => Strategy::Bayesian {
            acquisition: match spec.search.acquisition {
                AcquisitionName::LogNoisyEi => Acquisition::LogNoisyEi,
                AcquisitionName::Ei => Acquisition::Ei,
                AcquisitionName::LogEi => Acquisition::LogEi,
                AcquisitionName::Ucb => Acquisition::Ucb { beta: 2.0 },
                AcquisitionName::Poi => Acquisition::Poi,
            },
        },
    };
    Ok(Settings {
        seed: spec.seed,
        strategy,
        initial,
        initial_random: spec.search.initial_random,
        ..Settings::default()
    })
}

/// The configuration an arm of the verification stands for.
pub(crate) fn arm_configuration(
    space: &Space,
    parameters: &BTreeMap<String, Scalar>,
) -> Configuration {
    let mut configuration = space.default_configuration();
    for (name, value) in parameters {
        configuration.0.insert(name.clone(), value.into());
    }
    configuration
}

pub(super) fn check_experiment(
    spec: Spec,
    source: &Source,
    roots: &Roots,
) -> Result<CheckedSpec, SpecError> {
    let space = check_space(&spec, source, roots)?;
    let path = source.path();
    let dir = path
        .canonicalize()
        .ok()
        .and_then(|path| path.parent().map(Path::to_owned))
        .unwrap_or_default();
    let missing = |key: &str| source.error(key, format!("[{key}] is missing"));
    let target = spec.target.clone().ok_or_else(|| missing("target"))?;
    let workload = spec.workload.clone().ok_or_else(|| missing("workload"))?;
    let objective = spec.objective.clone().ok_or_else(|| missing("objective"))?;
    check_target(&target, source, &dir)?;
    check_workload(&workload, source)?;
    check_numbers(&spec, source)?;
    let pins = check_cpus(&target, &workload, source, roots)?;
    let mut constraints = Vec::new();
    for (index, text) in spec.constraints.iter().enumerate() {
        let key = format!("constraints[{index}]");
        constraints
            .push(MetricConstraint::parse(text).map_err(|message| source.error(&key, message))?);
    }
    let known = metrics::Known::of(&spec, &workload);
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
    for (name, metric) in &spec.metrics {
        let key = format!("metrics.{name}");
        if metric.prometheus.is_some() == metric.command.is_some() {
            return Err(source.error(&key, "give either prometheus and query, or command"));
        }
        if metric.prometheus.is_some() != metric.query.is_some() {
            return Err(source.error(&key, "prometheus and query belong together"));
        }
    }
    for (index, arm) in spec.verification.arms.iter().enumerate() {
        let key = format!("verification.arms[{index}]");
        for name in arm.variables.keys() {
            if !spec.variables.contains_key(name) {
                return Err(
                    source.error(&format!("{key}.variables.{name}"), "is not in [variables]")
                );
            }
        }
        space
            .space
            .check(&arm_configuration(&space.space, &arm.parameters))
            .map_err(|error| source.error(&format!("{key}.parameters"), error.to_string()))?;
    }
    for name in spec.variables.keys() {
        if !is_word(name) || RESERVED.contains(&name.as_str()) {
            return Err(source.error(
                &format!("variables.{name}"),
                "must be a plain word that is not taken",
            ));
        }
    }
    let name = spec.name.clone().unwrap_or_else(|| {
        path.file_stem().map_or_else(
            || "experiment".into(),
            |stem| stem.to_string_lossy().into_owned(),
        )
    });
    Ok(CheckedSpec {
        name,
        dir,
        space: space.space,
        settings: space.settings,
        knobs: space.knobs,
        skipped: space.skipped,
        target,
        pins,
        workload,
        objective,
        constraints,
        spec,
    })
}

fn check_target(target: &TargetSpec, source: &Source, dir: &Path) -> Result<(), SpecError> {
    if target.start.is_none() && target.pairing == Pairing::Parallel {
        return Err(source.error(
            "target.pairing",
            "parallel needs target.start: two instances",
        ));
    }
    for (command, key) in [
        (&target.start, "target.start"),
        (&target.prepare, "target.prepare"),
    ] {
        if command.as_ref().is_some_and(Vec::is_empty) {
            return Err(source.error(key, "the command is empty"));
        }
    }
    if target.start.is_some() && target.observe.is_some() {
        return Err(source.error(
            "target.observe",
            "only for a service that Slackline does not start",
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
    for (index, file) in target.files.iter().enumerate() {
        let template = dir.join(&file.template);
        if !template.is_file() {
            return Err(source.error(
                &format!("target.files[{index}].template"),
                format!("{} is not a file", template.display()),
            ));
        }
    }
    for (index, step) in target.apply.iter().enumerate() {
        if step.command.is_some() == step.url.is_some() {
            return Err(source.error(
                &format!("target.apply[{index}]"),
                "give either command or url",
            ));
        }
    }
    if let Some(ready) = &target.ready {
        let given = usize::from(ready.url.is_some())
            + usize::from(ready.port.is_some())
            + usize::from(ready.command.is_some());
        if given != 1 {
            return Err(source.error("target.ready", "give exactly one of url, port, command"));
        }
        if !(ready.timeout_s > 0.0 && ready.timeout_s.is_finite()) {
            return Err(source.error("target.ready.timeout_s", "must be above 0"));
        }
    }
    if crate::process::signal_of(&target.stop.signal).is_none() {
        return Err(source.error("target.stop.signal", "must be TERM, INT, QUIT or KILL"));
    }
    if target.ports.is_some_and(|[control, experiment]| {
        control == experiment || control == 0 || experiment == 0
    }) {
        return Err(source.error("target.ports", "must be two different ports above 0"));
    }
    Ok(())
}

fn check_workload(workload: &WorkloadSpec, source: &Source) -> Result<(), SpecError> {
    if workload.command.is_empty() {
        return Err(source.error("workload.command", "the command is empty"));
    }
    let readers = usize::from(workload.parse.is_some())
        + usize::from(!workload.json.is_empty())
        + usize::from(!workload.regex.is_empty());
    if readers != 1 {
        return Err(source.error("workload", "give exactly one of parse, json, regex"));
    }
    for (name, pattern) in &workload.regex {
        parse::check_regex(pattern)
            .map_err(|message| source.error(&format!("workload.regex.{name}"), message))?;
    }
    Ok(())
}

fn check_numbers(spec: &Spec, source: &Source) -> Result<(), SpecError> {
    let evaluation = &spec.evaluation;
    let positive = |key: &str, value: f64, zero: bool| {
        if value.is_finite() && (value > 0.0 || (zero && value == 0.0)) {
            Ok(())
        } else {
            Err(source.error(
                key,
                format!(
                    "{value} must be {}",
                    if zero { "0 or more" } else { "above 0" }
                ),
            ))
        }
    };
    positive("evaluation.warm_up_s", evaluation.warm_up_s, true)?;
    positive("evaluation.settle_s", evaluation.settle_s, true)?;
    positive("evaluation.block_s", evaluation.block_s, false)?;
    if evaluation.blocks < 2 {
        return Err(source.error("evaluation.blocks", "at least 2: one block has no interval"));
    }
    if !(evaluation.abort_alpha > 0.0 && evaluation.abort_alpha < 0.5) {
        return Err(source.error("evaluation.abort_alpha", "must be between 0 and 0.5"));
    }
    if spec.budget.evaluations == 0 {
        return Err(source.error("budget.evaluations", "must be above 0"));
    }
    if let Some(minutes) = spec.budget.wall_time_min {
        positive("budget.wall_time_min", minutes, false)?;
    }
    let verification = &spec.verification;
    if verification.top == 0 {
        return Err(source.error(
            "verification.top",
            "must be above 0: nothing is promoted unverified",
        ));
    }
    if verification.runs == 0 {
        return Err(source.error(
            "verification.runs",
            "must be above 0: nothing is promoted unverified",
        ));
    }
    if verification.blocks.unwrap_or(evaluation.blocks) < 2 {
        return Err(source.error(
            "verification.blocks",
            "at least 2: one block has no interval",
        ));
    }
    if !(verification.confidence > 0.5 && verification.confidence < 1.0) {
        return Err(source.error("verification.confidence", "must be between 0.5 and 1"));
    }
    if let Some(objective) = &spec.objective {
        positive("objective.std_weight", objective.std_weight, true)?;
    }
    positive(
        "target.stop.grace_s",
        spec.target
            .as_ref()
            .map_or(0.0, |target| target.stop.grace_s),
        true,
    )?;
    positive(
        "workload.grace_s",
        spec.workload
            .as_ref()
            .map_or(0.0, |workload| workload.grace_s),
        true,
    )
}

fn check_cpus(
    target: &TargetSpec,
    workload: &WorkloadSpec,
    source: &Source,
    roots: &Roots,
) -> Result<Pins, SpecError> {
    let online = host::online_cpus(roots).unwrap_or_default();
    let list = |key: &str, text: &str| {
        let cpus =
            host::parse_cpu_list(text).map_err(|error| source.error(key, error.to_string()))?;
        match cpus.iter().find(|cpu| !online.contains(cpu)) {
            Some(cpu) => Err(source.error(
                key,
                format!("CPU {cpu} is not online here (online: {online:?})"),
            )),
            None => Ok(cpus),
        }
    };
    let sides = match &target.cpus {
        None => None,
        Some([control, experiment]) => Some([
            list("target.cpus[0]", control)?,
            list("target.cpus[1]", experiment)?,
        ]),
    };
    if target.pairing == Pairing::Parallel
        && let Some([control, experiment]) = &sides
        && control.len() != experiment.len()
    {
        return Err(source.error(
            "target.cpus",
            "both sides need the same number of CPUs: they are swapped",
        ));
    }
    let workload = workload
        .cpus
        .as_ref()
        .map(|text| list("workload.cpus", text))
        .transpose()?;
    Ok(Pins { sides, workload })
}
