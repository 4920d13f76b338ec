//! The CPU quota under which each side of a started target runs.

use bayes_opt::Value;
use host::CpuQuota;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::template::{self, Variables};

/// A CPU quota. Each side runs in a control group of its own with this quota. The control group
/// counts how often the side was throttled.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaSpec {
    /// The quota in cores: a number, a template such as `"{cores}"`, or `"max"` for no limit.
    pub cores: Value,
    /// The period, in microseconds, from 1,000 to 1,000,000.
    #[serde(default = "period_us")]
    pub period_us: Value,
    /// Unused quota that may be saved for later periods, in microseconds. By default 0. Needs Linux
    /// 5.14 or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_us: Option<Value>,
}

fn period_us() -> Value {
    Value::Int(100_000)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "finite and not negative; what is too large is refused later"
)]
fn whole(us: f64) -> u64 {
    us.round() as u64
}

impl QuotaSpec {
    /// Its texts, as they were written, by key.
    pub fn texts(&self) -> Vec<(&'static str, String)> {
        let burst = self.burst_us.iter().map(|burst| ("burst_us", burst));
        let all = [("cores", &self.cores), ("period_us", &self.period_us)];
        all.into_iter()
            .chain(burst)
            .map(|(key, value)| (key, value.to_string()))
            .collect()
    }

    /// The limit once templates are filled in; an error in words with its key.
    pub fn filled(&self, variables: &Variables) -> Result<CpuQuota, (&'static str, String)> {
        let text = |key: &'static str, value: &Value| {
            template::fill(&value.to_string(), variables).map_err(|error| (key, error.to_string()))
        };
        let number = |key: &'static str, text: String| {
            text.parse::<f64>()
                .ok()
                .filter(|value| value.is_finite() && *value >= 0.0)
                .map(whole)
                .ok_or_else(|| (key, format!("{text:?} is not a number of µs")))
        };
        let period_us = number("period_us", text("period_us", &self.period_us)?)?;
        if !(1_000..=1_000_000).contains(&period_us) {
            let message = format!("{period_us} µs: the kernel takes 1,000 to 1,000,000");
            return Err(("period_us", message));
        }
        let cores = text("cores", &self.cores)?;
        let quota_us = if cores == "max" {
            None
        } else {
            let cores = cores
                .parse::<f64>()
                .ok()
                .filter(|cores| cores.is_finite() && *cores > 0.0)
                .ok_or_else(|| ("cores", format!("{cores:?} is not a number above 0")))?;
            let quota_us = whole(cores * period_us as f64);
            if quota_us < 1_000 {
                let message = format!("{quota_us} µs in a period: the kernel takes 1,000 or more");
                return Err(("cores", message));
            }
            Some(quota_us)
        };
        let burst_us = match &self.burst_us {
            None => None,
            Some(burst) => Some(number("burst_us", text("burst_us", burst)?)?),
        };
        if let (Some(burst_us), Some(quota_us)) = (burst_us, quota_us)
            && burst_us > quota_us
        {
            let message = format!("{burst_us} µs: at most the quota, {quota_us} µs");
            return Err(("burst_us", message));
        }
        Ok(CpuQuota {
            period_us,
            quota_us,
            burst_us,
        })
    }
}
