//! How much the cores of somebody prefer saving energy, in the kernel's words.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How much a core prefers saving energy: the kernel's `energy_performance_preference`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EnergyPreference {
    /// What the firmware has set.
    Default,
    /// As fast as possible.
    Performance,
    /// Rather fast.
    BalancePerformance,
    /// Rather economical.
    BalancePower,
    /// As economical as possible.
    Power,
}

impl EnergyPreference {
    /// The kernel's word (drivers/cpufreq/intel_pstate.c, `energy_perf_strings`).
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Performance => "performance",
            Self::BalancePerformance => "balance_performance",
            Self::BalancePower => "balance_power",
            Self::Power => "power",
        }
    }
}

impl fmt::Display for EnergyPreference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
