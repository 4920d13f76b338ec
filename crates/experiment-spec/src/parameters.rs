//! The search space of a specification: ranges, defaults from the live system, knobs, and what is
//! tried first.

use std::collections::{BTreeMap, BTreeSet};

use bayes_opt::{
    Acquisition, Configuration, Kind, LinearConstraint, Parameter, PriorGuess, Settings, Space,
    SpaceError, Strategy, Value, readable,
};
use host::Roots;

use super::context::SpecContext;
use super::earlier;
use super::form::check_name;
use super::knobs::{
    Control, FieldError, KnobBinding, Live, control_of, is_apart, knob_of, live_of,
};
use super::locate::Source;
use super::{AcquisitionName, ParameterSpec, ParameterType, PriorSpec, Scale, Spec, StrategyName};
use crate::error::SpecError;

/// The space and what belongs to it.
pub(super) struct CheckedSpace {
    pub(super) space: Space,
    pub(super) settings: Settings,
    pub(super) knobs: BTreeMap<String, KnobBinding>,
    pub(super) skipped: Vec<String>,
    /// Defaults that are not what the host has now, a sentence each.
    pub(super) other_defaults: Vec<String>,
}

pub(super) fn check_space(
    spec: &Spec,
    source: &Source,
    context: &SpecContext<'_>,
) -> Result<CheckedSpace, SpecError> {
    if spec.parameters.is_empty() {
        return Err(source.error("parameters", source.no_parameters()));
    }
    let (roots, originals) = (context.roots, context.originals);
    let mut parameters = Vec::new();
    let mut knobs: BTreeMap<String, KnobBinding> = BTreeMap::new();
    let mut keys: BTreeMap<String, String> = BTreeMap::new();
    let mut skipped = Vec::new();
    let mut other_defaults = Vec::new();
    let mut names = BTreeSet::new();
    for (index, parameter) in spec.parameters.iter().enumerate() {
        let key = |field: &str| format!("parameters[{index}].{field}");
        let name = &parameter.name;
        check_name(&key("name"), name, source)?;
        if !names.insert(name.clone()) || spec.variables.contains_key(name) {
            return Err(source.error(&key("name"), format!("{name:?} is used twice")));
        }
        let failed = |(field, message): FieldError| source.error(&key(field), message);
        let knob = knob_of(parameter, spec.target.as_ref(), roots).map_err(failed)?;
        let mut control = Control::default();
        if let Some((field, knob, index)) = knob {
            let live = match live_of(parameter, &knob, index, roots, originals) {
                // The control's value is known, and what is gone keeps nothing else from a
                // rollback.
                Err(_) if context.has_begun && parameter.default.is_some() => Live::OfInstance,
                live => live.map_err(|message| source.error(&key(field), message))?,
            };
            let element = match live {
                Live::Absent(why) => {
                    skipped.push(format!("{name}: {why}"));
                    continue;
                }
                Live::OfInstance => None,
                Live::Value { text, element } => {
                    control = control_of(parameter, &knob, &text).map_err(failed)?;
                    element
                }
            };
            let binding = KnobBinding {
                knob,
                write: parameter.write.clone(),
                element,
            };
            check_unset(&binding, &knobs, &keys, roots)
                .map_err(|message| source.error(&key(field), message))?;
            keys.insert(name.clone(), key(field));
            knobs.insert(name.clone(), binding);
        } else if parameter.write.is_some() {
            return Err(source.error(&key("write"), "there is no knob to write it to"));
        } else if parameter.optional {
            return Err(source.error(&key("optional"), "only a kernel knob can be absent"));
        }
        other_defaults.extend(control.other_default.take());
        parameters.push(parameter_of(parameter, control).map_err(failed)?);
    }
    if parameters.is_empty() {
        return Err(source.error(
            "parameters",
            format!("this host has none of them: {}", skipped.join("; ")),
        ));
    }
    let space = space_of(spec, parameters, source)?;
    let settings = settings_of(spec, &space, source, context)?;
    Ok(CheckedSpace {
        space,
        settings,
        knobs,
        skipped,
        other_defaults,
    })
}

