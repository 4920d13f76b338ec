//! A configuration as somebody types it, and what is said of an evaluation that cannot end early.

use std::collections::BTreeMap;

use bayes_opt::{Configuration, Kind, Parameter, Value};
use paired_stats::SequentialTest;

use super::CheckedSpec;
use super::parameters::arm_configuration;

impl CheckedSpec {
    /// The configuration of which only these parameters differ from the control, as `name=value
    /// name=value`.
    ///
    /// # Errors
    /// In words: what is no parameter, or no value of one.
    pub fn configuration(&self, text: &str) -> Result<Configuration, String> {
        let mut values = BTreeMap::new();
        for word in text.split_whitespace() {
            let (name, value) = word
                .split_once('=')
                .ok_or_else(|| format!("{word:?} is not NAME=VALUE"))?;
            let parameters = self.space.parameters();
            let parameter = parameters.iter().find(|it| it.name == name);
            let parameter = parameter.ok_or_else(|| {
                let names: Vec<&str> = parameters.iter().map(|it| it.name.as_str()).collect();
                format!(
                    "there is no parameter {name:?}; there are {}",
                    names.join(", ")
                )
            })?;
            values.insert(name.to_owned(), value_of(parameter, value));
        }
        let configuration = arm_configuration(&self.space, &values);
        let checked = self.space.check(&configuration);
        checked.map_err(|error| error.to_string())?;
        Ok(configuration)
    }

    /// Why no evaluation can end early although it is to.
    #[must_use]
    pub fn early_end_remark(&self) -> Option<String> {
        let early = &self.spec.evaluation;
        let looks = SequentialTest::looks(early.abort_min_blocks, early.blocks);
        (early.early_abort && looks == 0).then(|| {
            format!(
                "no evaluation can be aborted early with evaluation.blocks = {} and evaluation.abort_min_blocks = {}: set blocks \
                 to {} or more",
                early.blocks,
                early.abort_min_blocks,
                early.abort_min_blocks.max(2) + 1
            )
        })
    }
}

/// A value as its parameter has it: text where the parameter's values are texts.
fn value_of(parameter: &Parameter, text: &str) -> Value {
    let is_text = match &parameter.kind {
        Kind::Ordinal { values } | Kind::Categorical { values } => values
            .iter()
            .any(|it| matches!(it, Value::Text(known) if known == text)),
        _ => false,
    };
    if is_text {
        return Value::Text(text.to_owned());
    }
    let number = || text.parse().map(Value::Float).ok();
    let whole = || text.parse().map(Value::Int).ok();
    let is_float = matches!(parameter.kind, Kind::Float { .. });
    let parsed = match text {
        "true" => Some(Value::Bool(true)),
        "false" => Some(Value::Bool(false)),
        _ if is_float => number(),
        _ => whole().or_else(number),
    };
    parsed.unwrap_or_else(|| Value::Text(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SpecContext;

    #[test]
    fn a_configuration_is_typed_as_names_and_values() {
        let spec = SpecContext::new(&host::Roots::default())
            .check(
                r#"
parameters = [
  { name = "n", type = "int", low = 1, high = 9, default = 2 },
  { name = "share", type = "float", low = 0, high = 1, default = 0.5 },
  { name = "on", type = "bool", default = false },
  { name = "mode", type = "categorical", values = ["1", "two"], default = "1" },
]
target = { start = ["sleep", "9"] }
workload = { command = ["true"], json = { requests = "requests" } }
objective = { metric = "cpu_s_per_request" }
evaluation = { blocks = 3 }
"#
                .into(),
                "space.toml".as_ref(),
            )
            .unwrap();
        let typed = spec.configuration("n=3 share=1 on=true mode=1").unwrap();
        assert_eq!(typed.get("n"), Some(&Value::Int(3)));
        assert_eq!(typed.get("share"), Some(&Value::Float(1.0)));
        assert_eq!(typed.get("on"), Some(&Value::Bool(true)));
        assert_eq!(typed.get("mode"), Some(&Value::Text("1".into())));
        assert_eq!(
            spec.configuration("").unwrap(),
            spec.space.default_configuration()
        );
        for wrong in ["n", "m=1", "n=x", "n=77", "mode=three"] {
            assert!(spec.configuration(wrong).is_err(), "{wrong}");
        }
        let remark = spec.early_end_remark().unwrap();
        assert!(
            remark.starts_with("no evaluation can be aborted early"),
            "{remark:?}"
        );
    }
}
