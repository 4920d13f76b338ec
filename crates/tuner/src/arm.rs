//! One configuration beside the control, and what templates may name of it.

use std::collections::BTreeMap;

use bayes_opt::{Configuration, Value};
use serde::{Deserialize, Serialize};

use crate::side::Side;
use crate::spec::CheckedSpec;
use crate::template::{self, Variables};

/// One configuration beside the control.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    /// Its parameters.
    pub configuration: Configuration,
    /// Template variables that differ from the candidate's.
    pub variables: BTreeMap<String, Value>,
    /// The load waits for answers in place of keeping to its rate, so that its rate is the
    /// capacity.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub saturates: bool,
    /// The control may be one that runs since an earlier evaluation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warm_control: bool,
}

impl Arm {
    /// What the control's side has.
    pub(crate) fn control(spec: &CheckedSpec) -> Self {
        Self::of(spec.space.default_configuration())
    }

    /// This configuration, and nothing else that differs from the experiment's.
    pub(crate) fn of(configuration: Configuration) -> Self {
        Self {
            configuration,
            ..Self::default()
        }
    }

    /// What templates may name on a side, as far as it is known before anything is started: not a
    /// port that is chosen then, nor the instance's directory.
    pub(crate) fn variables(&self, spec: &CheckedSpec, side: Side) -> Variables {
        let variables = spec.written().variables.iter().chain(&self.variables);
        let mut variables = template::variables(variables, &self.configuration);
        variables.insert("side".into(), side.name().into());
        variables.insert("spec_dir".into(), spec.dir.display().to_string());
        if let Some(ports) = spec.target().ports {
            variables.insert("port".into(), ports[side.index()].to_string());
        }
        variables
    }
}