/// A parameter with the control's value. A live value outside the range widens the range.
fn parameter_of(written: &ParameterSpec, control: Control) -> Result<Parameter, FieldError> {
    let mut kind = kind_of(written)?;
    let mut special = written.special.clone();
    // A live value that means "no limit" may be named already.
    if let Some(live) = control.special
        && !special.contains(&live)
    {
        special.push(live);
    }
    if written.default.is_none()
        && let Some(live) = &control.default
        && !special.contains(live)
    {
        include_live(&mut kind, live);
    }
    let parameter = Parameter {
        name: written.name.clone(),
        kind,
        default: written.default.clone().or(control.default),
        prior: written.prior.as_ref().map(guess_of),
        special,
    };
    parameter.check().map_err(field_of)?;
    Ok(parameter)
}

fn guess_of(prior: &PriorSpec) -> PriorGuess {
    PriorGuess {
        best_guess: prior.best_guess.clone(),
        confidence: prior.confidence,
    }
}

/// No earlier parameter is the same knob; `keys` says where each of `knobs` stands.
fn check_unset(
    binding: &KnobBinding,
    knobs: &BTreeMap<String, KnobBinding>,
    keys: &BTreeMap<String, String>,
    roots: &Roots,
) -> Result<(), String> {
    let is_same = |(_, other): &(&String, &KnobBinding)| other.is_same(binding, roots);
    let Some((other, theirs)) = knobs.iter().find(is_same) else {
        return Ok(());
    };
    let (path, their_path) = (binding.knob.path(roots), theirs.knob.path(roots));
    let also = match path.as_os_str() == their_path.as_os_str() {
        true => String::new(),
        false => format!(", as {}", their_path.display()),
    };
    Err(format!(
        "parameter `{other}` ({}) already sets {}{also}: remove one of the two",
        keys[other],
        path.display()
    ))
}

/// The space of these parameters.
fn space_of(spec: &Spec, parameters: Vec<Parameter>, source: &Source) -> Result<Space, SpecError> {
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
    Space::new(parameters, constraints)
        .map_err(|error| source.error("parameter_constraints", error.to_string()))
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

impl ParameterSpec {
    /// Writes the control's value out. Where it was the live one, the range that was widened to it
    /// is written out with it: what is not live any more has to lie within.
    pub fn pin(&mut self, control: &Value) {
        let is_live = self.default.is_none() && !self.special.contains(control);
        if is_live && is_apart(self, control, &control.to_string()) {
            self.special.push(control.clone());
        } else if is_live && let Ok(mut kind) = kind_of(self) {
            include_live(&mut kind, control);
            match kind {
                Kind::Int {
                    low, high, step, ..
                } => {
                    (self.low, self.high) = (Some(low as f64), Some(high as f64));
                    self.step = self.step.map(|_| step as f64);
                }
                Kind::Float {
                    low, high, step, ..
                } => (self.low, self.high, self.step) = (Some(low), Some(high), step),
                _ => {}
            }
        }
        self.default = Some(control.clone());
    }

    /// The values that it may have, by its specification alone: a space of one parameter.
    ///
    /// # Errors
    /// The field that is wrong, and why.
    pub fn space(&self) -> Result<Space, (&'static str, String)> {
        let parameter = Parameter {
            name: self.name.clone(),
            kind: kind_of(self)?,
            default: None,
            prior: None,
            special: self.special.clone(),
        };
        Space::new(vec![parameter], Vec::new()).map_err(field_of)
    }
}

/// The key of the file that the optimiser complains about, and why.
fn field_of(error: SpaceError) -> FieldError {
    match error {
        SpaceError::Invalid { key, reason, .. } => (key, reason),
        error => ("name", error.to_string()),
    }
}

/// The values as they are written, before a live value widens their range.
fn kind_of(parameter: &ParameterSpec) -> Result<Kind, FieldError> {
    let written = Parameter::new(&parameter.name, written_kind(parameter)?);
    written.check().map_err(field_of)?;
    Ok(written.kind)
}

/// Only the shape is checked here. [`Parameter::check`] knows what ranges and lists there can be.
fn written_kind(parameter: &ParameterSpec) -> Result<Kind, FieldError> {
    let takes = match parameter.kind {
        ParameterType::Int => "an int has low, high, step and scale",
        ParameterType::Float => "a float has low, high, step and scale",
        ParameterType::Ordinal => "an ordinal has values",
        ParameterType::Categorical => "a categorical has values",
        ParameterType::Bool => "a bool is true or false",
    };
    let unused = |present: bool, field: &'static str| {
        if present {
            Err((field, format!("means nothing here: {takes}")))
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
            if parameter.kind == ParameterType::Float {
                return Ok(Kind::Float {
                    low,
                    high,
                    step: parameter.step,
                    log,
                });
            }
            Ok(Kind::Int {
                low: whole("low", low)?,
                high: whole("high", high)?,
                step: match parameter.step {
                    None => 1,
                    Some(step) => whole("step", step)?,
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
            let values = parameter.values.clone().unwrap_or_default();
            Ok(if parameter.kind == ParameterType::Ordinal {
                Kind::Ordinal { values }
            } else {
                Kind::Categorical { values }
            })
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "whole and at most 2^53, just tested"
)]
fn whole(key: &'static str, number: f64) -> Result<i64, FieldError> {
    if number.fract() != 0.0 {
        return Err((key, format!("{} is not a whole number", readable(number))));
    }
    // Beyond it an f64 no longer holds every whole number.
    if number.abs() > 9_007_199_254_740_992.0 {
        return Err((
            key,
            format!("{number:e} is beyond 2^53, the largest whole number here"),
        ));
    }
    Ok(number as i64)
}

fn settings_of(
    spec: &Spec,
    space: &Space,
    source: &Source,
    context: &SpecContext<'_>,
) -> Result<Settings, SpecError> {
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
                configuration.0.insert(name.clone(), value.clone());
            }
        }
        let configuration = as_written_here(space, configuration);
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
        earlier: earlier::read_all(spec, source, context.earlier)?,
    })
}

