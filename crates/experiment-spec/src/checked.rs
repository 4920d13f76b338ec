//! A specification that has been checked.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bayes_opt::{Settings, Space};

use super::cpus::Pins;
use super::expression::MetricConstraint;
use super::knobs::KnobBinding;
use super::{ObjectiveSpec, Spec, TargetSpec, WorkloadSpec};
use crate::rules::ContinuousRules;

/// A specification that has been checked against itself and against this host.
#[derive(Clone, Debug)]
pub struct CheckedSpec {
    /// As written, with a target, an objective, and a workload or a metric of its users' latency.
    pub(super) spec: Spec,
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
    /// CPUs of control, experiment and workload.
    pub pins: Pins,
    /// The workload, where it is not as written.
    pub(super) resolved_workload: Option<WorkloadSpec>,
    /// The workload without a rate of its own, which shows the capacity.
    pub saturated: Option<WorkloadSpec>,
    /// The constraints.
    pub constraints: Vec<MetricConstraint>,
    /// How it goes on after its promotion, in `mode = "continuous"`.
    pub continuous: Option<ContinuousRules>,
}

impl CheckedSpec {
    /// The specification as it was written.
    #[must_use]
    pub fn written(&self) -> &Spec {
        &self.spec
    }

    /// The target.
    #[must_use]
    pub fn target(&self) -> &TargetSpec {
        present(self.spec.target.as_ref())
    }

    /// The workload as it is run: Slackline's own load generator is a command like any other.
    #[must_use]
    pub fn workload(&self) -> &WorkloadSpec {
        let resolved = self.resolved_workload.as_ref();
        present(resolved.or(self.spec.workload.as_ref()))
    }

    /// The objective.
    #[must_use]
    pub fn objective(&self) -> &ObjectiveSpec {
        present(self.spec.objective.as_ref())
    }

    /// Takes another seed of the search than the one that was written.
    pub fn set_seed(&mut self, seed: u64) {
        self.spec.seed = seed;
        self.settings.seed = seed;
    }

    /// Takes another budget of evaluations than the one that was written.
    pub fn set_evaluations(&mut self, evaluations: usize) {
        self.spec.budget.evaluations = evaluations;
    }

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
    #[must_use]
    pub fn wire_metric(&self) -> Option<&str> {
        let mut metrics = self.spec.metrics.iter();
        let found = metrics.find(|(_, metric)| metric.wire.is_some());
        found.map(|(name, _)| name.as_str())
    }
}

/// A section of a checked specification.
#[expect(
    clippy::expect_used,
    reason = "`check_experiment` refuses a specification without it, and nobody else makes one"
)]
fn present<T>(section: Option<&T>) -> &T {
    section.expect("a section that has been checked")
}
