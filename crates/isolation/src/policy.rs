//! The controllers by name, with their settings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::autothrottle::Autothrottle;
use crate::controller::{ControllerMode, IsolationController};
use crate::cpu_suppress::CpuSuppress;
use crate::fixed::{Fixed, FixedSettings};
use crate::heracles::Heracles;
use crate::parties::Parties;
use crate::pegasus::Pegasus;
use crate::slackline::Slackline;

/// The names of the controllers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// A fast loop on scheduler signals below a slow one on the measured tail, with a memory of
    /// what did harm.
    #[default]
    Slackline,
    /// Lo et al., ISCA 2015.
    Heracles,
    /// Lo et al., ISCA 2014: acts on power only.
    Pegasus,
    /// Chen et al., ASPLOS 2019.
    Parties,
    /// Wang et al., NSDI 2024: steers the service's own quota.
    Autothrottle,
    /// Koordinator's rule: best-effort work gets what 65 % of the machine leaves.
    CpuSuppress,
    /// Settings that are written once.
    Static,
    /// Nothing is done.
    None,
}

impl Policy {
    /// All names, for messages and benchmarks.
    pub const ALL: [Self; 8] = [
        Self::Slackline,
        Self::Heracles,
        Self::Pegasus,
        Self::Parties,
        Self::Autothrottle,
        Self::CpuSuppress,
        Self::Static,
        Self::None,
    ];

    /// The name as in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Slackline => "slackline",
            Self::Heracles => "heracles",
            Self::Pegasus => "pegasus",
            Self::Parties => "parties",
            Self::Autothrottle => "autothrottle",
            Self::CpuSuppress => "cpu-suppress",
            Self::Static => "static",
            Self::None => "none",
        }
    }
}

/// A controller and its settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicySettings {
    /// The controller.
    pub policy: Policy,
    /// What `static` writes. With another policy: what is written beside it.
    pub fixed: FixedSettings,
    /// Share of the machine's CPU that `cpu-suppress` lets be used. Koordinator's default is 0.65.
    pub suppress_share: f64,
}

/// Koordinator's `cpuSuppressThresholdPercent` (slo-controller-config): 65.
const SUPPRESS_SHARE: f64 = 0.65;

impl PolicySettings {
    /// A policy with its default settings.
    #[must_use]
    pub fn named(policy: Policy) -> Self {
        Self {
            policy,
            fixed: FixedSettings::default(),
            suppress_share: SUPPRESS_SHARE,
        }
    }

    /// What is written beside the policy, if anything is.
    pub(crate) fn beside(&self) -> Option<Fixed> {
        let is_of_policy = matches!(self.policy, Policy::Static | Policy::None);
        let is_any = self.fixed != FixedSettings::default();
        (is_any && !is_of_policy).then(|| Fixed::new(self.fixed.clone(), ControllerMode::Acting))
    }

    /// The controller alone, without the guard.
    pub(crate) fn controller(&self, mode: ControllerMode) -> Box<dyn IsolationController> {
        match self.policy {
            Policy::Slackline => Box::new(Slackline::new(mode)),
            Policy::Heracles => Box::new(Heracles::new(mode)),
            Policy::Pegasus => Box::new(Pegasus::new(mode)),
            Policy::Parties => Box::new(Parties::new(mode)),
            Policy::Autothrottle => Box::new(Autothrottle::new(mode)),
            Policy::CpuSuppress => Box::new(CpuSuppress::new(self.suppress_share, mode)),
            Policy::Static => Box::new(Fixed::new(self.fixed.clone(), mode)),
            Policy::None => Box::new(Fixed::new(FixedSettings::default(), mode)),
        }
    }
}