/// A configuration with its values as the search writes them. The number 4.0 is the whole number 4.
/// In a list of values, the number 2 is the text "2" where the list has no such number, and the
/// text "true" the value `true`: a command line or a form cannot tell them apart.
#[must_use]
pub fn as_written_here(space: &Space, mut configuration: Configuration) -> Configuration {
    for parameter in space.parameters() {
        let Some(value) = configuration.0.get_mut(&parameter.name) else {
            continue;
        };
        match &parameter.kind {
            Kind::Int { .. } => {
                if let Some(whole) = value.as_i64() {
                    *value = Value::Int(whole);
                }
            }
            Kind::Ordinal { values } | Kind::Categorical { values } if !values.contains(value) => {
                let text = value.to_string();
                if let Some(same) = values.iter().find(|known| known.to_string() == text) {
                    *value = same.clone();
                }
            }
            _ => {}
        }
    }
    configuration
}

/// The configuration an arm of the verification stands for.
#[must_use]
pub fn arm_configuration(space: &Space, parameters: &BTreeMap<String, Value>) -> Configuration {
    let mut configuration = space.default_configuration();
    configuration.0.extend(parameters.clone());
    as_written_here(space, configuration)
}

#[cfg(test)]
mod tests {
    use host::Roots;

    #[test]
    fn a_knob_that_is_written_as_more_than_its_value_needs_a_default() {
        // The control was the middle of the range, not what the host had.
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc/sys/vm")).unwrap();
        std::fs::write(dir.path().join("proc/sys/vm/swappiness"), "60\n").unwrap();
        let space_with = |lines: &str| {
            let path = dir.path().join("spec.toml");
            let knob =
                "name = \"knob\"\ntype = \"int\"\nlow = 0\nhigh = 100\nsysctl = \"vm.swappiness\"";
            std::fs::write(&path, format!("[[parameters]]\n{knob}\n{lines}\n")).unwrap();
            crate::SpecContext::new(&Roots::at(dir.path())).load_space(&path)
        };
        let error = space_with("write = \"{knob} 0\"").unwrap_err().to_string();
        assert!(
            error.ends_with("parameters[0].write: needs default, the control's value: the live value \"60\" of vm.swappiness does not say it"),
            "{error}"
        );
        let (space, ..) = space_with("write = \"{knob} 0\"\ndefault = 60").unwrap();
        assert_eq!(
            space.default_configuration().get("knob"),
            Some(&60_i64.into())
        );
    }
}
