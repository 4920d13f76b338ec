//! A specification that has been checked.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bayes_opt::{Settings, Space};

use super::cpus::Pins;
use super::expression::MetricConstraint;
use super::knobs::KnobBinding;
use super::{ObjectiveSpec, Spec, TargetSpec, WorkloadSpec};
use crate::continuous::ContinuousRules;

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
    /// Defaults of knobs that are not the live values, a sentence each.
    pub other_defaults: Vec<String>,
    /// Parameters that are no knob and that nothing names: whatever value they have, it changes
    /// nothing.
    pub unused: Vec<String>,
    /// The target.
    pub target: TargetSpec,
    /// CPUs of control, experiment and workload.
    pub pins: Pins,
    /// The workload.
    pub workload: WorkloadSpec,
    /// The workload without a rate of its own, which shows the capacity.
    pub saturated: Option<WorkloadSpec>,
    /// The objective.
    pub objective: ObjectiveSpec,
    /// The constraints.
    pub constraints: Vec<MetricConstraint>,
    /// How it goes on after its promotion, in `mode = "continuous"`.
    pub continuous: Option<ContinuousRules>,
}

impl CheckedSpec {
    /// The specification with its name and the control's values written out: what a later session
    /// on this host, whose knobs may have changed in between, must compare with.
    #[must_use]
    pub fn pinned(&self) -> Spec {
        let mut spec = self.spec.clone();
        spec.name = Some(self.name.clone());
        let control = self.space.default_configuration();
        for parameter in &mut spec.parameters {
            if let Some(value) = control.get(&parameter.name) {
                parameter.pin(value);
            }
        }
        spec
    }

    /// A metric that reads packets.
    pub(crate) fn wire_metric(&self) -> Option<&str> {
        let mut metrics = self.spec.metrics.iter();
        let found = metrics.find(|(_, metric)| metric.wire.is_some());
        found.map(|(name, _)| name.as_str())
    }
}
