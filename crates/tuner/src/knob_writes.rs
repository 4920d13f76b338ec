//! What is written to kernel knobs for a configuration.

use std::collections::BTreeMap;

use bayes_opt::{Configuration, Value};
use host::Knob;

use crate::spec::KnobBinding;
use crate::template::{self, UnknownName, Variables};

/// What is written to a parameter's knob for `value`; `variables` has all parameters and variables
/// by name.
///
/// # Errors
/// The template names something else.
pub fn knob_text(
    binding: &KnobBinding,
    value: &Value,
    variables: &Variables,
) -> Result<String, UnknownName> {
    match (&binding.write, value) {
        (Some(template), _) => template::fill(template, variables),
        (None, Value::Bool(on)) => Ok(u8::from(*on).to_string()),
        (None, value) => Ok(value.to_string()),
    }
}

/// The text for each knob of a configuration. Parameters that are values of one list are written as
/// one.
///
/// # Errors
/// A template names something that there is not.
pub(crate) fn knob_writes(
    knobs: &BTreeMap<String, KnobBinding>,
    configuration: &Configuration,
    variables: &Variables,
) -> Result<Vec<(Knob, String)>, UnknownName> {
    let mut writes: Vec<(Knob, String)> = Vec::new();
    for (name, binding) in knobs {
        let Some(value) = configuration.0.get(name) else {
            continue;
        };
        let text = knob_text(binding, value, variables)?;
        let Some(element) = &binding.element else {
            writes.push((binding.knob.clone(), text));
            continue;
        };
        let mut list = element.list.clone();
        let begun = writes.iter().position(|(knob, _)| *knob == binding.knob);
        if let Some(begun) = begun {
            list = writes
                .remove(begun)
                .1
                .split(' ')
                .map(str::to_owned)
                .collect();
        }
        if let Some(place) = list.get_mut(element.index) {
            *place = text;
        }
        writes.push((binding.knob.clone(), list.join(" ")));
    }
    Ok(writes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Element;

    #[test]
    fn values_of_one_list_are_written_as_one() {
        let knob = Knob::Sysctl("net.ipv4.tcp_rmem".into());
        let binding = |index| KnobBinding {
            knob: knob.clone(),
            write: None,
            element: Some(Element {
                index,
                list: ["4096", "131072", "6291456"].map(str::to_owned).into(),
            }),
        };
        let knobs = [("usual", binding(1)), ("most", binding(2))];
        let knobs = knobs
            .map(|(name, binding)| (name.to_owned(), binding))
            .into();
        let values = [
            ("usual".to_owned(), Value::Int(131_072)),
            ("most".to_owned(), Value::Int(1_000_000)),
        ];
        let configuration = Configuration(values.into());
        let writes = knob_writes(&knobs, &configuration, &Variables::new()).unwrap();
        assert_eq!(writes, [(knob, "4096 131072 1000000".to_owned())]);
    }
}
