//! How the search chooses configurations.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the search chooses configurations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StrategyName {
    /// A Gaussian process decides.
    #[default]
    Bayesian,
    /// Uniformly at random.
    Random,
    /// A scrambled Sobol sequence.
    Sobol,
    /// Latin hypercube.
    LatinHypercube,
}

/// What the Gaussian process maximises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AcquisitionName {
    /// Noisy expected improvement in log form.
    #[default]
    LogNoisyEi,
    /// Expected improvement.
    Ei,
    /// Its logarithm.
    LogEi,
    /// Lower confidence bound, β = 2.
    Ucb,
    /// Probability of improvement.
    Poi,
}

/// How the search chooses configurations.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SearchSpec {
    /// The search strategy.
    pub strategy: StrategyName,
    /// The acquisition function of `bayesian`. `ei` is the expected improvement, `log-ei` its
    /// logarithm, and `log-noisy-ei` the logarithm that allows for noise. `ucb` is a confidence
    /// bound, `poi` the probability of an improvement.
    pub acquisition: AcquisitionName,
    /// Number of configurations that are spread evenly over the space before the model decides. By
    /// default the number of parameters plus one, but at least 4 and at most 6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_random: Option<usize>,
    /// Earlier results from which the search starts, up to 12 files. Each file is a report (`tune
    /// --json`) of an experiment on the same or overlapping parameters, or a `.jsonl` file with
    /// lines `{"config":{…},"value":…}`, as told to `slackline ask-tell`. The search trusts earlier
    /// results only as far as they agree with its own measurements. For `tune`, `value` is the
    /// natural logarithm of the ratio to the control, or with `scale = "absolute"` the measured
    /// value. The objective's `goal` says whether a larger value is better.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warm_start: Vec<PathBuf>,
}
